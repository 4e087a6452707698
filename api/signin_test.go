package api_test

import (
	"fmt"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"mariposa"
	"mariposa/contract"
)

const horse = "correct horse battery"

// browser is a person who is signed in to the web page.
type browser struct {
	*testServer
	cookie string
}

// signIn signs a person in, and checks the cookie.
func (h *testServer) signIn(in contract.SignIn) browser {
	h.t.Helper()
	r := h.as("").call("POST", "/v1/sessions", in, "Authorization", "", "Sec-Fetch-Site", "same-origin")
	want[contract.Session](r, 201)
	set, err := http.ParseSetCookie(r.header.Get("Set-Cookie"))
	if err != nil || !set.HttpOnly || set.SameSite != http.SameSiteStrictMode || set.Path != "/" || set.Secure || set.Domain != "" || set.MaxAge <= 0 {
		h.t.Fatalf("the cookie is %s (%v)", r.header.Get("Set-Cookie"), err)
	}
	if strings.Contains(string(r.body), set.Value) {
		h.t.Fatalf("scripts of the page can read the secret: %s", r.body)
	}
	return browser{h, set.Name + "=" + set.Value}
}

// call sends a request as the page does.
func (b browser) call(method, path string, body any, headers ...string) reply {
	b.t.Helper()
	return b.testServer.call(method, path, body, append([]string{"Authorization", "", "Cookie", b.cookie, "Sec-Fetch-Site", "same-origin"}, headers...)...)
}

// newPerson creates a user with a password.
func (h *testServer) newPerson(name string) contract.Changed {
	h.t.Helper()
	c := want[contract.Changed](h.call("POST", "/v1/users", contract.NewUser{Name: name}), 201)
	want[contract.Changed](h.call("PUT", "/v1/users/"+name+"/password", contract.Password{Password: horse}), 200)
	return c
}

func TestAPersonSignsInByPasswordAndOut(t *testing.T) {
	t.Parallel()
	h := newTestServer(t)
	ann := h.newPerson("ann")
	b := h.signIn(contract.SignIn{User: "ann", Password: horse})
	who := want[contract.Whoami](b.call("GET", "/v1/user", nil), 200)
	if who.ID != ann.ID || who.Token.Use != mariposa.TokenSession || who.Token.Expires == nil {
		t.Errorf("the session is %+v", who)
	}
	if list := want[contract.Tokens](b.call("GET", "/v1/tokens", nil), 200).Tokens; len(list) != 1 || !list[0].Current {
		t.Errorf("the sessions are %+v", list)
	}
	secret := b.cookie[strings.IndexByte(b.cookie, '=')+1:]
	h.as(secret).call("GET", "/v1/user", nil).wantError(401, mariposa.Unauthorized) // only in a cookie
	b.testServer.call("GET", "/v1/user", nil, "Authorization", "", "Cookie", b.cookie[:strings.IndexByte(b.cookie, '=')]+"="+adminToken).wantError(401, mariposa.Unauthorized)

	if records := want[contract.Audit](h.call("GET", "/v1/audit?action=session.create", nil), 200).Records; len(records) != 1 || records[0].ActorName != "ann" || records[0].Reason != "by password" {
		t.Errorf("the audit log has %+v", records)
	}
	out := b.call("DELETE", "/v1/session", nil)
	want[contract.Changed](out, 200)
	if set, err := http.ParseSetCookie(out.header.Get("Set-Cookie")); err != nil || set.MaxAge >= 0 || set.Value != "" {
		t.Errorf("signing out leaves the cookie %s", out.header.Get("Set-Cookie"))
	}
	b.call("GET", "/v1/user", nil).wantError(401, mariposa.Unauthorized, "sign in again")
	h.call("DELETE", "/v1/session", nil).wantError(409, mariposa.Conflict)
}

