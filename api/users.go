package api

import (
	"context"
	"slices"
	"strings"

	"mariposa"
	"mariposa/auth"
	"mariposa/contract"
	"mariposa/store"
)

func (v *viewer) user(r *store.Record) contract.User {
	spec := r.Spec.(*mariposa.UserSpec)
	return contract.User{
		ID: r.ID, Name: spec.Name, Email: spec.Email, Admin: spec.Admin, Disabled: spec.Disabled,
		Organization: spec.Organization, OrganizationName: v.orgName(spec.Organization), Created: spec.Created,
	}
}

func (v *viewer) userName(id string) string {
	if r := v.s.Picture.Get(mariposa.KindUser, id); r != nil {
		return r.Spec.(*mariposa.UserSpec).Name
	}
	return ""
}

func (s *server) whoami(ctx context.Context, _ *struct{}) (*document[contract.Whoami], error) {
	c, v := caller(ctx), s.viewer(ctx)
	r := s.Picture.Get(mariposa.KindUser, firstOf(c.By, c.User))
	if r == nil {
		return nil, notFound("there is no such user")
	}
	doc := contract.Whoami{User: v.user(r)}
	if c.By != "" {
		doc.For = c.Name
	}
	if t := s.Picture.Get(mariposa.KindToken, c.Token); t != nil {
		doc.Token = v.token(t)
	}
	return answer(doc)
}

// knows reports whether a caller may know of a user: themselves, and those they
// share an organization or project with.
func (s *server) knows(ctx context.Context, user *store.Record) bool {
	c := caller(ctx)
	return user.ID == c.By || s.seesAll(c) || s.acquaintances(ctx)[user.ID]
}

func (s *server) listUsers(ctx context.Context, _ *struct{}) (*document[contract.Users], error) {
	v, all := s.viewer(ctx), contract.Users{Users: []contract.User{}}
	if s.seesAll(caller(ctx)) {
		for _, r := range s.Picture.All(mariposa.KindUser) {
			all.Users = append(all.Users, v.user(r))
		}
	} else {
		for id := range s.acquaintances(ctx) {
			if r := s.Picture.Get(mariposa.KindUser, id); r != nil {
				all.Users = append(all.Users, v.user(r))
			}
		}
	}
	slices.SortFunc(all.Users, func(a, b contract.User) int { return strings.Compare(a.Name, b.Name) })
	return answer(all)
}

// acquaintances are the ids of the users that a caller shares an organization or
// project with.
func (s *server) acquaintances(ctx context.Context) map[string]bool {
	c := caller(ctx)
	ids := map[string]bool{c.User: true}
	for _, org := range s.Picture.OrganizationsOf(c.User) {
		if s.directory.RoleOf(c, org) != "" {
			for id := range org.Spec.(*mariposa.OrganizationSpec).Members {
				ids[id] = true
			}
		}
	}
	projects, _ := s.projectsFor(ctx, "") // it fails for an organization that is named alone
	for _, p := range projects {
		for id := range p.Spec.(*mariposa.ProjectSpec).Users {
			ids[id] = true
		}
	}
	return ids
}

// OfUser are the parameters of a path that leads to a user.
type OfUser struct {
	User string `path:"user" doc:"their id or name" maxLength:"255"`
}

// findUser finds a user whom the caller may know of.
func (s *server) findUser(ctx context.Context, ref string) (*store.Record, error) {
	r := s.directory.User(ref)
	if r == nil || !s.knows(ctx, r) {
		return nil, notFound("there is no user %q", ref)
	}
	return r, nil
}

// anyUser finds a user by name or id, known or not: whoever gives somebody a role
// has to know how they are called.
func (s *server) anyUser(ref string) (*store.Record, error) {
	r := s.directory.User(ref)
	if r == nil {
		return nil, notFound("there is no user %q", ref)
	}
	return r, nil
}

func (s *server) getUser(ctx context.Context, in *OfUser) (*document[contract.User], error) {
	r, err := s.findUser(ctx, in.User)
	if err != nil {
		return nil, err
	}
	return answer(s.viewer(ctx).user(r))
}

type createUserInput struct{ Body contract.NewUser }

func (s *server) createUser(ctx context.Context, in *createUserInput) (*document[contract.Changed], error) {
	name := in.Body.Name
	if err := checkName("user", name); err != nil {
		return nil, err
	}
	if err := checkText("email", in.Body.Email); err != nil {
		return nil, err
	}
	id, org := s.NewID(), s.NewID()
	changed, err := commit(ctx, s, mariposa.NameID("", name), func() (*store.Unit, contract.Changed, error) {
		if err := s.freeName(name); err != nil {
			return nil, contract.Changed{}, err
		}
		spec := &mariposa.UserSpec{Name: name, Email: in.Body.Email, Admin: in.Body.Admin, Created: s.Clock.Now(), Author: actor(ctx)}
		return &store.Unit{
			Require: []store.Require{{Kind: mariposa.KindName, ID: mariposa.NameID("", name), Absent: true}},
			Writes:  auth.NewUser(id, org, spec),
			Audit:   []mariposa.Audit{{Kind: string(mariposa.KindUser)}},
		}, contract.Changed{ID: id, Name: name}, nil
	})
	if err != nil {
		return nil, err
	}
	return answer(*changed)
}

