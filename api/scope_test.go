package api_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"mariposa"
	"mariposa/contract"
)

// three returns a manifest with services whose failed updates are rolled back, and
// settings for some of them.
func three(words map[string]string) string {
	text := "services:\n"
	for _, name := range []string{"a", "b", "c"} {
		text += fmt.Sprintf("  %s: {compute_type: dummy, update: {min_healthy: 0, on_failure: rollback}%s}\n", name, words[name])
	}
	return text
}

const (
	other = `, environment: {V: "2"}`
	fails = `, environment: {V: "2"}, dummy: {fail_prop: "yes"}`
)

// planned returns the planned change of each service, and the services whose instances
// would be created.
func (h *testServer) planned(project, manifest string) (changes map[string]string, makes []string) {
	h.t.Helper()
	changes = map[string]string{}
	plan := want[contract.Plan](h.call("POST", "/v1/projects/"+project+"/plan", manifest), 200)
	for _, r := range plan.Resources {
		changes[r.Name] = r.Change
	}
	for _, s := range plan.Steps {
		if s.Step == "create" {
			makes = append(makes, s.Service)
		}
	}
	slices.Sort(makes)
	return changes, slices.Compact(makes)
}

// changedBy returns the services that a version changed.
func (h *testServer) changedBy(project, version string) string {
	h.t.Helper()
	return strings.Join(want[contract.Version](h.call("GET", "/v1/projects/"+project+"/versions/"+version, nil), 200).ServicesChanged, " ")
}

// scopeOf returns the services of a task.
func scopeOf(task contract.Task) string { return strings.Join(task.Services, " ") }

// After a rollback, a new version is compared with the version in force: if it still
// has the fault, its task covers all changes and fails.
func TestAVersionAfterARollbackIsComparedWithWhatIsInForce(t *testing.T) {
	t.Parallel()
	h := newTestServer(t, withPlanner)
	h.joinGated("n1")
	h.create("shop", three(nil))
	h.awaitRest("shop")
	h.awaitTask(h.putManifest("shop", three(map[string]string{"c": fails}), ""), mariposa.TaskFailed)
	h.awaitRest("shop")

	still := three(map[string]string{"a": other, "c": fails})
	changes, makes := h.planned("shop", still)
	if changes["a"] != "replace" || changes["b"] != "unchanged" || changes["c"] != "replace" || strings.Join(makes, " ") != "a c" {
		t.Errorf("the plan has %v and makes %v", changes, makes)
	}
	task := h.awaitTask(h.putManifest("shop", still, ""), mariposa.TaskFailed)
	if scopeOf(task) != "a c" || !strings.Contains(task.Reason, "rolled back to version 1") {
		t.Errorf("its task sees to %q and ended with %q", scopeOf(task), task.Reason)
	}
	if got := h.changedBy("shop", "3"); got != "a" {
		t.Errorf("version 3 changed %q of the one before", got)
	}
	h.awaitRest("shop")

	mended := three(map[string]string{"a": other, "c": other})
	task = h.awaitTask(h.putManifest("shop", mended, ""), mariposa.TaskCompleted)
	if scopeOf(task) != "a c" {
		t.Errorf("its task sees to %q", scopeOf(task))
	}
	for _, service := range []string{"a", "c"} {
		if s := h.of("shop", service); s.Status != mariposa.StatusConverged || s.Running != 1 || s.Outdated != 0 {
			t.Errorf("when the task has ended, %s is %+v", service, s)
		}
	}
	for _, own := range want[contract.Tasks](h.call("GET", "/v1/queue?project=shop&all=true", nil), 200).Tasks {
		if own.Component == "repair" {
			t.Errorf("the work of a version was done as a repair: %s", own.Reason)
		}
	}
}

// The next update includes the changes of a dropped one.
func TestAVersionAfterADroppedOneSeesToWhatThatOneChanged(t *testing.T) {
	t.Parallel()
	h := newTestServer(t, withPlanner)
	h.joinGated("n1")
	h.create("shop", three(nil))
	h.awaitRest("shop")
	h.awaitState(h.startTask("shop", `{"action":"freeze"}`), mariposa.TaskActive)
	dropped := h.putManifest("shop", three(map[string]string{"a": other}), "")
	want[contract.Terminated](h.call("DELETE", "/v1/queue/"+dropped, nil), 202)
	h.awaitTask(h.startTask("shop", `{"action":"thaw"}`), mariposa.TaskCompleted)

	next := three(map[string]string{"a": other, "b": ", scale: 2"})
	changes, makes := h.planned("shop", next)
	if changes["a"] != "replace" || changes["b"] != "scale" || changes["c"] != "unchanged" || strings.Join(makes, " ") != "a b" {
		t.Errorf("the plan has %v and makes %v", changes, makes)
	}
	task := h.awaitTask(h.putManifest("shop", next, ""), mariposa.TaskCompleted)
	if scopeOf(task) != "a b" || task.Task != mariposa.TaskReprovision {
		t.Errorf("it is a %s of %q", task.Task, scopeOf(task))
	}
	if got := h.changedBy("shop", "3"); got != "b" {
		t.Errorf("version 3 changed %q of the one before", got)
	}
}

