package converge

import (
	"strings"
	"testing"
	"time"

	"mariposa"
)

func onFailure(f mariposa.OnFailure) func(*mariposa.Service) {
	return func(d *mariposa.Service) { d.Update.OnFailure = f }
}

func canary(n int) func(*mariposa.Service) {
	return func(d *mariposa.Service) { d.Update.Canary = mariposa.Amount{N: n} }
}

func amount(n int) mariposa.Amount { return mariposa.Amount{N: n} }

func TestAFrozenServiceSettlesAndThenNothingChanges(t *testing.T) {
	w := running(t, def("db", "one", 1), def("web", "one", 4, rolling("2")))
	w.submit(def("db", "one", 1), def("web", "two", 4, rolling("2")))
	w.step()
	w.move("web.1-6") // one of two replacements serves
	w.mode(mariposa.ModeFreeze, "web")
	wantSteps(t, w.step(), "remove web.2-7") // it never served
	w.settle()
	wantServing(t, w, "web", map[string]int{"one": 4, "two": 1})
	wantStatus(t, w, "web", mariposa.StatusFrozen, "1 instance would be removed after thaw; 4 instances would be replaced by the rollout after thaw")

	w.setState("web.3-4", mariposa.StateProvisioning, "") // restarted in place: it has served
	wantSteps(t, w.step())
	w.fail("web.1-6", "web.1-2", "web.2-3")
	w.loseNode("n1")
	w.wait(time.Hour)
	w.scale("web", 5)
	w.submit(def("db", "two", 1), def("web", "three", 4, rolling("2")))
	for _, step := range w.step() {
		if strings.Contains(step, "web") {
			t.Fatalf("%s of a frozen service", step)
		}
	}
	wantStatus(t, w, "web", mariposa.StatusFrozen, "3 instances are gone and would be replaced after thaw; 1 instance is on a node that cannot be reached")
	for n := range w.nodes {
		w.comeBack(n)
	}
	w.mode(mariposa.ModeThaw, "web")
	w.settle()
	wantServing(t, w, "web", map[string]int{"three": 5})
	wantServing(t, w, "db", map[string]int{"two": 1})
}

func TestTimeSpentFrozenOrPausedDoesNotCountAgainstARollout(t *testing.T) {
	for _, c := range []struct{ hold, on mariposa.Mode }{
		{mariposa.ModeFreeze, mariposa.ModeThaw}, {mariposa.ModePause, mariposa.ModeResume},
	} {
		t.Run(string(c.hold), func(t *testing.T) {
			w := running(t, def("web", "one", 3, deadline(time.Minute)))
			w.submit(def("web", "two", 3, deadline(time.Minute)))
			w.step()
			w.mode(c.hold)
			w.settle()
			w.wait(time.Hour)
			w.step()
			w.mode(c.on)
			w.settle()
			wantServing(t, w, "web", map[string]int{"two": 3})
			wantStatus(t, w, "web", mariposa.StatusConverged, "")
		})
	}
}

func TestServicesThatAppearInAFrozenProjectAreFrozen(t *testing.T) {
	w := running(t, def("web", "one", 1))
	w.mode(mariposa.ModeFreeze)
	w.submit(def("web", "one", 1), def("db", "one", 1))
	wantSteps(t, w.step())
	wantStatus(t, w, "db", mariposa.StatusFrozen, "1 instance would be started after thaw")
	w.lift(mariposa.Patch{Scale: map[string]int{"db": 2}}, "db")
	wantSteps(t, w.step(), "create db.1 v2", "create db.2 v2")
	if w.status("web").Frozen == nil || !w.goal.Frozen {
		t.Fatal("the freeze of what was not named is lifted")
	}
	w.mode(mariposa.ModeThaw)
	if w.status("web").Frozen != nil || w.goal.Frozen {
		t.Fatal("it is still frozen")
	}
}

