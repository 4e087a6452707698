package change

import (
	"context"
	"crypto/rand"
	"slices"
	"time"

	"mariposa"
	"mariposa/contract"
	"mariposa/store"
)

// tokenPrefix lets people and scanners see what a string is.
const tokenPrefix = "mrp_"

// maxTokens bounds how many tokens a user has.
const maxTokens = 1000

// CreateToken makes a token. The secret is in the answer, and nowhere else.
func (c *Changer) CreateToken(ctx context.Context, req *Request, spec mariposa.TokenSpec, show func(*store.Record) contract.Token) (*contract.Token, error) {
	if err := checkText("name", spec.Name); err != nil {
		return nil, err
	}
	secret := tokenPrefix + rand.Text() + rand.Text()
	spec.Hash = mariposa.HashToken(secret)
	id := mariposa.TokenID(spec.Hash)
	return commit(ctx, c, req, "tokens of "+spec.User, func() (*store.Unit, contract.Token, error) {
		mine := c.Picture.TokensOf(spec.User)
		doc := show(&store.Record{Kind: mariposa.KindToken, ID: id, Spec: &spec})
		if len(mine) >= maxTokens {
			return nil, doc, conflict("%s has %d tokens already: revoke some", doc.UserName, len(mine))
		}
		if slices.ContainsFunc(mine, func(t *store.Record) bool { return t.Spec.(*mariposa.TokenSpec).Name == spec.Name }) {
			return nil, doc, conflict("there is a token %q already: choose another name, or revoke that one", spec.Name)
		}
		doc.Secret = secret
		unit := &store.Unit{Audit: []mariposa.Audit{{
			Kind: string(mariposa.KindToken), Object: id, ObjectName: spec.Name, Organization: spec.Organization, Project: spec.Project, ProjectName: doc.ProjectName,
			Reason: "for " + doc.UserName,
		}}}
		unit.Exists(mariposa.KindUser, spec.User)
		unit.Put(store.Write{Kind: mariposa.KindToken, ID: id, Spec: &spec})
		return unit, doc, nil
	})
}

// RevokeToken takes a token out of use, with those that it made.
func (c *Changer) RevokeToken(ctx context.Context, req *Request, token *store.Record) (*contract.Changed, error) {
	spec := token.Spec.(*mariposa.TokenSpec)
	return c.commit(ctx, req, token.ID, func() (*attempt, error) {
		a := &attempt{answer: contract.Changed{ID: token.ID, Name: spec.Name}}
		a.unit.Audit = []mariposa.Audit{{Kind: string(mariposa.KindToken), Organization: spec.Organization, Project: spec.Project}}
		now := c.Clock.Now()
		a.unit.Put(revoke(token, now))
		for _, t := range c.descendants(spec.User, token.ID) {
			a.unit.Put(revoke(t, now))
		}
		return a, nil
	})
}

// revoke takes a token out of use. It is kept aside, so that who still brings it
// hears what became of it.
func revoke(t *store.Record, now time.Time) store.Write {
	spec := *t.Spec.(*mariposa.TokenSpec)
	spec.Revoked = now
	return store.Write{Kind: mariposa.KindToken, ID: t.ID, Spec: &spec, Archive: true}
}

// descendants are the tokens that a token made, and those that these made.
func (c *Changer) descendants(user, id string) []*store.Record {
	made := map[string]bool{id: true}
	var all []*store.Record
	tokens := c.Picture.TokensOf(user)
	for more := true; more; {
		more = false
		for _, t := range tokens {
			if !made[t.ID] && made[t.Spec.(*mariposa.TokenSpec).Parent] {
				made[t.ID], more = true, true
				all = append(all, t)
			}
		}
	}
	return all
}
