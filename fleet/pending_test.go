package fleet_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"mariposa"
	"mariposa/fleet"
	"mariposa/store"
	"mariposa/wire"
)

// uuidOf returns an id as agents generate them.
func uuidOf(n int) string { return fmt.Sprintf("01a1e292-dec4-7ded-baeb-%012d", n) }

// announced is the hello of a node that has no join token.
func announced(n int, name string) *wire.Hello {
	h := hello(uuidOf(n))
	h.Name = name
	h.Rack, h.Traits = "r1", map[string]string{"disk": "ssd"}
	h.Machine = &mariposa.Machine{Hostname: "host", OS: "Debian\x1b[2J", CPUs: 4, Disks: []mariposa.Disk{{Name: "sda"}}}
	return h
}

// newOpenRig returns a fleet in which nodes without a join token may wait.
func newOpenRig(t *testing.T, most int) *rig {
	t.Helper()
	r := newRig(t)
	r.fleet.PendingNodes = most
	return r
}

// announce connects a node without a join token from an address.
func (r *rig) announce(h *wire.Hello, from string) *wire.Bye {
	r.t.Helper()
	_, bye := r.fleet.Open(r.t.Context(), h, fleet.Admission{From: from, Tokenless: true}, &peer{r: r}, func() {})
	if bye == nil {
		r.t.Fatalf("node %s without a join token has a session", h.Name)
	}
	r.run()
	return bye
}

func (r *rig) wantWaiting(h *wire.Hello, from string) {
	r.t.Helper()
	bye := r.announce(h, from)
	if !bye.Pending || bye.Final || !strings.Contains(bye.Reason, "mariposa node accept "+h.Name) || !strings.Contains(bye.Reason, mariposa.Fingerprint(mariposa.HashKey(h.Key))) {
		r.t.Fatalf("node %s hears %+v", h.Name, bye)
	}
}

func (r *rig) wantRefused(h *wire.Hello, from, why string) {
	r.t.Helper()
	if bye := r.announce(h, from); !strings.Contains(bye.Reason, why) {
		r.t.Errorf("node %s hears %+v, not %q", h.Name, bye, why)
	}
}

// accept does what `mariposa node accept` does.
func (r *rig) accept(id string) {
	r.t.Helper()
	r.amend(id, func(s *mariposa.NodeSpec) { s.Approval, s.Tokenless = "", false })
}

func TestANodeWithoutATokenWaitsAndLearnsNothing(t *testing.T) {
	t.Parallel()
	r := newOpenRig(t, 5)
	h := announced(1, "stray")
	r.wantWaiting(h, "192.0.2.1")
	spec, st := r.node(h.Node)
	if spec.Approval != mariposa.ApprovalPending || !spec.Tokenless || spec.Name != "stray" || spec.Rack != "" || spec.Traits != nil ||
		st.State != mariposa.NodePending || st.Address != "192.0.2.1" || len(st.Drivers) != 0 || st.Capacity != (mariposa.Resources{}) {
		t.Errorf("it waits as %+v, %+v", spec, st)
	}
	if m := st.Machine; m == nil || m.Hostname != "host" || m.OS != "Debian[2J" || m.CPUs != 4 || m.Disks != nil {
		t.Errorf("its machine is %+v", st.Machine)
	}
	before := r.pic.Revision()
	for range 5 {
		r.wantWaiting(h, "192.0.2.1")
	}
	if r.pic.Revision() != before {
		t.Error("trying again was stored")
	}
	// What it says about the store is not believed.
	r.fleet.Outdated = func(int64) { t.Error("a stranger was believed") }
	h.Seen = &wire.Seen{Incarnation: "memory", Revision: 1 << 40, Past: []string{"memory"}}
	r.wantWaiting(h, "192.0.2.1")
	old := announced(2, "old")
	old.Protocol--
	r.fleet.Release = "v1.2.3"
	if bye := r.announce(old, "192.0.2.1"); bye.Final || strings.Contains(bye.Reason, "v1.2.3") || !strings.Contains(bye.Reason, "upgrade") {
		t.Errorf("an agent of another release hears %+v", bye)
	}
	r.accept(h.Node)
	h.Seen = nil
	if bye := r.announce(h, "192.0.2.1"); bye.Final || bye.Pending || !strings.Contains(bye.Reason, "connect again") {
		t.Errorf("after it was accepted: %+v", bye)
	}
	r.by = fleet.Admission{Node: h.Node}
	if _, bye := r.try(h); bye != nil {
		t.Fatalf("it was accepted, and then refused: %s", bye.Reason)
	}
	r.run()
	if spec, st := r.node(h.Node); spec.Rack != "r1" || st.State != mariposa.NodeRunning {
		t.Errorf("it runs as %+v, %+v", spec, st)
	}
}

