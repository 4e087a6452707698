package converge

import (
	"maps"
	"strings"
	"testing"
	"time"

	"mariposa"
)

// boundTo returns what a service is bound to in another one.
func (w *world) boundTo(service, on string) string {
	b, _ := w.status(service).Bindings.Get(on)
	return b.Instance
}

func TestAReferenceResolvesToTheFirstThatServes(t *testing.T) {
	w := newWorld(t, def("db", "one", 2), def("web", "one", 1, refersTo("db.id", "db.address", "db.ids")))
	w.settle()
	b, _ := w.status("web").Bindings.Get("db")
	want := map[string]string{"id": "physical-db.1-1", "address": "address-of-db.1-1", "ids": "physical-db.1-1,physical-db.2-2"}
	for field, value := range want {
		if b.Values[field] != value {
			t.Errorf("%s of db is %q, want %q", field, b.Values[field], value)
		}
	}
	if i := w.instances[w.of("web")[0]].Spec; i.Bindings.To["db"].Values["id"] != want["id"] || i.Bound == "" {
		t.Errorf("web was made with %+v, %q", i.Bindings, i.Bound)
	}
}

func TestADependentFollowsBeforeItsPredecessorGoes(t *testing.T) {
	w := running(t, def("db", "one", 1), def("web", "one", 2, refersTo("db.id")))
	w.submit(def("db", "two", 1), def("web", "one", 2, refersTo("db.id")))
	var order []string
	for range 20 {
		order = append(order, w.step()...)
		for _, id := range w.moving() {
			w.move(id)
		}
	}
	wantSteps(t, order, "create db.1 v2", "create web.1 v2", "remove web.1-2", "collect web.1-2", "create web.2 v2", "remove web.2-3",
		"remove db.1-1", "collect web.2-3", "collect db.1-1")
	if to := w.boundTo("web", "db"); to != "db.1-4" {
		t.Errorf("web is bound to %s", to)
	}
	wantStatus(t, w, "web", mariposa.StatusConverged, "")
	wantStatus(t, w, "db", mariposa.StatusConverged, "")
}

func TestACrashOfAnotherInstanceMovesNoBinding(t *testing.T) {
	w := running(t, def("db", "one", 2), def("web", "one", 1, refersTo("db.id")))
	web := w.of("web")
	w.fail("db.2-2")
	w.settle()
	if now := w.of("web"); now[0] != web[0] {
		t.Errorf("web was %v and is %v", web, now)
	}
}

// A bound service follows once, after the repair is complete.
func TestACrashOfTheBoundOneIsFollowedOnce(t *testing.T) {
	w := running(t, def("db", "one", 2), def("web", "one", 1, refersTo("db.id")))
	w.fail("db.1-1")
	wantSteps(t, w.step(), "create db.1 v1", "remove db.1-1")
	if to := w.boundTo("web", "db"); to != "db.1-1" {
		t.Errorf("web is bound to %s while db is being repaired", to)
	}
	w.settle()
	if to, web := w.boundTo("web", "db"), w.of("web"); to != "db.1-4" || len(web) != 1 || web[0] != "web.1-5" {
		t.Errorf("web is %v, bound to %s", web, to)
	}
}

// Services do not follow a service that keeps failing from one attempt to the next.
func TestACrashLoopIsNotFollowedFromTryToTry(t *testing.T) {
	w := running(t, def("db", "one", 1, minHealthy(5*time.Second)), def("web", "one", 1, refersTo("db.id")))
	for range 12 {
		w.fail(w.of("db")...)
		for range 400 { // until the next attempt is up
			w.step()
			for _, id := range w.moving() {
				w.move(id)
			}
			if w.serving("db")["one"] > 0 {
				break
			}
			w.wait(time.Second)
		}
		w.step()
		w.wait(500 * time.Millisecond)
		w.step()
	}
	if web := w.of("web"); len(web) != 1 || web[0] != "web.1-2" {
		t.Errorf("web is %v by now", web)
	}
	if why := reasonOf(w.status("web")); !strings.Contains(why, "refers to db.1-1, which is gone") {
		t.Errorf("web says %q", why)
	}
	w.settle()
	if to := w.boundTo("web", "db"); to != w.of("db")[0] {
		t.Errorf("web is bound to %s, and db is %v", to, w.of("db"))
	}
}