func TestWrongPasswordsSayNothingAboutUsers(t *testing.T) {
	t.Parallel()
	h := newTestServer(t)
	h.newPerson("ann")
	want[contract.Changed](h.call("POST", "/v1/users", contract.NewUser{Name: "bob"}), 201) // without a password
	h.newPerson("cleo")
	gone := true
	want[contract.Changed](h.call("PUT", "/v1/users/cleo", contract.UserChange{Disabled: &gone}), 200)
	var said []string
	for _, in := range []contract.SignIn{
		{User: "ann", Password: "wrong horse battery"}, {User: "bob", Password: horse}, {User: "nobody", Password: horse}, {User: "cleo", Password: horse},
	} {
		r := h.as("").call("POST", "/v1/sessions", in, "Authorization", "")
		said = append(said, r.wantError(401, mariposa.Unauthorized).Message)
		if r.header.Get("Set-Cookie") != "" {
			t.Errorf("%s gets a cookie", in.User)
		}
	}
	for _, one := range said {
		if one != said[0] {
			t.Errorf("the answers differ: %q", said)
		}
	}
	for _, in := range []contract.SignIn{{}, {User: "ann"}, {Password: horse}, {User: "ann", Password: horse, Token: adminToken}, {Link: "x", Token: "y"}} {
		h.as("").call("POST", "/v1/sessions", in, "Authorization", "").wantError(400, mariposa.InvalidArgument)
	}
	records := want[contract.Audit](h.call("GET", "/v1/audit?action=login", nil), 200).Records
	if len(records) != 4 || records[0].Outcome != mariposa.AuditDenied {
		t.Errorf("the audit log has %+v", records)
	}
}

func TestGuessingPasswordsIsThrottled(t *testing.T) {
	t.Parallel()
	h := newTestServer(t, withClock(newStoppedClock()))
	h.newPerson("ann")
	for i := 0; ; i++ {
		r := h.as("").call("POST", "/v1/sessions", contract.SignIn{User: "ann", Password: "wrong horse battery"}, "Authorization", "")
		if r.status == 429 {
			r.wantError(429, mariposa.Throttled, "wait")
			if r.header.Get("Retry-After") == "" {
				t.Error("the answer does not say when to retry")
			}
			break
		}
		if r.wantError(401, mariposa.Unauthorized); i > 30 {
			t.Fatal("guessing is not throttled")
		}
	}
	// Without a check of the password, or guessing would go on.
	h.as("").call("POST", "/v1/sessions", contract.SignIn{User: "ann", Password: horse}, "Authorization", "").wantError(429, mariposa.Throttled)
	h.signIn(contract.SignIn{Token: adminToken}) // a token is not a guess
}

func TestASessionEndsWithItsTokenAndHasItsRestrictions(t *testing.T) {
	t.Parallel()
	h := newTestServer(t)
	made := want[contract.Token](h.call("POST", "/v1/tokens", contract.NewToken{Name: "laptop", Role: mariposa.RoleViewer, Expires: "1h"}), 201)
	b := h.signIn(contract.SignIn{Token: made.Secret})
	who := want[contract.Whoami](b.call("GET", "/v1/user", nil), 200)
	if who.Token.Role != mariposa.RoleViewer || who.Token.Expires == nil || who.Token.Expires.After(*made.Expires) {
		t.Errorf("the session is %+v", who.Token)
	}
	b.call("POST", "/v1/users", contract.NewUser{Name: "ann"}).wantError(403, mariposa.Forbidden)
	want[contract.Changed](h.call("DELETE", "/v1/tokens/laptop?cascade=true", nil), 200)
	b.call("GET", "/v1/user", nil).wantError(401, mariposa.Unauthorized)
	h.as("").call("POST", "/v1/sessions", contract.SignIn{Token: made.Secret}, "Authorization", "").wantError(401, mariposa.Unauthorized, "revoked")
}

