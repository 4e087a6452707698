package health_test

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"testing"
	"time"

	"mariposa"
	"mariposa/health"
)

// world runs a checker in virtual time: probes answer at once, from a table.
type world struct {
	t       *testing.T
	now     time.Time
	timers  []*timer
	checker *health.Checker
	answers map[string]error // by instance and port
	probes  map[string]int
	status  map[string]health.Status
	changes int
	setBy   time.Duration // by how much the clock was set since the start
}

type timer struct {
	at   time.Time
	f    func()
	done bool
}

func (w *world) Now() time.Time { return w.now.Add(w.setBy) }

func (w *world) After(d time.Duration, f func()) func() {
	t := &timer{at: w.now.Add(max(d, 0)), f: f}
	w.timers = append(w.timers, t)
	return func() { t.done = true }
}

func newWorld(t *testing.T) *world {
	w := &world{t: t, now: time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC), answers: map[string]error{}, probes: map[string]int{}, status: map[string]health.Status{}}
	w.checker = &health.Checker{
		Clock: w, Post: func(f func()) { f() }, Spawn: func(f func()) { f() }, Base: t.Context,
		Report: func(id string, s health.Status) { w.status[id] = s; w.changes++ },
		Probe: func(_ context.Context, at health.Target, c *mariposa.HealthCheck) error {
			key := at.Instance + ":" + strconv.Itoa(c.Port)
			w.probes[key]++
			return w.answers[key]
		},
	}
	return w
}

// pass lets time pass.
func (w *world) pass(d time.Duration) {
	until := w.now.Add(d)
	for {
		w.timers = slices.DeleteFunc(w.timers, func(t *timer) bool { return t.done })
		var next *timer
		for _, t := range w.timers {
			if next == nil || t.at.Before(next.at) {
				next = t
			}
		}
		if next == nil || next.at.After(until) {
			break
		}
		next.done = true
		if next.at.After(w.now) {
			w.now = next.at
		}
		next.f()
	}
	w.now = until
}

func (w *world) watch(id string, checks ...mariposa.HealthCheck) health.Subject {
	s := health.Subject{Target: health.Target{Instance: id, Service: "of " + id, Address: "127.0.0.1"}, Checks: checks, Grace: 30 * time.Second, Since: w.now}
	w.checker.Watch(s)
	return s
}

func (w *world) want(id string, h mariposa.Health, reason string) {
	w.t.Helper()
	if s := w.status[id]; s.Health != h || s.Reason != reason {
		w.t.Errorf("after %s, %s is %s (%q), want %s (%q)", w.now.Format("04:05"), id, s.Health, s.Reason, h, reason)
	}
}

func httpCheck(port int) mariposa.HealthCheck {
	return mariposa.HealthCheck{Type: mariposa.CheckHTTP, Port: port, Path: "/health", Poll: 5 * time.Second, UnhealthyPoll: time.Second, Timeout: 2 * time.Second, Retries: 2}
}

var errDown = errors.New("answered 503")

func TestAnInstanceIsStartingUntilItsChecksPass(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.answers["a:80"] = errDown
	w.watch("a", httpCheck(80), httpCheck(81))
	w.want("a", mariposa.HealthStarting, "")
	w.pass(10 * time.Second)
	w.want("a", mariposa.HealthStarting, "")
	delete(w.answers, "a:80")
	w.pass(2 * time.Second)
	w.want("a", mariposa.HealthHealthy, "")
	if s := w.status["a"]; !s.Served || len(s.Checks) != 2 || !s.Checks[0].Passed {
		t.Errorf("%+v", s)
	}
}

func TestAnInstanceThatNeverPassesIsUnhealthyAfterItsGrace(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.answers["a:80"] = errDown
	w.watch("a", httpCheck(80))
	w.pass(29 * time.Second)
	w.want("a", mariposa.HealthStarting, "")
	w.pass(3 * time.Second)
	if s := w.status["a"]; s.Health != mariposa.HealthUnhealthy || s.Served || s.Checks[0].Passed {
		t.Errorf("%+v", s)
	}
}

