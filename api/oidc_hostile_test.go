package api_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/cookiejar"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/coreos/go-oidc/v3/oidc/oidctest"
	"golang.org/x/oauth2"

	"mariposa"
	"mariposa/api"
	"mariposa/contract"
)

// hostileProvider is an identity provider that can misbehave.
type hostileProvider struct {
	t   *testing.T
	url string

	mu       sync.Mutex
	key      *ecdsa.PrivateKey
	keyID    string
	codes    map[string]url.Values // requests of people, by the code that they got
	claims   map[string]any        // what it says about them, beside the usual
	sign     func(claims map[string]any) string
	answer   map[string]http.HandlerFunc // by path, instead of the usual
	tokenURL string
}

func newHostileProvider(t *testing.T) *hostileProvider {
	t.Helper()
	p := &hostileProvider{t: t, codes: map[string]url.Values{}, answer: map[string]http.HandlerFunc{}}
	p.changeKey("first")
	server := httptest.NewServer(p)
	t.Cleanup(server.Close)
	p.url, p.tokenURL = server.URL, server.URL+"/token"
	return p
}

func (p *hostileProvider) changeKey(id string) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		p.t.Fatal(err)
	}
	p.key, p.keyID = key, id
	p.sign = p.signature
}

func (p *hostileProvider) signature(claims map[string]any) string {
	text, _ := json.Marshal(claims)
	return oidctest.SignIDToken(p.key, p.keyID, "ES256", string(text))
}

func (p *hostileProvider) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	p.mu.Lock()
	other := p.answer[r.URL.Path]
	p.mu.Unlock()
	if other != nil {
		other(w, r)
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	w.Header().Set("Content-Type", "application/json")
	switch r.URL.Path {
	case "/.well-known/openid-configuration":
		_ = json.NewEncoder(w).Encode(map[string]any{
			"issuer": p.url, "authorization_endpoint": p.url + "/auth", "token_endpoint": p.tokenURL, "jwks_uri": p.url + "/keys", "userinfo_endpoint": p.url + "/userinfo",
			"id_token_signing_alg_values_supported": []string{"ES256", "none", "HS256"},
		})
	case "/keys":
		coordinate := func(b []byte) string { return base64.RawURLEncoding.EncodeToString(b) }
		point, _ := p.key.PublicKey.Bytes()
		_ = json.NewEncoder(w).Encode(map[string]any{"keys": []any{map[string]any{
			"kty": "EC", "crv": "P-256", "use": "sig", "alg": "ES256", "kid": p.keyID, "x": coordinate(point[1:33]), "y": coordinate(point[33:]),
		}}})
	case "/token", "/moved":
		asked, known := p.codes[r.FormValue("code")]
		delete(p.codes, r.FormValue("code"))
		if !known || asked.Get("code_challenge") != oauth2.S256ChallengeFromVerifier(r.FormValue("code_verifier")) || asked.Get("redirect_uri") != r.FormValue("redirect_uri") {
			w.WriteHeader(http.StatusBadRequest)
			fmt.Fprint(w, `{"error":"invalid_grant"}`)
			return
		}
		now := time.Now()
		claims := map[string]any{
			"iss": p.url, "aud": "mariposa", "sub": "subject", "exp": now.Add(time.Hour).Unix(), "iat": now.Unix(), "nonce": asked.Get("nonce"), "preferred_username": "ann",
		}
		maps.Copy(claims, p.claims)
		_ = json.NewEncoder(w).Encode(map[string]any{"access_token": "a", "token_type": "Bearer", "id_token": p.sign(claims)})
	case "/userinfo":
		fmt.Fprint(w, `{"sub":"subject"}`)
	default:
		http.NotFound(w, r)
	}
}

func (p *hostileProvider) configured() *api.OIDC {
	return &api.OIDC{Name: "Evil", Issuer: p.url, ClientID: "mariposa", ClientSecret: "the secret of the client", UserClaim: "preferred_username"}
}

