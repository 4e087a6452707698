package agent_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"mariposa"
	"mariposa/wire"
)

// checks are health checks of type http, under a digest.
func checks(port int) *wire.Checks {
	return &wire.Checks{Grace: 30 * time.Second, List: []mariposa.HealthCheck{{
		Type: mariposa.CheckHTTP, Port: port, Path: "/health", Poll: 5 * time.Second, UnhealthyPoll: time.Second, Timeout: 2 * time.Second, Retries: 2,
		ExpectStatus: []mariposa.StatusRange{{From: 200, To: 200}},
	}}}
}

// assignChecked assigns instances that all have the same checks.
func (r *rig) assignChecked(digest string, c *wire.Checks, items ...wire.Assignment) {
	for i := range items {
		items[i].Checks = digest
	}
	r.say(wire.Frame{Assign: &wire.Assign{Items: items, Workloads: workloads(items), Checks: map[string]*wire.Checks{digest: c}}})
}

func (r *rig) setHealthy(id string, healthy bool) {
	r.t.Helper()
	h := mariposa.HealthHealthy
	if !healthy {
		h = mariposa.HealthUnhealthy
	}
	r.say(wire.Frame{Crash: &wire.Crash{Instance: id, Health: h}})
}

func (r *rig) wantHealth(id string, h mariposa.Health) mariposa.InstanceStatus {
	r.t.Helper()
	st := r.statuses()[id]
	if st.State != mariposa.StateRunning || st.Health != h {
		r.t.Fatalf("%s is %s, %s (%s), want %s", id, st.State, st.Health, st.Reason, h)
	}
	return st
}

func TestHealthIsReportedWhenItChanges(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.connect()
	r.assignChecked("c1", checks(80), wanted("a", 1, dummyWork()))
	if st := r.wantHealth("a", mariposa.HealthStarting); st.Served || len(st.Checks) != 1 {
		t.Errorf("reported %+v", st)
	}
	r.linger(5 * time.Second)
	if st := r.wantHealth("a", mariposa.HealthHealthy); !st.Served || st.Checks[0].Health != mariposa.HealthHealthy {
		t.Errorf("reported %+v", st)
	}
	frames := len(r.conn.sent())
	r.linger(time.Minute)
	for _, f := range r.conn.sent()[frames:] {
		if f.Report != nil {
			t.Fatalf("reported %+v although nothing has changed", f.Report)
		}
	}
	r.setHealthy("a", false)
	r.linger(20 * time.Second)
	if st := r.wantHealth("a", mariposa.HealthUnhealthy); !strings.HasPrefix(st.Reason, "http :80/health answered 503, 3 times in ") || !st.Served {
		t.Errorf("reported %+v", st)
	}
	r.setHealthy("a", true)
	r.linger(time.Minute)
	if st := r.wantHealth("a", mariposa.HealthHealthy); st.Reason != "" {
		t.Errorf("reported %+v", st)
	}
}

func TestAnUnhealthyInstanceIsRestartedInPlaceIfItsPolicyAllows(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.connect()
	w := work(mariposa.Workload{Compute: mariposa.ComputeDummy, Restart: mariposa.Restart{Policy: mariposa.RestartOnFailure, Max: 2}})
	r.assignChecked("c1", checks(80), wanted("a", 1, w))
	for restarts := range 3 {
		r.linger(10 * time.Second)
		st := r.wantHealth("a", mariposa.HealthHealthy)
		if st.Restarts != restarts {
			t.Fatalf("restarted %d times, want %d", st.Restarts, restarts)
		}
		r.setHealthy("a", false)
		r.linger(20 * time.Second)
	}
	if st := r.wantHealth("a", mariposa.HealthUnhealthy); st.Restarts != 2 || !strings.Contains(st.Reason, "its restart policy allows no more restarts") {
		t.Errorf("reported %+v", st)
	}
	if states := r.states("a"); slices.Contains(states, mariposa.StateFailed) {
		t.Errorf("it went through %v", states)
	}
}

