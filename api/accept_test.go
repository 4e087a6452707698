package api_test

import (
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
