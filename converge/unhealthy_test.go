package converge

import (
	"slices"
	"strings"
	"testing"
	"time"

	"mariposa"
)

// setHealth reports the health of a running instance. One that becomes healthy has served
// from then on.
func (w *world) setHealth(id string, h mariposa.Health) {
	w.Helper()
	i := w.instances[id]
	st := *i.Status
	if st.State != mariposa.StateRunning {
		w.Fatalf("%s does not run", id)
	}
	served := st.Served || st.Health == "" // without checks, it has served
	if st.Health != h {
		st.Health, st.Since = h, w.now
	}
	st.Served, st.Reason = served || h == mariposa.HealthHealthy, ""
	st.Checks = []mariposa.CheckStatus{{Name: "http :80/", Health: h, Passed: st.Served}}
	if h == mariposa.HealthUnhealthy {
		st.Reason = "http :80/ answered 503, 3 times in 15 s"
	}
	w.set(id, i.Spec, &st)
}

// startUnproven lets a starting instance run, with checks that have not passed yet.
func (w *world) startUnproven(id string) {
	w.Helper()
	w.setState(id, mariposa.StateRunning, "")
	st := *w.instances[id].Status
	st.Health = mariposa.HealthStarting
	w.set(id, w.instances[id].Spec, &st)
}

func (w *world) sicken(ids ...string) {
	w.Helper()
	for _, id := range ids {
		w.setHealth(id, mariposa.HealthUnhealthy)
	}
}

func TestAnUnhealthyInstanceIsReplacedStartFirst(t *testing.T) {
	t.Parallel()
	w := running(t, def("web", "one", 3, minHealthy(5*time.Second)))
	w.sicken("web.2-2")
	wantSteps(t, w.step(), "create web.2 v1")
	wantStatus(t, w, "web", mariposa.StatusConverging, "")
	wantSteps(t, w.step())
	wantStatus(t, w, "web", mariposa.StatusConverging, "web.2-2 is not healthy (http :80/ answered 503, 3 times in 15 s); it is removed once its successor is healthy")
	w.startUnproven("web.2-4")
	wantSteps(t, w.step())
	w.setHealth("web.2-4", mariposa.HealthHealthy)
	wantSteps(t, w.step()) // it must be healthy for min_healthy first
	w.wait(5 * time.Second)
	wantSteps(t, w.step(), "remove web.2-2")
	w.settle()
	if got := w.of("web"); !slices.Equal(got, []string{"web.1-1", "web.3-3", "web.2-4"}) {
		t.Errorf("%v are left", got)
	}
	wantStatus(t, w, "web", mariposa.StatusConverged, "")
}

func TestAnInstanceThatRecoversStays(t *testing.T) {
	t.Parallel()
	w := running(t, def("web", "one", 2))
	w.sicken("web.1-1")
	wantSteps(t, w.step(), "create web.1 v1")
	w.setHealth("web.1-1", mariposa.HealthHealthy)
	wantSteps(t, w.step(), "remove web.1-3")
	w.settle()
	if got := w.of("web"); !slices.Equal(got, []string{"web.1-1", "web.2-2"}) {
		t.Errorf("%v are left", got)
	}
}

func TestOneBatchOfUnhealthyInstancesIsReplacedAtATime(t *testing.T) {
	t.Parallel()
	w := running(t, def("web", "one", 6, rolling("2")))
	w.sicken("web.1-1", "web.2-2", "web.3-3")
	wantSteps(t, w.step(), "create web.1 v1", "create web.2 v1")
	wantSteps(t, w.step())
	w.move("web.1-7")
	wantSteps(t, w.step(), "create web.3 v1", "remove web.1-1")
}