// The old instance serves its users until they are removed.
func TestTheOldOneStaysWhileItsUsersAreStopping(t *testing.T) {
	w := running(t, def("db", "one", 1), def("web", "one", 1, refersTo("db.id")))
	w.submit(def("db", "two", 1), def("web", "one", 1, refersTo("db.id")))
	for range 20 {
		w.step()
		for _, id := range w.moving() {
			if id != "web.1-2" || w.instances[id].Spec.Goal == mariposa.GoalRunning {
				w.move(id)
			}
		}
	}
	if w.instances["db.1-1"].Spec.Goal != mariposa.GoalRunning {
		t.Errorf("the old db is told to go while the old web is stopping")
	}
	wantStatus(t, w, "db", mariposa.StatusConverging, "db.1-1 is kept until web")
	w.settle()
	if left := w.of("db"); len(left) != 1 || w.instances["db.1-1"] != nil {
		t.Errorf("of db there are %v", left)
	}
}

// A reference that cannot be followed is reported.
func TestAReferenceToWhatIsScaledAwayIsTold(t *testing.T) {
	w := running(t, def("db", "one", 1), def("web", "one", 1, refersTo("db.id")))
	w.scale("db", 0)
	w.settle()
	wantStatus(t, w, "web", mariposa.StatusBlocked, "refers to db.1-1, which is gone; it is updated once db is running again")
	w.scale("db", 1)
	w.settle()
	wantStatus(t, w, "web", mariposa.StatusConverged, "")
	if to := w.boundTo("web", "db"); to != w.of("db")[0] {
		t.Errorf("web is bound to %s", to)
	}
}

func TestARestartInPlaceAndAShortAbsenceMoveNoBinding(t *testing.T) {
	w := running(t, def("db", "one", 2), def("web", "one", 1, refersTo("db.id")))
	web := w.of("web")
	w.setState("db.1-1", mariposa.StateProvisioning, "")
	w.step()
	w.move("db.1-1")
	w.step()
	node := w.instances["db.1-1"].Spec.Node
	w.loseNode(node)
	w.wait(30 * time.Second)
	w.step()
	w.comeBack(node)
	w.settle()
	if now := w.of("web"); now[0] != web[0] || w.boundTo("web", "db") != "db.1-1" {
		t.Errorf("web was %v and is %v, bound to %s", web, now, w.boundTo("web", "db"))
	}
}

func TestAFrozenDependentThatBlocksIsNamed(t *testing.T) {
	w := running(t, def("db", "one", 1), def("web", "one", 1, refersTo("db.id")))
	w.mode(mariposa.ModeFreeze, "web")
	w.submit(def("db", "two", 1), def("web", "one", 1, refersTo("db.id")))
	w.settle()
	wantStatus(t, w, "db", mariposa.StatusConverging, "db.1-1 is kept until web, which refers to it, switches to another instance: it is frozen")
	wantStatus(t, w, "web", mariposa.StatusFrozen, "would follow db after thaw")
	w.mode(mariposa.ModeThaw, "web")
	w.settle()
	wantStatus(t, w, "db", mariposa.StatusConverged, "")
	if to := w.boundTo("web", "db"); to != w.of("db")[0] {
		t.Errorf("web is bound to %s", to)
	}
}

func TestACanaryMovesNoBinding(t *testing.T) {
	w := running(t, def("db", "one", 3), def("web", "one", 1, refersTo("db.id")))
	w.submit(def("db", "two", 3, func(d *mariposa.Service) { d.Update.Canary = mariposa.Amount{N: 1} }), def("web", "one", 1, refersTo("db.id")))
	w.settle()
	wantStatus(t, w, "db", mariposa.StatusHeld, "1 of 3 at version 2; ")
	if to := w.boundTo("web", "db"); to != "db.1-1" {
		t.Errorf("web is bound to %s", to)
	}
	w.patch(mariposa.Patch{Reprovision: []string{"db"}}, "db")
	w.settle()
	if to := w.boundTo("web", "db"); to == "db.1-1" || w.instances["db.1-1"] != nil {
		t.Errorf("web is bound to %s", to)
	}
}

