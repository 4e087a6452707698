package agent_test

import (
	"strings"
	"testing"
	"time"

	"mariposa"
)

// A node says what it can run now: the server learns when an engine goes away and comes back.
func TestANodeOffersWhatItsEnginesCanDoNow(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.away = new(string)
	r.boot()
	r.connect()
	want := func(offered bool, why string) {
		t.Helper()
		drivers, offers := r.abilities()
		if o := offers[mariposa.ComputeDummy]; (len(drivers) == 1) != offered || o.Unavailable != why || o.Details["engine"] != "1.0" {
			t.Errorf("it offers %v, %+v", drivers, offers)
		}
	}
	want(true, "")
	r.setEngine("it is being upgraded")
	want(false, "it is being upgraded")
	frames := len(r.conn.sent())
	r.setEngine("it is being upgraded")
	if more := len(r.conn.sent()); more != frames {
		t.Errorf("it said the same again: %+v", r.conn.sent()[frames:])
	}
	r.setEngine("")
	want(true, "")
	r.setEngine("gone again")
	r.connect()
	want(false, "gone again")
}

// An agent that starts while an engine is away connects, and does nothing with instances of
// which it does not know whether they are there. It finds out when the engine is back.
func TestAnAgentThatStartsWithoutAnEngineWaitsForIt(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	w, other := dummyWork(), dummyWork()
	r.away = new(string)
	r.boot()
	r.connect(wanted("a", 1, w), wanted("b", 1, w), wanted("c", 1, w), wanted("d", 1, w))
	status := func(id string) mariposa.InstanceStatus { return r.wantState(id, mariposa.StateRunning) }
	a, b, c, d := status("a"), status("b"), status("c"), status("d")

	*r.away = "it does not answer"
	r.boot()
	must(t, r.dummy.Crash("b"))
	must(t, r.dummy.Remove(t.Context(), "c"))
	gone := unwanted("d", 2)
	gone.Status = &d
	r.connect(known(wanted("a", 1, w), a), known(wanted("b", 1, w), b), known(wanted("c", 1, w), c), gone, wanted("e", 1, other))
	r.linger(time.Minute)
	for _, id := range []string{"a", "b", "c"} {
		if st := status(id); !strings.Contains(st.Reason, "it does not answer") || st.Restarts != 0 {
			t.Errorf("%s: %+v", id, st)
		}
	}
	r.wantState("e", mariposa.StateProvisioning)
	if _, there := r.real("e"); there {
		t.Error("an instance was started by an engine that is away")
	}
	if _, there := r.real("d"); !there {
		t.Error("an instance was removed by an engine that is away")
	}

	r.setEngine("")
	if st := status("a"); st.Reason != "" || !st.Started.Equal(a.Started) {
		t.Errorf("a: %+v", st)
	}
	if st := r.wantState("b", mariposa.StateFailed); st.Reason == "" || st.Finished.IsZero() {
		t.Errorf("b: %+v", st)
	}
	if st := r.wantState("c", mariposa.StateFailed); !strings.Contains(st.Reason, "was gone from its node") {
		t.Errorf("c: %+v", st)
	}
	r.wantState("d", mariposa.StateDestroyed)
	status("e")
}

// An engine can go away after its driver has found it and before the agent has listed its instances.
// The agent starts all the same, and lists them later.
func TestAnAgentStartsWhenAnEngineGoesAwayBeforeItIsListed(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	w := dummyWork()
	r.away = new(string)
	r.boot()
	r.connect(wanted("a", 1, w), wanted("b", 1, w))
	a, b := r.wantState("a", mariposa.StateRunning), r.wantState("b", mariposa.StateRunning)

	r.unlisted = true
	r.boot()
	must(t, r.dummy.Remove(t.Context(), "b"))
	r.connect(known(wanted("a", 1, w), a), known(wanted("b", 1, w), b))
	r.linger(time.Minute)
	if st := r.wantState("a", mariposa.StateRunning); st.Reason == "" || st.Restarts != 0 {
		t.Errorf("a: %+v", st)
	}
	r.unlisted = false // and no event says so
	r.linger(time.Minute)
	if st := r.wantState("a", mariposa.StateRunning); st.Reason != "" || !st.Started.Equal(a.Started) {
		t.Errorf("a: %+v", st)
	}
	if st := r.wantState("b", mariposa.StateFailed); !strings.Contains(st.Reason, "was gone from its node") {
		t.Errorf("b: %+v", st)
	}
}

