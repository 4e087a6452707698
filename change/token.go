package change

import (
	"context"
	"fmt"
	"slices"
	"time"

	"mariposa"
	"mariposa/auth"
	"mariposa/contract"
	"mariposa/reason"
	"mariposa/store"
)

// maxTokens bounds the number of tokens of a user, and of join tokens.
const maxTokens = 1000

// CreateToken creates a token. Only the answer contains the secret. The token of the request
// becomes its parent: it ends with that one.
func (c *Changer) CreateToken(ctx context.Context, req *Request, spec mariposa.TokenSpec, show func(*store.Token) contract.Token) (*contract.Token, error) {
	if err := checkText("name", spec.Name); err != nil {
		return nil, err
	}
	secret := auth.NewSecret(spec.Use)
	spec.Hash = mariposa.HashToken(secret)
	id := mariposa.TokenID(spec.Hash)
	return commit(ctx, c, req, "tokens of "+spec.User, func() (*store.Unit, contract.Token, error) {
		unit := &store.Unit{}
		if err := c.bindToMaker(req, &spec, unit); err != nil {
			return nil, contract.Token{}, err
		}
		doc := show(&store.Token{Kind: mariposa.KindToken, ID: id, Halves: store.Halves{Spec: &spec}})
		if err := c.checkTokens(&spec, doc.UserName); err != nil {
			return nil, doc, err
		}
		doc.Secret = secret
		unit.Audit = []mariposa.Audit{{
			Kind: string(mariposa.KindToken), Object: id, ObjectName: spec.Name, Organization: spec.Organization, Project: spec.Project, ProjectName: doc.ProjectName,
			Reason: "for " + doc.UserName,
		}}
		if spec.Use == mariposa.TokenJoin {
			unit.Audit[0].Reason = "for nodes, until " + spec.Expires.UTC().Format(time.RFC3339)
		} else {
			unit.Exists(mariposa.KindUser, spec.User)
		}
		unit.Put(store.Write{Kind: mariposa.KindToken, ID: id, Spec: &spec})
		if spec.Use == mariposa.TokenLink {
			c.dropExpiredLinks(unit, spec.User)
		}
		return unit, doc, nil
	})
}

// dropExpiredLinks deletes the sign-in links of a user that nobody has used: scripts may create
// many.
func (c *Changer) dropExpiredLinks(unit *store.Unit, user string) {
	now := c.Clock.Now()
	for _, t := range c.Picture.TokensOf(user) {
		if t.Spec().Use == mariposa.TokenLink && t.Spec().Expired(now) {
			unit.Delete(mariposa.KindToken, t.ID, mariposa.Event{})
		}
	}
}

// bindToMaker limits the lifetime of a token to that of its parent, which must not be
// revoked meanwhile. A person at the web page has just confirmed who they are: a token that they
// create for themselves does not end with the session, but with the token that began it, if any.
func (c *Changer) bindToMaker(req *Request, spec *mariposa.TokenSpec, unit *store.Unit) error {
	if req.Caller.Token == "" {
		return nil // the request comes from the server itself
	}
	maker := c.Picture.Tokens.Get(req.Caller.Token)
	if maker == nil { // it was revoked just now
		return errTokenEnded()
	}
	if auth.Depth(c.Picture, maker.ID) >= auth.MaxDepth {
		return conflict("your token cannot create tokens: its chain of parent tokens has the maximum length, %d; use a token higher up in the chain", auth.MaxDepth)
	}
	unit.Unchanged(maker)
	if of := maker.Spec(); of.Use == mariposa.TokenSession && spec.Use == mariposa.TokenUser && spec.User == of.Owner() {
		if of.Parent == "" {
			return nil
		}
		if maker = c.Picture.Tokens.Get(of.Parent); maker == nil {
			return errTokenEnded()
		}
		unit.Unchanged(maker)
	}
	spec.Parent = maker.ID
	spec.Expires = earlier(spec.Expires, maker.Spec().Expires)
	return nil
}

// earlier returns the earlier of two times; zero means never.
func earlier(a, b time.Time) time.Time {
	if a.IsZero() || (!b.IsZero() && b.Before(a)) {
		return b
	}
	return a
}

// checkTokens checks that the owner may have one more token, and that its name is free.
func (c *Changer) checkTokens(spec *mariposa.TokenSpec, owner string) error {
	now := c.Clock.Now()
	there := slices.DeleteFunc(c.Picture.TokensOf(spec.Owner()), func(t *store.Token) bool {
		return spec.Use == mariposa.TokenJoin && (t.Spec().Expired(now) || t.Spec().Spent()) // they are deleted after a while
	})
	if len(there) >= maxTokens {
		return conflict("%s: revoke some first", countTokens(owner, len(there)))
	}
	if slices.ContainsFunc(there, func(t *store.Token) bool { return t.Spec().Name == spec.Name }) {
		return conflict("a token named %q already exists: choose another name, or revoke that token", spec.Name)
	}
	return nil
}

func countTokens(owner string, n int) string {
	if owner == "" {
		return fmt.Sprintf("there are already %d tokens for nodes", n)
	}
	return fmt.Sprintf("%s already has %d tokens", owner, n)
}