func TestALinkSignsInOnce(t *testing.T) {
	t.Parallel()
	h := newTestServer(t)
	link := want[contract.Token](h.call("POST", "/v1/tokens", contract.NewToken{Name: "link", Use: mariposa.TokenLink}), 201)
	if d := link.Expires.Sub(link.Created); d != mariposa.LinkLifetime {
		t.Errorf("the link is valid for %s", d)
	}
	h.as(link.Secret).call("GET", "/v1/user", nil).wantError(401, mariposa.Unauthorized, "sign-in link")
	b := h.signIn(contract.SignIn{Link: link.Secret})
	if who := want[contract.Whoami](b.call("GET", "/v1/user", nil), 200); !who.Admin {
		t.Errorf("the session is that of %+v", who)
	}
	h.as("").call("POST", "/v1/sessions", contract.SignIn{Link: link.Secret}, "Authorization", "").wantError(401, mariposa.Unauthorized, "used before")
	h.as("").call("POST", "/v1/sessions", contract.SignIn{Link: adminToken}, "Authorization", "").wantError(401, mariposa.Unauthorized)
	h.as("").call("POST", "/v1/sessions", contract.SignIn{Token: link.Secret}, "Authorization", "").wantError(401, mariposa.Unauthorized)
	h.call("POST", "/v1/tokens", contract.NewToken{Name: "long", Use: mariposa.TokenLink, Expires: "48h"}).wantError(400, mariposa.InvalidArgument, "at most")
	h.call("POST", "/v1/tokens", contract.NewToken{Name: "other", Use: mariposa.TokenLink, Role: mariposa.RoleViewer}).wantError(400, mariposa.InvalidArgument)
}

// A page of another site can open a link too. It does not replace the session of somebody else.
func TestALinkDoesNotReplaceTheSessionOfAnother(t *testing.T) {
	t.Parallel()
	h := newTestServer(t)
	h.newPerson("eve")
	eve := h.as(want[contract.Token](h.call("POST", "/v1/tokens", contract.NewToken{Name: "eve", User: "eve"}), 201).Secret)
	link := want[contract.Token](eve.call("POST", "/v1/tokens", contract.NewToken{Name: "trap", Use: mariposa.TokenLink}), 201).Secret
	victim := h.signIn(contract.SignIn{Token: adminToken})
	victim.call("POST", "/v1/sessions", contract.SignIn{Link: link}).wantError(409, mariposa.Conflict, "you are signed in as admin, and this link is for eve")
	want[contract.Whoami](victim.call("GET", "/v1/user", nil), 200)
	own := want[contract.Token](h.call("POST", "/v1/tokens", contract.NewToken{Name: "own", Use: mariposa.TokenLink}), 201).Secret
	want[contract.Session](victim.call("POST", "/v1/sessions", contract.SignIn{Link: own}), 201)
	want[contract.Changed](victim.call("DELETE", "/v1/session", nil), 200)
	want[contract.Session](victim.call("POST", "/v1/sessions", contract.SignIn{Link: link}), 201) // the refusal has not used it up
}

// A page of another site cannot use the session of a browser, and cannot sign it in.
func TestPagesOfOtherSitesCannotUseASession(t *testing.T) {
	t.Parallel()
	h := newTestServer(t)
	b := h.signIn(contract.SignIn{Token: adminToken})
	own := "http://" + strings.TrimPrefix(h.url, "http://")
	for _, c := range []struct {
		method, site, origin string
		ok                   bool
	}{
		{"POST", "same-origin", own, true},
		{"POST", "cross-site", "https://evil.example", false},
		{"POST", "same-site", "https://other.example.com", false}, // a neighbour under the same domain
		{"POST", "none", "", false},
		{"POST", "", "https://evil.example", false}, // an old browser, or a server without TLS
		{"POST", "", "null", false},
		{"POST", "", "", false},
		{"POST", "", own, true},
		{"GET", "same-origin", "", true},
		{"GET", "none", "", true},
		{"GET", "", "", true},
		{"GET", "cross-site", "", false},
		{"GET", "", "https://evil.example", false}, // a WebSocket
	} {
		path, body := "/v1/tokens", any(nil)
		status := 200
		if c.method == "POST" {
			body, status = contract.NewToken{Name: c.site + c.origin, Use: mariposa.TokenLink}, 201
		}
		headers := []string{"Sec-Fetch-Site", c.site}
		if c.origin != "" {
			headers = append(headers, "Origin", c.origin)
		}
		r := b.call(c.method, path, body, headers...)
		if c.ok && r.status != status {
			t.Errorf("%+v answers %d %s", c, r.status, r.body)
		}
		if !c.ok {
			r.wantError(403, mariposa.Forbidden, "another site")
		}
	}
	h.as("").call("POST", "/v1/sessions", contract.SignIn{Token: adminToken}, "Authorization", "", "Origin", "https://evil.example").wantError(403, mariposa.Forbidden)
	// A request with a token is not sent by a browser on its own.
	want[contract.Tokens](h.call("GET", "/v1/tokens", nil, "Sec-Fetch-Site", "cross-site"), 200)
}

