package converge

import (
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"mariposa"
)

func wantSteps(t *testing.T, got []string, want ...string) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Fatalf("steps are\n  %s\nwant\n  %s", strings.Join(got, "\n  "), strings.Join(want, "\n  "))
	}
}

func wantServing(t *testing.T, w *world, service string, want map[string]int) {
	t.Helper()
	if got := w.serving(service); !reflect.DeepEqual(got, want) {
		t.Fatalf("%s serves %v, want %v\n%s", service, got, want, w.formatHistory())
	}
}

func wantStatus(t *testing.T, w *world, service string, status mariposa.Status, says string) {
	t.Helper()
	if ss := w.status(service); ss.Status != status || !strings.Contains(reasonOf(ss), says) {
		t.Fatalf("%s is %s (%q), want %s (…%s…)", service, ss.Status, reasonOf(ss), status, says)
	}
}

// running returns a world whose first version has been up for an hour.
func running(t *testing.T, defs ...*mariposa.Service) *world {
	t.Helper()
	w := newWorld(t, defs...)
	w.settle()
	w.wait(time.Hour)
	return w
}

func TestOnePlan(t *testing.T) {
	for _, c := range []struct {
		name   string
		world  func(t *testing.T) *world
		steps  []string
		status mariposa.Status
		says   string
	}{
		{
			name:   "a new service gets its instances in slots from one",
			world:  func(t *testing.T) *world { return newWorld(t, def("web", "one", 3)) },
			steps:  []string{"create web.1 v1", "create web.2 v1", "create web.3 v1"},
			status: mariposa.StatusConverging,
		},
		{
			name:   "nothing is done when all is as it should be",
			world:  func(t *testing.T) *world { return running(t, def("web", "one", 3)) },
			status: mariposa.StatusConverged,
		},
		{
			name: "scaling up opens the lowest free slots",
			world: func(t *testing.T) *world {
				w := running(t, def("web", "one", 3))
				w.scale("web", 1)
				w.settle()
				w.scale("web", 4)
				return w
			},
			steps:  []string{"create web.1 v1", "create web.2 v1", "create web.4 v1"},
			status: mariposa.StatusConverging,
		},
		{
			name: "scaling down takes the oldest",
			world: func(t *testing.T) *world {
				w := running(t, def("web", "one", 2))
				w.wait(time.Second)
				w.scale("web", 4)
				w.settle()
				w.scale("web", 2)
				return w
			},
			steps:  []string{"remove web.1-1", "remove web.2-2"},
			status: mariposa.StatusConverging,
		},
		{
			name: "scaling down takes what does not run yet before what runs",
			world: func(t *testing.T) *world {
				w := running(t, def("web", "one", 2))
				w.scale("web", 4)
				w.step()
				w.scale("web", 1)
				return w
			},
			steps:  []string{"remove web.3-3", "remove web.4-4", "remove web.1-1"},
			status: mariposa.StatusConverging,
		},
		{
			name: "scaling down during a rollout takes the oldest version before the current one",
			world: func(t *testing.T) *world {
				w := running(t, def("web", "one", 4))
				w.submit(def("web", "two", 4))
				w.step()
				w.move("web.1-5")
				w.scale("web", 2)
				return w
			},
			steps:  []string{"remove web.1-1", "remove web.2-2", "remove web.3-3"},
			status: mariposa.StatusConverging,
		},
		{
			name: "ties among victims go by id",
			world: func(t *testing.T) *world {
				w := running(t, def("web", "one", 3))
				w.scale("web", 1)
				return w
			},
			steps:  []string{"remove web.1-1", "remove web.2-2"},
			status: mariposa.StatusConverging,
		},
		{
			name: "a failed instance is replaced at once, in its slot",
			world: func(t *testing.T) *world {
				w := running(t, def("web", "one", 3))
				w.fail("web.2-2")
				return w
			},
			steps:  []string{"create web.2 v1", "remove web.2-2"},
			status: mariposa.StatusConverging,
		},
		{
			name: "a failed instance that is one too many is only removed",
			world: func(t *testing.T) *world {
				w := running(t, def("web", "one", 3))
				w.scale("web", 2)
				w.fail("web.2-2")
				return w
			},
			steps:  []string{"remove web.2-2"},
			status: mariposa.StatusConverging,
		},
		{
			name: "an instance that stopped by itself counts as failed",
			world: func(t *testing.T) *world {
				w := running(t, def("web", "one", 1))
				w.setState("web.1-1", mariposa.StateStopped, "exited with 0")
				return w
			},
			steps:  []string{"create web.1 v1", "remove web.1-1"},
			status: mariposa.StatusConverging,
		},
		{
			name: "no more are started than may be on their way up",
			world: func(t *testing.T) *world {
				w := newWorld(t, def("web", "one", 5))
				w.budget = 2
				return w
			},
			steps:  []string{"create web.1 v1", "create web.2 v1"},
			status: mariposa.StatusConverging,
			says:   "the limit of concurrently starting instances is reached",
		},
		{
			name: "a change in place keeps the instance",
			world: func(t *testing.T) *world {
				w := running(t, def("web", "one", 2, live("small")))
				w.submit(def("web", "one", 2, live("big")))
				return w
			},
			steps:  []string{"update web.1-1 v2"},
			status: mariposa.StatusConverging,
		},
		{
			name: "a definition that did not change is left alone",
			world: func(t *testing.T) *world {
				w := running(t, def("web", "one", 2))
				w.submit(def("web", "one", 2))
				return w
			},
			status: mariposa.StatusConverged,
		},
		{
			name: "what is gone is collected",
			world: func(t *testing.T) *world {
				w := running(t, def("web", "one", 2))
				w.scale("web", 1)
				w.step()
				w.move("web.1-1")
				return w
			},
			steps:  []string{"collect web.1-1"},
			status: mariposa.StatusConverging,
		},
		{
			name: "a dependent is not made before its dependency serves",
			world: func(t *testing.T) *world {
				w := newWorld(t, def("db", "one", 2), def("web", "one", 1, dependsOn("db")))
				w.step()
				w.move("db.1-1")
				return w
			},
			status: mariposa.StatusConverging,
			says:   "waits for db: 1 of 2 running",
		},
		{
			name: "a repair waits for one instance of its dependency, not for all",
			world: func(t *testing.T) *world {
				w := running(t, def("db", "one", 2), def("web", "one", 2, dependsOn("db")))
				w.fail("db.1-1")
				w.step()
				w.fail("web.1-3")
				return w
			},
			steps:  []string{"create web.1 v1", "remove web.1-3"},
			status: mariposa.StatusConverging,
		},
		{
			name: "instances on a lost node are ridden out at first",
			world: func(t *testing.T) *world {
				w := running(t, def("web", "one", 3))
				w.loseNode("n1")
				return w
			},
			status: mariposa.StatusConverging,
			says:   "web.1-1 is on node n1, which has been unknown since 07:00:00 UTC; it is replaced at 07:01:00 UTC",
		},
		{
			name: "instances on a node that is lost for too long are replaced elsewhere",
			world: func(t *testing.T) *world {
				w := running(t, def("web", "one", 3))
				w.loseNode("n1")
				w.wait(time.Minute)
				return w
			},
			steps:  []string{"create web.1 v1"},
			status: mariposa.StatusConverging,
		},
		{
			name: "instances that are never rescheduled wait for their node",
			world: func(t *testing.T) *world {
				w := running(t, def("web", "one", 3, neverReschedule))
				w.loseNode("n1")
				w.wait(time.Hour)
				return w
			},
			status: mariposa.StatusConverging,
			says:   "reschedule.never is set",
		},
		{
			name: "a service whose definition is lost is left alone and says so",
			world: func(t *testing.T) *world {
				w := running(t, def("web", "one", 3))
				w.view.SetVersion(1, Definitions{})
				return w
			},
			status: mariposa.StatusFailed,
			says:   "version 1, which defines it, is lost; submit the manifest again",
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := c.world(t)
			p := w.plan()
			var got []string
			for _, s := range p.Steps {
				if s.Service == "web" {
					got = append(got, word(s))
				}
			}
			wantSteps(t, got, c.steps...)
			w.setGoal(&mariposa.ProjectStatus{Goal: w.goal.Goal, Number: w.goal.Number, Services: p.Services})
			wantStatus(t, w, "web", c.status, c.says)
		})
	}
}

