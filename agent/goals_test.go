package agent_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"mariposa"
	"mariposa/driver"
	"mariposa/wire"
)

func TestWhatShouldStopIsStoppedAndKept(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	w := dummyWork()
	r.connect(wanted("a", 1, w))
	before := r.wantState("a", mariposa.StateRunning)
	r.assign(halted("a", 2, w))
	st := r.wantState("a", mariposa.StateStopped)
	if st.Generation != 2 || st.ExitCode == nil || st.Finished.IsZero() || st.PhysicalID != before.PhysicalID {
		t.Errorf("reported %+v", st)
	}
	if o, there := r.real("a"); !there || o.Running {
		t.Errorf("the driver has %+v", o)
	}
	r.assign(halted("a", 3, w)) // a new definition only has to be reported
	if st := r.wantState("a", mariposa.StateStopped); st.Generation != 3 {
		t.Errorf("reported %+v", st)
	}
	r.assign(wanted("a", 4, w))
	st = r.wantState("a", mariposa.StateRunning)
	if st.Generation != 4 || st.Restarts != 0 || st.ManualRestarts != 0 || st.PhysicalID != before.PhysicalID || st.ExitCode != nil {
		t.Errorf("reported %+v", st)
	}
}

func TestAStopHasItsOwnTimeoutAndIsSeenOnTheWay(t *testing.T) {
	t.Parallel()
	h := &manualDriver{}
	r := newRig(t, h)
	w := work(mariposa.Workload{Compute: mariposa.ComputeProcess, StopTimeout: 7 * time.Second, Restart: mariposa.Restart{Policy: mariposa.RestartAlways}})
	r.connect(wanted("a", 1, w))
	r.end(h, "start", "a", driver.Observed{Running: true}, nil)
	r.assign(halted("a", 2, w))
	h.want(t, "stop a")
	if got := h.last(t, "stop").timeout; got != 7*time.Second {
		t.Errorf("it has %v to stop", got)
	}
	r.wantState("a", mariposa.StateStopping)
	code := 143
	r.end(h, "stop", "a", driver.Observed{ExitCode: &code, Finished: r.clk.Now(), Reason: "killed by signal 15"}, nil)
	h.want(t) // the restart policy applies only to instances that should run
	if st := r.wantState("a", mariposa.StateStopped); st.ExitCode == nil || *st.ExitCode != 143 || st.Restarts != 0 {
		t.Errorf("reported %+v", st)
	}
	if got := r.states("a"); !slices.Equal(got, []mariposa.State{"provisioning", "running", "stopping", "stopped"}) {
		t.Errorf("went through %v", got)
	}
	r.assign(unwanted("a", 3))
	h.want(t, "remove a") // there is nothing left to stop
}

// A stop whose timeout becomes shorter starts again with the new one, whether the
// instance is to be kept or removed. A longer timeout changes nothing.
func TestAStopUnderWayHearsThatItHasLessTime(t *testing.T) {
	t.Parallel()
	for name, goal := range map[string]func(int64, string) wire.Assignment{
		"to be kept": func(generation int64, w string) wire.Assignment { return halted("a", generation, w) },
		"to be gone": func(generation int64, _ string) wire.Assignment { return unwanted("a", generation) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := &manualDriver{}
			r := newRig(t, h)
			w := work(mariposa.Workload{Compute: mariposa.ComputeProcess, StopTimeout: 7 * time.Second})
			r.connect(wanted("a", 1, w))
			r.end(h, "start", "a", driver.Observed{Running: true}, nil)
			gives := func(generation int64, within time.Duration) {
				it := goal(generation, w)
				it.StopTimeout = &within
				r.assign(it)
			}
			stops := func(within time.Duration) *call {
				t.Helper()
				h.want(t, "stop a")
				c := h.last(t, "stop")
				if c.timeout != within || c.ctx.Err() != nil {
					t.Errorf("it has %v to stop, want %v (%v)", c.timeout, within, c.ctx.Err())
				}
				return c
			}
			gives(2, -time.Second)
			first := stops(-time.Second)
			gives(2, 3*time.Second) // from a definition, without a new generation
			if first.ctx.Err() == nil {
				t.Fatal("a stop that waits for ever goes on")
			}
			r.end(h, "stop", "a", driver.Observed{Running: true}, first.ctx.Err())
			second := stops(3 * time.Second)
			r.wantState("a", mariposa.StateStopping)
			gives(3, time.Hour)
			gives(4, -time.Second)
			stops(3 * time.Second)
			gives(5, 0)
			r.end(h, "stop", "a", driver.Observed{Running: true}, second.ctx.Err())
			stops(0)
			r.end(h, "stop", "a", driver.Observed{Finished: r.clk.Now()}, nil)
			if name == "to be kept" {
				r.wantState("a", mariposa.StateStopped)
				return
			}
			r.end(h, "remove", "a", driver.Observed{}, nil)
			r.wantState("a", mariposa.StateDestroyed)
		})
	}
}