// says sets what the provider says about a person.
func (p *hostileProvider) says(claims map[string]any) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.claims = claims
}

// emptyBrowser is a browser that nobody has signed in.
type emptyBrowser struct {
	h      *testServer
	client *http.Client
}

func newEmptyBrowser(h *testServer) *emptyBrowser {
	jar, _ := cookiejar.New(nil) // never fails
	return &emptyBrowser{h, &http.Client{Jar: jar, Transport: h.http.Transport, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}}
}

func (v *emptyBrowser) get(address string) (status int, body, location string) {
	v.h.t.Helper()
	r, err := v.client.Get(address)
	if err != nil {
		v.h.t.Fatal(err)
	}
	defer r.Body.Close()
	text, err := io.ReadAll(r.Body)
	if err != nil {
		v.h.t.Fatal(err)
	}
	return r.StatusCode, string(text), r.Header.Get("Location")
}

// begin begins a sign-in, and returns the address at which the provider would end it.
func (v *emptyBrowser) begin(p *hostileProvider) (callback string) {
	v.h.t.Helper()
	status, body, to := v.get(v.h.url + "/v1/oidc/sign-in")
	if status != http.StatusSeeOther {
		v.h.t.Fatalf("the sign-in begins with %d %s", status, body)
	}
	u, err := url.Parse(to)
	if err != nil {
		v.h.t.Fatal(err)
	}
	q, code := u.Query(), rand.Text()
	p.mu.Lock()
	p.codes[code] = q
	p.mu.Unlock()
	return q.Get("redirect_uri") + "?" + url.Values{"code": {code}, "state": {q.Get("state")}}.Encode()
}

// who returns the user of the browser; empty: nobody.
func (v *emptyBrowser) who() string {
	status, body, _ := v.get(v.h.url + "/v1/user")
	if status != http.StatusOK {
		return ""
	}
	var doc contract.Whoami
	if err := json.Unmarshal([]byte(body), &doc); err != nil {
		v.h.t.Fatal(err)
	}
	return doc.Name
}

// signIn signs a person in.
func (v *emptyBrowser) signIn(p *hostileProvider) (status int, body string) {
	v.h.t.Helper()
	status, body, _ = v.get(v.begin(p))
	return status, body
}

func withProvider(o *api.OIDC) option { return func(s *settings) { s.oidc = o } }

