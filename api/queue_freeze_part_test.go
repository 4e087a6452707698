package api_test

import (
	"slices"
	"strings"
	"testing"

	"mariposa"
	"mariposa/contract"
)

// A project is frozen if all of its services are, however they were frozen and thawed.
// The reason names the frozen services.
func TestAProjectIsFrozenIfEachServiceIs(t *testing.T) {
	t.Parallel()
	h := newTestServer(t, withPlanner)
	h.joinGated("n1")
	h.create("shop", pair(1, 1))
	h.awaitRest("shop")
	wants := func(a, b bool, reason string) {
		t.Helper()
		h.until("the services to be frozen or not", func() bool { return h.of("shop", "a").Frozen == a && h.of("shop", "b").Frozen == b })
		status := mariposa.StatusFrozen
		if !a && !b {
			status = mariposa.StatusConverged
		}
		h.until("the project to say so", func() bool { return h.state("shop").Status == status })
		if st := h.state("shop"); st.Frozen != (a && b) || st.Reason != reason {
			t.Errorf("a frozen: %v, b frozen: %v; the project is frozen: %v, because %q", a, b, st.Frozen, st.Reason)
		}
	}
	const nothing = " is frozen: nothing would change after thaw"
	act := func(action string) string { t.Helper(); return h.startTask("shop", "%s", action) }

	one := act(`{"action":"freeze","services":["b"]}`)
	wants(false, true, "b"+nothing)
	whole := act(`{"action":"freeze"}`) // includes the other
	wants(true, true, "a"+nothing+" (and 1 more service)")
	if old := h.awaitTask(one, mariposa.TaskTerminated); old.EndedBy != whole {
		t.Errorf("the smaller freeze: %+v", old)
	}
	h.putAction("shop", `{"action":"freeze"}`).wantError(409, mariposa.Conflict, "already frozen")
	h.putAction("shop", `{"action":"freeze","services":["a"]}`).wantError(409, mariposa.Conflict, "already frozen")
	h.awaitTask(act(`{"action":"thaw","services":["a"]}`), mariposa.TaskCompleted)
	wants(false, true, "b"+nothing)
	if again := want[contract.Changed](h.putAction("shop", `{"action":"thaw","services":["a"]}`), 202); again.Task != nil {
		t.Errorf("the thaw of what is not frozen made task %+v", h.task(*again.Task))
	}
	if task := h.task(whole); task.State != mariposa.TaskActive {
		t.Errorf("the freeze that still keeps b: %+v", task)
	}
	part := act(`{"action":"freeze","services":["a"]}`)
	wants(true, true, "a"+nothing+" (and 1 more service)")
	h.awaitTask(act(`{"action":"thaw","services":["b"]}`), mariposa.TaskCompleted)
	wants(true, false, "a"+nothing)
	h.awaitTask(act(`{"action":"thaw","services":["a"]}`), mariposa.TaskCompleted)
	wants(false, false, "")
	h.awaitTask(whole, mariposa.TaskCompleted)
	h.awaitTask(part, mariposa.TaskCompleted)
}

// The response, the task and the state show that a version waits for a thaw.
func TestAVersionThatWaitsForAThawSaysSo(t *testing.T) {
	t.Parallel()
	h := newTestServer(t, withPlanner)
	h.joinGated("n1")
	h.create("shop", pair(1, 1))
	h.awaitRest("shop")
	h.startTask("shop", `{"action":"freeze","services":["a"]}`)
	h.until("a to be frozen", func() bool { return h.state("shop").Status == mariposa.StatusFrozen })
	made := want[contract.Changed](h.call("PUT", "/v1/projects/shop/manifest?force=true", pair(2, 2)), 200)
	if made.Reason != "frozen: a; the change waits until you run mariposa -j shop project thaw --service a" {
		t.Errorf("the answer says %q", made.Reason)
	}
	if task := h.task(*made.Task); task.State != mariposa.TaskQueued || task.Reason != "version 2 was submitted; waits for the thaw of a" || len(task.WaitsFor) != 1 {
		t.Errorf("the task: %+v", task)
	}
	const waits = "version 2 waits for the thaw"
	if st := h.state("shop"); st.Reason != "a is frozen: "+waits || h.of("shop", "a").Reason != waits {
		t.Errorf("the reason of the project is %q, of the service %q", st.Reason, h.of("shop", "a").Reason)
	}
	want[contract.Terminated](h.call("DELETE", "/v1/queue/"+*made.Task, nil), 202)
	h.until("the state to forget it", func() bool { return !strings.Contains(h.state("shop").Reason, "waits") })
	again := want[contract.Changed](h.call("PUT", "/v1/projects/shop/manifest?force=true", pair(3, 3)), 200)
	h.awaitTask(h.startTask("shop", `{"action":"thaw"}`), mariposa.TaskCompleted)
	h.awaitTask(*again.Task, mariposa.TaskCompleted)
	if st := h.state("shop"); st.Reason != "" || st.Frozen {
		t.Errorf("after the thaw: %+v", st)
	}
}

