package engine_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"mariposa"
	"mariposa/store"
)

// two is a manifest of two services.
func two(web, db int) string {
	return fmt.Sprintf("services:\n  web:\n    compute_type: dummy\n    scale: %d\n  db:\n    compute_type: dummy\n    scale: %d\n", web, db)
}

func freeze() mariposa.Patch { return mariposa.Patch{Mode: mariposa.ModeFreeze} }

func scaleTo(name string, n int) mariposa.Patch {
	return mariposa.Patch{Scale: map[string]int{name: n}}
}

// settled starts a project and waits until it has converged.
func settled(t *testing.T, body string) (*rig, string) {
	t.Helper()
	r := newRig(t)
	r.replica("r1")
	r.node("n1", mariposa.Resources{})
	p, start := r.create("shop", body)
	r.settle()
	r.pass(time.Minute)
	r.wantTask(start, mariposa.TaskCompleted)
	return r, p
}

func (r *rig) wantService(project, name string, status mariposa.Status, says string) {
	r.t.Helper()
	ss := r.project(project).Services[name]
	if ss == nil || ss.Status != status || !strings.Contains(said(ss.Reason), says) {
		r.t.Fatalf("%s is %+v, want %s (…%s…)", name, ss, status, says)
	}
}

// of lists the instances of a service.
func (r *rig) of(service string) (out []store.Record) {
	for _, rec := range r.instances() {
		if rec.Spec.(*mariposa.InstanceSpec).ServiceName == service {
			out = append(out, rec)
		}
	}
	return out
}

func TestAFreezeStaysActiveUntilTheThaw(t *testing.T) {
	t.Parallel()
	r, p := settled(t, two(2, 1))
	task := r.ask(p, mariposa.TaskFreeze, freeze(), "web")
	r.settle()
	r.wantTask(task, mariposa.TaskActive)
	r.kill(r.of("web")[0].ID)
	r.kill(r.of("db")[0].ID)
	r.settle()
	r.pass(2 * time.Hour)
	r.wantTask(task, mariposa.TaskActive)
	r.wantService(p, "web", mariposa.StatusFrozen, "1 instance is gone and would be replaced after thaw")
	r.wantService(p, "db", mariposa.StatusConverged, "")
	if st := r.project(p); st.Status != mariposa.StatusFrozen {
		t.Errorf("the project is %s", st.Status)
	}
	thaw := r.act(p, mariposa.Patch{Mode: mariposa.ModeThaw}, "web")
	r.settle()
	if st := r.wantTask(task, mariposa.TaskCompleted); st.EndedBy != thaw {
		t.Errorf("the freeze is %+v", st)
	}
	r.wantTask(thaw, mariposa.TaskCompleted)
	r.wantInstances(3)
	r.wantService(p, "web", mariposa.StatusConverged, "")
}

func TestAFrozenProjectIsLiftedOnlyForWhatAnOperatorNames(t *testing.T) {
	t.Parallel()
	r, p := settled(t, two(1, 1))
	task := r.ask(p, mariposa.TaskFreeze, freeze())
	r.settle()
	deploy := r.ask(p, mariposa.TaskScale, scaleTo("db", 3), "db") // it may not lift
	r.settle()
	r.wantTask(deploy, mariposa.TaskQueued)
	scale := r.lift(p, mariposa.TaskScale, scaleTo("web", 2), "web")
	r.settle()
	if st := r.wantTask(task, mariposa.TaskActive); !st.Reason.Is(mariposa.ReasonStillFrozen) || strings.Join(st.Reason.Keys, " ") != "db" {
		t.Errorf("the freeze is %+v", st)
	}
	r.wantTask(scale, mariposa.TaskCompleted)
	r.wantTask(deploy, mariposa.TaskQueued)
	if len(r.of("web")) != 2 || len(r.of("db")) != 1 {
		t.Fatalf("%d of web, %d of db", len(r.of("web")), len(r.of("db")))
	}
	r.act(p, mariposa.Patch{Mode: mariposa.ModeThaw})
	r.settle()
	r.wantTask(task, mariposa.TaskCompleted)
	r.wantTask(deploy, mariposa.TaskCompleted)
	r.wantInstances(5)
}

