package agent_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"mariposa"
	"mariposa/driver"
	"mariposa/driver/dummy"
)

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestALateAddressIsReported(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.connect(wanted("a", 1, dummyWork()))
	was := r.wantState("a", mariposa.StateRunning)
	must(t, r.dummy.Readdress("a", "127.7.7.7"))
	r.run()
	if st := r.wantState("a", mariposa.StateRunning); len(st.Addresses) != 1 || st.Addresses[0] != "127.7.7.7" || st.Restarts != 0 || !st.Started.Equal(was.Started) {
		t.Errorf("reported is %+v", st)
	}
}

func TestARestartByTheEngineIsReportedAndCounted(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.connect(wanted("a", 1, dummyWork()))
	was := r.wantState("a", mariposa.StateRunning)
	r.linger(time.Minute)
	must(t, r.dummy.Restart("a"))
	r.run()
	if st := r.wantState("a", mariposa.StateRunning); st.Restarts != 1 || !st.Started.After(was.Started) {
		t.Errorf("reported is %+v", st)
	}
}

func TestWhatAnEngineRunsAgainIsBroughtToItsGoal(t *testing.T) {
	t.Parallel()
	h := &manualDriver{}
	r := newRig(t, h)
	r.connect(wanted("a", 1, processWork()))
	begun := r.clk.Now()
	r.end(h, "start", "a", driver.Observed{Running: true, Started: begun}, nil)
	r.assign(halted("a", 2, processWork()))
	r.end(h, "stop", "a", driver.Observed{Started: begun, Finished: begun}, nil)
	r.wantState("a", mariposa.StateStopped)
	h.changed(driver.Observed{ID: "a", Running: true, Started: begun}) // outdated
	r.run()
	h.want(t)
	h.changed(driver.Observed{ID: "a", Running: true, Started: begun.Add(time.Second)})
	r.run()
	h.want(t, "stop a")
}

func TestNewsDuringAnOperationCountsAfterwards(t *testing.T) {
	t.Parallel()
	h := &manualDriver{}
	r := newRig(t, h)
	r.connect(wanted("a", 1, processWork()))
	begun := r.clk.Now()
	h.changed(driver.Observed{ID: "a", Running: true, Started: begun, Addresses: []string{"10.0.0.7"}})
	r.run()
	r.end(h, "start", "a", driver.Observed{Running: true, Started: begun}, nil)
	if st := r.wantState("a", mariposa.StateRunning); len(st.Addresses) != 1 {
		t.Errorf("the address that came before the answer is lost: %+v", st)
	}
}

func TestALostEngineIsReportedAndLookedAtWhenItIsBack(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.connect(wanted("a", 1, dummyWork()), wanted("b", 1, dummyWork()), wanted("c", 1, dummyWork()))
	r.linger(time.Minute)
	restore := r.dummy.LoseEngine("the daemon does not answer")
	r.run()
	if st := r.wantState("a", mariposa.StateRunning); !strings.Contains(st.Reason, "the daemon does not answer") {
		t.Errorf("reported is %+v", st)
	}
	must(t, r.dummy.Crash("b")) // and it is not reported
	behind := dummy.New(r.world, r.clk)
	must(t, behind.Remove(t.Context(), "c"))
	r.run()
	r.wantState("b", mariposa.StateRunning)
	restore()
	r.run()
	if st := r.wantState("a", mariposa.StateRunning); st.Reason != "" || st.Restarts != 0 {
		t.Errorf("reported is %+v", st)
	}
	if st := r.wantState("b", mariposa.StateFailed); st.ExitCode == nil || *st.ExitCode != 137 {
		t.Errorf("reported is %+v", st)
	}
	if st := r.wantState("c", mariposa.StateFailed); st.Reason != "was gone when its engine came back" {
		t.Errorf("reported is %+v", st)
	}
}

func TestAListThatFailsAfterALossIsTriedAgain(t *testing.T) {
	t.Parallel()
	h := &manualDriver{}
	r := newRig(t, h)
	r.connect(wanted("a", 1, processWork()))
	r.end(h, "start", "a", driver.Observed{Running: true, Started: r.clk.Now()}, nil)
	r.linger(time.Minute)
	h.fail = errBroken
	h.reportEvent(driver.Event{Kind: driver.EngineBack})
	r.run()
	r.wantState("a", mariposa.StateRunning)
	h.fail = nil
	r.linger(10 * time.Second)
	r.wantState("a", mariposa.StateFailed) // the list is empty
}

// imageDriver is a driver with images that arrive when the test decides.
type imageDriver struct {
	manualDriver
	progress func(driver.Progress)
}

func (s *imageDriver) EnsureImage(ctx context.Context, image string, _ *mariposa.Login, report func(driver.Progress)) error {
	s.progress = report
	_, err := s.do(&call{what: "fetch", id: image, ctx: ctx})
	return err
}

func imageWork() string {
	return work(mariposa.Workload{Compute: mariposa.ComputeProcess, Image: "base"})
}

func TestAnImageIsFetchedBeforeAStart(t *testing.T) {
	t.Parallel()
	s := &imageDriver{}
	r := newRig(t, s)
	r.connect(wanted("a", 1, imageWork()))
	s.want(t, "fetch base")
	for done := range int64(1000) {
		s.progress(driver.Progress{Done: done, Total: 2000})
	}
	before := len(r.conn.sent())
	r.run()
	if st := r.wantState("a", mariposa.StateProvisioning); st.Reason != "pulling image base: 40 %" || len(r.conn.sent()) != before+1 {
		t.Errorf("reported is %q in %d frames", st.Reason, len(r.conn.sent())-before)
	}
	r.end(&s.manualDriver, "fetch", "base", driver.Observed{}, nil)
	s.want(t, "start a")
	r.end(&s.manualDriver, "start", "a", driver.Observed{Running: true}, nil)
	if st := r.wantState("a", mariposa.StateRunning); st.Reason != "" {
		t.Errorf("reported is %q", st.Reason)
	}
}

func TestAnImageThatNobodyNeedsIsNotFetched(t *testing.T) {
	t.Parallel()
	s := &imageDriver{}
	r := newRig(t, s)
	r.connect(wanted("a", 1, imageWork()), wanted("b", 1, imageWork()))
	first := s.last(t, "fetch").ctx
	r.assign(unwanted("a", 2), unwanted("b", 2))
	if first.Err() == nil {
		t.Fatal("the fetching goes on")
	}
	r.end(&s.manualDriver, "fetch", "base", driver.Observed{}, first.Err())
	s.want(t, "fetch base", "remove a")
}
