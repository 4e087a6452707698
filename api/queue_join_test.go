package api_test

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"

	"mariposa"
	"mariposa/contract"
)

// putService submits the definition of one service.
func (h *testServer) putService(project, service, definition string) contract.Changed {
	h.t.Helper()
	return want[contract.Changed](h.call("PUT", "/v1/projects/"+project+"/services/"+service, definition, "Content-Type", "application/yaml"), 200)
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

// The rollout of a manifest comes before that of values, and that of a service before others.
func TestASubmissionJoinsItsOwnRollout(t *testing.T) {
	t.Parallel()
	h := newTestServer(t, withPlanner)
	g := h.joinGated("n1")
	h.create("shop", pair(1, 1))
	h.awaitRest("shop")
	const b = "compute_type: dummy\nenvironment: {V: 2, MODE: \"{{ .meta.mode }}\"}\nupdate: {min_healthy: 0, on_metadata: reprovision}\n"
	h.awaitTask(*h.putService("shop", "b", b).Task, mariposa.TaskCompleted)
	h.awaitRest("shop")
	g.close("shop")
	current := string(h.call("GET", "/v1/projects/shop/manifest", nil).body)
	current = strings.Replace(current, "V: 1", "V: 2", 1) // of a
	first := h.putManifest("shop", current, "")
	h.awaitState(first, mariposa.TaskActive)
	values := want[contract.Changed](h.call("PUT", "/v1/projects/shop/metadata/mode", contract.MetadataValue{Value: []byte(`"wild"`)}), 200)
	if values.Task == nil {
		t.Fatal("b is not reprovisioned for its new value")
	}
	if task := h.resubmits("shop", current); task != first {
		t.Errorf("the task of the manifest is %s and that of the metadata %s; it answers with %q", first, *values.Task, task)
	}
	if c := h.putService("shop", "b", b); c.Task != nil {
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
	needs := strings.Replace(pair(2, 1), "calm}", "calm}, extra: {required: true}", 1)
	put := func() contract.Changed {
		return want[contract.Changed](h.call("PUT", "/v1/projects/shop/manifest?force=true", needs), 200)
	}
	first, second := put(), put()
	if !second.Joined {
		t.Errorf("the second answer is %+v", second)
	}
	if second.Joined = false; !reflect.DeepEqual(first, second) || len(first.Missing) != 1 || !strings.Contains(first.Reason, "project thaw") {
		t.Errorf("the first answer is %+v, the second one %+v", first, second)
	}
	want[contract.Changed](h.call("PUT", "/v1/projects/shop/metadata/extra", contract.MetadataValue{Value: []byte(`"wild"`)}), 200)
	if c := want[contract.Changed](h.call("PUT", "/v1/projects/shop/manifest?force=true&rolling=1", needs), 200); !strings.Contains(c.Reason, "rolling and canary have no effect") {
		t.Errorf("with another batch size, it answers %+v", c)
	}
	if third := put(); !third.Joined || *third.Task != *first.Task || len(third.Missing) > 0 {
		t.Errorf("with its value, it answers %+v", third)
	}
}

// If another task goes on with the rollout, the answer has no task: the state says how it ends.
func TestASubmissionDoesNotJoinOtherTasks(t *testing.T) {
	t.Parallel()
	h := newTestServer(t, withPlanner)
	g := h.joinGated("n1")
	for _, action := range []string{"reprovision", "scale", "thaw"} {
		t.Run(action, func(t *testing.T) {
			t.Parallel()
			h, project := h.in(t), "by-"+action
			h.create(project, pair(1, 1))
			h.awaitRest(project)
			g.close(project)
			first := h.putManifest(project, pair(1, 2), "")
			h.awaitState(first, mariposa.TaskActive)
			body := map[string]string{"reprovision": `{"action":"reprovision","services":["b"]}`, "scale": `{"action":"scale","scale":{"b":3}}`, "thaw": `{"action":"thaw"}`}[action]
			if action != "reprovision" {
				want[contract.Terminated](h.call("DELETE", "/v1/queue/"+first, nil), 202)
				h.until("the freeze", func() bool { return h.of(project, "b").Frozen })
				c := want[contract.Changed](h.call("PUT", "/v1/projects/"+project+"/manifest?force=true", pair(1, 2)), 200)
				if c.Task != nil || !strings.HasPrefix(c.Reason, "b: frozen before the rollout was finished; thaw with ") {
					t.Errorf("frozen, it answers %+v", c)
				}
			}
			h.awaitState(h.startTask(project, "%s", body), mariposa.TaskActive)
			if task := h.resubmits(project, pair(1, 2)); task != "" {
				t.Errorf("it answers with task %+v", h.task(task))
			}
			g.open(project)
			h.awaitRest(project)
		})
	}
}

// A change of one service does not retry others.
func TestAServiceThatIsUnchangedDoesNotRetryOthers(t *testing.T) {
	t.Parallel()
	h := newTestServer(t, withPlanner)
	g := h.joinGated("n1")
	h.create("shop", causal(1, 1))
	h.awaitRest("shop")
	const x, y = "compute_type: dummy\nenvironment: {V: 2}\nupdate: {min_healthy: 0}\n", "compute_type: dummy\nenvironment: {V: 3}\nupdate: {min_healthy: 0}\n"
	h.awaitTask(*h.putService("shop", "y", y).Task, mariposa.TaskCompleted)
	g.spoil("shop", true)
	h.awaitTask(*h.putService("shop", "x", x).Task, mariposa.TaskFailed)
	h.awaitRest("shop")
	if c := h.putService("shop", "y", y); c.Task != nil {
		t.Errorf("y, which is unchanged, answers %+v", c)
	}
	g.spoil("shop", false)
	if c := h.putService("shop", "x", x); c.Task == nil || c.Joined {
		t.Errorf("x, which failed, answers %+v", c)
	} else {
		h.awaitTask(*c.Task, mariposa.TaskCompleted)
	}
}

// A change of one service is rolled out by its own task, also after another service has changed.
func TestAServiceJoinsItsTaskAfterOthersChanged(t *testing.T) {
	t.Parallel()
	h := newTestServer(t, withPlanner)
	g := h.joinGated("n1")
	h.create("shop", causal(1, 1))
	h.awaitRest("shop")
	const x, y = "compute_type: dummy\nenvironment: {V: 2}\nupdate: {min_healthy: 0}\n", "compute_type: dummy\nenvironment: {V: 3}\nupdate: {min_healthy: 0}\n"
	g.close("shop")
	ofX, ofY := *h.putService("shop", "x", x).Task, *h.putService("shop", "y", y).Task
	for service, c := range map[string]struct{ definition, task string }{"x": {x, ofX}, "y": {y, ofY}} {
		if got := h.putService("shop", service, c.definition); !got.Joined || *got.Task != c.task || got.Number != 3 {
			t.Errorf("%s, submitted again, answers %+v; its task is %s", service, got, c.task)
		}
	}
	g.open("shop")
	h.awaitTask(ofX, mariposa.TaskCompleted)
	h.awaitTask(ofY, mariposa.TaskCompleted)
}

// A manifest that needs no task is not always what runs.
func TestASubmissionThatNeedsNoTaskSaysWhatHoldsItBack(t *testing.T) {
	t.Parallel()
	h := newTestServer(t, withPlanner)
	h.joinGated("n1")
	h.create("shop", pair(1, 1))
	h.awaitRest("shop")
	h.awaitTask(h.startTask("shop", `{"action":"stop"}`), mariposa.TaskCompleted)
	c := want[contract.Changed](h.call("PUT", "/v1/projects/shop/manifest?force=true", pair(1, 1)), 200)
	if c.Task != nil || c.Reason != "shop is stopped: start it with mariposa -j shop project start" {
		t.Errorf("it answers %+v", c)
	}
}

// The answer to a manifest that was submitted before names each version that waits for an approval:
// that of its task, and a newer one with other values.
func TestASubmissionNamesTheVersionsThatWaitForApproval(t *testing.T) {
	t.Parallel()
	h := newTestServer(t, withPlanner)
	h.join("n1")
	project, deployer, operator := h.protectedShop()
	evil := vaultOf("\"print $PASSWORD {{ .meta.mode }}\"", "")
	put := func() contract.Changed {
		t.Helper()
		return want[contract.Changed](deployer.call("PUT", h.about(project, "/manifest?force=true"), evil), 200)
	}
	const second, third = "waits for an operator to approve version 2", "waits for an operator to approve version 3"
	first := put()
	want[contract.Changed](deployer.call("PUT", h.about(project, "/metadata/mode"), contract.MetadataValue{Value: []byte(`"wild"`)}), 200)
	if c := put(); !c.Joined || *c.Task != *first.Task || !strings.Contains(c.Reason, second) || !strings.Contains(c.Reason, third) || len(c.NeedsApproval) != 1 {
		t.Errorf("with another value, it answers %+v", c)
	}
	want[contract.Changed](operator.call("PUT", h.about(project, "/versions/2/approval"), nil), 200)
	h.awaitTask(*first.Task, mariposa.TaskCompleted)
	if c := put(); c.Task != nil || strings.Contains(c.Reason, second) || !strings.Contains(c.Reason, third) {
		t.Errorf("approved, it answers %+v", c)
	}
}
