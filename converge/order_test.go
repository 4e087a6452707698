package converge

import (
	"strings"
	"testing"
	"time"

	"mariposa"
)

func TestCreationWaitsForEverythingNeeded(t *testing.T) {
	w := newWorld(t, def("a", "one", 1), def("b", "one", 2), def("c", "one", 1, dependsOn("a", "b")), def("alone", "one", 1))
	wantSteps(t, w.step(), "create a.1 v1", "create alone.1 v1", "create b.1 v1", "create b.2 v1")
	w.move("a.1-1")
	w.move("b.1-3")
	wantSteps(t, w.step())
	wantStatus(t, w, "c", mariposa.StatusConverging, "waits for b: 1 of 2 running")
	w.move("b.2-4")
	wantSteps(t, w.step(), "create c.1 v1")
}

func TestDeletionRunsInReverse(t *testing.T) {
	w := running(t, def("a", "one", 1), def("b", "one", 1, dependsOn("a")), def("c", "one", 1, dependsOn("b")), def("alone", "one", 1))
	w.aim(mariposa.GoalStopped)
	var order []string
	for range 10 {
		order = append(order, w.step()...)
		for _, id := range w.moving() {
			w.move(id)
		}
	}
	wantSteps(t, order, "remove alone.1-2", "remove c.1-4", "collect alone.1-2", "remove b.1-3", "collect c.1-4", "remove a.1-1", "collect b.1-3", "collect a.1-1")
}

func TestOtherBranchesGoOnWhenOneFails(t *testing.T) {
	w := newWorld(t, def("a", "one", 1), def("a2", "one", 1, dependsOn("a")), def("b", "one", 1), def("b2", "one", 1, dependsOn("b")), def("alone", "one", 1))
	for range 40 {
		w.step()
		for _, id := range w.moving() {
			if strings.HasPrefix(id, "a.") && w.instances[id].Spec.Goal == mariposa.GoalRunning {
				w.fail(id)
				continue
			}
			w.move(id)
		}
		w.wait(1e9)
	}
	wantServing(t, w, "b2", map[string]int{"one": 1})
	wantServing(t, w, "alone", map[string]int{"one": 1})
	wantServing(t, w, "a2", map[string]int{})
	if why := reasonOf(w.status("a2")); !strings.HasPrefix(why, "waits for a: 0 of 1 running; a.1-") || !strings.HasSuffix(why, "exited with 1") {
		t.Errorf("a2 says %q", why)
	}
}

// An edge alone replaces no instance, but counts immediately.
func TestAChangedEdgeTakesEffectThoughNothingElseChanged(t *testing.T) {
	t.Run("one that was taken away holds nobody", func(t *testing.T) {
		w := running(t, def("db", "one", 1), def("web", "one", 1, dependsOn("db")))
		w.submit(def("web", "one", 1))
		wantSteps(t, w.step(), "remove db.1-1")
		wantServing(t, w, "web", map[string]int{"one": 1})
	})
	t.Run("one that was added orders the end", func(t *testing.T) {
		w := running(t, def("db", "one", 1), def("web", "one", 1))
		w.submit(def("db", "one", 1), def("web", "one", 1, dependsOn("db")))
		wantSteps(t, w.step())
		w.aim(mariposa.GoalStopped)
		wantSteps(t, w.step(), "remove web.1-2")
		wantStatus(t, w, "db", mariposa.StatusConverging, "is removed after web, which depends on it and still has 1 instance")
	})
	t.Run("one that was added orders what is made from then on", func(t *testing.T) {
		w := running(t, def("web", "one", 1))
		w.submit(def("db", "one", 1), def("web", "one", 2, dependsOn("db")))
		wantSteps(t, w.step(), "create db.1 v2")
		w.settle()
		wantServing(t, w, "web", map[string]int{"one": 2})
	})
	t.Run("one that was turned round orders the end as it is now", func(t *testing.T) {
		w := running(t, def("a", "one", 1), def("b", "one", 1, dependsOn("a")))
		w.submit(def("a", "one", 1, dependsOn("b")), def("b", "one", 1))
		wantSteps(t, w.step())
		w.aim(mariposa.GoalDeleted)
		wantSteps(t, w.step(), "remove a.1-1")
	})
}

// An instance that must be replaced keeps the edges that it was created with until it is
// removed.
func TestLeftoversGoInTheOrderInWhichTheyWereMade(t *testing.T) {
	w := running(t, def("db", "one", 1), def("web", "one", 1, dependsOn("db")))
	w.submit(def("web", "two", 1))
	wantSteps(t, w.step(), "create web.1 v2")
	wantStatus(t, w, "db", mariposa.StatusConverging, "is removed after web, which depends on it and still has 1 instance")
	w.move("web.1-3")
	wantSteps(t, w.step(), "remove web.1-2")
	wantSteps(t, w.step())
	w.move("web.1-2")
	wantSteps(t, w.step(), "remove db.1-1", "collect web.1-2")
}

// If the order becomes stop-first while two instances have the same slot, the empty slot
// is still filled, also by a canary with a limit.
func TestTwoInOneSlotDoNotKeepAnotherFromBeingFilled(t *testing.T) {
	w := running(t, def("db", "one", 2, minHealthy(time.Minute)))
	w.submit(def("db", "two", 2, minHealthy(time.Minute)))
	w.step()
	w.move("db.1-3") // next to db.1-1, and not healthy for long enough
	canary := func(d *mariposa.Service) { d.Update.Canary = mariposa.Amount{N: 1} }
	w.submit(def("db", "three", 3, stopFirst, canary))
	w.settle()
	if got := w.serving("db"); got["three"] < 1 || len(w.of("db")) != 3 {
		t.Errorf("db is %v%s", got, w.formatHistory())
	}
	wantStatus(t, w, "db", mariposa.StatusHeld, "1 of 3 at version 3")
}