func TestAPasswordIsChangedByThosePermitted(t *testing.T) {
	t.Parallel()
	h := newTestServer(t)
	h.newPerson("ann")
	want[contract.Changed](h.call("POST", "/v1/users", contract.NewUser{Name: "bob"}), 201)
	annToken := want[contract.Token](h.call("POST", "/v1/tokens", contract.NewToken{Name: "a", User: "ann"}), 201).Secret
	bobToken := want[contract.Token](h.call("POST", "/v1/tokens", contract.NewToken{Name: "b", User: "bob"}), 201).Secret
	const next = "staple battery horse"
	first, second := h.signIn(contract.SignIn{User: "ann", Password: horse}), h.signIn(contract.SignIn{User: "ann", Password: horse})

	h.as(bobToken).call("PUT", "/v1/password", contract.Password{Password: next}).wantError(409, mariposa.Conflict, "ask an admin")
	h.as(bobToken).call("PUT", "/v1/users/ann/password", contract.Password{Password: next}).wantError(404, mariposa.ResourceNotFound)
	h.as(annToken).call("PUT", "/v1/password", contract.Password{Password: next}).wantError(409, mariposa.Conflict, "current password")
	first.call("PUT", "/v1/password", contract.Password{Password: next, Current: "wrong horse battery"}).wantError(409, mariposa.Conflict, "wrong")
	first.call("PUT", "/v1/password", contract.Password{Password: "short", Current: horse}).wantError(400, mariposa.InvalidArgument, "too short")
	want[contract.Changed](first.call("PUT", "/v1/password", contract.Password{Password: next, Current: horse}), 200)
	want[contract.Whoami](first.call("GET", "/v1/user", nil), 200)
	second.call("GET", "/v1/user", nil).wantError(401, mariposa.Unauthorized) // somebody may have stolen it
	h.as("").call("POST", "/v1/sessions", contract.SignIn{User: "ann", Password: horse}, "Authorization", "").wantError(401, mariposa.Unauthorized)
	third := h.signIn(contract.SignIn{User: "ann", Password: next})
	want[contract.Changed](h.call("DELETE", "/v1/users/ann/password", nil), 200)
	third.call("GET", "/v1/user", nil).wantError(401, mariposa.Unauthorized)
	h.call("DELETE", "/v1/users/ann/password", nil).wantError(409, mariposa.Conflict)

	for _, secret := range []string{"$argon2id", horse, next} {
		for _, path := range []string{"/v1/users/ann", "/v1/users", "/v1/audit", "/v1/events?since=0&limit=1000"} {
			if r := h.call("GET", path, nil); strings.Contains(string(r.body), secret) {
				t.Errorf("%s shows %s", path, secret)
			}
		}
		if strings.Contains(h.logs.String(), secret) {
			t.Errorf("the log contains %s", secret)
		}
	}
}