func TestAServiceThatFailsAsAWholeIsNotReplacedWholesale(t *testing.T) {
	t.Parallel()
	w := running(t, def("web", "one", 6, rolling("100%")))
	w.sicken(w.of("web")...)
	wantSteps(t, w.step(), "create web.1 v1")
	for range 50 { // its successor does not get healthy either
		for _, id := range w.moving() {
			if w.isNew(id) {
				w.startUnproven(id)
				w.setHealth(id, mariposa.HealthUnhealthy)
				st := *w.instances[id].Status
				st.Served = false
				w.set(id, w.instances[id].Spec, &st)
			} else {
				w.move(id)
			}
		}
		p := w.plan()
		w.carryOut(p, len(p.Steps))
		for _, s := range p.Steps {
			if s.Action == Remove && slices.Contains([]string{"web.1-1", "web.2-2", "web.3-3", "web.4-4", "web.5-5", "web.6-6"}, s.Instance) {
				t.Fatalf("%s is removed", s.Instance)
			}
		}
		if p.Wake.After(w.now) && len(w.moving()) == 0 {
			w.now = p.Wake
		}
	}
	if b := w.status("web").Backoff; b == nil || b.Failures < 3 || w.made > 40 {
		t.Errorf("%d instances were created, back-off %+v", w.made, b)
	}
	for _, id := range []string{"web.1-1", "web.2-2", "web.3-3", "web.4-4", "web.5-5", "web.6-6"} { // what they need is back
		w.setHealth(id, mariposa.HealthHealthy)
	}
	w.settle()
	if got := w.of("web"); !slices.Equal(got, []string{"web.1-1", "web.2-2", "web.3-3", "web.4-4", "web.5-5", "web.6-6"}) {
		t.Errorf("%v are left", got)
	}
}

func TestACheckThatNeverPassedAnywhereIsBlamed(t *testing.T) {
	t.Parallel()
	w := running(t, def("web", "one", 2))
	for _, id := range w.of("web") { // a new check
		w.setHealth(id, mariposa.HealthUnhealthy)
		st := *w.instances[id].Status
		st.Checks = []mariposa.CheckStatus{{Name: "http :80/helth", Health: mariposa.HealthUnhealthy}}
		w.set(id, w.instances[id].Spec, &st)
	}
	wantSteps(t, w.step())
	wantSteps(t, w.step())
	if said := reasonOf(w.status("web")); !strings.Contains(said, "no instance has ever passed this check") {
		t.Errorf("it says %q", said)
	}
}

// setCheck sets the result of the only check of an instance, which was added while it ran.
func (w *world) setCheck(id string, h mariposa.Health, hasPassed bool) {
	w.Helper()
	of := mariposa.HealthHealthy
	if h == mariposa.HealthUnhealthy {
		of = h
	}
	w.setHealth(id, of)
	st := *w.instances[id].Status
	st.ChecksDigest = "new"
	st.Checks = []mariposa.CheckStatus{{Name: "http :80/helth", Health: h, Passed: hasPassed}}
	w.set(id, w.instances[id].Spec, &st)
}

// Checks are spread in time, so instances do not fail a new check together.
func TestACheckIsBlamedBeforeItHasFailedEverywhere(t *testing.T) {
	t.Parallel()
	w := running(t, def("web", "one", 3, minHealthy(0)))
	w.submit(def("web", "one", 3, minHealthy(0), checked("new", time.Second, time.Second)))
	for _, id := range w.of("web") {
		w.setCheck(id, mariposa.HealthStarting, false)
	}
	for _, id := range w.of("web") {
		w.setCheck(id, mariposa.HealthUnhealthy, false)
		wantSteps(t, w.step())
		if said := reasonOf(w.status("web")); !strings.Contains(said, "no instance has ever passed this check") {
			t.Errorf("it says %q", said)
		}
	}
	w.setCheck("web.2-2", mariposa.HealthHealthy, true)
	w.wait(time.Minute)
	wantSteps(t, w.step(), "create web.1 v2")
}

func TestARolloutReplacesInstancesWhoseCheckIsBlamed(t *testing.T) {
	t.Parallel()
	w := running(t, def("web", "one", 2, checked("new", time.Second, time.Second)))
	for _, id := range w.of("web") {
		w.setCheck(id, mariposa.HealthUnhealthy, false)
	}
	wantSteps(t, w.step())
	w.submit(def("web", "two", 2, checked("newer", time.Second, time.Second)))
	wantSteps(t, w.step(), "create web.1 v2")
}

func TestARolloutStopsIfItsInstancesNeverGetHealthy(t *testing.T) {
	t.Parallel()
	w := running(t, def("web", "one", 3))
	w.submit(def("web", "two", 3))
	for range 30 {
		p := w.plan()
		w.carryOut(p, len(p.Steps))
		for _, id := range w.moving() {
			if !w.isNew(id) {
				w.move(id)
				continue
			}
			w.startUnproven(id)
			st := *w.instances[id].Status
			st.Health, st.Reason = mariposa.HealthUnhealthy, "http :80/ answered 500"
			st.Checks = []mariposa.CheckStatus{{Name: "http :80/", Health: st.Health}}
			w.now = w.now.Add(time.Second)
			st.Since = w.now
			w.set(id, w.instances[id].Spec, &st)
		}
		if len(p.Steps) == 0 && p.Wake.After(w.now) {
			w.now = p.Wake
		}
	}
	wantStatus(t, w, "web", mariposa.StatusFailed, "http :80/ answered 500")
	wantServing(t, w, "web", map[string]int{"one": 3})
}