// TestAStoppedOneAfterTheAgentWasKilled covers every moment at which an agent can be
// killed between a request and its own report.
func TestAStoppedOneAfterTheAgentWasKilled(t *testing.T) {
	t.Parallel()
	begun := time.Date(2026, 11, 1, 0, 0, 0, 0, time.UTC)
	code := 5
	runs := driver.Observed{ID: "a", Running: true, Started: begun}
	ended := driver.Observed{ID: "a", Started: begun, Finished: begun.Add(time.Minute), ExitCode: &code, Reason: "exited with code 5"}
	for _, c := range []struct {
		name  string
		found driver.Observed
		knew  mariposa.State
		goal  func(string, int64, string) wire.Assignment
		then  []string // the successful calls of the driver
		state mariposa.State
	}{
		{"before the stop", runs, mariposa.StateRunning, halted, []string{"stop a"}, mariposa.StateStopped},
		{"after the stop", ended, mariposa.StateRunning, halted, nil, mariposa.StateStopped},
		{"after it said that it would", ended, mariposa.StateStopping, halted, nil, mariposa.StateStopped},
		{"after its report", ended, mariposa.StateStopped, halted, nil, mariposa.StateStopped},
		{"after it had failed before", ended, mariposa.StateFailed, halted, nil, mariposa.StateStopped},
		{"in the middle of its start", driver.Observed{ID: "a"}, mariposa.StateProvisioning, halted, []string{"stop a"}, mariposa.StateStopped},
		{"before it was started again", ended, mariposa.StateStopped, wanted, []string{"start a"}, mariposa.StateRunning},
		{"after it was started again", runs, mariposa.StateStopped, wanted, []string{"update a"}, mariposa.StateRunning},
		{"after it was started again, and then stopped", runs, mariposa.StateStopped, halted, []string{"stop a"}, mariposa.StateStopped},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			h := &manualDriver{}
			c.found.Labels = driver.Labels{Cluster: "ours", Incarnation: "first"}
			h.list = []driver.Observed{c.found}
			r := newRig(t, h)
			st := mariposa.InstanceStatus{State: c.knew, Generation: 1, Started: begun, Restarts: 2}
			if c.knew == mariposa.StateStopped || c.knew == mariposa.StateFailed {
				st.ExitCode, st.Finished = &code, begun.Add(time.Minute)
			}
			r.connect(known(c.goal("a", 2, processWork()), st))
			h.want(t, c.then...)
			for _, op := range c.then {
				o := ended
				if op != "stop a" {
					o = driver.Observed{Running: true, Started: begun.Add(time.Hour)}
				}
				r.end(h, strings.Fields(op)[0], "a", o, nil)
			}
			h.want(t)
			got := r.wantState("a", c.state)
			if got.Restarts != 2 || (c.state == mariposa.StateStopped && (got.ExitCode == nil || *got.ExitCode != 5)) {
				t.Errorf("reported %+v", got)
			}
		})
	}
}

