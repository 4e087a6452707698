package agent_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"

	"mariposa"
	"mariposa/driver"
	"mariposa/wire"
)

// adoptingDriver is a driver with foreign containers.
type adoptingDriver struct {
	*manualDriver
	foreign []mariposa.ForeignContainer
}

func (h *adoptingDriver) ForeignContainers(context.Context) ([]mariposa.ForeignContainer, error) {
	return h.foreign, nil
}

func (h *adoptingDriver) ForeignContainer(_ context.Context, ref string) (mariposa.ForeignContainer, error) {
	for _, c := range h.foreign {
		if c.Name == ref {
			return c, nil
		}
	}
	return mariposa.ForeignContainer{}, mariposa.Errorf(mariposa.ResourceNotFound, "there is no container %q", ref)
}

func (h *adoptingDriver) Adopt(ctx context.Context, i driver.Instance) (driver.Observed, error) {
	return h.do(&call{what: "adopt", id: i.ID, instance: i, ctx: ctx})
}

func newAdopting(t *testing.T) (*rig, *adoptingDriver) {
	h := &adoptingDriver{manualDriver: &manualDriver{}}
	return newRig(t, h), h
}

// finish ends a call of the driver, which must be the last one.
func (r *rig) finish(h *adoptingDriver, what string, o driver.Observed, err error) *call {
	r.t.Helper()
	c := h.last(r.t, what)
	c.o, c.err = o, err
	c.wake()
	r.pass(0)
	r.run()
	return c
}

func toAdopt(goal mariposa.Goal, generation int64) wire.Assignment {
	it := wanted("a", generation, work(mariposa.Workload{Compute: mariposa.ComputeProcess, Image: "db:1"}))
	it.Goal, it.Adopts = goal, "c1"
	if goal == mariposa.GoalGone {
		it.Workload = ""
	}
	return it
}

func TestAContainerIsAdoptedBeforeAnythingElseHappensToIt(t *testing.T) {
	t.Parallel()
	up, down := driver.Observed{ID: "a", Running: true, PhysicalID: "c1"}, driver.Observed{ID: "a", PhysicalID: "c1", Reason: "exited with code 1"}
	for name, c := range map[string]struct {
		goal  mariposa.Goal
		found driver.Observed
		err   error
		state mariposa.State // after the adoption
		next  string         // the next operation
	}{
		"one that runs":                             {mariposa.GoalRunning, up, nil, mariposa.StateRunning, ""},
		"one that ended meanwhile":                  {mariposa.GoalRunning, down, nil, mariposa.StateFailed, ""},
		"one that is stopped":                       {mariposa.GoalHalted, down, nil, mariposa.StateStopped, ""},
		"one that runs and is to stop":              {mariposa.GoalHalted, up, nil, mariposa.StateStopping, "stop"},
		"one that is to be removed":                 {mariposa.GoalGone, down, nil, mariposa.StateStopped, "remove"},
		"one that is gone":                          {mariposa.GoalRunning, driver.Observed{ID: "a"}, errors.New("there is no container"), mariposa.StateFailed, ""},
		"one that is to be removed and gone before": {mariposa.GoalGone, driver.Observed{ID: "a"}, errors.New("there is no container"), mariposa.StateDestroyed, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r, h := newAdopting(t)
			r.connect(toAdopt(c.goal, 1))
			r.pass(0)
			if called := r.finish(h, "adopt", c.found, c.err); called.instance.Adopts != "c1" {
				t.Errorf("adopted %+v", called.instance)
			}
			st := r.wantState("a", c.state)
			if c.err != nil && c.state == mariposa.StateFailed && !strings.Contains(st.Reason, "could not be adopted: there is no container") {
				t.Errorf("the reason is %q", st.Reason)
			}
			if c.next == "" {
				if len(h.calls) != 1 {
					t.Errorf("then it called %v", h.log)
				}
				return
			}
			h.last(t, c.next)
		})
	}
}

