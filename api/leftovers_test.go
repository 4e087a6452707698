package api_test

import (
	"strings"
	"testing"
	"time"

	"mariposa"
	"mariposa/contract"
)

func TestHealthChecksAreListedByService(t *testing.T) {
	t.Parallel()
	w := newTestTeams(t)
	vera := w.asUser("vera")
	all := want[contract.HealthChecks](vera.call("GET", "/v1/projects/"+w.shop.ID+"/healthchecks", nil), 200).Services
	if len(all) != 2 || all[0].ServiceName != "db" || all[1].ServiceName != "web" || all[1].ProjectName != "shop" || all[1].HealthChecks == nil || len(all[1].HealthChecks) != 0 || len(all[1].Instances) != 0 {
		t.Errorf("listed: %+v", all)
	}
	one := want[contract.HealthChecks](vera.call("GET", "/v1/projects/"+w.shop.ID+"/services/web/healthchecks", nil), 200).Services
	if len(one) != 1 || one[0].Service != all[1].Service || one[0].Version == "" {
		t.Errorf("of web: %+v", one)
	}
	vera.call("GET", "/v1/projects/"+w.shop.ID+"/services/none/healthchecks", nil).wantError(404, mariposa.ResourceNotFound, "none")
}

func TestATokenBoundToAProjectSaysThatItMakesNone(t *testing.T) {
	t.Parallel()
	w := newTestTeams(t)
	bound := w.as(want[contract.Token](w.asUser("olga").call("POST", "/v1/tokens", contract.NewToken{Name: "ci", Project: w.shop.ID}), 201).Secret)
	const says = "this token is restricted to project shop and can neither create projects nor move that one"
	for name, r := range map[string]reply{
		"a copy":           bound.call("POST", "/v1/projects/shop/copy", contract.Copy{Name: "twin"}),
		"a copy elsewhere": bound.call("POST", "/v1/projects/shop/copy", contract.Copy{Name: "twin", Organization: "umbra"}),
		"a new one":        bound.call("POST", "/v1/projects?name=twin", hello),
		"a move":           bound.call("POST", "/v1/projects/shop/move", contract.Move{Organization: "olga"}),
	} {
		if f := r.wantError(403, mariposa.Forbidden, says); strings.Contains(f.Message, w.acme) || strings.Contains(f.Message, "umbra") {
			t.Errorf("%s: the error reveals other organizations: %s", name, f.Message)
		}
	}
	ghost := w.as(w.forge(mariposa.TokenSpec{User: w.users["sam"], Name: "lost", Project: w.shop.ID}))
	f := ghost.call("POST", "/v1/projects?name=twin", hello).wantError(403, mariposa.Forbidden, "restricted to one project")
	if strings.Contains(f.Message, "shop") {
		t.Errorf("it names a project that its user may not see: %s", f.Message)
	}
	if denied := w.audit("?outcome=denied&project=" + w.shop.ID); len(denied) != 4 {
		t.Errorf("who owns shop reads of %d tries", len(denied))
	}
}

func TestATokenThatIsNoLongerGoodSaysWhy(t *testing.T) {
	t.Parallel()
	now := &shiftedClock{}
	w := newTestTeams(t, withClock(now))
	mint := func(name, expires string) (*testServer, contract.Token) {
		made := want[contract.Token](w.asUser("sam").call("POST", "/v1/tokens", contract.NewToken{Name: name, Expires: expires}), 201)
		return w.as(made.Secret), made
	}
	short, made := mint("short", "1h")
	revoked, _ := mint("revoked", "")
	want[contract.User](short.call("GET", "/v1/users/sam", nil), 200)
	want[contract.Changed](w.asUser("sam").call("DELETE", "/v1/tokens/revoked", nil), 200)
	now.turn(2 * time.Hour)
	refused := func(h *testServer, words ...string) {
		t.Helper()
		h.call("GET", "/v1/projects", nil).wantError(401, mariposa.Unauthorized, words...)
	}
	refused(short, "this token expired on "+made.Expires.UTC().Format("2006-01-02"))
	refused(revoked, "this token was revoked on ")
	refused(w.as("mrp_nobody-ever-had-this"), "this token is unknown")
	refused(w.as(joinToken), "is a join token")
	refused(w.as(""), "a valid token is required")
	want[contract.Changed](w.call("PUT", "/v1/users/max", []byte(`{"disabled":true}`)), 200)
	refused(w.asUser("max"), "disabled")
	for _, one := range want[contract.Tokens](w.asUser("sam").call("GET", "/v1/tokens", nil), 200).Tokens {
		if one.Name == "revoked" {
			t.Error("a revoked token is still listed")
		}
	}
	if again := want[contract.Token](w.asUser("sam").call("POST", "/v1/tokens", contract.NewToken{Name: "revoked"}), 201); again.Name != "revoked" {
		t.Errorf("its name is not free again: %+v", again)
	}
}

func TestAVersionSaysHowMuchRunsWithWhatWasBefore(t *testing.T) {
	t.Parallel()
	h := newTestServer(t, withPlanner)
	h.join("n1")
	h.create("shop", "services:\n  web: {compute_type: dummy, scale: 2, environment: {MODE: '{{ .meta.mode }}'}, update: {min_healthy: 0}}\nmetadata: {mode: {default: calm}}\n")
	h.awaitRest("shop")
	want[contract.Changed](h.set("mode", "wild"), 200)
	newest := func() contract.Version {
		return want[contract.Versions](h.call("GET", "/v1/projects/shop/versions", nil), 200).Versions[0]
	}
	h.until("the version to count as completed, with all outdated", func() bool { v := newest(); return v.Number == 2 && v.Completed && v.Outdated == 2 })
	if v := want[contract.Version](h.call("GET", "/v1/projects/shop/versions/1", nil), 200); v.Outdated != 0 {
		t.Errorf("a former version: %+v", v)
	}
	h.startTask("shop", `{"action":"reprovision"}`)
	h.until("nothing to be outdated", func() bool { return newest().Outdated == 0 })
}