func TestAPausedRolloutHoldsWhileRepairsGoOn(t *testing.T) {
	w := running(t, def("web", "one", 3))
	w.submit(def("web", "two", 3))
	w.step()
	w.move("web.1-4")
	w.step()
	w.mode(mariposa.ModePause, "web")
	w.settle()
	wantServing(t, w, "web", map[string]int{"one": 2, "two": 1})
	wantStatus(t, w, "web", mariposa.StatusPaused, "the rollout of version 2 is paused: 1 of 3 are up to date")
	if w.plan().Todo["web"] == 0 {
		t.Fatal("the rollout is still to be done")
	}
	w.wait(time.Second)
	w.fail("web.1-4", "web.3-3")
	wantSteps(t, w.step(), "create web.3 v1", "remove web.3-3", "create web.1 v2", "remove web.1-4")
	w.settle()
	w.scale("web", 4)
	wantSteps(t, w.step(), "create web.4 v1")
	w.mode(mariposa.ModeResume, "web")
	w.settle()
	wantServing(t, w, "web", map[string]int{"two": 4})
}

// The reason of a paused rollout counts what the service wants, not what it still has.
func TestAPausedRolloutCountsWhatIsWanted(t *testing.T) {
	w := running(t, def("web", "one", 3))
	w.submit(def("web", "two", 3, rolling("2")))
	w.step()
	w.move("web.1-4")
	w.move("web.2-5")
	w.step()
	w.mode(mariposa.ModePause, "web")
	w.scale("web", 1)
	w.step()
	wantStatus(t, w, "web", mariposa.StatusPaused, "the rollout of version 2 is paused: 1 of 1 are up to date")
	w.scale("web", 0)
	w.step()
	wantStatus(t, w, "web", mariposa.StatusConverging, "")
	w.settle()
	wantServing(t, w, "web", map[string]int{})
	wantStatus(t, w, "web", mariposa.StatusPaused, "")
}

func TestACanaryHoldsAfterSoMany(t *testing.T) {
	for name, how := range map[string][]func(*mariposa.Service){
		"start-first": {rolling("5"), minHealthy(5 * time.Second)},
		"stop-first":  {rolling("5"), stopFirst},
	} {
		t.Run(name, func(t *testing.T) {
			w := running(t, def("web", "one", 12, how...))
			w.submit(def("web", "two", 12, append(how, canary(3))...))
			w.settle()
			wantServing(t, w, "web", map[string]int{"one": 9, "two": 3})
			wantStatus(t, w, "web", mariposa.StatusHeld, "3 of 12 at version 2")
			if n := w.plan().Todo["web"]; n != 0 {
				t.Fatalf("%d to do at the hold", n)
			}
			w.wait(time.Hour)
			w.fail(w.of("web")[0], w.of("web")[11]) // an old one and a new one
			w.settle()
			wantServing(t, w, "web", map[string]int{"one": 9, "two": 3})
			w.scale("web", 14)
			w.settle()
			wantServing(t, w, "web", map[string]int{"one": 11, "two": 3})
			w.patch(mariposa.Patch{Reprovision: []string{"web"}, Canary: amount(4)})
			w.settle()
			wantServing(t, w, "web", map[string]int{"one": 7, "two": 7})
			wantStatus(t, w, "web", mariposa.StatusHeld, "7 of 14 at version 2")
			w.patch(mariposa.Patch{Reprovision: []string{"web"}})
			w.settle()
			wantServing(t, w, "web", map[string]int{"two": 14})
			wantStatus(t, w, "web", mariposa.StatusConverged, "")
		})
	}
}

func TestARevertUndoesACanaryAndTouchesNothingElse(t *testing.T) {
	w := running(t, def("web", "one", 6))
	w.submit(def("web", "two", 6, canary(2)))
	w.settle()
	old := w.of("web")[:4]
	w.scale("web", 7)
	w.settle()
	w.submit(def("web", "one", 6)) // as a revert does
	w.settle()
	wantServing(t, w, "web", map[string]int{"one": 7})
	wantSteps(t, w.of("web")[:4], old...)
}

