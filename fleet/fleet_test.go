package fleet_test

import (
	"strings"
	"testing"
	"time"

	"mariposa"
	"mariposa/reason"
	"mariposa/store"
	"mariposa/wire"
)

func TestASessionBeginsWithAWelcomeAndASnapshot(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.project("p", manifestBody)
	r.commit(put("i1", instance("i1", "n1", "web")), put("i2", instance("i2", "n2", "web")),
		store.Write{Kind: mariposa.KindInstance, ID: "i1", Status: &mariposa.InstanceStatus{State: mariposa.StateRunning, Generation: 1}})
	p := r.connect("n1")
	got := p.heard()
	if len(got) != 3 || got[0].Welcome == nil || got[0].Welcome.Cluster != "memory" || got[0].Welcome.HeartbeatInterval != 5*time.Second || got[1].Provide == nil || got[2].Assign == nil {
		t.Fatalf("heard %+v", got)
	}
	a := got[2].Assign
	if !a.Snapshot || !a.Last || len(a.Items) != 1 {
		t.Fatalf("the snapshot is %+v", a)
	}
	it := a.Items[0]
	if it.ID != "i1" || it.Goal != mariposa.GoalRunning || it.Project != "shop" || it.Service != "web" || it.Status == nil || it.Status.State != mariposa.StateRunning ||
		a.Workloads[it.Workload] == nil {
		t.Errorf("assigned %+v", it)
	}
	spec, st := r.node("n1")
	if spec.Name != "n1" || spec.KeyHash == "" || strings.Contains(spec.KeyHash, "secret") || st.State != mariposa.NodeRunning || st.Epoch != 1 || st.Replica != "r1" || st.Capacity.Instances != 10 {
		t.Errorf("the node is %+v, %+v", spec, st)
	}
	for i, f := range got {
		if f.Seq != int64(i+1) {
			t.Errorf("frame %d has number %d", i+1, f.Seq)
		}
	}
}

func TestTheSnapshotWaitsUntilThePictureShowsTheSession(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	p, bye := r.try(hello("n1"))
	if bye != nil {
		t.Fatal(bye.Reason)
	}
	if err := p.session.Step(t.Context()); err != nil || len(p.heard()) != 1 {
		t.Fatalf("heard %+v, %v", p.heard(), err)
	}
	r.run()
	if n := len(p.heard()); n != 3 {
		t.Errorf("heard %d frames", n)
	}
}

func TestChangesOfTheSpecReachTheNodeAndNoOther(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.project("p", manifestBody)
	p, q := r.connect("n1"), r.connect("n2")
	r.commit(put("i1", instance("i1", "n1", "web")))
	p.report(statusItem("i1", mariposa.StateRunning))
	gone := instance("i1", "n1", "web")
	gone.Goal, gone.Generation = mariposa.GoalGone, 2
	r.commit(put("i1", gone))
	got := p.assigned()
	if len(got) != 2 || got[0].Goal != mariposa.GoalRunning || got[1].Goal != mariposa.GoalGone || got[1].Generation != 2 || got[1].Workload != "" {
		t.Errorf("the node got %+v; its own status must not be sent back", got)
	}
	if len(q.assigned()) != 0 {
		t.Errorf("the other got %+v", q.assigned())
	}
}

func TestWorkloadsAreSharedWhereNothingInThemDiffers(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.project("p", manifestBody)
	for _, id := range []string{"a", "b", "c"} {
		r.commit(put("w"+id, instance("w"+id, "n1", "web")), put("o"+id, instance("o"+id, "n1", "own")))
	}
	a := r.connect("n1").heard()[2].Assign
	if len(a.Items) != 6 || len(a.Workloads) != 4 {
		t.Fatalf("%d items with %d workloads; want 6 with 4", len(a.Items), len(a.Workloads))
	}
	for _, it := range a.Items {
		w := a.Workloads[it.Workload]
		if it.Service == "own" && w.Environment[0].Value != it.ID {
			t.Errorf("%s runs with %+v", it.ID, w.Environment)
		}
	}
}

