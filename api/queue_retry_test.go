package api_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"mariposa"
	"mariposa/contract"
)

// causal returns a manifest with two services at versions: x fails as long as the
// gated driver fails its project.
func causal(y, x int) string {
	return fmt.Sprintf("services:\n"+
		"  x: {compute_type: dummy, environment: {V: %d}, update: {min_healthy: 0}}\n"+
		"  y: {compute_type: dummy, environment: {V: %d}, update: {min_healthy: 0}}\n", x, y)
}

// fails creates a project whose second version failed because of x.
func (h *testServer) fails(g *gatedDriver, project string) {
	h.t.Helper()
	h.create(project, causal(1, 1))
	h.awaitRest(project)
	g.spoil(project, true)
	h.awaitTask(h.putManifest(project, causal(1, 2), ""), mariposa.TaskFailed)
	h.awaitRest(project)
	if s := h.of(project, "x"); s.Status != mariposa.StatusFailed || s.Running != 1 {
		h.t.Fatalf("x is %+v", s)
	}
}

// A submission, a revert or a converge retries failed rollouts: the caller waits for
// them and sees whether they fail again.
func TestAFailedRolloutIsTriedAgain(t *testing.T) {
	t.Parallel()
	h := newTestServer(t, withPlanner)
	g := h.joinGated("n1")
	for name, c := range map[string]struct {
		again   func(h *testServer, project string) string
		scope   string
		version int // that is in force then
	}{
		"by a version that changes another service": {func(h *testServer, p string) string { return h.putManifest(p, causal(3, 2), "") }, "x y", 3},
		"by a version that scales another service": {func(h *testServer, p string) string {
			return h.putManifest(p, strings.Replace(causal(1, 2), "y: {", "y: {scale: 2, ", 1), "")
		}, "x y", 3},
		"by the same manifest":       {func(h *testServer, p string) string { return h.resubmits(p, causal(1, 2)) }, "x", 2},
		"by converge":                {func(h *testServer, p string) string { return h.startTask(p, `{"action":"converge"}`) }, "", 2},
		"by converge of it":          {func(h *testServer, p string) string { return h.startTask(p, `{"action":"converge","services":["x"]}`) }, "x", 2},
		"by a revert to the newest":  {func(h *testServer, p string) string { return h.startTask(p, `{"action":"revert","version":"2"}`) }, "x", 2},
		"by a service that is added": {func(h *testServer, p string) string { return *h.adds(p, "z").Task }, "x z", 3},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h, project := h.in(t), "p"+newID()[28:]
			h.fails(g, project)
			if st := h.awaitTask(c.again(h, project), mariposa.TaskFailed); !strings.Contains(st.Reason, ": the rollout of version") || scopeOf(st) != c.scope {
				t.Errorf("failing again, its task is %+v", st)
			}
			g.spoil(project, false) // what is tried again and again, as a second y, never rests before
			h.awaitRest(project)
			last := h.startTask(project, `{"action":"converge"}`)
			h.awaitTask(last, mariposa.TaskCompleted)
			if s := h.of(project, "x"); s.Status != mariposa.StatusConverged || s.Outdated != 0 {
				t.Errorf("x is %+v", s)
			}
			if p := want[contract.Project](h.call("GET", "/v1/projects/"+project, nil), 200); p.Number != c.version {
				t.Errorf("version %d is the newest, not %d", p.Number, c.version)
			}
		})
	}
}

// adds adds a service to a project's manifest.
func (h *testServer) adds(project, service string) contract.Changed {
	h.t.Helper()
	return want[contract.Changed](h.call("POST", "/v1/projects/"+project+"/services?name="+service,
		"{compute_type: dummy, scale: 0}\n", "Content-Type", "application/yaml"), 201)
}

// A version that fixes only the cause also rolls out the services that failed because
// of it.
func TestAMendedCauseBringsWhatFailed(t *testing.T) {
	t.Parallel()
	h := newTestServer(t, withPlanner)
	g := h.joinGated("n1")
	h.fails(g, "shop")
	g.spoil("shop", false)
	if now := want[contract.Plan](h.call("POST", "/v1/projects/shop/plan", nil), 200); now.Complete || len(now.Waits) != 1 || !strings.HasPrefix(now.Waits[0], "x: the rollout of version 2 stopped") {
		t.Errorf("what would be done now: %+v", now)
	}
	for _, text := range []string{causal(3, 2), causal(1, 2)} { // mended, and the same again
		plan := want[contract.Plan](h.call("POST", "/v1/projects/shop/plan", text), 200)
		if x := plan.Resources[0]; x.Name != "x" || x.Change != "replace" || !x.Retried || len(plan.Steps) == 0 || !plan.Complete || plan.Resources[1].Retried {
			t.Errorf("the plan is %+v", plan)
		}
	}
	h.awaitTask(h.putManifest("shop", causal(3, 2), ""), mariposa.TaskCompleted)
	if st := h.state("shop"); st.Status != mariposa.StatusConverged || st.Services[0].Outdated != 0 {
		t.Errorf("it is %+v", st)
	}
	if v := want[contract.Version](h.call("GET", "/v1/projects/shop/versions/3", nil), 200); !v.Completed {
		t.Error("version 3 is not completed")
	}
	if task := h.resubmits("shop", causal(3, 2)); task != "" {
		t.Errorf("at rest, the same manifest made task %s", task)
	}
}

