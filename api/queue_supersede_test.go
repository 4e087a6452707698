package api_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	"mariposa"
	"mariposa/contract"
	"mariposa/store"
)

// chain returns a manifest with three services, each depending on the previous one, and
// settings for the first.
func chain(first string) string {
	return "services:\n" +
		"  a: {compute_type: dummy, update: {min_healthy: 0}" + first + "}\n" +
		"  b: {compute_type: dummy, update: {min_healthy: 0}, depends_on: [a]}\n" +
		"  c: {compute_type: dummy, update: {min_healthy: 0}, depends_on: [b]}\n"
}

// everMade counts the instances of each service that were ever created.
func (h *testServer) everMade(project string) string {
	h.t.Helper()
	made := map[string]int{}
	for _, e := range want[contract.Events](h.call("GET", "/v1/events?limit=1000&since=0&project="+project, nil), 200).Events {
		if e.Kind == "instance.provisioning" {
			made[e.ServiceName]++
		}
	}
	return fmt.Sprintf("a %d, b %d, c %d", made["a"], made["b"], made["c"])
}

// begun creates a project whose first start is active and makes no progress while the
// gated driver is closed.
func (h *testServer) begun(g *gatedDriver, project, manifest string) (start string) {
	h.t.Helper()
	g.close(project)
	start = *h.create(project, manifest).Task
	h.awaitState(start, mariposa.TaskActive)
	h.until("the first to be made", func() bool { return len(h.instances(project, "a")) == 1 })
	return start
}

// superseded checks that a task terminates a start as soon as it begins, and is named
// in ended_by.
func (h *testServer) superseded(start, by string) {
	h.t.Helper()
	h.awaitState(start, mariposa.TaskTerminated)
	if task := h.task(start); task.State != mariposa.TaskTerminated || task.EndedBy != by || task.Finished == nil {
		h.t.Fatalf("the start is %+v, and was to be ended by %s", task, by)
	}
}

// crowdedStore is a store in which the planner writes the progress of an active task
// just before each commit of a user's change.
type crowdedStore struct{ store.Store }

func (s crowdedStore) Commit(ctx context.Context, units ...store.Unit) []store.Result {
	people := func(w store.Write) bool { return w.Kind == mariposa.KindProject && w.Spec != nil }
	if slices.ContainsFunc(units, func(u store.Unit) bool { return slices.ContainsFunc(u.Writes, people) }) {
		tasks, err := s.List(ctx, store.Query{Kind: mariposa.KindTask})
		if err != nil {
			return store.FailAll(units, err)
		}
		for _, r := range tasks {
			if st, _ := r.Status.(*mariposa.TaskStatus); st != nil && st.State == mariposa.TaskActive {
				s.Store.Commit(ctx, store.Unit{Writes: []store.Write{{Kind: mariposa.KindTask, ID: r.ID, Status: st}}})
			}
		}
	}
	return s.Store.Commit(ctx, units...)
}

// A start that makes constant progress does not block a new version.
func TestAManifestSupersedesAStartThatMoves(t *testing.T) {
	t.Parallel()
	h := newTestServer(t, withPlanner, withStore(func(s store.Store) store.Store { return crowdedStore{s} }))
	g := h.joinGated("n1")
	start := h.begun(g, "shop", chain(""))
	c := want[contract.Changed](h.call("PUT", "/v1/projects/shop/manifest?force=true", chain(", environment: {V: 2}")), 200)
	if len(c.Ended) != 1 || c.Ended[0].ID != start {
		t.Errorf("it ends %+v", c.Ended)
	}
	h.superseded(start, *c.Task)
	g.open("shop")
	h.awaitRest("shop")
}

// If the first service of a chain is fixed during the first start, everything is
// created once: the new version supersedes the start.
func TestAManifestSupersedesTheFirstStart(t *testing.T) {
	t.Parallel()
	h := newTestServer(t, withPlanner)
	g := h.joinGated("n1")
	start := h.begun(g, "shop", chain(""))
	c := want[contract.Changed](h.call("PUT", "/v1/projects/shop/manifest?force=true", chain(", environment: {V: 2}")), 200)
	h.superseded(start, *c.Task)
	if len(c.Ended) != 1 || c.Ended[0].ID != start || c.Ended[0].Task != mariposa.TaskStart {
		t.Errorf("the answer names %+v as ended", c.Ended)
	}
	h.awaitState(*c.Task, mariposa.TaskActive)
	if task := h.task(*c.Task); task.Task != mariposa.TaskReprovision || len(task.Services) != 0 {
		t.Errorf("what takes the place of the start is %+v", task)
	}
	g.open("shop")
	h.awaitTask(*c.Task, mariposa.TaskCompleted)
	if made := h.everMade("shop"); made != "a 2, b 1, c 1" {
		t.Errorf("made were %s", made)
	}
	if st := h.state("shop"); st.Status != mariposa.StatusConverged || st.Version != c.Version {
		t.Errorf("it is %+v", st)
	}
}