func TestRepeatedFailuresBackOffTwiceAsLongEachTime(t *testing.T) {
	w := running(t, def("web", "one", 1))
	for n, want := range []time.Duration{0, 1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300, 300} {
		want *= time.Second
		w.wait(time.Second)
		w.fail(w.of("web")[0])
		if n > 0 {
			wantSteps(t, w.step())
			wantStatus(t, w, "web", mariposa.StatusBackingOff, "exited with 1")
			until := w.plan().Wake
			if d := until.Sub(w.now); d < want*4/5 || d > want*6/5 {
				t.Fatalf("failure %d is waited out for %s, want about %s", n+1, d, want)
			}
			w.now = until
		}
		if got := w.step(); len(got) == 0 || !strings.HasPrefix(got[0], "create web.1") {
			t.Fatalf("after failure %d: %v", n+1, got)
		}
		for _, id := range w.moving() {
			w.move(id)
		}
		w.step()
	}
}

func TestTheBackOffOfTwoServicesDiffers(t *testing.T) {
	if backoffDelay("a", 5) == backoffDelay("b", 5) {
		t.Fatal("those that fail together would try again together")
	}
}

func TestTenMinutesOfHealthForgetFailures(t *testing.T) {
	w := running(t, def("web", "one", 1))
	for range 3 {
		w.wait(time.Second)
		w.fail(w.of("web")[0])
		w.settle()
	}
	b := *w.status("web").Backoff
	if b.Failures != 3 {
		t.Fatalf("back-off is %+v", b)
	}
	w.now = b.Until.Add(backoffForgetAfter - time.Second)
	if w.step(); w.status("web").Backoff == nil {
		t.Fatal("forgotten too early")
	}
	if wake := w.plan().Wake; !wake.Equal(b.Until.Add(backoffForgetAfter)) {
		t.Fatalf("wakes at %s", wake)
	}
	w.wait(time.Second)
	if w.step(); w.status("web").Backoff != nil {
		t.Fatalf("still remembered: %+v", w.status("web").Backoff)
	}
	w.fail(w.of("web")[0])
	if got := w.step(); len(got) != 2 {
		t.Fatalf("the first failure after ten minutes of health is repaired at once, not %v", got)
	}
}

func TestAnOldFailureThatCannotBeRepairedIsNotCountedAgain(t *testing.T) {
	w := running(t, def("db", "one", 1), def("web", "one", 1, dependsOn("db")))
	w.budget = 0
	w.fail("db.1-1", "web.1-2")
	w.step()
	w.wait(backoffForgetAfter + time.Second)
	w.step()
	first := w.plan()
	w.step()
	if again := w.plan(); !reflect.DeepEqual(first.Services, again.Services) || again.Services["web"].Backoff != nil {
		t.Fatalf("it goes on for ever:\n%s\nthen\n%s", show(first), show(again))
	}
}

