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

func TestWhatIsAssignedComesUpAndIsReported(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.connect()
	r.assign(wanted("a", 1, dummyWork()), wanted("b", 1, work(mariposa.Workload{Compute: mariposa.ComputeDummy, Dummy: &mariposa.Dummy{Wait: 3 * time.Second}})))
	st := r.wantState("a", mariposa.StateRunning)
	if st.Generation != 1 || st.PhysicalID == "" || len(st.Addresses) == 0 || st.Started.IsZero() {
		t.Errorf("reported %+v", st)
	}
	r.wantState("b", mariposa.StateProvisioning)
	r.pass(3 * time.Second)
	r.wantState("b", mariposa.StateRunning)
	if o, _ := r.real("a"); o.Labels != (driver.Labels{Cluster: "ours", Incarnation: "first"}) {
		t.Errorf("labels %+v", o.Labels)
	}
}

func TestWhatRunsIsAdoptedAndNotStartedAgain(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	w := dummyWork()
	r.connect(wanted("a", 1, w))
	before, _ := r.real("a")
	st := r.wantState("a", mariposa.StateRunning)
	r.pass(time.Minute)
	r.boot()
	r.connect(known(wanted("a", 1, w), st))
	after := r.wantState("a", mariposa.StateRunning)
	if o, _ := r.real("a"); !o.Running || o.Started != before.Started || o.PhysicalID != before.PhysicalID {
		t.Errorf("it was touched: %+v, before %+v", o, before)
	}
	if after.PhysicalID != st.PhysicalID || after.Restarts != 0 || after.Generation != 1 || !slices.Equal(after.Addresses, st.Addresses) {
		t.Errorf("reported %+v, before %+v", after, st)
	}
	if len(r.quarantine()) != 0 {
		t.Errorf("in quarantine: %+v", r.quarantine())
	}
}

func TestAnAgentThatNeverWentAwayTakesTheSameAgainForNoNews(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	w := dummyWork()
	r.connect(wanted("a", 1, w))
	before, _ := r.real("a")
	r.node.Disconnected(r.conn)
	r.run()
	r.pass(time.Hour)
	r.connect(known(wanted("a", 1, w), mariposa.InstanceStatus{State: mariposa.StateRunning, Generation: 1}))
	r.wantState("a", mariposa.StateRunning)
	if o, _ := r.real("a"); o.Started != before.Started {
		t.Error("it was started again")
	}
}

func TestWhatWasKnownAsRunningAndIsGoneHasFailed(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.connect(known(wanted("a", 1, dummyWork()), mariposa.InstanceStatus{State: mariposa.StateRunning, Generation: 1}))
	st := r.wantState("a", mariposa.StateFailed)
	if !strings.Contains(st.Reason, "gone from its node") || st.Finished.IsZero() {
		t.Errorf("reported %+v", st)
	}
	if _, there := r.real("a"); there {
		t.Error("it was recreated without the planner")
	}
}

func TestAStartThatTheAgentDidNotLiveToSeeIsMadeAgain(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	w := work(mariposa.Workload{Compute: mariposa.ComputeDummy, Dummy: &mariposa.Dummy{Wait: 10 * time.Second}})
	r.connect(wanted("a", 1, w))
	st := r.wantState("a", mariposa.StateProvisioning)
	r.pass(5 * time.Second)
	r.boot()
	r.connect(known(wanted("a", 1, w), st))
	r.linger(10 * time.Second)
	if st := r.wantState("a", mariposa.StateRunning); st.Restarts != 0 {
		t.Errorf("that is no restart: %+v", st)
	}
}

