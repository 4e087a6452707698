package agent_test

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"mariposa"
	"mariposa/driver"
	"mariposa/wire"
)

// A node waits for a welcome a little longer each time, up to a limit. A welcome makes it
// as impatient as it was.
func TestANodeHangsUpWhenItIsNotWelcomed(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	hangsUpAfter := func(limit time.Duration) {
		t.Helper()
		c := r.dial()
		r.pass(limit - 100*time.Millisecond)
		if c.isClosed() {
			t.Fatal("it lost patience too early")
		}
		r.pass(100 * time.Millisecond)
		if !c.isClosed() {
			t.Fatal("it still waits for a welcome")
		}
	}
	for _, limit := range []time.Duration{2500 * time.Millisecond, 5 * time.Second, 10 * time.Second, 10 * time.Second} {
		hangsUpAfter(limit)
	}
	r.connect(wanted("a", 1, dummyWork()))
	r.wantState("a", mariposa.StateRunning)
	hangsUpAfter(2500 * time.Millisecond)
}

func TestASilentServerIsLeft(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	c := r.connect(wanted("a", 1, dummyWork()))
	r.linger(time.Minute) // the session lasts as long as the server responds
	if c.isClosed() {
		t.Fatal("it left a server that answers")
	}
	r.pass(20 * time.Second)
	if !c.isClosed() {
		t.Fatal("it stays with a server that is silent")
	}
	if o, _ := r.real("a"); !o.Running {
		t.Error("its instances do not run on")
	}
}

func TestASilentServerIsLeftAlsoIfTheClockIsSetBack(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	c := r.connect()
	r.linger(20 * time.Second)
	r.clk.Set(-time.Hour)
	r.pass(20 * time.Second)
	if !c.isClosed() {
		t.Error("it stays with a server that is silent")
	}
}

// The control plane considers a node unknown that has been silent for 11 seconds.
func TestACutConnectionIsLeftBeforeTheNodeIsUnknown(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	c := r.connect()
	r.linger(20 * time.Second)
	r.pass(8900 * time.Millisecond)
	if c.isClosed() {
		t.Fatal("it left a server that missed one heartbeat")
	}
	r.pass(200 * time.Millisecond)
	if !c.isClosed() {
		t.Error("it stays with a server that is silent")
	}
}

func TestBeatsTellWhatWasSent(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	c := r.connect()
	r.pass(5 * time.Second)
	frames := c.sent()
	last := frames[len(frames)-1]
	frames = frames[:len(frames)-1]
	if last.Heartbeat == nil || last.Seq != 0 || last.Heartbeat.Sent != int64(len(frames)) {
		t.Errorf("said %+v after %d frames", last, len(frames))
	}
	for i, f := range frames {
		if f.Seq != int64(i+1) {
			t.Errorf("frame %d has number %d", i+1, f.Seq)
		}
	}
}

func TestAHeartbeatRevealsALostFrame(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	c := r.connect(wanted("a", 1, dummyWork()))
	r.say(wire.Frame{Heartbeat: &wire.Heartbeat{}})
	if c.isClosed() {
		t.Fatal("nothing was lost")
	}
	r.conn.seq++ // this one never arrives
	r.say(wire.Frame{Heartbeat: &wire.Heartbeat{}})
	if !c.isClosed() {
		t.Error("lost frames went unnoticed")
	}
}

func TestADoubledFrameIsIgnored(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	c := r.connect(wanted("a", 1, dummyWork()))
	f := wire.Frame{Assign: &wire.Assign{Items: []wire.Assignment{unwanted("a", 2)}}}
	r.say(f)
	r.wantState("a", mariposa.StateDestroyed)
	n := len(c.sent())
	f.Seq = r.conn.seq
	r.node.Receive(c, f)
	r.run()
	if len(c.sent()) != n || c.isClosed() {
		t.Error("the second copy made a difference")
	}
}

func TestALostFrameEndsTheSessionAndTheNextOneMakesItGood(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	w := dummyWork()
	c := r.connect(wanted("a", 1, w))
	r.conn.seq++ // this one never arrives
	r.assign(wanted("b", 1, w))
	if !c.isClosed() {
		t.Fatal("a gap was not noticed")
	}
	if _, there := r.real("b"); there {
		t.Error("a frame after the gap was taken")
	}
	r.connect(known(unwanted("a", 2), mariposa.InstanceStatus{State: mariposa.StateRunning}), wanted("b", 1, w))
	r.wantState("a", mariposa.StateDestroyed)
	r.wantState("b", mariposa.StateRunning)
	r.node.Receive(c, wire.Frame{Seq: 99, Assign: &wire.Assign{Items: []wire.Assignment{unwanted("b", 9)}}})
	r.run()
	r.wantState("b", mariposa.StateRunning) // from a closed connection
}