func TestFailuresCountOnlyAfterTheRetries(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.watch("a", httpCheck(80))
	w.pass(20 * time.Second)
	w.want("a", mariposa.HealthHealthy, "")
	w.answers["a:80"] = errDown
	for w.probes["a:80"] = 0; w.probes["a:80"] < 2; {
		w.pass(100 * time.Millisecond)
	}
	w.want("a", mariposa.HealthHealthy, "")
	w.pass(1100 * time.Millisecond)
	w.want("a", mariposa.HealthUnhealthy, "http :80/health answered 503, 3 times in 2 s")
	delete(w.answers, "a:80")
	w.pass(5 * time.Second)
	w.want("a", mariposa.HealthHealthy, "")
	if w.changes != 4 { // starting, healthy, unhealthy, healthy
		t.Errorf("%d reports", w.changes)
	}
}

func TestAnUnhealthyInstanceIsCheckedLessOftenButNotLessThanAHealthyOne(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.answers["a:80"] = errDown
	w.watch("a", httpCheck(80))
	w.pass(time.Hour)
	before := w.probes["a:80"]
	w.pass(time.Hour)
	if n := w.probes["a:80"] - before; n < 720 || n > 800 { // every 5 s, a little varied
		t.Errorf("%d checks in an hour", n)
	}
}

func TestChecksThatBeginTogetherAreSpread(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for i := range 100 {
		s := health.Subject{Target: health.Target{Instance: strconv.Itoa(i), Service: "s"}, Checks: []mariposa.HealthCheck{httpCheck(80)}, Since: w.now.Add(-time.Hour), Served: true}
		w.checker.Watch(s)
	}
	w.pass(2500 * time.Millisecond)
	if n := len(w.probes); n < 35 || n > 65 {
		t.Errorf("%d of 100 checks ran in the first half of the poll", n)
	}
	w.pass(2500 * time.Millisecond)
	if len(w.probes) != 100 {
		t.Errorf("%d of 100 ran in the whole poll", len(w.probes))
	}
}

func TestAChangedCheckKeepsAServingInstanceHealthyUntilItFails(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s := w.watch("a", httpCheck(80))
	w.pass(10 * time.Second)
	w.answers["a:81"] = errDown
	s.Checks = []mariposa.HealthCheck{httpCheck(80), httpCheck(81)}
	w.checker.Watch(s)
	w.pass(20 * time.Second)
	w.want("a", mariposa.HealthHealthy, "")
	w.pass(20 * time.Second)
	if got := w.status["a"]; got.Health != mariposa.HealthUnhealthy || !got.Served || got.Checks[1].Passed || !got.Checks[0].Passed {
		t.Errorf("%+v", got)
	}
	s.Checks = nil
	w.checker.Watch(s)
	w.want("a", mariposa.HealthUnknown, "")
}

func TestARestartedInstanceStartsAnew(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s := w.watch("a", httpCheck(80))
	w.pass(10 * time.Second)
	s.Since = w.now
	w.answers["a:80"] = errDown
	w.checker.Watch(s)
	w.want("a", mariposa.HealthStarting, "")
	if w.status["a"].Served {
		t.Error("it counts as having served")
	}
}

func TestAnEarlierVerdictStandsUntilTheCheckPasses(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	c := httpCheck(80)
	w.answers["a:80"] = errDown
	w.checker.Watch(health.Subject{
		Target: health.Target{Instance: "a"}, Checks: []mariposa.HealthCheck{c}, Since: w.now.Add(-time.Hour), Served: true,
		Known: []mariposa.CheckStatus{{Name: c.Name(), Health: mariposa.HealthUnhealthy, Passed: true, Reason: "answered 503", Since: w.now.Add(-time.Minute)}},
	})
	w.want("a", mariposa.HealthUnhealthy, "http :80/health answered 503")
	delete(w.answers, "a:80")
	w.pass(5 * time.Second)
	w.want("a", mariposa.HealthHealthy, "")
}

