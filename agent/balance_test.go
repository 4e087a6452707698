package agent_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"mariposa"
	"mariposa/driver"
	"mariposa/wire"
)

func TestALeavingInstanceRunsUntilItsConnectionsHaveEnded(t *testing.T) {
	t.Parallel()
	leaves := func(id string, goal mariposa.Goal, drain time.Duration) wire.Assignment {
		a := wanted(id, 2, dummyWork())
		a.Goal, a.Drain = goal, drain
		return a
	}
	for _, goal := range []mariposa.Goal{mariposa.GoalGone, mariposa.GoalHalted} {
		end := map[mariposa.Goal]mariposa.State{mariposa.GoalGone: mariposa.StateDestroyed, mariposa.GoalHalted: mariposa.StateStopped}[goal]
		t.Run(string(goal), func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			r.connect(wanted("a", 1, dummyWork()), wanted("b", 1, dummyWork()), wanted("c", 1, dummyWork()), wanted("d", 1, dummyWork()))
			r.wantState("a", mariposa.StateRunning)
			r.assign(leaves("a", goal, time.Minute), leaves("b", goal, time.Minute), leaves("c", goal, time.Minute), leaves("d", goal, time.Minute))
			if st := r.wantState("a", mariposa.StateDraining); st.Reason == "" {
				t.Errorf("it does not say why it runs: %+v", st)
			}
			r.linger(30 * time.Second)
			r.wantState("a", mariposa.StateDraining)
			if _, runs := r.real("a"); !runs {
				t.Fatal("it does not run any more")
			}

			r.assign(leaves("a", goal, 0)) // its connections have ended
			r.wantState("a", end)
			r.clk.Set(-time.Hour)
			r.assign(leaves("b", goal, time.Minute)) // the same again does not start the time anew, whatever the clock shows
			r.crash("c")
			if goal == mariposa.GoalGone {
				r.wantState("c", mariposa.StateDestroyed)
			}
			r.assign(wanted("d", 3, dummyWork())) // it stays after all
			r.wantState("d", mariposa.StateRunning)
			r.linger(35 * time.Second)
			r.wantState("b", end)
			r.wantState("d", mariposa.StateRunning)
		})
	}
}

func TestAnInstanceIsRestartedOnceItsConnectionsHaveEnded(t *testing.T) {
	t.Parallel()
	restarts := func(id string, times int, drain time.Duration) wire.Assignment {
		a := withManualRestarts(wanted(id, int64(times)+1, dummyWork()), times)
		a.Drain = drain
		return a
	}
	r := newRig(t)
	r.connect(wanted("a", 1, dummyWork()), wanted("b", 1, dummyWork()))
	began := r.wantState("a", mariposa.StateRunning).Started
	r.assign(restarts("a", 1, time.Minute), restarts("b", 1, time.Minute))
	if st := r.wantState("a", mariposa.StateDraining); st.ManualRestarts != 0 || !st.Started.Equal(began) || st.Reason == "" {
		t.Errorf("it does not wait: %+v", st)
	}
	r.linger(30 * time.Second)
	r.wantState("a", mariposa.StateDraining)
	r.assign(restarts("a", 1, 0)) // its connections have ended
	if st := r.wantState("a", mariposa.StateRunning); st.ManualRestarts != 1 || !st.Started.After(began) {
		t.Errorf("after them: %+v", st)
	}
	r.linger(35 * time.Second) // those of the other one do not end
	if st := r.wantState("b", mariposa.StateRunning); st.ManualRestarts != 1 {
		t.Errorf("after the drain time: %+v", st)
	}
	r.assign(restarts("b", 2, time.Minute)) // and it waits again
	r.wantState("b", mariposa.StateDraining)
	r.crash("b")
	if st := r.wantState("b", mariposa.StateRunning); st.ManualRestarts != 2 {
		t.Errorf("after its end: %+v", st)
	}
}

// balancing is a driver of balancers.
type balancing struct{ *manualDriver }

func (b balancing) SetMembers(_ context.Context, id string, members []mariposa.Member) error {
	_, err := b.do(&call{what: "members", id: id, members: members})
	return err
}

func membersNamed(ids ...string) (all []mariposa.Member) {
	for _, id := range ids {
		all = append(all, mariposa.Member{Backend: "web.80", Instance: id, Address: "127.0.0.1:1", Weight: 100, State: mariposa.MemberUp})
	}
	return all
}

func idsOf(all []mariposa.Member) (ids []string) {
	for _, m := range all {
		ids = append(ids, m.Instance)
	}
	return ids
}