func TestRestartPolicies(t *testing.T) {
	t.Parallel()
	one, none := 1, 0
	for _, c := range []struct {
		name    string
		restart mariposa.Restart
		exit    *int
		again   bool
	}{
		{"no policy: a failure is left to the planner", mariposa.Restart{}, &one, false},
		{"no: a failure is left to the planner", mariposa.Restart{Policy: mariposa.RestartNo}, &one, false},
		{"on-failure: a failure is restarted", mariposa.Restart{Policy: mariposa.RestartOnFailure}, &one, true},
		{"on-failure: an end without a code counts as a failure", mariposa.Restart{Policy: mariposa.RestartOnFailure}, nil, true},
		{"on-failure: a clean end is not restarted", mariposa.Restart{Policy: mariposa.RestartOnFailure}, &none, false},
		{"always: a clean end is restarted", mariposa.Restart{Policy: mariposa.RestartAlways}, &none, true},
		{"always: a failure is restarted", mariposa.Restart{Policy: mariposa.RestartAlways}, &one, true},
		{"unless-stopped: a clean end is restarted", mariposa.Restart{Policy: mariposa.RestartUnlessStopped}, &none, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			h := &manualDriver{}
			r := newRig(t, h)
			r.connect(wanted("a", 1, work(mariposa.Workload{Compute: mariposa.ComputeProcess, Restart: c.restart})))
			r.end(h, "start", "a", driver.Observed{Running: true, Started: r.clk.Now()}, nil)
			h.changed(driver.Observed{ID: "a", Started: r.clk.Now(), Finished: r.clk.Now(), ExitCode: c.exit, Reason: "ended"})
			r.run()
			if !c.again {
				st := r.wantState("a", mariposa.StateFailed)
				if st.Reason != "ended" || st.Restarts != 0 {
					t.Errorf("reported %+v", st)
				}
				h.want(t)
				return
			}
			h.want(t, "start a")
			r.end(h, "start", "a", driver.Observed{Running: true, Started: r.clk.Now()}, nil)
			if st := r.wantState("a", mariposa.StateRunning); st.Restarts != 1 || st.Reason != "" {
				t.Errorf("reported %+v", st)
			}
			if got := r.states("a"); !slices.Equal(got, []mariposa.State{"provisioning", "running", "provisioning", "running"}) {
				t.Errorf("went through %v", got)
			}
		})
	}
}

func TestThreeRestartsInTenMinutesAreEnough(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.connect(wanted("a", 1, work(mariposa.Workload{Compute: mariposa.ComputeDummy, Restart: mariposa.Restart{Policy: mariposa.RestartAlways}})))
	for n := range 3 {
		r.linger(3 * time.Minute)
		r.crash("a")
		if st := r.wantState("a", mariposa.StateRunning); st.Restarts != n+1 {
			t.Fatalf("restarts %d, want %d", st.Restarts, n+1)
		}
	}
	r.linger(3 * time.Minute)
	r.crash("a")
	st := r.wantState("a", mariposa.StateFailed)
	if st.Restarts != 3 || !strings.Contains(st.Reason, "3 restarts in 10 minutes") || !strings.HasPrefix(st.Reason, "killed by signal 9") {
		t.Errorf("reported %+v", st)
	}
}

func TestRestartsLongAgoAreForgiven(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.connect(wanted("a", 1, work(mariposa.Workload{Compute: mariposa.ComputeDummy, Restart: mariposa.Restart{Policy: mariposa.RestartUnlessStopped}})))
	for range 10 {
		r.linger(4 * time.Minute)
		r.crash("a")
	}
	if st := r.wantState("a", mariposa.StateRunning); st.Restarts != 10 {
		t.Errorf("restarts %d, want 10", st.Restarts)
	}
}

func TestOnFailureWithANumberEndsThere(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.connect(wanted("a", 1, work(mariposa.Workload{Compute: mariposa.ComputeDummy, Restart: mariposa.Restart{Policy: mariposa.RestartOnFailure, Max: 1}})))
	r.crash("a")
	r.wantState("a", mariposa.StateRunning)
	r.linger(time.Hour)
	r.crash("a")
	if st := r.wantState("a", mariposa.StateFailed); st.Restarts != 1 || !strings.Contains(st.Reason, "its restart policy allows no more restarts") {
		t.Errorf("reported %+v", st)
	}
}

func TestWhatEndedWhileNobodyLookedIsRestartedToo(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	w := work(mariposa.Workload{Compute: mariposa.ComputeDummy, Restart: mariposa.Restart{Policy: mariposa.RestartAlways}})
	r.connect(wanted("a", 1, w))
	st := r.wantState("a", mariposa.StateRunning)
	r.dummy.Watch(func(driver.Event) {}) // the agent is dead
	if err := r.dummy.Crash("a"); err != nil {
		t.Fatal(err)
	}
	r.boot()
	r.connect(known(wanted("a", 1, w), st))
	if st := r.wantState("a", mariposa.StateRunning); st.Restarts != 1 {
		t.Errorf("reported %+v", st)
	}
}

