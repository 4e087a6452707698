package auth

import (
	"context"
	"errors"
	"time"

	"mariposa"
	"mariposa/picture"
	"mariposa/store"
)

// Directory looks up users, organizations and tokens in the picture.
type Directory struct {
	picture *picture.Picture
	join    string // hash of the join token for agents in this process; empty: none
}

// NewDirectory returns a directory. The optional join token is for agents in the server's
// process. It is never stored and becomes invalid when the process ends.
func NewDirectory(p *picture.Picture, joinToken string) *Directory {
	d := &Directory{picture: p}
	if joinToken != "" {
		d.join = mariposa.HashToken(joinToken)
	}
	return d
}

func (d *Directory) organization(id string) *mariposa.OrganizationSpec {
	r := d.picture.Orgs.Get(id)
	if r == nil {
		return nil
	}
	return r.Spec()
}

func (d *Directory) caller(user, token string, b Bounds) *Caller {
	r := d.picture.Users.Get(user)
	if r == nil || r.Spec().Disabled {
		return nil
	}
	spec := r.Spec()
	c := &Caller{User: user, Name: spec.Name, Admin: spec.Admin, Home: spec.Organization, Token: token, Bounds: b}
	if b.Organization != "" {
		c.Home = b.Organization
	}
	if p := d.picture.Projects.Get(b.Project); p != nil {
		c.Home = p.Spec().Organization
	}
	return c
}

// ActAs returns the caller acting for a user: themselves, or any user if they are an
// installation admin. It returns nil if this is not allowed or there is no such user.
func (d *Directory) ActAs(c *Caller, ref string) *Caller {
	r := d.User(ref)
	switch {
	case r == nil:
		return nil
	case r.ID == c.User:
		return c
	case d.May(c, RunInstallation, nil) != Allowed:
		return nil
	}
	as := d.caller(r.ID, c.Token, Bounds{})
	if as != nil {
		as.By, as.ByName, as.Session, as.Proved = c.User, c.Name, c.Session, c.Proved
	}
	return as
}

// User finds a user by id or name.
func (d *Directory) User(ref string) *store.User {
	if r := d.picture.Users.Get(ref); r != nil {
		return r
	}
	return d.picture.UserNamed(ref)
}

// Organization finds an organization by id or name.
func (d *Directory) Organization(ref string) *store.Organization {
	if r := d.picture.Orgs.Get(ref); r != nil {
		return r
	}
	return d.picture.OrgNamed(ref)
}

// EnsureFirst creates the first user and its organization if they do not exist. Any
// number of replicas can call it at once.
func EnsureFirst(ctx context.Context, st store.Store, now time.Time) error {
	_, err := st.Get(ctx, mariposa.KindUser, mariposa.FirstUser)
	if !errors.Is(err, store.ErrNotFound) {
		return err
	}
	var unit store.Unit
	unit.Absent(mariposa.KindUser, mariposa.FirstUser)
	unit.Put(NewUser(mariposa.FirstUser, PersonalOrganization{ID: mariposa.FirstOrganization}, &mariposa.UserSpec{Name: mariposa.FirstName, Admin: true, Created: now})...)
	err = st.Commit(ctx, unit)[0].Err
	if errors.Is(err, store.ErrConflict) {
		return nil // another replica has done it
	}
	return err
}

// NewUser returns the writes that create a user, their personal organization and the
// name of both.
func NewUser(id string, own PersonalOrganization, spec *mariposa.UserSpec) []store.Write {
	spec.Organization = own.ID
	var event mariposa.Event
	if spec.Author != "" { // the first one has no author
		event = mariposa.Event{Kind: "user.created", Actor: spec.Author}
	}
	return []store.Write{
		{Kind: mariposa.KindName, ID: mariposa.NameID("", spec.Name), Spec: &mariposa.NameSpec{User: id, Organization: own.ID}},
		{Kind: mariposa.KindUser, ID: id, Spec: spec, Event: event},
		{Kind: mariposa.KindOrg, ID: own.ID, Spec: &mariposa.OrganizationSpec{
			Name: spec.Name, Personal: id, Base: mariposa.RoleNone, Members: map[string]mariposa.OrgRole{id: mariposa.OrgOwner},
			Created: spec.Created, Author: spec.Author, Quota: own.Quota, Policy: own.Policy,
		}},
	}
}

// PersonalOrganization is the initial state of a new user's personal organization.
type PersonalOrganization struct {
	ID     string
	Quota  mariposa.Quota
	Policy *mariposa.Policy // nil: everything is allowed
}
