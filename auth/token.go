package auth

import (
	"context"
	"crypto/rand"
	"crypto/subtle"
	"errors"
	"slices"
	"time"

	"mariposa"
	"mariposa/picture"
	"mariposa/store"
)

// MaxDepth limits the length of a chain of tokens in which each created the next.
const MaxDepth = 16

// Identify returns the caller with a token; nil if the token is not valid. Hashes are
// compared in constant time, so that tokens cannot be guessed by timing.
func (d *Directory) Identify(token string, now time.Time) *Caller {
	if token == "" {
		return nil
	}
	hash := mariposa.HashToken(token)
	return d.holder(mariposa.TokenID(hash), hash, now)
}

// holder returns the caller with a token of the store; nil if there is none.
func (d *Directory) holder(id, hash string, now time.Time) *Caller {
	r := d.token(id, hash, now)
	if r == nil || !r.Spec().Use.Authenticates() {
		return nil
	}
	spec := r.Spec()
	c := d.caller(spec.Owner(), id, BoundsOf(spec))
	if c != nil {
		c.Session, c.Proved = spec.Use == mariposa.TokenSession, spec.Proved
	}
	return c
}

// BoundsOf returns the bounds of a token.
func BoundsOf(spec *mariposa.TokenSpec) Bounds {
	return Bounds{Organization: spec.Organization, Project: spec.Project, Role: spec.Role}
}

// Link returns the record of a valid sign-in link whose user can sign in; nil if there is none.
func (d *Directory) Link(secret string, now time.Time) *store.Token {
	hash := mariposa.HashToken(secret)
	id := mariposa.TokenID(hash)
	r := d.token(id, hash, now)
	if r == nil || r.Spec().Use != mariposa.TokenLink || d.caller(r.Spec().Owner(), id, BoundsOf(r.Spec())) == nil {
		return nil
	}
	return r
}

// Renew returns an earlier authenticated caller with their current rights; nil if they
// would be rejected now. A caller without a token is the server itself.
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
func (d *Directory) token(id, hash string, now time.Time) *store.Token {
	r := d.picture.Tokens.Get(id)
	if r == nil {
		return nil
	}
	spec := r.Spec()
	if subtle.ConstantTimeCompare([]byte(hash), []byte(spec.Hash)) != 1 || spec.Expired(now) || d.HasEndedAncestor(spec, now) {
		return nil
	}
	return r
}

// HasEndedAncestor reports whether an ancestor of a token is no longer valid: no token
// outlives the one that created it. Revoking a token also revokes its descendants, but
// another replica may create one at the same time. Only installation admins can create
// tokens for other users and join tokens, so these are valid only while their creator
// is an admin.
func (d *Directory) HasEndedAncestor(spec *mariposa.TokenSpec, now time.Time) bool {
	for range MaxDepth {
		if spec.Parent == "" {
			return false
		}
		maker := d.picture.Tokens.Get(spec.Parent)
		if maker == nil {
			return true
		}
		forOther := spec.Owner() != maker.Spec().Owner()
		spec = maker.Spec()
		user := d.picture.Users.Get(spec.Owner())
		if spec.Expired(now) || user == nil || user.Spec().Disabled || forOther && !user.Spec().Admin {
			return true
		}
	}
	return true
}

// JoinToken returns a valid join token; nil if it is not valid. Own reports that it is
// the join token of agents in the server's process, which is not stored.
func (d *Directory) JoinToken(token string, now time.Time) (r *store.Token, own bool) {
	if token == "" {
		return nil, false
	}
	hash := mariposa.HashToken(token)
	if d.join != "" && subtle.ConstantTimeCompare([]byte(hash), []byte(d.join)) == 1 {
		return nil, true
	}
	id := mariposa.TokenID(hash)
	if r = d.token(id, hash, now); r == nil || r.Spec().Use != mariposa.TokenJoin || r.Spec().Spent() {
		return nil, false
	}
	return r, false
}

// NodeStanding is what a key says about the agent that presents it.
type NodeStanding int

const (
	NodeUnknown NodeStanding = iota // there is no node with that id, or it waits without a join token
	NodeKnown                       // it is the key of a node that has joined before: its agent needs no join token
	NodeOldKey                      // the key of the node was replaced by another one
	NodeNotIts                      // the node has another key
)

// StandingOf checks the key of a node.
func (d *Directory) StandingOf(node, key string) NodeStanding {
	r := d.picture.Nodes.Get(node)
	if r == nil {
		return NodeUnknown
	}
	spec, hash := r.Spec(), mariposa.HashKey(key)
	switch {
	case key != "" && spec.HasKey(hash) && spec.Tokenless:
		return NodeUnknown
	case key != "" && spec.HasKey(hash):
		return NodeKnown
	case key != "" && spec.HasRetiredKey(hash):
		return NodeOldKey
	}
	return NodeNotIts
}