// Otherwise the check would be blamed, and the instance never be replaced.
func TestACheckThatPassedBeforeARestartInPlaceHasPassed(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.connect()
	w := work(mariposa.Workload{Compute: mariposa.ComputeDummy, Restart: mariposa.Restart{Policy: mariposa.RestartOnFailure, Max: 1}})
	r.assignChecked("c1", checks(80), wanted("a", 1, w))
	r.linger(10 * time.Second)
	r.wantHealth("a", mariposa.HealthHealthy)
	for range 6000 { // it is sick again as soon as it is restarted
		r.setHealthy("a", false)
		r.pass(10 * time.Millisecond)
	}
	st := r.wantHealth("a", mariposa.HealthUnhealthy)
	if st.Restarts != 1 || !st.Served || !st.Checks[0].Passed {
		t.Errorf("reported %+v", st)
	}
	r.boot() // an agent that is restarted knows it from the control plane
	it := known(wanted("a", 1, w), st)
	it.Checks = "c1"
	r.dial()
	r.say(wire.Frame{Welcome: &wire.Welcome{Epoch: 1, Cluster: "ours", Incarnation: r.inc, HeartbeatInterval: 5 * time.Second}})
	r.say(wire.Frame{Assign: &wire.Assign{Snapshot: true, Last: true, Items: []wire.Assignment{it}, Workloads: workloads([]wire.Assignment{it}), Checks: map[string]*wire.Checks{"c1": checks(80)}}})
	r.linger(time.Minute)
	if st := r.wantHealth("a", mariposa.HealthUnhealthy); !st.Checks[0].Passed {
		t.Errorf("reported %+v", st)
	}
	r.assignChecked("c2", checks(81), it) // another check has not passed
	r.linger(time.Minute)
	if st := r.wantHealth("a", mariposa.HealthUnhealthy); st.Checks[0].Passed {
		t.Errorf("reported %+v", st)
	}
}

func TestAFrozenInstanceIsNotRestartedBecauseOfItsHealth(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.connect()
	it := wanted("a", 1, work(mariposa.Workload{Compute: mariposa.ComputeDummy, Restart: mariposa.Restart{Policy: mariposa.RestartAlways}}))
	it.Frozen = true
	r.assignChecked("c1", checks(80), it)
	r.linger(10 * time.Second)
	r.setHealthy("a", false)
	r.linger(20 * time.Second)
	if st := r.wantHealth("a", mariposa.HealthUnhealthy); st.Restarts != 0 {
		t.Errorf("reported %+v", st)
	}
}

func TestARestartedAgentKnowsWhatWasHealthy(t *testing.T) {
	t.Parallel()
	for name, healthy := range map[string]bool{"healthy": true, "unhealthy": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			r.connect()
			w := dummyWork()
			r.assignChecked("c1", checks(80), wanted("a", 1, w))
			r.linger(10 * time.Second)
			r.setHealthy("a", healthy)
			r.linger(20 * time.Second)
			st := r.statuses()["a"]
			r.boot()
			it := known(wanted("a", 1, w), st)
			it.Checks = "c1"
			r.dial()
			r.say(wire.Frame{Welcome: &wire.Welcome{Epoch: 1, Cluster: "ours", Incarnation: r.inc, HeartbeatInterval: 5 * time.Second}})
			r.say(wire.Frame{Assign: &wire.Assign{Snapshot: true, Last: true, Items: []wire.Assignment{it}, Workloads: workloads([]wire.Assignment{it}), Checks: map[string]*wire.Checks{"c1": checks(80)}}})
			if got := r.wantHealth("a", st.Health); got.Served != st.Served || !got.Started.Equal(st.Started) {
				t.Errorf("was %+v, is %+v", st, got)
			}
			r.linger(10 * time.Second)
			r.wantHealth("a", st.Health)
			r.setHealthy("a", true)
			r.linger(2 * time.Minute)
			r.wantHealth("a", mariposa.HealthHealthy)
		})
	}
}

func TestChecksFollowTheDefinitionInForce(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.connect(wanted("a", 1, dummyWork())) // without checks
	if st := r.wantState("a", mariposa.StateRunning); st.Health != "" {
		t.Errorf("reported %+v", st)
	}
	r.setHealthy("a", false)
	r.assignChecked("c1", checks(80), wanted("a", 1, dummyWork()))
	r.linger(10 * time.Second)
	r.wantHealth("a", mariposa.HealthHealthy) // it has served, and no check has failed yet
	r.linger(time.Minute)
	if st := r.wantHealth("a", mariposa.HealthUnhealthy); st.Checks[0].Passed {
		t.Errorf("reported %+v", st)
	}
	r.assign(wanted("a", 1, dummyWork())) // no checks any more
	if st := r.wantState("a", mariposa.StateRunning); st.Health != "" || len(st.Checks) != 0 || st.Reason != "" {
		t.Errorf("reported %+v", st)
	}
}

