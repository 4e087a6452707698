package api_test

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"mariposa"
	"mariposa/contract"
	"mariposa/store"
)

// mintBy creates a token with the current token.
func (h *testServer) mintBy(ask contract.NewToken) contract.Token {
	h.t.Helper()
	return want[contract.Token](h.call("POST", "/v1/tokens", ask), http.StatusCreated)
}

func (h *testServer) lets(token string, in bool) {
	h.t.Helper()
	r := h.as(token).call("GET", "/v1/user", nil)
	if (r.status == 200) != in || (!in && r.status != 401) {
		h.t.Errorf("a token whose validity should be %v got %d %s", in, r.status, r.body)
	}
}

// A short-lived token cannot be used to get longer access.
func TestNoTokenOutlivesItsMaker(t *testing.T) {
	t.Parallel()
	now := &shiftedClock{}
	w := newTestTeams(t, withClock(now))
	hour := w.mintBy(contract.NewToken{Name: "hour", Expires: "1h"})
	short := w.as(hour.Secret)
	want[contract.Changed](short.call("POST", "/v1/users", contract.NewUser{Name: "evil", Admin: true}), 201)
	made := map[string]contract.Token{
		"for oneself":           short.mintBy(contract.NewToken{Name: "longer"}),
		"for oneself, for days": short.mintBy(contract.NewToken{Name: "days", Expires: "90d"}),
		"for another":           short.mintBy(contract.NewToken{Name: "other", User: "sam"}),
		"with bounds":           short.mintBy(contract.NewToken{Name: "bound", Organization: "admin", Role: mariposa.RoleAdmin}),
		"by acting for another": want[contract.Token](short.call("POST", "/v1/users/olga/tokens", contract.NewToken{Name: "acting"}), 201),
		"of a user made for it": short.mintBy(contract.NewToken{Name: "evil", User: "evil"}),
		"for nodes":             short.mintBy(contract.NewToken{Name: "nodes", Use: mariposa.TokenJoin, Expires: "90d"}),
	}
	made["of a token of that user"] = w.as(made["of a user made for it"].Secret).mintBy(contract.NewToken{Name: "evil2", Expires: "90d"})
	made["for the first user"] = w.as(made["of a user made for it"].Secret).mintBy(contract.NewToken{Name: "evil3", User: "admin"})
	for way, one := range made {
		if one.Expires == nil || one.Expires.After(*hour.Expires) {
			t.Errorf("%s: it expires at %v, its maker at %v", way, one.Expires, hour.Expires)
		}
		if one.Use != mariposa.TokenJoin {
			w.lets(one.Secret, true)
		}
	}
	now.turn(time.Hour + time.Second)
	for _, one := range made {
		w.lets(one.Secret, false)
	}
	w.lets(w.keys["olga"], true)
}

// Revoking a token with cascade also revokes its descendants, in one commit.
func TestRevokingATokenRevokesWhatItMade(t *testing.T) {
	t.Parallel()
	w := newTestTeams(t)
	root := w.mintBy(contract.NewToken{Name: "root"})
	olga := w.as(root.Secret).mintBy(contract.NewToken{Name: "laptop", User: "olga"})
	ci := w.as(olga.Secret).mintBy(contract.NewToken{Name: "ci", Project: w.shop.ID, Role: mariposa.RoleDeployer})
	less := w.as(ci.Secret).mintBy(contract.NewToken{Name: "less", Project: w.shop.ID, Role: mariposa.RoleViewer})
	acting := want[contract.Token](w.as(root.Secret).call("POST", "/v1/users/sam/tokens", contract.NewToken{Name: "acting"}), 201)
	join := w.as(root.Secret).mintBy(contract.NewToken{Name: "join", Use: mariposa.TokenJoin})
	all := []contract.Token{root, olga, ci, less, acting}

	// A restricted token can manage its descendants, but not its parent or siblings.
	w.as(less.Secret).call("DELETE", "/v1/tokens/"+ci.ID+"?cascade=true", nil).wantError(404, mariposa.ResourceNotFound)
	w.as(ci.Secret).call("DELETE", "/v1/tokens/"+olga.ID+"?cascade=true", nil).wantError(404, mariposa.ResourceNotFound)
	w.as(ci.Secret).call("GET", "/v1/tokens/"+root.ID, nil).wantError(404, mariposa.ResourceNotFound)

	w.call("DELETE", "/v1/tokens/"+root.ID, nil).wantError(409, mariposa.Conflict, "laptop of olga", "acting of sam", "join for nodes", "--yes")
	w.as(olga.Secret).call("DELETE", "/v1/tokens/"+ci.ID, nil).wantError(409, mariposa.Conflict, "less of olga")
	for _, one := range all {
		w.lets(one.Secret, true)
	}
	tree := want[contract.Token](w.call("GET", "/v1/tokens/"+root.ID, nil), 200)
	var names []string
	var walk func(contract.Token, string)
	walk = func(one contract.Token, path string) {
		names = append(names, path+one.Name)
		for _, m := range one.Made {
			walk(m, path+one.Name+"/")
		}
	}
	walk(tree, "")
	if got := strings.Join(names, " "); got != "root root/laptop root/laptop/ci root/laptop/ci/less root/acting root/join" {
		t.Errorf("it made %s", got)
	}

	r := w.call("DELETE", "/v1/tokens/"+root.ID+"?cascade=true", nil)
	if done := want[contract.Changed](r, 200); done.Reason != "5 tokens that it created revoked too" {
		t.Errorf("revoked: %+v", done)
	}
	for _, one := range all {
		w.lets(one.Secret, false)
	}
	ended := map[string]bool{}
	for _, a := range w.audit("?limit=50&action=token.revoke&outcome=done") {
		ended[a.ObjectName] = a.Request == r.header.Get("X-Request-Id")
	}
	if len(ended) != 6 || slices.Contains([]bool{ended["root"], ended["laptop"], ended["ci"], ended["less"], ended["acting"], ended["join"]}, false) {
		t.Errorf("revoked by one request according to the audit log: %v", ended)
	}
	if err := w.tryJoin("n8", "host-n8", "a-key-that-is-long", join.Secret); err == nil || !strings.Contains(err.Error(), "was revoked on") {
		t.Errorf("a node joined with a revoked token: %v", err)
	}
	// A token created at the same time on another replica is revoked too.
	w.lets(w.forge(mariposa.TokenSpec{User: w.users["olga"], Parent: root.ID}), false)
	w.lets(w.keys["olga"], true)
}