func TestWhatShouldGoIsStoppedThenRemoved(t *testing.T) {
	t.Parallel()
	h := &manualDriver{}
	r := newRig(t, h)
	w := processWork()
	r.connect(wanted("a", 1, w))
	r.end(h, "start", "a", driver.Observed{Running: true}, nil)
	r.assign(unwanted("a", 2))
	h.want(t, "stop a")
	r.wantState("a", mariposa.StateStopping)
	r.end(h, "stop", "a", driver.Observed{}, nil)
	h.want(t, "remove a")
	r.end(h, "remove", "a", driver.Observed{}, nil)
	if got := r.states("a"); !slices.Equal(got, []mariposa.State{"provisioning", "running", "stopping", "destroyed"}) {
		t.Errorf("went through %v", got)
	}
	r.assign(unwanted("a", 2)) // the last report may have been lost
	h.want(t)
	r.wantState("a", mariposa.StateDestroyed)
}

func TestAStopThatFailsIsFollowedByForce(t *testing.T) {
	t.Parallel()
	h := &manualDriver{}
	r := newRig(t, h)
	r.connect(wanted("a", 1, processWork()))
	r.end(h, "start", "a", driver.Observed{Running: true}, nil)
	r.assign(unwanted("a", 2))
	r.end(h, "stop", "a", driver.Observed{}, errBroken)
	h.want(t, "remove a")
}

func TestARemovalThatFailsIsTriedAgain(t *testing.T) {
	t.Parallel()
	h := &manualDriver{}
	r := newRig(t, h)
	r.connect(wanted("a", 1, processWork()))
	r.end(h, "start", "a", driver.Observed{Running: true}, nil)
	r.assign(unwanted("a", 2))
	r.end(h, "stop", "a", driver.Observed{}, nil)
	r.end(h, "remove", "a", driver.Observed{}, errBroken)
	if st := r.wantState("a", mariposa.StateStopping); !strings.Contains(st.Reason, "the disk is broken") {
		t.Errorf("reported %+v", st)
	}
	h.want(t)
	r.pass(5 * time.Second)
	h.want(t, "remove a")
	r.end(h, "remove", "a", driver.Observed{}, nil)
	r.wantState("a", mariposa.StateDestroyed)
}

func TestAStartThatFailsSaysWhy(t *testing.T) {
	t.Parallel()
	h := &manualDriver{}
	r := newRig(t, h)
	r.connect(wanted("a", 1, processWork()), wanted("b", 1, work(mariposa.Workload{Compute: mariposa.ComputeKVM})))
	r.end(h, "start", "a", driver.Observed{}, errBroken)
	if st := r.wantState("a", mariposa.StateFailed); st.Reason != "could not be started: the disk is broken" || st.Finished.IsZero() || st.Generation != 1 {
		t.Errorf("reported %+v", st)
	}
	if st := r.wantState("b", mariposa.StateFailed); !strings.Contains(st.Reason, "does not support compute type kvm") {
		t.Errorf("reported %+v", st)
	}
	r.assign(unwanted("a", 2), unwanted("b", 2))
	r.end(h, "remove", "a", driver.Observed{}, nil)
	r.wantState("a", mariposa.StateDestroyed)
	r.wantState("b", mariposa.StateDestroyed)
}

func TestAGoalThatChangesDuringAnOperationIsPursuedAfterIt(t *testing.T) {
	t.Parallel()
	h := &manualDriver{}
	r := newRig(t, h)
	w := processWork()
	r.connect(wanted("a", 1, w))
	r.assign(unwanted("a", 2))
	h.want(t, "start a") // one operation at a time
	r.end(h, "start", "a", driver.Observed{Running: true}, nil)
	h.want(t, "stop a")
}

// A stop or a removal does not wait for a slow start: the start is canceled. That is not
// a failure, and if the instance is to run after all, it starts again.
func TestAStartIsCanceledWhenItsInstanceIsToStop(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		goals func(w string) []wire.Assignment
		next  string
	}{
		"to be removed":     {func(string) []wire.Assignment { return []wire.Assignment{unwanted("a", 2)} }, "remove a"},
		"to be stopped":     {func(w string) []wire.Assignment { return []wire.Assignment{halted("a", 2, w)} }, "stop a"},
		"to run after all":  {func(w string) []wire.Assignment { return []wire.Assignment{halted("a", 2, w), wanted("a", 3, w)} }, "start a"},
		"removed after all": {func(w string) []wire.Assignment { return []wire.Assignment{halted("a", 2, w), unwanted("a", 3)} }, "remove a"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := &manualDriver{}
			r := newRig(t, h)
			w := processWork()
			r.connect(wanted("a", 1, w))
			ctx := h.last(t, "start").ctx
			if ctx.Err() != nil {
				t.Fatal("the start is canceled while it is needed")
			}
			for _, it := range c.goals(w) {
				r.assign(it)
			}
			if ctx.Err() == nil {
				t.Fatal("the start goes on")
			}
			r.end(h, "start", "a", driver.Observed{Reason: "its start was cancelled"}, ctx.Err())
			h.want(t, c.next)
			if got := r.states("a"); slices.Contains(got, mariposa.StateFailed) {
				t.Errorf("went through %v", got)
			}
		})
	}
}