// watch runs a rollout to its end and calls seen after every event.
func watch(w *world, seen func()) {
	for range 10_000 {
		p := w.plan()
		w.carryOut(p, len(p.Steps))
		seen()
		if ids := w.moving(); len(ids) > 0 {
			w.wait(time.Second)
			w.move(ids[0])
			seen()
			continue
		}
		if len(p.Steps) == 0 {
			if !w.busy(p) || p.Wake.IsZero() {
				return
			}
			w.now = p.Wake
		}
	}
	w.Fatalf("no end in sight%s", w.formatHistory())
}

func TestARolloutStaysWithinItsBounds(t *testing.T) {
	for _, c := range []struct {
		name         string
		how          []func(*mariposa.Service)
		fewest, most int
	}{
		{"start-first one by one", nil, 10, 11},
		{"start-first by three", []func(*mariposa.Service){rolling("3")}, 10, 13},
		{"start-first by a quarter, rounded up", []func(*mariposa.Service){rolling("25%")}, 10, 13},
		{"start-first with a time to prove themselves", []func(*mariposa.Service){rolling("2"), minHealthy(30 * time.Second)}, 10, 12},
		{"stop-first one by one", []func(*mariposa.Service){stopFirst}, 9, 10},
		{"stop-first by four", []func(*mariposa.Service){stopFirst, rolling("4")}, 6, 10},
		{"stop-first by half", []func(*mariposa.Service){stopFirst, rolling("50%"), minHealthy(5 * time.Second)}, 5, 10},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := running(t, def("web", "one", 10, c.how...))
			w.submit(def("web", "two", 10, c.how...))
			fewest, most := 10, 10
			watch(w, func() {
				up := 0
				for _, n := range w.serving("web") {
					up += n
				}
				fewest, most = min(fewest, up), max(most, len(w.of("web")))
			})
			wantServing(t, w, "web", map[string]int{"two": 10})
			if fewest != c.fewest || most != c.most {
				t.Fatalf("from %d serving to %d wanted, want %d and %d\n%s", fewest, most, c.fewest, c.most, w.formatHistory())
			}
			if w.status("web").Rollout != nil {
				t.Fatal("the rollout does not end")
			}
		})
	}
}

func TestAReplacementProvesItselfBeforeItsPredecessorGoes(t *testing.T) {
	w := running(t, def("web", "one", 2, minHealthy(5*time.Second)))
	w.submit(def("web", "two", 2, minHealthy(5*time.Second)))
	wantSteps(t, w.step(), "create web.1 v2")
	w.move("web.1-3")
	wantSteps(t, w.step())
	if wake := w.plan().Wake; !wake.Equal(w.now.Add(5 * time.Second)) {
		t.Fatalf("wakes at %s", wake)
	}
	w.wait(5*time.Second - 1)
	wantSteps(t, w.step())
	w.wait(1)
	wantSteps(t, w.step(), "remove web.1-1")
}

func TestAReplacementThatNeedsAChangeInPlaceProvesItselfToo(t *testing.T) {
	w := running(t, def("web", "one", 1, minHealthy(5*time.Second)))
	w.submit(def("web", "two", 1, live("small"), minHealthy(5*time.Second)))
	w.step()
	w.submit(def("web", "two", 1, live("big"), minHealthy(5*time.Second)))
	w.move("web.1-2")
	wantSteps(t, w.step(), "update web.1-2 v3")
	w.wait(4 * time.Second)
	wantSteps(t, w.step())
	w.wait(time.Second)
	wantSteps(t, w.step(), "remove web.1-1")
}

func TestWithoutARolloutAnOutdatedInstanceIsLeftAloneUntilItFails(t *testing.T) {
	w := running(t, def("web", "one", 2))
	w.submit(def("web", "two", 2))
	ss := *w.status("web")
	ss.Rollout = nil
	w.setGoal(&mariposa.ProjectStatus{Goal: mariposa.GoalStarted, Number: 2, Services: map[string]*mariposa.ServiceStatus{"web": &ss}})
	wantSteps(t, w.step())
	wantStatus(t, w, "web", mariposa.StatusConverged, "")
	w.fail("web.1-1")
	wantSteps(t, w.step(), "create web.1 v2", "remove web.1-1")
}

func TestScalingDuringARolloutTouchesNothingFreshlyMade(t *testing.T) {
	w := running(t, def("web", "one", 35, rolling("5")))
	w.submit(def("web", "two", 35, rolling("5")))
	scaled, touched, most := false, 0, 0
	watch(w, func() {
		if !scaled && w.serving("web")["two"] == 10 {
			scaled = true
			w.scale("web", 20)
		}
		if scaled {
			most = max(most, w.serving("web")["two"])
		}
		for _, i := range w.instances {
			if i.Spec.Digest == "two" && i.Spec.Goal == mariposa.GoalGone {
				touched++
			}
		}
	})
	wantServing(t, w, "web", map[string]int{"two": 20})
	if made := w.made - 35; touched > 0 || most != 20 || made != 20 {
		t.Fatalf("%d made, %d fresh ones touched, %d at most\n%s", made, touched, most, w.formatHistory())
	}
}

func TestAFailureDuringARolloutIsRepairedStraightAtTheNewVersion(t *testing.T) {
	w := running(t, def("web", "one", 3, minHealthy(time.Minute)))
	w.submit(def("web", "two", 3, minHealthy(time.Minute)))
	w.step()
	w.move("web.1-4")
	w.step()
	w.fail("web.3-3")
	wantSteps(t, w.step(), "create web.3 v2", "remove web.3-3")
}

