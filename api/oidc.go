package api

import (
	"context"
	"crypto/rand"
	"crypto/subtle"
	"encoding/base64"
	"encoding/json"
	"errors"
	"html/template"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/coreos/go-oidc/v3/oidc"
	"golang.org/x/oauth2"

	"mariposa"
	"mariposa/auth"
	"mariposa/change"
	"mariposa/contract"
	"mariposa/listener"
	"mariposa/store"
)

// OIDC is a provider at which people sign in to the web page, with OpenID Connect.
type OIDC struct {
	Name         string // on the button of the page
	Issuer       string // its URL
	ClientID     string
	ClientSecret string
	UserClaim    string // the claim with the name of the user
	CreateUsers  bool   // who has no user yet gets one; otherwise they are refused
	GroupsClaim  string // the claim with the groups of the user
	Groups       []OIDCGroup
}

const (
	flowLifetime = 10 * time.Minute // from the start of a sign-in to its end
	maxFlows     = 5                // in one browser at once
)

// flow is a sign-in that has begun. It is in a cookie, so that any replica can end it, and only in
// the same browser. Each has a cookie of its own: there may be several tabs.
type flow struct {
	State    string `json:"s"`
	Nonce    string `json:"n"`
	Verifier string `json:"v"`
	Return   string `json:"r"`
}

// flowPrefix is how the names of cookies with flows begin.
func (s *server) flowPrefix(ctx context.Context) string { return s.cookieName(ctx) + "-oidc-" }

func (s *server) flowCookie(ctx context.Context, name, value string, lifetime time.Duration) *http.Cookie {
	c := s.newCookie(ctx, value, lifetime)
	c.Name = name
	c.SameSite = http.SameSiteLaxMode // the provider sends the browser back
	return &c
}

// flowName returns the name of the cookie of a flow.
func (s *server) flowName(ctx context.Context, state string) string {
	return s.flowPrefix(ctx) + state[:min(8, len(state))]
}

// dropFlows removes flows that were never ended, before there are so many that requests become too
// large.
func (s *server) dropFlows(w http.ResponseWriter, r *http.Request) {
	var begun []string
	for _, c := range r.Cookies() {
		if strings.HasPrefix(c.Name, s.flowPrefix(r.Context())) {
			begun = append(begun, c.Name)
		}
	}
	if len(begun) < maxFlows {
		return
	}
	for _, name := range begun {
		http.SetCookie(w, s.flowCookie(r.Context(), name, "", -time.Second))
	}
}

func (s *server) errNoProvider() *Error {
	return newError(mariposa.ResourceNotFound, "this server has no identity provider: sign in with a password or a token", nil)
}

// beginProviderSignIn sends a browser to the provider.
func (s *server) beginProviderSignIn() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if s.provider == nil {
			s.errNoProvider().write(w)
			return
		}
		found, err := s.provider.find(s.Clock)
		if err != nil {
			s.refuseSignIn(w, r, err)
			return
		}
		f := flow{State: rand.Text(), Nonce: rand.Text(), Verifier: oauth2.GenerateVerifier(), Return: ownPath(r.URL.Query().Get("return"))}
		value, _ := json.Marshal(f) // only texts
		options := []oauth2.AuthCodeOption{oauth2.S256ChallengeOption(f.Verifier), oidc.Nonce(f.Nonce)}
		if r.URL.Query().Get("again") == "true" { // to prove that it is still the same person
			options = append(options, oauth2.SetAuthURLParam("prompt", "login"), oauth2.SetAuthURLParam("max_age", "0"))
		}
		s.dropFlows(w, r)
		http.SetCookie(w, s.flowCookie(r.Context(), s.flowName(r.Context(), f.State), base64.RawURLEncoding.EncodeToString(value), flowLifetime))
		http.Redirect(w, r, s.provider.config(found, r).AuthCodeURL(f.State, options...), http.StatusSeeOther)
	})
}

