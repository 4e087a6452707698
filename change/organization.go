package change

import (
	"cmp"
	"context"
	"maps"
	"slices"

	"mariposa"
	"mariposa/auth"
	"mariposa/contract"
	"mariposa/reason"
	"mariposa/store"
)

// CreateOrganization creates an organization that the caller owns.
func (c *Changer) CreateOrganization(ctx context.Context, req *Request, name string, base mariposa.Role) (*contract.Changed, error) {
	if err := mariposa.CheckName("organization", name); err != nil {
		return nil, err
	}
	if !req.Caller.Bounds.Unbounded() {
		return nil, &mariposa.Error{Code: mariposa.Forbidden, Message: "this token cannot create organizations: it has fewer permissions than its user"}
	}
	id := c.NewID()
	return c.commit(ctx, req, mariposa.NameID("", name), func() (*attempt, error) {
		a := &attempt{answer: contract.Changed{ID: id, Name: name}}
		if err := c.claimOrganization(req, req.Caller.User, &a.unit); err != nil {
			return nil, err
		}
		if err := c.addName(&a.unit, name, mariposa.NameSpec{Organization: id}); err != nil {
			return nil, err
		}
		settings := c.settings()
		spec := &mariposa.OrganizationSpec{
			Name: name, Base: cmp.Or(base, mariposa.RoleViewer), Created: c.Clock.Now(), Author: req.actor(),
			Members: map[string]mariposa.OrgRole{req.Caller.User: mariposa.OrgOwner}, Quota: settings.NewQuota(false), Policy: newPolicy(),
		}
		a.unit.Put(store.Write{Kind: mariposa.KindOrg, ID: id, Spec: spec, Event: req.event("organization.created", "", nil)})
		a.unit.Audit = []mariposa.Audit{{Kind: string(mariposa.KindOrg), Organization: id}}
		return a, nil
	})
}

// changeOrganization changes an organization in its current state: build changes the
// spec, and adds any other writes to the unit.
func (c *Changer) changeOrganization(ctx context.Context, req *Request, id string, build func(*mariposa.OrganizationSpec, *store.Unit) error) (*contract.Changed, error) {
	return c.commit(ctx, req, id, func() (*attempt, error) {
		unit, spec, err := c.editOrganization(req, id)
		if err != nil {
			return nil, err
		}
		if err := build(spec, unit); err != nil {
			return nil, err
		}
		if !slices.ContainsFunc(unit.Writes, func(w store.Write) bool { return w.Kind == mariposa.KindOrg && w.Delete }) {
			unit.Put(orgWrite(req, id, spec))
		}
		return &attempt{unit: *unit, answer: contract.Changed{ID: id, Name: spec.Name}}, nil
	})
}

// editOrganization begins a change of an organization in its current state.
func (c *Changer) editOrganization(req *Request, id string) (*store.Unit, *mariposa.OrganizationSpec, error) {
	r := c.Picture.Orgs.Get(id)
	if r == nil {
		return nil, nil, notFound("the organization no longer exists")
	}
	if err := c.authorize(req, r.Record()); err != nil {
		return nil, nil, err
	}
	spec := *r.Spec()
	spec.Members = maps.Clone(spec.Members)
	unit := &store.Unit{Audit: []mariposa.Audit{{Kind: string(mariposa.KindOrg), Organization: id}}}
	unit.Unchanged(r)
	return unit, &spec, nil
}

// UpdateOrganization changes the name or base role of an organization; empty ones are
// unchanged.
func (c *Changer) UpdateOrganization(ctx context.Context, req *Request, id, name string, base mariposa.Role) (*contract.Changed, error) {
	return c.changeOrganization(ctx, req, id, func(spec *mariposa.OrganizationSpec, unit *store.Unit) error {
		spec.Base = cmp.Or(base, spec.Base)
		if name == "" || name == spec.Name {
			return nil
		}
		if spec.Personal != "" {
			return conflict("%s is a personal organization: it cannot be renamed", spec.Name)
		}
		if err := mariposa.CheckName("organization", name); err != nil {
			return err
		}
		unit.Delete(mariposa.KindName, mariposa.NameID("", spec.Name), mariposa.Event{})
		spec.Name = name
		return c.addName(unit, name, mariposa.NameSpec{Organization: id})
	})
}

