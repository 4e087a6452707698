package api_test

import (
	"fmt"
	"maps"
	"slices"
	"testing"

	"mariposa"
	"mariposa/contract"
)

// Accepting the state after a partial rollout does not complete the version: later
// reverts and rollbacks restore the version before it.
func TestAnAcceptedVersionIsNotCompleted(t *testing.T) {
	t.Parallel()
	h := newTestServer(t, withPlanner)
	g := h.joinGated("n1")
	tag := func(h *testServer, project string) int {
		h.t.Helper()
		for _, v := range want[contract.Versions](h.call("GET", "/v1/projects/"+project+"/versions", nil), 200).Versions {
			for _, t := range v.Tags {
				if t == "completed" {
					return v.Number
				}
			}
		}
		return 0
	}
	// Two of three are at the new version when the rest fails.
	half := func(h *testServer, project string) {
		h.t.Helper()
		h.create(project, fleetOf(3, 1, ""))
		h.awaitRest(project)
		h.awaitTask(h.putManifest(project, fleetOf(3, 2, ""), "&canary=2"), mariposa.TaskCompleted)
		g.spoil(project, true)
		h.awaitTask(h.startTask(project, `{"action":"reprovision"}`), mariposa.TaskFailed)
		h.awaitTask(h.startTask(project, `{"action":"accept"}`), mariposa.TaskCompleted)
		g.spoil(project, false)
		h.awaitRest(project)
		h.until("what runs to be the goal", func() bool {
			return h.state(project).Status == mariposa.StatusConverged && h.values(project, "web") == "1 of V=1, 2 of V=2"
		})
		if got := tag(h, project); got != 1 {
			h.t.Errorf("version %d is tagged completed", got)
		}
	}
	t.Run("a revert goes to the version before", func(t *testing.T) {
		t.Parallel()
		h := h.in(t)
		half(h, "revert")
		h.awaitTask(h.startTask("revert", `{"action":"revert"}`), mariposa.TaskCompleted)
		if got := h.values("revert", "web"); got != "3 of V=1" || tag(h, "revert") != 3 {
			t.Errorf("reverted: %s, completed is %d", got, tag(h, "revert"))
		}
	})
	t.Run("so does a rollback", func(t *testing.T) {
		t.Parallel()
		h := h.in(t)
		half(h, "rollback")
		bad := "services:\n  web: {compute_type: dummy, scale: 3, environment: {V: 3}, dummy: {fail_prop: \"yes\"}, update: {min_healthy: 0, on_failure: rollback}}\n"
		h.awaitTask(h.putManifest("rollback", bad, ""), mariposa.TaskFailed)
		h.until("the rollback to end", func() bool { return h.of("rollback", "web").Status == mariposa.StatusConverged })
		if got := h.values("rollback", "web"); got != "3 of V=1" {
			t.Errorf("rolled back: %s", got)
		}
	})
	t.Run("a version that changes another service does not complete it either", func(t *testing.T) {
		t.Parallel()
		h := h.in(t)
		half(h, "other")
		h.awaitTask(h.putManifest("other", fleetOf(3, 2, "")+"  db: {compute_type: dummy, update: {min_healthy: 0}}\n", ""), mariposa.TaskCompleted)
		h.awaitRest("other")
		if got := tag(h, "other"); got != 1 {
			t.Errorf("version %d is tagged completed", got)
		}
	})
	t.Run("rolled out to its end, it is", func(t *testing.T) {
		t.Parallel()
		h := h.in(t)
		half(h, "finish")
		h.awaitTask(h.startTask("finish", `{"action":"reprovision"}`), mariposa.TaskCompleted)
		h.awaitRest("finish")
		if got := tag(h, "finish"); got != 2 || h.values("finish", "web") != "3 of V=2" {
			t.Errorf("version %d is tagged completed: %s", got, h.values("finish", "web"))
		}
	})
	t.Run("a revert to what runs completes", func(t *testing.T) {
		t.Parallel()
		h := h.in(t)
		h.create("same", fleetOf(3, 1, ""))
		h.awaitRest("same")
		g.spoil("same", true)
		h.awaitTask(h.putManifest("same", fleetOf(3, 2, ""), ""), mariposa.TaskFailed)
		h.awaitTask(h.startTask("same", `{"action":"accept"}`), mariposa.TaskCompleted)
		g.spoil("same", false)
		h.awaitRest("same")
		if got := tag(h, "same"); got != 1 || h.values("same", "web") != "3 of V=1" {
			t.Errorf("version %d is tagged completed: %s", got, h.values("same", "web"))
		}
		h.awaitTask(h.startTask("same", `{"action":"revert","version":"1"}`), mariposa.TaskCompleted)
		h.until("version 3 to be completed", func() bool { return tag(h, "same") == 3 })
	})
	t.Run("nothing that runs is not a version either", func(t *testing.T) {
		t.Parallel()
		h := h.in(t)
		h.create("none", fleetOf(2, 1, ", order: stop-first"))
		h.awaitRest("none")
		g.spoil("none", true)
		h.awaitTask(h.putManifest("none", fleetOf(2, 2, ", order: stop-first, rolling: 2"), ""), mariposa.TaskFailed)
		h.until("nothing to run", func() bool { return h.of("none", "web").Running == 0 })
		h.awaitTask(h.startTask("none", `{"action":"accept"}`), mariposa.TaskCompleted)
		g.spoil("none", false)
		h.awaitRest("none")
		if got := tag(h, "none"); got != 1 {
			t.Errorf("version %d is tagged completed: %+v", got, h.state("none"))
		}
	})
	t.Run("what runs completely is", func(t *testing.T) {
		t.Parallel()
		h := h.in(t)
		h.create("whole", fleetOf(2, 1, ""))
		h.awaitRest("whole")
		h.awaitTask(h.startTask("whole", `{"action":"accept"}`), mariposa.TaskCompleted)
		h.awaitTask(h.putManifest("whole", fleetOf(2, 2, ""), ""), mariposa.TaskCompleted)
		if got := tag(h, "whole"); got != 2 {
			t.Errorf("version %d is tagged completed", got)
		}
	})
}