func TestAFrameNeverOutgrowsWhatAgentsTake(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.project("p", "services:\n  own:\n    compute_type: dummy\n    environment: [\"ME={{.instance.uuid}}"+strings.Repeat("x", 100_000)+"\"]\n")
	var ws []store.Write
	for _, id := range ids(700) {
		ws = append(ws, put(id, instance(id, "n1", "own")))
	}
	r.commit(ws...)
	p := r.connect("n1")
	total, lasts := 0, 0
	for _, f := range p.heard() {
		b, err := wire.Encode(f)
		if err != nil || len(b) > wire.MaxFrame/2 {
			t.Errorf("a frame of %d bytes, %v", len(b), err)
		}
		if f.Assign != nil {
			total += len(f.Assign.Items)
			if f.Assign.Last {
				lasts++
			}
			for _, it := range f.Assign.Items {
				if f.Assign.Workloads[it.Workload] == nil {
					t.Fatalf("%s came without its workload", it.ID)
				}
			}
		}
	}
	if total != 700 || lasts != 1 {
		t.Errorf("%d instances, %d last frames", total, lasts)
	}
}

func TestWhatCannotBeDefinedIsNamedAndLeftAsItIs(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.project("p", manifestBody)
	lost := instance("i1", "n1", "web")
	lost.Number = 9
	r.commit(put("i1", lost), put("i2", instance("i2", "n1", "nosuch")), put("i3", instance("i3", "n1", "web")))
	got := r.connect("n1").assigned()
	if len(got) != 3 || got[0].Workload != "" || got[1].Workload != "" || got[2].Workload == "" {
		t.Errorf("the node got %+v", got)
	}
}

func TestTheSecondSessionOfANodeFencesTheFirst(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.project("p", manifestBody)
	r.commit(put("i1", instance("i1", "n1", "web")))
	first := r.connect("n1")
	second := r.connect("n1")
	if bye := first.heard()[len(first.heard())-1].Bye; bye == nil || bye.Final || !first.isClosed() {
		t.Error("the first got nothing")
	}
	first.report(statusItem("i1", mariposa.StateFailed))
	if st := r.status("i1"); st.State != "" {
		t.Errorf("the first still writes: %+v", st)
	}
	second.report(statusItem("i1", mariposa.StateRunning))
	if st := r.status("i1"); st.State != mariposa.StateRunning {
		t.Errorf("the second does not: %+v", st)
	}
	if _, st := r.node("n1"); st.Epoch != 2 || r.fleet.Sessions() != 1 {
		t.Errorf("epoch %d, %d sessions", st.Epoch, r.fleet.Sessions())
	}
}

func TestASessionThatAnotherReplicaTookOverIsFencedByTheStore(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.project("p", manifestBody)
	r.commit(put("i1", instance("i1", "n1", "web")))
	first := r.connect("n1")
	if _, err := r.store.Seize(t.Context(), "r2", "node/n1"); err != nil {
		t.Fatal(err)
	}
	first.report(statusItem("i1", mariposa.StateFailed))
	if st := r.status("i1"); st.State != "" || first.err == nil || !first.isClosed() {
		t.Errorf("wrote %+v, ended with %v", st, first.err)
	}
}

