package fleet_test

import (
	"strings"
	"testing"
	"time"

	"mariposa"
	"mariposa/fleet"
	"mariposa/store"
	"mariposa/wire"
)

// renew holds the lease of another replica for six seconds.
func (r *rig) renew(replica string) {
	r.t.Helper()
	if _, err := r.store.Hold(r.t.Context(), replica, 6*time.Second, store.ReplicaPrefix+replica); err != nil {
		r.t.Fatal(err)
	}
}

// passWith lets time pass while another replica renews its lease.
func (r *rig) passWith(replica string, d time.Duration) {
	r.t.Helper()
	for ; d > 0; d -= 2500 * time.Millisecond {
		r.renew(replica)
		r.pass(2500 * time.Millisecond)
	}
}

// tickWithStall runs a tick whose read of the leases takes a while.
func (r *rig) tickWithStall(d time.Duration) {
	r.t.Helper()
	r.store.slow = func() {
		r.store.slow = nil
		r.clk.Pass(d)
	}
	r.fleet.Tick(r.t.Context())
	r.run()
}

func (r *rig) wantNode(id string, want mariposa.NodeState) {
	r.t.Helper()
	if _, st := r.node(id); st.State != want {
		r.t.Fatalf("%s is %s, not %s: %+v", id, st.State, want, st.Reason)
	}
}

// While the store stalls, no replica can renew its lease, and no node can connect.
func TestAStalledStoreMakesNoNodeUnknown(t *testing.T) {
	t.Parallel()
	for _, stall := range []time.Duration{6 * time.Second, 17 * time.Second, 20 * time.Second, 10 * time.Minute} {
		r := newRig(t)
		r.boot("r2")
		r.connect("n2")
		r.boot("r1")
		r.passWith("r2", 10*time.Second)
		r.tickWithStall(stall)
		r.pass(2 * time.Second) // until the other replica has renewed its lease
		r.passWith("r2", 20*time.Second)
		r.wantNode("n2", mariposa.NodeRunning)
		r.pass(14 * time.Second) // its lease lapses, and its nodes get one lifetime
		r.wantNode("n2", mariposa.NodeRunning)
		r.pass(10 * time.Second)
		r.wantNode("n2", mariposa.NodeUnknown)
	}
}

// A node connects to a replica that has just come back, while this one still reads that it
// is gone: the node has just shown that it lives.
func TestANodeOfAReplicaThatHasJustReturnedIsNotUnknown(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.connect("n1")
	r.boot("r1")
	_, st := r.node("n1")
	moveTo := func(replica string) {
		next := *st
		next.Replica = replica
		next.Epoch++
		r.commit(store.Write{Kind: mariposa.KindNode, ID: "n1", Status: &next, Event: mariposa.Event{Kind: "node.running", Node: "n1"}})
	}
	moveTo("r2")
	r.pass(8 * time.Second) // r2 is gone
	moveTo("r2")
	r.pass(8 * time.Second)
	r.wantNode("n1", mariposa.NodeRunning)
	r.renew("r2")
	r.pass(16 * time.Second)
	r.wantNode("n1", mariposa.NodeRunning)
	r.pass(5 * time.Second)
	r.wantNode("n1", mariposa.NodeUnknown)
}

// The replica of a node is dead, and the node tries to connect to this one, which cannot open
// sessions for a while: its database was away, or too many nodes connect at once. The node
// lives, so it does not become unknown.
func TestANodeThatTriesToConnectIsNotUnknown(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.boot("r2")
	r.connect("n1")
	r.boot("r1")
	r.passWith("r2", 5*time.Second)
	for range 6 { // r2 is dead
		r.pass(5 * time.Second)
		r.fleet.NoteAttempt(fleet.Admission{Node: "n1"})
	}
	r.wantNode("n1", mariposa.NodeRunning)
	r.pass(30 * time.Second)
	r.wantNode("n1", mariposa.NodeUnknown)
}

// A replica that was dead before the stall is judged for the time outside of it only.
func TestTheTimeOfAnOutageDoesNotCount(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.boot("r2")
	r.connect("n2")
	r.boot("r1")
	r.passWith("r2", 5*time.Second)
	r.pass(10 * time.Second) // gone for six seconds or more
	r.tickWithStall(20 * time.Second)
	r.wantNode("n2", mariposa.NodeRunning)
	r.pass(10 * time.Second)
	r.wantNode("n2", mariposa.NodeRunning)
	r.pass(5 * time.Second)
	r.wantNode("n2", mariposa.NodeUnknown)
}