// An instance whose container is gone is not created: a restart tries to adopt it again.
func TestARestartOfAContainerThatIsGoneAdoptsItAgain(t *testing.T) {
	t.Parallel()
	r, h := newAdopting(t)
	r.connect(known(toAdopt(mariposa.GoalRunning, 1), mariposa.InstanceStatus{State: mariposa.StateRunning, Generation: 1, PhysicalID: "c1"}))
	r.wantState("a", mariposa.StateFailed)
	if len(h.calls) != 0 {
		t.Fatalf("it called %v", h.log)
	}
	r.assign(withManualRestarts(toAdopt(mariposa.GoalRunning, 2), 1))
	r.pass(0)
	r.finish(h, "adopt", driver.Observed{ID: "a"}, errors.New("there is no container"))
	if st := r.wantState("a", mariposa.StateFailed); st.Generation != 2 || st.ManualRestarts != 1 {
		t.Errorf("it is %+v", st)
	}
	if len(h.calls) != 1 {
		t.Errorf("then it called %v", h.log)
	}
}

// An agent that was killed after the driver had recorded the adoption finds the instance.
func TestAnAdoptedContainerIsFoundAfterARestart(t *testing.T) {
	t.Parallel()
	r, h := newAdopting(t)
	h.list = []driver.Observed{{ID: "a", Running: true, PhysicalID: "c1", Shared: true, Labels: driver.Labels{Cluster: "ours", Incarnation: "first"}}}
	r.boot()
	r.connect(toAdopt(mariposa.GoalRunning, 1))
	r.pass(0)
	if st := r.wantState("a", mariposa.StateRunning); st.PhysicalID != "c1" || len(h.calls) != 0 {
		t.Errorf("it is %+v after %v", st, h.log)
	}
}

// An adopted container that this store does not know is in quarantine. It is left alone until it is
// purged, which removes it.
func TestAnAdoptedContainerInQuarantineIsPurged(t *testing.T) {
	t.Parallel()
	r, h := newAdopting(t)
	h.list = []driver.Observed{{ID: "a", Name: "db", Running: true, PhysicalID: "c1", Shared: true, Labels: driver.Labels{Cluster: "ours", Incarnation: "before"}}}
	r.boot()
	r.connect()
	r.pass(0)
	if q := r.quarantine(); len(q) != 1 || q[0].ID != "a" || len(h.calls) != 0 {
		t.Fatalf("in quarantine: %+v after %v", q, h.log)
	}
	r.assign(wire.Assignment{ID: "a", Goal: mariposa.GoalGone, Generation: 1})
	r.pass(0)
	r.finish(h, "stop", driver.Observed{ID: "a", PhysicalID: "c1"}, nil)
	r.finish(h, "remove", driver.Observed{ID: "a"}, nil)
	if q := r.quarantine(); len(q) != 0 || len(h.calls) != 2 {
		t.Errorf("in quarantine: %+v after %v", q, h.log)
	}
}

func TestForeignContainersAreListed(t *testing.T) {
	t.Parallel()
	r, h := newAdopting(t)
	for n := range wire.MaxForeign + 5 {
		h.foreign = append(h.foreign, mariposa.ForeignContainer{ID: fmt.Sprint(n), Name: fmt.Sprint("db", n)})
	}
	p, cut := r.plug()
	defer cut()
	ask := func(q wire.ForeignQuery) (got wire.Foreign, last wire.Message) {
		t.Helper()
		last, pieces := r.ends(r.ask(p, wire.Open{Foreign: &q}))
		var b []byte
		for _, m := range pieces {
			b = append(b, m.Bytes...)
		}
		if err := json.Unmarshal(b, &got); err != nil && last.Error == "" {
			t.Fatal(err)
		}
		return got, last
	}
	if all, _ := ask(wire.ForeignQuery{}); len(all.Containers) != wire.MaxForeign || all.Total != wire.MaxForeign+5 {
		t.Errorf("%d of %d are listed", len(all.Containers), all.Total)
	}
	if one, _ := ask(wire.ForeignQuery{Container: "db7"}); len(one.Containers) != 1 || one.Containers[0].ID != "7" {
		t.Errorf("found %+v", one)
	}
	if _, last := ask(wire.ForeignQuery{Container: "nobody"}); last.Code != mariposa.ResourceNotFound {
		t.Errorf("the answer is %+v", last)
	}
}

func TestANodeWithoutContainersHasNoForeignOnes(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	p, cut := r.plug()
	defer cut()
	if last, _ := r.ends(r.ask(p, wire.Open{Foreign: &wire.ForeignQuery{}})); last.Code != mariposa.Conflict || last.Error != "the node runs no containers" {
		t.Errorf("the answer is %+v", last)
	}
}