func TestRefusals(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.connect("n1")
	with := func(f func(*wire.Hello)) *wire.Hello {
		h := hello("n2")
		f(h)
		return h
	}
	for _, c := range []struct {
		name, says string
		hello      *wire.Hello
	}{
		{"an id that is none", "invalid node id", with(func(h *wire.Hello) { h.Node = "../x" })},
		{"no name", "name", with(func(h *wire.Hello) { h.Name = "" })},
		{"a key that can be guessed", "key", with(func(h *wire.Hello) { h.Key = "short" })},
		{"a name that is taken", "another node is named n1", with(func(h *wire.Hello) { h.Name = "n1" })},
		{"another key", "another key", with(func(h *wire.Hello) { h.Node, h.Name, h.Key = "n1", "n1", "another key of sixteen" })},
	} {
		_, bye := r.try(c.hello)
		if bye == nil || !bye.Final || !strings.Contains(bye.Reason, c.says) {
			t.Errorf("%s: %+v", c.name, bye)
		}
	}
	r.connect("n2")
	if _, bye := r.try(with(func(h *wire.Hello) { h.Name = "n1" })); bye == nil || !bye.Final {
		t.Errorf("a node took another's name on its second hello: %+v", bye)
	}
	if _, bye := r.try(with(func(h *wire.Hello) { h.Name = "renamed" })); bye != nil {
		t.Errorf("a free name was refused: %+v", bye)
	}
	if r.fleet.Sessions() != 2 {
		t.Errorf("%d sessions", r.fleet.Sessions())
	}
}

func TestANodeIsUnknownElevenSecondsAfterItsLastHeartbeatAndRunsAgainOnReturn(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	p := r.connect("n1")
	for range 10 { // as long as it sends heartbeats, it is running
		r.clk.Pass(5 * time.Second)
		p.say(wire.Frame{Heartbeat: &wire.Heartbeat{}})
		r.run()
		r.fleet.Tick(t.Context())
	}
	if _, st := r.node("n1"); st.State != mariposa.NodeRunning {
		t.Fatalf("it is %+v", st)
	}
	r.pass(11 * time.Second)
	if _, st := r.node("n1"); st.State != mariposa.NodeRunning {
		t.Fatal("it was judged before its time")
	}
	r.clk.Pass(time.Second)
	r.fleet.Tick(t.Context())
	r.run()
	_, st := r.node("n1")
	if st.State != mariposa.NodeUnknown || reason.Sentence(st.Reason) != "no heartbeat since 00:00:50 UTC" || st.Since != r.clk.Now() || !p.isClosed() {
		t.Fatalf("it is %+v", st)
	}
	r.clk.Pass(time.Minute)
	r.connect("n1")
	if _, st := r.node("n1"); st.State != mariposa.NodeRunning || st.Reason != nil || st.Since != r.clk.Now() {
		t.Errorf("it is %+v", st)
	}
}

func TestNobodyIsJudgedWithinALifetimeOfAFreshFleet(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.connect("n1")
	r.clk.Pass(time.Hour)
	r.boot("r2")
	r.fleet.Tick(t.Context())
	r.pass(11 * time.Second)
	if _, st := r.node("n1"); st.State != mariposa.NodeRunning {
		t.Fatalf("it is %+v", st)
	}
	r.clk.Pass(time.Second)
	r.fleet.Tick(t.Context())
	if _, st := r.node("n1"); st.State != mariposa.NodeUnknown {
		t.Fatalf("it is %+v", st)
	}
}

func TestNobodyIsJudgedForAnOutageOfTheStore(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	p := r.connect("n1")
	r.store.setFault(store.ErrUnavailable, nil)
	p.session.End("a hiccup of the network")
	for range 6 {
		r.clk.Pass(5 * time.Second)
		if _, bye := r.try(hello("n1")); bye == nil || bye.Final {
			t.Fatalf("without a store: %+v", bye)
		}
	}
	r.store.setFault(nil, nil)
	r.fleet.Tick(t.Context()) // before its next try
	if _, st := r.node("n1"); st.State != mariposa.NodeRunning {
		t.Errorf("it is %+v, and it was not its fault", st)
	}
}