func TestWhatNeverRanIsStoppedWithoutADriver(t *testing.T) {
	t.Parallel()
	h := &manualDriver{}
	r := newRig(t, h)
	r.connect(halted("a", 1, processWork()), known(halted("b", 1, processWork()), mariposa.InstanceStatus{State: mariposa.StateRunning}))
	h.want(t)
	r.wantState("a", mariposa.StateStopped)
	if st := r.wantState("b", mariposa.StateStopped); !strings.Contains(st.Reason, "gone from its node") {
		t.Errorf("reported %+v", st)
	}
	r.assign(wanted("a", 2, processWork()))
	h.want(t, "start a")
}

func TestWhatFailedToChangeMayStillRunAndIsStopped(t *testing.T) {
	t.Parallel()
	h := &manualDriver{}
	r := newRig(t, h)
	w := processWork()
	r.connect(wanted("a", 1, w))
	r.end(h, "start", "a", driver.Observed{Running: true, Started: r.clk.Now()}, nil)
	r.assign(wanted("a", 2, w))
	r.end(h, "update", "a", driver.Observed{Running: true, Started: r.clk.Now()}, errBroken)
	r.wantState("a", mariposa.StateFailed)
	r.assign(halted("a", 3, w))
	h.want(t, "stop a")
}

func TestAStopThatFailsIsTriedAgainOrTakenBack(t *testing.T) {
	t.Parallel()
	h := &manualDriver{}
	r := newRig(t, h)
	w := processWork()
	r.connect(wanted("a", 1, w), wanted("b", 1, w))
	r.end(h, "start", "a", driver.Observed{Running: true}, nil)
	r.end(h, "start", "b", driver.Observed{Running: true}, nil)
	r.assign(halted("a", 2, w), halted("b", 2, w))
	r.end(h, "stop", "a", driver.Observed{Running: true}, errBroken)
	r.end(h, "stop", "b", driver.Observed{Running: true}, errBroken)
	if st := r.wantState("a", mariposa.StateRunning); !strings.Contains(st.Reason, "cannot be stopped yet: the disk is broken") {
		t.Errorf("reported %+v", st)
	}
	r.assign(wanted("b", 2, w))
	r.pass(5 * time.Second)
	h.want(t, "stop a", "update b")
	r.end(h, "stop", "a", driver.Observed{}, nil)
	r.end(h, "update", "b", driver.Observed{Running: true}, nil)
	r.wantState("a", mariposa.StateStopped)
	if st := r.wantState("b", mariposa.StateRunning); st.Reason != "" {
		t.Errorf("reported %+v", st)
	}
}

func TestAGoalThatChangesWhileItStops(t *testing.T) {
	t.Parallel()
	h := &manualDriver{}
	r := newRig(t, h)
	w := processWork()
	r.connect(wanted("a", 1, w), wanted("b", 1, w), wanted("c", 1, w))
	for _, id := range []string{"a", "b"} {
		r.end(h, "start", id, driver.Observed{Running: true}, nil)
	}
	r.assign(halted("a", 2, w), halted("b", 2, w), halted("c", 2, w))
	h.want(t, "start c", "stop a", "stop b")
	r.assign(wanted("a", 3, w), unwanted("b", 3))
	r.end(h, "stop", "a", driver.Observed{}, nil)
	r.end(h, "stop", "b", driver.Observed{}, nil)
	r.end(h, "start", "c", driver.Observed{Running: true}, nil)
	h.want(t, "start a", "remove b", "stop c")
}

func TestWhatIsAnotherClustersIsNeitherStoppedNorRestarted(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.make("a", "another", "first")
	r.boot()
	for _, it := range []wire.Assignment{halted("a", 1, dummyWork()), withManualRestarts(wanted("a", 2, dummyWork()), 1)} {
		r.connect(it)
		r.wantState("a", mariposa.StateFailed)
		if o, _ := r.real("a"); !o.Running || o.Labels.Cluster != "another" {
			t.Errorf("it was touched: %+v", o)
		}
	}
}

