package auth

import (
	"context"
	"crypto/subtle"
	"errors"
	"time"

	"mariposa"
	"mariposa/picture"
	"mariposa/store"
)

// Directory looks up users, organizations and tokens in the picture.
type Directory struct {
	picture *picture.Picture
	admin   string // hash of the token that the server was started with; empty: none
	join    string // likewise, for agents
}

// NewDirectory returns a directory. The tokens are those that the server was started
// with, if any.
func NewDirectory(p *picture.Picture, adminToken, joinToken string) *Directory {
	d := &Directory{picture: p}
	if adminToken != "" {
		d.admin = mariposa.HashToken(adminToken)
	}
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

// Identify finds the user of a token; nil if the token is not valid. Hashes are
// compared in constant time, so that no token can be found by timing.
func (d *Directory) Identify(token string, now time.Time) *Caller {
	if token == "" {
		return nil
	}
	hash := mariposa.HashToken(token)
	if d.admin != "" && subtle.ConstantTimeCompare([]byte(hash), []byte(d.admin)) == 1 {
		return d.caller(mariposa.FirstUser, "", Bounds{})
	}
	return d.holder(mariposa.TokenID(hash), hash, now)
}

// holder returns the user of a token in the store; nil if there is none.
func (d *Directory) holder(id, hash string, now time.Time) *Caller {
	spec := d.token(id, hash, now)
	switch {
	case spec == nil:
		return nil
	case spec.Use == mariposa.TokenAdmin:
		return d.caller(mariposa.FirstUser, id, Bounds{})
	case spec.Use == mariposa.TokenUser:
		return d.caller(spec.User, id, Bounds{Organization: spec.Organization, Project: spec.Project, Role: spec.Role})
	}
	return nil
}

// Renew returns a caller who was authenticated earlier, with their current rights; nil
// if they would no longer be admitted.
func (d *Directory) Renew(c *Caller, now time.Time) *Caller {
	var own *Caller
	if c.Token == "" {
		own = d.caller(mariposa.FirstUser, "", Bounds{})
	} else if r := d.picture.Tokens.Get(c.Token); r != nil {
		own = d.holder(r.ID, r.Spec().Hash, now)
	}
	if own == nil || c.By == "" {
		return own
	}
	return d.ActAs(own, c.User)
}

// token finds a token that is still valid.
func (d *Directory) token(id, hash string, now time.Time) *mariposa.TokenSpec {
	r := d.picture.Tokens.Get(id)
	if r == nil {
		return nil
	}
	spec := r.Spec()
	if subtle.ConstantTimeCompare([]byte(hash), []byte(spec.Hash)) != 1 || (!spec.Expires.IsZero() && !now.Before(spec.Expires)) {
		return nil
	}
	return spec
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

// Joins reports whether a token lets a node connect.
func (d *Directory) Joins(token string, now time.Time) bool {
	if token == "" {
		return false
	}
	hash := mariposa.HashToken(token)
	if d.join != "" && subtle.ConstantTimeCompare([]byte(hash), []byte(d.join)) == 1 {
		return true
	}
	spec := d.token(mariposa.TokenID(hash), hash, now)
	return spec != nil && spec.Use == mariposa.TokenJoin
}

// ActAs lets a caller act for a user: themselves, or anybody if they run the
// installation. It returns nil if they may not, or if there is no such user.
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
		as.By, as.ByName = c.User, c.Name
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

// EnsureFirst creates the first user and its organization, unless they exist. Any
// number of replicas may do so at once.
func EnsureFirst(ctx context.Context, st store.Store, now time.Time) error {
	_, err := st.Get(ctx, mariposa.KindUser, mariposa.FirstUser)
	if !errors.Is(err, store.ErrNotFound) {
		return err
	}
	var unit store.Unit
	unit.Absent(mariposa.KindUser, mariposa.FirstUser)
	unit.Put(NewUser(mariposa.FirstUser, mariposa.FirstOrganization, &mariposa.UserSpec{Name: mariposa.FirstName, Admin: true, Created: now})...)
	err = st.Commit(ctx, unit)[0].Err
	if errors.Is(err, store.ErrConflict) {
		return nil // another replica was faster
	}
	return err
}

// NewUser returns the writes that create a user: the user, an organization of their
// own, and the name of both.
func NewUser(id, organization string, spec *mariposa.UserSpec) []store.Write {
	spec.Organization = organization
	var event mariposa.Event
	if spec.Author != "" { // the first one has no author
		event = mariposa.Event{Kind: "user.created", Actor: spec.Author}
	}
	return []store.Write{
		{Kind: mariposa.KindName, ID: mariposa.NameID("", spec.Name), Spec: &mariposa.NameSpec{User: id, Organization: organization}},
		{Kind: mariposa.KindUser, ID: id, Spec: spec, Event: event},
		{Kind: mariposa.KindOrg, ID: organization, Spec: &mariposa.OrganizationSpec{
			Name: spec.Name, Personal: id, Base: mariposa.RoleNone, Members: map[string]mariposa.OrgRole{id: mariposa.OrgOwner},
			Created: spec.Created, Author: spec.Author,
		}},
	}
}