// A person who accepts what runs does not want the changes that still wait: they once
// began after the thaw.
func TestAcceptEndsTheChangesThatWait(t *testing.T) {
	t.Parallel()
	h := newTestServer(t, withPlanner)
	h.joinGated("n1")
	for _, v := range []int{1, 2} {
		if v == 1 {
			h.create("shop", fleetOf(2, v, "")+"  db: {compute_type: dummy, update: {min_healthy: 0}}\n")
		} else {
			h.awaitTask(h.putManifest("shop", fleetOf(2, v, "")+"  db: {compute_type: dummy, update: {min_healthy: 0}}\n", ""), mariposa.TaskCompleted)
		}
		h.awaitRest("shop")
	}
	h.startTask("shop", `{"action":"freeze"}`)
	h.until("the freeze to settle", func() bool { return h.state("shop").Status == mariposa.StatusFrozen })
	revert := h.startTask("shop", `{"action":"revert","version":"1"}`)
	part := want[contract.Changed](h.putAction("shop", `{"action":"accept","services":["db"]}`), 202)
	if len(part.Ended) != 0 {
		t.Errorf("accepting db ended %+v, which is not about db", part.Ended)
	}
	whole := want[contract.Changed](h.putAction("shop", `{"action":"accept"}`), 202)
	if len(whole.Ended) != 1 || whole.Ended[0].ID != revert || whole.Ended[0].ContinueWith == "" {
		t.Errorf("accepting all ended %+v, not the revert", whole.Ended)
	}
	h.awaitTask(revert, mariposa.TaskTerminated)
	h.awaitTask(h.startTask("shop", `{"action":"thaw"}`), mariposa.TaskCompleted)
	h.awaitRest("shop")
	if got := h.values("shop", "web"); got != "2 of V=2" || len(h.instances("shop", "db")) != 1 {
		t.Errorf("after the thaw: %s, %d db", got, len(h.instances("shop", "db")))
	}
	if st := h.state("shop"); st.Status != mariposa.StatusConverged {
		t.Errorf("after the thaw: %s, %v", st.Status, st.Reason)
	}
}

