package api_test

import (
	"fmt"
	"strings"
	"testing"

	"mariposa"
	"mariposa/contract"
)

// tooLong is refused without the work that other passwords take. It counts like any other.
var tooLong = strings.Repeat("é", 600)

// attempt tries to sign in from an address, behind a proxy.
func (h *testServer) attempt(from, user, password string) reply {
	h.t.Helper()
	return h.as("").call("POST", "/v1/sessions", contract.SignIn{User: user, Password: password}, "Authorization", "", "X-Forwarded-For", from)
}

// Strangers at many addresses use up the attempts to sign in as a user. That does not tell them
// who exists, and does not lock the user out of where they have been before.
func TestStrangersNeitherLockOutNorFindUsers(t *testing.T) {
	t.Parallel()
	h := newTestServer(t, trusting("127.0.0.1"), withClock(newStoppedClock()))
	h.newPerson("ann")
	const home = "198.51.100.7"
	r := h.attempt(home, "ann", horse)
	want[contract.Session](r, 201)
	b := browser{h, strings.Split(r.header.Get("Set-Cookie"), ";")[0]}
	want[contract.Whoami](b.call("GET", "/v1/user", nil, "X-Forwarded-For", home), 200)
	h.until("her address to be known", func() bool {
		all := want[contract.Tokens](b.call("GET", "/v1/tokens", nil, "X-Forwarded-For", home), 200).Tokens
		return len(all) == 1 && all[0].LastFrom == home
	})

	for _, name := range []string{"ann", "nobody"} {
		for n := 0; ; n++ {
			if r := h.attempt(fmt.Sprintf("203.0.113.%d", n), name, tooLong); r.status == 429 {
				break
			} else if r.wantError(401, mariposa.Unauthorized); n > 100 {
				t.Fatalf("guessing the password of %s is not throttled", name)
			}
		}
	}
	h.attempt("192.0.2.1", "somebody", tooLong).wantError(401, mariposa.Unauthorized)
	h.attempt("192.0.2.1", "admin", tooLong).wantError(401, mariposa.Unauthorized) // as for somebody who does not exist

	want[contract.Session](h.attempt(home, "ann", horse), 201)
	want[contract.Changed](b.call("POST", "/v1/session/proof", contract.Proof{Password: horse}, "X-Forwarded-For", "192.0.2.9"), 200)
}

// Many people sign in from one address: only failures count there.
func TestPeopleWhoShareAnAddressAllSignIn(t *testing.T) {
	t.Parallel()
	h := newTestServer(t, withClock(newStoppedClock()))
	h.newPerson("ann")
	for range 19 { // almost too many
		h.attempt("", "nobody", tooLong).wantError(401, mariposa.Unauthorized)
	}
	for range 3 {
		h.signIn(contract.SignIn{User: "ann", Password: horse})
	}
	p := newHostileProvider(t)
	h = newTestServer(t, withClock(newStoppedClock()), withProvider(p.configured()))
	want[contract.Changed](h.call("POST", "/v1/users", contract.NewUser{Name: "ann"}), 201)
	for range 25 {
		if status, body := newEmptyBrowser(h).signIn(p); status != 303 {
			t.Fatalf("a sign-in answers %d %s", status, body)
		}
	}
	for n := 0; ; n++ { // wrong codes count
		v := newEmptyBrowser(h)
		status, _, _ := v.get(strings.Replace(v.begin(p), "code=", "code=x", 1))
		if status == 429 {
			break
		}
		if status != 401 || n > 30 {
			t.Fatalf("wrong code %d answers %d", n, status)
		}
	}
}

// A disabled user who is enabled again has to sign in again. Somebody else may have their browser.
func TestADisabledUserHasNoSessionsLater(t *testing.T) {
	t.Parallel()
	h := newTestServer(t)
	h.newPerson("ann")
	b := h.signIn(contract.SignIn{User: "ann", Password: horse})
	for _, disabled := range []bool{true, false} {
		want[contract.Changed](h.call("PUT", "/v1/users/ann", contract.UserChange{Disabled: &disabled}), 200)
		b.call("GET", "/v1/user", nil).wantError(401, mariposa.Unauthorized)
	}
	h.signIn(contract.SignIn{User: "ann", Password: horse})
}
