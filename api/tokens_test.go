package api_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"mariposa"
	"mariposa/contract"
)

func TestATokenIsShownOnceAndKeptHashed(t *testing.T) {
	t.Parallel()
	now := &shiftedClock{}
	w := newTestTeams(t, withClock(now))
	sam := w.asUser("sam")
	r := sam.call("POST", "/v1/tokens", contract.NewToken{Name: "robot", Expires: "90d", Role: mariposa.RoleDeployer, Organization: "sam"})
	made := want[contract.Token](r, 201)
	if !strings.HasPrefix(made.Secret, "mrp_") || len(made.Secret) < 40 || made.OrganizationName != "sam" || made.UserName != "sam" || made.LastUsed != nil ||
		made.Expires == nil || made.Expires.Sub(made.Created).Round(time.Hour) != 90*24*time.Hour {
		t.Errorf("made: %+v", made)
	}
	for what, text := range map[string]string{
		"the list": string(sam.call("GET", "/v1/tokens", nil).body), "the store": string(w.everything()), "the log": w.logs.String(),
		"the audit": string(w.call("GET", "/v1/audit?limit=1000", nil).body), "the events": string(w.call("GET", "/v1/events?since=0&limit=1000", nil).body),
	} {
		if contains(text, made.Secret) || contains(text, strings.TrimPrefix(made.Secret, "mrp_")) {
			t.Errorf("%s contains the token", what)
		}
	}
	robot := w.as(made.Secret)
	who := want[contract.Whoami](robot.call("GET", "/v1/user", nil), 200)
	if who.Name != "sam" || who.Token.ID != made.ID || !who.Token.Current || who.Token.Role != mariposa.RoleDeployer {
		t.Errorf("who am I: %+v", who)
	}
	shown := func() contract.Token {
		for _, one := range want[contract.Tokens](sam.call("GET", "/v1/tokens", nil), 200).Tokens {
			if one.ID == made.ID {
				return one
			}
		}
		t.Fatal("it is not listed")
		return contract.Token{}
	}
	w.until("its use to be noted", func() bool { return shown().LastUsed != nil })
	used := *shown().LastUsed
	if shown().LastFrom != "127.0.0.1" || now.Now().Sub(used) > time.Minute || shown().Secret != "" {
		t.Errorf("used: %+v", shown())
	}
	now.turn(10 * time.Minute)
	want[contract.Whoami](robot.call("GET", "/v1/user", nil), 200)
	w.until("its next use to be noted", func() bool { return shown().LastUsed.Sub(used) >= 10*time.Minute })
	sam.call("POST", "/v1/tokens", contract.NewToken{Name: "robot"}).wantError(409, mariposa.Conflict, "robot")
	for _, expires := range []string{"yesterday", "-1h", "0s", "2001-01-01T00:00:00Z", "99999999d", "1y", "1e9h"} {
		sam.call("POST", "/v1/tokens", contract.NewToken{Name: "x", Expires: expires}).wantError(400, mariposa.InvalidArgument, "expires")
	}
}