func TestABalancerIsToldItsMembers(t *testing.T) {
	t.Parallel()
	h := balancing{&manualDriver{}}
	r := newRig(t, h)
	r.connect(wanted("local", 1, dummyWork()))
	r.say(wire.Frame{Balance: &wire.Balance{ID: "front", Members: membersNamed("local", "remote")}}) // before its assignment
	r.assign(wanted("front", 1, processWork()))
	if got := idsOf(h.last(t, "start").instance.Members); !slices.Equal(got, []string{"local", "remote"}) {
		t.Fatalf("it starts with %v", got)
	}
	r.end(h.manualDriver, "start", "front", driver.Observed{ID: "front", Running: true, Started: r.clk.Now()}, nil)
	r.wantState("front", mariposa.StateRunning)
	r.say(wire.Frame{Balance: &wire.Balance{ID: "front", Members: membersNamed("local", "remote", "new")}})
	r.say(wire.Frame{Balance: &wire.Balance{ID: "front", Members: membersNamed("local", "newest")}}) // while the first is being set
	if got := idsOf(h.last(t, "members").members); !slices.Equal(got, []string{"local", "remote", "new"}) {
		t.Fatalf("it is told %v", got)
	}
	r.end(h.manualDriver, "members", "front", driver.Observed{}, nil)
	if got := idsOf(h.last(t, "members").members); !slices.Equal(got, []string{"local", "newest"}) {
		t.Fatalf("then it is told %v", got)
	}
	r.end(h.manualDriver, "members", "front", driver.Observed{}, nil)

	// Without the server, a member of this node that is down is taken out.
	r.node.Disconnected(r.conn)
	r.crash("local")
	if got := idsOf(h.last(t, "members").members); !slices.Equal(got, []string{"newest"}) {
		t.Fatalf("after a crash it is told %v", got)
	}
	r.end(h.manualDriver, "members", "front", driver.Observed{}, nil)
}

func TestTheMembersOfABalancerAreReported(t *testing.T) {
	t.Parallel()
	h := balancing{&manualDriver{}}
	r := newRig(t, h)
	r.connect(wanted("front", 1, processWork()))
	is := driver.Observed{ID: "front", Running: true, Started: r.clk.Now()}
	r.end(h.manualDriver, "start", "front", is, nil)
	is.Members = []mariposa.MemberStatus{{Backend: "web.80", Instance: "a", State: mariposa.MemberDrain, Idle: true}}
	h.changed(is)
	r.run()
	if st := r.wantState("front", mariposa.StateRunning); !slices.Equal(st.Members, is.Members) || st.Restarts != 0 {
		t.Errorf("reported: %+v", st)
	}
}

// The driver reports members when they change. Those of a balancer that was in quarantine are not
// lost: without them, no instance could ever be seen to have left it.
func TestABalancerKeepsItsMembersInQuarantine(t *testing.T) {
	t.Parallel()
	h := balancing{&manualDriver{}}
	r := newRig(t, h)
	r.connect(wanted("front", 1, processWork()))
	is := driver.Observed{ID: "front", Running: true, Started: r.clk.Now(), Members: []mariposa.MemberStatus{{Backend: "web.80", Instance: "a", State: mariposa.MemberUp}}}
	r.end(h.manualDriver, "start", "front", is, nil)
	r.wantState("front", mariposa.StateRunning)
	r.connect()
	if q := r.quarantine(); len(q) != 1 || q[0].ID != "front" {
		t.Fatalf("in quarantine: %+v", q)
	}
	r.connect(wanted("front", 1, processWork()))
	if st := r.wantState("front", mariposa.StateRunning); !slices.Equal(st.Members, is.Members) {
		t.Errorf("its members are %+v", st.Members)
	}
}

// Members that a driver has refused are not sent again to another balancer with the same id, which
// comes back after the store has gone back.
func TestRefusedMembersAreForgottenWithTheirBalancer(t *testing.T) {
	t.Parallel()
	h := balancing{&manualDriver{}}
	r := newRig(t, h)
	r.connect(wanted("front", 1, processWork()))
	r.end(h.manualDriver, "start", "front", driver.Observed{ID: "front", Running: true, Started: r.clk.Now()}, nil)
	r.wantState("front", mariposa.StateRunning)
	r.say(wire.Frame{Balance: &wire.Balance{ID: "front", Members: membersNamed("old")}})
	r.end(h.manualDriver, "members", "front", driver.Observed{}, errors.New("the disk is full"))
	r.connect() // the store does not know it any more
	r.connect(wanted("front", 1, processWork()))
	r.say(wire.Frame{Balance: &wire.Balance{ID: "front", Members: membersNamed("new")}})
	r.end(h.manualDriver, "members", "front", driver.Observed{}, nil)
	r.linger(time.Minute)
	if got := idsOf(h.last(t, "members").members); !slices.Equal(got, []string{"new"}) {
		t.Errorf("it is told %v", got)
	}
}

// After a restart of the agent, a balancer that runs is told its members, although nothing else of it
// changes, and also if its values do.
func TestABalancerThatIsTakenOverIsToldItsMembers(t *testing.T) {
	t.Parallel()
	for name, generation := range map[string]int64{"the same": 1, "updated": 2} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := balancing{&manualDriver{list: []driver.Observed{{ID: "front", Running: true, Labels: driver.Labels{Cluster: "ours", Incarnation: "first"}}}}}
			r := newRig(t, h)
			r.dial()
			r.say(wire.Frame{Welcome: &wire.Welcome{Epoch: 1, Cluster: "ours", Incarnation: r.inc, HeartbeatInterval: 5 * time.Second}})
			r.say(wire.Frame{Balance: &wire.Balance{ID: "front", Members: membersNamed("a")}}) // before its assignment
			items := []wire.Assignment{wanted("front", generation, processWork())}
			r.say(wire.Frame{Assign: &wire.Assign{Snapshot: true, Last: true, Items: items, Workloads: workloads(items)}})
			if generation > 1 {
				r.end(h.manualDriver, "update", "front", driver.Observed{ID: "front", Running: true}, nil)
			}
			if got := idsOf(h.last(t, "members").members); !slices.Equal(got, []string{"a"}) {
				t.Errorf("it is told %v", got)
			}
			r.end(h.manualDriver, "members", "front", driver.Observed{}, nil)
		})
	}
}