func TestAReplicaThatWasStoppedJudgesNobodyForALifetime(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	p := r.connect("n1")
	r.pass(5 * time.Second)
	p.session.End("the connection was lost meanwhile")
	r.clk.Pass(time.Hour) // SIGSTOP
	r.fleet.Tick(t.Context())
	r.pass(10 * time.Second)
	r.wantNode("n1", mariposa.NodeRunning)
	r.pass(5 * time.Second)
	r.wantNode("n1", mariposa.NodeUnknown)
}

// A tick also writes, for example that a storm began. While that takes long, no node can
// connect.
func TestTheTimeOfASlowTickDoesNotCount(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.project("p", manifestBody)
	late := r.connect("n1")
	for _, node := range []string{"n2", "n3", "n4"} {
		r.commit(put("i-"+node, instance("i-"+node, node, "web")))
		r.connect(node).session.End("the connection was lost")
	}
	r.pass(11 * time.Second)
	r.commit(put("i-n1", instance("i-n1", "n1", "web")))
	late.say(wire.Frame{Heartbeat: &wire.Heartbeat{}})
	late.session.End("the connection was lost, too")
	stalls := 0
	r.store.slowCommit = func(u store.Unit) {
		if u.Writes[0].Kind == mariposa.KindSettings && stalls == 0 {
			stalls++
			r.clk.Pass(10 * time.Second)
		}
	}
	r.pass(9 * time.Second)
	if stalls != 1 {
		t.Fatal("no storm began")
	}
	r.wantNode("n2", mariposa.NodeUnknown)
	r.wantNode("n1", mariposa.NodeRunning)
	r.pass(15 * time.Second)
	r.wantNode("n1", mariposa.NodeUnknown)
}

// A replica whose store does not answer opens no sessions, so that agents need not wait for
// it. It does again once the store answers.
func TestAReplicaWithoutItsStoreOpensNoSessions(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.fleet.Tick(t.Context())
	r.store.slow = func() {
		r.store.slow = nil
		if r.fleet.Stalled() {
			t.Error("a store that has just been asked counts as stalled")
		}
		r.clk.Pass(1100 * time.Millisecond)
		if !r.fleet.Stalled() {
			t.Error("the store does not answer, and that is not noticed")
		}
		if _, bye := r.try(hello("n1")); bye == nil || bye.Final || !strings.Contains(bye.Reason, "try another server") {
			t.Errorf("the agent hears %+v", bye)
		}
	}
	r.fleet.Tick(t.Context())
	if r.fleet.Stalled() {
		t.Error("the store answers, and that is not noticed")
	}
	r.connect("n1")
}

// A session that waits for the store still answers heartbeats: its agent stays.
func TestHeartbeatsAreAnsweredWhileTheStoreStalls(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	p := r.connect("n1")
	r.fleet.Tick(t.Context())
	before := len(p.heard())
	p.say(wire.Frame{Heartbeat: &wire.Heartbeat{}}) // Step is not called
	if got := p.heard(); len(got) != before+1 || got[before].Heartbeat == nil || got[before].Heartbeat.Sent != int64(before) {
		t.Errorf("got %+v", got[before:])
	}
}