// ownPath returns a path of the page to return to. Addresses of other servers are not accepted.
func ownPath(path string) string {
	u, err := url.Parse(path)
	if err != nil || u.IsAbs() || u.Host != "" || !strings.HasPrefix(u.Path, "/") || strings.HasPrefix(u.Path, "//") || strings.Contains(path, `\`) || len(path) > 512 {
		return "/"
	}
	return u.EscapedPath()
}

// endProviderSignIn begins the session of a person whom the provider has sent back.
func (s *server) endProviderSignIn() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if s.provider == nil {
			s.errNoProvider().write(w)
			return
		}
		ctx, cancel := context.WithTimeout(r.Context(), s.RequestTimeout)
		defer cancel()
		f, secret, spec, err := s.signInByProvider(ctx, r)
		if f.State != "" {
			http.SetCookie(w, s.flowCookie(ctx, s.flowName(ctx, f.State), "", -time.Second))
		}
		if err != nil {
			s.refuseSignIn(w, r, err)
			return
		}
		cookie := s.newCookie(ctx, secret, spec.Expires.Sub(s.Clock.Now()))
		http.SetCookie(w, &cookie)
		http.Redirect(w, r, f.Return+"#signed-in", http.StatusSeeOther)
	})
}

func (s *server) signInByProvider(ctx context.Context, r *http.Request) (f flow, secret string, spec *mariposa.TokenSpec, err error) {
	from, now := originOf(ctx).from, s.Clock.Now()
	if f, err = s.flowOf(r); err != nil { // no attempt: there is nothing to guess
		return f, "", nil, err
	}
	if ok, _, retry := s.signIns.Fail(listener.Group(from), now); !ok {
		return f, "", nil, throttled(retry, "too many attempts to sign in from %s: wait a moment", from)
	}
	user, proved, err := s.userAtProvider(ctx, r, f, now)
	if mariposa.CodeOf(err) == mariposa.Unauthorized {
		err = s.countFailure(ctx, "GET /v1/oidc/callback", from, err.Error)
	}
	if err == nil {
		s.signIns.Forgive(listener.Group(from), now) // many people may share an address
		if ok, _, retry := s.userSignIns.Fail(ownKey(user.ID), now); !ok {
			err = throttled(retry, "too many sign-ins of this user: wait a moment")
		}
	}
	if err != nil {
		return f, "", nil, err
	}
	secret, spec, err = s.change.BeginSession(ctx, change.SignIn{User: user.ID, Read: user, Provider: s.provider.Name, Proved: proved, From: from, Request: requestID(ctx)})
	return f, secret, spec, err
}

// userAtProvider returns the user of a person whom the provider has sent back, and when they proved
// who they are.
func (s *server) userAtProvider(ctx context.Context, r *http.Request, f flow, now time.Time) (*store.User, time.Time, error) {
	person, err := s.askProvider(ctx, r, f, now)
	if err != nil {
		return nil, time.Time{}, err
	}
	person.From, person.Request = originOf(ctx).from, requestID(ctx)
	user, err := s.change.UserOf(ctx, person.Outsider)
	if err == nil && user.Spec().Disabled {
		err = mariposa.Errorf(mariposa.Unauthorized, "the user %s is disabled: ask an admin of the installation", user.Spec().Name)
	}
	if err == nil {
		err = s.joinGroups(ctx, person, user)
	}
	return user, person.proved, err
}

// flowOf returns the sign-in that a browser has begun, and that the provider ends.
func (s *server) flowOf(r *http.Request) (f flow, err error) {
	stale := mariposa.Errorf(mariposa.InvalidArgument, "this sign-in took too long or was started in another browser: start again")
	state := r.URL.Query().Get("state")
	c, err := r.Cookie(s.flowName(r.Context(), state))
	if err != nil {
		return flow{}, stale
	}
	value, err := base64.RawURLEncoding.DecodeString(c.Value)
	if err != nil || json.Unmarshal(value, &f) != nil || f.State == "" || f.Nonce == "" || f.Verifier == "" || subtle.ConstantTimeCompare([]byte(f.State), []byte(state)) != 1 {
		return flow{}, stale
	}
	f.Return = ownPath(f.Return) // the cookie is not secret
	return f, nil
}

// outsider is who a person is at the provider, and when they proved it there.
type outsider struct {
	change.Outsider
	proved time.Time
	roles  map[string]mariposa.OrgRole // by organization
}

// askProvider exchanges the code that the browser brought for who the person is.
func (s *server) askProvider(ctx context.Context, r *http.Request, f flow, now time.Time) (who outsider, err error) {
	p, query := s.provider, r.URL.Query()
	fail := func(err error, message string) error {
		s.Logger.WarnContext(ctx, "a sign-in at the provider failed", "err", shortenFailure(err), "request", requestID(ctx))
		return mariposa.Errorf(mariposa.Unauthorized, "%s: try again, or ask an admin to check the log of the server", message)
	}
	if reason := query.Get("error"); reason != "" {
		return who, mariposa.Errorf(mariposa.Unauthorized, "%s refused the sign-in (%s)", p.Name, shortenText(reason))
	}
	found, err := p.find(s.Clock)
	if err != nil {
		return who, err
	}
	ctx = p.context(ctx)
	token, err := p.config(found, r).Exchange(ctx, query.Get("code"), oauth2.VerifierOption(f.Verifier))
	if err != nil {
		return who, fail(err, p.Name+" did not accept the sign-in")
	}
	raw, _ := token.Extra("id_token").(string)
	id, err := found.Verifier(&oidc.Config{ClientID: p.ClientID, Now: s.Clock.Now}).Verify(ctx, raw)
	if err == nil && subtle.ConstantTimeCompare([]byte(id.Nonce), []byte(f.Nonce)) != 1 {
		err = errors.New("the nonce differs")
	}
	if err == nil && (id.Subject == "" || len(id.Subject) > maxClaim || !isText(id.Subject)) {
		err = errors.New("the subject is empty, too long or no text")
	}
	if err != nil {
		return who, fail(err, "the answer of "+p.Name+" is not valid")
	}
	claims, err := p.claims(ctx, found, id, token)
	if err == nil {
		who.roles, err = p.rolesOf(claims)
	}
	if err != nil {
		return who, fail(err, "the answer of "+p.Name+" is not valid")
	}
	name, _ := claims[p.UserClaim].(string)
	email, _ := claims["email"].(string)
	if len(email) > maxEmail || !isText(email) {
		email = ""
	}
	if at, ok := claims["auth_time"].(float64); ok {
		if who.proved = time.Unix(int64(at), 0); who.proved.After(now) {
			who.proved = now
		}
	}
	who.Outsider = change.Outsider{Identity: mariposa.Identity{Issuer: p.Issuer, Subject: id.Subject}, Name: auth.NameFromClaim(name), Said: name, Email: email, Verified: claims["email_verified"] == true, Create: p.CreateUsers, Claim: p.UserClaim}
	return who, nil
}

// refuseSignIn tells a person in a browser why they are not signed in.
func (s *server) refuseSignIn(w http.ResponseWriter, r *http.Request, err error) {
	e := s.explain(r.Context(), err)
	h := w.Header()
	for k, v := range e.GetHeaders() {
		h[k] = v
	}
	h.Del("Www-Authenticate") // the browser would ask for another password
	h.Set("Content-Type", "text/html; charset=utf-8")
	h.Set("Content-Security-Policy", "default-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'")
	w.WriteHeader(e.status)
	_ = refusedPage.Execute(w, e.Message) // the client may be gone
}

var refusedPage = template.Must(template.New("refused").Parse(`<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>Not signed in · Mariposa</title>
</head>
<body>
<h1>You are not signed in</h1>
<p>{{.}}.</p>
<p><a href="/">Sign in</a></p>
</body>
</html>
`))

func (s *server) getSignIn(context.Context, *struct{}) (*document[contract.SignInWays], error) {
	ways := contract.SignInWays{Password: true, Token: true}
	if s.provider != nil {
		ways.Provider = s.provider.Name
	}
	return answer(ways)
}
