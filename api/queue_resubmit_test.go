package api_test

import (
	"encoding/json"
	"fmt"
	"reflect"
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

// A client that submits a manifest again, for example because it got no answer, can wait for the
// task of the first submission.
func TestAManifestThatIsBeingRolledOutAnswersWithItsTask(t *testing.T) {
	t.Parallel()
	h := newTestServer(t, withPlanner)
	g := h.joinGated("n1")
	h.create("shop", causal(1, 1))
	h.awaitRest("shop")
	g.close("shop")
	task := h.putManifest("shop", causal(2, 1), "")
	again := want[contract.Changed](h.call("PUT", "/v1/projects/shop/manifest?force=true", causal(2, 1)), 200)
	if again.Task == nil || *again.Task != task || !again.Joined || again.Number != 2 {
		t.Errorf("submitted again, it answers %+v; the first task is %s", again, task)
	}
	g.open("shop")
	h.awaitTask(task, mariposa.TaskCompleted)
	if task := h.resubmits("shop", causal(2, 1)); task != "" {
		t.Errorf("at rest, it answers with task %s", task)
	}
}

// A submission does not join tasks of other services, or of metadata.
func TestASubmissionJoinsItsOwnRollout(t *testing.T) {
	t.Parallel()
	h := newTestServer(t, withPlanner)
	g := h.joinGated("n1")
	h.create("shop", pair(1, 1))
	h.awaitRest("shop")
	put := func(service string, v int) contract.Changed {
		t.Helper()
		definition := fmt.Sprintf("compute_type: dummy\nenvironment: {V: %d, MODE: \"{{ .meta.mode }}\"}\nupdate: {min_healthy: 0, on_metadata: reprovision}\n", v)
		return want[contract.Changed](h.call("PUT", "/v1/projects/shop/services/"+service, definition, "Content-Type", "application/yaml"), 200)
	}
	h.awaitTask(*put("b", 2).Task, mariposa.TaskCompleted)
	h.awaitRest("shop")
	g.close("shop")
	current := string(h.call("GET", "/v1/projects/shop/manifest", nil).body)
	current = strings.Replace(current, "V: 1", "V: 2", 1) // of a
	first := h.putManifest("shop", current, "")
	values := want[contract.Changed](h.call("PUT", "/v1/projects/shop/metadata/mode", contract.MetadataValue{Value: []byte(`"wild"`)}), 200)
	if values.Task == nil {
		t.Fatal("b is not reprovisioned for its new value")
	}
	if task := h.resubmits("shop", current); task != first {
		t.Errorf("the task of the manifest is %s and that of the metadata %s; it answers with %q", first, *values.Task, task)
	}
	if c := put("b", 2); c.Number != values.Number || c.Task != nil {
		t.Errorf("b is like this already; submitted again, it answers %+v", c)
	}

	// What else the request changes does not belong to the task.
	manifest, _ := json.Marshal(current)
	c := want[contract.Changed](h.call("PUT", "/v1/projects/shop?force=true", contract.ProjectChange{Name: "store", Manifest: manifest}), 200)
	if !c.Joined || *c.Task != first || c.Name != "store" {
		t.Errorf("renamed, it answers %+v", c)
	}
	if a := h.audit("?action=project.update")[0]; a.Task != "" {
		t.Errorf("the rename is recorded as a change of task %s", a.Task)
	}
	g.open("shop")
	h.awaitTask(first, mariposa.TaskCompleted)
}

// The second answer says what the task waits for, like the first one.
func TestAJoinedAnswerSaysWhatItsTaskWaitsFor(t *testing.T) {
	t.Parallel()
	h := newTestServer(t, withPlanner)
	h.joinGated("n1")
	h.create("shop", pair(1, 1))
	h.awaitRest("shop")
	h.awaitState(h.startTask("shop", `{"action":"freeze"}`), mariposa.TaskActive)
	needs := strings.Replace(pair(2, 1), "default: calm", "required: true", 1)
	put := func() contract.Changed {
		return want[contract.Changed](h.call("PUT", "/v1/projects/shop/manifest?force=true", needs), 200)
	}
	first, second := put(), put()
	if second.Joined = false; !reflect.DeepEqual(first, second) || len(first.Missing) != 1 || !strings.Contains(first.Reason, "project thaw") {
		t.Errorf("the first answer is %+v, the second one %+v", first, second)
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
