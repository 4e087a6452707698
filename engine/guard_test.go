package engine_test

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"mariposa"
	"mariposa/reason"
	"mariposa/store"
)

// forgetful is a store that does not keep what it was given. The planner reads its own
// write back, finds it wrong and writes it again: an endless plan, made by the real
// planner.
type forgetful struct {
	store.Store
	change func(*store.Write) // of a planner's write; nil: none
	plans  int                // commits of a planner
}

func (f *forgetful) Commit(ctx context.Context, units ...store.Unit) []store.Result {
	for i := range units {
		f.plans++
		if f.change == nil {
			continue
		}
		units[i].Writes = slices.Clone(units[i].Writes)
		for w := range units[i].Writes {
			f.change(&units[i].Writes[w])
		}
	}
	return f.Store.Commit(ctx, units...)
}

// forgetWhy stores another reason for a service than it was given.
func forgetWhy(w *store.Write) {
	if st, ok := w.Status.(*mariposa.ServiceStatus); ok && st != nil {
		c := *st
		c.Status, c.Reason = mariposa.StatusConverging, mariposa.TextReason("something else")
		w.Status = &c
	}
}

// forgetForm stores another digest for a new instance, which is outdated from the start.
func forgetForm(w *store.Write) {
	if spec, ok := w.Spec.(*mariposa.InstanceSpec); ok && spec.Generation == 1 {
		c := *spec
		c.Digest = "another"
		w.Spec = &c
	}
}

// loopingRig has a project that converges, on a store that can become forgetful.
func loopingRig(t *testing.T, body string) (*rig, *replica, *forgetful, string) {
	t.Helper()
	r := newRig(t)
	f := &forgetful{Store: r.store}
	x := r.replicaOn("a", f)
	r.node("n1", mariposa.Resources{Instances: 1000})
	project, task := r.create("shop", body)
	r.settle()
	r.wantTask(task, mariposa.TaskCompleted)
	if x.eng.Loops() != 0 {
		t.Fatal("a start was taken for a loop")
	}
	f.plans = 0
	return r, x, f, project
}

func TestAPlanThatRepeatsItselfIsHeldBack(t *testing.T) {
	t.Parallel()
	r, x, f, project := loopingRig(t, web(1))
	f.change = forgetWhy
	r.ask(project, mariposa.TaskScale, mariposa.Patch{Scale: map[string]int{"web": 2}}, "web")
	r.settle() // it would never settle
	if x.eng.Loops() != 1 {
		t.Fatalf("%d loops were found, want 1", x.eng.Loops())
	}
	if f.plans > 60 {
		t.Errorf("there were %d commits before the plan was held back", f.plans)
	}
	r.wantInstances(2)

	var gaps []time.Duration
	last, now := f.plans, r.clk.Now()
	for range 5 * 60 {
		if r.pass(time.Second); f.plans > last {
			gaps, last, now = append(gaps, r.clk.Now().Sub(now)), f.plans, r.clk.Now()
		}
	}
	want := []time.Duration{1, 2, 4, 8, 16, 32, 60, 60, 60}
	for i := range want {
		want[i] *= time.Second
	}
	if !slices.Equal(gaps, want) {
		t.Errorf("it was tried again after %v, want %v", gaps, want)
	}
	if st := r.project(project); !st.Reason.Is(mariposa.ReasonPlanRepeats) {
		t.Errorf("the project says %q", reason.Sentence(st.Reason))
	}
	if x.eng.Loops() != 1 {
		t.Errorf("one loop was counted %d times", x.eng.Loops())
	}
}

func TestAChangeOfTheWorldEndsAHold(t *testing.T) {
	t.Parallel()
	r, x, f, project := loopingRig(t, web(1))
	f.change = forgetWhy
	r.ask(project, mariposa.TaskScale, mariposa.Patch{Scale: map[string]int{"web": 2}}, "web")
	r.settle()
	r.pass(20 * time.Second)
	f.change = nil
	id := r.wantInstances(2)[0].ID
	r.kill(id)
	r.settle() // no time passes: it is answered at once
	for _, i := range r.wantInstances(2) {
		if i.ID == id {
			t.Error("what failed was not replaced")
		}
	}
	if st := r.project(project); st.Status != mariposa.StatusConverged || st.Reason != nil {
		t.Errorf("the project is %s and says %q", st.Status, reason.Sentence(st.Reason))
	}
	if x.eng.Loops() != 1 {
		t.Errorf("%d loops were found, want 1", x.eng.Loops())
	}
}

// TestALoopThatEndsByItselfIsForgotten repairs the store while the plan is held back:
// nothing more happens, and the project stops reporting the loop.
func TestALoopThatEndsByItselfIsForgotten(t *testing.T) {
	t.Parallel()
	r, _, f, project := loopingRig(t, web(1))
	f.change = forgetWhy
	r.ask(project, mariposa.TaskScale, mariposa.Patch{Scale: map[string]int{"web": 2}}, "web")
	r.settle()
	r.pass(5 * time.Second)
	f.change = nil
	r.pass(5 * time.Minute)
	if st := r.project(project); st.Status != mariposa.StatusConverged || st.Reason != nil {
		t.Errorf("the project is %s and says %q", st.Status, reason.Sentence(st.Reason))
	}
}