func TestABounceRestartsTheSameInstanceOnce(t *testing.T) {
	t.Parallel()
	h := &manualDriver{}
	r := newRig(t, h)
	w := work(mariposa.Workload{Compute: mariposa.ComputeProcess, StopTimeout: 3 * time.Second, Restart: mariposa.Restart{Policy: mariposa.RestartAlways}})
	r.connect(wanted("a", 1, w))
	r.end(h, "start", "a", driver.Observed{Running: true, Started: r.clk.Now()}, nil)
	h.changed(driver.Observed{ID: "a", Started: r.clk.Now(), Reason: "exited with code 1"})
	r.run()
	r.end(h, "start", "a", driver.Observed{Running: true, Started: r.clk.Now()}, nil)

	r.assign(withManualRestarts(wanted("a", 2, w), 1))
	h.want(t, "stop a")
	if got := h.last(t, "stop").timeout; got != 3*time.Second {
		t.Errorf("it has %v to stop", got)
	}
	h.changed(driver.Observed{ID: "a", Started: r.clk.Now(), Reason: "reported anyway"})
	r.run()
	r.end(h, "stop", "a", driver.Observed{Finished: r.clk.Now()}, nil)
	h.want(t, "start a")
	if got := h.last(t, "start").instance.ManualRestarts; got != 1 {
		t.Errorf("the start knows of %d bounces", got)
	}
	r.end(h, "start", "a", driver.Observed{Running: true, Started: r.clk.Now().Add(time.Second), ManualRestarts: 1}, nil)
	st := r.wantState("a", mariposa.StateRunning)
	if st.ManualRestarts != 1 || st.Restarts != 1 || st.Generation != 2 || st.ExitCode != nil {
		t.Errorf("reported %+v", st)
	}
	if got := r.states("a"); !slices.Equal(got[len(got)-4:], []mariposa.State{"running", "stopping", "provisioning", "running"}) {
		t.Errorf("went through %v", got)
	}
	r.assign(withManualRestarts(wanted("a", 2, w), 1)) // a replay
	r.connect(known(withManualRestarts(wanted("a", 2, w), 1), mariposa.InstanceStatus{State: mariposa.StateRunning, Generation: 2}))
	h.want(t)
	r.assign(withManualRestarts(wanted("a", 3, w), 3)) // two at once cause one restart
	r.end(h, "stop", "a", driver.Observed{}, nil)
	r.end(h, "start", "a", driver.Observed{Running: true, Started: r.clk.Now().Add(time.Minute)}, nil)
	h.want(t)
	if st := r.wantState("a", mariposa.StateRunning); st.ManualRestarts != 3 || st.Restarts != 1 {
		t.Errorf("reported %+v", st)
	}
}

