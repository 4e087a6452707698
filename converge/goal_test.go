package converge

import (
	"reflect"
	"slices"
	"testing"
	"time"

	"mariposa"
)

func TestWhatAPatchDoesToAGoal(t *testing.T) {
	scaled := func(n int) *mariposa.Service { return def("web", "one", n) }
	silent := func(image string) *mariposa.Service {
		d := def("web", image, 0)
		d.Scale = nil
		return d
	}
	versions := map[int]Definitions{
		1: {"web": scaled(3)},
		2: {"web": scaled(3), "db": def("db", "one", 2)},
		3: {"web": scaled(5)},
		4: {"web": silent("one")},
		5: {"web": silent("two")},
		6: {},
	}
	first := &mariposa.ProjectStatus{
		Goal: mariposa.GoalStarted, Number: 1,
		Services: map[string]*mariposa.ServiceStatus{"web": {ID: "id-of-web", Scale: 7, Number: 1}},
	}
	for _, c := range []struct {
		name    string
		old     *mariposa.ProjectStatus
		patch   mariposa.Patch
		scale   int
		removed bool
		rollout bool
	}{
		{"a first version brings its scale", nil, mariposa.Patch{Number: 1}, 3, false, true},
		{"a first version that does not say has one", nil, mariposa.Patch{Number: 4}, 1, false, true},
		{"a scale that a person set stays while the manifest says the same as before", first, mariposa.Patch{Number: 2}, 7, false, false},
		{"a scale that the manifest changes is applied", first, mariposa.Patch{Number: 3}, 5, false, false},
		{"a scale that the manifest no longer says stays", first, mariposa.Patch{Number: 4}, 7, false, false},
		{"a new definition gets a rollout", first, mariposa.Patch{Number: 5}, 7, false, true},
		{"what is no longer in the manifest is to go", first, mariposa.Patch{Number: 6}, 7, true, false},
		{"a scale is set", first, mariposa.Patch{Scale: map[string]int{"web": 2, "nobody": 1}}, 2, false, false},
		{"a scale is changed by so many", first, mariposa.Patch{ScaleBy: map[string]int{"web": -2}}, 5, false, false},
		{"a scale never goes below nothing", first, mariposa.Patch{ScaleBy: map[string]int{"web": -20}}, 0, false, false},
		{"making anew is a rollout at the same version", first, mariposa.Patch{Reprovision: []string{"web", "nobody"}}, 7, false, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			var before mariposa.ProjectStatus
			if c.old != nil {
				before = *c.old
				web := *c.old.Services["web"]
				before.Services = map[string]*mariposa.ServiceStatus{"web": &web}
			}
			got := Apply(c.old, c.patch, Change{
				Now: dawn, IDs: map[string]string{"web": "id-of-web"},
				Versions: func(n int) Definitions { return versions[n] },
			})
			web := got.Services["web"]
			if web.ID != "id-of-web" || web.Scale != c.scale || web.Removed != c.removed || (web.Rollout != nil) != c.rollout {
				t.Fatalf("web is %+v", web)
			}
			if got.Goal != mariposa.GoalStarted {
				t.Fatalf("goal is %q", got.Goal)
			}
			if c.old != nil && !reflect.DeepEqual(&before, c.old) {
				t.Fatalf("the old goal was touched: %+v", c.old)
			}
		})
	}
}

func TestAServiceThatComesBackIsNoLongerToGo(t *testing.T) {
	w := running(t, def("db", "one", 1), def("web", "one", 2))
	w.submit(def("db", "one", 1))
	w.step()
	w.submit(def("db", "one", 1), def("web", "one", 3))
	w.settle()
	wantServing(t, w, "web", map[string]int{"one": 3})
}

func TestTheSameDefinitionUnderANewNumberLetsTheRolloutGoOn(t *testing.T) {
	w := running(t, def("web", "one", 3))
	w.submit(def("web", "two", 3))
	w.step()
	w.submit(def("web", "two", 3))
	if r := w.status("web").Rollout; r == nil || r.Number != 3 || r.From != 1 {
		t.Fatalf("rollout is %+v", r)
	}
	w.settle()
	wantServing(t, w, "web", map[string]int{"two": 3})
	if w.made != 6 {
		t.Fatalf("%d made, though what was on its way would do", w.made)
	}
}