func TestOneInstanceOfAServiceIsRestartedAtATime(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.connect()
	w := work(mariposa.Workload{Compute: mariposa.ComputeDummy, Dummy: &mariposa.Dummy{NameLen: 32, Wait: 5 * time.Second}, Restart: mariposa.Restart{Policy: mariposa.RestartAlways}})
	other := wanted("d", 1, w)
	other.Service = "other"
	r.assignChecked("c1", checks(80), wanted("a", 1, w), wanted("b", 1, w), wanted("c", 1, w), other)
	r.linger(20 * time.Second)
	for _, id := range []string{"a", "b", "c", "d"} {
		r.setHealthy(id, false)
	}
	most := 0
	for range 300 {
		r.linger(100 * time.Millisecond)
		recovering := 0
		for _, id := range []string{"a", "b", "c"} {
			if st := r.statuses()[id]; st.State != mariposa.StateRunning || st.Restarts > 0 && st.Health != mariposa.HealthHealthy {
				recovering++
			}
		}
		most = max(most, recovering)
	}
	if st := r.statuses()["d"]; most > 1 || st.Restarts != 1 {
		t.Errorf("up to %d instances of a service recover at once; that of another service was restarted %d times", most, st.Restarts)
	}
	restarted := 0
	for _, f := range r.conn.sent() {
		if f.Report == nil {
			continue
		}
		for _, it := range f.Report.Items {
			if st := it.Status; st.Restarts == 1 && st.Health == mariposa.HealthStarting {
				if restarted++; !st.Served {
					t.Errorf("%s does not count as having served: %+v", it.ID, st)
				}
			}
		}
	}
	if restarted == 0 {
		t.Error("no instance was restarted")
	}
}

func TestARestartedInstanceOfARestartedAgentIsStillStarting(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.connect()
	w := dummyWork()
	r.assignChecked("c1", checks(80), wanted("a", 1, w))
	r.linger(10 * time.Second)
	st := r.statuses()["a"]
	r.setHealthy("a", false)
	r.boot()
	st.Health, st.Checks[0].Health = mariposa.HealthStarting, mariposa.HealthStarting // it was restarted
	it := known(wanted("a", 1, w), st)
	it.Checks = "c1"
	r.dial()
	r.say(wire.Frame{Welcome: &wire.Welcome{Epoch: 1, Cluster: "ours", Incarnation: r.inc, HeartbeatInterval: 5 * time.Second}})
	r.say(wire.Frame{Assign: &wire.Assign{Snapshot: true, Last: true, Items: []wire.Assignment{it}, Workloads: workloads([]wire.Assignment{it}), Checks: map[string]*wire.Checks{"c1": checks(80)}}})
	r.linger(10 * time.Second)
	if got := r.wantHealth("a", mariposa.HealthStarting); !got.Served {
		t.Errorf("it does not count as having served: %+v", got)
	}
	r.linger(time.Minute)
	if got := r.wantHealth("a", mariposa.HealthUnhealthy); !got.Served || !got.Checks[0].Passed {
		t.Errorf("it does not count as having served: %+v", got)
	}
}

// An instance that is stopped and kept because its checks failed says so, also if its connections
// had to end first.
func TestAKeptInstanceSaysThatItWasNotHealthy(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.connect()
	kept := func(id string, drain time.Duration) wire.Assignment {
		a := wanted(id, 2, dummyWork())
		a.Goal, a.Drain = mariposa.GoalHalted, drain
		return a
	}
	r.assignChecked("c1", checks(80), wanted("a", 1, dummyWork()), wanted("b", 1, dummyWork()), wanted("c", 1, dummyWork()))
	r.linger(5 * time.Second)
	r.setHealthy("a", false)
	r.setHealthy("b", false)
	r.linger(20 * time.Second)
	r.wantHealth("a", mariposa.HealthUnhealthy)
	r.assign(kept("a", 0), kept("b", time.Minute), kept("c", 0))
	r.linger(2 * time.Minute)
	for id, want := range map[string]string{"a": "was not healthy: http :80/health answered 503, ", "b": "was not healthy: http :80/health answered 503, ", "c": "stopped"} {
		if st := r.wantState(id, mariposa.StateStopped); !strings.HasPrefix(st.Reason, want) {
			t.Errorf("the reason of %s is %q", id, st.Reason)
		}
	}
}

// The results say which checks they are about. What depends on values is not part of that.
func TestResultsSayWhichChecksTheyAreAbout(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.connect()
	r.assignChecked("c1", checks(80), wanted("a", 1, dummyWork()))
	r.linger(5 * time.Second)
	if st := r.wantHealth("a", mariposa.HealthHealthy); st.ChecksDigest != "c1" {
		t.Errorf("reported %+v", st)
	}
	r.assignChecked("c2.5ec3e7", checks(81), wanted("a", 1, dummyWork()))
	if st := r.wantHealth("a", mariposa.HealthHealthy); st.ChecksDigest != "c2" || st.Checks[0].Health != mariposa.HealthStarting {
		t.Errorf("reported %+v", st)
	}
}
