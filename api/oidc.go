package api

import (
	"context"
	"crypto/rand"
	"crypto/subtle"
	"encoding/base64"
	"encoding/json"
	"errors"
	"html/template"
	"maps"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/coreos/go-oidc/v3/oidc"
	"golang.org/x/oauth2"

	"mariposa"
	"mariposa/auth"
	"mariposa/change"
	"mariposa/clock"
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
}

// provider is the provider of a server. Its addresses and keys are looked up when they are first
// needed, so that a server starts while the provider is away.
type provider struct {
	OIDC
	client *http.Client

	mu     sync.Mutex
	found  *oidc.Provider
	failed time.Time // when the last attempt to find it failed
}

const (
	providerTimeout = 10 * time.Second // for one request to the provider
	providerRetry   = 5 * time.Second  // after a failure
	flowLifetime    = 10 * time.Minute // from the start of a sign-in to its end
	maxClaim        = 1024             // bytes of a subject
)

func newProvider(o *OIDC) *provider {
	if o == nil {
		return nil
	}
	return &provider{OIDC: *o, client: &http.Client{Timeout: providerTimeout}}
}

// context returns a context with the client for requests to the provider.
func (p *provider) context(ctx context.Context) context.Context {
	return oidc.ClientContext(ctx, p.client)
}

// find returns the provider. One request at a time asks for its addresses; if that fails, those that
// have waited for it fail too, instead of asking one after the other.
func (p *provider) find(clk clock.Clock) (*oidc.Provider, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.found != nil {
		return p.found, nil
	}
	if !p.failed.IsZero() && clk.Now().Sub(p.failed).Abs() < providerRetry {
		return nil, mariposa.Errorf(mariposa.Unavailable, "%s cannot be reached: try again shortly", p.Name)
	}
	found, err := oidc.NewProvider(p.context(context.Background()), p.Issuer) // its keys are read later, after the request
	if err != nil {
		p.failed = clk.Now()
		return nil, &mariposa.Error{Code: mariposa.Unavailable, Message: p.Name + " cannot be reached: try again shortly, or ask an admin to look at the log of the server", Cause: err}
	}
	p.found = found
	return found, nil
}

// config returns what a sign-in needs. The provider sends people back to the server that they asked.
func (p *provider) config(found *oidc.Provider, r *http.Request) *oauth2.Config {
	back := url.URL{Scheme: "http", Host: r.Host, Path: "/v1/oidc/callback"}
	if originOf(r.Context()).secure {
		back.Scheme = "https"
	}
	return &oauth2.Config{
		ClientID: p.ClientID, ClientSecret: p.ClientSecret, Endpoint: found.Endpoint(), RedirectURL: back.String(), Scopes: []string{oidc.ScopeOpenID, "profile", "email"},
	}
}

// flow is a sign-in that has begun. It is in a cookie, so that any replica can end it, and only in
// the same browser.
type flow struct {
	State    string `json:"s"`
	Nonce    string `json:"n"`
	Verifier string `json:"v"`
	Return   string `json:"r"`
}

func (s *server) flowCookie(ctx context.Context, value string, lifetime time.Duration) *http.Cookie {
	c := s.newCookie(ctx, value, lifetime)
	c.Name += "-oidc"
	c.SameSite = http.SameSiteLaxMode // the provider sends the browser back
	return &c
}

func (s *server) errNoProvider() *Error {
	return newError(mariposa.ResourceNotFound, "this server has no provider of sign-ins: sign in with a password or a token", nil)
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
		http.SetCookie(w, s.flowCookie(r.Context(), base64.RawURLEncoding.EncodeToString(value), flowLifetime))
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
		http.SetCookie(w, s.flowCookie(ctx, "", -time.Second))
		f, secret, spec, err := s.signInByProvider(ctx, r)
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
	if ok, _, retry := s.signIns.Fail(listener.Group(from), now); !ok {
		return f, "", nil, throttled(retry, "too many attempts to sign in from %s: wait a moment", from)
	}
	if f, err = s.flowOf(r); err != nil {
		return f, "", nil, err
	}
	user, proved, err := s.userAtProvider(ctx, r, f, now)
	if mariposa.CodeOf(err) == mariposa.Unauthorized {
		err = s.countFailure(ctx, "GET /v1/oidc/callback", from, err.Error)
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
	return user, person.proved, err
}

// flowOf returns the sign-in that a browser has begun, and that the provider ends.
func (s *server) flowOf(r *http.Request) (f flow, err error) {
	stale := mariposa.Errorf(mariposa.InvalidArgument, "this sign-in took too long, or was begun in another browser: begin again")
	c, err := r.Cookie(s.cookieName(r.Context()) + "-oidc")
	if err != nil {
		return f, stale
	}
	value, err := base64.RawURLEncoding.DecodeString(c.Value)
	if err != nil || json.Unmarshal(value, &f) != nil || f.State == "" || subtle.ConstantTimeCompare([]byte(f.State), []byte(r.URL.Query().Get("state"))) != 1 {
		return f, stale
	}
	f.Return = ownPath(f.Return) // the cookie is not secret
	return f, nil
}

// outsider is who a person is at the provider, and when they proved it there.
type outsider struct {
	change.Outsider
	proved time.Time
}

// askProvider exchanges the code that the browser brought for who the person is.
func (s *server) askProvider(ctx context.Context, r *http.Request, f flow, now time.Time) (who outsider, err error) {
	p, query := s.provider, r.URL.Query()
	fail := func(err error, message string) error {
		s.Logger.WarnContext(ctx, "a sign-in at the provider failed", "err", err, "request", requestID(ctx))
		return mariposa.Errorf(mariposa.Unauthorized, "%s: begin again, or ask an admin to look at the log of the server", message)
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
	if err == nil && (id.Subject == "" || len(id.Subject) > maxClaim) {
		err = errors.New("the subject is empty or too long")
	}
	if err != nil {
		return who, fail(err, "the answer of "+p.Name+" is not valid")
	}
	claims, err := p.claims(ctx, found, id, token)
	if err != nil {
		return who, fail(err, "the answer of "+p.Name+" is not valid")
	}
	name, _ := claims[p.UserClaim].(string)
	email, _ := claims["email"].(string)
	if at, ok := claims["auth_time"].(float64); ok {
		if who.proved = time.Unix(int64(at), 0); who.proved.After(now) {
			who.proved = now
		}
	}
	who.Outsider = change.Outsider{Identity: mariposa.Identity{Issuer: p.Issuer, Subject: id.Subject}, Name: auth.NameFromClaim(name), Email: email, Create: p.CreateUsers, Claim: p.UserClaim}
	return who, nil
}

// claims returns what the provider says about a person. Some say most of it only when they are asked.
func (p *provider) claims(ctx context.Context, found *oidc.Provider, id *oidc.IDToken, token *oauth2.Token) (map[string]any, error) {
	claims := map[string]any{}
	if err := id.Claims(&claims); err != nil || claims[p.UserClaim] != nil || found.UserInfoEndpoint() == "" {
		return claims, err
	}
	info, err := found.UserInfo(ctx, oauth2.StaticTokenSource(token))
	if err != nil {
		return nil, err
	}
	if info.Subject != id.Subject {
		return nil, errors.New("it describes another person")
	}
	more := map[string]any{}
	if err := info.Claims(&more); err != nil {
		return nil, err
	}
	maps.Copy(more, claims) // the signed ones count
	return more, nil
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