// A new version or request retries the rollouts that stopped by themselves.
func TestApplyTriesAStoppedRolloutAgain(t *testing.T) {
	db := def("db", "one", 1)
	broken := func() *world {
		w := running(t, db, def("web", "one", 3, deadline(time.Minute)))
		w.submit(db, def("web", "two", 3, deadline(time.Minute)))
		w.settleUntilStopped("web")
		wantServing(t, w, "web", map[string]int{"one": 3})
		wantStatus(t, w, "web", mariposa.StatusFailed, "")
		return w
	}
	for name, again := range map[string]func(w *world){
		"by a version that changes another service": func(w *world) { w.submit(def("db", "two", 1), def("web", "two", 3, deadline(time.Minute))) },
		"by the same version":                       func(w *world) { w.patch(mariposa.Patch{Number: w.goal.Number}) },
		"by converge":                               func(w *world) { w.patch(mariposa.Patch{Retry: true}) },
		"by converge of the service":                func(w *world) { w.patch(mariposa.Patch{Retry: true}, "web") },
	} {
		t.Run(name, func(t *testing.T) {
			w := broken()
			if got := RetriedServices(w.goal); !slices.Equal(got, []string{"web"}) {
				t.Fatalf("tried again would be %v", got)
			}
			again(w)
			if r := w.status("web").Rollout; r == nil || r.HasFailed() || r.Failures != 0 || !r.Progress.Equal(w.now) || w.status("web").Backoff != nil {
				t.Fatalf("web is %+v, its rollout %+v", w.status("web"), r)
			}
			w.settle()
			wantServing(t, w, "web", map[string]int{"two": 3})
		})
	}
	t.Run("but not by converge of another service", func(t *testing.T) {
		w := broken()
		w.patch(mariposa.Patch{Retry: true}, "db")
		w.settle()
		wantServing(t, w, "web", map[string]int{"one": 3})
	})
}

func TestOnlyWhatNobodyHoldsBackIsTriedAgain(t *testing.T) {
	w := running(t, def("web", "one", 1, deadline(time.Minute)))
	w.submit(def("web", "two", 1, deadline(time.Minute)))
	w.settleUntilStopped("web")
	failed := func(change func(*mariposa.ServiceStatus)) *mariposa.ServiceStatus {
		ss := *w.status("web")
		change(&ss)
		return &ss
	}
	goal := &mariposa.ProjectStatus{Goal: mariposa.GoalStarted, Services: map[string]*mariposa.ServiceStatus{
		"failed":  failed(func(*mariposa.ServiceStatus) {}),
		"also":    failed(func(*mariposa.ServiceStatus) {}),
		"frozen":  failed(func(ss *mariposa.ServiceStatus) { ss.Frozen = &mariposa.Freeze{} }),
		"stopped": failed(func(ss *mariposa.ServiceStatus) { ss.Stopped = true }),
		"removed": failed(func(ss *mariposa.ServiceStatus) { ss.Removed = true }),
		"rolling": failed(func(ss *mariposa.ServiceStatus) { ss.Rollout = &mariposa.Rollout{Number: 2} }),
		"waiting": failed(func(ss *mariposa.ServiceStatus) { ss.Rollout = &mariposa.Rollout{Number: 2, Waiting: true} }),
		"held":    failed(func(ss *mariposa.ServiceStatus) { ss.Rollout = &mariposa.Rollout{Number: 2, Waiting: true, Held: true} }),
		"at rest": {Scale: 1},
	}}
	if got := RetriedServices(goal); !slices.Equal(got, []string{"also", "failed", "waiting"}) {
		t.Errorf("tried again are %v", got)
	}
	goal.Goal = mariposa.GoalStopped
	if got := append(RetriedServices(goal), RetriedServices(nil)...); got != nil {
		t.Errorf("of a stopped project, tried again are %v", got)
	}
}

// A canary is compared with what runs. Without previous instances there is no canary.
func TestWhatHadNoInstanceHasNoCanary(t *testing.T) {
	t.Parallel()
	w := running(t, def("web", "one", 0), def("db", "one", 1))
	w.cause = func(id string) bool { return w.instances[id].Spec.Digest == "one" }
	w.submit(def("web", "two", 3, canary(1), stopFirst, deadline(4*time.Second)), def("db", "one", 1))
	w.settle()
	wantServing(t, w, "web", map[string]int{"two": 3})
	wantStatus(t, w, "web", mariposa.StatusConverged, "")
}

// A version without a canary ends the hold of the version that had one.
func TestAVersionWithoutACanaryEndsTheHold(t *testing.T) {
	t.Parallel()
	w := running(t, def("web", "one", 3))
	w.submit(def("web", "two", 3, canary(1)))
	w.settle()
	wantServing(t, w, "web", map[string]int{"one": 2, "two": 1})
	w.submit(def("web", "two", 2))
	w.settle()
	wantServing(t, w, "web", map[string]int{"two": 2})
	wantStatus(t, w, "web", mariposa.StatusConverged, "")
}

// A stopped service has not failed, whatever happened to its rollout before.
func TestWhatIsStoppedHasNotFailed(t *testing.T) {
	t.Parallel()
	w := withStoppedRollout(t)
	w.aim(mariposa.GoalStopped)
	w.settle()
	wantStatus(t, w, "web", mariposa.StatusStopped, "")
}