// freeName says whether a user or organization can still take a name.
func (s *server) freeName(name string) error {
	if s.Picture.Get(mariposa.KindName, mariposa.NameID("", name)) != nil {
		return conflict("the name %s is taken: users and organizations share their names; choose another", name)
	}
	return nil
}

type updateUserInput struct {
	OfUser
	Body contract.UserChange
}

func (s *server) updateUser(ctx context.Context, in *updateUserInput) (*document[contract.Changed], error) {
	if in.Body.Email != nil {
		if err := checkText("email", *in.Body.Email); err != nil {
			return nil, err
		}
	}
	return s.changeUser(ctx, in.User, func(r *store.Record, unit *store.Unit) error {
		spec := *r.Spec.(*mariposa.UserSpec)
		set(&spec.Email, in.Body.Email)
		set(&spec.Admin, in.Body.Admin)
		set(&spec.Disabled, in.Body.Disabled)
		if r.ID == mariposa.FirstUser && (!spec.Admin || spec.Disabled) {
			return conflict("%s is the first user and keeps the installation reachable: it stays an admin and enabled", spec.Name)
		}
		unit.Writes = append(unit.Writes, store.Write{
			Kind: mariposa.KindUser, ID: r.ID, Spec: &spec, Event: mariposa.Event{Kind: "user.updated", Actor: actor(ctx)},
		})
		return nil
	})
}

func set[T any](to, from *T) {
	if from != nil {
		*to = *from
	}
}

// changeUser changes a user as they stand.
func (s *server) changeUser(ctx context.Context, ref string, build func(*store.Record, *store.Unit) error) (*document[contract.Changed], error) {
	found, err := s.anyUser(ref)
	if err != nil {
		return nil, err
	}
	changed, err := commit(ctx, s, found.ID, func() (*store.Unit, contract.Changed, error) {
		r := s.Picture.Get(mariposa.KindUser, found.ID)
		if r == nil {
			return nil, contract.Changed{}, notFound("the user is gone")
		}
		unit := &store.Unit{
			Require: []store.Require{{Kind: mariposa.KindUser, ID: r.ID, SpecRevision: r.SpecRevision, StatusRevision: -1}},
			Audit:   []mariposa.Audit{{Kind: string(mariposa.KindUser)}},
		}
		err := build(r, unit)
		return unit, contract.Changed{ID: r.ID, Name: r.Spec.(*mariposa.UserSpec).Name}, err
	})
	if err != nil {
		return nil, err
	}
	return answer(*changed)
}

func (s *server) deleteUser(ctx context.Context, in *OfUser) (*document[contract.Changed], error) {
	return s.changeUser(ctx, in.User, func(r *store.Record, unit *store.Unit) error {
		spec := r.Spec.(*mariposa.UserSpec)
		if r.ID == mariposa.FirstUser || r.ID == firstOf(caller(ctx).By, caller(ctx).User) {
			return conflict("%s cannot be deleted: it is the first user, or the one that asks", spec.Name)
		}
		if n := len(s.Picture.ProjectsOf(spec.Organization)); n > 0 {
			return conflict("%s still has %s in their own organization: move or delete them first", spec.Name, many(n, "project"))
		}
		if n := len(s.Picture.VolumesLeftTo(spec.Organization)); n > 0 {
			return conflict("%s still has %s in their own organization, from projects that are gone: delete them first", spec.Name, many(n, "volume"))
		}
		emptied(unit, spec.Organization)
		event := mariposa.Event{Kind: "user.deleted", Actor: actor(ctx)}
		unit.Writes = append(unit.Writes,
			store.Write{Kind: mariposa.KindUser, ID: r.ID, Delete: true, Event: event},
			store.Write{Kind: mariposa.KindName, ID: mariposa.NameID("", spec.Name), Delete: true},
			store.Write{Kind: mariposa.KindOrg, ID: spec.Organization, Delete: true, Event: mariposa.Event{Kind: "organization.deleted", Actor: actor(ctx)}})
		for _, t := range s.Picture.TokensOf(r.ID) {
			unit.Writes = append(unit.Writes, store.Write{Kind: mariposa.KindToken, ID: t.ID, Delete: true})
		}
		if err := s.leaveAll(ctx, r.ID, spec, unit); err != nil {
			return err
		}
		return nil
	})
}

// leaveAll takes a user out of every organization and project.
func (s *server) leaveAll(ctx context.Context, user string, spec *mariposa.UserSpec, unit *store.Unit) error {
	for _, org := range s.Picture.OrganizationsOf(user) {
		if org.ID == spec.Organization {
			continue
		}
		if err := s.leave(ctx, org, user, unit); err != nil {
			return err
		}
	}
	for _, p := range s.Picture.ProjectsWith(user) {
		w, q := s.withUser(ctx, p, user, mariposa.RoleNone)
		unit.Writes, unit.Require = append(unit.Writes, w), append(unit.Require, q)
	}
	return nil
}