// Nothing of version 2 ran when it was accepted. It was current nevertheless, and the next
// version rolled it out.
func TestAcceptDropsAVersionOfWhichNothingRan(t *testing.T) {
	t.Parallel()
	h := newTestServer(t, withPlanner)
	g := h.joinGated("n1")
	db := "  db: {compute_type: dummy, update: {min_healthy: 0}}\n"
	added := "  new: {compute_type: dummy, update: {min_healthy: 0}}\n"
	h.create("shop", fleetOf(2, 1, "")+db)
	h.awaitRest("shop")
	g.close("shop")
	update := h.putManifest("shop", fleetOf(2, 2, "")+db+added, "")
	h.until("the new instances to start", func() bool { return h.of("shop", "web").Starting > 0 && h.of("shop", "new").Starting > 0 })
	want[contract.Terminated](h.call("DELETE", "/v1/queue/"+update, nil), 202)
	h.awaitTask(h.startTask("shop", `{"action":"accept"}`), mariposa.TaskCompleted)
	g.open("shop")
	h.awaitTask(h.startTask("shop", `{"action":"thaw"}`), mariposa.TaskCompleted)
	h.until("what ran to be all that is left", func() bool {
		return h.state("shop").Status == mariposa.StatusConverged && len(h.instances("shop", "")) == 3
	})
	h.awaitRest("shop")
	for _, v := range want[contract.Versions](h.call("GET", "/v1/projects/shop/versions", nil), 200).Versions {
		if current := slices.Contains(v.Tags, "current"); current != (v.Number == 1) {
			t.Errorf("version %d is tagged %v", v.Number, v.Tags)
		}
	}
	before := h.instances("shop", "")
	want[contract.Changed](h.call("PUT", "/v1/projects/shop/metadata/unused", "x", plainText...), 200)
	h.awaitRest("shop")
	if after := h.instances("shop", ""); !maps.Equal(names(before), names(after)) || h.values("shop", "web") != "2 of V=1" {
		t.Errorf("a value that nothing uses changed %v to %v", before, after)
	}
}

func names(all map[string]contract.Instance) map[string]bool {
	out := map[string]bool{}
	for id := range all {
		out[id] = true
	}
	return out
}

// In a start-first rollout, the old and the new instance of a slot run at the same time.
// They were counted as two.
func TestAcceptCountsSlotsNotInstances(t *testing.T) {
	t.Parallel()
	h := newTestServer(t, withPlanner)
	h.joinGated("n1")
	slow := func(v int) string { // new instances have to be healthy for a minute before old ones go
		return fmt.Sprintf("services:\n  web: {compute_type: dummy, scale: 3, environment: {V: %d}, update: {min_healthy: 60, order: start-first}}\n", v)
	}
	h.create("shop", slow(1))
	h.until("all to run", func() bool { return h.of("shop", "web").Running == 3 })
	h.until("the start to end", func() bool { return h.state("shop").Status == mariposa.StatusConverged })
	update := h.putManifest("shop", slow(2), "")
	h.until("one more to run", func() bool { return h.of("shop", "web").Running == 4 })
	want[contract.Terminated](h.call("DELETE", "/v1/queue/"+update, nil), 202)
	h.awaitTask(h.startTask("shop", `{"action":"accept"}`), mariposa.TaskCompleted)
	if web := h.of("shop", "web"); web.Goal != 3 {
		t.Errorf("accepted: %+v", web)
	}
	if plan := want[contract.Plan](h.call("POST", "/v1/projects/shop/plan", nil), 200); !slices.Equal(plan.Waits, []string{"web: 1 instance would be removed after thaw"}) {
		t.Errorf("one instance is to be removed after the thaw, and the plan is %+v", plan)
	}
	before := h.instances("shop", "web")
	h.awaitTask(h.startTask("shop", `{"action":"thaw"}`), mariposa.TaskCompleted)
	h.until("one of the two to go", func() bool { return len(h.instances("shop", "web")) == 3 })
	h.awaitRest("shop")
	for id := range h.instances("shop", "web") {
		if _, ok := before[id]; !ok {
			t.Errorf("instance %s was started after the accept", id)
		}
	}
	if got := h.values("shop", "web"); got != "2 of V=1, 1 of V=2" {
		t.Errorf("after the thaw: %s", got)
	}
}