// TestABounceAfterTheAgentWasKilled covers every moment at which an agent can be killed
// in the middle of a manual restart: it happens exactly once.
func TestABounceAfterTheAgentWasKilled(t *testing.T) {
	t.Parallel()
	begun := time.Date(2026, 11, 1, 0, 0, 0, 0, time.UTC)
	again := begun.Add(time.Minute)
	code := 9
	for _, c := range []struct {
		name     string
		found    driver.Observed
		knew     mariposa.State
		policy   mariposa.RestartPolicy
		then     []string
		state    mariposa.State
		repaired int // restarts by policy
	}{
		{"before the stop", driver.Observed{Running: true, Started: begun}, mariposa.StateRunning, "", []string{"stop a", "start a"}, mariposa.StateRunning, 0},
		{"between stop and start", driver.Observed{Started: begun, Finished: again}, mariposa.StateRunning, mariposa.RestartAlways, []string{"start a"}, mariposa.StateRunning, 0},
		{"between stop and start, which was reported", driver.Observed{Started: begun, Finished: again}, mariposa.StateStopped, mariposa.RestartAlways, []string{"start a"}, mariposa.StateRunning, 0},
		{"between stop and start, on the way", driver.Observed{Started: begun, Finished: again}, mariposa.StateStopping, "", []string{"start a"}, mariposa.StateRunning, 0},
		{"in the middle of the start", driver.Observed{Started: time.Time{}}, mariposa.StateProvisioning, "", []string{"start a"}, mariposa.StateRunning, 0},
		{"of a failed one, before anything", driver.Observed{Started: begun, Finished: again, ExitCode: &code}, mariposa.StateFailed, "", []string{"stop a", "start a"}, mariposa.StateRunning, 0},
		{"after the start", driver.Observed{Running: true, Started: again, ManualRestarts: 1}, mariposa.StateStopped, "", nil, mariposa.StateRunning, 0},
		{"after the start, of which nothing was known", driver.Observed{Running: true, Started: again, ManualRestarts: 1}, mariposa.StateRunning, "", nil, mariposa.StateRunning, 0},
		{"after the start of a failed one", driver.Observed{Running: true, Started: again, ManualRestarts: 1}, mariposa.StateFailed, "", nil, mariposa.StateRunning, 0},
		{"after it has ended by itself again", driver.Observed{Started: again, Finished: again, ExitCode: &code, ManualRestarts: 1}, mariposa.StateStopped, "", nil, mariposa.StateFailed, 0},
		{"after it has ended by itself again, with a policy", driver.Observed{Started: again, Finished: again, ExitCode: &code, ManualRestarts: 1}, mariposa.StateStopped, mariposa.RestartAlways, []string{"start a"}, mariposa.StateRunning, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			h := &manualDriver{}
			c.found.ID, c.found.Labels = "a", driver.Labels{Cluster: "ours", Incarnation: "first"}
			h.list = []driver.Observed{c.found}
			r := newRig(t, h)
			st := mariposa.InstanceStatus{State: c.knew, Generation: 1, Started: begun}
			r.connect(known(withManualRestarts(wanted("a", 2, work(mariposa.Workload{Compute: mariposa.ComputeProcess, Restart: mariposa.Restart{Policy: c.policy}})), 1), st))
			for _, op := range c.then {
				h.want(t, op)
				o := driver.Observed{Started: begun, Finished: again}
				if op == "start a" {
					o = driver.Observed{Running: true, Started: again.Add(time.Hour), ManualRestarts: 1}
				}
				r.end(h, strings.Fields(op)[0], "a", o, nil)
			}
			if c.found.Running && len(c.then) == 0 { // it has the new definition; updates in place follow
				h.want(t, "update a")
				r.end(h, "update", "a", c.found, nil)
			}
			h.want(t)
			if got := r.wantState("a", c.state); got.ManualRestarts != 1 || got.Restarts != c.repaired {
				t.Errorf("reported %+v", got)
			}
		})
	}
}

func TestABounceIsNeverTakenForAnEnd(t *testing.T) {
	t.Parallel()
	h := &manualDriver{}
	r := newRig(t, h)
	r.slots = 1
	r.boot()
	w := processWork()
	r.connect(wanted("a", 1, w))
	at := r.clk.Now()
	r.end(h, "start", "a", driver.Observed{Running: true, Started: at}, nil)
	r.assign(withManualRestarts(wanted("a", 2, w), 1), wanted("b", 1, w), wanted("c", 1, w))
	r.end(h, "stop", "a", driver.Observed{Started: at, Finished: at}, nil)
	h.want(t, "start b") // others were queued before its start
	r.wantState("a", mariposa.StateProvisioning)
	r.end(h, "start", "b", driver.Observed{Running: true}, nil)
	r.end(h, "start", "c", driver.Observed{Running: true}, nil)
	r.end(h, "start", "a", driver.Observed{Running: true, Started: at.Add(time.Second)}, nil)

	r.assign(wanted("d", 1, w), unwanted("b", 2), withManualRestarts(wanted("a", 3, w), 2))
	h.want(t, "start d", "stop b")
	h.changed(driver.Observed{ID: "a", Started: at.Add(time.Second), Reason: "exited with code 1"}) // while its stop is queued
	r.run()
	r.wantState("a", mariposa.StateProvisioning)
	r.end(h, "start", "d", driver.Observed{Running: true}, nil)
	r.end(h, "start", "a", driver.Observed{Running: true, Started: at.Add(time.Minute)}, nil)
	if st := r.wantState("a", mariposa.StateRunning); st.ManualRestarts != 2 || st.Restarts != 0 {
		t.Errorf("reported %+v", st)
	}
	for _, s := range r.states("a") {
		if s == mariposa.StateStopped || s == mariposa.StateFailed {
			t.Errorf("the planner would replace it: it went through %v", r.states("a"))
		}
	}
}