// TestMakingTheSameAgainAndAgainIsHeldBack makes nodes carry out every step: every new
// instance runs, is outdated, and is replaced.
func TestMakingTheSameAgainAndAgainIsHeldBack(t *testing.T) {
	t.Parallel()
	r, x, f, project := loopingRig(t, web(2, "update: {min_healthy: 0}"))
	r.pass(time.Second) // what is to be replaced is older
	f.change = forgetForm
	r.ask(project, mariposa.TaskReprovision, mariposa.Patch{Reprovision: []string{"web"}}, "web")
	r.settle()
	if x.eng.Loops() != 1 {
		t.Fatalf("%d loops were found, want 1", x.eng.Loops())
	}
	made := r.events("instance.provisioning")
	if made > 250 {
		t.Errorf("%d instances were made before the plan was held back", made)
	}
	r.pass(5 * time.Minute)
	if more := r.events("instance.provisioning") - made; more > 20 || more < 5 {
		t.Errorf("%d more were made in 5 minutes", more)
	}
	f.change = nil
	r.pass(5 * time.Minute)
	if st := r.project(project); st.Status != mariposa.StatusConverged || st.Reason != nil {
		t.Errorf("the project is %s and says %q", st.Status, reason.Sentence(st.Reason))
	}
}

// TestWorkIsNoLoop lets projects do a lot while nodes are slow to answer, or fail.
func TestWorkIsNoLoop(t *testing.T) {
	t.Parallel()
	chain := "services:\n"
	for i := range 60 {
		chain += fmt.Sprintf("  s%02d: {compute_type: dummy, scale: 2, update: {min_healthy: 0}", i)
		if i > 0 {
			chain += fmt.Sprintf(", environment: {UP: '{{ .services.s%02d.id }}'}", i-1)
		}
		chain += "}\n"
	}
	for name, play := range map[string]func(t *testing.T, r *rig){
		"a large start and stop, with nodes that answer late": func(t *testing.T, r *rig) {
			t.Helper()
			long(t)
			r.limit, r.lazy, r.bulk = 100_000, true, true
			r.replica("a")
			r.node("n1", mariposa.Resources{Instances: 100_000})
			project, _ := r.create("shop", web(20_000))
			r.settle()
			r.wantInstances(20_000)
			r.ask(project, mariposa.TaskStop, mariposa.Patch{Goal: mariposa.GoalStopped})
			r.settle()
			r.lazy = false
			r.settle()
			r.wantInstances(0)
		},
		"a rollout of a long chain of references": func(t *testing.T, r *rig) {
			t.Helper()
			r.replica("a")
			r.node("n1", mariposa.Resources{Instances: 10_000})
			project, task := r.create("shop", chain)
			r.settle()
			r.wantTask(task, mariposa.TaskCompleted)
			task = r.ask(project, mariposa.TaskReprovision, mariposa.Patch{Reprovision: []string{"s00"}}, "s00")
			r.settle()
			r.wantTask(task, mariposa.TaskCompleted)
		},
		"a canary that is held": func(t *testing.T, r *rig) {
			t.Helper()
			r.replica("a")
			r.node("n1", mariposa.Resources{Instances: 1000})
			project, _ := r.create("shop", web(100, "update: {min_healthy: 1}"))
			r.settle()
			r.ask(project, mariposa.TaskReprovision, mariposa.Patch{Reprovision: []string{"web"}, Canary: mariposa.Amount{N: 10}}, "web")
			r.pass(time.Hour)
			if st := r.project(project).Services["web"]; st.Status != mariposa.StatusHeld {
				t.Errorf("it is %s: %s", st.Status, reason.Sentence(st.Reason))
			}
		},
		"nodes that are lost and come back": func(t *testing.T, r *rig) {
			t.Helper()
			r.replica("a")
			for i := range 6 {
				r.node(fmt.Sprint("n", i), mariposa.Resources{Instances: 1000})
			}
			r.create("shop", web(300, "reschedule: {after: 30}"))
			r.settle()
			for i := range 5 {
				r.leave(fmt.Sprint("n", i))
				r.pass(45 * time.Second)
				if i%2 == 0 {
					r.comeBack(fmt.Sprint("n", i))
				}
			}
			r.pass(10 * time.Minute)
		},
		"services that fail again and again": func(t *testing.T, r *rig) {
			t.Helper()
			r.replica("a")
			r.node("n1", mariposa.Resources{Instances: 1000})
			body := "services:\n"
			for i := range 10 {
				body += fmt.Sprintf("  s%d: {compute_type: dummy}\n", i)
			}
			r.create("shop", body)
			r.settle()
			for i := range 560 { // each was up for so long that it is recreated at once
				r.kill(r.running(fmt.Sprint("s", i%10)))
				r.pass(66 * time.Second)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			play(t, r)
			for _, x := range r.replicas {
				if n := x.eng.Loops(); n != 0 {
					t.Errorf("work was taken for a loop %d times", n)
				}
			}
		})
	}
}

// running returns a running instance of a service; empty if there is none.
func (r *rig) running(service string) string {
	r.t.Helper()
	for _, rec := range r.instances() {
		spec := rec.Spec.(*mariposa.InstanceSpec)
		st, _ := rec.Status.(*mariposa.InstanceStatus)
		if spec.ServiceName == service && spec.Goal == mariposa.GoalRunning && mariposa.StateOf(spec, st) == mariposa.StateRunning {
			return rec.ID
		}
	}
	return ""
}