// Only a token that the provider has signed for this server, this browser and now signs anybody in.
func TestForgedTokensOfAProviderAreRefused(t *testing.T) {
	t.Parallel()
	p := newHostileProvider(t)
	h := newTestServer(t, withProvider(p.configured()))
	want[contract.Changed](h.call("POST", "/v1/users", contract.NewUser{Name: "ann"}), 201)
	other, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	unsigned := func(claims map[string]any) string {
		text, _ := json.Marshal(claims)
		return base64.RawURLEncoding.EncodeToString([]byte(`{"alg":"none"}`)) + "." + base64.RawURLEncoding.EncodeToString(text) + "."
	}
	foreign := func(claims map[string]any) string {
		text, _ := json.Marshal(claims)
		return oidctest.SignIDToken(other, "first", "ES256", string(text))
	}
	for what, c := range map[string]struct {
		claims map[string]any
		sign   func(map[string]any) string
	}{
		"without a signature":   {sign: unsigned},
		"with another key":      {sign: foreign},
		"that is no token":      {sign: func(map[string]any) string { return "nothing" }},
		"that is missing":       {sign: func(map[string]any) string { return "" }},
		"of another provider":   {claims: map[string]any{"iss": "https://other.example"}},
		"for another server":    {claims: map[string]any{"aud": "other"}},
		"that has expired":      {claims: map[string]any{"exp": time.Now().Add(-time.Hour).Unix()}},
		"that is not valid yet": {claims: map[string]any{"nbf": time.Now().Add(time.Hour).Unix()}},
		"for another browser":   {claims: map[string]any{"nonce": "other"}},
		"for no browser":        {claims: map[string]any{"nonce": nil}},
		"of nobody":             {claims: map[string]any{"sub": ""}},
		"of a long name":        {claims: map[string]any{"sub": strings.Repeat("x", 5000)}},
		"of a name with NUL":    {claims: map[string]any{"sub": "a\x00b"}},
		"that is too large":     {claims: map[string]any{"more": strings.Repeat("x", 2<<20)}},
	} {
		p.mu.Lock()
		p.claims, p.sign = c.claims, p.signature
		if c.sign != nil {
			p.sign = c.sign
		}
		p.mu.Unlock()
		v := newEmptyBrowser(h)
		if status, body := v.signIn(p); status != http.StatusUnauthorized || v.who() != "" || len(body) > 2000 {
			t.Errorf("a token %s answers %d %.200s, for %q", what, status, body, v.who())
		}
	}
	if n := len(h.logs.String()); n > 1<<20 {
		t.Errorf("the log has %d bytes", n)
	}
	if u := want[contract.User](h.call("GET", "/v1/users/ann", nil), 200); u.Identity != nil {
		t.Errorf("ann is %+v", u)
	}
	p.mu.Lock()
	p.claims = nil
	p.changeKey("second")
	p.mu.Unlock()
	v := newEmptyBrowser(h)
	callback := v.begin(p)
	if status, body, _ := v.get(callback); status != http.StatusSeeOther || v.who() != "ann" {
		t.Errorf("after the provider has changed its key, a sign-in answers %d %s", status, body)
	}
	if status, _, _ := v.get(callback); status != http.StatusBadRequest {
		t.Errorf("the same callback answers %d", status)
	}
}

// A provider that redirects does not get the secrets of this server to another one, and endless
// answers do not fill the memory.
func TestAProviderCannotRedirectOrFloodTheServer(t *testing.T) {
	t.Parallel()
	p := newHostileProvider(t)
	var leaked, sent atomic.Int64
	elsewhere := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		_ = r.ParseForm()
		leaked.Add(1)
	}))
	defer elsewhere.Close()
	redirect := func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, elsewhere.URL+"/token", http.StatusTemporaryRedirect)
	}
	endless := func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		for piece := []byte(strings.Repeat(" ", 1<<16)); sent.Load() < 64<<20; {
			n, err := w.Write(piece)
			if err != nil {
				return
			}
			sent.Add(int64(n))
		}
	}
	later := &shiftedClock{}
	h := newTestServer(t, withProvider(p.configured()), withClock(later))
	want[contract.Changed](h.call("POST", "/v1/users", contract.NewUser{Name: "ann"}), 201)
	set := func(path string, answer http.HandlerFunc) {
		p.mu.Lock()
		defer p.mu.Unlock()
		clear(p.answer)
		p.answer[path] = answer
		sent.Store(0)
	}
	const discovery = "/.well-known/openid-configuration"
	for what, answer := range map[string]http.HandlerFunc{"redirects": redirect, "never ends": endless} {
		set(discovery, answer)
		if status, _, _ := newEmptyBrowser(h).get(h.url + "/v1/oidc/sign-in"); status != http.StatusServiceUnavailable {
			t.Errorf("a provider that %s answers %d", what, status)
		}
		later.turn(time.Minute)
	}
	if sent.Load() > 16<<20 {
		t.Errorf("the server read %d bytes of an endless answer", sent.Load())
	}
	p.says(map[string]any{"preferred_username": nil}) // ask for more
	for path, answers := range map[string][]http.HandlerFunc{"/token": {redirect, endless}, "/keys": {redirect, endless}, "/userinfo": {redirect, endless}} {
		for _, answer := range answers {
			set(path, answer)
			v := newEmptyBrowser(h)
			if status, _ := v.signIn(p); status != http.StatusUnauthorized || v.who() != "" || sent.Load() > 16<<20 {
				t.Errorf("%s answers %d after %d bytes", path, status, sent.Load())
			}
		}
	}
	if leaked.Load() > 0 {
		t.Errorf("another server was asked %d times", leaked.Load())
	}

	// It may move its own addresses.
	set("/token", http.NotFound)
	p.mu.Lock()
	p.tokenURL = p.url + "/moved"
	p.mu.Unlock()
	p.says(nil)
	later.turn(2 * time.Hour)
	p.says(map[string]any{"exp": time.Now().Add(24 * time.Hour).Unix()})
	if status, body := newEmptyBrowser(h).signIn(p); status != http.StatusSeeOther {
		t.Errorf("after the provider has moved, a sign-in answers %d %s", status, body)
	}
}