func TestTwoInASlotDoNotEndACanary(t *testing.T) {
	w := running(t, def("db", "one", 0), def("web", "one", 4, refersTo("db.id")))
	w.submit(def("db", "one", 0), def("web", "two", 4, canary(3)))
	w.settle()
	wantServing(t, w, "web", map[string]int{"two": 3})
	wantStatus(t, w, "web", mariposa.StatusConverging, "waits for db")
	w.loseNode("n2")
	w.wait(time.Minute)
	w.settle()
	w.comeBack("n2") // four of version 2 run, two of them in the same slot
	w.settle()
	wantServing(t, w, "web", map[string]int{"two": 4})
	wantStatus(t, w, "web", mariposa.StatusConverging, "waits for db")
	w.patch(mariposa.Patch{Scale: map[string]int{"db": 1}})
	w.settle()
	wantServing(t, w, "web", map[string]int{"one+db:id": 1, "two": 3})
	wantStatus(t, w, "web", mariposa.StatusHeld, "")
}

func TestADependentOfAHeldServiceIsHeldToo(t *testing.T) {
	w := running(t, def("db", "one", 3), def("web", "one", 2, dependsOn("db")))
	w.submit(def("db", "two", 3, canary(1)), def("web", "two", 2, dependsOn("db")))
	w.settle()
	wantServing(t, w, "web", map[string]int{"one": 2})
	wantStatus(t, w, "web", mariposa.StatusHeld, "waits for db, whose rollout is held")
	if p := w.plan(); w.busy(p) {
		t.Fatalf("the task would never end:\n%s", show(p))
	}
	w.patch(mariposa.Patch{Reprovision: []string{"db"}})
	w.settle()
	wantServing(t, w, "web", map[string]int{"two": 2})
}

func TestAReprovisionWithAFilterReplacesWhatMatches(t *testing.T) {
	made := func(t *testing.T) *world {
		t.Helper()
		w := running(t, def("web", "one", 3))
		w.submit(def("web", "two", 6, canary(1))) // three at one, because of the hold
		w.settle()
		w.wait(time.Minute)
		return w
	}
	for _, c := range []struct {
		name   string
		filter mariposa.Filter
		gone   func(*Instance) bool
	}{
		{"by version", mariposa.Filter{Version: 1}, func(i *Instance) bool { return i.Spec.Number == 1 }},
		{"by image", mariposa.Filter{Image: "two"}, func(i *Instance) bool { return i.Spec.Digest == "two" }},
		{"by instance", mariposa.Filter{Instances: []string{"web.2-2"}}, func(i *Instance) bool { return i.ID == "web.2-2" }},
		{"by node", mariposa.Filter{Nodes: []string{"n1"}}, func(i *Instance) bool { return i.Spec.Node == "n1" }},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := made(t)
			before := map[string]bool{}
			for _, id := range w.of("web") {
				before[id] = c.gone(w.instances[id])
			}
			w.patch(mariposa.Patch{Reprovision: []string{"web"}, Filter: &c.filter})
			w.settle()
			after := map[string]bool{}
			for _, id := range w.of("web") {
				after[id] = true
				if i := w.instances[id]; !i.Spec.Created.Before(w.now.Add(-time.Minute)) && i.Spec.Number != 2 && !before[id] {
					if _, was := before[id]; !was {
						t.Errorf("%s was made at version %d", id, i.Spec.Number)
					}
				}
			}
			for id, matched := range before {
				if after[id] == matched {
					t.Errorf("%s: matched %v, left %v", id, matched, after[id])
				}
			}
			if len(after) != len(before) {
				t.Errorf("%d are left of %d", len(after), len(before))
			}
			if w.serving("web")["one"] > 0 {
				wantStatus(t, w, "web", mariposa.StatusHeld, "at version 2") // the rest stays held
			}
		})
	}
}

func TestAPlainReprovisionGoesBeyondTheFilterOfAHeldOne(t *testing.T) {
	w := running(t, def("web", "one", 4))
	w.wait(time.Second)
	w.patch(mariposa.Patch{Reprovision: []string{"web"}, Filter: &mariposa.Filter{Instances: []string{"web.1-1", "web.2-2"}}, Canary: amount(1)})
	w.settle()
	wantStatus(t, w, "web", mariposa.StatusHeld, "1 of 4")
	w.wait(time.Second)
	w.patch(mariposa.Patch{Reprovision: []string{"web"}})
	w.settle()
	for _, id := range w.of("web") {
		if birth(id) < 6 {
			t.Errorf("%s is left", id)
		}
	}
}

