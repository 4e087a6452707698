package engine_test

import (
	"fmt"
	"testing"

	"mariposa"
	"mariposa/store"
)

// chain returns three services, each of which depends on the one before; v is a value of
// the first.
func chain(v int) string {
	return fmt.Sprintf("services:\n"+
		"  a: {compute_type: dummy, update: {min_healthy: 0}, environment: {V: %d}}\n"+
		"  b: {compute_type: dummy, update: {min_healthy: 0}, depends_on: [a]}\n"+
		"  c: {compute_type: dummy, update: {min_healthy: 0}, depends_on: [b]}\n", v)
}

// next returns the task that brings a version, as the API creates it.
func (r *rig) next(project string, number int, body string, services ...string) store.Write {
	r.t.Helper()
	r.version(project, number, mariposa.CauseManifest, body)
	w := r.newTask(project, r.newID(), mariposa.TaskReprovision, mariposa.Patch{Number: number}, services...)
	w.Spec.(*mariposa.TaskSpec).Supersedes = true
	return w
}

// A chain that is repaired at its beginning while a start creates it is created once,
// however slow its steps are.
func TestAVersionThatSupersedesTheFirstStartBuildsNothingTwice(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.replica("r1")
	r.node("n1", mariposa.Resources{})
	r.lazy = true
	p, start := r.create("shop", chain(1))
	r.settle()
	r.wantTask(start, mariposa.TaskActive)
	r.wantInstances(1)
	next := r.add(p, r.next(p, 2, chain(2)))
	if st := r.wantTask(start, mariposa.TaskTerminated); st.EndedBy != next {
		t.Errorf("the start is %+v", st)
	}
	r.settle()
	r.wantTask(next, mariposa.TaskActive)
	r.lazy = false
	r.settle()
	r.wantTask(next, mariposa.TaskCompleted)
	if made := r.events("instance.provisioning"); made != 4 { // the first one twice
		t.Errorf("%d instances were made", made)
	}
	r.wantNumber(p, 2, 2)
}

// A version that had to wait for a thaw ends the start when it begins.
func TestAVersionEndsTheStartWhenItBegins(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.replica("r1")
	r.node("n1", mariposa.Resources{})
	p, _ := r.create("shop", chain(1))
	r.settle()
	stop := r.lift(p, mariposa.TaskStop, mariposa.Patch{Goal: mariposa.GoalStopped}, "c")
	r.settle()
	r.wantTask(stop, mariposa.TaskCompleted)
	r.ask(p, mariposa.TaskFreeze, mariposa.Patch{Mode: mariposa.ModeFreeze}, "a")
	r.settle()
	r.lazy = true
	start := r.lift(p, mariposa.TaskStart, mariposa.Patch{Goal: mariposa.GoalStarted}, "c")
	r.settle()
	next := r.add(p, r.next(p, 2, chain(2), "a", "c"))
	r.settle()
	r.wantTask(start, mariposa.TaskActive)
	r.wantTask(next, mariposa.TaskQueued)
	r.act(p, mariposa.Patch{Mode: mariposa.ModeThaw}, "a")
	r.settle()
	r.wantTask(next, mariposa.TaskActive)
	if st := r.wantTask(start, mariposa.TaskTerminated); st.EndedBy != next || st.Finished.IsZero() {
		t.Errorf("the start is %+v", st)
	}
	r.lazy = false
	r.settle()
	r.wantTask(next, mariposa.TaskCompleted)
	r.wantNumber(p, 2, 2)
}

// A start of some services that has not begun goes first: its goal is in force when the
// version replaces it, and no step was taken towards the old one.
func TestAStartThatWaitsBeginsBeforeTheVersionThatSupersedesIt(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.replica("r1")
	r.node("n1", mariposa.Resources{})
	p, _ := r.create("shop", chain(1))
	r.settle()
	r.lift(p, mariposa.TaskStop, mariposa.Patch{Goal: mariposa.GoalStopped}, "c", "b", "a")
	r.settle()
	made := r.events("instance.provisioning")
	start := r.lift(p, mariposa.TaskStart, mariposa.Patch{Goal: mariposa.GoalStarted}, "a")
	next := r.add(p, r.next(p, 2, chain(2), "a")) // not planned meanwhile
	r.wantTask(start, mariposa.TaskQueued)
	r.settle()
	r.wantTask(next, mariposa.TaskCompleted)
	if st := r.wantTask(start, mariposa.TaskTerminated); st.EndedBy != next {
		t.Errorf("the start is %+v", st)
	}
	if n := r.events("instance.provisioning") - made; n != 1 || len(r.of("a")) != 1 {
		t.Errorf("%d instances were made", n)
	}
}