// Another token can adopt the tokens that a token created, so that it can be replaced.
func TestWhatATokenMadeCanBeTakenOver(t *testing.T) {
	t.Parallel()
	w := newTestTeams(t)
	old := w.mintBy(contract.NewToken{Name: "old"})
	olga := w.as(old.Secret).mintBy(contract.NewToken{Name: "laptop", User: "olga"})
	ci := w.as(olga.Secret).mintBy(contract.NewToken{Name: "ci"})
	child := w.as(old.Secret).mintBy(contract.NewToken{Name: "child"})
	adopt := contract.TokenAction{Action: "adopt"}
	w.as(old.Secret).call("PUT", "/v1/tokens/"+old.ID, adopt).wantError(409, mariposa.Conflict, "created by it")
	w.as(child.Secret).call("PUT", "/v1/tokens/"+old.ID, adopt).wantError(409, mariposa.Conflict, "created by it")
	w.as(olga.Secret).call("PUT", "/v1/tokens/"+old.ID, adopt).wantError(403, mariposa.Forbidden)
	hour := w.mintBy(contract.NewToken{Name: "hour", Expires: "1h"})
	if done := want[contract.Changed](w.as(hour.Secret).call("PUT", "/v1/tokens/"+old.ID, adopt), 200); done.Reason != "2 tokens adopted" {
		t.Errorf("taken over: %+v", done)
	}
	want[contract.Changed](w.call("DELETE", "/v1/tokens/"+old.ID, nil), 200)
	w.lets(old.Secret, false)
	for _, one := range []contract.Token{olga, ci, child} {
		w.lets(one.Secret, true)
	}
	if got := want[contract.Token](w.call("GET", "/v1/tokens/"+olga.ID, nil), 200); got.ParentName != "hour" || got.Expires == nil || got.Expires.After(*hour.Expires) {
		t.Errorf("taken over, it is %+v", got)
	}
}

// Two concurrent adoptions of each other's parents do not create a cycle, in which no
// token would be valid.
func TestTokensThatAreTakenOverFormNoRing(t *testing.T) {
	t.Parallel()
	crossed := &interferingStore{}
	w := newTestTeams(t, withStore(func(s store.Store) store.Store { crossed.Store = s; return crossed }))
	line := func(name string, length int) (made []contract.Token) {
		by := w.testServer
		for i := range length {
			made = append(made, by.mintBy(contract.NewToken{Name: fmt.Sprint(name, i)}))
			by = w.as(made[i].Secret)
		}
		return made
	}
	one, other := line("one", 3), line("other", 3)
	once := false
	crossed.interfere(func(u store.Unit) {
		if once || !slices.ContainsFunc(u.Writes, func(x store.Write) bool { return x.ID == other[1].ID && x.Spec != nil }) {
			return
		}
		once = true
		spec := *w.picture.Tokens.Get(one[1].ID).Spec()
		spec.Parent = other[2].ID
		crossed.Store.Commit(t.Context(), store.Unit{Writes: []store.Write{{Kind: mariposa.KindToken, ID: one[1].ID, Spec: &spec}}})
	})
	w.as(one[2].Secret).call("PUT", "/v1/tokens/"+other[0].ID, contract.TokenAction{Action: "adopt"}).wantError(409, mariposa.Conflict, "created by it")
	if !once {
		t.Error("the concurrent change did not happen")
	}
	for _, token := range append(one, other...) {
		w.lets(token.Secret, true)
	}
}