func TestAnEarlierVerdictIsFoundUnderAStoredName(t *testing.T) {
	t.Parallel()
	path := func(text string) mariposa.HealthCheck {
		c := httpCheck(80)
		c.Path = text
		return c
	}
	for name, c := range map[string]struct {
		check  mariposa.HealthCheck
		stored string
		isIt   bool
	}{
		"as it is":           {path("/health"), "http :80/health", true},
		"with a masked end":  {path("/health?pw=s3cret"), "http :80/health?pw=••••", true},
		"with two masks":     {path("/s3cret/x/s3cret/y"), "http :80/••••/x/••••/y", true},
		"cut":                {path("/health/of/everything"), "http :80/health/of…", true},
		"masked and cut":     {path("/s3cret/of/everything"), "http :80/••••/of…", true},
		"another path":       {path("/health"), "http :80/", false},
		"a longer path":      {path("/health"), "http :80/healthy", false},
		"another masked one": {path("/health?pw=s3cret"), "http :80/ready?pw=••••", false},
		"another end":        {path("/s3cret/x"), "http :80/••••/y", false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.answers["a:80"] = errDown
			since := w.now.Add(-time.Minute)
			w.checker.Watch(health.Subject{
				Target: health.Target{Instance: "a"}, Checks: []mariposa.HealthCheck{c.check}, Grace: time.Hour, Since: w.now.Add(-time.Hour), Served: true,
				Known: []mariposa.CheckStatus{{Name: c.stored, Health: mariposa.HealthUnhealthy, Passed: true, Reason: "answered 503", Since: since}},
			})
			w.pass(time.Second / 2)
			s := w.status["a"]
			if is := s.Health == mariposa.HealthUnhealthy && s.Checks[0].Since.Equal(since); is != c.isIt {
				t.Errorf("got %+v", s)
			}
		})
	}
}

func TestTwoChecksOfOneNameKeepTheirOwnVerdicts(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	body, status := httpCheck(80), httpCheck(80)
	body.ExpectBody = "up"
	w.checker.Watch(health.Subject{
		Target: health.Target{Instance: "a"}, Checks: []mariposa.HealthCheck{body, status}, Since: w.now.Add(-time.Hour), Served: true,
		Known: []mariposa.CheckStatus{
			{Name: body.Name(), Health: mariposa.HealthUnhealthy, Passed: true, Reason: "answered 503", Since: w.now.Add(-time.Minute)},
			{Name: status.Name(), Health: mariposa.HealthHealthy, Passed: true, Since: w.now.Add(-time.Hour)},
		},
	})
	s := w.status["a"]
	if s.Checks[0].Health != mariposa.HealthUnhealthy || s.Checks[1].Health != mariposa.HealthHealthy || !s.Checks[1].Since.Equal(w.now.Add(-time.Hour)) {
		t.Errorf("got %+v", s)
	}
}

func TestAForgottenInstanceIsNotChecked(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.watch("a", httpCheck(80))
	w.pass(10 * time.Second)
	n, changes := w.probes["a:80"], w.changes
	w.checker.Forget("a")
	w.checker.Forget("a")
	w.pass(time.Minute)
	if w.probes["a:80"] != n || w.changes != changes {
		t.Error("it is still checked")
	}
}

func TestTheFaultOfTheCheckerCountsForNobody(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.watch("a", httpCheck(80))
	w.pass(10 * time.Second)
	w.answers["a:80"] = &health.Inconclusive{Reason: "the agent has too many open files"}
	w.pass(time.Minute)
	w.want("a", mariposa.HealthHealthy, "")
}

func TestANodeWithoutNetworkBlamesNobody(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	silent := health.Silence("did not answer within 2 s")
	w.watch("a", httpCheck(80))
	w.watch("b", httpCheck(80))
	w.pass(10 * time.Second)
	w.answers["a:80"], w.answers["b:80"] = silent, silent
	w.pass(time.Minute)
	w.want("a", mariposa.HealthHealthy, "")
	w.want("b", mariposa.HealthHealthy, "")
	delete(w.answers, "b:80") // the network is back; a is still silent
	w.pass(time.Minute)
	if s := w.status["a"]; s.Health != mariposa.HealthUnhealthy {
		t.Errorf("%+v", s)
	}
	w.want("b", mariposa.HealthHealthy, "")
}

func TestOneSilentServiceIsUnhealthy(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.watch("a", httpCheck(80))
	w.pass(10 * time.Second)
	w.answers["a:80"] = health.Silence("did not answer within 2 s")
	w.pass(time.Minute)
	if s := w.status["a"]; s.Health != mariposa.HealthUnhealthy {
		t.Errorf("%+v", s)
	}
}

func TestChecksBeyondTheLimitWait(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	var begun []func()
	w.checker.Limit = 3
	w.checker.Spawn = func(f func()) { begun = append(begun, f) }
	for i := range 10 {
		w.watch(strconv.Itoa(i), httpCheck(80))
	}
	w.pass(time.Second)
	if len(begun) != 3 {
		t.Fatalf("%d probes run at once", len(begun))
	}
	for len(begun) > 0 {
		next := begun[0]
		begun = begun[1:]
		next()
	}
	if len(w.probes) != 10 {
		t.Errorf("%d of 10 instances were checked", len(w.probes))
	}
}