func TestABadVersionStopsByItself(t *testing.T) {
	t.Run("after its failures, with the healthy old ones untouched", func(t *testing.T) {
		w := running(t, def("web", "one", 3, minHealthy(5*time.Second)))
		w.submit(def("web", "two", 3, minHealthy(5*time.Second)))
		for range 100 {
			w.step()
			if r := w.status("web").Rollout; isStopped(r) {
				break
			}
			ids := w.moving()
			if len(ids) == 0 {
				w.now = w.plan().Wake
				continue
			}
			w.wait(time.Second)
			for _, id := range ids {
				if w.instances[id].Spec.Goal == mariposa.GoalRunning {
					w.fail(id)
				} else {
					w.move(id)
				}
			}
		}
		w.settle()
		wantStatus(t, w, "web", mariposa.StatusFailed, "the rollout of version 2 stopped after 3 failures")
		wantSteps(t, w.of("web"), "web.1-1", "web.2-2", "web.3-3")
	})
	t.Run("after its deadline, and what has not proved itself goes", func(t *testing.T) {
		how := []func(*mariposa.Service){minHealthy(5 * time.Second), deadline(time.Minute)}
		w := running(t, def("web", "one", 3, how...))
		w.submit(def("web", "two", 3, how...))
		w.step()
		w.wait(58 * time.Second)
		w.move("web.1-4")
		wantSteps(t, w.step())
		w.wait(2 * time.Second)
		wantSteps(t, w.step(), "remove web.1-4")
		wantStatus(t, w, "web", mariposa.StatusFailed, "no progress for 1m0s")
		w.settle()
		wantSteps(t, w.of("web"), "web.1-1", "web.2-2", "web.3-3")
	})
	t.Run("unless it is told to carry on", func(t *testing.T) {
		w := running(t, def("web", "one", 3))
		w.submit(def("web", "two", 3, carryOn))
		w.step()
		w.wait(time.Hour)
		w.step()
		if r := w.status("web").Rollout; r == nil || isStopped(r) {
			t.Fatalf("rollout is %+v", r)
		}
	})
}

func TestAfterAStoppedRolloutSlotsAreRepairedAtTheirOwnVersion(t *testing.T) {
	w := running(t, def("web", "one", 3, deadline(time.Minute)))
	w.submit(def("web", "two", 3, deadline(time.Minute)))
	w.step()
	w.move("web.1-4")
	w.step() // one is done
	w.settleUntilStopped("web")
	wantServing(t, w, "web", map[string]int{"one": 2, "two": 1})
	w.fail("web.3-3", "web.1-4")
	wantSteps(t, w.step(), "create web.3 v1", "remove web.3-3", "create web.1 v2", "remove web.1-4")
	w.settle()
	w.scale("web", 4)
	wantSteps(t, w.step(), "create web.4 v1")
	w.settle()

	w.submit(def("web", "three", 4))
	w.settle()
	wantServing(t, w, "web", map[string]int{"three": 4})
	wantStatus(t, w, "web", mariposa.StatusConverged, "")
}

func TestAStoppedRolloutEndsOnceNothingOutdatedIsLeft(t *testing.T) {
	w := running(t, def("web", "one", 3, deadline(time.Minute)))
	w.submit(def("web", "two", 3, deadline(time.Minute)))
	w.step()
	w.move("web.1-4")
	w.step()
	w.loseNode("n2") // with web.2-2 of the first version on it
	w.settleUntilStopped("web")
	w.scale("web", 1)
	w.settle() // instances of the oldest version are removed first
	wantServing(t, w, "web", map[string]int{"two": 1})
	if r := w.status("web").Rollout; r != nil {
		t.Fatalf("rollout is %+v", r)
	}
	w.scale("web", 2)
	w.comeBack("n2")
	w.settle()
	wantServing(t, w, "web", map[string]int{"two": 2})
}

func TestAStartLetsAStoppedRolloutTryAgain(t *testing.T) {
	w := running(t, def("web", "one", 3, deadline(time.Minute)))
	w.submit(def("web", "two", 3, deadline(time.Minute)))
	w.settleUntilStopped("web")
	wantServing(t, w, "web", map[string]int{"one": 3})
	w.aim(mariposa.GoalStarted)
	w.settle()
	wantServing(t, w, "web", map[string]int{"two": 3})
}

// settleUntilStopped lets no new instance start until the rollout stops.
func (w *world) settleUntilStopped(service string) {
	w.Helper()
	for range 100 {
		w.step()
		if isStopped(w.status(service).Rollout) {
			break
		}
		for _, id := range w.moving() {
			if w.instances[id].Spec.Goal == mariposa.GoalGone {
				w.move(id)
			}
		}
		w.wait(30 * time.Second)
	}
	w.settle()
}

func TestASecondNewVersionFallsBackToTheOneThatWasProven(t *testing.T) {
	w := running(t, def("web", "one", 2))
	w.submit(def("web", "two", 2))
	w.step()
	w.submit(def("web", "three", 2))
	if from := w.status("web").Rollout.From; from != 1 {
		t.Fatalf("falls back to version %d, which was never fully in force", from)
	}
}

