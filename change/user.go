package change

import (
	"cmp"
	"context"
	"maps"

	"mariposa"
	"mariposa/auth"
	"mariposa/contract"
	"mariposa/reason"
	"mariposa/store"
)

// CreateUser makes a user, with an organization of their own.
func (c *Changer) CreateUser(ctx context.Context, req *Request, name, email string, admin bool) (*contract.Changed, error) {
	if err := checkName("user", name); err != nil {
		return nil, err
	}
	if err := checkText("email", email); err != nil {
		return nil, err
	}
	id, org := c.NewID(), c.NewID()
	return c.commit(ctx, req, mariposa.NameID("", name), func() (*attempt, error) {
		if err := c.freeName(name); err != nil {
			return nil, err
		}
		a := &attempt{answer: contract.Changed{ID: id, Name: name}}
		a.unit.Absent(mariposa.KindName, mariposa.NameID("", name))
		a.unit.Put(auth.NewUser(id, org, &mariposa.UserSpec{Name: name, Email: email, Admin: admin, Created: c.Clock.Now(), Author: req.actor()})...)
		a.unit.Audit = []mariposa.Audit{{Kind: string(mariposa.KindUser)}}
		return a, nil
	})
}

// freeName says whether a user or organization can still take a name.
func (c *Changer) freeName(name string) error {
	if c.Picture.Get(mariposa.KindName, mariposa.NameID("", name)) != nil {
		return conflict("the name %s is taken: users and organizations share their names; choose another", name)
	}
	return nil
}

// takeName adds a name to a unit, if it is free.
func (c *Changer) takeName(unit *store.Unit, name string, spec mariposa.NameSpec) error {
	id := mariposa.NameID("", name)
	unit.Absent(mariposa.KindName, id)
	unit.Put(store.Write{Kind: mariposa.KindName, ID: id, Spec: &spec})
	return c.freeName(name)
}

// UpdateUser changes what is given of a user.
func (c *Changer) UpdateUser(ctx context.Context, req *Request, id string, to contract.UserChange) (*contract.Changed, error) {
	if to.Email != nil {
		if err := checkText("email", *to.Email); err != nil {
			return nil, err
		}
	}
	return c.changeUser(ctx, req, id, func(spec mariposa.UserSpec, unit *store.Unit) error {
		set(&spec.Email, to.Email)
		set(&spec.Admin, to.Admin)
		set(&spec.Disabled, to.Disabled)
		if id == mariposa.FirstUser && (!spec.Admin || spec.Disabled) {
			return conflict("%s is the first user and keeps the installation reachable: it stays an admin and enabled", spec.Name)
		}
		unit.Put(store.Write{Kind: mariposa.KindUser, ID: id, Spec: &spec, Event: mariposa.Event{Kind: "user.updated", Actor: req.actor()}})
		return nil
	})
}

func set[T any](to, from *T) {
	if from != nil {
		*to = *from
	}
}

// changeUser changes a user as they stand.
func (c *Changer) changeUser(ctx context.Context, req *Request, id string, build func(mariposa.UserSpec, *store.Unit) error) (*contract.Changed, error) {
	return c.commit(ctx, req, id, func() (*attempt, error) {
		r := c.Picture.Get(mariposa.KindUser, id)
		if r == nil {
			return nil, notFound("the user is gone")
		}
		spec := r.Spec.(*mariposa.UserSpec)
		a := &attempt{answer: contract.Changed{ID: id, Name: spec.Name}}
		a.unit.Unchanged(r)
		a.unit.Audit = []mariposa.Audit{{Kind: string(mariposa.KindUser)}}
		return a, build(*spec, &a.unit)
	})
}

// DeleteUser deletes a user who owns nothing any more. They leave every organization
// and project, and their tokens let nobody in.
func (c *Changer) DeleteUser(ctx context.Context, req *Request, id string) (*contract.Changed, error) {
	return c.changeUser(ctx, req, id, func(spec mariposa.UserSpec, unit *store.Unit) error {
		if id == mariposa.FirstUser || id == cmp.Or(req.Caller.By, req.Caller.User) {
			return conflict("%s cannot be deleted: it is the first user, or the one that asks", spec.Name)
		}
		if n := len(c.Picture.ProjectsOf(spec.Organization)); n > 0 {
			return conflict("%s still has %s in their own organization: move or delete them first", spec.Name, reason.Many(n, "project"))
		}
		if n := len(c.Picture.VolumesLeftTo(spec.Organization)); n > 0 {
			return conflict("%s still has %s in their own organization, from projects that are gone: delete them first", spec.Name, reason.Many(n, "volume"))
		}
		emptied(unit, spec.Organization)
		unit.Put(
			store.Write{Kind: mariposa.KindUser, ID: id, Delete: true, Event: mariposa.Event{Kind: "user.deleted", Actor: req.actor()}},
			store.Write{Kind: mariposa.KindName, ID: mariposa.NameID("", spec.Name), Delete: true},
			store.Write{Kind: mariposa.KindOrg, ID: spec.Organization, Delete: true, Event: mariposa.Event{Kind: "organization.deleted", Actor: req.actor()}})
		for _, t := range c.Picture.TokensOf(id) {
			unit.Put(store.Write{Kind: mariposa.KindToken, ID: t.ID, Delete: true})
		}
		return c.leaveAll(req, id, spec.Organization, unit)
	})
}

// leaveAll takes a user out of every project, and of every organization but their own.
func (c *Changer) leaveAll(req *Request, user, own string, unit *store.Unit) error {
	for _, org := range c.Picture.OrganizationsOf(user) {
		if org.ID == own {
			continue
		}
		spec := *org.Spec.(*mariposa.OrganizationSpec)
		spec.Members = maps.Clone(spec.Members)
		delete(spec.Members, user)
		unit.Unchanged(org)
		unit.Put(orgWrite(req, org.ID, &spec))
		if err := owned(&spec); err != nil {
			return err
		}
	}
	for _, p := range c.Picture.ProjectsWith(user) {
		leaveProject(req, p, user, unit)
	}
	return nil
}
