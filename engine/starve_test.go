package engine_test

import (
	"fmt"
	"testing"
	"time"

	"mariposa"
)

// up counts the running instances of a project's service.
func (r *rig) up(project, service string) int {
	n := 0
	for _, rec := range r.of(service) {
		st, _ := rec.Status.(*mariposa.InstanceStatus)
		if rec.Spec.(*mariposa.InstanceSpec).Project == project && st != nil && st.State == mariposa.StateRunning {
			n++
		}
	}
	return n
}

// TestAServiceThatKeepsCrashingDoesNotStarveOthers makes a thousand instances of one
// service fail again and again, on an engine with a low limit, and checks the other
// services, in its own project and in another.
func TestAServiceThatKeepsCrashingDoesNotStarveOthers(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.limit, r.bulk = 100, true
	r.replica("r1")
	r.node("n1", mariposa.Resources{})
	r.fail["bad"] = true
	p, _ := r.create("shop", "services:\n  bad: {compute_type: dummy, scale: 1000}\n  good: {compute_type: dummy, scale: 5}\n")
	r.settle()
	r.pass(2 * time.Second)
	if n := r.up(p, "good"); n != 5 {
		t.Fatalf("%d of its neighbours run", n)
	}
	for round := range 5 { // each of the five fails once: that is no reason to back off
		r.pass(45 * time.Second)
		for _, rec := range r.of("good") {
			if st, _ := rec.Status.(*mariposa.InstanceStatus); st != nil && st.State == mariposa.StateRunning {
				r.kill(rec.ID)
				break
			}
		}
		other, task := r.create(fmt.Sprintf("other%d", round), web(10))
		r.pass(10 * time.Second)
		if n := r.up(p, "good"); n != 5 {
			t.Fatalf("round %d: %d of its neighbours run", round, n)
		}
		if n := r.up(other, "web"); n != 10 {
			t.Fatalf("round %d: %d of another project run", round, n)
		}
		r.wantTask(task, mariposa.TaskCompleted)
	}
	ss := r.project(p).Services["bad"]
	if ss.Status != mariposa.StatusBackingOff || ss.Backoff == nil || ss.Backoff.Failures < 5 {
		t.Errorf("the bad one is %s, %+v", ss.Status, ss.Backoff)
	}
	if made := r.events("instance.provisioning"); made > 30_000 {
		t.Errorf("%d were made in five minutes", made)
	}
	if n := len(r.kept()); n > 6 {
		t.Errorf("%d are kept", n)
	}
}

// TestAServiceThatHangsDoesNotStarveItsProject lets the instances of one service use all
// start slots, and never come up.
func TestAServiceThatHangsDoesNotStarveItsProject(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.limit, r.bulk = 100, true
	r.replica("r1")
	r.node("n1", mariposa.Resources{})
	r.hang["bad"] = true
	p, _ := r.create("shop", "services:\n  bad: {compute_type: dummy, scale: 100}\n  good: {compute_type: dummy, scale: 5}\n")
	r.settle()
	r.pass(50 * time.Second)
	if n := r.up(p, "good"); n != 0 {
		t.Fatalf("%d of its neighbours run already: nothing was starved", n)
	}
	r.pass(15 * time.Second)
	if n := r.up(p, "good"); n != 5 {
		t.Fatalf("%d of its neighbours run", n)
	}
	if n := len(r.of("bad")); n != 100 {
		t.Errorf("there are %d that hang", n)
	}
}