func TestARolloutWaitsForHealthyInstances(t *testing.T) {
	t.Parallel()
	w := running(t, def("web", "one", 2))
	w.submit(def("web", "two", 2))
	wantSteps(t, w.step(), "create web.1 v2")
	w.startUnproven("web.1-3")
	wantSteps(t, w.step())
	w.setHealth("web.1-3", mariposa.HealthHealthy)
	wantSteps(t, w.step(), "remove web.1-1")
	w.move("web.1-1")
	wantSteps(t, w.step(), "collect web.1-1", "create web.2 v2")
}

func TestStopFirstRemovesAnUnhealthyInstanceBeforeItsSuccessorStarts(t *testing.T) {
	t.Parallel()
	w := running(t, def("db", "one", 2, stopFirst))
	w.sicken("db.1-1", "db.2-2")
	wantSteps(t, w.step(), "remove db.1-1")
	wantSteps(t, w.step())
	w.move("db.1-1")
	steps := w.step()
	if !slices.Contains(steps, "create db.1 v1") || slices.Contains(steps, "remove db.2-2") {
		t.Errorf("steps are %v", steps)
	}
}

func TestDependentsWaitForHealthyInstances(t *testing.T) {
	t.Parallel()
	w := newWorld(t, def("db", "one", 1), def("web", "one", 1, dependsOn("db")))
	wantSteps(t, w.step(), "create db.1 v1")
	w.startUnproven("db.1-1")
	wantSteps(t, w.step())
	wantStatus(t, w, "web", mariposa.StatusConverging, "waits for db: 0 of 1 running")
	w.setHealth("db.1-1", mariposa.HealthHealthy)
	wantSteps(t, w.step(), "create web.1 v1")
}

func TestAFrozenServiceKeepsItsUnhealthyInstances(t *testing.T) {
	t.Parallel()
	w := running(t, def("web", "one", 2))
	w.mode(mariposa.ModeFreeze, "web")
	w.settle()
	w.sicken("web.1-1")
	wantSteps(t, w.step())
	wantStatus(t, w, "web", mariposa.StatusFrozen, "1 instance is not healthy and would be replaced after thaw")
}

func TestScalingDownRemovesUnhealthyInstancesFirst(t *testing.T) {
	t.Parallel()
	w := running(t, def("web", "one", 3))
	w.sicken("web.3-3")
	w.scale("web", 2)
	wantSteps(t, w.step(), "remove web.3-3")
	w.settle()
	if got := w.of("web"); !slices.Equal(got, []string{"web.1-1", "web.2-2"}) {
		t.Errorf("%v are left", got)
	}
}

func TestReferrersFollowTheSuccessorOfAnUnhealthyInstance(t *testing.T) {
	t.Parallel()
	w := running(t, def("db", "one", 1), def("web", "one", 1, refersTo("db.id")))
	w.sicken("db.1-1")
	w.settle()
	db := w.of("db")
	if len(db) != 1 || db[0] == "db.1-1" {
		t.Fatalf("db has %v", db)
	}
	for _, id := range w.of("web") {
		if b, _ := w.instances[id].Spec.Bindings.Get("db"); b.Instance != db[0] {
			t.Errorf("%s refers to %s", id, b.Instance)
		}
	}
}

// checked gives a service a health check.
func checked(digest string, poll, timeout time.Duration) func(*mariposa.Service) {
	return func(s *mariposa.Service) {
		s.ChecksDigest = digest
		s.HealthChecks = []mariposa.HealthCheck{{Type: mariposa.CheckTCP, Port: 80, Poll: poll, UnhealthyPoll: time.Second, Timeout: timeout}}
	}
}