func TestABounceOfWhatDoesNotRun(t *testing.T) {
	t.Parallel()
	h := &manualDriver{}
	r := newRig(t, h)
	w := processWork()
	r.connect(wanted("a", 1, w), known(withManualRestarts(wanted("gone", 1, w), 1), mariposa.InstanceStatus{State: mariposa.StateRunning}))
	h.want(t, "start a", "start gone") // under the same id, as requested
	r.end(h, "start", "a", driver.Observed{}, errBroken)
	r.wantState("a", mariposa.StateFailed)
	r.assign(withManualRestarts(wanted("a", 2, w), 1))
	r.end(h, "stop", "a", driver.Observed{}, nil)
	r.end(h, "start", "a", driver.Observed{}, errBroken)
	if st := r.wantState("a", mariposa.StateFailed); st.ManualRestarts != 1 {
		t.Errorf("reported %+v", st)
	}
	h.want(t, "start gone") // one attempt for one request
	r.assign(withManualRestarts(halted("a", 3, w), 2))
	h.want(t, "start gone") // it has ended: there is nothing to stop
	if st := r.wantState("a", mariposa.StateStopped); st.ManualRestarts != 1 || !strings.Contains(st.Reason, "the disk is broken") {
		t.Errorf("a stop counts as a restart: %+v", st)
	}
	r.assign(withManualRestarts(wanted("a", 4, w), 2))
	r.end(h, "start", "a", driver.Observed{Running: true}, nil)
	if st := r.wantState("a", mariposa.StateRunning); st.ManualRestarts != 2 {
		t.Errorf("reported %+v", st)
	}
}

func TestABounceDuringAStartFollowsIt(t *testing.T) {
	t.Parallel()
	h := &manualDriver{}
	r := newRig(t, h)
	w := processWork()
	r.connect(wanted("a", 1, w))
	r.assign(withManualRestarts(wanted("a", 2, w), 1))
	h.want(t, "start a")
	r.end(h, "start", "a", driver.Observed{Running: true}, nil)
	h.want(t, "stop a")
	r.end(h, "stop", "a", driver.Observed{}, nil)
	r.end(h, "start", "a", driver.Observed{Running: true}, nil)
	h.want(t) // and the new generation came with it
	if st := r.wantState("a", mariposa.StateRunning); st.ManualRestarts != 1 || st.Generation != 2 {
		t.Errorf("reported %+v", st)
	}
}

func TestARestoredStoreCountsItsOwnBounces(t *testing.T) {
	t.Parallel()
	for _, restarted := range []bool{false, true} {
		r := newRig(t)
		w := dummyWork()
		r.connect(withManualRestarts(wanted("a", 9, w), 5))
		first, _ := r.real("a")
		r.inc = "restored"
		if restarted {
			r.boot()
		}
		r.clk.Next(r.clk.Now().Add(time.Second))
		r.pass(time.Second)
		st := mariposa.InstanceStatus{State: mariposa.StateRunning, Generation: 1, ManualRestarts: 1, Started: first.Started}
		r.connect(known(withManualRestarts(wanted("a", 1, w), 1), st))
		if o, _ := r.real("a"); !o.Started.Equal(first.Started) {
			t.Fatal("it was restarted for nothing")
		}
		r.assign(withManualRestarts(wanted("a", 2, w), 2))
		if st := r.wantState("a", mariposa.StateRunning); st.ManualRestarts != 2 {
			t.Errorf("reported %+v", st)
		}
		if o, _ := r.real("a"); o.Started.Equal(first.Started) {
			t.Error("a person's word was taken for an old one")
		}
	}
}
