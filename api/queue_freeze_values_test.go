package api_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"mariposa"
	"mariposa/contract"
)

// messages is a manifest with two services that read a value live.
const messages = "services:\n  a: {compute_type: dummy, mdata: {motd: \"{{ .meta.motd }}\", n: \"{{ .project.name }}\"}, update: {min_healthy: 0}}\n" +
	"  b: {compute_type: dummy, mdata: {motd: \"{{ .meta.motd }}\"}, update: {min_healthy: 0}}\n" +
	"metadata: {motd: {default: hello}}\n"

// awaitLive waits until an instance reads live values. They change nothing in the store,
// so this polls.
func (h *testServer) awaitLive(g *gatedDriver, id, values string) {
	h.t.Helper()
	for began := time.Now(); h.readLive(g, id) != values; h.call("GET", "/healthz", nil) {
		if time.Since(began) > time.Minute {
			h.t.Fatalf("waited in vain for %s: %s", values, h.readLive(g, id))
		}
	}
}

func (h *testServer) readLive(g *gatedDriver, id string) string {
	h.t.Helper()
	return fmt.Sprint(must(g.PublishedValues(context.Background(), id))(h.t))
}

// Instances of a frozen service keep their live values until the thaw, also when their
// agent connects to another server meanwhile.
func TestLiveValuesWaitForTheThaw(t *testing.T) {
	t.Parallel()
	h := newTestServer(t, withPlanner)
	g, leave := h.joinGatedUntil("n1", newGatedDriver())
	c := h.create("shop", messages)
	h.awaitRest("shop")
	want[contract.Changed](h.call("PUT", h.about(c, "/metadata/motd"), "hey", plainText...), 200) // version 2
	a, b := h.only("shop", "a").ID, h.only("shop", "b").ID
	h.awaitLive(g, a, "[{motd hey} {n shop}]")
	h.awaitState(h.startTask("shop", `{"action":"freeze"}`), mariposa.TaskActive)
	h.until("the freeze", func() bool { return h.state("shop").Frozen })

	set := want[contract.Changed](h.call("PUT", h.about(c, "/metadata/motd"), "bye", plainText...), 200)
	if set.Task == nil || !contains(set.Reason, "shop is frozen: the change waits until you run mariposa -j shop project thaw") || contains(set.Reason, "reprovision") {
		t.Fatalf("it answered %+v", set)
	}
	if task := h.task(*set.Task); task.State != mariposa.TaskQueued || !contains(task.Reason, "waits for the thaw of shop") {
		t.Errorf("its task is %+v", task)
	}
	if st := h.state("shop"); !contains(st.Reason, "version 3 waits for the thaw") || !contains(h.of("shop", "b").Reason, "version 3 waits for the thaw") {
		t.Errorf("the state is %+v", st)
	}
	want[contract.Changed](h.call("PUT", h.about(c, ""), contract.ProjectChange{Name: "store"}), 200) // sends all live values again
	h.awaitLive(g, a, "[{motd hey} {n store}]")

	leave()
	other := h.restart()
	_, leave = other.joinGatedUntil("n1", g)
	defer leave()
	want[contract.Changed](other.call("PUT", h.about(c, ""), contract.ProjectChange{Name: "market"}), 200)
	other.awaitLive(g, a, "[{motd hey} {n market}]")
	if got := h.readLive(g, b); got != "[{motd hey}]" {
		t.Errorf("b reads %s", got)
	}
	other.awaitTask(other.startTask("market", `{"action":"thaw"}`), mariposa.TaskCompleted)
	other.awaitTask(*set.Task, mariposa.TaskCompleted)
	other.awaitLive(g, a, "[{motd bye} {n market}]")
	other.awaitLive(g, b, "[{motd bye}]")
	if now := other.only("market", "a").ID; now != a {
		t.Errorf("%s was replaced by %s", a, now)
	}
	other.until("the version to be in force", func() bool { return other.state("market").Version == set.Version })
}