// Accepting a stopped project set its scales to 0.
func TestAcceptKeepsTheScalesOfWhatIsStopped(t *testing.T) {
	t.Parallel()
	h := newTestServer(t, withPlanner)
	h.joinGated("n1")
	h.create("shop", pair(1, 1))
	h.awaitRest("shop")
	h.awaitTask(h.startTask("shop", `{"action":"stop","services":["b"]}`), mariposa.TaskCompleted)
	h.awaitTask(h.startTask("shop", `{"action":"accept"}`), mariposa.TaskCompleted)
	h.awaitTask(h.startTask("shop", `{"action":"stop"}`), mariposa.TaskCompleted)
	h.awaitTask(h.startTask("shop", `{"action":"accept"}`), mariposa.TaskCompleted)
	if st := h.state("shop"); st.Status != mariposa.StatusStopped || len(h.instances("shop", "")) != 0 {
		t.Errorf("accepted while stopped: %+v", st)
	}
	h.awaitTask(h.startTask("shop", `{"action":"start"}`), mariposa.TaskCompleted)
	if a, b := h.of("shop", "a"), h.of("shop", "b"); a.Running != 2 || b.Running != 2 {
		t.Errorf("started again: %+v, %+v", a, b)
	}
}

// A rollout that was dropped was reported as completed.
func TestATaskWhoseChangesAreDroppedIsNotCompleted(t *testing.T) {
	t.Parallel()
	h := newTestServer(t, withPlanner)
	g := h.joinGated("n1")
	h.create("shop", fleetOf(2, 1, ""))
	h.awaitRest("shop")
	g.close("shop")
	update := h.putManifest("shop", fleetOf(2, 2, ""), "")
	h.until("the update to be active", func() bool { return h.of("shop", "web").Starting > 0 })
	c := want[contract.Changed](h.putAction("shop", `{"action":"accept"}`), 202)
	if len(c.Ended) != 1 || c.Ended[0].ID != update {
		t.Errorf("the accept ended %+v", c.Ended)
	}
	h.awaitTask(update, mariposa.TaskTerminated) // the accept counts what runs then
	g.open("shop")
	if task := h.task(update); task.EndedBy != *c.Task {
		t.Errorf("the update ended by %v: %+v", task.EndedBy, task)
	}
	h.until("what was starting to be removed", func() bool { return h.values("shop", "web") == "2 of V=1" })
	h.awaitRest("shop")
	if now := h.values("shop", "web"); now != "2 of V=1" {
		t.Errorf("what runs is %s", now)
	}
}

// Some services were at the new version when the state was accepted, others were not. A
// new value rolled out the rest of the manifest.
func TestANewValueLeavesAcceptedServicesAlone(t *testing.T) {
	t.Parallel()
	h := newTestServer(t, withPlanner)
	h.joinGated("n1")
	two := func(v, scale int, slow string) string {
		return fmt.Sprintf("services:\n  web: {compute_type: dummy, environment: {V: %d}, update: {min_healthy: 0}}\n"+
			"  slow: {compute_type: dummy, scale: %d, environment: {V: %d, MODE: \"{{ .meta.mode }}\"}, update: {min_healthy: 0}%s}\n"+
			"metadata: {mode: {default: calm}}\n", v, scale, v, slow)
	}
	h.create("shop", two(1, 2, ""))
	h.awaitRest("shop")
	h.putManifest("shop", two(2, 4, ", dummy: {wait_secs: 3600}"), "")
	h.until("web to be at version 2, and slow to be starting", func() bool {
		web := h.of("shop", "web")
		return web.Number == 2 && web.Outdated == 0 && web.Running == 1 && web.Starting+web.Stopping == 0 && h.of("shop", "slow").Starting > 0
	})
	h.awaitTask(h.startTask("shop", `{"action":"accept"}`), mariposa.TaskCompleted)
	h.until("what runs to be all", func() bool {
		return h.state("shop").Status == mariposa.StatusConverged && len(h.instances("shop", "")) == 3
	})
	before := names(h.instances("shop", ""))
	for _, key := range []string{"unused", "mode"} {
		c := want[contract.Changed](h.call("PUT", "/v1/projects/shop/metadata/"+key, "wild", plainText...), 200)
		h.until("the version with the value to be in force", func() bool { return h.state("shop").Version == c.Version })
		h.awaitRest("shop")
		if slow := h.of("shop", "slow"); slow.Goal != 2 || slow.Number != 1 || !maps.Equal(before, names(h.instances("shop", ""))) {
			t.Errorf("after a new value of %s: %+v; %s", key, slow, h.values("shop", "slow"))
		}
	}
}