// After an outage of something that all instances need, each is checked again before it is
// replaced: nearly all have recovered, too.
func TestAfterAnOutageInstancesAreCheckedAgain(t *testing.T) {
	t.Parallel()
	w := running(t, def("web", "one", 4, rolling("2"), minHealthy(0), checked("", 20*time.Second, 5*time.Second)))
	all := w.of("web")
	for _, id := range all {
		w.setHealth(id, mariposa.HealthHealthy)
	}
	w.wait(time.Hour)
	w.sicken(all...)
	wantSteps(t, w.step(), "create web.1 v1")
	w.wait(10 * time.Minute)
	w.startUnproven("web.1-5")
	w.setHealth("web.1-5", mariposa.HealthHealthy) // the outage is over
	wantSteps(t, w.step())
	wantStatus(t, w, "web", mariposa.StatusConverging, "it is checked again before it is replaced")
	w.wait(20 * time.Second)
	w.setHealth(all[1], mariposa.HealthHealthy)
	w.setHealth(all[2], mariposa.HealthHealthy)
	wantSteps(t, w.step())
	if p := w.plan(); p.Wake.After(w.now.Add(5 * time.Second)) {
		t.Errorf("it looks again at %s, not in time", p.Wake.Sub(w.now))
	}
	w.wait(5 * time.Second) // the others were checked again, and are still unhealthy
	wantSteps(t, w.step(), "create web.4 v1", "remove web.1-1")
}

func TestAFailureThatIsNewerThanARecoveryIsNotDelayed(t *testing.T) {
	t.Parallel()
	w := running(t, def("web", "one", 2, minHealthy(0), checked("", time.Minute, time.Second)))
	for _, id := range w.of("web") {
		w.setHealth(id, mariposa.HealthHealthy)
	}
	w.wait(time.Second)
	w.sicken("web.1-1")
	wantSteps(t, w.step(), "create web.1 v1")
}

// A change of the checks is done once they have passed.
func TestAChangedCheckIsDoneWhenItHasPassed(t *testing.T) {
	t.Parallel()
	def := &mariposa.Service{ChecksDigest: "new"}
	passed := []mariposa.CheckStatus{{Name: "tcp :80", Health: mariposa.HealthHealthy, Passed: true}}
	waits := []mariposa.CheckStatus{{Name: "tcp :80", Health: mariposa.HealthStarting}}
	for name, c := range map[string]struct {
		status mariposa.InstanceStatus
		want   bool
	}{
		"it was never checked":                       {mariposa.InstanceStatus{}, true},
		"it has passed the former checks":            {mariposa.InstanceStatus{Health: mariposa.HealthHealthy, ChecksDigest: "old", Checks: passed}, true},
		"the new check has not passed yet":           {mariposa.InstanceStatus{Health: mariposa.HealthHealthy, ChecksDigest: "new", Checks: waits}, true},
		"the new check has passed":                   {mariposa.InstanceStatus{Health: mariposa.HealthHealthy, ChecksDigest: "new", Checks: passed}, false},
		"its agent does not say which checks it has": {mariposa.InstanceStatus{Health: mariposa.HealthHealthy, Checks: passed}, false},
	} {
		if got := AwaitsChecks(def, &c.status); got != c.want {
			t.Errorf("%s: %t, want %t", name, got, c.want)
		}
	}
	if AwaitsChecks(&mariposa.Service{}, &mariposa.InstanceStatus{}) {
		t.Error("an instance without checks waits for them")
	}
}

func TestAServiceIsNotConvergedBeforeItsChangedChecksHavePassed(t *testing.T) {
	t.Parallel()
	w := running(t, def("web", "one", 1))
	set := func(digest string, h mariposa.Health) {
		w.setHealth("web.1-1", mariposa.HealthHealthy)
		st := *w.instances["web.1-1"].Status
		st.ChecksDigest, st.Checks[0].Health = digest, h
		w.set("web.1-1", w.instances["web.1-1"].Spec, &st)
	}
	w.submit(def("web", "one", 1, checked("new", time.Second, time.Second)))
	wantSteps(t, w.step())
	wantStatus(t, w, "web", mariposa.StatusConverging, "")
	set("old", mariposa.HealthHealthy)
	wantSteps(t, w.step())
	wantStatus(t, w, "web", mariposa.StatusConverging, "")
	set("new", mariposa.HealthStarting)
	wantSteps(t, w.step())
	wantStatus(t, w, "web", mariposa.StatusConverging, "")
	set("new", mariposa.HealthHealthy)
	w.settle()
	wantStatus(t, w, "web", mariposa.StatusConverged, "")
}