// RevokeToken revokes a token and its descendants in one commit. A token that has
// descendants needs cascade.
func (c *Changer) RevokeToken(ctx context.Context, req *Request, token *store.Token, cascade bool) (*contract.Changed, error) {
	spec := token.Spec()
	return c.commit(ctx, req, token.ID, func() (*attempt, error) {
		made := auth.Descendants(c.Picture, token.ID)
		if len(made) > 0 && !cascade {
			return nil, conflict("token %s created %s, which would be revoked too: %s. Confirm with --yes (?cascade=true), or ask an installation admin to run `mariposa token adopt %s` first",
				spec.Name, reason.Many(len(made), "token"), c.listTokens(made), spec.Name)
		}
		a := &attempt{answer: contract.Changed{ID: token.ID, Name: spec.Name}}
		a.unit.Audit = []mariposa.Audit{{Kind: string(mariposa.KindToken), Organization: spec.Organization, Project: spec.Project}}
		now := c.Clock.Now()
		a.unit.Put(revoke(token, now))
		for _, t := range made {
			of := t.Spec()
			a.unit.Unchanged(t) // another token may adopt it
			a.unit.Put(revoke(t, now))
			a.unit.Audit = append(a.unit.Audit, mariposa.Audit{
				Kind: string(mariposa.KindToken), Object: t.ID, ObjectName: of.Name, Organization: of.Organization, Project: of.Project,
				Reason: "created by token " + spec.Name + ", which was revoked",
			})
		}
		if n := len(made); n > 0 {
			a.answer.Reason = reason.Many(n, "token") + " that it created revoked too"
		}
		return a, nil
	})
}

// listTokens names tokens with their owners.
func (c *Changer) listTokens(tokens []*store.Token) string {
	var names []string
	for _, t := range tokens {
		name := t.Spec().Name
		if u := c.Picture.Users.Get(t.Spec().Owner()); u != nil {
			name += " of " + u.Spec().Name
		} else if t.Spec().Use == mariposa.TokenJoin {
			name += " for nodes"
		}
		names = append(names, name)
	}
	return listSome(names)
}

// revoke marks a token as revoked. Its record is archived, so that later uses get the
// reason.
func revoke(t *store.Token, now time.Time) store.Write {
	spec := *t.Spec()
	spec.Revoked = now
	return store.Write{Kind: mariposa.KindToken, ID: t.ID, Spec: &spec, Archive: true}
}

// AdoptTokens makes the children of a token children of the request's token, so that
// they survive when the old one is revoked. They expire with their new parent at the
// latest.
func (c *Changer) AdoptTokens(ctx context.Context, req *Request, token *store.Token) (*contract.Changed, error) {
	spec := token.Spec()
	return c.commit(ctx, req, token.ID, func() (*attempt, error) {
		made, mine := auth.Descendants(c.Picture, token.ID), req.Caller.Token
		if mine == token.ID || slices.ContainsFunc(made, func(t *store.Token) bool { return t.ID == mine }) {
			return nil, conflict("your token is %s or was created by it: use one that was not, such as one from `mariposa server token`", spec.Name)
		}
		a := &attempt{answer: contract.Changed{ID: token.ID, Name: spec.Name}}
		maker := c.Picture.Tokens.Get(mine)
		if maker == nil {
			return nil, conflict("only a request with a token can adopt the tokens that another one created")
		}
		// Otherwise two concurrent requests could each adopt an ancestor of the other.
		for above, i := maker, 0; above != nil && i < auth.MaxDepth; above, i = c.Picture.Tokens.Get(above.Spec().Parent), i+1 {
			a.unit.Unchanged(above)
		}
		n, deeper := 0, auth.Depth(c.Picture, mine)-auth.Depth(c.Picture, token.ID)
		for _, t := range made {
			if auth.Depth(c.Picture, t.ID)+deeper > auth.MaxDepth {
				return nil, conflict("the chain of parent tokens would be longer than %d: use a token higher up in the chain", auth.MaxDepth)
			}
			of := *t.Spec()
			if of.Parent != token.ID {
				continue // it keeps its parent
			}
			n++
			of.Parent, of.Expires = mine, earlier(of.Expires, maker.Spec().Expires)
			a.unit.Unchanged(t)
			a.unit.Put(store.Write{Kind: mariposa.KindToken, ID: t.ID, Spec: &of})
		}
		a.answer.Reason = reason.Many(n, "token") + " adopted"
		a.unit.Audit = []mariposa.Audit{{Kind: string(mariposa.KindToken), Reason: a.answer.Reason}}
		return a, nil
	})
}

// madeForOthers lists the descendants of a user's tokens that are not the user's own. It
// fails if there are any and cascade is not set.
func (c *Changer) madeForOthers(user, name string, cascade bool) ([]*store.Token, error) {
	var ids []string
	for _, t := range c.Picture.TokensOf(user) {
		ids = append(ids, t.ID)
	}
	made := slices.DeleteFunc(auth.Descendants(c.Picture, ids...), func(t *store.Token) bool { return t.Spec().Owner() == user })
	if len(made) > 0 && !cascade {
		return nil, conflict("%s created %s for others, which would be revoked too: %s. Confirm with --yes (?cascade=true), or adopt them first (`mariposa token adopt`)",
			name, reason.Many(len(made), "token"), c.listTokens(made))
	}
	return made, nil
}