// Over TLS, the cookie is never sent without it.
func TestTheCookieIsSecureBehindATrustedProxyWithTLS(t *testing.T) {
	t.Parallel()
	h := newTestServer(t, trusting("127.0.0.1"))
	r := h.as("").call("POST", "/v1/sessions", contract.SignIn{Token: adminToken}, "Authorization", "", "X-Forwarded-Proto", "https")
	want[contract.Session](r, 201)
	set, err := http.ParseSetCookie(r.header.Get("Set-Cookie"))
	if err != nil || !set.Secure || !strings.HasPrefix(set.Name, "__Host-") {
		t.Fatalf("the cookie is %s (%v)", r.header.Get("Set-Cookie"), err)
	}
	b := browser{h, set.Name + "=" + set.Value}
	want[contract.Whoami](b.call("GET", "/v1/user", nil, "X-Forwarded-Proto", "https"), 200)
	b.call("GET", "/v1/user", nil).wantError(401, mariposa.Unauthorized)
}

// A user has a bounded number of sessions: a new one ends the oldest.
func TestOldSessionsMakeRoom(t *testing.T) {
	t.Parallel()
	h := newTestServer(t)
	first := h.signIn(contract.SignIn{Token: adminToken})
	for range 100 {
		h.signIn(contract.SignIn{Token: adminToken})
	}
	first.call("GET", "/v1/user", nil).wantError(401, mariposa.Unauthorized)
	n := 0
	for _, one := range want[contract.Tokens](h.call("GET", "/v1/tokens", nil), 200).Tokens {
		if one.Use == mariposa.TokenSession && one.Created.Before(time.Now().Add(time.Hour)) {
			n++
		}
	}
	if n != 100 {
		t.Errorf("there are %d sessions", n)
	}
}

// Links that nobody has used do not add up.
func TestExpiredLinksAreDeletedWithTheNext(t *testing.T) {
	t.Parallel()
	later := &shiftedClock{}
	h := newTestServer(t, withClock(later))
	first := want[contract.Token](h.call("POST", "/v1/tokens", contract.NewToken{Name: "first", Use: mariposa.TokenLink}), 201)
	later.turn(time.Hour)
	h.as("").call("POST", "/v1/sessions", contract.SignIn{Link: first.Secret}, "Authorization", "").wantError(401, mariposa.Unauthorized, "has expired")
	want[contract.Token](h.call("POST", "/v1/tokens", contract.NewToken{Name: "second", Use: mariposa.TokenLink}), 201)
	for _, one := range want[contract.Tokens](h.call("GET", "/v1/tokens", nil), 200).Tokens {
		if one.Name == "first" {
			t.Errorf("the expired link is still there: %+v", one)
		}
	}
}

// Sessions are in the store: a person who signed in at one replica, or before a restart, is
// signed in at all of them.
func TestEveryReplicaAcceptsASession(t *testing.T) {
	t.Parallel()
	h := newTestServer(t)
	other := h.restart()
	h.newPerson("ann")
	b := h.signIn(contract.SignIn{User: "ann", Password: horse})
	there := browser{other, b.cookie}
	other.until("the other replica to accept the session", func() bool { return there.call("GET", "/v1/user", nil).status == 200 })
	want[contract.Changed](there.call("DELETE", "/v1/session", nil), 200)
	h.until("the session to end everywhere", func() bool { return b.call("GET", "/v1/user", nil).status == 401 })
}

// Of several people who know the same password, only one changes it: the others proved a
// password that is no longer in force.
func TestOnlyOneOfSeveralChangesOfAPasswordSucceeds(t *testing.T) {
	t.Parallel()
	h := newTestServer(t)
	h.newPerson("ann")
	var all sync.WaitGroup
	var changes, refusals atomic.Int32
	token := want[contract.Token](h.call("POST", "/v1/tokens", contract.NewToken{Name: "a", User: "ann"}), 201).Secret // it does not end with the password
	for n := range 4 {
		all.Go(func() {
			switch h.as(token).call("PUT", "/v1/password", contract.Password{Password: fmt.Sprintf("staple battery horse %d", n), Current: horse}).status {
			case http.StatusOK:
				changes.Add(1)
			case http.StatusConflict:
				refusals.Add(1)
			}
		})
	}
	all.Wait()
	if changes.Load() != 1 || refusals.Load() != 3 {
		t.Errorf("%d changes, %d refusals", changes.Load(), refusals.Load())
	}
}
