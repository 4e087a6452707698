package change

import (
	"context"
	"errors"

	"mariposa"
	"mariposa/auth"
	"mariposa/store"
)

// Outsider is a person who has signed in at a provider, for the web page.
type Outsider struct {
	mariposa.Identity
	Name   string // the user that they want to be, if they have none yet; empty: the provider does not say
	Claim  string // where the provider says it
	Said   string // what the provider says there
	Email  string
	Create bool // who has no user yet gets one
	// Verified reports whether the provider has verified that the address is theirs.
	Verified bool

	From, Request string // of the HTTP request
}

// UserOf returns the user of a person who has signed in at a provider. At the first sign-in, the
// person becomes the user with their name, or a new user. After that, only their subject counts.
func (c *Changer) UserOf(ctx context.Context, in Outsider) (*store.User, error) {
	for range maxAttempts {
		from := c.Picture.Revision()
		if known := c.Picture.Names.Get(in.Identity.NameID()); known != nil {
			if user := c.Picture.Users.Get(known.Spec().User); user != nil {
				return user, nil
			}
		}
		if moved, err := c.CatchUp(ctx, from); err != nil || moved { // another replica may know them
			if err != nil {
				return nil, err
			}
			continue
		}
		unit, err := c.connect(in)
		if err != nil {
			return nil, err
		}
		res := c.Store.Commit(ctx, *unit)[0]
		if res.Err != nil && !errors.Is(res.Err, store.ErrConflict) {
			return nil, res.Err
		}
		if res.Err == nil {
			c.Await(ctx, res.Last)
		}
	}
	return nil, mariposa.Errorf(mariposa.Unavailable, "this server does not know the newest state yet: try again shortly")
}

// connect returns the writes that connect a person to a user.
func (c *Changer) connect(in Outsider) (*store.Unit, error) {
	refused := func(format string, args ...any) error {
		return mariposa.Errorf(mariposa.Unauthorized, format, args...)
	}
	if in.Name == "" {
		return nil, refused("the provider does not say who you are: it sends no claim %s", in.Claim)
	}
	unit := &store.Unit{Urgent: true}
	identity := in.Identity
	link := func(id string) {
		unit.Absent(mariposa.KindName, identity.NameID())
		unit.Put(store.Write{Kind: mariposa.KindName, ID: identity.NameID(), Spec: &mariposa.NameSpec{User: id}})
	}
	note := mariposa.Audit{From: in.From, Request: in.Request, Outcome: mariposa.AuditDone, Kind: string(mariposa.KindUser), ActorName: in.Name, ObjectName: in.Name}
	user := c.Picture.UserNamed(in.Name)
	switch {
	case user == nil && !in.Create:
		return nil, refused("there is no user %s: ask an admin of the installation to create one", in.Name)
	case user == nil:
		if err := mariposa.CheckName("user", in.Name); err != nil {
			return nil, refused("%s cannot be the name of a user: ask an admin of the installation to create a user for you", in.Name)
		}
		if c.checkNameFree(in.Name) != nil {
			return nil, refused("the name %s is that of an organization: ask an admin of the installation to create a user for you", in.Name)
		}
		id, settings := c.NewID(), c.settings()
		own := auth.PersonalOrganization{ID: c.NewID(), Quota: settings.NewQuota(false), Policy: newPolicy()}
		unit.Absent(mariposa.KindName, mariposa.NameID("", in.Name))
		unit.Put(auth.NewUser(id, own, &mariposa.UserSpec{Name: in.Name, Email: in.Email, Created: c.Clock.Now(), Author: in.Name, Identity: &identity})...)
		link(id)
		note.Action, note.Actor, note.Object, note.Reason = "user.create", id, id, "at the first sign-in at "+in.Issuer
	case user.Spec().Disabled:
		return nil, refused("the user %s is disabled: ask an admin of the installation", in.Name)
	case user.Spec().Identity != nil:
		return nil, refused("the user %s belongs to another account of the provider: ask an admin of the installation", in.Name)
	default:
		if why := whyNotByName(user.Spec(), in); why != "" {
			return nil, refused("%s: sign in with a password or a token, or let an admin of the installation run `mariposa user update %s --oidc-subject %s` first", why, in.Name, in.Subject)
		}
		spec := *user.Spec()
		spec.Identity = &identity
		unit.Unchanged(user)
		unit.Put(store.Write{Kind: mariposa.KindUser, ID: user.ID, Spec: &spec, Event: mariposa.Event{Kind: "user.updated", Actor: in.Name}})
		link(user.ID)
		note.Action, note.Actor, note.Object, note.Reason = "user.connect", user.ID, user.ID, "at the first sign-in at "+in.Issuer
	}
	unit.Audit = []mariposa.Audit{note}
	return unit, nil
}

// whyNotByName returns why the name at the provider is not enough to become a user; empty: it is.
// People may choose their name there, so it must be exactly the name or the address of the user, who
// must have nothing better to prove who they are.
func whyNotByName(user *mariposa.UserSpec, in Outsider) string {
	isAddress := auth.IsAddressInClaim(user.Email, in.Said)
	switch {
	case user.Admin:
		return user.Name + " is an admin of the installation"
	case user.Password != "":
		return user.Name + " has a password"
	case !isAddress && !auth.IsNameInClaim(user.Name, in.Said):
		return "the user " + user.Name + " cannot be taken by name, because the provider says neither exactly this name nor their address"
	case in.Claim == "email" && !in.Verified:
		return "the provider has not verified your address"
	}
	return ""
}
