package api

import (
	"context"
	"errors"
	"net/http"
	"net/url"
	"time"

	"mariposa"
	"mariposa/auth"
	"mariposa/change"
	"mariposa/contract"
	"mariposa/listener"
	"mariposa/store"
)

// cookieName returns the name of the cookie with the secret of a session. It differs between
// installations, because browsers send cookies to all ports of a host. Browsers accept the
// prefix __Host- only from the host itself and over TLS.
func (s *server) cookieName(ctx context.Context) string {
	id, _ := s.Store.Identity(ctx) // kept in memory; a store that was closed has none
	name := "mariposa-" + id.Cluster[:min(8, len(id.Cluster))]
	if originOf(ctx).secure {
		name = "__Host-" + name
	}
	return name
}

func (s *server) newCookie(ctx context.Context, secret string, lifetime time.Duration) http.Cookie {
	return http.Cookie{
		Name: s.cookieName(ctx), Value: secret, Path: "/", MaxAge: int(lifetime.Seconds()),
		HttpOnly: true, Secure: originOf(ctx).secure, SameSite: http.SameSiteStrictMode,
	}
}

// sessionCookie returns the secret of a session in the cookie of a request.
func (s *server) sessionCookie(r *http.Request) (secret string, ok bool) {
	c, err := r.Cookie(s.cookieName(r.Context()))
	if err != nil || c.Value == "" {
		return "", false
	}
	return c.Value, true
}

// identify returns the caller with a token; nil if it is not valid. A session is valid only in
// a cookie, and a cookie contains nothing else. Another replica may just have begun a session.
func (s *server) identify(ctx context.Context, token string, isSession bool, now time.Time) *auth.Caller {
	from := s.Picture.Revision()
	c := s.directory.Identify(token, now)
	if c == nil && isSession {
		if ok, _, _ := s.catchUps.Fail("session", now); ok {
			if moved, _ := s.change.CatchUp(ctx, from); moved {
				c = s.directory.Identify(token, now)
			}
		}
	}
	if c == nil || c.Session != isSession {
		return nil
	}
	return c
}

// isCrossSite reports whether a page of another site sent a request. Browsers say so, except
// to servers without TLS on other machines: there the origin must be this server. A request
// that changes something must have one of the two.
func isCrossSite(r *http.Request) bool {
	reads := r.Method == http.MethodGet || r.Method == http.MethodHead
	switch r.Header.Get("Sec-Fetch-Site") {
	case "same-origin":
		return false
	case "none": // a person entered the address
		return !reads
	case "":
	default:
		return true
	}
	origin := r.Header.Get("Origin")
	if origin == "" {
		return !reads
	}
	u, err := url.Parse(origin)
	return err != nil || u.Host != r.Host
}

type signInInput struct {
	Origin string `header:"Origin" hidden:"true"`
	Site   string `header:"Sec-Fetch-Site" hidden:"true"`
	Cookie string `header:"Cookie" hidden:"true"`
	Body   contract.SignIn
}

type signInOutput struct {
	SetCookie http.Cookie `header:"Set-Cookie" hidden:"true"`
	Body      contract.Session
}

func (s *server) signIn(ctx context.Context, in *signInInput) (*signInOutput, error) {
	o, now := originOf(ctx), s.Clock.Now()
	if o.foreign && in.Origin+in.Site != "" { // otherwise another site could sign people in as somebody else
		return nil, newError(mariposa.Forbidden, "this request came from a page of another site: sign in on the page of this server", nil)
	}
	who := change.SignIn{From: o.from, Request: o.id}
	var err error
	switch ask := in.Body; {
	case ask.Token != "" && ask.Link == "" && ask.User == "" && ask.Password == "":
		err = s.signInByToken(ctx, ask.Token, now, &who)
	case ask.Link != "" && ask.Token == "" && ask.User == "" && ask.Password == "":
		err = s.signInByLink(ctx, ask.Link, in.Cookie, now, &who)
	case ask.User != "" && ask.Password != "" && ask.Token == "" && ask.Link == "":
		err = s.signInByPassword(ctx, ask.User, ask.Password, now, &who)
	default:
		err = invalid("send either user and password, or token, or link")
	}
	if err != nil {
		return nil, err
	}
	secret, spec, err := s.change.BeginSession(ctx, who)
	if errors.Is(err, store.ErrConflict) && in.Body.Link != "" {
		return nil, errUsedLink()
	}
	if err != nil {
		return nil, err
	}
	return &signInOutput{
		SetCookie: s.newCookie(ctx, secret, spec.Expires.Sub(now)),
		Body:      contract.Session{User: who.User, UserName: s.viewer(ctx).userName(who.User), Expires: spec.Expires},
	}, nil
}