func TestAFreezeAndWhatWaitsBehindItMayComeTogether(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	x := r.replica("r1")
	r.node("n1", mariposa.Resources{})
	p, _ := r.create("shop", web(1))
	r.settle()
	x.deaf = true
	r.ask(p, mariposa.TaskFreeze, freeze())
	deploy := r.ask(p, mariposa.TaskScale, scaleTo("web", 3), "web")
	x.deaf = false
	r.settle()
	r.wantTask(deploy, mariposa.TaskQueued)
	r.wantInstances(1)
}

func TestOtherValuesWaitForTheThaw(t *testing.T) {
	t.Parallel()
	r, p := settled(t, web(1))
	r.ask(p, mariposa.TaskFreeze, freeze(), "web")
	r.settle()
	r.version(p, 2, mariposa.CauseMetadata, web(1))
	r.settle()
	r.wantNumber(p, 1, 1)
	r.act(p, mariposa.Patch{Mode: mariposa.ModeThaw})
	r.settle()
	r.wantNumber(p, 2, 2)
}

func TestATerminatedTaskLeavesNothingHalfMadeAndItsScopeFrozen(t *testing.T) {
	t.Parallel()
	r, p := settled(t, web(2))
	r.lazy = true
	scale := r.ask(p, mariposa.TaskScale, scaleTo("web", 6), "web")
	r.settle()
	start := r.ask(p, mariposa.TaskStart, mariposa.Patch{Goal: mariposa.GoalStarted}) // queued behind it
	r.settle()
	r.wantInstances(6)
	r.terminate(p, start)
	r.settle()
	r.wantTask(start, mariposa.TaskTerminated)
	r.wantTask(scale, mariposa.TaskActive)
	task := r.terminate(p, scale)
	r.lazy = false
	r.settle()
	if st := r.wantTask(scale, mariposa.TaskTerminated); st.EndedBy != task {
		t.Errorf("the scale is %+v", st)
	}
	r.wantTask(task, mariposa.TaskActive)
	r.wantInstances(2)
	r.wantService(p, "web", mariposa.StatusFrozen, "4 instances would be started after thaw")
	r.act(p, mariposa.Patch{Mode: mariposa.ModeThaw}, "web")
	r.settle()
	r.wantInstances(6) // the goal stayed
	r.wantTask(task, mariposa.TaskCompleted)
}

func TestAPausedTaskStaysOpenHoweverLongItTakes(t *testing.T) {
	t.Parallel()
	r, p := settled(t, web(3, "update: {deadline: 60, min_healthy: 5}"))
	r.lazy = true
	task := r.ask(p, mariposa.TaskReprovision, mariposa.Patch{Reprovision: []string{"web"}}, "web")
	r.settle()
	pause := r.act(p, mariposa.Patch{Mode: mariposa.ModePause})
	r.settle()
	r.wantTask(pause, mariposa.TaskCompleted)
	r.lazy = false
	r.settle()
	r.pass(time.Hour)
	r.wantTask(task, mariposa.TaskActive)
	r.wantService(p, "web", mariposa.StatusPaused, "is paused")
	r.act(p, mariposa.Patch{Mode: mariposa.ModeResume})
	r.settle()
	r.wantTask(task, mariposa.TaskActive)
	r.pass(time.Minute)
	r.wantTask(task, mariposa.TaskCompleted)
}

func TestACanaryCompletesItsTaskAtTheHoldAndNotItsVersion(t *testing.T) {
	t.Parallel()
	r, p := settled(t, web(4))
	r.version(p, 2, mariposa.CauseManifest, web(4, "dummy: {name_len: 9}"))
	task := r.ask(p, mariposa.TaskReprovision, mariposa.Patch{Number: 2, Canary: mariposa.Amount{N: 1}}, "web")
	r.settle()
	r.pass(time.Minute)
	r.wantTask(task, mariposa.TaskCompleted)
	r.wantService(p, "web", mariposa.StatusHeld, "1 of 4 at version 2")
	r.wantNumber(p, 2, 1)
	task = r.ask(p, mariposa.TaskReprovision, mariposa.Patch{Reprovision: []string{"web"}}, "web")
	r.settle()
	r.pass(time.Minute)
	r.wantTask(task, mariposa.TaskCompleted)
	r.wantNumber(p, 2, 2)
}