// A pause during the handover leaves both instances: the old one is still referred to,
// and the new one is healthy.
func TestAPauseWhileHandingOverLeavesBoth(t *testing.T) {
	w := running(t, def("db", "one", 1), def("web", "one", 1, refersTo("db.id")))
	w.mode(mariposa.ModePause, "web")
	w.submit(def("db", "two", 1), def("web", "one", 1, refersTo("db.id")))
	w.settle()
	wantStatus(t, w, "db", mariposa.StatusConverging, "db.1-1 is kept until web, which refers to it, switches to another instance: its rollout is paused")
	w.mode(mariposa.ModePause, "db")
	w.settle()
	if both := w.of("db"); len(both) != 2 {
		t.Errorf("%v are left of db", both)
	}
	w.mode(mariposa.ModeResume)
	w.settle()
	if left := w.of("db"); len(left) != 1 || w.boundTo("web", "db") != left[0] {
		t.Errorf("web is bound to %s, and of db there are %v", w.boundTo("web", "db"), left)
	}
}

func TestScalingDownTakesWhatNobodyIsBoundTo(t *testing.T) {
	w := running(t, def("db", "one", 3), def("web", "one", 1, refersTo("db.id")))
	web := w.of("web")
	w.scale("db", 1)
	w.settle()
	if left, now := w.of("db"), w.of("web"); len(left) != 1 || left[0] != "db.1-1" || now[0] != web[0] {
		t.Errorf("%v of db and %v of web are left", left, now)
	}
}

func TestWhatIsReferredToAndScaledAwayIsNamed(t *testing.T) {
	w := newWorld(t, def("db", "one", 0), def("web", "one", 1, refersTo("db.id")))
	w.settle()
	wantStatus(t, w, "web", mariposa.StatusBlocked, "waits for db: its scale is 0, so there is nothing to refer to; scale it up")
	w.scale("db", 1)
	w.settle()
	wantStatus(t, w, "web", mariposa.StatusConverged, "")
}

func TestAllInstancesAreToldOnceTheOtherIsAtRest(t *testing.T) {
	w := running(t, def("db", "one", 1), def("web", "one", 1, refersTo("db.ids")))
	web := w.of("web")
	w.scale("db", 3)
	wantSteps(t, w.step(), "create db.2 v1", "create db.3 v1")
	w.move("db.2-3")
	wantSteps(t, w.step())
	w.settle()
	b, _ := w.status("web").Bindings.Get("db")
	if now := w.of("web"); now[0] == web[0] || strings.Count(b.Values["ids"], ",") != 2 {
		t.Errorf("web is %v, with %q", now, b.Values["ids"])
	}
}

func TestLiveReferencesFollowWithoutANewInstance(t *testing.T) {
	live := func(d *mariposa.Service) {
		d.DependsOn, d.LiveRefs = []string{"db"}, []mariposa.Ref{{Service: "db", Field: "id"}}
	}
	w := running(t, def("db", "one", 1), def("web", "one", 1, live))
	web := w.of("web")
	w.submit(def("db", "two", 1), def("web", "one", 1, live))
	w.settle()
	if now := w.of("web"); now[0] != web[0] || w.boundTo("web", "db") != w.of("db")[0] {
		t.Errorf("web is %v, bound to %s", now, w.boundTo("web", "db"))
	}
}

// The same value at another instance does not require a replacement.
func TestAVariableThatStaysTheSameIsFollowedWithoutANewInstance(t *testing.T) {
	port := func(value string) func(*mariposa.Service) {
		return func(d *mariposa.Service) { d.Environment = []mariposa.Variable{{Name: "PORT", Value: value}} }
	}
	w := running(t, def("db", "one", 1, port("5432")), def("web", "one", 1, refersTo("db.environment.PORT")))
	web := w.of("web")
	w.submit(def("db", "two", 1, port("5432")), def("web", "one", 1, refersTo("db.environment.PORT")))
	w.settle()
	if now := w.of("web"); now[0] != web[0] || w.boundTo("web", "db") != w.of("db")[0] {
		t.Errorf("web was %v and is %v, bound to %s", web, now, w.boundTo("web", "db"))
	}
	w.submit(def("db", "three", 1, port("5433")), def("web", "one", 1, refersTo("db.environment.PORT")))
	w.settle()
	if now := w.of("web"); now[0] == web[0] {
		t.Errorf("web is still %v, though the port is another", now)
	}
}