const attemptToSignIn = "POST /v1/sessions"

func (s *server) signInByToken(ctx context.Context, token string, now time.Time, who *change.SignIn) error {
	c := s.identify(ctx, token, false, now)
	if c == nil {
		return s.countFailure(ctx, attemptToSignIn, who.From, func() string { return s.whyRejected(ctx, token, now) })
	}
	who.User, who.By = c.User, s.Picture.Tokens.Get(c.Token)
	if who.By == nil { // it was revoked just now
		return mariposa.Errorf(mariposa.Unauthorized, "the token is no longer valid")
	}
	return nil
}

func errUsedLink() error {
	return mariposa.Errorf(mariposa.Unauthorized, "this link was used before, or has expired: get a new one with `mariposa open`")
}

// signInByLink finds the owner of a link. It does not replace the session of another user: pages of
// other sites can open a link too, and people would not notice that they work as somebody else.
func (s *server) signInByLink(ctx context.Context, secret, cookies string, now time.Time, who *change.SignIn) error {
	from := s.Picture.Revision()
	link := s.directory.Link(secret, now)
	if link == nil {
		if moved, _ := s.change.CatchUp(ctx, from); moved { // another replica may just have created it
			link = s.directory.Link(secret, now)
		}
	}
	if link == nil {
		return s.countFailure(ctx, attemptToSignIn, who.From, func() string { return errUsedLink().Error() })
	}
	who.User, who.By = link.Spec().Owner(), link
	r := (&http.Request{Header: http.Header{"Cookie": {cookies}}}).WithContext(ctx)
	if session, ok := s.sessionCookie(r); ok {
		if c := s.identify(ctx, session, true, now); c != nil && c.User != who.User {
			return conflict("you are signed in as %s, and this link is for %s: sign out first", c.Name, s.viewer(ctx).userName(who.User))
		}
	}
	return nil
}

// signInByPassword checks a password. Every attempt counts until it has succeeded, so that nobody can
// guess many at once.
func (s *server) signInByPassword(ctx context.Context, name, password string, now time.Time, who *change.SignIn) error {
	if ok, _, retry := s.signIns.Fail(listener.Group(who.From), now); !ok {
		return throttled(retry, "too many attempts to sign in from %s: wait, or use a token", who.From)
	}
	user, hash := s.directory.User(name), ""
	if user != nil {
		hash = user.Spec().Password
	}
	match, err := s.matchPassword(ctx, s.attemptKey(user, name, who.From), hash, password, now)
	switch {
	case err != nil:
		return err
	case !match || user.Spec().Disabled:
		return s.countFailure(ctx, attemptToSignIn, who.From, func() string { return "the user name or the password is wrong" })
	}
	who.User, who.Read = user.ID, user
	s.signIns.Forgive(listener.Group(who.From), now) // many people may share an address
	return nil
}

// attemptKey returns under which key attempts to sign in as a user are counted. Users that do not
// exist have one each too, or the limits would tell who exists. Where the user was before, attempts
// count apart, so that strangers cannot lock the user out.
func (s *server) attemptKey(user *store.User, name, from string) string {
	if user == nil {
		return "name " + name
	}
	group := listener.Group(from)
	for _, t := range s.Picture.TokensOf(user.ID) {
		if st := t.Status(); st != nil && st.From != "" && listener.Group(st.From) == group {
			return user.ID + " from " + group
		}
	}
	return user.ID
}

// ownKey is the key of attempts by somebody who is signed in, or has a token.
func ownKey(user string) string { return user + " signed in" }

// matchPassword checks a password within the limits.
func (s *server) matchPassword(ctx context.Context, key, hash, password string, now time.Time) (bool, error) {
	if ok, _, retry := s.userSignIns.Fail(key, now); !ok {
		return false, throttled(retry, "too many attempts to sign in as this user: wait, or use a token")
	}
	done, err := s.beginHash(ctx)
	if err != nil {
		return false, err
	}
	defer done()
	return auth.MatchPassword(hash, password), nil
}

