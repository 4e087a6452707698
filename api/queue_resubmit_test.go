package api_test

import (
	"fmt"
	"strings"
	"testing"

	"mariposa"
	"mariposa/contract"
)

// resubmits submits the newest manifest again, and returns the created task; empty: none.
func (h *testServer) resubmits(project, manifest string) string {
	h.t.Helper()
	c := want[contract.Changed](h.call("PUT", "/v1/projects/"+project+"/manifest?force=true", manifest), 200)
	if c.Task == nil {
		return ""
	}
	return *c.Task
}

// Submitting the newest manifest again changes nothing while it is in force or being
// rolled out. If its task was dropped before it began, the manifest is rolled out now.
func TestAManifestWhoseTaskWasDroppedCanBeSubmittedAgain(t *testing.T) {
	t.Parallel()
	h := newTestServer(t, withPlanner)
	h.joinGated("n1")
	first, second := pair(1, 1), pair(2, 1)
	h.create("shop", first)
	h.awaitRest("shop")
	if task := h.resubmits("shop", first); task != "" {
		t.Fatalf("what is in force made task %s", task)
	}
	h.awaitState(h.startTask("shop", `{"action":"freeze"}`), mariposa.TaskActive)
	waits := h.putManifest("shop", second, "")
	want[contract.Changed](h.call("PUT", "/v1/projects/shop/metadata/other", contract.MetadataValue{Value: []byte(`"x"`)}), 200)
	if task := h.resubmits("shop", second); task != waits { // with its values, which need no task
		t.Fatalf("what waits for the thaw in task %s has task %q", waits, task)
	}
	want[contract.Terminated](h.call("DELETE", "/v1/queue/"+waits, nil), 202)
	again := h.resubmits("shop", second)
	if again == "" {
		t.Fatal("a manifest that was dropped is reported as no change")
	}
	if got := h.task(again); got.State != mariposa.TaskQueued || !strings.Contains(got.Reason, "version 3 was resubmitted") {
		t.Errorf("the task is %+v", got)
	}
	h.awaitTask(h.startTask("shop", `{"action":"thaw"}`), mariposa.TaskCompleted)
	h.awaitTask(again, mariposa.TaskCompleted)
	if p := want[contract.Project](h.call("GET", "/v1/projects/shop", nil), 200); p.Number != 3 {
		t.Errorf("the newest is %d: it made another version", p.Number)
	}
}

// Submitting a rolled-back version again retries it: the caller waits for the task,
// which fails again.
func TestAVersionThatWasRolledBackCanBeTriedAgain(t *testing.T) {
	t.Parallel()
	h := newTestServer(t, withPlanner)
	h.joinGated("n1")
	good := fleetOf(2, 1, ", on_failure: rollback")
	bad := strings.Replace(good, "environment", `dummy: {fail_prop: "yes"}, environment`, 1)
	h.create("shop", good)
	h.awaitRest("shop")
	h.awaitTask(h.putManifest("shop", bad, ""), mariposa.TaskFailed)
	h.awaitRest("shop")
	plan := want[contract.Plan](h.call("POST", "/v1/projects/shop/plan", bad), 200)
	if len(plan.Steps) == 0 {
		t.Error("its plan is empty")
	}
	again := h.resubmits("shop", bad)
	if again == "" {
		t.Fatal("it is reported as no change")
	}
	if task := h.awaitTask(again, mariposa.TaskFailed); !strings.Contains(task.Reason, "rolled back to version 1") {
		t.Errorf("it failed with %q", task.Reason)
	}
	h.awaitRest("shop")
	if task := h.resubmits("shop", good); task == "" {
		t.Error("the version before is not the newest, and made no task")
	}
}

// A project whose first task was dropped has nothing to act on. A start or its manifest
// rolls it out.
func TestAProjectOfWhichNothingIsInForceIsBroughtByItsManifest(t *testing.T) {
	t.Parallel()
	h := newTestServer(t)
	c := h.create("shop", pair(1, 1))
	want[contract.Terminated](h.call("DELETE", "/v1/queue/"+*c.Task, nil), 202)
	h.putAction("shop", `{"action":"scale","scale":{"a":3}}`).wantError(409, mariposa.Conflict, "no version of shop is in force: start it first")
	h.putAction("shop", `{"action":"reprovision"}`).wantError(409, mariposa.Conflict, "start it first")
	task := h.task(h.resubmits("shop", pair(1, 1)))
	if task.Task != mariposa.TaskStart || len(task.Services) > 0 || task.State != mariposa.TaskQueued {
		t.Errorf("its manifest made %+v", task)
	}
}

// A revert does not change scales, and neither does repeating it.
func TestADroppedRevertIsAskedForAgainWithoutItsScales(t *testing.T) {
	t.Parallel()
	h := newTestServer(t, withPlanner)
	h.joinGated("n1")
	h.create("shop", pair(1, 1))
	h.awaitRest("shop")
	h.awaitTask(h.putManifest("shop", pair(2, 1), ""), mariposa.TaskCompleted)
	h.awaitState(h.startTask("shop", `{"action":"freeze"}`), mariposa.TaskActive)
	for ask, hint := range map[string]string{
		`{"action":"revert","version":"1"}`:                   "mariposa -j shop project revert %d",
		`{"action":"revert","version":"1","with_scale":true}`: "mariposa -j shop project revert %d --with-scale",
	} {
		task := h.startTask("shop", "%s", ask)
		newest := want[contract.Project](h.call("GET", "/v1/projects/shop", nil), 200).Number
		ended := want[contract.Terminated](h.call("DELETE", "/v1/queue/"+task, nil), 202)
		if want := fmt.Sprintf(hint, newest); ended.ContinueWith != want {
			t.Errorf("it is asked for again with %q, want %q", ended.ContinueWith, want)
		}
	}
}

// A project that was stopped because its first version failed shows the reason, and so
// do its services.
func TestAFirstVersionThatFailsSaysWhyItIsStopped(t *testing.T) {
	t.Parallel()
	h := newTestServer(t, withPlanner)
	h.joinGated("n1")
	c := h.create("shop", strings.Replace(fleetOf(1, 1, ", on_failure: rollback"), "environment", `dummy: {fail_prop: "yes"}, environment`, 1))
	h.awaitTask(*c.Task, mariposa.TaskFailed)
	const why = "version 1 failed, and there is no earlier version to roll back to: web: "
	if st := h.state("shop"); st.Status != mariposa.StatusStopped || !strings.HasPrefix(st.Reason, why) || st.Services[0].Reason != st.Reason {
		t.Errorf("it is %+v", st)
	}
}