// An update that terminates another one includes its unfinished changes.
func TestAnUpdateThatEndsAnotherFinishesWhatThatOneBegan(t *testing.T) {
	t.Parallel()
	h := newTestServer(t, withPlanner)
	g := h.joinGated("n1")
	h.create("shop", three(nil))
	h.awaitRest("shop")
	g.close("shop")
	first := h.putManifest("shop", three(map[string]string{"a": other, "b": other, "c": other}), "")
	h.until("b to be made anew", func() bool { return len(h.instances("shop", "b")) == 2 })
	second := h.putManifest("shop", three(map[string]string{"b": other, "c": other}), "")
	h.awaitTask(first, mariposa.TaskTerminated)
	if got := scopeOf(h.task(second)); got != "a b c" {
		t.Errorf("it sees to %q", got)
	}
	g.open("shop")
	h.awaitTask(second, mariposa.TaskCompleted)
	if s := h.of("shop", "b"); s.Status != mariposa.StatusConverged || s.Outdated != 0 {
		t.Errorf("when the task has ended, b is %+v", s)
	}
}

// New values after a rollback belong to the manifest in force: the task that applies
// them does not retry the failed manifest.
func TestValuesAfterARollbackLeaveWhatWasTakenBack(t *testing.T) {
	t.Parallel()
	h := newTestServer(t, withPlanner)
	h.joinGated("n1")
	text := func(b string) string {
		return "services:\n  a: {compute_type: dummy, environment: {M: '{{ .meta.mode }}'}, update: {min_healthy: 0, on_failure: rollback, on_metadata: reprovision}}\n" +
			"  b: {compute_type: dummy, update: {min_healthy: 0, on_failure: rollback}" + b + "}\nmetadata: {mode: {default: x}}\n"
	}
	h.create("shop", text(""))
	h.awaitRest("shop")
	h.awaitTask(h.putManifest("shop", text(fails), ""), mariposa.TaskFailed)
	h.awaitRest("shop")
	c := want[contract.Changed](h.call("PUT", "/v1/projects/shop/metadata/mode", contract.MetadataValue{Value: []byte(`"y"`)}), 200)
	if c.Task == nil {
		t.Fatal("no task was created")
	}
	if task := h.awaitTask(*c.Task, mariposa.TaskCompleted); scopeOf(task) != "a" {
		t.Errorf("its task sees to %q and ended with %q", scopeOf(task), task.Reason)
	}
	if st := h.state("shop"); st.Status != mariposa.StatusConverged || h.of("shop", "a").Version != c.Version {
		t.Errorf("with the new values it is %+v", st)
	}
}

// Every rollback of a version is reported by a task, even if the task of that version
// had ended before.
func TestNothingIsTakenBackWithoutATaskThatSaysSo(t *testing.T) {
	t.Parallel()
	h := newTestServer(t, withPlanner)
	g := h.joinGated("n1")
	for name, end := range map[string]func(h *testServer, task string){
		"terminated": func(h *testServer, task string) {
			want[contract.Terminated](h.call("DELETE", "/v1/queue/"+task, nil), 202)
			h.awaitState(h.startTask("terminated", `{"action":"thaw"}`), mariposa.TaskActive)
		},
		"made-anew": func(h *testServer, task string) {
			h.startTask("made-anew", `{"action":"reprovision","services":["b","c"]}`)
			h.awaitTask(task, mariposa.TaskTerminated)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := h.in(t)
			h.create(name, three(nil))
			h.awaitRest(name)
			g.close(name)
			task := h.putManifest(name, three(map[string]string{"c": fails}), "")
			h.awaitState(task, mariposa.TaskActive)
			end(h, task)
			g.open(name)
			said := func() bool {
				return slices.ContainsFunc(want[contract.Tasks](h.call("GET", "/v1/queue?all=true&project="+name, nil), 200).Tasks, func(t contract.Task) bool {
					own := t.Component == "rollback" && t.State == mariposa.TaskCompleted && slices.Contains(t.Services, "c")
					return strings.Contains(t.Reason, "rolled back to version 1") && own == (name == "terminated") && (own || t.State == mariposa.TaskFailed)
				})
			}
			h.until("a task that says so", said)
			h.awaitRest(name)
			if s := h.of(name, "c"); s.Status != mariposa.StatusConverged || s.Outdated != 0 {
				t.Errorf("in the end c is %+v", s)
			}
		})
	}
}

// Values set before the first task begins are applied only to services that apply them
// automatically: the first task covers the rest.
func TestValuesThatComeBeforeTheFirstTaskBringNothingElse(t *testing.T) {
	t.Parallel()
	h := newTestServer(t)
	h.create("shop", pair(1, 1))
	c := want[contract.Changed](h.call("PUT", "/v1/projects/shop/metadata/mode", contract.MetadataValue{Value: []byte(`"wild"`)}), 200)
	if c.Task == nil {
		t.Fatal("no task was created")
	}
	if got := scopeOf(h.task(*c.Task)); got != "b" {
		t.Errorf("its task sees to %q", got)
	}
}