// A variable with the port of its instance is resolved with the port in the binding, even
// if that instance is gone.
func TestThePortInAVariableGoesWithTheBinding(t *testing.T) {
	serves := func(d *mariposa.Service) {
		d.Ports = []mariposa.Port{{Target: 5432}}
		d.Environment = []mariposa.Variable{{Name: "URL", Value: "db:{{ .instance.port }}"}}
	}
	w := running(t, def("db", "one", 1, serves), def("web", "one", 1, refersTo("db.environment.URL")))
	web := w.of("web")
	if b, _ := w.view.services["web"].status.Bindings.Get("db"); b.Values["port"] != "5432" || b.Values["environment.URL"] == "" {
		t.Errorf("web is bound to %+v", b)
	}
	w.submit(def("db", "two", 1, serves), def("web", "one", 1, refersTo("db.environment.URL")))
	w.settle()
	if now := w.of("web"); now[0] == web[0] {
		t.Errorf("web is still %v, though db is another instance", now)
	}
}

// A chain follows link by link, and nothing is removed before its dependents.
func TestAChainFollowsLinkByLink(t *testing.T) {
	chain := func(image string) []*mariposa.Service {
		return []*mariposa.Service{def("a", image, 1), def("b", "one", 1, refersTo("a.id")), def("c", "one", 1, refersTo("b.id"))}
	}
	w := running(t, chain("one")...)
	w.submit(chain("two")...)
	var order []string
	for range 30 {
		for _, s := range w.step() {
			if !strings.HasPrefix(s, "collect") {
				order = append(order, s)
			}
		}
		for _, id := range w.moving() {
			w.move(id)
		}
	}
	wantSteps(t, order, "create a.1 v2", "create b.1 v2", "create c.1 v2", "remove c.1-3", "remove b.1-2", "remove a.1-1")
}

// A version that others cannot follow is rolled back if its service says so, and those
// that could not follow stay unchanged.
func TestWhatIsNotFollowedIsTakenBack(t *testing.T) {
	rollback := func(d *mariposa.Service) { d.Update.OnFailure = mariposa.OnFailureRollback }
	w := running(t, def("db", "one", 1, rollback), def("web", "one", 1, refersTo("db.id")))
	w.submit(def("db", "two", 1, rollback), def("web", "one", 1, refersTo("db.id")))
	for range 80 {
		w.step()
		for _, id := range w.moving() {
			w.move(id)
			if strings.HasPrefix(id, "web.") && id != "web.1-2" && w.instances[id] != nil && w.instances[id].Spec.Goal == mariposa.GoalRunning {
				w.wait(time.Millisecond)
				w.fail(id)
			}
		}
		w.wait(time.Second)
	}
	w.settle()
	if db, web := w.of("db"), w.of("web"); len(db) != 1 || db[0] != "db.1-1" || len(web) != 1 || web[0] != "web.1-2" || w.boundTo("web", "db") != "db.1-1" {
		t.Errorf("db is %v, web is %v, bound to %s%s", db, web, w.boundTo("web", "db"), w.formatHistory())
	}
	wantStatus(t, w, "web", mariposa.StatusConverged, "")
	wantStatus(t, w, "db", mariposa.StatusConverged, "")
}