// After a failed rollback, a revert retries instead of failing at once with the old reason.
func TestARevertAfterAFailedRollbackTriesAgain(t *testing.T) {
	t.Parallel()
	h := newTestServer(t, withPlanner)
	g := h.joinGated("n1")
	// Stop-first, so that the rollback has to recreate instances that the rollout removed.
	back := func(v int) string { return fleetOf(2, v, ", order: stop-first, on_failure: rollback") }
	h.create("shop", back(1))
	h.awaitRest("shop")
	g.spoil("shop", true)
	h.awaitTask(h.putManifest("shop", back(2), ""), mariposa.TaskFailed)
	h.until("the rollback to fail", func() bool { return h.of("shop", "web").Status == mariposa.StatusFailed })
	if again := h.awaitTask(h.startTask("shop", `{"action":"revert"}`), mariposa.TaskFailed); !strings.Contains(again.Reason, "version 3") {
		t.Errorf("after failing again, the reason of its task is %q", again.Reason)
	}
	h.until("it to fail again", func() bool { return h.of("shop", "web").Status == mariposa.StatusFailed })
	g.spoil("shop", false)
	h.awaitTask(h.startTask("shop", `{"action":"revert"}`), mariposa.TaskCompleted) // to the version that is the newest by now
	if s := h.of("shop", "web"); s.Status != mariposa.StatusConverged || s.Running != 2 {
		t.Errorf("web is %+v", s)
	}
	if p := want[contract.Project](h.call("GET", "/v1/projects/shop", nil), 200); p.Number != 3 {
		t.Errorf("version %d is the newest", p.Number)
	}
}

// A rollback that Mariposa does by itself, because the task of the version has ended
// before, ends its own task as failed if it fails, too: it does not stay open for ever.
func TestARollbackWithoutATaskOfAPersonFailsItsOwn(t *testing.T) {
	t.Parallel()
	h := newTestServer(t, withPlanner)
	g := h.joinGated("n1")
	back := func(v int) string { return fleetOf(2, v, ", order: stop-first, on_failure: rollback") }
	h.create("shop", back(1))
	h.awaitRest("shop")
	g.close("shop")
	task := h.putManifest("shop", back(2), "")
	h.awaitState(task, mariposa.TaskActive)
	want[contract.Terminated](h.call("DELETE", "/v1/queue/"+task, nil), 202)
	h.awaitState(h.startTask("shop", `{"action":"thaw"}`), mariposa.TaskActive)
	g.spoil("shop", true)
	g.open("shop")
	h.until("the rollback to fail", func() bool { // repairs continue, with a task of their own
		all := want[contract.Tasks](h.call("GET", "/v1/queue?all=true&project=shop", nil), 200).Tasks
		return slices.ContainsFunc(all, func(t contract.Task) bool {
			return t.Component == "rollback" && t.State == mariposa.TaskFailed && strings.Contains(t.Reason, "the rollout of version 1 stopped after 3 failures")
		})
	})
}

// Frozen services are not retried, and no task waits for them.
func TestAFrozenFailureKeepsNobodyBack(t *testing.T) {
	t.Parallel()
	h := newTestServer(t, withPlanner)
	g := h.joinGated("n1")
	h.fails(g, "shop")
	g.spoil("shop", false)
	h.awaitState(h.startTask("shop", `{"action":"freeze","services":["x"]}`), mariposa.TaskActive)
	same := want[contract.Changed](h.call("PUT", "/v1/projects/shop/manifest?force=true", causal(1, 2)), 200)
	if same.Task != nil || same.Reason != "x: frozen before the rollout was finished; thaw with mariposa -j shop project thaw --service x" {
		t.Errorf("the same manifest answers %+v", same)
	}
	if task := h.awaitTask(h.putManifest("shop", causal(3, 2), ""), mariposa.TaskCompleted); scopeOf(task) != "y" {
		t.Errorf("it sees to %s", scopeOf(task))
	}
	h.awaitTask(h.startTask("shop", `{"action":"thaw"}`), mariposa.TaskCompleted)
	if st := h.state("shop"); st.Status != mariposa.StatusConverged || st.Services[0].Outdated != 0 {
		t.Errorf("thawed, it is %+v", st)
	}
}

// A version that fixes a failed service also handles the services whose rollout waited
// for it: its task completes when all of them are rolled out.
func TestWhatWaitedForAFailureIsSeenToByTheVersionThatMendsIt(t *testing.T) {
	t.Parallel()
	h := newTestServer(t, withPlanner)
	h.joinGated("n1")
	text := func(v string, yFails, xFails string) string {
		return "services:\n  y: {compute_type: dummy, update: {min_healthy: 0}, environment: [V=" + v + "], dummy: {fail_prop: \"" + yFails + "\"}}\n" +
			"  x: {compute_type: dummy, update: {min_healthy: 0}, environment: [V=" + v + "], depends_on: [y], dummy: {fail_prop: \"" + xFails + "\"}}\n"
	}
	project := "waiting"
	h.create(project, text("1", "no", "no"))
	h.awaitRest(project)
	h.awaitTask(h.putManifest(project, text("2", "yes", "no"), ""), mariposa.TaskFailed)
	h.awaitRest(project)
	st := h.awaitTask(h.putManifest(project, text("2", "no", "no"), ""), mariposa.TaskCompleted)
	if scopeOf(st) != "x y" {
		t.Errorf("the task sees to %s", scopeOf(st))
	}
	if x := h.of(project, "x"); x.Status != mariposa.StatusConverged || x.Outdated != 0 {
		t.Errorf("when it is completed, x is %+v", x)
	}
}