// failing lets a rollout fail until it stops.
func failing(w *world, image string) {
	w.Helper()
	for range 200 {
		p := w.plan()
		w.carryOut(p, len(p.Steps))
		ids := w.moving()
		if len(ids) == 0 {
			if !w.busy(p) || p.Wake.IsZero() {
				return
			}
			w.now = p.Wake
			continue
		}
		w.wait(time.Second)
		for _, id := range ids {
			if i := w.instances[id]; i.Spec.Goal == mariposa.GoalRunning && i.Spec.Digest == image {
				w.fail(id)
			} else {
				w.move(id)
			}
		}
	}
	w.Fatalf("it never comes to rest%s", w.formatHistory())
}

func TestAFailedRolloutIsTakenBack(t *testing.T) {
	back := onFailure(mariposa.OnFailureRollback)
	t.Run("to the version that was last fully in force, with its scales", func(t *testing.T) {
		w := running(t, def("db", "one", 2), def("web", "one", 3, back))
		w.scale("web", 5)
		w.settle()
		old := w.of("web")
		w.submit(def("db", "two", 4), def("web", "two", 7, back), def("new", "one", 1))
		failing(w, "two")
		if w.goal.Number != 1 || w.goal.RolledBack != 2 {
			t.Fatalf("version %d is in force, %d was taken back\n%s", w.goal.Number, w.goal.RolledBack, w.formatHistory())
		}
		wantServing(t, w, "web", map[string]int{"one": 5})
		wantSteps(t, w.of("web"), old...) // the healthy instances were never changed
		if w.serving("db")["one"] != 2 || len(w.of("new")) != 0 {
			t.Fatalf("db serves %v, new has %v", w.serving("db"), w.of("new"))
		}
		wantStatus(t, w, "web", mariposa.StatusConverged, "")
	})
	t.Run("but what a person said of scales meanwhile holds", func(t *testing.T) {
		w := running(t, def("web", "one", 3, back, deadline(time.Minute)))
		w.submit(def("web", "two", 6, back, deadline(time.Minute)))
		w.step()
		w.scale("web", 4)
		failing(w, "two")
		wantServing(t, w, "web", map[string]int{"one": 4})
	})
	t.Run("and when that fails too, it stops and says so", func(t *testing.T) {
		w := running(t, def("web", "one", 3, back, stopFirst, rolling("3")))
		w.submit(def("web", "two", 3, back, stopFirst, rolling("3")))
		w.step()
		for _, id := range w.moving() {
			w.move(id)
		}
		for range 60 { // nothing starts any more
			p := w.plan()
			w.carryOut(p, len(p.Steps))
			w.wait(10 * time.Second)
			for _, id := range w.moving() {
				if w.instances[id].Spec.Goal == mariposa.GoalRunning {
					w.fail(id)
				} else {
					w.move(id)
				}
			}
		}
		if w.goal.Number != 1 {
			t.Fatalf("version %d is in force%s", w.goal.Number, w.formatHistory())
		}
		wantStatus(t, w, "web", mariposa.StatusFailed, "the rollout of version 1 stopped after")
	})
	t.Run("of a project that never was, nothing is left", func(t *testing.T) {
		w := newWorld(t, def("db", "fine", 1), def("web", "one", 2, back))
		failing(w, "one")
		if w.view.Len() != 0 || w.goal.Goal != mariposa.GoalStopped {
			t.Fatalf("%d are left, the goal is %s%s", w.view.Len(), w.goal.Goal, w.formatHistory())
		}
		w.aim(mariposa.GoalStarted)
		w.settle()
		wantServing(t, w, "web", map[string]int{"one": 2})
	})
	t.Run("but not where there is nothing to go back to", func(t *testing.T) {
		w := running(t, def("web", "one", 2, back, deadline(time.Minute)))
		w.patch(mariposa.Patch{Reprovision: []string{"web"}})
		w.settleUntilStopped("web")
		wantStatus(t, w, "web", mariposa.StatusFailed, "no progress for 1m0s")
		if w.goal.Number != 1 || w.goal.RolledBack != 0 {
			t.Fatalf("the goal is %+v", w.goal)
		}
	})
}