func TestANewGenerationChangesWhatRunsInPlace(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	prop := func(v string) string {
		return work(mariposa.Workload{Compute: mariposa.ComputeDummy, Dummy: &mariposa.Dummy{UpdateInPlaceProp: v}})
	}
	r.connect(wanted("a", 1, prop("one")))
	first, _ := r.real("a")
	r.assign(wanted("a", 2, prop("two")))
	st := r.wantState("a", mariposa.StateRunning)
	if st.Generation != 2 || st.Details["update_in_place_prop"] != "two" || st.PhysicalID != first.PhysicalID {
		t.Errorf("reported %+v", st)
	}
	r.assign(wanted("a", 1, prop("one")))
	if st := r.wantState("a", mariposa.StateRunning); st.Generation != 2 || st.Details["update_in_place_prop"] != "two" {
		t.Errorf("an older generation was taken: %+v", st)
	}
}

func TestWhatEndsWhileItIsChangedInPlaceIsNotCalledRunning(t *testing.T) {
	t.Parallel()
	for _, running := range []bool{true, false} {
		h := &manualDriver{}
		r := newRig(t, h)
		r.connect(wanted("a", 1, processWork()))
		at := r.clk.Now()
		r.end(h, "start", "a", driver.Observed{Running: true, Started: at}, nil)
		r.assign(wanted("a", 2, processWork()))
		h.want(t, "update a")
		h.changed(driver.Observed{ID: "a", Started: at, Reason: "killed by signal 9"})
		r.run()
		// The driver may have checked before or after the end.
		r.end(h, "update", "a", driver.Observed{Running: running, Started: at, Reason: "killed by signal 9"}, nil)
		if st := r.wantState("a", mariposa.StateFailed); st.Reason != "killed by signal 9" {
			t.Errorf("reported %+v", st)
		}
	}
}

func TestAnEndThatOvertakesItsOwnStartCounts(t *testing.T) {
	t.Parallel()
	h := &manualDriver{}
	r := newRig(t, h)
	r.connect(wanted("a", 1, work(mariposa.Workload{Compute: mariposa.ComputeProcess, Restart: mariposa.Restart{Policy: mariposa.RestartAlways}})))
	first := r.clk.Now()
	h.changed(driver.Observed{ID: "a", Started: first, Reason: "exited with code 1"})
	r.run()
	r.end(h, "start", "a", driver.Observed{Running: true, Started: first}, nil)
	h.want(t, "start a")
	// Reports of the first run during the second start are outdated.
	h.changed(driver.Observed{ID: "a", Started: first, Reason: "exited with code 1"})
	r.run()
	r.end(h, "start", "a", driver.Observed{Running: true, Started: first.Add(time.Second)}, nil)
	if st := r.wantState("a", mariposa.StateRunning); st.Restarts != 1 {
		t.Errorf("reported %+v", st)
	}
}

func TestAtMostSoManyOperationsAreUnderWay(t *testing.T) {
	t.Parallel()
	h := &manualDriver{}
	r := newRig(t, h)
	r.slots = 2
	r.boot()
	w := processWork()
	ids := []string{"a", "b", "c", "d", "e"}
	items := make([]wire.Assignment, len(ids))
	for i, id := range ids {
		items[i] = wanted(id, 1, w)
	}
	r.connect(items...)
	h.want(t, "start a", "start b")
	r.end(h, "start", "b", driver.Observed{Running: true}, nil)
	h.want(t, "start a", "start c")
	r.assign(unwanted("d", 2)) // it never began, so there is nothing to stop
	r.end(h, "start", "a", driver.Observed{Running: true}, nil)
	r.wantState("d", mariposa.StateDestroyed)
	h.want(t, "start c", "start e")
	r.end(h, "start", "c", driver.Observed{Running: true}, nil)
	r.end(h, "start", "e", driver.Observed{Running: true}, nil)
	h.want(t)
	for _, id := range []string{"a", "b", "c", "e"} {
		r.wantState(id, mariposa.StateRunning)
	}
}