// An installation admin who created tokens for others does not keep access after being
// disabled.
func TestWhoIsShutOutLeavesNoTokensBehind(t *testing.T) {
	t.Parallel()
	for _, way := range []string{"disable", "delete"} {
		w := newTestTeams(t)
		want[contract.Changed](w.call("POST", "/v1/users", contract.NewUser{Name: "boss", Admin: true}), 201)
		boss := w.as(w.mint(contract.NewToken{Name: "first", User: "boss"}))
		back := boss.mintBy(contract.NewToken{Name: "backdoor", User: "sam"}).Secret
		yes, no := true, false
		end := func(query string) reply {
			if way == "delete" {
				return w.call("DELETE", "/v1/users/boss"+query, nil)
			}
			return w.call("PUT", "/v1/users/boss"+query, contract.UserChange{Disabled: &yes})
		}
		end("").wantError(409, mariposa.Conflict, "backdoor of sam", "--yes")
		w.lets(back, true)
		want[contract.Changed](end("?cascade=true"), 200)
		w.lets(back, false)
		w.lets(w.keys["sam"], true)
		if way == "disable" {
			want[contract.Changed](w.call("PUT", "/v1/users/boss", contract.UserChange{Disabled: &no}), 200)
			w.lets(back, true)
		}
	}
}

// revokingStore runs a function between the check of the caller and the commit.
type revokingStore struct {
	store.Store
	before atomic.Pointer[func()]
}

func (s *revokingStore) Get(ctx context.Context, kind mariposa.Kind, id string) (store.Record, error) {
	if run := s.before.Load(); run != nil && kind == mariposa.KindAnswer {
		(*run)()
	}
	return s.Store.Get(ctx, kind, id)
}

// A token that is revoked on another replica while it creates a token leaves no valid
// token.
func TestATokenThatIsRevokedMeanwhileMakesNone(t *testing.T) {
	t.Parallel()
	s := &revokingStore{}
	w := newTestTeams(t, withStore(func(of store.Store) store.Store { s.Store = of; return s }))
	other := w.restart()
	for _, use := range []mariposa.TokenUse{mariposa.TokenUser, mariposa.TokenJoin} {
		maker := w.mintBy(contract.NewToken{Name: "maker-" + string(use)})
		looks := 0
		other.until("the token", func() bool { return other.picture.Tokens.Get(maker.ID) != nil })
		revoke := func() {
			if looks++; looks < 2 { // the first is before anything else
				return
			}
			s.before.Store(nil)
			want[contract.Changed](other.call("DELETE", "/v1/tokens/"+maker.ID, nil), 200)
			w.until("the revocation", func() bool { return w.picture.Tokens.Get(maker.ID) == nil })
		}
		s.before.Store(&revoke)
		r := w.as(maker.Secret).call("POST", "/v1/tokens", contract.NewToken{Name: "made-" + string(use), Use: use}, "Idempotency-Key", "once")
		r.wantError(401, mariposa.Unauthorized, "no longer valid")
	}
}

// When a user is no longer an installation admin, the tokens that they created for
// others and their join tokens stop working.
func TestWhoNoLongerRunsTheInstallationKeepsNoTokenOfOthers(t *testing.T) {
	t.Parallel()
	w := newTestTeams(t)
	want[contract.Changed](w.call("POST", "/v1/users", contract.NewUser{Name: "eve", Admin: true}), 201)
	eve := w.as(w.mint(contract.NewToken{Name: "laptop", User: "eve"}))
	own, first, join := eve.mintBy(contract.NewToken{Name: "own"}), eve.mintBy(contract.NewToken{Name: "first", User: "admin"}), eve.mintBy(contract.NewToken{Name: "nodes", Use: mariposa.TokenJoin})
	below := w.as(first.Secret).mintBy(contract.NewToken{Name: "below"})
	no := false
	w.call("PUT", "/v1/users/eve", contract.UserChange{Admin: &no}).wantError(409, mariposa.Conflict, "first of admin", "nodes for nodes", "--yes")
	w.lets(first.Secret, true)
	want[contract.Changed](w.call("PUT", "/v1/users/eve?cascade=true", contract.UserChange{Admin: &no}), 200)
	w.lets(own.Secret, true)
	w.lets(first.Secret, false)
	w.lets(below.Secret, false)
	if err := w.tryJoin("a1", "node-a", nodeKey+"a", join.Secret); err == nil || w.picture.Nodes.Get("a1") != nil {
		t.Errorf("a node that comes with eve's join token: %v", err)
	}
	// For a user who is no longer an admin, this needs no cascade.
	want[contract.Changed](w.call("PUT", "/v1/users/eve", contract.UserChange{Admin: &no}), 200)
}