// A token has the rights of its user within its restrictions, and cannot create a token
// with more rights or a later expiry.
func TestATokenHasBounds(t *testing.T) {
	t.Parallel()
	w := newTestTeams(t)
	olga := w.asUser("olga")
	mint := func(by *testServer, ask contract.NewToken) *testServer {
		t.Helper()
		return w.as(want[contract.Token](by.call("POST", "/v1/tokens", ask), 201).Secret)
	}
	second := want[contract.Changed](olga.call("POST", "/v1/projects?name=second&organization=acme", hello), 201)
	own := want[contract.Changed](olga.call("POST", "/v1/projects?name=own", hello), 201)
	sees := func(h *testServer) string {
		var names []string
		for _, p := range want[contract.Projects](h.call("GET", "/v1/projects", nil), 200).Projects {
			names = append(names, p.Name+" "+string(p.Role))
		}
		return strings.Join(names, ", ")
	}
	inAcme := mint(olga, contract.NewToken{Name: "acme", Organization: "acme"})
	ofShop := want[contract.Token](olga.call("POST", "/v1/tokens", contract.NewToken{Name: "shop", Project: w.shop.ID, Expires: "1h"}), 201)
	inShop := w.as(ofShop.Secret)
	deployer := mint(olga, contract.NewToken{Name: "ci", Role: mariposa.RoleDeployer})
	for name, c := range map[string]struct {
		h    *testServer
		sees string
	}{
		"of olga":         {olga, "shop admin, second admin, own admin"},
		"bound to acme":   {inAcme, "shop admin, second admin"},
		"bound to shop":   {inShop, "shop admin"},
		"bound to deploy": {deployer, "shop deployer, second deployer, own deployer"},
	} {
		if got := sees(c.h); got != c.sees {
			t.Errorf("a token %s sees %s", name, got)
		}
	}
	// Names are looked up in the organization of the token.
	if p := want[contract.Project](inAcme.call("GET", "/v1/projects/second", nil), 200); p.ID != second.ID {
		t.Errorf("second is %+v", p)
	}
	inAcme.call("GET", "/v1/projects/"+own.ID, nil).wantError(404, mariposa.ResourceNotFound)
	want[contract.Changed](deployer.call("PUT", "/v1/projects/"+second.ID+"/manifest?force=true", hello+"#\n"), 200)
	deployer.call("DELETE", "/v1/projects/"+second.ID, nil).wantError(403, mariposa.Forbidden, "token")

	for _, more := range []contract.NewToken{{Name: "x"}, {Name: "x", Organization: "olga"}, {Name: "x", Project: own.ID}, {Name: "x", Role: mariposa.RoleViewer}} {
		if r := inAcme.call("POST", "/v1/tokens", more); r.status != 403 && r.status != 404 {
			t.Errorf("bound to acme, it made %+v: %d %s", more, r.status, r.body)
		}
	}
	for _, more := range []contract.NewToken{{Name: "x"}, {Name: "x", Role: mariposa.RoleOperator}, {Name: "x", Role: mariposa.RoleAdmin, Organization: "acme"}} {
		deployer.call("POST", "/v1/tokens", more).wantError(403, mariposa.Forbidden, "the same restrictions")
	}
	less := mint(deployer, contract.NewToken{Name: "less", Role: mariposa.RoleViewer, Organization: "acme"})
	if got := sees(less); got != "shop viewer, second viewer" {
		t.Errorf("a token of a token sees %s", got)
	}
	short := want[contract.Token](inShop.call("POST", "/v1/tokens", contract.NewToken{Name: "short", Project: w.shop.ID, Expires: "90d"}), 201)
	if short.Expires.After(*ofShop.Expires) {
		t.Errorf("it outlives the one that made it: %v", short.Expires)
	}
	names := func(h *testServer) string {
		var all []string
		for _, one := range want[contract.Tokens](h.call("GET", "/v1/tokens", nil), 200).Tokens {
			all = append(all, one.Name)
		}
		return fmt.Sprint(all)
	}
	if all, some := names(olga), names(inShop); all != "[first acme shop ci less short]" || some != "[shop short]" {
		t.Errorf("olga lists %s, the token of shop %s", all, some)
	}
	inShop.call("DELETE", "/v1/tokens/ci", nil).wantError(404, mariposa.ResourceNotFound)
	want[contract.Changed](inShop.call("DELETE", "/v1/tokens/short", nil), 200)
	w.asUser("sam").call("GET", "/v1/tokens?user=olga", nil).wantError(404, mariposa.ResourceNotFound)
	if got := want[contract.Tokens](w.call("GET", "/v1/tokens?user=olga", nil), 200).Tokens; len(got) != 5 {
		t.Errorf("who runs the installation lists %+v", got)
	}
	// A token does not give its user a role that they do not have.
	strong := mint(w.asUser("vera"), contract.NewToken{Name: "strong", Role: mariposa.RoleAdmin})
	if got := sees(strong); got != "shop viewer" {
		t.Errorf("a viewer's token for admins sees %s", got)
	}
}