func TestANodeThatPlaysDeadIsRefusedAndUnknown(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	p := r.connect("n1")
	r.amend("n1", func(s *mariposa.NodeSpec) { s.Lost = true })
	if !p.isClosed() {
		t.Error("its session goes on")
	}
	r.fleet.Tick(t.Context())
	r.run()
	if _, st := r.node("n1"); st.State != mariposa.NodeUnknown || !st.Reason.Is(mariposa.ReasonPlaysDead) {
		t.Errorf("it is %+v", st)
	}
	if _, bye := r.try(hello("n1")); bye == nil || bye.Final {
		t.Errorf("on return: %+v; it may come again later", bye)
	}
	r.amend("n1", func(s *mariposa.NodeSpec) { s.Lost = false })
	r.connect("n1")
	if _, st := r.node("n1"); st.State != mariposa.NodeRunning {
		t.Errorf("it is %+v", st)
	}
}

func TestASessionEndsWhenItsNodeIsRemoved(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	p := r.connect("n1")
	r.commit(store.Write{Kind: mariposa.KindNode, ID: "n1", Delete: true})
	if !p.isClosed() || r.fleet.Sessions() != 0 {
		t.Error("its session goes on")
	}
}

func TestWhatCannotBeWrittenNowIsWrittenLater(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.project("p", manifestBody)
	r.commit(put("i1", instance("i1", "n1", "web")), put("i2", instance("i2", "n1", "web")))
	p := r.connect("n1")
	r.store.setFault(store.ErrUnavailable, nil)
	p.report(statusItem("i1", mariposa.StateRunning))
	p.say(wire.Frame{Report: &wire.Report{Inventory: true, Quarantined: []mariposa.Quarantined{{ID: "q"}}}})
	r.run()
	p.report(statusItem("i1", mariposa.StateFailed), statusItem("i2", mariposa.StateRunning))
	if r.status("i1").State != "" || p.isClosed() {
		t.Fatal("an outage ends no session")
	}
	r.store.setFault(nil, nil)
	r.clk.Pass(time.Second)
	r.run()
	_, st := r.node("n1")
	if r.status("i1").State != mariposa.StateFailed || r.status("i2").State != mariposa.StateRunning || len(st.Quarantined) != 1 {
		t.Errorf("i1 %+v, i2 %+v, node %+v", r.status("i1"), r.status("i2"), st)
	}
}

func TestTheNextTryIsTakenBackWhenTheSessionEnds(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.project("p", manifestBody)
	r.commit(put("i1", instance("i1", "n1", "web")))
	p := r.connect("n1")
	r.store.setFault(store.ErrUnavailable, nil)
	p.report(statusItem("i1", mariposa.StateRunning))
	p.session.End("gone")
	r.clk.Pass(0)
	left := r.clk.Waiting()
	if left != 0 {
		t.Errorf("%d timers are left", left)
	}
}

func TestMovesThatCannotBeAreIgnored(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.project("p", manifestBody)
	r.commit(put("i1", instance("i1", "n1", "web")))
	p := r.connect("n1")
	p.report(statusItem("i1", mariposa.StateRunning))
	p.report(statusItem("i1", mariposa.StateFailed))
	for _, s := range []mariposa.State{mariposa.StateDraining, mariposa.StateUnknown, mariposa.StatePending, ""} {
		p.report(statusItem("i1", s))
		if st := r.status("i1"); st.State != mariposa.StateFailed {
			t.Errorf("%q followed failed: %+v", s, st)
		}
	}
	p.report(statusItem("i1", mariposa.StateDestroyed))
	p.report(statusItem("i1", mariposa.StateRunning))
	if st := r.status("i1"); st.State != mariposa.StateDestroyed || p.isClosed() {
		t.Errorf("it is %+v", st)
	}
}

func TestTwoMovesBeforeTheFeedHasCaughtUpAreHeldAgainstEachOther(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.project("p", manifestBody)
	r.commit(put("i1", instance("i1", "n1", "web")))
	p := r.connect("n1")
	for _, s := range []mariposa.State{mariposa.StateRunning, mariposa.StateFailed, mariposa.StateDraining} {
		p.say(wire.Frame{Report: &wire.Report{Items: []wire.Status{statusItem("i1", s)}}})
		if err := p.session.Step(t.Context()); err != nil { // the picture does not change
			t.Fatal(err)
		}
	}
	if st := r.status("i1"); st.State != mariposa.StateFailed {
		t.Errorf("it is %+v", st)
	}
}