// A freeze ends with the last service that it keeps, whatever lifts it. Changes to services
// that are thawed already do not wait for the others.
func TestAFreezeEndsWithItsLastService(t *testing.T) {
	t.Parallel()
	h := newTestServer(t, withPlanner)
	h.joinGated("n1")
	h.create("shop", pair(1, 1))
	h.awaitRest("shop")
	freeze := h.startTask("shop", `{"action":"freeze"}`)
	h.until("the freeze", func() bool { return h.state("shop").Frozen })
	scale := func(service string, n int) string {
		t.Helper()
		return h.startTask("shop", `{"action":"scale","scale":{%q:%d}}`, service, n)
	}
	h.awaitTask(scale("a", 3), mariposa.TaskCompleted)
	if open := h.openTasks("shop"); len(open) != 1 || open[0].ID != freeze || open[0].Reason != "still frozen: b" {
		t.Errorf("the open tasks are %+v", open)
	}
	h.awaitTask(h.putManifest("shop", pair(2, 1), ""), mariposa.TaskCompleted) // changes a only
	waits := h.putManifest("shop", pair(2, 2), "")
	if task := h.task(waits); task.State != mariposa.TaskQueued || len(task.WaitsFor) != 1 || task.WaitsFor[0] != freeze {
		t.Errorf("the change to b: %+v", task)
	}
	last := scale("b", 3)
	if ended := h.awaitTask(freeze, mariposa.TaskTerminated); ended.EndedBy != last {
		t.Errorf("the freeze is %+v", ended)
	}
	h.awaitTask(last, mariposa.TaskCompleted)
	h.awaitTask(waits, mariposa.TaskCompleted)
	h.awaitRest("shop")
	if st := h.state("shop"); st.Frozen || st.Status != mariposa.StatusConverged {
		t.Errorf("in the end: %+v", st)
	}
}

// A change may end one freeze, and a part of another.
func TestAChangeSaysWhichFreezesItEnds(t *testing.T) {
	t.Parallel()
	h := newTestServer(t, withPlanner)
	h.joinGated("n1")
	h.create("shop", strings.Replace(pair(1, 1), "\nmetadata:", "\n  c: {compute_type: dummy, update: {min_healthy: 0}}\nmetadata:", 1))
	h.awaitRest("shop")
	freezeA := h.startTask("shop", `{"action":"freeze","services":["a"]}`)
	freezeRest := h.startTask("shop", `{"action":"freeze","services":["b","c"]}`)
	h.until("the freezes", func() bool { return h.state("shop").Frozen })
	done := want[contract.Changed](h.putAction("shop", `{"action":"scale","scale":{"a":3,"b":3}}`), 202)
	if len(done.Ended) != 1 || done.Ended[0].ID != freezeA || !slices.Equal(done.Thawed, []string{"b"}) {
		t.Errorf("it ends %+v and thaws %v", done.Ended, done.Thawed)
	}
	h.awaitTask(*done.Task, mariposa.TaskCompleted)
	if kept := h.task(freezeRest); kept.State != mariposa.TaskActive || kept.Reason != "still frozen: c" {
		t.Errorf("the other freeze is %+v", kept)
	}
	last := want[contract.Changed](h.putAction("shop", `{"action":"scale","scale":{"c":2}}`), 202)
	if len(last.Ended) != 1 || last.Ended[0].ID != freezeRest || !slices.Equal(last.Ended[0].Services, []string{"c"}) {
		t.Errorf("with its last service it ends %+v", last.Ended)
	}
}