func TestFewNodesWithoutATokenCanWait(t *testing.T) {
	t.Parallel()
	r := newOpenRig(t, 25)
	for i := range 10 {
		r.wantWaiting(announced(i, fmt.Sprint("a", i)), "192.0.2.1")
		r.wantWaiting(announced(100+i, fmt.Sprint("b", i)), fmt.Sprintf("2001:db8::%d", i+1)) // one network
	}
	r.wantRefused(announced(10, "a10"), "192.0.2.1", "10 nodes from this address already wait")
	r.wantRefused(announced(110, "b10"), "2001:db8::ffff", "10 nodes from this address already wait")
	for i := range 5 {
		r.wantWaiting(announced(200+i, fmt.Sprint("c", i)), fmt.Sprint("198.51.100.", i))
	}
	r.wantRefused(announced(205, "c5"), "198.51.100.5", "no more nodes can wait")
	r.wantWaiting(announced(3, "a3"), "192.0.2.1") // those that wait already are not affected

	// Nodes with a token are not, either: neither by the number nor by the names.
	r.connect("invited")
	taken := hello("n7")
	taken.Name = "a7"
	if _, bye := r.try(taken); bye != nil {
		t.Errorf("a node with a token was refused the name of one without: %s", bye.Reason)
	}
	r.run()
	same := announced(4, "a4") // the agent of a pending node gets a token
	if _, bye := r.try(same); bye != nil {
		t.Errorf("a pending node that got a token was refused: %s", bye.Reason)
	}
	r.run()
	if spec, st := r.node(same.Node); spec.Tokenless || spec.Approval != "" || st.State != mariposa.NodeRunning {
		t.Errorf("it runs as %+v, %+v", spec, st)
	}
	stolen := announced(5, "other") // an id that another one announced
	stolen.Key = "the key of the real one with that id"
	if _, bye := r.try(stolen); bye != nil {
		t.Errorf("a node with a token was refused the id of one without: %s", bye.Reason)
	}
	r.run()
	r.wantRefused(announced(5, "a5"), "192.0.2.1", "registered with another key")
	r.wantWaiting(announced(11, "a11"), "192.0.2.1") // two have left the queue
}

// However many connect at once, and to however many replicas.
func TestTheNumberOfNodesWithoutATokenIsExact(t *testing.T) {
	t.Parallel()
	r := newOpenRig(t, 7)
	first := r.fleet
	r.boot("r2")
	r.fleet.PendingNodes = 7
	var all sync.WaitGroup
	for i := range 60 {
		f := []*fleet.Fleet{first, r.fleet}[i%2]
		all.Go(func() {
			for range 20 {
				bye := f.Announce(context.WithoutCancel(t.Context()), announced(i, fmt.Sprint("n", i)), fleet.Admission{From: fmt.Sprint("192.0.2.", i), Tokenless: true})
				if bye.Pending {
					return
				}
			}
		})
	}
	all.Wait()
	records, err := r.store.List(t.Context(), store.Query{Kind: mariposa.KindNode})
	if err != nil || len(records) != 7 {
		t.Errorf("%d nodes wait, %v", len(records), err)
	}
}