// DeleteOrganization deletes an empty organization.
func (c *Changer) DeleteOrganization(ctx context.Context, req *Request, id string) (*contract.Changed, error) {
	return c.changeOrganization(ctx, req, id, func(spec *mariposa.OrganizationSpec, unit *store.Unit) error {
		if spec.Personal != "" {
			return conflict("%s is a personal organization: it is deleted with its user", spec.Name)
		}
		if n := len(c.Picture.ProjectsOf(id)); n > 0 {
			return conflict("organization %s still has %s: move or delete them first", spec.Name, reason.Many(n, "project"))
		}
		if n := len(c.Picture.RetainedVolumesOf(id)); n > 0 {
			return conflict("organization %s still has %s of deleted projects: delete them first", spec.Name, reason.Many(n, "volume"))
		}
		requireNoProjects(unit, id)
		unit.Delete(mariposa.KindOrg, id, req.event("organization.deleted", "", nil))
		unit.Delete(mariposa.KindKey, id, mariposa.Event{})
		unit.Delete(mariposa.KindName, mariposa.NameID("", spec.Name), mariposa.Event{})
		return nil
	})
}

// SetMember makes a user a member or owner of an organization.
func (c *Changer) SetMember(ctx context.Context, req *Request, org string, user *store.User, role mariposa.OrgRole) (*contract.Changed, error) {
	return c.changeOrganization(ctx, req, org, func(spec *mariposa.OrganizationSpec, unit *store.Unit) error {
		if spec.Personal != "" {
			return conflict("%s is a personal organization and has no other members: create an organization to work with others, or share single projects", spec.Name)
		}
		unit.Exists(mariposa.KindUser, user.ID)
		if role == mariposa.OrgOwner && spec.Members[user.ID] != mariposa.OrgOwner {
			if err := c.claimOrganization(req, user.ID, unit); err != nil {
				return err
			}
		}
		unit.Audit[0].Reason = user.Spec().Name + " becomes " + string(role)
		spec.Members[user.ID] = role
		return requireOwner(spec)
	})
}

// RemoveMember removes a user from an organization. They lose their own roles in its
// projects, including those that they created.
func (c *Changer) RemoveMember(ctx context.Context, req *Request, org string, user *store.User) (*contract.Changed, error) {
	return c.changeOrganization(ctx, req, org, func(spec *mariposa.OrganizationSpec, unit *store.Unit) error {
		if err := c.requireLeaver(req, org, user.ID); err != nil {
			return err
		}
		if spec.Personal != "" {
			return conflict("%s is a personal organization: its user cannot be removed", spec.Name)
		}
		unit.Audit[0].Reason = user.Spec().Name + " leaves"
		delete(spec.Members, user.ID)
		for _, p := range c.Picture.ProjectsOf(org) {
			if p.Spec().Users[user.ID] != "" {
				leaveProject(req, p, user.ID, unit)
			}
		}
		return requireOwner(spec)
	})
}

// requireLeaver checks that the caller may remove a member: administrators remove
// anybody, and users themselves, unless by a token with fewer rights than theirs.
func (c *Changer) requireLeaver(req *Request, org, user string) error {
	role := req.Caller.Bounds.Role
	if user == req.Caller.User && (role == "" || role == mariposa.RoleAdmin) {
		return nil
	}
	return c.Directory.Require(req.Caller, auth.AdministerOrganization, c.Picture.Get(mariposa.KindOrg, org))
}

func orgWrite(req *Request, id string, spec *mariposa.OrganizationSpec) store.Write {
	return store.Write{Kind: mariposa.KindOrg, ID: id, Spec: spec, Event: req.event("organization.updated", "", nil)}
}

// requireOwner refuses to leave an organization without an owner.
func requireOwner(spec *mariposa.OrganizationSpec) error {
	for _, role := range spec.Members {
		if role == mariposa.OrgOwner {
			return nil
		}
	}
	return conflict("organization %s would have no owner: make another member an owner first", spec.Name)
}