// Two tabs of a browser can sign in at the same time, in any order.
func TestTwoSignInsInOneBrowserDoNotDisturbEachOther(t *testing.T) {
	t.Parallel()
	p := newHostileProvider(t)
	h := newTestServer(t, withProvider(p.configured()))
	want[contract.Changed](h.call("POST", "/v1/users", contract.NewUser{Name: "ann"}), 201)
	v := newEmptyBrowser(h)
	first, second := v.begin(p), v.begin(p)
	for _, callback := range []string{first, second} {
		if status, body, _ := v.get(callback); status != http.StatusSeeOther {
			t.Errorf("one of two sign-ins answers %d %s", status, body)
		}
	}
	// A state of one does not end the other.
	a, b := v.begin(p), v.begin(p)
	mixed := a[:strings.Index(a, "state=")] + b[strings.Index(b, "state="):]
	if status, _, _ := v.get(mixed); status != http.StatusUnauthorized {
		t.Errorf("the code of one sign-in with the state of another answers %d", status)
	}
	// Another browser cannot end it, and nobody can begin so many that the cookies are too large.
	if status, _, _ := newEmptyBrowser(h).get(a); status != http.StatusBadRequest {
		t.Errorf("a sign-in that was begun in another browser answers %d", status)
	}
	for range 50 {
		v.begin(p)
	}
	at, _ := url.Parse(h.url)
	if n := len(v.client.Jar.Cookies(at)); n > 10 {
		t.Errorf("the browser has %d cookies", n)
	}
	if status, body := v.signIn(p); status != http.StatusSeeOther {
		t.Errorf("after many sign-ins that did not end, the next answers %d %s", status, body)
	}
	for _, forged := range []string{`{"s":"x"}`, `{"s":"x","n":"","v":"","r":"/"}`, `nothing`} {
		r := h.as("").call("GET", "/v1/oidc/callback?state=x&code=y", nil, "Authorization", "", "Cookie", cookieOf(t, v, at)+"="+base64.RawURLEncoding.EncodeToString([]byte(forged)))
		if r.status != http.StatusBadRequest {
			t.Errorf("the forged sign-in %s answers %d", forged, r.status)
		}
	}
}

func cookieOf(t *testing.T, v *emptyBrowser, at *url.URL) string {
	t.Helper()
	v.get(v.h.url + "/v1/oidc/sign-in")
	for _, c := range v.client.Jar.Cookies(at) {
		if strings.Contains(c.Name, "-oidc") {
			return c.Name
		}
	}
	t.Fatal("there is no cookie of a sign-in")
	return ""
}