// NewSecret generates a token. Its prefix lets people and scanners recognize it.
func NewSecret(use mariposa.TokenUse) string {
	prefix := "mrp_"
	switch use {
	case mariposa.TokenJoin:
		prefix = "mrj_"
	case mariposa.TokenLink:
		prefix = "mrl_"
	case mariposa.TokenSession:
		prefix = "mrs_"
	}
	return prefix + rand.Text() + rand.Text()
}

// Descendants lists the descendants of tokens, parents first, each generation as it was made.
func Descendants(p *picture.Picture, ids ...string) []*store.Token {
	children := map[string][]*store.Token{}
	for _, t := range p.Tokens.All() {
		if parent := t.Spec().Parent; parent != "" {
			children[parent] = append(children[parent], t)
		}
	}
	seen := map[string]bool{}
	for _, id := range ids {
		seen[id] = true
	}
	var all []*store.Token
	for len(ids) > 0 {
		var next []string
		for _, id := range ids {
			slices.SortFunc(children[id], func(a, b *store.Token) int { return a.Spec().Created.Compare(b.Spec().Created) })
			for _, t := range children[id] {
				if !seen[t.ID] {
					seen[t.ID] = true
					all = append(all, t)
					next = append(next, t.ID)
				}
			}
		}
		ids = next
	}
	return all
}

// Depth counts a token and its ancestors.
func Depth(p *picture.Picture, id string) (n int) {
	for r := p.Tokens.Get(id); r != nil && n <= MaxDepth; r = p.Tokens.Get(r.Spec().Parent) {
		n++
	}
	return n
}

// ErrRevoked means that a token was revoked.
var ErrRevoked = errors.New("the token was revoked")

// EnsureToken stores a token that was generated elsewhere if it is not stored yet. Any
// number of replicas can call it at once. A revoked token stays revoked.
func EnsureToken(ctx context.Context, st store.Store, secret string, spec mariposa.TokenSpec, why string) error {
	spec.Hash = mariposa.HashToken(secret)
	id := mariposa.TokenID(spec.Hash)
	r, err := st.Get(ctx, mariposa.KindToken, id)
	switch {
	case err == nil && (r.Archived || !r.Spec.(*mariposa.TokenSpec).Revoked.IsZero()):
		return ErrRevoked
	case !errors.Is(err, store.ErrNotFound):
		return err
	}
	err = st.Commit(ctx, NewToken(&spec, mariposa.Audit{Actor: "mariposa", ActorName: "mariposa", Reason: why}))[0].Err
	if errors.Is(err, store.ErrConflict) {
		return nil // another replica has done it
	}
	return err
}

// NewToken returns the unit that creates a token outside of a request, with its audit
// record.
func NewToken(spec *mariposa.TokenSpec, by mariposa.Audit) store.Unit {
	id := mariposa.TokenID(spec.Hash)
	by.Action, by.Outcome, by.Kind, by.Object, by.ObjectName = "token.create", mariposa.AuditDone, string(mariposa.KindToken), id, spec.Name
	unit := store.Unit{Urgent: true, Audit: []mariposa.Audit{by}}
	unit.Absent(mariposa.KindToken, id)
	unit.Put(store.Write{Kind: mariposa.KindToken, ID: id, Spec: spec})
	return unit
}

// LimitJoinTokens sets an expiry for join tokens of earlier releases, which had none:
// they stay valid for LegacyJoinLifetime. It can be called at any time, by any number
// of replicas.
func LimitJoinTokens(ctx context.Context, st store.Store, p *picture.Picture, now time.Time) (n int, err error) {
	for _, r := range p.Tokens.All() {
		spec := *r.Spec()
		if spec.Use != mariposa.TokenJoin || !spec.Expires.IsZero() {
			continue
		}
		spec.Expires = now.Add(mariposa.LegacyJoinLifetime)
		unit := store.Unit{Audit: []mariposa.Audit{{
			Actor: "mariposa", ActorName: "mariposa", Action: "token.update", Outcome: mariposa.AuditDone, Kind: string(mariposa.KindToken),
			Object: r.ID, ObjectName: spec.Name, Reason: "join tokens now expire: this token from an earlier release expires on " + spec.Expires.UTC().Format(time.RFC3339),
		}}}
		unit.Unchanged(r)
		unit.Put(store.Write{Kind: mariposa.KindToken, ID: r.ID, Spec: &spec})
		switch err := st.Commit(ctx, unit)[0].Err; {
		case err == nil:
			n++
		case !errors.Is(err, store.ErrConflict): // otherwise another replica has done it
			return n, err
		}
	}
	return n, nil
}