func TestFramesThatMakeNoSenseEndTheSession(t *testing.T) {
	t.Parallel()
	for _, f := range []wire.Frame{
		{Hello: &wire.Hello{}}, {Report: &wire.Report{}}, {}, {Bye: &wire.Bye{Reason: "go"}},
	} {
		r := newRig(t)
		c := r.connect()
		r.say(f)
		if !c.isClosed() {
			t.Errorf("%+v was taken", f)
		}
	}
	r := newRig(t)
	c := r.dial()
	r.assign(wanted("a", 1, dummyWork()))
	if _, there := r.real("a"); there || !c.isClosed() {
		t.Error("an assignment before the welcome was taken")
	}
}

func TestTheQuarantineHoldsWhatThisStoreDoesNotKnow(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.make("mine", "ours", "first")
	r.make("older", "ours", "before")
	r.make("theirs", "another", "first")
	r.boot()
	r.connect()
	q := r.quarantine()
	if len(q) != 2 || q[0].ID != "mine" || q[1].ID != "older" {
		t.Fatalf("in quarantine: %+v", q)
	}
	if q[0].State != mariposa.StateRunning || q[0].PhysicalID == "" || q[0].Reason != "this store does not know it" || !strings.Contains(q[1].Reason, "another incarnation") {
		t.Errorf("in quarantine: %+v", q)
	}
	for _, id := range []string{"mine", "older", "theirs"} {
		if o, _ := r.real(id); !o.Running {
			t.Errorf("%s does not run any more", id)
		}
	}
	r.crash("mine")
	if q := r.quarantine(); q[0].State != mariposa.StateStopped {
		t.Errorf("it ended: %+v", q[0])
	}
}

// Servers take no frame with thousands of instances.
func TestALargeInventoryIsSentInParts(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	const total = 2*wire.Batch + 1
	for i := range total {
		r.make(fmt.Sprintf("i%04d", i), "ours", "first")
	}
	r.boot()
	r.connect()
	var ids []string
	var complete []bool
	for _, f := range r.conn.sent() {
		if f.Report != nil && (f.Report.Inventory || len(f.Report.Quarantined) > 0) {
			complete = append(complete, f.Report.Inventory)
			for _, q := range f.Report.Quarantined {
				ids = append(ids, q.ID)
			}
		}
	}
	if !slices.Equal(complete, []bool{false, false, true}) || len(ids) != total || !slices.IsSorted(ids) {
		t.Errorf("%d instances are in parts that are complete or not: %v", len(ids), complete)
	}
}

// While thousands of quarantined instances are removed, each removal changes the inventory.
func TestALargeInventoryIsNotSentAllTheTime(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	const total = 2*wire.Batch + 1
	for i := range total {
		r.make(fmt.Sprintf("i%04d", i), "ours", "first")
	}
	r.boot()
	r.connect()
	count := func() (n int) {
		for _, f := range r.conn.sent() {
			if f.Report != nil && f.Report.Inventory {
				n++
			}
		}
		return n
	}
	before := count()
	for i := range total { // the last in the list is the last to change
		r.crash(fmt.Sprintf("i%04d", i))
	}
	r.pass(time.Second)
	if n := count() - before; n != 1 {
		t.Errorf("%d inventories were sent", n)
	}
	if q := r.quarantine(); q[len(q)-1].State != mariposa.StateStopped {
		t.Errorf("the newest is not reported: %+v", q[len(q)-1])
	}
}