func TestARevertLeavesScalesAlone(t *testing.T) {
	w := running(t, def("web", "one", 3))
	w.submit(def("web", "two", 6))
	w.settle()
	w.versions[3] = Definitions{"web": def("web", "one", 3)}
	w.view.SetVersion(3, w.versions[3])
	w.patch(mariposa.Patch{Number: 3, KeepScale: true})
	w.settle()
	wantServing(t, w, "web", map[string]int{"one": 6})
}

func TestSingleServicesStopAndStart(t *testing.T) {
	w := running(t, def("db", "one", 1), def("web", "one", 2, dependsOn("db")))
	w.patch(mariposa.Patch{Goal: mariposa.GoalStopped}, "db")
	w.settle() // its dependents keep running: nobody requested their end
	wantServing(t, w, "db", map[string]int{})
	wantServing(t, w, "web", map[string]int{"one": 2})
	wantStatus(t, w, "db", mariposa.StatusStopped, "")
	w.fail(w.of("web")[0])
	w.step()
	wantStatus(t, w, "web", mariposa.StatusBlocked, "waits for db: it is stopped")
	w.patch(mariposa.Patch{Goal: mariposa.GoalStarted}, "db")
	w.settle()
	wantServing(t, w, "web", map[string]int{"one": 2})

	w.aim(mariposa.GoalStopped)
	w.settle()
	w.patch(mariposa.Patch{Goal: mariposa.GoalStarted}, "db")
	w.settle()
	wantServing(t, w, "db", map[string]int{"one": 1})
	wantServing(t, w, "web", map[string]int{})
	w.aim(mariposa.GoalStarted)
	w.settle()
	wantServing(t, w, "web", map[string]int{"one": 2})
}

func TestAcceptMakesWhatRunsTheGoal(t *testing.T) {
	w := running(t, def("db", "one", 2), def("web", "one", 4))
	w.submit(def("db", "one", 2), def("web", "two", 4, minHealthy(time.Hour)))
	w.step()
	w.move("web.1-7")
	w.wait(time.Second)
	w.fail("web.1-3", "web.2-4")
	w.patch(mariposa.Patch{Accept: true})
	ss := w.status("web")
	if ss.Rollout != nil || ss.Number != 2 || ss.Scale != 3 {
		t.Fatalf("web is %+v and serves %v", ss, w.serving("web"))
	}
	w.settle()
	wantServing(t, w, "web", map[string]int{"one": 2, "two": 1})
	wantStatus(t, w, "web", mariposa.StatusConverged, "")

	w.submit(def("db", "two", 2), def("web", "two", 4))
	w.patch(mariposa.Patch{Accept: true}, "db")
	if ss := w.status("db"); ss.Number != 2 || ss.Rollout != nil || w.goal.Number != 2 { // version 2 describes all that runs
		t.Fatalf("db is %+v, the project is at version %d", ss, w.goal.Number)
	}
	wantSteps(t, ofService(w.step(), "db"))
}

func ofService(steps []string, name string) (out []string) {
	for _, s := range steps {
		if strings.Contains(s, " "+name+".") {
			out = append(out, s)
		}
	}
	return out
}

func TestConvergeNowSkipsTheWaitOnce(t *testing.T) {
	w := running(t, def("web", "one", 1))
	for range 4 {
		w.wait(time.Second)
		w.fail(w.of("web")[0])
		w.settle()
	}
	w.wait(time.Second)
	w.fail(w.of("web")[0])
	wantSteps(t, w.step())
	wantStatus(t, w, "web", mariposa.StatusBackingOff, "")
	failures := w.status("web").Backoff.Failures
	w.patch(mariposa.Patch{Retry: true})
	if got := w.step(); len(got) != 2 {
		t.Fatalf("steps are %v", got)
	}
	w.wait(time.Second)
	for _, id := range w.moving() {
		if w.instances[id].Spec.Goal == mariposa.GoalRunning {
			w.fail(id)
		}
	}
	wantSteps(t, w.step())
	if b := w.status("web").Backoff; b.Failures != failures+1 || !b.Until.After(w.now) {
		t.Fatalf("the wait is %+v", b)
	}
}