func TestTheSameSaidTwiceIsWrittenOnce(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.project("p", manifestBody)
	r.commit(put("i1", instance("i1", "n1", "web")))
	p := r.connect("n1")
	p.report(statusItem("i1", mariposa.StateRunning))
	at := r.pic.Revision()
	since := r.status("i1").Since
	r.clk.Pass(time.Second)
	p.report(statusItem("i1", mariposa.StateRunning))
	if r.pic.Revision() != at {
		t.Error("it was written again")
	}
	more := statusItem("i1", mariposa.StateRunning)
	more.Status.Restarts = 1
	p.report(more)
	if st := r.status("i1"); st.Restarts != 1 || st.Since != since {
		t.Errorf("it is %+v; it was in this state all along", st)
	}
}

func TestANodeSpeaksForItsOwnInstancesAlone(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.project("p", manifestBody)
	r.commit(put("i1", instance("i1", "n1", "web")))
	r.connect("n1")
	p := r.connect("n2")
	p.report(statusItem("i1", mariposa.StateFailed), statusItem("nobody", mariposa.StateRunning))
	if st := r.status("i1"); st.State != "" || p.isClosed() {
		t.Errorf("it is %+v", st)
	}
}

// debts creates n orphaned instances on n1 with their claims.
func (r *rig) debts(n int) []string {
	r.t.Helper()
	all := ids(n)
	u := store.Unit{}
	for _, id := range all {
		spec := instance(id, "n1", "web")
		spec.Goal, spec.Generation, spec.Orphaned, spec.Project = mariposa.GoalGone, 2, true, "deleted"
		u.Writes = append(u.Writes, put(id, spec))
		u.Claims = append(u.Claims, store.Claim{Node: "n1", Take: mariposa.Resources{Instances: 1, Memory: spec.Memory}})
	}
	u.Claims = append(u.Claims, store.Claim{Node: "n1", Take: mariposa.Resources{Instances: 2, Memory: 5 << 20}}) // of another instance
	if res := r.store.Store.Commit(r.t.Context(), u)[0]; res.Err != nil {
		r.t.Fatal(res.Err)
	}
	r.run()
	return all
}

func (r *rig) wantLedger(want mariposa.Resources) {
	r.t.Helper()
	got, err := r.store.Ledger(r.t.Context())
	if err != nil || got["n1"] != want {
		r.t.Errorf("the ledger says %+v, %v; want %+v", got["n1"], err, want)
	}
}

func TestADebtIsSettledWhenItIsDestroyed(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.debts(3)
	p := r.connect("n1")
	if got := p.assigned(); len(got) != 3 || got[0].Goal != mariposa.GoalGone || got[0].Name == "" {
		t.Fatalf("the node got %+v", got)
	}
	p.report(statusItem("i0000", mariposa.StateStopping), statusItem("i0001", mariposa.StateDestroyed))
	p.report(statusItem("i0001", mariposa.StateDestroyed))
	if r.pic.Instances.Len() != 2 {
		t.Errorf("%d are left", r.pic.Instances.Len())
	}
	r.wantLedger(mariposa.Resources{Instances: 4, Memory: 7 << 20})
}