// However many starts take long, a stop does not wait for them, nor does the removal of what
// waits to be started. Starts never take the slots of stops.
func TestAStopWaitsForNoStart(t *testing.T) {
	t.Parallel()
	h := &manualDriver{}
	r := newRig(t, h)
	r.slots = 2
	r.boot()
	w := processWork()
	r.connect(wanted("a", 1, w), wanted("b", 1, w))
	r.end(h, "start", "a", driver.Observed{Running: true}, nil)
	r.end(h, "start", "b", driver.Observed{Running: true}, nil)
	r.assign(wanted("c", 1, w), wanted("d", 1, w), wanted("e", 1, w), wanted("f", 1, w))
	h.want(t, "start c", "start d") // they take long

	r.assign(unwanted("a", 2))
	h.want(t, "start c", "start d", "stop a")
	r.assign(unwanted("e", 2)) // it never began
	r.wantState("e", mariposa.StateDestroyed)
	r.assign(withManualRestarts(wanted("b", 2, w), 1))
	h.want(t, "start c", "start d", "stop a", "stop b")
	r.end(h, "stop", "b", driver.Observed{}, nil)
	h.want(t, "start c", "start d", "stop a") // the start of b waits for the other starts
	r.wantState("b", mariposa.StateProvisioning)
	r.end(h, "stop", "a", driver.Observed{}, nil)
	h.want(t, "start c", "start d", "remove a")
	r.end(h, "remove", "a", driver.Observed{}, nil)
	r.wantState("a", mariposa.StateDestroyed)

	r.end(h, "start", "c", driver.Observed{Running: true}, nil)
	h.want(t, "start d", "start f")
	r.end(h, "start", "d", driver.Observed{Running: true}, nil)
	h.want(t, "start f", "start b")
	r.end(h, "start", "f", driver.Observed{Running: true}, nil)
	r.end(h, "start", "b", driver.Observed{Running: true}, nil)
	h.want(t)
}

// One that waits to be stopped and is then wanted again waits for a start.
func TestAQueuedStopThatIsTakenBackStartsNothing(t *testing.T) {
	t.Parallel()
	h := &manualDriver{}
	r := newRig(t, h)
	r.slots = 1
	r.boot()
	w := processWork()
	r.connect(wanted("a", 1, w), wanted("b", 1, w))
	r.end(h, "start", "a", driver.Observed{Running: true}, nil)
	r.end(h, "start", "b", driver.Observed{Running: true}, nil)
	r.assign(wanted("c", 1, w), unwanted("a", 2))
	h.want(t, "start c", "stop a")
	r.assign(withManualRestarts(wanted("b", 2, w), 1)) // its stop waits for that of a
	h.changed(driver.Observed{ID: "b", Reason: "exited with code 1"})
	r.run()
	r.end(h, "stop", "a", driver.Observed{}, nil)
	h.want(t, "start c", "remove a") // its start waits for that of c
	r.end(h, "start", "c", driver.Observed{Running: true}, nil)
	h.want(t, "remove a", "start b")
}

func TestOneThatEndsWhileItWaitsForItsTurnHasFailed(t *testing.T) {
	t.Parallel()
	h := &manualDriver{}
	r := newRig(t, h)
	r.slots = 1
	r.boot()
	r.connect(wanted("a", 1, processWork()))
	r.end(h, "start", "a", driver.Observed{Running: true}, nil)
	r.assign(wanted("b", 1, processWork()), wanted("a", 2, processWork()), wanted("c", 1, processWork()))
	h.want(t, "start b")
	h.changed(driver.Observed{ID: "a", Reason: "exited with code 1"})
	r.run()
	r.wantState("a", mariposa.StateFailed)
	r.end(h, "start", "b", driver.Observed{Running: true}, nil)
	h.want(t, "start c") // and it blocks no other
	r.wantState("a", mariposa.StateFailed)
}

func TestListFailingIsSaidAtOnce(t *testing.T) {
	t.Parallel()
	h := &manualDriver{}
	r := newRig(t, h)
	h.fail = errBroken
	if err := r.node.List(t.Context()); err == nil || !strings.Contains(err.Error(), "process") {
		t.Errorf("got %v", err)
	}
}

func TestADummyCrashesWhenAPersonAsks(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.connect(wanted("a", 1, dummyWork()))
	r.say(wire.Frame{Crash: &wire.Crash{Instance: "a"}})
	r.wantState("a", mariposa.StateFailed)
	r.say(wire.Frame{Crash: &wire.Crash{Instance: "nobody"}})
}