// A name that somebody chose at the provider does not make them another user.
func TestNobodyTakesOverAUserByANameAtTheProvider(t *testing.T) {
	t.Parallel()
	p := newHostileProvider(t)
	o := p.configured()
	o.CreateUsers = true
	h := newTestServer(t, withProvider(o))
	h.newPerson("ann")
	for _, u := range []contract.NewUser{{Name: "kim"}, {Name: "bob", Email: "Bob@corp.example"}, {Name: "bob-smith"}} {
		want[contract.Changed](h.call("POST", "/v1/users", u), 201)
	}
	n := 0
	signIn := func(claims map[string]any) (status int, body, who string) {
		n++
		claims["sub"] = fmt.Sprint("subject", n)
		p.says(claims)
		v := newEmptyBrowser(h)
		status, body = v.signIn(p)
		return status, body, v.who()
	}
	for claim, says := range map[string]string{
		"ann":              "ann has a password", // it is in use
		"admin":            "admin is an admin",
		"kim.":             "kim cannot be taken by name",
		"\u212aim":         "kim cannot be taken by name", // the sign of Kelvin becomes k
		"kim@evil.example": "kim cannot be taken by name",
		"bob@evil.example": "bob cannot be taken by name",
		"Bob.Smith":        "bob-smith cannot be taken by name",
	} {
		if status, body, who := signIn(map[string]any{"preferred_username": claim}); status != http.StatusUnauthorized || who != "" || !strings.Contains(body, says) {
			t.Errorf("%q answers %d %s, and is %q", claim, status, body, who)
		}
	}
	for claim, name := range map[string]string{"Kim": "kim", "bob@CORP.example": "bob", "eve@evil.example": "eve"} {
		if status, body, who := signIn(map[string]any{"preferred_username": claim, "email": strings.Repeat("x", 100_000) + "\x00"}); status != http.StatusSeeOther || who != name {
			t.Errorf("%q answers %d %s, and is %q", claim, status, body, who)
		}
	}
	if u := want[contract.User](h.call("GET", "/v1/users/eve", nil), 200); len(u.Email) > 0 {
		t.Errorf("eve has an address of %d bytes", len(u.Email))
	}

	// A deleted or disabled user is nobody, at once.
	p.says(map[string]any{"preferred_username": "dora", "sub": "dora"})
	v := newEmptyBrowser(h)
	v.signIn(p)
	gone := true
	want[contract.Changed](h.call("PUT", "/v1/users/dora", contract.UserChange{Disabled: &gone}), 200)
	if status, body := newEmptyBrowser(h).signIn(p); v.who() != "" || status != http.StatusUnauthorized || !strings.Contains(body, "disabled") {
		t.Errorf("a disabled user is %q, and signs in with %d %s", v.who(), status, body)
	}
	want[contract.Changed](h.call("DELETE", "/v1/users/dora", nil), 200)
	if status, _ := v.signIn(p); status != http.StatusSeeOther {
		t.Errorf("a person whose user was deleted answers %d", status)
	}
	records := want[contract.Audit](h.call("GET", "/v1/audit?action=user.create", nil), 200).Records
	if records[0].ObjectName != "dora" || records[0].Outcome != mariposa.AuditDone {
		t.Errorf("the person did not become a new user: %+v", records[0])
	}
}

// An address of an unverified account proves nothing.
func TestAnAddressMustBeVerified(t *testing.T) {
	t.Parallel()
	p := newHostileProvider(t)
	o := p.configured()
	o.UserClaim = "email"
	h := newTestServer(t, withProvider(o))
	want[contract.Changed](h.call("POST", "/v1/users", contract.NewUser{Name: "bob", Email: "bob@corp.example"}), 201)
	for _, verified := range []any{nil, false, "false", 1} {
		p.says(map[string]any{"email": "bob@corp.example", "email_verified": verified})
		if status, body := newEmptyBrowser(h).signIn(p); status != http.StatusUnauthorized || !strings.Contains(body, "has not verified") {
			t.Errorf("an address that is verified: %v answers %d %s", verified, status, body)
		}
	}
	p.says(map[string]any{"email": "bob@corp.example", "email_verified": true})
	v := newEmptyBrowser(h)
	if status, body := v.signIn(p); status != http.StatusSeeOther || v.who() != "bob" {
		t.Errorf("a verified address answers %d %s", status, body)
	}
}

