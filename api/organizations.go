package api

import (
	"context"
	"maps"
	"slices"
	"strings"

	"mariposa"
	"mariposa/auth"
	"mariposa/contract"
	"mariposa/store"
)

// OfOrganization are the parameters of a path that leads to an organization.
type OfOrganization struct {
	Organization string `path:"organization" doc:"its id or name" maxLength:"255"`
}

func (v *viewer) organization(r *store.Record) contract.Organization {
	spec := r.Spec.(*mariposa.OrganizationSpec)
	return contract.Organization{
		ID: r.ID, Name: spec.Name, Personal: spec.Personal != "", Role: v.s.directory.RoleOf(caller(v.ctx), r), BaseRole: spec.Base,
		Members: len(spec.Members), Projects: len(v.s.Picture.ProjectsOf(r.ID)), Created: spec.Created,
	}
}

func (s *server) listOrganizations(ctx context.Context, _ *struct{}) (*document[contract.Organizations], error) {
	c, v := caller(ctx), s.viewer(ctx)
	records := s.Picture.OrganizationsOf(c.User)
	if c.Admin {
		records = s.Picture.All(mariposa.KindOrg)
	}
	all := contract.Organizations{Organizations: []contract.Organization{}}
	for _, r := range records {
		if s.directory.RoleOf(c, r) != "" {
			all.Organizations = append(all.Organizations, v.organization(r))
		}
	}
	slices.SortFunc(all.Organizations, func(a, b contract.Organization) int { return strings.Compare(a.Name, b.Name) })
	return answer(all)
}

func (s *server) getOrganization(ctx context.Context, in *OfOrganization) (*document[contract.Organization], error) {
	r, err := s.findOrganization(ctx, in.Organization)
	if err != nil {
		return nil, err
	}
	return answer(s.viewer(ctx).organization(r))
}

type createOrganizationInput struct{ Body contract.NewOrganization }

func (s *server) createOrganization(ctx context.Context, in *createOrganizationInput) (*document[contract.Changed], error) {
	c, name := caller(ctx), in.Body.Name
	if err := checkName("organization", name); err != nil {
		return nil, err
	}
	if !c.Bounds.Unbounded() {
		return nil, &mariposa.Error{Code: mariposa.Forbidden, Message: "a token that is bound to less than its user's rights makes no organizations"}
	}
	id := s.NewID()
	changed, err := commit(ctx, s, mariposa.NameID("", name), func() (*store.Unit, contract.Changed, error) {
		if err := s.freeName(name); err != nil {
			return nil, contract.Changed{}, err
		}
		spec := &mariposa.OrganizationSpec{
			Name: name, Base: mariposa.Role(firstOf(string(in.Body.BaseRole), string(mariposa.RoleViewer))), Created: s.Clock.Now(), Author: actor(ctx),
			Members: map[string]mariposa.OrgRole{c.User: mariposa.OrgOwner},
		}
		return &store.Unit{
			Require: []store.Require{{Kind: mariposa.KindName, ID: mariposa.NameID("", name), Absent: true}},
			Writes: []store.Write{
				{Kind: mariposa.KindName, ID: mariposa.NameID("", name), Spec: &mariposa.NameSpec{Organization: id}},
				{Kind: mariposa.KindOrg, ID: id, Spec: spec, Event: mariposa.Event{Kind: "organization.created", Actor: actor(ctx)}},
			},
			Audit: []mariposa.Audit{{Kind: string(mariposa.KindOrg), Organization: id}},
		}, contract.Changed{ID: id, Name: name}, nil
	})
	if err != nil {
		return nil, err
	}
	return answer(*changed)
}

// changeOrganization changes an organization as it stands: build changes the
// spec, and adds to the unit what else there is to write.
func (s *server) changeOrganization(ctx context.Context, ref string, build func(*store.Record, *mariposa.OrganizationSpec, *store.Unit) error) (*document[contract.Changed], error) {
	found, err := s.findOrganization(ctx, ref)
	if err != nil {
		return nil, err
	}
	changed, err := commit(ctx, s, found.ID, func() (*store.Unit, contract.Changed, error) {
		unit, spec, err := s.editOrganization(ctx, found.ID)
		if err != nil {
			return nil, contract.Changed{}, err
		}
		if err := build(found, spec, unit); err != nil {
			return nil, contract.Changed{}, err
		}
		if !slices.ContainsFunc(unit.Writes, func(w store.Write) bool { return w.Kind == mariposa.KindOrg && w.Delete }) {
			unit.Writes = append(unit.Writes, orgWrite(ctx, found.ID, spec))
		}
		return unit, contract.Changed{ID: found.ID, Name: spec.Name}, nil
	})
	if err != nil {
		return nil, err
	}
	return answer(*changed)
}