// beginHash waits until another password may be hashed.
func (s *server) beginHash(ctx context.Context) (done func(), err error) {
	select {
	case s.hashing <- struct{}{}:
		return func() { <-s.hashing }, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

type confirmInput struct{ Body contract.Proof }

// confirmSession accepts a proof that it is still the same person at the web page. A user without a
// password proves it with a token, or signs in again.
func (s *server) confirmSession(ctx context.Context, in *confirmInput) (*document[contract.Changed], error) {
	c, from, now := caller(ctx), originOf(ctx).from, s.Clock.Now()
	user := s.Picture.Users.Get(c.User)
	switch {
	case !c.Session || c.By != "" || user == nil:
		return nil, conflict("only people who are signed in to the web page confirm who they are; this request used a token or acted for another user")
	case (in.Body.Password == "") == (in.Body.Token == ""):
		return nil, invalid("send either password or token")
	}
	if ok, _, retry := s.signIns.Fail(listener.Group(from), now); !ok {
		return nil, throttled(retry, "too many attempts to sign in from %s: wait, or sign in again", from)
	}
	if in.Body.Token != "" {
		own := s.identify(ctx, in.Body.Token, false, now)
		if own == nil || own.User != c.User || !c.Bounds.Within(own.Bounds) {
			return nil, conflict("this is not a valid token of %s with the rights of this session", c.Name)
		}
		s.signIns.Forgive(listener.Group(from), now)
		return changed(s.change.ConfirmSession(ctx, request(ctx), "by a token"))
	}
	if user.Spec().Password == "" {
		return nil, conflict("you have no password: use one of your tokens, or ask an admin of the installation to set a password with `mariposa user password %s`", c.Name)
	}
	match, err := s.matchPassword(ctx, ownKey(user.ID), user.Spec().Password, in.Body.Password, now)
	switch {
	case err != nil:
		return nil, err
	case !match:
		return nil, conflict("the password is wrong")
	}
	s.signIns.Forgive(listener.Group(from), now)
	return changed(s.change.ConfirmSession(ctx, request(ctx), "by password"))
}

type signOutOutput struct {
	SetCookie http.Cookie `header:"Set-Cookie" hidden:"true"`
	Body      contract.Changed
}

func (s *server) signOut(ctx context.Context, _ *struct{}) (*signOutOutput, error) {
	c := caller(ctx)
	own := s.Picture.Tokens.Get(c.Token)
	if !c.Session || own == nil {
		return nil, conflict("this request was sent with a token, not by the web page: to end the token, revoke it")
	}
	done, err := s.change.RevokeToken(ctx, request(ctx), own, true)
	if err != nil {
		return nil, err
	}
	return &signOutOutput{SetCookie: s.newCookie(ctx, "", -time.Second), Body: *done}, nil
}

type setPasswordInput struct{ Body contract.Password }

func (s *server) setPassword(ctx context.Context, in *setPasswordInput) (*document[contract.Changed], error) {
	user, err := s.mayChangePassword(ctx, in.Body.Current)
	if err != nil {
		return nil, err
	}
	if err := auth.CheckPassword(in.Body.Password, user.Spec().Name); err != nil {
		return nil, err
	}
	done, err := s.beginHash(ctx)
	if err != nil {
		return nil, err
	}
	hash := auth.HashPassword(in.Body.Password)
	done()
	return changed(s.change.SetPassword(ctx, request(ctx), user, hash))
}

func (s *server) removePassword(ctx context.Context, _ *struct{}) (*document[contract.Changed], error) {
	user, err := s.mayChangePassword(ctx, "")
	if err != nil {
		return nil, err
	}
	return changed(s.change.SetPassword(ctx, request(ctx), user, ""))
}

// mayChangePassword checks that the caller may change their password, and returns the user. A
// password does not end with a token, so a token alone is not enough: a person proves the
// current password, and an installation admin sets the first one.
func (s *server) mayChangePassword(ctx context.Context, current string) (*store.User, error) {
	c := caller(ctx)
	user := s.Picture.Users.Get(c.User)
	switch {
	case user == nil:
		return nil, notFound("there is no such user")
	case !c.Bounds.Unbounded():
		return nil, conflict("this token is limited to a part of your rights, so it cannot change your password")
	case !c.Session && (c.By != "" || c.Admin):
		return user, nil
	case user.Spec().Password == "":
		return nil, conflict("you have no password: ask an admin of the installation to set the first one with `mariposa user password %s`", user.Spec().Name)
	case current == "":
		return nil, conflict("send your current password too; only an admin of the installation can omit it")
	}
	match, err := s.matchPassword(ctx, ownKey(user.ID), user.Spec().Password, current, s.Clock.Now())
	if err == nil && !match {
		err = conflict("the current password is wrong")
	}
	return user, err
}