func TestALiveChangeReachesAllInstancesInPlaceHoweverLongItTakes(t *testing.T) {
	w := running(t, def("web", "one", 5, live("small"), deadline(time.Minute)))
	before := w.of("web")
	w.submit(def("web", "one", 5, live("big"), deadline(time.Minute)))
	for range 5 {
		w.step()
		w.wait(40 * time.Second) // together far longer than the deadline
		for _, id := range w.moving() {
			w.move(id)
		}
	}
	w.settle()
	wantSteps(t, w.of("web"), before...)
	wantStatus(t, w, "web", mariposa.StatusConverged, "")
	for _, id := range before {
		if w.instances[id].Spec.Live != "big" {
			t.Fatalf("%s was passed over", id)
		}
	}
}

func TestALiveChangeReachesAnInstanceThatWasAway(t *testing.T) {
	w := running(t, def("web", "one", 3, live("small"), neverReschedule))
	w.submit(def("web", "one", 2, live("big"), neverReschedule))
	w.loseNode("n1")
	w.settle()
	w.comeBack("n1")
	w.settle()
	for _, id := range w.of("web") {
		if w.instances[id].Spec.Live != "big" {
			t.Fatalf("%s was passed over\n%s", id, w.formatHistory())
		}
	}
}

func TestReprovisionMakesEveryInstanceAnew(t *testing.T) {
	w := running(t, def("web", "one", 3))
	w.wait(time.Second)
	w.patch(mariposa.Patch{Reprovision: []string{"web"}})
	w.settle()
	if ids := w.of("web"); len(ids) != 3 || birth(ids[0]) < 4 {
		t.Fatalf("left are %v", ids)
	}
}

func onMetadata(d *mariposa.Service) { d.Update.OnMetadata = mariposa.OnMetadataReprovision }

func secret(keys ...string) func(*mariposa.Service) {
	return func(s *mariposa.Service) { s.Secrets = keys }
}

func needs(keys ...string) func(*mariposa.Service) {
	return func(d *mariposa.Service) { d.Needs = keys }
}

func TestOtherValuesOfMetadataReplaceNothingUnlessTheServiceSaysSo(t *testing.T) {
	t.Run("held", func(t *testing.T) {
		w := running(t, def("web", "one.red", 2))
		w.submit(def("web", "one.blue", 2))
		wantSteps(t, w.step())
		wantStatus(t, w, "web", mariposa.StatusConverged, "")
		if ss := w.status("web"); ss.Number != 2 || ss.Rollout != nil {
			t.Fatalf("web is %+v", ss)
		}
		w.fail("web.1-1")
		wantSteps(t, w.step(), "create web.1 v2", "remove web.1-1")
	})
	t.Run("reprovisioned", func(t *testing.T) {
		w := running(t, def("web", "one.red", 2, onMetadata))
		w.submit(def("web", "one.blue", 2, onMetadata))
		w.settle()
		wantServing(t, w, "web", map[string]int{"one.blue": 2})
		if w.status("web").Rollout != nil {
			t.Fatal("the rollout does not end")
		}
	})
	t.Run("in the midst of a rollout, which goes on", func(t *testing.T) {
		w := running(t, def("web", "one.red", 3))
		w.submit(def("web", "two.red", 3))
		w.step()
		w.move("web.1-4")
		w.submit(def("web", "two.blue", 3))
		w.settle()
		wantServing(t, w, "web", map[string]int{"two.red": 1, "two.blue": 2})
	})
}

func TestNothingIsMadeOfADefinitionThatMissesValues(t *testing.T) {
	w := newWorld(t, def("web", "one", 2, needs("db_password")))
	wantSteps(t, w.step())
	wantStatus(t, w, "web", mariposa.StatusBlocked, "needs the metadata key db_password: set it with `mariposa meta set db_password VALUE`")
	w.submit(def("web", "one.red", 2))
	w.settle()
	wantServing(t, w, "web", map[string]int{"one.red": 2})

	w.wait(time.Hour)
	w.submit(def("web", "two", 2, needs("a", "b"), secret("b"), deadline(time.Minute)))
	wantSteps(t, w.step())
	wantStatus(t, w, "web", mariposa.StatusBlocked, "needs the metadata keys a, b: set them with `mariposa meta set a VALUE`, `mariposa meta set b -`")
	if w.plan().Todo["web"] == 0 {
		t.Fatal("the rollout is still to come")
	}
	w.fail("web.1-1")
	wantSteps(t, w.step(), "create web.1 v2", "remove web.1-1") // at its own version
	w.settle()
	w.scale("web", 3)
	wantSteps(t, w.step()) // a new slot waits
	w.wait(time.Hour)      // and the deadline does not run
	w.submit(def("web", "two.red", 3, deadline(time.Minute)))
	w.settle()
	wantServing(t, w, "web", map[string]int{"two.red": 3})
	wantStatus(t, w, "web", mariposa.StatusConverged, "")
}

func TestADependentIsRolledAfterItsDependency(t *testing.T) {
	w := running(t, def("db", "one", 2), def("web", "one", 2, dependsOn("db"), deadline(time.Minute)))
	w.submit(def("db", "two", 2, deadline(time.Hour)), def("web", "two", 2, dependsOn("db"), deadline(time.Minute)))
	watch(w, func() {
		if w.serving("db")["one"] > 0 && w.serving("web")["two"] > 0 {
			t.Fatalf("a new dependent meets an old dependency\n%s", w.formatHistory())
		}
		if w.serving("db")["one"] == 2 {
			w.wait(time.Minute) // the dependency is slow, which does not count against the dependent
		}
	})
	wantServing(t, w, "web", map[string]int{"two": 2})
}