// A freeze of one service keeps only its live values.
func TestLiveValuesOfOtherServicesDoNotWait(t *testing.T) {
	t.Parallel()
	h := newTestServer(t, withPlanner)
	g := h.joinGated("n1")
	c := h.create("shop", strings.Replace(messages, "default: hello", "default: \"0\"", 1))
	h.awaitRest("shop")
	a, b := h.only("shop", "a").ID, h.only("shop", "b").ID
	increment := func(n int) {
		t.Helper()
		want[contract.Changed](h.call("POST", h.about(c, "/metadata/motd/incr"), nil), 200)
		h.awaitLive(g, b, fmt.Sprintf("[{motd %d}]", n))
	}
	increment(1)
	h.awaitLive(g, a, "[{motd 1} {n shop}]")
	h.until("the counter to be in force", func() bool { return h.of("shop", "a").Version != c.Version })
	h.awaitState(h.startTask("shop", `{"action":"freeze","services":["a"]}`), mariposa.TaskActive)
	h.until("the freeze", func() bool { return h.of("shop", "a").Frozen })
	increment(2) // increments share a version, but not with one that is frozen
	increment(3)
	want[contract.Changed](h.call("PUT", h.about(c, ""), contract.ProjectChange{Name: "store"}), 200)
	h.awaitLive(g, a, "[{motd 1} {n store}]")
	if got := h.of("store", "a").Reason; !contains(got, "version 3 waits for the thaw") {
		t.Errorf("a is frozen: %s", got)
	}
	h.awaitTask(h.startTask("store", `{"action":"thaw"}`), mariposa.TaskCompleted)
	h.awaitLive(g, a, "[{motd 3} {n store}]")
}

// Values of the environment that are held back wait for the thaw too. The advice to
// reprovision says so, as it would lift the freeze.
func TestHeldValuesWaitForTheThaw(t *testing.T) {
	t.Parallel()
	h := newTestServer(t, withPlanner)
	h.joinGated("n1")
	manifest := func(version int) string {
		return fmt.Sprintf("services:\n  web: {compute_type: dummy, scale: 2, environment: {V: \"%d-{{ .meta.mode }}\"}, update: {min_healthy: 0}}\nmetadata: {mode: {default: calm}}\n", version)
	}
	set := func(h *testServer, project, value string) contract.Changed {
		t.Helper()
		return want[contract.Changed](h.call("PUT", "/v1/projects/"+project+"/metadata/mode", value, plainText...), 200)
	}
	says := func(project string) string {
		return "is frozen: the change waits until you run mariposa -j " + project + " project thaw; after the thaw, apply the new values to web with `mariposa project reprovision"
	}
	for _, project := range []string{"values", "queued"} {
		h.create(project, manifest(1))
		h.awaitRest(project)
		h.awaitState(h.startTask(project, `{"action":"freeze"}`), mariposa.TaskActive)
		h.until("the freeze", func() bool { return h.state(project).Frozen })
	}
	first := set(h, "values", "wild")
	second := set(h, "values", "bold")
	if !contains(first.Reason, says("values")) || !contains(second.Reason, says("values")) || first.Task == nil || second.Task == nil {
		t.Fatalf("it answered %+v and %+v", first, second)
	}
	h.awaitState(*first.Task, mariposa.TaskTerminated)
	if s := h.of("values", "web"); !contains(s.Reason, "version 3 waits for the thaw") {
		t.Errorf("it is %+v", s)
	}
	h.awaitTask(h.startTask("values", `{"action":"thaw"}`), mariposa.TaskCompleted)
	h.awaitTask(*second.Task, mariposa.TaskCompleted)
	h.until("the values to be held back", func() bool {
		return contains(h.of("values", "web").Reason, "2 instances outdated: metadata key mode changed")
	})
	if got := h.values("values", "web"); got != "2 of V=1-calm" {
		t.Errorf("they run with %s", got)
	}

	// Values on top of a queued manifest follow it without a task of their own.
	update := h.putManifest("queued", manifest(2), "&canary=1")
	if got := set(h, "queued", "wild"); got.Task != nil || !contains(got.Reason, says("queued")) {
		t.Errorf("it answered %+v", got)
	}
	if s := h.of("queued", "web"); !contains(s.Reason, "version 3 waits for the thaw") {
		t.Errorf("it is %+v", s)
	}
	h.awaitTask(h.startTask("queued", `{"action":"thaw"}`), mariposa.TaskCompleted)
	h.awaitTask(update, mariposa.TaskCompleted)
	h.until("the canary", func() bool {
		return h.of("queued", "web").Status == mariposa.StatusHeld && h.values("queued", "web") == "1 of V=1-calm, 1 of V=2-wild"
	})
}