func TestANodeWithoutATokenTakesNoName(t *testing.T) {
	t.Parallel()
	r := newOpenRig(t, 10)
	r.connect("n1")
	r.wantWaiting(announced(1, "n1"), "192.0.2.1") // it does not learn that the name is taken
	r.wantWaiting(announced(2, "n1"), "192.0.2.2")
	if spec, _ := r.node("n1"); spec.Tokenless {
		t.Error("the node lost its record")
	}
	r.wantRefused(hello("n1"), "192.0.2.1", "must be a UUID") // not even with the right key
	odd := announced(3, "n3")
	odd.Node = "n3"
	r.wantRefused(odd, "192.0.2.1", "must be a UUID")
	r.wantRefused(announced(4, "../n"), "192.0.2.1", "invalid node name")
	other := announced(1, "n1")
	other.Key = "the key of somebody else"
	r.wantRefused(other, "192.0.2.1", "registered with another key")
	r.wantRefused(announced(1, "renamed"), "192.0.2.1", "cannot be renamed")
	r.amend(uuidOf(1), func(s *mariposa.NodeSpec) { s.Approval = mariposa.ApprovalRejected })
	if bye := r.announce(announced(1, "n1"), "192.0.2.1"); !bye.Final || !strings.Contains(bye.Reason, "was rejected") {
		t.Errorf("a rejected node hears %+v", bye)
	}
	if _, bye := r.try(announced(1, "n1")); bye == nil || !bye.Final || !strings.Contains(bye.Reason, "was rejected") {
		t.Errorf("a rejected node joins with a token: %+v", bye)
	}
	r.fleet.PendingNodes = 0
	r.wantRefused(announced(9, "n9"), "192.0.2.1", "start the agent with a join token")
}

func TestANodeThatIsNotAcceptedAndGoneExpires(t *testing.T) {
	t.Parallel()
	r := newOpenRig(t, 10)
	gone, stays := announced(1, "gone"), announced(2, "stays")
	r.wantWaiting(gone, "192.0.2.1")
	r.wantWaiting(stays, "192.0.2.2")
	skip := func(d time.Duration) {
		r.clk.Pass(d)
		r.pass(time.Second)
	}
	for range 4 {
		skip(5 * time.Hour)
		r.wantWaiting(stays, "192.0.2.2")
	}
	if n := len(r.pic.Nodes.All()); n != 2 {
		t.Fatalf("%d nodes are left", n)
	}
	r.clk.Pass(5 * time.Hour)
	r.boot("r2") // a replica that has just been started gives nodes time
	r.fleet.PendingNodes = 10
	r.pass(time.Minute)
	if n := len(r.pic.Nodes.All()); n != 2 {
		t.Fatalf("%d nodes are left right after the start", n)
	}
	r.pass(11 * time.Minute)
	if _, err := r.store.Get(t.Context(), mariposa.KindNode, gone.Node); !errors.Is(err, store.ErrNotFound) {
		t.Errorf("a node that no longer connects is kept: %v", err)
	}
	r.node(stays.Node)
	changes, err := r.store.History(t.Context(), store.HistoryQuery{Limit: 1})
	if err != nil || len(changes) != 1 || changes[0].Event.Kind != "node.expired" {
		t.Errorf("the event is %+v, %v", changes, err)
	}
	r.wantWaiting(gone, "192.0.2.1") // it may come back
}

func TestConnectionsWithoutATokenAreFew(t *testing.T) {
	t.Parallel()
	r := newOpenRig(t, 10)
	var leave []func()
	enter := func(from string) bool {
		l, ok := r.fleet.EnterTokenless(from)
		if ok {
			leave = append(leave, l)
		}
		return ok
	}
	for i := range 8 {
		if !enter(fmt.Sprintf("2001:db8::%d", i+1)) {
			t.Fatalf("connection %d was refused", i)
		}
	}
	if enter("2001:db8::99") || !enter("2001:db8:1::1") {
		t.Error("a network has too many connections, or too few")
	}
	for i := range 55 {
		enter(fmt.Sprint("192.0.2.", i))
	}
	if enter("198.51.100.1") {
		t.Error("there are more than 64 connections")
	}
	for _, l := range leave {
		l()
	}
	if !enter("2001:db8::99") {
		t.Error("closed connections still count")
	}
}