func TestScalingDownDoesNotWaitForADependency(t *testing.T) {
	w := running(t, def("db", "one", 2), def("web", "one", 3, dependsOn("db")))
	w.submit(def("db", "two", 2), def("web", "two", 1, dependsOn("db")))
	wantSteps(t, w.step(), "create db.1 v2", "remove web.1-3", "remove web.2-4")
}

func TestAServiceThatLeavesTheManifestGoes(t *testing.T) {
	w := running(t, def("db", "one", 1), def("web", "one", 2))
	w.submit(def("db", "one", 1))
	wantSteps(t, w.step(), "remove web.1-2", "remove web.2-3")
	w.settle()
	if _, there := w.goal.Services["web"]; there {
		t.Fatal("it is still spoken of")
	}
	wantServing(t, w, "db", map[string]int{"one": 1})
}

func TestADependencyThatLeavesTheManifestGoesThoughItsDependentDidNotChange(t *testing.T) {
	w := running(t, def("db", "one", 1), def("web", "one", 2, dependsOn("db")))
	w.submit(def("web", "one", 2))
	wantSteps(t, w.step(), "remove db.1-1")
}

func TestAProjectEndsInReverseOrderOfDependency(t *testing.T) {
	for _, goal := range []mariposa.ProjectGoal{mariposa.GoalStopped, mariposa.GoalDeleted} {
		t.Run("when it is "+string(goal), func(t *testing.T) {
			w := running(t, def("db", "one", 1), def("app", "one", 1, dependsOn("db")), def("web", "one", 1, dependsOn("app")))
			w.aim(goal)
			var order []string
			for range 10 {
				order = append(order, w.step()...)
				for _, id := range w.moving() {
					w.move(id)
				}
			}
			wantSteps(t, order,
				"remove web.1-3", "remove app.1-2", "collect web.1-3", "collect app.1-2", "remove db.1-1", "collect db.1-1")
			if p := w.plan(); !p.Empty {
				t.Fatalf("something is left:\n%s", show(p))
			}
			if goal == mariposa.GoalStopped {
				wantStatus(t, w, "db", mariposa.StatusStopped, "")
				w.aim(mariposa.GoalStarted)
				w.settle()
				wantServing(t, w, "web", map[string]int{"one": 1})
			}
		})
	}
}

func TestADeletedProjectDoesNotWaitForAnAbsentNode(t *testing.T) {
	w := running(t, def("db", "one", 1), def("web", "one", 3, dependsOn("db")))
	w.loseNode("n2")
	w.aim(mariposa.GoalDeleted)
	w.settle()
	if left := w.view.UnwantedOn(func(n Node) bool { return n.Unknown }); len(left) != 1 || w.view.Len() != 1 {
		t.Fatalf("%d are left, %d of them on the absent node\n%s", w.view.Len(), len(left), w.formatHistory())
	}
	wantStatus(t, w, "web", mariposa.StatusConverged, "has been unknown since 07:00:00 UTC; it is removed when the node returns")
}

func TestWhatIsToGoIsCountedThoughItsNodeIsAwayForLong(t *testing.T) {
	w := running(t, def("db", "one", 3), def("web", "one", 1, dependsOn("db")))
	w.loseNode("n2")
	w.wait(time.Hour)
	w.aim(mariposa.GoalStopped)
	w.step()
	wantStatus(t, w, "db", mariposa.StatusConverging, "is removed after web, which depends on it and still has 1 instance")
	if n := w.view.Todo("db"); n != 3 {
		t.Errorf("%d instances of db are to go, want 3", n)
	}
}

func TestServicesThatLeanOnEachOtherAcrossVersionsStillEnd(t *testing.T) {
	w := newWorld(t,
		def("a", "one", 1, dependsOn("b")), def("b", "one", 1, dependsOn("c")), def("c", "one", 1))
	w.settle()
	w.submit(def("a", "one", 1), def("b", "one", 1), def("c", "two", 1, dependsOn("a")))
	w.settle()
	// Instances of the first version keep its dependencies.
	for _, name := range []string{"a", "b"} {
		for _, id := range w.of(name) {
			spec := *w.instances[id].Spec
			spec.Digest = "zero"
			w.set(id, &spec, w.instances[id].Status)
		}
	}
	w.versions[1]["a"].Digest, w.versions[1]["b"].Digest = "zero", "zero"
	w.aim(mariposa.GoalDeleted)
	w.settle()
	if w.view.Len() != 0 {
		t.Fatalf("they wait for each other\n%s", w.formatHistory())
	}
}

func TestAProjectThatWasStoppedForLongGoesOnWithItsRollout(t *testing.T) {
	w := running(t, def("web", "one", 2))
	w.submit(def("web", "two", 2))
	w.step()
	w.aim(mariposa.GoalStopped)
	w.settle()
	w.wait(time.Hour)
	w.aim(mariposa.GoalStarted)
	w.settle()
	wantServing(t, w, "web", map[string]int{"two": 2})
	wantStatus(t, w, "web", mariposa.StatusConverged, "")
}

func TestInstancesWithoutAGoalAreLeftoversAndGo(t *testing.T) {
	w := running(t, def("web", "one", 1))
	w.set("old.1-9", &mariposa.InstanceSpec{Name: "old.1-9", Slot: 1, ServiceName: "old", Number: 1, Node: "n1", Goal: mariposa.GoalRunning}, nil)
	wantSteps(t, w.step(), "remove old.1-9")
	if w.plan().Todo["old"] == 0 {
		t.Fatal("a leftover is something to do")
	}
	w.settle()
	if w.view.Len() != 1 || len(w.goal.Services) != 1 {
		t.Fatalf("left are\n%s", dump(w.view))
	}
}