// The time spent waiting for an unreachable node does not count against a rollout.
// Otherwise it would stop at the moment when the node's instances are given up, and the
// slot would be refilled at a version that cannot be created.
func TestARolloutDoesNotStopBecauseANodeIsRiddenOut(t *testing.T) {
	w := running(t, def("db", "one", 2, stopFirst, neverReschedule), def("app", "one", 1, refersTo("db.id"), deadline(time.Minute)))
	w.loseNode("n2")
	w.loseNode(w.instances[w.of("app")[0]].Spec.Node)
	w.scale("db", 1)
	w.step()
	w.scale("db", 2)
	w.fail("db.1-1")
	w.submit(def("db", "two", 2, stopFirst, neverReschedule), def("app", "two", 1, deadline(time.Minute)))
	w.settle()
	wantServing(t, w, "app", map[string]int{"two": 1})
}

// A slot is not refilled at a version that refers to a service that is no longer in the
// manifest.
func TestASlotIsRefilledAtAVersionThatCanBeMade(t *testing.T) {
	w := running(t, def("db", "one", 1), def("app", "one", 1, refersTo("db.id"), deadline(time.Minute)))
	w.submit(def("app", "two", 1, deadline(time.Minute)))
	w.settleUntilStopped("app")
	w.fail(w.of("app")...)
	w.settle()
	wantServing(t, w, "app", map[string]int{"two": 1})
	if n := len(w.of("db")); n != 0 {
		t.Errorf("%d are left of db%s", n, w.formatHistory())
	}
}

// TestNobodyFollowsFromOneTryToTheNext lets db fail repeatedly. web, which refers to it,
// stays unchanged until an instance has been up for longer than the delay of the next
// attempt.
func TestNobodyFollowsFromOneTryToTheNext(t *testing.T) {
	w := running(t, def("db", "one", 1), def("web", "one", 1, refersTo("db.id")))
	web := w.of("web")[0]
	for range 4 {
		w.fail(w.of("db")...)
		for range 50 {
			w.step()
			for _, id := range w.moving() {
				w.move(id)
			}
			if b := w.status("db").Backoff; b.Until.After(w.now) {
				w.now = b.Until
			}
			if len(w.serving("db")) > 0 {
				break
			}
		}
	}
	for range 5 { // it serves again, and only time is missing
		w.step()
	}
	b := w.status("db").Backoff
	if b.Failures < 3 {
		t.Fatalf("db has failed %d times in a row%s", b.Failures, w.formatHistory())
	}
	if now := w.of("web"); len(now) != 1 || now[0] != web || !strings.Contains(reasonOf(w.status("web")), "has been up for") {
		t.Fatalf("web was %s and is %v: %q%s", web, now, reasonOf(w.status("web")), w.formatHistory())
	}
	w.wait(backoffDelay(w.status("db").ID, b.Failures+1))
	w.settle()
	if now := w.of("web"); len(now) != 1 || now[0] == web || w.boundTo("web", "db") != w.of("db")[0] {
		t.Errorf("web is %v, bound to %s, and db is %v%s", now, w.boundTo("web", "db"), w.of("db"), w.formatHistory())
	}
}

// TestWhatARolloutDidNotSpeakOfFollowsToo recreates one instance of web, and db dies
// meanwhile. That rollout covers one instance; the other one follows afterwards.
func TestWhatARolloutDidNotSpeakOfFollowsToo(t *testing.T) {
	w := running(t, def("db", "one", 1), def("web", "one", 2, refersTo("db.id"), minHealthy(time.Minute)))
	w.patch(mariposa.Patch{Reprovision: []string{"web"}, Filter: &mariposa.Filter{Instances: w.of("web")[:1]}}, "web")
	w.step()
	w.fail(w.of("db")...)
	w.settle()
	db := w.of("db")[0]
	for _, id := range w.of("web") {
		if to := w.instances[id].Spec.Bindings.To["db"].Instance; to != db {
			t.Errorf("%s refers to %s, and db is %s%s", id, to, db, w.formatHistory())
		}
	}
	wantStatus(t, w, "web", mariposa.StatusConverged, "")
}

