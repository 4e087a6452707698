package engine_test

import (
	"strings"
	"testing"
	"time"

	"mariposa"
)

// A start used to count as completed as soon as its instances ran, although they ended
// right away.
func TestAStartIsCompleteOnceItsInstancesStayUp(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.replica("r1")
	r.node("n1", mariposa.Resources{})
	p, task := r.create("shop", web(2))
	r.runOut()
	if n := r.up(p, "web"); n != 2 {
		t.Fatalf("%d run", n)
	}
	r.wantTask(task, mariposa.TaskActive)
	r.pass(500 * time.Millisecond)
	r.wantTask(task, mariposa.TaskActive)
	r.pass(time.Second)
	r.wantTask(task, mariposa.TaskCompleted)

	stop := r.ask(p, mariposa.TaskStop, mariposa.Patch{Goal: mariposa.GoalStopped})
	r.settle()
	r.wantTask(stop, mariposa.TaskCompleted)
	again := r.ask(p, mariposa.TaskStart, mariposa.Patch{Goal: mariposa.GoalStarted})
	r.runOut()
	r.wantTask(again, mariposa.TaskActive)
	r.pass(1500 * time.Millisecond)
	r.wantTask(again, mariposa.TaskCompleted)
}

func TestAStartWhoseInstancesEndFailsWithTheReason(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		update string
		status mariposa.Status
		says   string
	}{
		"on_failure: pause":    {"update: {}", mariposa.StatusBackingOff, "web: failed to start 3 times: web.1-"},
		"on_failure: rollback": {"update: {on_failure: rollback}", mariposa.StatusStopped, "web: failed to start 3 times: web.1-"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			r.replica("r1")
			r.node("n1", mariposa.Resources{})
			r.fail["web"] = true
			p, task := r.create("shop", web(1, c.update))
			r.runOut()
			r.pass(5 * time.Second)
			if st := r.wantTask(task, mariposa.TaskFailed); !strings.HasPrefix(said(st.Reason), c.says) || !strings.Contains(said(st.Reason), "configured to fail") {
				t.Errorf("the task says %s", said(st.Reason))
			}
			r.wantService(p, "web", c.status, "")
			if n := r.project(p).Completed; n != 0 {
				t.Errorf("version %d counts as completed", n)
			}
		})
	}
}

// A service that fails to start is retried, and the version completes once it stays up.
func TestAStartThatFailedGoesOn(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.replica("r1")
	r.node("n1", mariposa.Resources{})
	r.fail["web"] = true
	p, task := r.create("shop", web(1))
	r.runOut()
	r.pass(5 * time.Second)
	r.wantTask(task, mariposa.TaskFailed)
	r.fail["web"] = false
	r.pass(30 * time.Second)
	r.wantService(p, "web", mariposa.StatusConverged, "")
	if n := r.project(p).Completed; n != 1 {
		t.Errorf("version %d counts as completed", n)
	}
}

// Deadlines used to continue while no control plane was running.
func TestTimeWithoutAPlannerDoesNotCount(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	a := r.replica("r1")
	r.node("n1", mariposa.Resources{})
	p, _ := r.create("shop", web(2, "update: {deadline: 5, min_healthy: 1}"))
	r.settle()
	r.lazy = true
	task := r.ask(p, mariposa.TaskReprovision, mariposa.Patch{Reprovision: []string{"web"}}, "web")
	r.runOut()
	r.wantTask(task, mariposa.TaskActive)
	a.dead, a.deaf = true, true
	r.replicas = nil
	r.pass(time.Minute)
	r.replica("r2")
	r.lazy = false
	r.runOut()
	r.pass(time.Minute)
	if st := r.wantTask(task, mariposa.TaskCompleted); st.Reason != nil {
		t.Errorf("the task says %s", said(st.Reason))
	}
	r.wantService(p, "web", mariposa.StatusConverged, "")

	r.lazy = true
	task = r.ask(p, mariposa.TaskReprovision, mariposa.Patch{Reprovision: []string{"web"}}, "web")
	r.pass(10 * time.Second) // with a planner it counts
	r.wantTask(task, mariposa.TaskFailed)
}

// A scale from nothing is a start as well: it once counted as completed as soon as
// the instances ran.
func TestAScaleFromNothingIsCompleteOnceItsInstancesStayUp(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.replica("r1")
	r.node("n1", mariposa.Resources{})
	p, _ := r.create("shop", web(0))
	r.settle()
	scale := func(n int) string {
		return r.ask(p, mariposa.TaskScale, mariposa.Patch{Scale: map[string]int{"web": n}}, "web")
	}
	r.fail["web"] = true
	task := scale(1)
	r.runOut()
	r.pass(5 * time.Second)
	if st := r.wantTask(task, mariposa.TaskFailed); !strings.HasPrefix(said(st.Reason), "web: failed to start 3 times: web.1-") {
		t.Errorf("the task says %s", said(st.Reason))
	}

	task = scale(0)
	r.settle()
	r.wantTask(task, mariposa.TaskCompleted)
	r.fail["web"] = false
	task = scale(2)
	r.runOut()
	if n := r.up(p, "web"); n != 2 {
		t.Fatalf("%d run", n)
	}
	r.wantTask(task, mariposa.TaskActive)
	r.pass(1500 * time.Millisecond)
	r.wantTask(task, mariposa.TaskCompleted)
	r.wantService(p, "web", mariposa.StatusConverged, "")
}
