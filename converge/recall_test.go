package converge

import (
	"reflect"
	"slices"
	"strings"
	"testing"

	"mariposa"
)

// Plans visit only what may have changed. These tests check them with changes far away in
// the graph, which affect a service only along whole paths.

// TestAServiceThatWaitsIsLookedAtAgainWhenVersionsContradict lets s wait for x because of
// an edge of an older version, which is frozen and stays. Then m, whose changes neither s
// nor x reads, depends on x in a newer version. This reverses the wait, and s may be
// removed.
func TestAServiceThatWaitsIsLookedAtAgainWhenVersionsContradict(t *testing.T) {
	t.Parallel()
	w := newWorld(t, def("m", "one", 1), def("s", "one", 1, dependsOn("m")), def("x", "one", 1, dependsOn("s")))
	w.settle()
	w.mode(mariposa.ModeFreeze, "x")
	w.settle()
	w.submit(def("m", "two", 1, dependsOn("x")), def("x", "two", 1))
	w.settle()
	if got := w.of("s"); len(got) != 1 {
		t.Fatalf("%v are there of s, which goes after x%s", got, w.formatHistory())
	}
	w.scale("m", 2) // the second one is created from the new version
	w.settle()
	if got := w.of("s"); len(got) != 0 {
		t.Errorf("%v are left of s, though the newer version holds it for no one%s", got, w.formatHistory())
	}
	if got := w.of("x"); len(got) != 1 {
		t.Errorf("%v are there of x, which is frozen%s", got, w.formatHistory())
	}
}

// TestAHoldIsKnownToAllAboveItInTheSamePlan lets the rollout of a become held and
// continue. All services above it, near or far, report this in the same plan, without
// waiting for the services in between.
func TestAHoldIsKnownToAllAboveItInTheSamePlan(t *testing.T) {
	t.Parallel()
	w := newWorld(t, tower("one")...)
	w.settle()
	w.submit(tower("two", canary(1))...)
	said := w.firstToSay(mariposa.StatusHeld)
	if want := []string{"b", "c", "d"}; !slices.Equal(said, want) { // a itself still has to remove a predecessor
		t.Fatalf("when a begins to hold, %v say so, want %v%s", said, want, w.formatHistory())
	}
	w.settle()

	w.patch(mariposa.Patch{Reprovision: []string{"a"}}, "a")
	said = w.firstToSay(mariposa.StatusConverging)
	if want := []string{"a", "b", "c", "d"}; !slices.Equal(said, want) {
		t.Errorf("when a goes on, %v say so, want %v%s", said, want, w.formatHistory())
	}
}

// TestAHoldEndsForAllAboveWhatNoLongerTakesPart ends the rollout of b, which is between
// a, whose rollout is held, and the services above. Only b changes; c and d continue in
// the same plan.
func TestAHoldEndsForAllAboveWhatNoLongerTakesPart(t *testing.T) {
	t.Parallel()
	w := newWorld(t, tower("one")...)
	w.settle()
	w.submit(tower("two", canary(1))...)
	w.settle()
	w.patch(mariposa.Patch{Accept: true}, "b")
	said := w.firstToSay(mariposa.StatusConverging)
	if want := []string{"c", "d"}; !slices.Equal(said, want) {
		t.Errorf("when b takes no part any more, %v go on, want %v%s", said, want, w.formatHistory())
	}
}

// tower returns four services that each depend on the previous one; how changes the
// lowest.
func tower(image string, how ...func(*mariposa.Service)) []*mariposa.Service {
	return []*mariposa.Service{
		def("a", image, 3, how...), def("b", image, 1, dependsOn("a")), def("c", image, 1, dependsOn("b")), def("d", image, 1, dependsOn("c")),
	}
}

// firstToSay continues until a plan contains a new status of the given value, and returns
// the services with that status in the plan. It compares each plan with that of a fresh
// view.
func (w *world) firstToSay(status mariposa.Status) []string {
	w.Helper()
	for range 100 {
		p := w.view.Plan(w.now, Budget{Starting: w.budget})
		if fresh := (&randomProject{world: w}).fresh().Plan(w.now, Budget{Starting: w.budget}); !reflect.DeepEqual(p, fresh) {
			w.Fatalf("the plan is\n%s\nbut from scratch\n%s%s", show(whole{Plan: p}), show(whole{Plan: fresh}), w.formatHistory())
		}
		var who []string
		for name, ss := range p.Services {
			if ss.Status == status && w.goal.Services[name].Status != status {
				who = append(who, name)
			}
		}
		w.carryOut(whole{Plan: Plan{Steps: p.Steps, Services: p.ApplyTo(w.goal.Services), Ended: p.Ended}}, len(p.Steps))
		if len(who) > 0 {
			slices.Sort(who)
			return who
		}
		for _, id := range w.moving() {
			w.move(id)
		}
	}
	w.Fatalf("nobody ever is %s%s", status, w.formatHistory())
	return nil
}