// A new version refers to all instances of db, of which an old one is kept until app has
// stopped using it. Neither waits for the other.
func TestWhatAsksForAllForTheFirstTimeDoesNotWaitForThoseThatWaitForIt(t *testing.T) {
	t.Parallel()
	w := newWorld(t, def("db", "one", 1), def("app", "one", 4, refersTo("db.id")))
	w.submit(def("db", "two", 1), def("app", "one", 4, refersTo("db.id")))
	// Two of each in one slot, and each app has a different db; one slot of app is empty.
	bound := map[int]*mariposa.Bindings{}
	for number := 1; number <= 2; number++ {
		db := w.create("db", 1, number, "n1")
		w.setState(db, mariposa.StateRunning, "")
		to := mariposa.Binding{Instance: db, Name: db, Node: "n1", Number: number, Values: map[string]string{"id": "physical-" + db}}
		bound[number] = &mariposa.Bindings{To: map[string]mariposa.Binding{"db": to}}
		app := w.create("app", 1, number, "n2")
		spec := *w.instances[app].Spec
		spec.Bindings = bound[number]
		spec.Bound, _ = bindingDigestOf(w.versions[number]["app"], spec.Bindings)
		w.set(app, &spec, nil)
		w.setState(app, mariposa.StateRunning, "")
	}
	w.submit(def("db", "three", 1), def("app", "two", 4, refersTo("db.ids")))
	goal := *w.goal
	goal.Services = maps.Clone(goal.Services)
	db, app := *goal.Services["db"], *goal.Services["app"]
	goal.Services["db"], goal.Services["app"] = &db, &app
	db.Yields, app.Bindings = []string{w.of("db")[0]}, bound[2]
	rolls := mariposa.Rollout{Number: 3, From: 2, Progress: w.now}
	app.Rollout, db.Rollout = &rolls, &mariposa.Rollout{Number: 3, From: 2, Progress: w.now, AwaitsFollowers: true}
	w.setGoal(&goal)
	began := w.now
	w.settle()
	if took := w.now.Sub(began); took >= w.versions[3]["app"].Update.Deadline {
		t.Errorf("it took %s%s", took, w.formatHistory())
	}
	wantStatus(t, w, "app", mariposa.StatusConverged, "")
	wantStatus(t, w, "db", mariposa.StatusConverged, "")
	if now := w.of("db"); len(now) != 1 || w.instances[now[0]].Spec.Number != 3 {
		t.Errorf("db is %v%s", now, w.formatHistory())
	}
}

// Whether a frozen service would follow changes again when the node of the replacement is
// unreachable for too long: then nothing serves any more.
func TestWhatAFrozenServiceWouldFollowIsLookedAtAgainInTime(t *testing.T) {
	t.Parallel()
	w := running(t, def("db", "one", 1), def("app", "one", 1, refersTo("db.id")))
	w.mode(mariposa.ModeFreeze, "app")
	w.loseNode(w.instances[w.of("db")[0]].Spec.Node)
	w.wait(time.Minute)
	w.step()
	for _, id := range w.moving() {
		w.move(id)
	}
	w.mode(mariposa.ModeFreeze, "db")
	w.step()
	newest := w.of("db")[len(w.of("db"))-1]
	w.loseNode(w.instances[newest].Spec.Node)
	w.step()
	if p := w.plan(); !p.Wake.Equal(w.now.Add(time.Minute)) {
		t.Errorf("it wakes at %s, and it is %s:\n%s%s", stamp(p.Wake), stamp(w.now), show(p), w.formatHistory())
	}
}

// Live values follow the current definition. A reference that only the definition of the
// instances had kept the service waiting for ever once the other service was removed.
func TestALiveReferenceEndsWithItsDefinition(t *testing.T) {
	live := func(d *mariposa.Service) {
		d.DependsOn, d.LiveRefs = []string{"db"}, []mariposa.Ref{{Service: "db", Field: "id"}}
	}
	w := running(t, def("db", "one", 1), def("web", "one", 1, live))
	web := w.of("web")
	w.submit(def("web", "one", 1))
	w.settle()
	if now := w.of("web"); now[0] != web[0] || w.status("web").Bindings != nil || len(w.of("db")) != 0 {
		t.Errorf("web is %v, bound to %+v; db is %v", now, w.status("web").Bindings, w.of("db"))
	}
	wantStatus(t, w, "web", mariposa.StatusConverged, "")
}