func TestWhatASnapshotDoesNotNameGoesIntoQuarantineAndComesBack(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	w := dummyWork()
	r.connect(wanted("a", 3, w))
	before := r.wantState("a", mariposa.StateRunning)
	r.inc = "restored"
	r.connect()
	q := r.quarantine()
	if len(q) != 1 || q[0].ID != "a" || q[0].State != mariposa.StateRunning || !strings.Contains(q[0].Reason, "another incarnation") {
		t.Fatalf("in quarantine: %+v", q)
	}
	if len(r.statuses()) != 0 {
		t.Error("it is reported as if it were assigned")
	}
	r.connect(known(wanted("a", 1, w), mariposa.InstanceStatus{State: mariposa.StateRunning, Generation: 1, Restarts: 2}))
	after := r.wantState("a", mariposa.StateRunning)
	if len(r.quarantine()) != 0 || !slices.Equal(after.Addresses, before.Addresses) || after.Started != before.Started ||
		after.PhysicalID != before.PhysicalID || after.Restarts != 2 {
		t.Errorf("adopted as %+v, was %+v", after, before)
	}
	r.assign(unwanted("a", 2))
	r.wantState("a", mariposa.StateDestroyed)
}

func TestGenerationsOfAFormerIncarnationHideNothing(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	w := dummyWork()
	r.connect(wanted("a", 7, w))
	r.inc = "restored"
	r.connect(known(wanted("a", 2, w), mariposa.InstanceStatus{State: mariposa.StateRunning, Generation: 2}))
	if st := r.wantState("a", mariposa.StateRunning); st.Generation != 2 {
		t.Errorf("reported %+v", st)
	}
	r.assign(unwanted("a", 3))
	r.wantState("a", mariposa.StateDestroyed)
}

// An update that is in progress when the store goes back applies a goal that is lost. The
// goal of the restored store is applied after it, although its generation is smaller.
func TestAnUpdateOfAFormerIncarnationIsUndone(t *testing.T) {
	t.Parallel()
	h := &manualDriver{}
	r := newRig(t, h)
	first, second := processWork(), processWork()
	r.connect(wanted("a", 1, first))
	up := driver.Observed{Running: true, Started: r.clk.Now()}
	r.end(h, "start", "a", up, nil)
	r.assign(wanted("a", 2, second))
	h.want(t, "update a")
	r.inc = "restored"
	r.connect(known(wanted("a", 1, first), mariposa.InstanceStatus{State: mariposa.StateRunning, Generation: 1, Started: up.Started}))
	r.end(h, "update", "a", up, nil)
	h.want(t, "update a")
	r.end(h, "update", "a", up, nil)
	h.want(t)
	if st := r.wantState("a", mariposa.StateRunning); st.Generation != 1 {
		t.Errorf("reported %+v", st)
	}
}

// A removal that is done or in progress when the store goes back is undone, if the restored
// goal is to run. The instance must not be reported as gone: the control plane would
// replace it.
func TestARemovalOfAFormerIncarnationIsUndone(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name  string
		ended []string // operations that have ended when the store is back
	}{
		{"during the stop", nil},
		{"during the removal", []string{"stop"}},
		{"before its report", []string{"stop", "remove"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			h := &manualDriver{}
			r := newRig(t, h)
			w := processWork()
			r.connect(wanted("a", 1, w))
			up := driver.Observed{Running: true, Started: r.clk.Now()}
			r.end(h, "start", "a", up, nil)
			r.assign(unwanted("a", 2))
			r.node.Disconnected(r.conn)
			r.run()
			end := func(op string) { r.end(h, op, "a", driver.Observed{Started: up.Started, Finished: r.clk.Now()}, nil) }
			for _, op := range c.ended {
				end(op)
			}
			r.inc = "restored"
			r.connect(known(wanted("a", 1, w), mariposa.InstanceStatus{State: mariposa.StateRunning, Generation: 1, Started: up.Started}))
			if len(c.ended) == 0 {
				end("stop")
			} else if len(c.ended) == 1 {
				end("remove")
			}
			h.want(t, "start a")
			r.end(h, "start", "a", up, nil)
			r.wantState("a", mariposa.StateRunning)
			if slices.Contains(r.states("a"), mariposa.StateDestroyed) {
				t.Errorf("it was reported as %v", r.states("a"))
			}
		})
	}
}

// The manual restarts that a start in progress covers were counted by the store that is
// lost. Those of the restored one are counted anew.
func TestAStartOfAFormerIncarnationCoversNoLaterRestart(t *testing.T) {
	t.Parallel()
	h := &manualDriver{}
	r := newRig(t, h)
	w := processWork()
	r.connect(withManualRestarts(wanted("a", 1, w), 2))
	h.want(t, "start a")
	r.inc = "restored"
	r.connect(known(wanted("a", 1, w), mariposa.InstanceStatus{State: mariposa.StateProvisioning}))
	up := driver.Observed{Running: true, Started: r.clk.Now()}
	r.end(h, "start", "a", up, nil)
	r.end(h, "update", "a", up, nil)
	r.assign(withManualRestarts(wanted("a", 2, w), 1))
	h.want(t, "stop a")
}