// TestAServiceIsLookedAtAgainWhenAReferrerThatItDoesNotNameLetsGo lets db keep two
// outdated instances for two frozen services. Its reason names one of them. Then the
// other one follows, and the instance that it referred to is removed.
func TestAServiceIsLookedAtAgainWhenAReferrerThatItDoesNotNameLetsGo(t *testing.T) {
	t.Parallel()
	web, late := def("web", "one", 1, refersTo("db.id")), def("late", "one", 1, refersTo("db.id"))
	w := newWorld(t, def("db", "one", 1, rolling("3")), web)
	w.settle()
	w.mode(mariposa.ModeFreeze, "web")
	w.submit(def("db", "two", 1, rolling("3")), web)
	w.settle()
	w.submit(def("db", "two", 1, rolling("3")), web, late)
	w.settle()
	w.mode(mariposa.ModeFreeze, "late")
	w.submit(def("db", "three", 1, rolling("3")), web, late)
	w.settle()
	stays, goes := w.boundTo("web", "db"), w.boundTo("late", "db")
	if said := reasonOf(w.status("db")); len(w.of("db")) != 3 || stays == goes || !strings.HasPrefix(said, stays+" is kept until web") {
		t.Fatalf("db has %v, %q%s", w.of("db"), said, w.formatHistory())
	}
	w.mode(mariposa.ModeThaw, "late")
	w.settle()
	if got := w.of("db"); slices.Contains(got, goes) || !slices.Contains(got, stays) {
		t.Errorf("after late has followed, %v are there: %s should be gone, %s should stay%s", got, goes, stays, w.formatHistory())
	}
}

// TestAServiceThatReadItsDependentsIsLookedAtAgainWhenOneLetsGo lets a rollout of web
// drop its dependency on db. All services that read the dependents of db are visited
// again when the last dependent instance is removed, whether they named web or not.
func TestAServiceThatReadItsDependentsIsLookedAtAgainWhenOneLetsGo(t *testing.T) {
	t.Parallel()
	w := running(t, def("db", "one", 1), def("web", "one", 1, dependsOn("db")))
	old := w.of("web")[0]
	w.submit(def("db", "one", 1), def("web", "two", 1))
	for range 3 { // the new one starts
		w.step()
		for _, id := range w.moving() {
			if id != old {
				w.move(id)
			}
		}
	}
	w.plan()
	db := w.view.services["db"]
	w.view.setRead(db, reads{dependents: true})
	w.view.unmark(db)
	db.dirty = false
	w.move(old)
	w.move(old)
	if w.view.refresh(w.now); len(w.view.services["web"].edges) != 0 || !db.dirty {
		t.Errorf("web has edges %v, and db is looked at: %t%s", w.view.services["web"].edges, db.dirty, w.formatHistory())
	}
}

// TestAReferenceCountsAgainstANewerEdge makes db depend on web while web's instance still
// refers to db's old one. Thus web is not kept for db, but db's old instance is kept for
// web.
func TestAReferenceCountsAgainstANewerEdge(t *testing.T) {
	t.Parallel()
	w := running(t, def("db", "one", 1), def("web", "one", 1, refersTo("db.id")))
	w.mode(mariposa.ModeFreeze, "web")
	w.submit(def("db", "two", 1, dependsOn("web")), def("web", "two", 1))
	w.scale("db", 2) // the second one is created from the new version
	w.settle()
	if n := len(w.of("db")); n != 2 {
		t.Fatalf("db has %d instances%s", n, w.formatHistory())
	}
	if by, n := dependentOf(w.view, "web", false); n != 0 {
		t.Errorf("web is kept for %s%s", by, w.formatHistory())
	}
	w.mode(mariposa.ModeThaw, "web")
	w.aim(mariposa.GoalDeleted)
	if steps := w.step(); !slices.Contains(steps, "remove web.1-2") || slices.Contains(steps, "remove db.1-1") {
		t.Errorf("when all is to go, %v go first%s", steps, w.formatHistory())
	}
}
