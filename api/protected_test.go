package api_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"mariposa"
	"mariposa/contract"
)

// given returns everything that running instances of a service were started with or
// read live.
func (h *testServer) given(g *gatedDriver, service string) string {
	h.t.Helper()
	var all []string
	for id, i := range h.instances("shop", service) {
		if i.State == mariposa.StateRunning {
			g.mu.Lock()
			all = append(all, g.given[id])
			g.mu.Unlock()
			all = append(all, fmt.Sprint(must(g.PublishedValues(h.ctx, id))(h.t)))
		}
	}
	return strings.Join(all, " ")
}

// awaitGiven waits until instances of a service receive a text. Values sent to a node
// change nothing in the store, so this polls.
func (h *testServer) awaitGiven(g *gatedDriver, service, part string) {
	h.t.Helper()
	for began := time.Now(); !strings.Contains(h.given(g, service), part); {
		if time.Since(began) > time.Minute {
			h.t.Fatalf("waited in vain for %s: %s", part, h.given(g, service))
		}
		time.Sleep(2 * time.Millisecond)
	}
}

// A deployer blocks a rollout that stops using a protected secret, and refers to the
// environment of the old instances, which still have it. That version uses no protected
// secret and needs no approval, so none of its instances receives the value.
func TestAProtectedSecretIsNotReadFromTheEnvironmentOfAnOlderVersion(t *testing.T) {
	t.Parallel()
	h := newTestServer(t, withPlanner)
	g := h.joinGated("n1")
	text := func(password, more string) string {
		return "services:\n  db: {compute_type: dummy, environment: {RUN: serve, PASSWORD: \"" + password + "\"}, update: {min_healthy: 3600}}\n" +
			"  api: {compute_type: dummy, environment: {DB: \"{{ .services.db.environment.PASSWORD }}\"}, update: {min_healthy: 3600}}\n" + more +
			"metadata:\n  db-password: {secret: true, protect: true}\n"
	}
	c := want[contract.Changed](h.call("POST", "/v1/projects", map[string]any{
		"name": "shop", "metadata": "db-password: swordfish-1\n",
		"manifest": text("{{ .meta.db-password }}", "  web: {compute_type: dummy, environment: {X: \"{{ .services.db.environment.RUN }}\"}, mdata: {n: one}}\n"),
	}), 201)
	h.awaitRest("shop")
	if got := h.given(g, "api"); !strings.Contains(got, "swordfish-1") {
		t.Fatalf("what was approved is given %s", got)
	}
	deployer, _ := h.newMembers("shop")
	const spy = "{compute_type: dummy, environment: {X: \"{{ .services.db.environment.PASSWORD }}\", Y: \"{{ .services.api.environment.DB }}\"}, " +
		"mdata: {n: two, x: \"{{ .services.db.environment.PASSWORD }}\"}, update: {min_healthy: 0}}\n"
	done := want[contract.Changed](deployer.call("PUT", h.about(c, "/manifest?force=true"), text("none", "  web: "+spy+"  spy: "+spy)), 200)
	if done.NeedsApproval != nil {
		t.Fatalf("it needs an approval, so there is nothing to attack: %+v", done)
	}
	h.awaitGiven(g, "spy", "{x ")
	h.awaitGiven(g, "db", "none")
	for _, service := range []string{"web", "spy"} {
		if got := h.given(g, service); strings.Contains(got, "swordfish") {
			t.Errorf("%s is given %s", service, got)
		}
	}
	if got := h.given(g, "db"); !strings.Contains(got, "swordfish-1") || !strings.Contains(got, "none") {
		t.Errorf("the rollout of db is over: %s", got)
	}
}