func TestATaskWhoseVersionIsRolledBackFailsOnceThatIsDone(t *testing.T) {
	t.Parallel()
	r, p := settled(t, web(2))
	body := web(4, `dummy: {name_len: 9}`, `update: {on_failure: rollback}`)
	r.version(p, 2, mariposa.CauseManifest, body)
	r.fail["web"] = true
	task := r.ask(p, mariposa.TaskReprovision, mariposa.Patch{Number: 2}, "web")
	r.settle()
	r.pass(time.Minute)
	r.fail["web"] = false
	r.pass(10 * time.Minute)
	if st := r.wantTask(task, mariposa.TaskFailed); !strings.Contains(said(st.Reason), "the rollout of version 2 stopped after 3 failures") || !strings.HasSuffix(said(st.Reason), "; rolled back to version 1") {
		t.Errorf("the task is %+v", st)
	}
	r.wantNumber(p, 1, 1)
	r.wantInstances(2)
	if st := r.project(p); st.Status != mariposa.StatusConverged || st.RolledBack != 2 || st.Services["web"].Scale != 2 {
		t.Errorf("the project is %+v", st)
	}
}

func TestAFirstVersionThatFailsIsTakenBackAltogether(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.replica("r1")
	r.node("n1", mariposa.Resources{})
	r.fail["web"] = true
	p, task := r.create("shop", web(2, "update: {on_failure: rollback}"))
	r.settle()
	r.pass(10 * time.Minute)
	if st := r.wantTask(task, mariposa.TaskFailed); !strings.HasSuffix(said(st.Reason), "; stopped, because no earlier version was ever completed") {
		t.Errorf("the task is %+v", st)
	}
	r.wantInstances(0)
	if st := r.project(p); st.Goal != mariposa.GoalStopped || st.Status != mariposa.StatusStopped || !strings.HasPrefix(said(st.Reason), "version 1 failed, and there is no earlier version to roll back to: web: ") {
		t.Errorf("the project is %+v", st)
	}
	r.fail["web"] = false
	start := r.ask(p, mariposa.TaskStart, mariposa.Patch{Goal: mariposa.GoalStarted})
	r.settle()
	r.pass(time.Minute)
	r.wantTask(start, mariposa.TaskCompleted)
	r.ask(p, mariposa.TaskStop, mariposa.Patch{Goal: mariposa.GoalStopped})
	r.settle()
	if st := r.project(p); st.Status != mariposa.StatusStopped || said(st.Reason) != "" { // a person's stop needs no other reason
		t.Errorf("the project is %+v", st)
	}
}

func TestAcceptEndsAtOnceAndLeavesEverythingAsItIs(t *testing.T) {
	t.Parallel()
	r, p := settled(t, web(3))
	r.ask(p, mariposa.TaskFreeze, freeze())
	r.settle()
	r.kill(r.instances()[0].ID)
	accept := r.act(p, mariposa.Patch{Accept: true})
	r.act(p, mariposa.Patch{Mode: mariposa.ModeThaw})
	r.settle()
	r.wantTask(accept, mariposa.TaskCompleted)
	r.wantInstances(2)
	if st := r.project(p); st.Services["web"].Scale != 2 || st.Status != mariposa.StatusConverged {
		t.Errorf("the project is %+v", st)
	}
}

func TestConvergeNowDoesNotWaitForABackOff(t *testing.T) {
	t.Parallel()
	r, p := settled(t, web(1))
	r.fail["web"] = true
	r.kill(r.instances()[0].ID)
	r.settle()
	r.pass(2 * time.Minute)
	r.wantService(p, "web", mariposa.StatusBackingOff, "")
	r.fail["web"] = false
	task := r.act(p, mariposa.Patch{Retry: true})
	r.settle() // no time passes
	r.wantTask(task, mariposa.TaskCompleted)
	r.wantService(p, "web", mariposa.StatusConverged, "")
}

func TestATaskWhoseVersionIsLostFailsAndChangesNothing(t *testing.T) {
	t.Parallel()
	r, p := settled(t, web(2))
	task := r.ask(p, mariposa.TaskReprovision, mariposa.Patch{Number: 7}, "web")
	r.settle()
	if st := r.wantTask(task, mariposa.TaskFailed); said(st.Reason) != "version 7 is lost; submit the manifest again" {
		t.Errorf("the task is %+v", st)
	}
	r.wantInstances(2)
	r.wantNumber(p, 1, 1)
}