// While the agent was down, the store went back. What an instance was changed to
// meanwhile is not known, so the restored goal is applied again.
func TestAnInstanceFoundAfterTheStoreWentBackIsUpdated(t *testing.T) {
	t.Parallel()
	h := &manualDriver{list: []driver.Observed{{ID: "a", Running: true, Labels: driver.Labels{Cluster: "ours", Incarnation: "first"}}}}
	r := newRig(t, h)
	r.node.Seen = wire.Seen{Incarnation: "first", Revision: 9}
	r.inc = "restored"
	r.connect(known(wanted("a", 1, processWork()), mariposa.InstanceStatus{State: mariposa.StateRunning, Generation: 1}))
	h.want(t, "update a")
	r.end(h, "update", "a", h.list[0], nil)
	h.want(t)
	if st := r.wantState("a", mariposa.StateRunning); st.Generation != 1 {
		t.Errorf("reported %+v", st)
	}
}

func TestATombstoneRemovesFromTheQuarantineAndFromNowhereElse(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.make("mine", "ours", "before")
	r.make("theirs", "another", "first")
	r.boot()
	r.connect()
	stone := func(id string) wire.Assignment {
		return wire.Assignment{ID: id, Goal: mariposa.GoalGone, Generation: 1}
	}
	r.assign(stone("mine"), stone("theirs"), stone("nobody"))
	if _, there := r.real("mine"); there {
		t.Error("the tombstone did nothing")
	}
	if o, _ := r.real("theirs"); !o.Running {
		t.Error("another cluster's instance was touched")
	}
	if q := r.quarantine(); len(q) != 0 {
		t.Errorf("in quarantine: %+v", q)
	}
	r.assign(stone("mine"), stone("theirs")) // as every snapshot will
	if r.conn.isClosed() {
		t.Error("a second tombstone was too much")
	}
}

func TestWhatStandsInTheNodesOwnRoomsIsNeverInvisible(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.own = true
	r.make("orphan", "a store that was wiped", "first")
	r.boot()
	r.connect()
	q := r.quarantine()
	if len(q) != 1 || q[0].ID != "orphan" || q[0].State != mariposa.StateRunning || !strings.Contains(q[0].Reason, "another store") {
		t.Fatalf("in quarantine: %+v", q)
	}
	if o, _ := r.real("orphan"); !o.Running {
		t.Error("it was touched before anybody said so")
	}
	r.assign(wire.Assignment{ID: "orphan", Goal: mariposa.GoalGone, Generation: 1})
	if _, there := r.real("orphan"); there || len(r.quarantine()) != 0 {
		t.Error("it cannot be purged")
	}
}

func TestAnOperationEndsBeforeItsInstanceIsSetAside(t *testing.T) {
	t.Parallel()
	h := &manualDriver{}
	r := newRig(t, h)
	r.slots = 1
	r.boot()
	w := processWork()
	r.connect(wanted("a", 1, w), wanted("b", 1, w), wanted("c", 1, w))
	h.want(t, "start a")
	// The store was wiped, or a backup was restored: it only knows c.
	r.connect(wanted("c", 1, w))
	h.want(t, "start a")
	r.end(h, "start", "a", driver.Observed{Running: true, PhysicalID: "pid 7"}, nil)
	h.want(t, "start c") // b never started, and does not block others
	q := r.quarantine()
	if len(q) != 1 || q[0].ID != "a" || q[0].State != mariposa.StateRunning || q[0].PhysicalID != "pid 7" {
		t.Errorf("in quarantine: %+v", q)
	}
	r.end(h, "start", "c", driver.Observed{Running: true}, nil)
	r.connect(known(wanted("a", 1, w), mariposa.InstanceStatus{State: mariposa.StateProvisioning}), wanted("b", 1, w), wanted("c", 1, w))
	h.want(t, "start b")
	r.wantState("a", mariposa.StateRunning)
}