// Only new versions supersede a start; other tasks wait according to the table.
func TestAnExplicitReprovisionWaitsForTheFirstStart(t *testing.T) {
	t.Parallel()
	h := newTestServer(t, withPlanner)
	g := h.joinGated("n1")
	start := h.begun(g, "shop", chain(""))
	anew := h.startTask("shop", `{"action":"reprovision","services":["a"]}`)
	if task := h.task(anew); task.State != mariposa.TaskQueued || len(task.WaitsFor) != 1 || task.WaitsFor[0] != start {
		t.Errorf("it is %+v", task)
	}
	// New metadata values wait too; a manifest terminates the start and the tasks that wait for it.
	set := want[contract.Changed](h.call("PUT", "/v1/projects/shop/metadata/mode", contract.MetadataValue{Value: []byte(`"x"`)}), 200)
	if set.Task != nil || h.task(start).State != mariposa.TaskActive {
		t.Errorf("values made %+v, the start is %+v", set, h.task(start))
	}
	next := h.putManifest("shop", chain(", environment: {V: 2}"), "")
	h.superseded(start, next)
	if task := h.task(anew); task.State != mariposa.TaskTerminated || task.EndedBy != next {
		t.Errorf("what waited for the start is %+v", task)
	}
	g.open("shop")
	h.awaitTask(next, mariposa.TaskCompleted)
}

// A manifest that only changes scales also supersedes a start, and finishes its work.
func TestAManifestOfOtherScalesFinishesTheStart(t *testing.T) {
	t.Parallel()
	h := newTestServer(t, withPlanner)
	g := h.joinGated("n1")
	start := h.begun(g, "shop", chain(""))
	next := h.putManifest("shop", chain(", scale: 2"), "")
	h.superseded(start, next)
	g.open("shop")
	h.awaitTask(next, mariposa.TaskCompleted)
	if made := h.everMade("shop"); made != "a 2, b 1, c 1" || h.state("shop").Status != mariposa.StatusConverged {
		t.Errorf("made were %s; it is %+v", made, h.state("shop"))
	}
}

// A revert to a version supersedes the start of another version, like a manifest.
func TestARevertSupersedesAStart(t *testing.T) {
	t.Parallel()
	h := newTestServer(t, withPlanner)
	g := h.joinGated("n1")
	h.create("shop", chain(""))
	h.awaitRest("shop")
	h.awaitTask(h.putManifest("shop", chain(", environment: {V: 2}"), ""), mariposa.TaskCompleted)
	h.awaitTask(h.startTask("shop", `{"action":"stop"}`), mariposa.TaskCompleted)
	g.close("shop")
	start := h.startTask("shop", `{"action":"start"}`)
	h.awaitState(start, mariposa.TaskActive)
	back := h.startTask("shop", `{"action":"revert"}`)
	h.superseded(start, back)
	g.open("shop")
	h.awaitTask(back, mariposa.TaskCompleted)
	if st := h.state("shop"); st.Status != mariposa.StatusConverged || st.Services[2].Running != 1 {
		t.Errorf("it is %+v", st)
	}
	if p := want[contract.Project](h.call("GET", "/v1/projects/shop", nil), 200); p.Number != 3 {
		t.Errorf("the newest version is %d", p.Number)
	}
}

// A revert of a first create leaves nothing: the project is stopped. A start rolls out
// its newest version again.
func TestARevertOfAFirstCreateLeavesNothing(t *testing.T) {
	t.Parallel()
	h := newTestServer(t, withPlanner)
	g := h.joinGated("n1")
	start := h.begun(g, "shop", chain(""))
	h.putAction("shop", `{"action":"revert","rolling":1}`).wantError(400, mariposa.InvalidArgument, "no version of shop ever completed")
	c := want[contract.Changed](h.putAction("shop", `{"action":"revert"}`), 202)
	if c.Task == nil || c.Number != 1 || !strings.Contains(c.Reason, "the project is stopped and its instances are removed") {
		t.Fatalf("it answered %+v", c)
	}
	h.superseded(start, *c.Task)
	g.open("shop")
	if task := h.awaitTask(*c.Task, mariposa.TaskCompleted); task.Task != mariposa.TaskStop || task.Component != "revert" {
		t.Errorf("the task is %+v", task)
	}
	if left := want[contract.Instances](h.call("GET", "/v1/instances?project=shop", nil), 200).Instances; len(left) > 0 {
		t.Errorf("left are %+v", left)
	}
	if st := h.state("shop"); st.Goal != mariposa.GoalStopped || st.Status != mariposa.StatusStopped {
		t.Errorf("it is %+v", st)
	}
	if again := want[contract.Changed](h.putAction("shop", `{"action":"revert"}`), 202); again.Task != nil {
		t.Errorf("taken back once more: %+v", again)
	}
	h.awaitTask(h.startTask("shop", `{"action":"start"}`), mariposa.TaskCompleted)
	if st := h.state("shop"); st.Status != mariposa.StatusConverged || st.Services[2].Running != 1 {
		t.Errorf("started again, it is %+v", st)
	}
	h.putAction("shop", `{"action":"revert"}`).wantError(409, mariposa.Conflict, "name the version")
}