func TestWhatFailedIsKeptAndTakesNothingOfItsNode(t *testing.T) {
	long(t)
	t.Parallel()
	r := newRig(t)
	x := r.replica("r1")
	r.node("n1", mariposa.Resources{Instances: 2})
	p, _ := r.create("shop", web(2))
	r.settle()
	r.pass(time.Minute)
	dead := r.instances()[0].ID
	r.kill(dead)
	r.settle()
	r.pass(time.Second)
	r.wantInstances(2)
	kept := r.kept()
	if len(kept) != 1 || kept[0].ID != dead || kept[0].Spec.(*mariposa.InstanceSpec).Goal != mariposa.GoalHalted {
		t.Fatalf("kept are %+v", kept)
	}
	ledger, err := r.store.Ledger(t.Context())
	if err != nil || ledger["n1"].Instances != 2 || x.eng.Used("n1").Instances != 2 {
		t.Errorf("claimed %+v and %+v, %v", ledger, x.eng.Used("n1"), err)
	}
	r.pass(25 * time.Hour)
	if n := len(r.kept()); n != 0 {
		t.Errorf("%d are kept for longer than a day", n)
	}
	r.delete(p)
	r.settle()
	if ledger, err := r.store.Ledger(t.Context()); err != nil || len(ledger) != 0 {
		t.Errorf("claimed %+v, %v", ledger, err)
	}
}

func TestADeletedProjectTakesWhatIsKeptWithIt(t *testing.T) {
	t.Parallel()
	r, p := settled(t, web(3, "stop: {preservestopped: always}"))
	r.ask(p, mariposa.TaskStop, mariposa.Patch{Goal: mariposa.GoalStopped})
	r.settle()
	if n := len(r.kept()); n != 3 {
		t.Fatalf("%d are kept", n)
	}
	if ledger, err := r.store.Ledger(t.Context()); err != nil || ledger["n1"].Instances != 0 {
		t.Errorf("claimed %+v, %v", ledger, err)
	}
	r.delete(p)
	r.settle()
	if n := len(r.list(mariposa.KindInstance)) + len(r.list(mariposa.KindProject)); n != 0 {
		t.Errorf("%d instances and projects are left", n)
	}
}

func TestATaskDoesNotWaitBehindOneThatDoesNotGetOn(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name   string
		status mariposa.Status
		stick  func(r *rig) (project, older string)
		kind   mariposa.TaskKind
	}{
		{"because no node takes it", mariposa.StatusBlocked, func(r *rig) (string, string) { return r.create("shop", web(1)) }, mariposa.TaskScale},
		{"because it backs off", mariposa.StatusBackingOff, func(r *rig) (string, string) {
			r.node("n1", mariposa.Resources{})
			r.fail["web"] = true
			p, task := r.create("shop", web(1, "update: {on_failure: continue}"))
			r.settle()
			r.pass(20 * time.Second)
			return p, task
		}, mariposa.TaskScale},
		{"because it is paused", mariposa.StatusPaused, func(r *rig) (string, string) {
			r.node("n1", mariposa.Resources{})
			p, _ := r.create("shop", web(3))
			r.settle()
			r.pass(time.Second)
			r.lazy = true
			task := r.ask(p, mariposa.TaskReprovision, mariposa.Patch{Reprovision: []string{"web"}}, "web")
			r.settle()
			r.act(p, mariposa.Patch{Mode: mariposa.ModePause})
			return p, task
		}, mariposa.TaskStart},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			r.replica("r1")
			p, older := c.stick(r)
			r.settle()
			r.wantTask(older, mariposa.TaskActive)
			r.wantService(p, "web", c.status, "")
			newer := r.ask(p, c.kind, mariposa.Patch{ScaleBy: map[string]int{"web": 1}}, "web")
			r.settle()
			if st := r.task(newer); st.State == mariposa.TaskQueued {
				t.Errorf("it waits behind a task whose service is %s", c.status)
			}
		})
	}
}