// Whatever another replica concludes, the replica with the session knows better.
func TestAConnectedNodeIsNotUnknownForLong(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	p := r.connect("n1")
	unknown := func() {
		_, st := r.node("n1")
		next := *st
		next.State, next.Reason = mariposa.NodeUnknown, &mariposa.Reason{Code: mariposa.ReasonNotSeen, Since: r.clk.Now()}
		r.commit(store.Write{Kind: mariposa.KindNode, ID: "n1", Status: &next, Event: mariposa.Event{Kind: "node.unknown", Node: "n1"}})
	}
	unknown()
	r.wantNode("n1", mariposa.NodeRunning)
	if _, st := r.node("n1"); st.Reason != nil || st.Since != r.clk.Now() {
		t.Errorf("its status is %+v", st)
	}
	changes, err := r.store.Changes(t.Context(), 0, 0)
	if err != nil || changes[len(changes)-1].Event.Kind != "node.running" {
		t.Errorf("the last event is %+v, %v", changes[len(changes)-1].Event, err)
	}
	r.store.setFault(store.ErrUnavailable, nil)
	unknown()
	r.wantNode("n1", mariposa.NodeUnknown)
	r.store.setFault(nil, nil)
	r.clk.Pass(time.Second)
	r.run()
	r.wantNode("n1", mariposa.NodeRunning)
	p.say(wire.Frame{Report: &wire.Report{Inventory: true, Quarantined: []mariposa.Quarantined{{ID: "x"}}}})
	unknown() // together with another change of the status
	r.wantNode("n1", mariposa.NodeRunning)
	if _, st := r.node("n1"); len(st.Quarantined) != 1 {
		t.Errorf("its status is %+v", st)
	}
	p.session.End("the connection ended")
	unknown()
	r.wantNode("n1", mariposa.NodeUnknown)
}

// A hello that waited long for the store takes the node over from the session that the
// agent has opened elsewhere meanwhile. That session ends, so that the agent opens another
// one; nobody would notice otherwise that it can no longer store anything.
func TestASessionEndsOnceAnotherOneIsStored(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	p := r.connect("n1")
	l, err := r.store.Seize(t.Context(), "r2", "node/n1")
	if err != nil {
		t.Fatal(err)
	}
	_, st := r.node("n1")
	next := *st
	next.Epoch, next.Replica = l.Epoch, "r2"
	r.commit(store.Write{Kind: mariposa.KindNode, ID: "n1", Status: &next, Event: mariposa.Event{Kind: "node.running", Node: "n1"}})
	r.run()
	if !p.isClosed() {
		t.Fatal("the former session goes on")
	}
}

// A hello that waited for the store until the lease lapsed opens no session.
func TestAReplicaWithoutItsLeaseFinishesNoHello(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.fleet.KeepLease(6 * time.Second)
	r.store.slowSeize = func() { r.clk.Pass(7 * time.Second) }
	if _, bye := r.try(hello("n1")); bye == nil || bye.Final || !strings.Contains(bye.Reason, "try another server") {
		t.Fatalf("the agent hears %+v", bye)
	}
	if n := r.fleet.Sessions(); n != 0 {
		t.Errorf("%d sessions are open", n)
	}
	r.store.slowSeize = nil
	r.fleet.KeepLease(6 * time.Second)
	r.connect("n1")
}

// The others consider a replica dead that cannot renew its lease: its agents must move.
func TestAReplicaWithoutItsLeaseEndsItsSessions(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.fleet.KeepLease(6 * time.Second)
	p := r.connect("n1")
	for range 5 {
		r.clk.Pass(5 * time.Second)
		r.fleet.KeepLease(6 * time.Second)
	}
	if p.isClosed() {
		t.Fatal("its session has ended")
	}
	r.clk.Pass(6 * time.Second)
	if !p.isClosed() {
		t.Fatal("its session goes on")
	}
	if _, bye := r.try(hello("n1")); bye == nil || bye.Final || !strings.Contains(bye.Reason, "database") {
		t.Fatalf("it may connect: %+v", bye)
	}
	r.fleet.KeepLease(6 * time.Second)
	r.connect("n1")
}

// A store that can only be read renews no lease and opens no session, but it answers. The
// nodes are not to blame.
func TestNobodyIsJudgedWhileLeasesCannotBeRenewed(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.fleet.KeepLease(6 * time.Second)
	r.connect("n1")
	state := func() mariposa.NodeState { return r.pic.Nodes.Get("n1").Status().State }
	r.pass(30 * time.Second) // the lease lapses
	if got := state(); got != mariposa.NodeRunning {
		t.Fatalf("without a lease, the node is %s", got)
	}
	for range 10 { // the lease is renewed, and the node is on its way
		r.fleet.KeepLease(6 * time.Second)
		r.pass(time.Second)
	}
	if got := state(); got != mariposa.NodeRunning {
		t.Fatalf("before it could connect, the node is %s", got)
	}
	for range 3 {
		r.fleet.KeepLease(6 * time.Second)
		r.pass(time.Second)
	}
	if got := state(); got != mariposa.NodeUnknown {
		t.Errorf("the node that does not connect is %s", got)
	}
}