// Versions without approval send no live values to instances that have a protected secret.
func TestWhatHasAProtectedSecretIsToldNothingByUnapprovedVersions(t *testing.T) {
	t.Parallel()
	h := newTestServer(t, withPlanner)
	g := h.joinGated("n1")
	text := func(password, mdata string) string {
		return "services:\n  db: {compute_type: dummy, environment: {PASSWORD: \"" + password + "\"}, mdata: " + mdata + ", update: {min_healthy: 3600}}\n" +
			"  web: {compute_type: dummy, mdata: {n: \"{{ .meta.run }}\"}}\n" +
			"metadata: {db-password: {secret: true, protect: true}, run: {default: serve}}\n"
	}
	c := want[contract.Changed](h.call("POST", "/v1/projects", map[string]any{
		"name": "shop", "metadata": "db-password: swordfish-1\n", "manifest": text("{{ .meta.db-password }}", "{run: \"{{ .meta.run }}\"}"),
	}), 201)
	h.awaitRest("shop")
	deployer, _ := h.newMembers("shop")
	h.awaitGiven(g, "db", "{run serve}")
	old := h.only("shop", "db").ID
	read := func(id string) string { return fmt.Sprint(must(g.PublishedValues(h.ctx, id))(t)) }
	// A deployer's manifest that stops using the secret, with a command for instances that still have it.
	want[contract.Changed](deployer.call("PUT", h.about(c, "/manifest?force=true"), text("none", "{run: \"{{ .meta.run }}\", more: print}")), 200)
	want[contract.Changed](deployer.call("PUT", h.about(c, "/metadata/run"), "print", plainText...), 200)
	h.awaitGiven(g, "web", "{n print}")
	h.awaitGiven(g, "db", "{more print}")
	if got := read(old); got != "[{run serve}]" {
		t.Errorf("instances with the secret receive %s", got)
	}
}

// An approved version passes the secret to its own program, and not to the deployer's
// program that still runs while the new one starts.
func TestAProtectedSecretIsNotToldToThePredecessorsOfAnApprovedVersion(t *testing.T) {
	t.Parallel()
	h := newTestServer(t, withPlanner)
	g := h.joinGated("n1")
	text := func(run, mdata string) string {
		return "services:\n  db: {compute_type: dummy, environment: {RUN: " + run + "}, mdata: " + mdata + ", update: {min_healthy: 3600}}\n" +
			"metadata: {db-password: {secret: true, protect: true}}\n"
	}
	c := want[contract.Changed](h.call("POST", "/v1/projects", map[string]any{"name": "shop", "metadata": "db-password: swordfish-1\n", "manifest": text("theirs", "{n: old}")}), 201)
	h.awaitRest("shop")
	_, operator := h.newMembers("shop")
	old := h.only("shop", "db").ID
	want[contract.Changed](operator.call("PUT", h.about(c, "/manifest?force=true"), text("ours", "{n: new, p: \"{{ .meta.db-password }}\"}")), 200)
	h.awaitGiven(g, "db", "{p swordfish-1}")
	h.awaitGiven(g, "db", "{RUN theirs}] [{n new}]")
	if got := fmt.Sprint(must(g.PublishedValues(h.ctx, old))(t)); got != "[{n new}]" {
		t.Errorf("the deployer's program receives %s", got)
	}
	// Live values replace no instances: the running instances are the approved ones.
	want[contract.Changed](h.call("POST", "/v1/projects", map[string]any{"name": "other", "metadata": "db-password: swordfish-1\n", "manifest": text("ours", "{n: old}")}), 201)
	h.awaitRest("other")
	want[contract.Changed](h.call("PUT", "/v1/projects/other/manifest?force=true", text("ours", "{n: new, p: \"{{ .meta.db-password }}\"}")), 200)
	id := h.only("other", "db").ID
	for began := time.Now(); fmt.Sprint(must(g.PublishedValues(h.ctx, id))(t)) != "[{n new} {p swordfish-1}]"; {
		if time.Since(began) > time.Minute {
			t.Fatalf("it receives %v", must(g.PublishedValues(h.ctx, id))(t))
		}
	}
}
