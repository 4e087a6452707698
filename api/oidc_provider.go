package api

import (
	"context"
	"errors"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"sync"
	"time"

	"github.com/coreos/go-oidc/v3/oidc"
	"golang.org/x/oauth2"

	"mariposa"
	"mariposa/clock"
)

// provider is the provider of a server. Its addresses and keys are looked up when they are first
// needed, so that a server starts while the provider is away.
type provider struct {
	OIDC
	client *http.Client

	mu      sync.Mutex
	found   *oidc.Provider
	foundAt time.Time
	failed  time.Time // when the last attempt to find it failed
}

const (
	providerTimeout = 10 * time.Second // for one request to the provider
	providerRetry   = 5 * time.Second  // after a failure
	providerRefresh = time.Hour        // its addresses may move
	maxProvided     = 1 << 20          // bytes of one answer of the provider
	maxFailureText  = 500              // bytes of an error about the provider: it may contain an answer
	maxClaim        = 1024             // bytes of a subject
	maxEmail        = 254              // bytes of an address
)

func newProvider(o *OIDC) *provider {
	if o == nil {
		return nil
	}
	return &provider{OIDC: *o, client: &http.Client{Timeout: providerTimeout, Transport: boundedTransport{}, CheckRedirect: checkRedirect}}
}

// boundedTransport cuts answers that are too large.
type boundedTransport struct{}

func (boundedTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	resp, err := http.DefaultTransport.RoundTrip(r)
	if err == nil {
		resp.Body = http.MaxBytesReader(nil, resp.Body, maxProvided)
	}
	return resp, err
}

// checkRedirect refuses redirects that would tell another server the secret of this one, or let it
// say who people are.
func checkRedirect(next *http.Request, before []*http.Request) error {
	first := before[0]
	if first.Method != http.MethodGet || next.URL.Scheme != first.URL.Scheme || next.URL.Host != first.URL.Host || len(before) > 3 {
		return errors.New("the provider redirects to another server, or in circles")
	}
	return nil
}

// shortenFailure returns an error that fits into a log.
func shortenFailure(err error) error { return errors.New(truncate(err.Error(), maxFailureText)) }

// context returns a context with the client for requests to the provider.
func (p *provider) context(ctx context.Context) context.Context {
	return oidc.ClientContext(ctx, p.client)
}

// find returns the provider. One request at a time asks for its addresses; if that fails, those that
// have waited for it fail too, instead of asking one after the other.
func (p *provider) find(clk clock.Clock) (*oidc.Provider, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := clk.Now()
	if p.found != nil && now.Sub(p.foundAt).Abs() < providerRefresh {
		return p.found, nil
	}
	if p.found == nil && !p.failed.IsZero() && now.Sub(p.failed).Abs() < providerRetry {
		return nil, mariposa.Errorf(mariposa.Unavailable, "%s cannot be reached: try again shortly", p.Name)
	}
	found, err := oidc.NewProvider(p.context(context.Background()), p.Issuer) // its keys are read later, after the request
	switch {
	case err == nil:
		p.found = found
	case p.found == nil:
		p.failed = clk.Now()
		return nil, &mariposa.Error{Code: mariposa.Unavailable, Message: p.Name + " cannot be reached: try again shortly, or ask an admin to look at the log of the server", Cause: shortenFailure(err)}
	}
	p.foundAt = clk.Now() // if it cannot be asked again, what is known still counts
	return p.found, nil
}

// config returns what a sign-in needs. The provider sends people back to the server that they asked.
func (p *provider) config(found *oidc.Provider, r *http.Request) *oauth2.Config {
	back := url.URL{Scheme: "http", Host: r.Host, Path: "/v1/oidc/callback"}
	if originOf(r.Context()).secure {
		back.Scheme = "https"
	}
	scopes := []string{oidc.ScopeOpenID, "profile", "email"}
	var offers struct {
		Scopes []string `json:"scopes_supported"`
	}
	if len(p.Groups) > 0 && found.Claims(&offers) == nil && slices.Contains(offers.Scopes, "groups") { // some send groups only then
		scopes = append(scopes, "groups")
	}
	return &oauth2.Config{ClientID: p.ClientID, ClientSecret: p.ClientSecret, Endpoint: found.Endpoint(), RedirectURL: back.String(), Scopes: scopes}
}

// claims returns what the provider says about a person. Some say most of it only when they are asked.
func (p *provider) claims(ctx context.Context, found *oidc.Provider, id *oidc.IDToken, token *oauth2.Token) (map[string]any, error) {
	claims := map[string]any{}
	err := id.Claims(&claims)
	isComplete := claims[p.UserClaim] != nil && (len(p.Groups) == 0 || claims[p.GroupsClaim] != nil)
	if err != nil || isComplete || found.UserInfoEndpoint() == "" {
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