func TestAProjectThatHangsDoesNotDelayTheChecksOfOthers(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	var hanging []func()
	w.checker.Limit = 8
	hangs := true
	w.checker.Spawn = func(f func()) {
		if hangs {
			hanging = append(hanging, f)
			return
		}
		f()
	}
	for i := range 100 {
		id := strconv.Itoa(i)
		w.checker.Watch(health.Subject{Target: health.Target{Instance: id, Service: "evil/s" + id, Address: "127.0.0.1"}, Checks: []mariposa.HealthCheck{httpCheck(80)}, Since: w.now})
	}
	w.pass(10 * time.Second)
	if len(hanging) != 2 {
		t.Fatalf("%d checks of one project run at once, want a quarter of 8", len(hanging))
	}
	hangs = false
	w.checker.Watch(health.Subject{Target: health.Target{Instance: "a", Service: "shop/web", Address: "127.0.0.1"}, Checks: []mariposa.HealthCheck{httpCheck(80)}, Since: w.now})
	w.pass(10 * time.Second)
	w.want("a", mariposa.HealthHealthy, "")

	for _, f := range hanging { // those that wait get their turn
		f()
	}
	w.pass(time.Minute)
	if len(w.probes) != 101 {
		t.Errorf("%d of 101 instances were checked", len(w.probes))
	}
}

func TestTheCheckOfAForgottenInstanceIsAborted(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	var end func()
	aborted := false
	w.checker.Probe = func(ctx context.Context, _ health.Target, _ *mariposa.HealthCheck) error {
		w.checker.Forget("a")
		aborted = errors.Is(ctx.Err(), context.Canceled)
		return ctx.Err()
	}
	w.checker.Spawn = func(f func()) { end = f }
	w.watch("a", httpCheck(80))
	w.pass(time.Second)
	changes := w.changes
	end()
	if !aborted || w.changes != changes {
		t.Error("its check goes on")
	}
}

func TestACheckThatHasNotPassedYetSaysWhy(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.answers["a:80"], w.answers["b:80"] = errDown, &health.Inconclusive{Reason: "the instance has no address"}
	w.watch("a", httpCheck(80))
	w.watch("b", httpCheck(80))
	w.pass(3 * time.Second)
	if got := w.status["a"].Checks[0]; got.Health != mariposa.HealthStarting || got.Reason != "answered 503" {
		t.Errorf("one that fails: %+v", got)
	}
	if got := w.status["b"].Checks[0]; got.Health != mariposa.HealthStarting || got.Reason != "cannot be checked: the instance has no address" {
		t.Errorf("one that cannot be made: %+v", got)
	}
}

func TestAnUnhealthyInstanceMustPassItsChangedChecks(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s := w.watch("a", httpCheck(80))
	w.pass(10 * time.Second)
	w.answers["a:80"], w.answers["a:81"] = errDown, errDown
	w.pass(20 * time.Second)
	if h := w.status["a"].Health; h != mariposa.HealthUnhealthy {
		t.Fatalf("it is %s", h)
	}
	s.Checks = []mariposa.HealthCheck{httpCheck(81)}
	w.checker.Watch(s)
	w.pass(5 * time.Second)
	w.want("a", mariposa.HealthStarting, "")
	delete(w.answers, "a:81")
	w.pass(5 * time.Second)
	w.want("a", mariposa.HealthHealthy, "")
}

// A clock that is set changes neither how long an instance has to pass its checks, nor when they
// run.
func TestAClockThatIsSetChangesNoHealth(t *testing.T) {
	t.Parallel()
	for name, by := range map[string]time.Duration{"ahead": time.Hour, "back": -time.Hour} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.answers["a:80"], w.answers["b:80"] = errDown, errDown
			w.watch("a", httpCheck(80))
			w.watch("b", httpCheck(80))
			w.watch("c", httpCheck(80))
			w.pass(10 * time.Second)
			w.setBy = by
			w.pass(15 * time.Second) // within its grace
			w.want("a", mariposa.HealthStarting, "")
			delete(w.answers, "a:80")
			probes := w.probes["c:80"]
			w.pass(10 * time.Second)
			w.want("a", mariposa.HealthHealthy, "")
			w.want("c", mariposa.HealthHealthy, "")
			if got := w.probes["c:80"] - probes; got < 2 {
				t.Errorf("it was checked %d times in 10 s", got)
			}
			if s := w.status["b"]; s.Health != mariposa.HealthUnhealthy {
				t.Errorf("one that does not pass is %+v after its grace", s)
			}
		})
	}
}
