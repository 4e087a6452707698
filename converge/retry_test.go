package converge

import (
	"testing"
	"time"

	"mariposa"
)

// withStoppedRollout returns a world in which the rollout of web to a second version has
// stopped after failures whose cause is now gone.
func withStoppedRollout(t *testing.T) *world {
	t.Helper()
	w := running(t, def("db", "one", 1), def("web", "one", 2, dependsOn("db")))
	w.cause = func(id string) bool { return w.instances[id].Spec.Digest == "two" }
	w.submit(def("db", "one", 1), def("web", "two", 2, dependsOn("db")))
	w.settle()
	if !isStopped(w.status("web").Rollout) {
		t.Fatalf("the rollout has not stopped%s", w.formatHistory())
	}
	w.cause = nil
	return w
}

func TestAStoppedRolloutIsTriedAgain(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		by string
		do func(w *world)
	}{
		{"a version that changes another service", func(w *world) { w.submit(def("db", "two", 1), def("web", "two", 2, dependsOn("db"))) }},
		{"a version that changes nothing", func(w *world) { w.submit(def("db", "one", 1), def("web", "two", 2, dependsOn("db"))) }},
		{"the same version, submitted again", func(w *world) { w.patch(mariposa.Patch{Number: 2, Retry: true}) }},
		{"converge of the project", func(w *world) { w.patch(mariposa.Patch{Retry: true}) }},
		{"converge of the service", func(w *world) { w.patch(mariposa.Patch{Retry: true}, "web") }},
		{"a start of the project", func(w *world) { w.aim(mariposa.GoalStarted) }},
		{"a start of the service", func(w *world) { w.lift(mariposa.Patch{Goal: mariposa.GoalStarted}, "web") }},
	} {
		t.Run(c.by, func(t *testing.T) {
			t.Parallel()
			w := withStoppedRollout(t)
			c.do(w)
			switch ss := w.status("web"); {
			case ss.Rollout == nil || isStopped(ss.Rollout) || ss.Rollout.Failures != 0:
				t.Fatalf("the rollout is %+v%s", ss.Rollout, w.formatHistory())
			case ss.Backoff != nil && ss.Backoff.Until.After(w.now):
				t.Fatalf("web backs off until %s%s", stamp(ss.Backoff.Until), w.formatHistory())
			}
			w.settle()
			wantServing(t, w, "web", map[string]int{"two": 2})
			wantStatus(t, w, "web", mariposa.StatusConverged, "")
		})
	}
}

// A retried rollout has the same number of attempts as before, and then stops again.
func TestAStoppedRolloutThatIsTriedAgainStopsAgain(t *testing.T) {
	t.Parallel()
	w := withStoppedRollout(t)
	tries := 0
	w.cause = func(id string) bool {
		bad := w.instances[id].Spec.Digest == "two"
		if bad {
			tries++
		}
		return bad
	}
	w.patch(mariposa.Patch{Retry: true})
	w.settle()
	if !isStopped(w.status("web").Rollout) || tries < maxRolloutFailures || tries > maxRolloutFailures+1 {
		t.Fatalf("after %d tries the rollout is %+v%s", tries, w.status("web").Rollout, w.formatHistory())
	}
	wantServing(t, w, "web", map[string]int{"one": 2})
}

func TestAStoppedRolloutIsLeftAloneByWhatIsAboutAnother(t *testing.T) {
	t.Parallel()
	w := withStoppedRollout(t)
	w.patch(mariposa.Patch{Retry: true}, "db")
	w.settle()
	if !isStopped(w.status("web").Rollout) {
		t.Fatalf("the rollout of web goes on%s", w.formatHistory())
	}
	wantServing(t, w, "web", map[string]int{"one": 2})
}

// TestARollbackThatFailedIsTriedAgainByARevert lets the rollback fail as well as the
// version that it rolls back.
func TestARollbackThatFailedIsTriedAgainByARevert(t *testing.T) {
	t.Parallel()
	undone := func(d *mariposa.Service) { d.Update.OnFailure = mariposa.OnFailureRollback }
	w := running(t, def("web", "one", 1, stopFirst, undone))
	w.cause = func(string) bool { return true }
	w.submit(def("web", "two", 1, stopFirst, undone))
	for range 60 {
		w.step()
		for _, id := range w.moving() {
			w.move(id)
		}
		w.wait(10 * time.Second)
	}
	if w.goal.Number != 1 || !isStopped(w.status("web").Rollout) {
		t.Fatalf("version %d is in force, and the rollout is %+v%s", w.goal.Number, w.status("web").Rollout, w.formatHistory())
	}
	w.cause = nil
	w.submit(def("web", "one", 1, stopFirst, undone))
	if p := w.plan(); isStopped(p.Services["web"].Rollout) || p.Services["web"].Status == mariposa.StatusFailed {
		t.Fatalf("the revert fails before it has begun:\n%s%s", show(p), w.formatHistory())
	}
	w.settle()
	wantServing(t, w, "web", map[string]int{"one": 1})
	wantStatus(t, w, "web", mariposa.StatusConverged, "")
}

// A rollout that continues under a new version is judged by that version: neither the
// time nor the failures of the previous one count.
func TestANewVersionGivesARolloutItsTimeAnew(t *testing.T) {
	t.Parallel()
	web := func(image string) *mariposa.Service {
		return def("web", image, 1, minHealthy(30*time.Second), deadline(time.Minute))
	}
	w := running(t, web("one"), def("db", "one", 1))
	w.submit(web("two"), def("db", "one", 1))
	w.step() // creates the new one, which takes its time
	w.wait(50 * time.Second)
	w.step()
	w.submit(web("two"), def("db", "two", 1))
	w.step()
	w.wait(30 * time.Second)
	w.step()
	if r := w.status("web").Rollout; r == nil || isStopped(r) || r.Number != 3 || r.Failures != 0 {
		t.Fatalf("30 s after version 3 came, the rollout is %+v%s", r, w.formatHistory())
	}
	w.wait(31 * time.Second)
	w.step()
	if r := w.status("web").Rollout; r == nil || !isStopped(r) {
		t.Errorf("61 s after version 3 came, the rollout is %+v%s", r, w.formatHistory())
	}
}