func TestAnInstanceThatFailsInTheInstantItIsMadeDoesNotSpinTheClock(t *testing.T) {
	w := newWorld(t, def("web", "one", 1))
	for range 10 {
		w.step()
		for _, id := range w.moving() {
			w.fail(id)
		}
	}
	if w.made > 2 || !w.plan().Wake.After(w.now) {
		t.Fatalf("%d made in no time\n%s", w.made, show(w.plan()))
	}
}

func TestWhenALostNodeReturnsTheSurplusGoesByTheOrderOfVictims(t *testing.T) {
	w := running(t, def("web", "one", 3))
	w.loseNode("n2")
	w.wait(time.Minute)
	wantSteps(t, w.step(), "create web.2 v1")
	w.settle()
	wantStatus(t, w, "web", mariposa.StatusConverged, "")
	w.comeBack("n2")
	wantSteps(t, w.step(), "remove web.2-2") // the older of the two in slot 2, although web.1 is as old
	w.settle()
	wantSteps(t, w.of("web"), "web.1-1", "web.3-3", "web.2-4")
}

func TestANodeThatReturnsWhileAnotherInstanceFailsLeavesEverySlotFilled(t *testing.T) {
	w := running(t, def("web", "one", 3))
	w.loseNode("n2")
	w.wait(time.Minute)
	w.settle()
	w.fail("web.3-3")
	w.comeBack("n2") // three run, two of them in slot 2
	wantSteps(t, w.step(), "create web.3 v1", "remove web.3-3")
	w.settle()
	wantSteps(t, w.of("web"), "web.1-1", "web.2-4", "web.3-5")
}

func TestARolloutGetsOnThoughAnOutdatedInstanceFailsBesideAReplacement(t *testing.T) {
	w := running(t, def("web", "one", 3))
	w.submit(def("web", "two", 3))
	w.step()
	w.move("web.1-4") // both in slot 1
	w.fail("web.2-2")
	w.settle()
	wantServing(t, w, "web", map[string]int{"two": 3})
}

func TestAnOutdatedInstanceOnALostNodeGoesWithTheRollout(t *testing.T) {
	w := running(t, def("web", "one", 3))
	w.loseNode("n2")
	w.submit(def("web", "two", 3))
	w.settle()
	wantServing(t, w, "web", map[string]int{"two": 3})
	w.comeBack("n2")
	w.settle()
	wantServing(t, w, "web", map[string]int{"two": 3})
	if len(w.of("web")) != 3 {
		t.Fatalf("left are %v", w.of("web"))
	}
}

func TestNothingIsDoneOnAbsenceOfKnowledge(t *testing.T) {
	full := running(t, def("web", "one", 2))
	full.submit(def("web", "two", 1))
	tell := func(goal bool, versions ...int) *View {
		v := NewView()
		for id, i := range full.instances {
			v.SetInstance(id, i.Spec, i.Status)
		}
		if goal {
			v.SetGoal(full.goal)
		}
		for _, n := range versions {
			v.SetVersion(n, full.versions[n])
		}
		return v
	}
	for _, c := range []struct {
		name    string
		view    *View
		missing []int
	}{
		{"when no goal was told", tell(false, 1, 2), nil},
		{"when the definition in force is missing", tell(true, 1), []int{2}},
		{"when the definition instances were made from is missing", tell(true, 2), []int{1}},
		{"when both are missing", tell(true), []int{1, 2}},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := c.view.MissingVersions(); !slices.Equal(got, c.missing) {
				t.Fatalf("missing are %v, want %v", got, c.missing)
			}
			p := c.view.Plan(dawn, Budget{Starting: 100})
			if len(p.Steps) > 0 || p.Empty || c.view.Todo("web") == 0 {
				t.Fatalf("plan is\n%s", show(whole{Plan: p}))
			}
			if !reflect.DeepEqual(p.ApplyTo(full.goal.Services), full.goal.Services) {
				t.Fatalf("goals would be forgotten: %v, %v", p.Services, p.Ended)
			}
		})
	}
	if p := tell(true, 1, 2).Plan(dawn, Budget{Starting: 100}); len(p.Steps) == 0 {
		t.Fatal("nothing is done though everything is known")
	}
}

func TestAStatusThatDoesNotSayIsNoOrderToEnd(t *testing.T) {
	w := running(t, def("web", "one", 2))
	st := *w.goal
	st.Goal = ""
	w.setGoal(&st)
	wantSteps(t, w.step())
}

func TestALostDefinitionDoesNotKeepAProjectFromEnding(t *testing.T) {
	w := running(t, def("web", "one", 2))
	w.view.SetVersion(1, Definitions{})
	w.aim(mariposa.GoalDeleted)
	wantSteps(t, w.step(), "remove web.1-1", "remove web.2-2")
}

func TestAProjectThatWaitsIsNotEmpty(t *testing.T) {
	w := newWorld(t, def("web", "one", 1))
	w.budget = 0
	if p := w.plan(); p.Empty {
		t.Fatal("an instance is wanted")
	}
}

func TestARepairGoesBeforeBulkWorkOfOthers(t *testing.T) {
	w := running(t, def("all", "one", 1), def("web", "one", 2))
	w.scale("all", 100)
	w.budget = 10
	w.fail("web.1-2")
	if got := w.step(); got[0] != "create web.1 v1" || len(got) != 11 {
		t.Fatalf("steps are %v", got)
	}
	w.fail("web.2-3") // all room is taken now
	for _, id := range w.moving()[:1] {
		w.move(id)
	}
	w.wait(2 * time.Second)
	p := w.plan()
	if !p.Steps[0].Repair {
		t.Fatalf("the next room goes to the repair, not to\n%s", show(p))
	}
}

