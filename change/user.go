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

// CreateUser creates a user, with an organization of their own.
func (c *Changer) CreateUser(ctx context.Context, req *Request, name, email string, admin bool) (*contract.Changed, error) {
	if err := mariposa.CheckName("user", name); err != nil {
		return nil, err
	}
	if err := checkText("email", email); err != nil {
		return nil, err
	}
	id, org := c.NewID(), c.NewID()
	return c.commit(ctx, req, mariposa.NameID("", name), func() (*attempt, error) {
		if err := c.checkNameFree(name); err != nil {
			return nil, err
		}
		a := &attempt{answer: contract.Changed{ID: id, Name: name}}
		a.unit.Absent(mariposa.KindName, mariposa.NameID("", name))
		settings := c.settings()
		own := auth.PersonalOrganization{ID: org, Quota: settings.NewQuota(admin), Policy: newPolicy()}
		a.unit.Put(auth.NewUser(id, own, &mariposa.UserSpec{Name: name, Email: email, Admin: admin, Created: c.Clock.Now(), Author: req.actor()})...)
		a.unit.Audit = []mariposa.Audit{{Kind: string(mariposa.KindUser)}}
		return a, nil
	})
}

// checkNameFree refuses a name that a user or organization has already.
func (c *Changer) checkNameFree(name string) error {
	if c.Picture.Names.Get(mariposa.NameID("", name)) != nil {
		return conflict("the name %s is taken: users and organizations share one set of names; choose another", name)
	}
	return nil
}

// addName adds a name to a unit, if it is free.
func (c *Changer) addName(unit *store.Unit, name string, spec mariposa.NameSpec) error {
	id := mariposa.NameID("", name)
	unit.Absent(mariposa.KindName, id)
	unit.Put(store.Write{Kind: mariposa.KindName, ID: id, Spec: &spec})
	return c.checkNameFree(name)
}

// UpdateUser changes the given fields of a user. The tokens that they created for others
// and for nodes work only while the user is enabled and an installation admin, so taking
// that away needs cascade.
func (c *Changer) UpdateUser(ctx context.Context, req *Request, id string, to contract.UserChange, issuer string, cascade bool) (*contract.Changed, error) {
	if to.Email != nil {
		if err := checkText("email", *to.Email); err != nil {
			return nil, err
		}
	}
	done, err := c.changeUser(ctx, req, id, func(spec mariposa.UserSpec, unit *store.Unit) error {
		before := spec
		setIfGiven(&spec.Email, to.Email)
		setIfGiven(&spec.Admin, to.Admin)
		setIfGiven(&spec.Disabled, to.Disabled)
		if id == mariposa.FirstUser && (!spec.Admin || spec.Disabled) {
			return conflict("%s is the first user: it must stay an enabled admin, so that the installation can always be administered", spec.Name)
		}
		if to.OIDCSubject != nil {
			if err := c.reconnect(unit, id, &spec, issuer, *to.OIDCSubject); err != nil {
				return err
			}
		}
		unit.Put(store.Write{Kind: mariposa.KindUser, ID: id, Spec: &spec, Event: req.event("user.updated", "", nil)})
		if spec.Disabled && !before.Disabled { // or they would continue when the user is enabled again
			c.endSessions(unit, id, "")
		}
		if (to.Disabled == nil || !*to.Disabled) && (!before.Admin || spec.Admin) {
			return nil
		}
		_, err := c.madeForOthers(id, spec.Name, cascade)
		return err
	})
	if err == nil && to.Disabled != nil && *to.Disabled {
		c.endLateSessions(ctx, id, "")
	}
	return done, err
}

// reconnect connects a user to a subject of the identity provider; empty: to none.
func (c *Changer) reconnect(unit *store.Unit, id string, spec *mariposa.UserSpec, issuer, subject string) error {
	if spec.Identity != nil {
		unit.Delete(mariposa.KindName, spec.Identity.NameID(), mariposa.Event{})
		spec.Identity = nil
	}
	if subject == "" {
		return nil
	}
	if issuer == "" {
		return conflict("this server has no identity provider: start it with --oidc-issuer first")
	}
	next := mariposa.Identity{Issuer: issuer, Subject: subject}
	switch r := c.Picture.Names.Get(next.NameID()); {
	case r == nil:
		unit.Absent(mariposa.KindName, next.NameID())
	case r.Spec().User != id:
		return conflict("this subject belongs to another user: disconnect that one first")
	default:
		unit.Unchanged(r)
	}
	unit.Put(store.Write{Kind: mariposa.KindName, ID: next.NameID(), Spec: &mariposa.NameSpec{User: id}})
	spec.Identity = &next
	return nil
}

func setIfGiven[T any](to, from *T) {
	if from != nil {
		*to = *from
	}
}

// changeUser changes a user in their current state.
func (c *Changer) changeUser(ctx context.Context, req *Request, id string, build func(mariposa.UserSpec, *store.Unit) error) (*contract.Changed, error) {
	return c.commit(ctx, req, id, func() (*attempt, error) {
		r := c.Picture.Users.Get(id)
		if r == nil {
			return nil, notFound("the user no longer exists")
		}
		spec := r.Spec()
		a := &attempt{answer: contract.Changed{ID: id, Name: spec.Name}}
		a.unit.Unchanged(r)
		a.unit.Audit = []mariposa.Audit{{Kind: string(mariposa.KindUser)}}
		return a, build(*spec, &a.unit)
	})
}