func TestARemovalUnderWayIsTheLastThingDoneToWhatIsSetAside(t *testing.T) {
	t.Parallel()
	h := &manualDriver{}
	r := newRig(t, h)
	r.connect(wanted("a", 1, processWork()))
	r.end(h, "start", "a", driver.Observed{Running: true}, nil)
	r.assign(unwanted("a", 2))
	h.want(t, "stop a")
	r.inc = "restored"
	r.connect()
	r.end(h, "stop", "a", driver.Observed{}, nil)
	h.want(t) // this store has not requested its removal
	if q := r.quarantine(); len(q) != 1 || q[0].State != mariposa.StateStopped {
		t.Errorf("in quarantine: %+v", q)
	}
}

func TestAnAssignmentDuringTheLastOperationTakesItBack(t *testing.T) {
	t.Parallel()
	h := &manualDriver{}
	r := newRig(t, h)
	w := processWork()
	r.connect(wanted("a", 5, w))
	r.connect()
	r.connect(wanted("a", 1, w))
	h.want(t, "start a") // the start from before: there are never two at once
	r.end(h, "start", "a", driver.Observed{Running: true}, nil)
	r.wantState("a", mariposa.StateRunning)
	if len(r.quarantine()) != 0 {
		t.Errorf("in quarantine: %+v", r.quarantine())
	}
}

func TestReportsAreCutIntoPortions(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	w := dummyWork()
	items := make([]wire.Assignment, 1200)
	for i := range items {
		items[i] = wanted(fmt.Sprintf("i%04d", i), 1, w)
	}
	r.connect(items...)
	for _, f := range r.conn.sent() {
		if f.Report != nil && len(f.Report.Items) > wire.Batch {
			t.Errorf("a report of %d", len(f.Report.Items))
		}
	}
	if n := len(r.statuses()); n != 1200 {
		t.Errorf("%d were reported", n)
	}
}

// The agent remembers the newest state of the store, also over a restart, and says it
// when it connects.
func TestTheNewestStateOfTheStoreIsRemembered(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	var stored []wire.Seen
	r.node.Remember = func(s wire.Seen) { stored = append(stored, s) }
	c := r.dial()
	if h := c.sent()[0].Hello; h == nil || h.Seen != nil {
		t.Fatalf("a new node says %+v", h)
	}
	r.say(wire.Frame{Welcome: &wire.Welcome{Cluster: "c", Incarnation: "i1", Revision: 7, HeartbeatInterval: time.Hour, Proof: "of 7"}})
	for _, revision := range []int64{9, 8, 9} {
		r.say(wire.Frame{Heartbeat: &wire.Heartbeat{Revision: revision, Proof: fmt.Sprint("of ", revision)}})
	}
	c = r.dial()
	if h := c.sent()[0].Hello; h == nil || h.Seen == nil || !reflect.DeepEqual(*h.Seen, wire.Seen{Incarnation: "i1", Revision: 9, Proof: "of 9"}) {
		t.Fatalf("it says %+v", h)
	}
	r.say(wire.Frame{Welcome: &wire.Welcome{Cluster: "c", Incarnation: "i2", Revision: 3, HeartbeatInterval: time.Hour, Past: []string{"i1"}, Proof: "of 3"}})
	r.say(wire.Frame{Assign: &wire.Assign{Snapshot: true, Last: true, Revision: 4, Proof: "of 4"}})
	want := []wire.Seen{{Incarnation: "i1", Revision: 7, Proof: "of 7"}, {Incarnation: "i1", Revision: 9, Proof: "of 9"}}
	for _, revision := range []int64{3, 4} {
		want = append(want, wire.Seen{Incarnation: "i2", Revision: revision, Past: []string{"i1"}, Proof: fmt.Sprint("of ", revision)})
	}
	if !reflect.DeepEqual(stored, want) {
		t.Errorf("stored were %+v", stored)
	}
}

func TestFactsGoWithTheHelloAndWhenTheyChange(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	set := func(kernel string) {
		r.node.SetMachine(&mariposa.Machine{Kernel: kernel})
		r.run()
	}
	set("6.1")
	c := r.connect()
	if h := c.sent()[0].Hello; h.Machine == nil || h.Machine.Kernel != "6.1" {
		t.Errorf("its hello has %+v", h.Machine)
	}
	n := len(c.sent())
	set("6.1")
	if len(c.sent()) != n {
		t.Error("the same facts were sent again")
	}
	set("6.2")
	if got := c.sent(); len(got) != n+1 || got[n].Report == nil || got[n].Report.Machine.Kernel != "6.2" {
		t.Errorf("sent %+v", got[n:])
	}
}