func TestTheVersionToFallBackToIsKept(t *testing.T) {
	w := running(t, def("web", "one", 1))
	w.submit(def("web", "two", 1))
	fresh := NewView()
	fresh.SetGoal(w.goal)
	if got := fresh.MissingVersions(); !slices.Equal(got, []int{1, 2}) {
		t.Fatalf("a planner that takes over needs %v", got)
	}
	w.view.RemoveInstance("web.1-1")
	w.view.ForgetVersions()
	if got := w.view.MissingVersions(); len(got) > 0 {
		t.Fatalf("missing are %v", got)
	}
	w.setGoal(&mariposa.ProjectStatus{Goal: mariposa.GoalStarted, Number: 2, Services: map[string]*mariposa.ServiceStatus{"web": {Number: 2, Scale: 1}}})
	w.view.ForgetVersions()
	if w.view.Definition(1, "web") != nil || w.view.Definition(2, "web") == nil {
		t.Fatal("what nothing refers to is to be forgotten, and only that")
	}
}

func TestAPlanIsTheSameWhateverTheOrderOfTelling(t *testing.T) {
	w := running(t, def("db", "one", 3), def("web", "one", 6, rolling("2"), dependsOn("db")))
	w.submit(def("db", "one", 3), def("web", "two", 5, rolling("2"), dependsOn("db")))
	w.step()
	w.fail("web.3-6")
	w.loseNode("n3")
	w.wait(2 * time.Minute)
	want := w.plan()
	if len(want.Steps) == 0 {
		t.Fatal("there should be something to do")
	}
	for seed := range uint64(50) {
		v := NewView()
		var tell []func()
		for id, i := range w.instances {
			tell = append(tell, func() { v.SetInstance(id, i.Spec, i.Status) })
		}
		for id, n := range w.nodes {
			tell = append(tell, func() { v.SetNode(id, n) })
		}
		for n, d := range w.versions {
			tell = append(tell, func() { v.SetVersion(n, d) })
		}
		tell = append(tell, func() { v.SetGoal(w.goal) })
		rand.New(rand.NewPCG(seed, 0)).Shuffle(len(tell), func(i, j int) { tell[i], tell[j] = tell[j], tell[i] })
		for _, f := range tell {
			f()
		}
		if got := w.whole(v); !reflect.DeepEqual(got, want) {
			t.Fatalf("seed %d:\n%s\nwant\n%s", seed, show(got), show(want))
		}
	}
}

func TestEveryClassHasAName(t *testing.T) {
	for c := range classes {
		if c.String() == "" {
			t.Errorf("class %d has no name", c)
		}
	}
}

func ExamplePlan() {
	w := newWorld(nil, def("db", "one", 1), def("web", "one", 2, dependsOn("db")))
	p := w.view.Plan(w.now, Budget{Starting: 10})
	for _, s := range p.Steps {
		fmt.Println(word(s))
	}
	fmt.Println(reasonOf(p.Services["web"]))
	// Output:
	// create db.1 v1
	// waits for db: 0 of 1 running
}

// An instance that fails at the moment of its creation is not recreated at the same
// moment, even if it is already being removed: failures are distinguished by their time.
func TestAReplacementThatFailsAtOnceIsNotMadeAgainInThatInstant(t *testing.T) {
	w := running(t, def("web", "one", 1))
	w.submit(def("web", "two", 1))
	before := w.made
	for range 20 {
		w.step()
		for _, id := range w.moving() {
			if w.instances[id].Spec.Goal == mariposa.GoalRunning {
				w.fail(id)
			} else {
				w.move(id)
			}
		}
	}
	if n := w.made - before; n != 1 {
		t.Errorf("%d were made in one instant%s", n, w.formatHistory())
	}
	if p := w.plan(); !p.Wake.After(w.now) {
		t.Errorf("nothing wakes the plan:\n%s", show(p))
	}
}

// A node returns with an outdated instance in a slot that was filled meanwhile, and the
// filter of a rollout excludes it. The outdated instance is removed.
func TestOfTwoInASlotTheOneThatAFilterLeavesOutdatedGoes(t *testing.T) {
	t.Parallel()
	w := newWorld(t, def("db", "one", 2))
	w.settle()
	w.submit(def("db", "two", 2))
	back, can := RollBack(w.goal, w.change())
	if !can {
		t.Fatal("version 2 cannot be taken back")
	}
	w.setGoal(back)
	w.settle()
	up := w.of("db")
	undone := w.create("db", 1, 2, "n1")
	w.setState(undone, mariposa.StateRunning, "")
	w.patch(mariposa.Patch{Reprovision: []string{"db"}, Filter: &mariposa.Filter{Nodes: []string{"n3"}}}, "db") // nothing is there
	w.settle()
	if now := w.of("db"); !slices.Equal(now, up) {
		t.Errorf("%v were there, %s came back, and %v are left%s", up, undone, now, w.formatHistory())
	}
}

// An instance that others were asked to leave is removed first, and counts once.
func TestWhatYieldsGoesFirstAndCountsOnce(t *testing.T) {
	t.Parallel()
	w := running(t, def("db", "one", 3))
	goal := *w.goal
	db := *goal.Services["db"]
	db.Scale, db.Yields = 1, []string{"db.1-1"}
	goal.Services = map[string]*mariposa.ServiceStatus{"db": &db}
	w.setGoal(&goal)
	wantSteps(t, w.step(), "remove db.1-1", "remove db.2-2")
}