// Groups at the provider decide at each sign-in who belongs to an organization.
func TestGroupsAtTheProviderGiveRoles(t *testing.T) {
	t.Parallel()
	p := newHostileProvider(t)
	o := p.configured()
	o.GroupsClaim, o.CreateUsers = "groups", true
	for _, text := range []string{"/eng=acme", "leads=acme:owner", "cn=ops,dc=x=tools:member", "eng=missing", "eng=ann"} {
		g, err := api.ParseOIDCGroup(text)
		if err != nil {
			t.Fatal(err)
		}
		o.Groups = append(o.Groups, g)
	}
	h := newTestServer(t, withProvider(o))
	for _, name := range []string{"acme", "tools"} {
		want[contract.Changed](h.call("POST", "/v1/organizations", contract.NewOrganization{Name: name}), 201)
	}
	want[contract.Changed](h.call("POST", "/v1/projects?name=shop&organization=acme", "services: {web: {compute_type: dummy}}"), 201)
	signIn := func(groups any) map[string]string {
		t.Helper()
		p.says(map[string]any{"groups": groups})
		v := newEmptyBrowser(h)
		if status, body := v.signIn(p); status != http.StatusSeeOther {
			t.Fatalf("a sign-in answers %d %s", status, body)
		}
		roles := map[string]string{}
		for _, name := range []string{"acme", "tools"} {
			for _, m := range want[contract.Members](h.call("GET", "/v1/organizations/"+name+"/members", nil), 200).Members {
				if m.UserName == "ann" {
					roles[name] = m.Role
				}
			}
		}
		return roles
	}
	for _, c := range []struct {
		groups any
		want   map[string]string
	}{
		{[]string{"/eng", "other"}, map[string]string{"acme": "member"}},
		{[]string{"/eng", "leads", "cn=ops,dc=x"}, map[string]string{"acme": "owner", "tools": "member"}},
		{"leads", map[string]string{"acme": "owner"}},
		{[]any{1, nil, "/eng"}, map[string]string{"acme": "member"}},
	} {
		if got := signIn(c.groups); !maps.Equal(got, c.want) {
			t.Errorf("the groups %v give %v, not %v", c.groups, got, c.want)
		}
	}
	want[contract.Changed](h.call("PUT", "/v1/projects/shop/users/ann?organization=acme", contract.MemberChange{Role: "operator"}), 200)
	if got := signIn(nil); len(got) > 0 {
		t.Errorf("without groups, ann is %v", got)
	}
	for _, m := range want[contract.Members](h.call("GET", "/v1/projects/shop/users?organization=acme", nil), 200).Members {
		if m.UserName == "ann" {
			t.Errorf("ann has left, and is still %s of a project", m.Role)
		}
	}
	if records := want[contract.Audit](h.call("GET", "/v1/audit?action=member.remove", nil), 200).Records; len(records) != 2 || records[0].Reason != "ann leaves, by groups at the provider" || records[0].ActorName != "ann" {
		t.Errorf("the audit log has %+v", records)
	}
	p.says(map[string]any{"_claim_names": map[string]any{"groups": "src1"}, "_claim_sources": map[string]any{"src1": map[string]any{"endpoint": "https://elsewhere.example"}}})
	if status, _ := newEmptyBrowser(h).signIn(p); status != http.StatusUnauthorized {
		t.Errorf("too many groups answer %d", status)
	}

	// The last owner stays.
	signIn([]string{"leads"})
	want[contract.Changed](h.call("DELETE", "/v1/organizations/acme/members/admin", nil), 200)
	if got := signIn(nil); got["acme"] != "owner" || !strings.Contains(h.logs.String(), "[acme ann missing]") {
		t.Errorf("the last owner is %v", got)
	}
	for _, wrong := range []string{"", "eng", "=acme", "eng=", "eng=acme:admin", "eng=Acme Inc"} {
		if g, err := api.ParseOIDCGroup(wrong); err == nil {
			t.Errorf("%q is %+v", wrong, g)
		}
	}
}