// editOrganization begins a change of an organization as it stands.
func (s *server) editOrganization(ctx context.Context, id string) (*store.Unit, *mariposa.OrganizationSpec, error) {
	r := s.Picture.Get(mariposa.KindOrg, id)
	if r == nil {
		return nil, nil, notFound("the organization is gone")
	}
	if err := s.authorizeAgain(ctx, r); err != nil {
		return nil, nil, err
	}
	spec := *r.Spec.(*mariposa.OrganizationSpec)
	spec.Members = maps.Clone(spec.Members)
	return &store.Unit{
		Require: []store.Require{{Kind: mariposa.KindOrg, ID: id, SpecRevision: r.SpecRevision, StatusRevision: -1}},
		Audit:   []mariposa.Audit{{Kind: string(mariposa.KindOrg), Organization: id}},
	}, &spec, nil
}

func orgWrite(ctx context.Context, id string, spec *mariposa.OrganizationSpec) store.Write {
	return store.Write{Kind: mariposa.KindOrg, ID: id, Spec: spec, Event: mariposa.Event{Kind: "organization.updated", Actor: actor(ctx)}}
}

type updateOrganizationInput struct {
	OfOrganization
	Body contract.OrganizationChange
}

func (s *server) updateOrganization(ctx context.Context, in *updateOrganizationInput) (*document[contract.Changed], error) {
	return s.changeOrganization(ctx, in.Organization, func(r *store.Record, spec *mariposa.OrganizationSpec, unit *store.Unit) error {
		if in.Body.BaseRole != "" {
			spec.Base = in.Body.BaseRole
		}
		name := in.Body.Name
		if name == "" || name == spec.Name {
			return nil
		}
		if spec.Personal != "" {
			return conflict("%s is a user's own organization and keeps their name", spec.Name)
		}
		if err := checkName("organization", name); err != nil {
			return err
		}
		if err := s.freeName(name); err != nil {
			return err
		}
		unit.Require = append(unit.Require, store.Require{Kind: mariposa.KindName, ID: mariposa.NameID("", name), Absent: true})
		unit.Writes = append(unit.Writes,
			store.Write{Kind: mariposa.KindName, ID: mariposa.NameID("", spec.Name), Delete: true},
			store.Write{Kind: mariposa.KindName, ID: mariposa.NameID("", name), Spec: &mariposa.NameSpec{Organization: r.ID}})
		spec.Name = name
		return nil
	})
}

func (s *server) deleteOrganization(ctx context.Context, in *OfOrganization) (*document[contract.Changed], error) {
	return s.changeOrganization(ctx, in.Organization, func(r *store.Record, spec *mariposa.OrganizationSpec, unit *store.Unit) error {
		if spec.Personal != "" {
			return conflict("%s is a user's own organization: it goes with its user", spec.Name)
		}
		if n := len(s.Picture.ProjectsOf(r.ID)); n > 0 {
			return conflict("organization %s still has %s: move or delete them first", spec.Name, many(n, "project"))
		}
		if n := len(s.Picture.VolumesLeftTo(r.ID)); n > 0 {
			return conflict("organization %s still has %s from projects that are gone: delete them first", spec.Name, many(n, "volume"))
		}
		emptied(unit, r.ID)
		unit.Writes = append(unit.Writes,
			store.Write{Kind: mariposa.KindOrg, ID: r.ID, Delete: true, Event: mariposa.Event{Kind: "organization.deleted", Actor: actor(ctx)}},
			store.Write{Kind: mariposa.KindName, ID: mariposa.NameID("", spec.Name), Delete: true})
		return nil
	})
}

func (s *server) listMembers(ctx context.Context, in *OfOrganization) (*document[contract.Members], error) {
	r, err := s.findOrganization(ctx, in.Organization)
	if err != nil {
		return nil, err
	}
	v, all := s.viewer(ctx), contract.Members{Members: []contract.Member{}}
	for id, role := range r.Spec.(*mariposa.OrganizationSpec).Members {
		all.Members = append(all.Members, contract.Member{User: id, UserName: v.userName(id), Role: string(role)})
	}
	slices.SortFunc(all.Members, func(a, b contract.Member) int { return strings.Compare(a.UserName, b.UserName) })
	return answer(all)
}