// DeleteUser deletes a user who no longer owns anything. They leave every organization
// and project, and their tokens become invalid. The tokens that they created for others are
// revoked, which needs cascade.
func (c *Changer) DeleteUser(ctx context.Context, req *Request, id string, cascade bool) (*contract.Changed, error) {
	return c.changeUser(ctx, req, id, func(spec mariposa.UserSpec, unit *store.Unit) error {
		if id == mariposa.FirstUser || id == cmp.Or(req.Caller.By, req.Caller.User) {
			return conflict("%s cannot be deleted: it is the first user, or the one who makes this request", spec.Name)
		}
		if n := len(c.Picture.ProjectsOf(spec.Organization)); n > 0 {
			return conflict("the personal organization of %s still has %s: move or delete them first", spec.Name, reason.Many(n, "project"))
		}
		if n := len(c.Picture.RetainedVolumesOf(spec.Organization)); n > 0 {
			return conflict("the personal organization of %s still has %s of deleted projects: delete them first", spec.Name, reason.Many(n, "volume"))
		}
		requireNoProjects(unit, spec.Organization)
		unit.Delete(mariposa.KindUser, id, req.event("user.deleted", "", nil))
		unit.Delete(mariposa.KindName, mariposa.NameID("", spec.Name), mariposa.Event{})
		if spec.Identity != nil {
			unit.Delete(mariposa.KindName, spec.Identity.NameID(), mariposa.Event{})
		}
		unit.Delete(mariposa.KindOrg, spec.Organization, req.event("organization.deleted", "", nil))
		unit.Delete(mariposa.KindKey, spec.Organization, mariposa.Event{})
		made, err := c.madeForOthers(id, spec.Name, cascade)
		if err != nil {
			return err
		}
		for _, t := range made {
			unit.Put(revoke(t, c.Clock.Now()))
		}
		for _, t := range c.Picture.TokensOf(id) {
			unit.Delete(mariposa.KindToken, t.ID, mariposa.Event{})
		}
		return c.leaveAll(req, id, spec.Organization, unit)
	})
}

// leaveAll removes a user from every project, and from every organization but their
// own.
func (c *Changer) leaveAll(req *Request, user, own string, unit *store.Unit) error {
	for _, org := range c.Picture.OrganizationsOf(user) {
		if org.ID == own {
			continue
		}
		spec := *org.Spec()
		spec.Members = maps.Clone(spec.Members)
		delete(spec.Members, user)
		unit.Unchanged(org)
		unit.Put(orgWrite(req, org.ID, &spec))
		if err := requireOwner(&spec); err != nil {
			return err
		}
	}
	for _, p := range c.Picture.ProjectsWith(user) {
		leaveProject(req, p, user, unit)
	}
	return nil
}

// SetPassword stores the hash of a user's password; empty: the user has none any more. All their
// sessions end, except the one of the request. The user is the record for which the caller
// proved the right to do so: the password must still be the same.
func (c *Changer) SetPassword(ctx context.Context, req *Request, read *store.User, hash string) (*contract.Changed, error) {
	id := read.ID
	done, err := c.changeUser(ctx, req, id, func(spec mariposa.UserSpec, unit *store.Unit) error {
		if spec.Password != read.Spec().Password {
			return conflict("the password of %s has just been changed: try again with the new one", spec.Name)
		}
		if hash == "" && spec.Password == "" {
			return conflict("%s has no password", spec.Name)
		}
		spec.Password = hash
		unit.Put(store.Write{Kind: mariposa.KindUser, ID: id, Spec: &spec, Event: req.event("user.updated", "", nil)})
		c.endSessions(unit, id, req.Caller.Token)
		return nil
	})
	if err == nil {
		c.endLateSessions(ctx, id, req.Caller.Token)
	}
	return done, err
}

// withRole returns a project's users with one role changed.
func withRole(users map[string]mariposa.Role, id string, role mariposa.Role) map[string]mariposa.Role {
	users = maps.Clone(users)
	if users == nil {
		users = map[string]mariposa.Role{}
	}
	if role == mariposa.RoleNone {
		delete(users, id)
	} else {
		users[id] = role
	}
	return users
}

// SetProjectUser gives a user a role of their own in a project; RoleNone removes it.
func (c *Changer) SetProjectUser(ctx context.Context, req *Request, project string, user *store.User, role mariposa.Role) (*contract.Changed, error) {
	name := user.Spec().Name
	return c.change(ctx, req, project, func(e *edit) (*attempt, error) {
		if role == mariposa.RoleNone && e.spec.Users[user.ID] == "" {
			return nil, notFound("%s has no direct role in project %s", name, e.spec.Name)
		}
		e.spec.Users = withRole(e.spec.Users, user.ID, role)
		e.unit.Exists(mariposa.KindUser, user.ID)
		why := name + " becomes " + string(role)
		if role == mariposa.RoleNone {
			why = name + " no longer has a direct role"
		}
		e.unit.Audit[0].Reason = why
		return e.finish(why)
	})
}

// leaveProject removes a user's own role in a project, as part of a larger change.
func leaveProject(req *Request, r *store.Project, user string, unit *store.Unit) {
	spec := *r.Spec()
	spec.Users = withRole(spec.Users, user, mariposa.RoleNone)
	unit.Unchanged(r)
	unit.Put(store.Write{Kind: mariposa.KindProject, ID: r.ID, Project: r.ID, Spec: &spec, Event: req.event("project.updated", r.ID, nil)})
}