// Several versions that never came into force are undone together, including those that
// wait for a thaw. A start rolls out the newest of them.
func TestARevertOfAFirstCreateDropsWhatWaits(t *testing.T) {
	t.Parallel()
	h := newTestServer(t, withPlanner)
	g := h.joinGated("n1")
	h.begun(g, "shop", chain(""))
	freeze := h.startTask("shop", `{"action":"freeze"}`)
	h.awaitState(freeze, mariposa.TaskActive)
	waits := h.putManifest("shop", chain(", environment: {V: 2}"), "")
	if task := h.task(waits); task.State != mariposa.TaskQueued {
		t.Fatalf("under a freeze the manifest's task is %+v", task)
	}
	back := h.startTask("shop", `{"action":"revert"}`)
	for _, id := range []string{freeze, waits} {
		h.superseded(id, back)
	}
	g.open("shop")
	h.awaitTask(back, mariposa.TaskCompleted)
	if left := h.instances("shop", ""); len(left) > 0 {
		t.Errorf("left are %+v", left)
	}
	h.awaitTask(h.startTask("shop", `{"action":"start"}`), mariposa.TaskCompleted)
	if p := want[contract.Project](h.call("GET", "/v1/projects/shop", nil), 200); p.Number != 2 || h.state("shop").Version != p.Version {
		t.Errorf("version %s is in force, and the newest is %+v", h.state("shop").Version, p)
	}
}

// A deployer's revert of a first create does not lift a freeze: it waits for the thaw,
// and existing instances are kept until then.
func TestADeployersRevertOfAFirstCreateWaitsForTheThaw(t *testing.T) {
	t.Parallel()
	h := newTestServer(t, withPlanner)
	h.joinGated("n1")
	h.create("shop", strings.Replace(chain(""), "c: {", "c: {dummy: {fail_prop: \"yes\"}, ", 1)) // the last never comes up
	h.until("what can come up", func() bool { return len(h.instances("shop", "b")) == 1 })
	deployer, _ := h.newMembers("shop")
	h.awaitState(h.startTask("shop", `{"action":"freeze"}`), mariposa.TaskActive)
	back := deployer.startTask(h.idOf("shop"), `{"action":"revert"}`)
	if task := h.task(back); task.State != mariposa.TaskQueued || len(h.instances("shop", "")) == 0 {
		t.Errorf("it does not wait: %+v", task)
	}
	h.awaitTask(h.startTask("shop", `{"action":"thaw"}`), mariposa.TaskCompleted)
	h.awaitTask(back, mariposa.TaskCompleted)
	if left := h.instances("shop", ""); len(left) > 0 {
		t.Errorf("left are %+v", left)
	}
}

// A manifest for a frozen scope waits for the thaw, and the concurrent start continues
// until then.
func TestAManifestThatWaitsForAThawLeavesTheStartAlone(t *testing.T) {
	t.Parallel()
	h := newTestServer(t, withPlanner)
	g := h.joinGated("n1")
	h.create("shop", trio)
	h.awaitRest("shop")
	h.awaitTask(h.startTask("shop", `{"action":"stop","services":["a"]}`), mariposa.TaskCompleted)
	h.awaitState(h.startTask("shop", `{"action":"freeze","services":["b"]}`), mariposa.TaskActive)
	g.close("shop")
	start := h.startTask("shop", `{"action":"start","services":["a"]}`)
	h.awaitState(start, mariposa.TaskActive)
	next := h.putManifest("shop", strings.ReplaceAll(trio, "dummy,", "dummy, environment: {V: 2},"), "")
	if task := h.task(next); task.State != mariposa.TaskQueued || h.task(start).State != mariposa.TaskActive {
		t.Errorf("the start is %+v beside %+v", h.task(start), task)
	}
	h.startTask("shop", `{"action":"thaw","services":["b"]}`)
	h.awaitState(next, mariposa.TaskActive)
	h.superseded(start, next)
	g.open("shop")
	h.awaitTask(next, mariposa.TaskCompleted)
	if st := h.state("shop"); st.Status != mariposa.StatusConverged || st.Services[0].Running != 1 || st.Services[0].Outdated != 0 {
		t.Errorf("it is %+v", st)
	}
}

// The commands in the response after terminating a task that superseded a first start.
func TestATerminatedFirstVersionIsUndoneByAStop(t *testing.T) {
	t.Parallel()
	h := newTestServer(t, withPlanner)
	g := h.joinGated("n1")
	h.begun(g, "shop", chain(""))
	next := h.putManifest("shop", chain(", environment: {V: 2}"), "")
	h.awaitState(next, mariposa.TaskActive)
	ended := want[contract.Terminated](h.call("DELETE", "/v1/queue/"+next, nil), 202)
	if undoOf(ended) != "mariposa -j shop project stop" || ended.ContinueWith != "mariposa -j shop project thaw" {
		t.Errorf("it answered %+v", ended)
	}
	g.open("shop")
	h.awaitTask(h.startTask("shop", `{"action":"stop"}`), mariposa.TaskCompleted)
	if left := h.instances("shop", ""); len(left) > 0 {
		t.Errorf("left are %+v", left)
	}
}