// OfMember are the parameters of a path that leads to a member.
type OfMember struct {
	OfOrganization
	OfUser
}

type putMemberInput struct {
	OfMember
	Body contract.MemberChange
}

func (s *server) putMember(ctx context.Context, in *putMemberInput) (*document[contract.Changed], error) {
	role := mariposa.OrgRole(in.Body.Role)
	if role != mariposa.OrgOwner && role != mariposa.OrgMember {
		return nil, invalid("role must be owner or member, not %q", shorten(in.Body.Role))
	}
	user, err := s.anyUser(in.User)
	if err != nil {
		return nil, err
	}
	return s.changeOrganization(ctx, in.Organization, func(_ *store.Record, spec *mariposa.OrganizationSpec, unit *store.Unit) error {
		if spec.Personal != "" {
			return conflict("%s is a user's own organization: make another one to work with others, or share single projects", spec.Name)
		}
		unit.Require = append(unit.Require, store.Require{Kind: mariposa.KindUser, ID: user.ID, SpecRevision: -1, StatusRevision: -1})
		unit.Audit[0].Reason = user.Spec.(*mariposa.UserSpec).Name + " becomes " + string(role)
		spec.Members[user.ID] = role
		return owned(spec)
	})
}

// owned refuses to leave an organization without an owner.
func owned(spec *mariposa.OrganizationSpec) error {
	for _, role := range spec.Members {
		if role == mariposa.OrgOwner {
			return nil
		}
	}
	return conflict("organization %s would have no owner: make somebody else an owner first", spec.Name)
}

func (s *server) removeMember(ctx context.Context, in *OfMember) (*document[contract.Changed], error) {
	org, err := s.findOrganization(ctx, in.Organization)
	if err != nil {
		return nil, err
	}
	user := s.directory.User(in.User)
	if user == nil || org.Spec.(*mariposa.OrganizationSpec).Members[user.ID] == "" {
		return nil, notFound("%q is no member of organization %s", in.User, org.Spec.(*mariposa.OrganizationSpec).Name)
	}
	c := caller(ctx)
	leaves := user.ID == c.User && (c.Bounds.Role == "" || c.Bounds.Role == mariposa.RoleAdmin) // a token bound to less decides nothing for its user
	if !leaves {
		if err := s.require(ctx, auth.AdministerOrganization, org); err != nil {
			return nil, err
		}
	}
	return s.changeOrganization(ctx, in.Organization, func(_ *store.Record, spec *mariposa.OrganizationSpec, unit *store.Unit) error {
		if spec.Personal != "" {
			return conflict("%s is a user's own organization", spec.Name)
		}
		unit.Audit[0].Reason = user.Spec.(*mariposa.UserSpec).Name + " leaves"
		delete(spec.Members, user.ID)
		s.leaveProjects(ctx, org.ID, user.ID, unit)
		return owned(spec)
	})
}

// leaveProjects takes a user's own roles in an organization's projects away: who
// leaves keeps nothing, what they made themselves included.
func (s *server) leaveProjects(ctx context.Context, org, user string, unit *store.Unit) {
	for _, p := range s.Picture.ProjectsOf(org) {
		if p.Spec.(*mariposa.ProjectSpec).Users[user] != "" {
			w, q := s.withUser(ctx, p, user, mariposa.RoleNone)
			unit.Writes, unit.Require = append(unit.Writes, w), append(unit.Require, q)
		}
	}
}

// leave takes a user out of an organization as part of a larger change.
func (s *server) leave(ctx context.Context, org *store.Record, user string, unit *store.Unit) error {
	spec := *org.Spec.(*mariposa.OrganizationSpec)
	spec.Members = maps.Clone(spec.Members)
	delete(spec.Members, user)
	unit.Require = append(unit.Require, store.Require{Kind: mariposa.KindOrg, ID: org.ID, SpecRevision: org.SpecRevision, StatusRevision: -1})
	unit.Writes = append(unit.Writes, orgWrite(ctx, org.ID, &spec))
	return owned(&spec)
}
