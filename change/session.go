package change

import (
	"context"
	"log/slog"
	"slices"
	"time"

	"mariposa"
	"mariposa/auth"
	"mariposa/contract"
	"mariposa/store"
)

// maxSessions bounds the sessions of a user: a new one ends the oldest.
const maxSessions = 100

// SignIn is a person who has proved who they are, for a session of the web page.
type SignIn struct {
	User string
	// By is the token or the link that they used, and ends with it; nil: their password.
	By *store.Token
	// Provider is the identity provider at which they did that; empty: none.
	Provider string
	// Proved is when they proved it to the provider; zero: it does not say.
	Proved time.Time
	// Read is the user as they were when the password was checked; nil without a password.
	Read *store.User

	From, Request string // of the HTTP request
}

// BeginSession creates a session, and returns its secret. It is a token in the store, so that
// every replica accepts it. A link is used up in the same commit.
func (c *Changer) BeginSession(ctx context.Context, in SignIn) (secret string, spec *mariposa.TokenSpec, err error) {
	now := c.Clock.Now()
	secret = auth.NewSecret(mariposa.TokenSession)
	spec = &mariposa.TokenSpec{
		Use: mariposa.TokenSession, Hash: mariposa.HashToken(secret), User: in.User, Created: now, Expires: now.Add(mariposa.SessionLifetime),
	}
	spec.Name = "session-" + spec.Hash[:8]
	switch {
	case in.Provider != "":
		spec.Proved = in.Proved
	case in.By == nil || in.By.Spec().Use != mariposa.TokenLink: // a link may have been on somebody's screen
		spec.Proved = now
	}
	unit := store.Unit{Urgent: true}
	unit.Exists(mariposa.KindUser, in.User)
	how := "by password"
	if in.Provider != "" {
		how = "by " + in.Provider
	}
	if in.Read != nil {
		unit.Unchanged(in.Read)
	}
	if by := in.By; by != nil {
		of := by.Spec()
		how = "by token " + of.Name
		unit.Unchanged(by)
		spec.Organization, spec.Project, spec.Role, spec.Parent = of.Organization, of.Project, of.Role, by.ID
		if of.Use == mariposa.TokenLink {
			how, spec.Parent = "by a link", of.Parent
			unit.Put(revoke(by, now))
		}
		if parent := c.Picture.Tokens.Get(spec.Parent); parent != nil {
			spec.Expires = earlier(spec.Expires, parent.Spec().Expires)
		}
		if auth.Depth(c.Picture, spec.Parent) >= auth.MaxDepth {
			return "", nil, conflict("this token cannot start a session: its chain of parent tokens has the maximum length, %d; use a token higher up in the chain", auth.MaxDepth)
		}
	}
	id := mariposa.TokenID(spec.Hash)
	unit.Absent(mariposa.KindToken, id)
	unit.Put(store.Write{Kind: mariposa.KindToken, ID: id, Spec: spec})
	for _, old := range c.surplusSessions(in.User) {
		unit.Delete(mariposa.KindToken, old.ID, mariposa.Event{})
	}
	unit.Audit = []mariposa.Audit{{
		Actor: in.User, From: in.From, Request: in.Request, Action: "session.create", Outcome: mariposa.AuditDone, Kind: string(mariposa.KindToken), Object: id, ObjectName: spec.Name, Reason: how,
	}}
	if u := c.Picture.Users.Get(in.User); u != nil {
		unit.Audit[0].ActorName = u.Spec().Name
	}
	res := c.Store.Commit(ctx, unit)[0]
	if res.Err != nil {
		return "", nil, res.Err
	}
	c.Await(ctx, res.Last)
	return secret, spec, nil
}

// ConfirmSession records that the person of a session has proved again who they are.
func (c *Changer) ConfirmSession(ctx context.Context, req *Request, how string) (*contract.Changed, error) {
	return c.commit(ctx, req, req.Caller.Token, func() (*attempt, error) {
		own := c.Picture.Tokens.Get(req.Caller.Token)
		if own == nil {
			return nil, errTokenEnded()
		}
		spec := *own.Spec()
		spec.Proved = c.Clock.Now()
		a := &attempt{answer: contract.Changed{ID: own.ID, Name: spec.Name}}
		a.unit.Unchanged(own)
		a.unit.Put(store.Write{Kind: mariposa.KindToken, ID: own.ID, Spec: &spec})
		a.unit.Audit = []mariposa.Audit{{Kind: string(mariposa.KindToken), Reason: how}}
		return a, nil
	})
}

// surplusSessions lists the sessions of a user that have expired, and the oldest ones that are
// too many with another one.
func (c *Changer) surplusSessions(user string) []*store.Token {
	now := c.Clock.Now()
	var ended, open []*store.Token
	for _, t := range c.sessionsOf(user) {
		if t.Spec().Expired(now) {
			ended = append(ended, t)
		} else {
			open = append(open, t)
		}
	}
	slices.SortFunc(open, func(a, b *store.Token) int { return a.Spec().Created.Compare(b.Spec().Created) })
	return append(ended, open[:max(0, len(open)+1-maxSessions)]...)
}

func (c *Changer) sessionsOf(user string) []*store.Token {
	return slices.DeleteFunc(c.Picture.TokensOf(user), func(t *store.Token) bool { return t.Spec().Use != mariposa.TokenSession })
}

// endSessions ends the sessions of a user, except one.
func (c *Changer) endSessions(unit *store.Unit, user, except string) {
	for _, t := range c.sessionsOf(user) {
		if t.ID != except {
			unit.Put(revoke(t, c.Clock.Now()))
		}
	}
}

// endLateSessions ends the sessions of a user that began while the user was being changed: the
// change did not see them. Those that began after it continue.
func (c *Changer) endLateSessions(ctx context.Context, user, except string) {
	changed := c.Picture.Users.Get(user)
	if changed == nil {
		return
	}
	var unit store.Unit
	for _, t := range c.sessionsOf(user) {
		if t.ID != except && t.SpecRevision < changed.SpecRevision {
			unit.Put(revoke(t, c.Clock.Now()))
		}
	}
	if len(unit.Writes) == 0 {
		return
	}
	res := c.Store.Commit(ctx, unit)[0]
	if res.Err != nil {
		slog.Warn("cannot end sessions that began while their user was changed", "user", changed.Spec().Name, "sessions", len(unit.Writes), "err", res.Err)
		return
	}
	c.Await(ctx, res.Last)
}