func TestADebtGivesItsClaimBackOnceHoweverOftenItIsTried(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.project("p", manifestBody)
	all := r.debts(3)
	r.commit(put("z", instance("z", "n1", "web")))
	p := r.connect("n1")
	// The units of the orphaned instances are stored; the combined one is not.
	r.store.setFault(store.ErrUnavailable, func(u store.Unit) bool { return u.Writes[0].ID == "z" })
	items := []wire.Status{statusItem("z", mariposa.StateRunning)}
	for _, id := range all {
		items = append(items, statusItem(id, mariposa.StateDestroyed))
	}
	p.say(wire.Frame{Report: &wire.Report{Items: items}})
	for range 3 { // the picture does not change meanwhile
		if err := p.session.Step(t.Context()); err != nil {
			t.Fatal(err)
		}
		r.clk.Pass(time.Second)
	}
	r.store.setFault(nil, nil)
	r.run()
	r.clk.Pass(time.Second)
	r.run()
	r.wantLedger(mariposa.Resources{Instances: 2, Memory: 5 << 20})
	if st := r.status("z"); st.State != mariposa.StateRunning {
		t.Errorf("the other is %+v", st)
	}
}

func TestADebtGivesItsClaimBackOnceThoughNobodyLearnsOfIt(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.debts(2)
	p := r.connect("n1")
	r.store.lies = true // it commits but reports a failure
	r.store.setFault(store.ErrUnavailable, nil)
	p.say(wire.Frame{Report: &wire.Report{Items: []wire.Status{statusItem("i0000", mariposa.StateDestroyed)}}})
	for range 3 {
		if err := p.session.Step(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	r.store.setFault(nil, nil)
	r.clk.Pass(time.Second)
	if err := p.session.Step(t.Context()); err != nil {
		t.Fatal(err)
	}
	r.wantLedger(mariposa.Resources{Instances: 3, Memory: 6 << 20})
	r.run()
	if r.pic.Instances.Len() != 1 || p.isClosed() {
		t.Errorf("%d are left", r.pic.Instances.Len())
	}
}

func TestADebtThatWasKnownAsDestroyedIsSettledToo(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.debts(1)
	r.commit(store.Write{Kind: mariposa.KindInstance, ID: "i0000", Status: &mariposa.InstanceStatus{State: mariposa.StateDestroyed, Generation: 1}})
	p := r.connect("n1")
	p.report(statusItem("i0000", mariposa.StateDestroyed))
	if r.pic.Instances.Len() != 0 {
		t.Error("its record will never be deleted")
	}
	r.wantLedger(mariposa.Resources{Instances: 2, Memory: 5 << 20})
}

// A node that connects again with the same instances in quarantine is no news, also if its
// agent has restarted and a state has changed; other instances are.
func TestAnUnchangedQuarantineIsNoEvent(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	events := func() (n int) {
		all, err := r.store.Changes(t.Context(), 0, 1000)
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range all {
			if c.Event.Kind == "node.quarantine" {
				n++
			}
		}
		return n
	}
	first := r.clk.Now()
	report := func(all ...mariposa.Quarantined) {
		p := r.connect("n1")
		r.run()
		p.say(wire.Frame{Report: &wire.Report{Inventory: true, Quarantined: all}})
		r.run()
		r.pass(time.Second)
	}
	report(mariposa.Quarantined{ID: "q1", State: mariposa.StateRunning, Since: first})
	report(mariposa.Quarantined{ID: "q1", State: mariposa.StateRunning, Since: first})
	report(mariposa.Quarantined{ID: "q1", State: mariposa.StateStopped, Since: r.clk.Now()})
	if n := events(); n != 1 {
		t.Errorf("%d events about the same instances", n)
	}
	if _, st := r.node("n1"); len(st.Quarantined) != 1 || st.Quarantined[0].State != mariposa.StateStopped || !st.Quarantined[0].Since.Equal(first) {
		t.Errorf("the node has %+v", st.Quarantined)
	}
	report(mariposa.Quarantined{ID: "q1", State: mariposa.StateStopped}, mariposa.Quarantined{ID: "q2"})
	report()
	if n := events(); n != 3 {
		t.Errorf("%d events, want 3", n)
	}
}

func TestTombstonesAreSentForWhatMayGo(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.project("p", manifestBody)
	r.commit(put("i1", instance("i1", "n1", "web")))
	p := r.connect("n1")
	p.say(wire.Frame{Report: &wire.Report{Inventory: true, Quarantined: []mariposa.Quarantined{{ID: "q1", Reason: "this store does not know it"}}}})
	r.run()
	if _, st := r.node("n1"); len(st.Quarantined) != 1 || st.Quarantined[0].ID != "q1" || st.State != mariposa.NodeRunning {
		t.Fatalf("the node is %+v", st)
	}
	r.amend("n1", func(s *mariposa.NodeSpec) { s.Purge = []string{"q1", "i1"} })
	var stones []string
	for _, it := range p.assigned() {
		if it.Goal == mariposa.GoalGone && it.Name == "" {
			stones = append(stones, it.ID)
		}
	}
	if len(stones) != 1 || stones[0] != "q1" {
		t.Errorf("tombstones for %v; i1 is known, so it is none", stones)
	}
	p.say(wire.Frame{Report: &wire.Report{Inventory: true}})
	r.run()
	if _, st := r.node("n1"); len(st.Quarantined) != 0 {
		t.Errorf("the node is %+v", st)
	}
	again := r.connect("n1").assigned()
	if len(again) != 2 || again[1].ID != "q1" {
		t.Errorf("the next session got %+v", again)
	}
}

func TestAGapOrAFrameOutOfPlaceEndsTheSession(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name string
		say  func(*peer)
	}{
		{"a gap", func(p *peer) { p.seq++; p.say(wire.Frame{Report: &wire.Report{}}) }},
		{"a gap before a heartbeat", func(p *peer) { p.seq++; p.say(wire.Frame{Heartbeat: &wire.Heartbeat{}}) }},
		{"a second hello", func(p *peer) { p.say(wire.Frame{Hello: hello("n1")}) }},
		{"a server's word", func(p *peer) { p.say(wire.Frame{Assign: &wire.Assign{}}) }},
		{"a goodbye", func(p *peer) { p.say(wire.Frame{Bye: &wire.Bye{Reason: "night"}}) }},
	} {
		r := newRig(t)
		p := r.connect("n1")
		c.say(p)
		r.run()
		if p.err == nil || !p.isClosed() || r.fleet.Sessions() != 0 {
			t.Errorf("%s: the session goes on", c.name)
		}
	}
	r := newRig(t)
	p := r.connect("n1")
	p.say(wire.Frame{Report: &wire.Report{}})
	p.seq-- // the same once more
	p.say(wire.Frame{Report: &wire.Report{}})
	r.run()
	if p.err != nil || len(p.heard()) != 3 {
		t.Errorf("a doubled frame: %v, %d frames", p.err, len(p.heard()))
	}
}

func TestLogsOfANodeThatIsNotThereAreAClearError(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	_, err := r.fleet.Logs(t.Context(), "n1", "i1", mariposa.LogOptions{Tail: 10})
	if mariposa.CodeOf(err) != mariposa.Unavailable || !strings.Contains(err.Error(), "n1, which is not connected") {
		t.Errorf("logs: %v", err)
	}
	if _, err := r.fleet.Usage(t.Context(), "n1", "i1"); mariposa.CodeOf(err) != mariposa.Unavailable {
		t.Errorf("usage: %v", err)
	}
	if err := r.fleet.Crash(t.Context(), "n1", wire.Crash{Instance: "i1"}); mariposa.CodeOf(err) != mariposa.Unavailable || !strings.Contains(err.Error(), "not connected") {
		t.Errorf("crash: %v", err)
	}
}

func TestACrashIsAskedForOnTheNode(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	p := r.connect("n1")
	if err := r.fleet.Crash(t.Context(), "n1", wire.Crash{Instance: "i1"}); err != nil {
		t.Fatal(err)
	}
	frames := p.heard()
	if last := frames[len(frames)-1]; last.Crash == nil || last.Crash.Instance != "i1" {
		t.Errorf("asked %+v", last)
	}
}

func TestFactsOfTheMachineAreStoredOnceAndWhenTheyChange(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	h := hello("n1")
	h.Machine = &mariposa.Machine{Kernel: "6.1\x1b[31m", Disks: []mariposa.Disk{{Name: "sda", Size: 1}}}
	p, bye := r.try(h)
	if bye != nil {
		t.Fatal(bye)
	}
	r.run()
	if _, st := r.node("n1"); st.Machine == nil || st.Machine.Kernel != "6.1[31m" || len(st.Machine.Disks) != 1 {
		t.Fatalf("stored %+v", st.Machine)
	}
	at, err := r.store.Revision(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	p.say(wire.Frame{Heartbeat: &wire.Heartbeat{}})
	p.say(wire.Frame{Report: &wire.Report{Machine: h.Machine}}) // the same
	r.run()
	if now, err := r.store.Revision(t.Context()); err != nil || now != at {
		t.Errorf("something was written: revision %d after %d, %v", now, at, err)
	}
	p.say(wire.Frame{Report: &wire.Report{Machine: &mariposa.Machine{Kernel: "6.2"}}})
	r.run()
	if _, st := r.node("n1"); st.Machine == nil || st.Machine.Kernel != "6.2" || st.State != mariposa.NodeRunning {
		t.Errorf("stored %+v", st.Machine)
	}
	r.pass(12 * time.Second)
	if _, st := r.node("n1"); st.State != mariposa.NodeUnknown || st.Machine == nil {
		t.Errorf("an unknown node: %+v", st)
	}
}

func TestAnAgentOfAnotherReleaseIsToldWhatToUpgradeAndMayTryAgain(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.fleet.Release = "v2"
	for newer, older := range map[int]string{1: "upgrade the server", -1: "upgrade the agent"} {
		h := hello("n1")
		h.Protocol, h.Release = wire.Protocol+newer, "v3"
		_, bye := r.try(h)
		if bye == nil || bye.Final || !strings.Contains(bye.Reason, "the agent (v3)") || !strings.Contains(bye.Reason, "this server (v2)") || !strings.HasSuffix(bye.Reason, older) {
			t.Errorf("got %+v", bye)
		}
	}
	h := hello("n1")
	h.Protocol = 1 // an agent that does not send its release
	if _, bye := r.try(h); bye == nil || bye.Final || !strings.Contains(bye.Reason, "the agent (an unknown release) uses protocol 1") {
		t.Errorf("got %+v", bye)
	}
	r.connect("n1")
}

func TestANodeThatAnnouncedARebootIsAwayUntilItReturns(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	p := r.connect("n1")
	reboot := func() {
		p.say(wire.Frame{Bye: &wire.Bye{Reason: "the machine is shutting down", Reboot: true}})
		r.run()
		_, st := r.node("n1")
		if st.State != mariposa.NodeRebooting || st.Since != r.clk.Now() || !p.isClosed() || !strings.HasPrefix(reason.Sentence(st.Reason), "announced a reboot at ") {
			t.Fatalf("it is %+v", st)
		}
	}
	reboot()
	began := r.clk.Now()
	changes, err := r.store.Changes(t.Context(), 0, 0)
	if last := changes[len(changes)-1].Event; err != nil || last.Kind != "node.rebooting" || !last.Reason.Is(mariposa.ReasonReboots) {
		t.Errorf("the last event is %+v, %v", last, err)
	}
	r.pass(10 * time.Minute)
	r.wantNode("n1", mariposa.NodeRebooting)
	r.pass(2 * time.Second)
	r.wantNode("n1", mariposa.NodeUnknown)
	if _, st := r.node("n1"); st.Since != began { // its instances have been away since then
		t.Errorf("away since %s, not %s", st.Since, began)
	}
	p = r.connect("n1")
	r.wantNode("n1", mariposa.NodeRunning)
	reboot()
	r.pass(time.Minute)
	r.connect("n1")
	r.wantNode("n1", mariposa.NodeRunning)
	if _, st := r.node("n1"); st.Reason != nil {
		t.Errorf("it is %+v", st)
	}
}