// How an instance has ended is known, wherever its engine is.
func TestAnEndedInstanceKeepsItsReasonWithoutAnEngine(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	w := dummyWork()
	r.away = new(string)
	r.boot()
	r.connect(wanted("a", 1, w), wanted("b", 1, w))
	must(t, r.dummy.Crash("a"))
	must(t, r.dummy.Crash("b"))
	r.run()
	a, b := r.wantState("a", mariposa.StateFailed), r.wantState("b", mariposa.StateFailed)
	r.assign(halted("b", 2, w)) // it is kept
	kept := r.wantState("b", mariposa.StateStopped)
	if a.Reason == "" || kept.Reason != b.Reason {
		t.Fatalf("%+v, %+v", a, kept)
	}
	*r.away = "it does not answer"
	r.boot()
	r.connect(known(wanted("a", 1, w), a), known(halted("b", 2, w), kept))
	r.linger(time.Minute)
	r.setEngine("")
	for id, was := range map[string]mariposa.InstanceStatus{"a": a, "b": kept} {
		if st := r.wantState(id, was.State); st.Reason != was.Reason {
			t.Errorf("%s %s, and now says %q", id, was.Reason, st.Reason)
		}
	}
}

// Starts and stops that wait for an engine say so, and go on when it answers again.
func TestOperationsSayThatTheyWaitForTheirEngine(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.away = new(string)
	r.boot()
	slow := work(mariposa.Workload{Compute: mariposa.ComputeDummy, Dummy: &mariposa.Dummy{Wait: time.Minute}})
	r.connect(wanted("a", 1, slow))
	r.linger(2 * time.Minute)
	r.wantState("a", mariposa.StateRunning)
	r.assign(unwanted("a", 2), wanted("b", 1, slow))
	r.setEngine("it does not answer")
	r.assign(wanted("c", 1, slow)) // the server did not know yet
	states := map[string]mariposa.State{"a": mariposa.StateStopping, "b": mariposa.StateProvisioning, "c": mariposa.StateProvisioning}
	for id, state := range states {
		if st := r.wantState(id, state); st.Reason != "waits for its engine: it does not answer" {
			t.Errorf("%s: %+v", id, st)
		}
	}
	r.setEngine("")
	for id, state := range states {
		if st := r.wantState(id, state); st.Reason != "" {
			t.Errorf("%s: %+v", id, st)
		}
	}
	r.linger(3 * time.Minute)
	r.wantState("a", mariposa.StateDestroyed)
	r.wantState("b", mariposa.StateRunning)
	r.wantState("c", mariposa.StateRunning)
}

// What such an engine turns out to have, and the server does not know, is in quarantine.
func TestInstancesOfALateEngineAreQuarantined(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.away = new(string)
	r.boot()
	r.connect(wanted("a", 1, dummyWork()))
	r.wantState("a", mariposa.StateRunning)
	*r.away = "it does not answer"
	r.boot()
	r.connect()
	if q := r.quarantine(); len(q) != 0 {
		t.Fatalf("in quarantine: %+v", q)
	}
	r.setEngine("")
	if q := r.quarantine(); len(q) != 1 || q[0].ID != "a" || q[0].State != mariposa.StateRunning {
		t.Errorf("in quarantine: %+v", q)
	}
	if o, there := r.real("a"); !there || !o.Running {
		t.Errorf("it was touched: %+v", o)
	}
}
