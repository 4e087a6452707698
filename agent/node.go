// Package agent is the node's side: it has one connection to the control plane, carries
// out its assignments with the node's drivers, and reports the actual state. Without a
// connection, instances keep running. No instance is removed for lack of information: one
// that the control plane does not know is quarantined until a tombstone names it.
//
// The package owns the state of the node's instances between driver and wire: one loop
// and one set of timers for each node, goroutines only for operations that may block, and
// one server on loopback where instances read their values. It does not know projects,
// versions, or goals beyond a single instance.
package agent

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"time"

	"mariposa"
	"mariposa/clock"
	"mariposa/driver"
	"mariposa/mailbox"
	"mariposa/wire"
)

// Options configure a node.
type Options struct {
	Hello   wire.Hello // who the node is; NewNode fills in drivers and capabilities
	Drivers []driver.Driver
	Clock   clock.Clock
	Wake    func()        // asks for a call of Step
	Mdata   string        // the loopback address where instances read their values; empty if none
	Slots   int           // concurrent driver operations per kind; 16 if zero
	Timeout time.Duration // of one driver operation, in addition to an instance's stop timeout; 2 min if zero
	Spawn   func(func())  // runs a driver operation off the loop; a goroutine if nil. Virtual time uses coroutines
}

// Node is one compute node: a state machine. All input goes through its mailbox; Step
// does the work.
type Node struct {
	Options
	lanes map[mariposa.ComputeType]*lane
	inbox *mailbox.Box[func(ctx context.Context)]

	labels           driver.Labels
	instances        map[string]*instance
	found            map[string]found // found by the drivers, not assigned
	listed           bool
	snapshot         map[string]bool // ids in the snapshot being received; nil between snapshots
	resources        map[string]*resource
	offeredResources map[string]bool // resource ids in the snapshot being received; nil between snapshots
	valuesServer     *valuesServer
	earlyValues      earlyValues

	out         Outlet
	seq         int64
	order       wire.FrameOrder
	welcomed    bool
	complete    bool     // the snapshot is complete, so reports can be sent
	sentAtBeats [2]int64 // the newest frame sent at the last heartbeat but one, and at the last
	lastHeard   time.Time
	beat        time.Duration
	stopBeat    func()

	dirtyInstances map[string]struct{} // instances whose status must be reported
	staleResources map[string]struct{} // resources whose state must be reported
	inventory      bool                // the quarantine must be reported
	interned       map[string]string   // names that many instances share
	stepCtx        context.Context     //nolint:containedctx // the context of the current step; operations outlive frames, not the agent
}

// welcomeTimeout is how long the control plane may take to answer a hello.
const welcomeTimeout = 15 * time.Second

// Outlet carries frames to the control plane. Send never blocks.
type Outlet interface {
	Send(wire.Frame)
	Close()
}

type found struct {
	compute mariposa.ComputeType
	seen    driver.Observed
}

// NewNode returns a node that is not connected.
func NewNode(o Options) *Node {
	if o.Slots == 0 {
		o.Slots = 16
	}
	if o.Timeout == 0 {
		o.Timeout = 2 * time.Minute
	}
	n := &Node{
		Options: o, lanes: map[mariposa.ComputeType]*lane{}, instances: map[string]*instance{}, found: map[string]found{},
		resources: map[string]*resource{}, staleResources: map[string]struct{}{},
		dirtyInstances: map[string]struct{}{},
		interned:       map[string]string{}, stopBeat: func() {},
	}
	n.valuesServer = newValuesServer(o.Mdata, o.Hello.Key)
	n.inbox = mailbox.New[func(context.Context)](o.Wake)
	n.Hello.Protocol, n.Hello.Drivers, n.Hello.Capabilities = wire.Protocol, nil, map[mariposa.ComputeType]mariposa.Capabilities{}
	n.Hello.Offers = map[mariposa.ComputeType]mariposa.Offer{}
	for _, d := range o.Drivers {
		n.addDriver(d)
	}
	return n
}

// List finds the instances that the drivers already have. It must succeed before the
// node connects: an agent must never start an instance a second time.
func (n *Node) List(ctx context.Context) error {
	for kind, l := range n.lanes {
		all, err := l.driver.List(ctx)
		if err != nil {
			return fmt.Errorf("list %s instances on this node: %w", kind, err)
		}
		for _, o := range all {
			n.found[o.ID] = found{kind, o}
			if t, ok := l.driver.(driver.ValuePublisher); ok && n.valuesServer != nil {
				values, _ := t.PublishedValues(ctx, o.ID) // on an error, the control plane sends them again
				n.valuesServer.publish(o.ID, 0, values)
			}
		}
	}
	n.listed = true
	return nil
}

// Connected notifies the node of an open connection; the node sends a hello.
func (n *Node) Connected(out Outlet) {
	n.inbox.Put(func(context.Context) {
		if n.out != nil {
			n.out.Close()
		}
		n.resetConnection()
		n.out, n.seq, n.order, n.sentAtBeats = out, 0, wire.FrameOrder{}, [2]int64{}
		n.lastHeard = n.Clock.Now()
		h := n.Hello
		n.send(wire.Frame{Hello: &h})
		n.beat = welcomeTimeout / 3
		n.scheduleHeartbeat(out)
	})
}

// Disconnected notifies the node that the connection is lost. Instances keep running.
func (n *Node) Disconnected(out Outlet) {
	n.inbox.Put(func(context.Context) {
		if n.out == out {
			n.resetConnection()
		}
	})
}

// Receive passes a frame from a connection to the node.
func (n *Node) Receive(out Outlet, f wire.Frame) {
	n.inbox.Put(func(ctx context.Context) {
		if n.out != out {
			return // from an earlier connection
		}
		if err := n.handleFrame(&f); err != nil {
			slog.Warn("closing the connection to the control plane", "node", n.Hello.Name, "err", err)
			n.out.Close()
			n.resetConnection()
		}
	})
}

// Step processes the mailbox, then reports. It is called by one goroutine at a time.
func (n *Node) Step(ctx context.Context) {
	n.stepCtx = ctx
	for {
		todo := n.inbox.Take()
		if len(todo) == 0 {
			break // drivers may answer at once, so repeat until the mailbox is empty
		}
		for _, f := range todo {
			f(ctx)
		}
	}
	n.report()
}

// post runs f in the next step. It may be called from any goroutine.
func (n *Node) post(f func()) { n.inbox.Put(func(context.Context) { f() }) }

func (n *Node) resetConnection() {
	n.out, n.welcomed, n.complete, n.snapshot, n.offeredResources, n.earlyValues = nil, false, false, nil, nil, earlyValues{}
	n.stopBeat()
	n.stopBeat = func() {}
}

func (n *Node) send(f wire.Frame) {
	if n.out == nil {
		return
	}
	n.seq++
	f.Seq = n.seq
	n.out.Send(f)
}

func (n *Node) handleFrame(f *wire.Frame) error {
	if f.Bye != nil {
		return fmt.Errorf("the control plane ended the session: %s", f.Bye.Reason)
	}
	if next, err := n.order.Accept(f.Seq); err != nil || !next {
		return err
	}
	n.lastHeard = n.Clock.Now()
	switch {
	case f.Welcome != nil:
		n.handleWelcome(f.Welcome)
	case f.Assign != nil && n.welcomed:
		n.handleAssign(f.Assign)
	case f.Provide != nil && n.welcomed:
		n.handleProvide(f.Provide)
	case f.Mdata != nil && n.welcomed:
		return n.handleMdata(f.Mdata)
	case f.Heartbeat != nil:
		if f.Heartbeat.Seen < n.sentAtBeats[0] {
			return fmt.Errorf("a frame to the control plane was lost")
		}
	case f.Crash != nil:
		n.crash(f.Crash.Instance)
	default:
		return fmt.Errorf("the control plane sent an unexpected frame")
	}
	return nil
}

func (n *Node) handleWelcome(w *wire.Welcome) {
	n.welcomed = true
	if n.labels.Incarnation != w.Incarnation {
		for _, i := range n.instances { // this store has its own counters
			i.desired.Generation, i.status.Generation, i.fromThisStore, i.recountRestarts = 0, 0, false, true
		}
	}
	n.labels = driver.Labels{Cluster: w.Cluster, Incarnation: w.Incarnation}
	n.beat = max(w.HeartbeatInterval, 10*time.Millisecond)
	n.snapshot, n.offeredResources = map[string]bool{}, map[string]bool{}
	n.stopBeat()
	n.scheduleHeartbeat(n.out)
}

// scheduleHeartbeat keeps the connection alive and detects a silent peer.
func (n *Node) scheduleHeartbeat(out Outlet) {
	n.stopBeat = n.Clock.After(n.beat, func() {
		n.post(func() {
			if n.out != out {
				return
			}
			if n.Clock.Now().Sub(n.lastHeard) >= 3*n.beat {
				slog.Warn("no message from the control plane; reconnecting", "node", n.Hello.Name)
				n.out.Close()
				n.resetConnection()
				return
			}
			if n.welcomed {
				n.send(wire.Frame{Heartbeat: &wire.Heartbeat{Seen: n.order.Seen()}})
			}
			n.sentAtBeats = [2]int64{n.sentAtBeats[1], n.seq}
			n.scheduleHeartbeat(out)
		})
	})
}

// crash makes an instance fail as if by itself, if its driver can.
func (n *Node) crash(id string) {
	i := n.instances[id]
	if i == nil {
		return
	}
	if d, ok := n.lane(i.compute).driver.(driver.Crasher); ok {
		if err := d.Crash(id); err != nil {
			slog.Warn("cannot crash an instance", "instance", id, "err", err)
		}
	}
}

// handleAssign sets the assigned goals. After a complete snapshot, instances that it
// does not name are quarantined.
func (n *Node) handleAssign(a *wire.Assign) {
	for i := range a.Items {
		it := &a.Items[i]
		if a.Snapshot && n.snapshot != nil {
			n.snapshot[it.ID] = true
		}
		n.assign(it, a.Workloads[it.Workload])
	}
	if !a.Snapshot || !a.Last {
		return
	}
	for _, id := range slices.Sorted(maps.Keys(n.instances)) {
		if i := n.instances[id]; !n.snapshot[id] && !i.tombstone {
			n.quarantine(i)
		}
	}
	n.snapshot = nil
	n.complete, n.inventory = true, true
	n.provideAll()
	for id := range n.instances {
		n.dirtyInstances[id] = struct{}{}
	}
}

// report sends the changes since the last report.
func (n *Node) report() {
	if !n.complete || n.out == nil {
		return
	}
	n.reportProvided(false) // resources are reported made before their users, and gone after them
	n.reportInstances()
	n.reportProvided(true)
}

// reportInstances sends the changes of instances and of the quarantine.
func (n *Node) reportInstances() {
	r := &wire.Report{}
	if n.inventory {
		n.inventory = false
		r.Inventory, r.Quarantined = true, n.quarantined()
		if len(n.dirtyInstances) == 0 {
			n.send(wire.Frame{Report: r})
			return
		}
	}
	ids := slices.Sorted(maps.Keys(n.dirtyInstances))
	clear(n.dirtyInstances)
	for part := range slices.Chunk(ids, wire.Batch) {
		for _, id := range part {
			if i := n.instances[id]; i != nil && i.status.State != "" {
				r.Items = append(r.Items, wire.Status{ID: id, Status: i.status})
				n.forgetIfDone(i)
			}
		}
		if len(r.Items) > 0 || r.Inventory {
			n.send(wire.Frame{Report: r})
		}
		r = &wire.Report{}
	}
}

// isForeign reports whether an instance that a driver found belongs to another cluster.
// Where a driver shares nothing with other clusters, everything it finds is this node's,
// whichever store created it: a wiped store must not make it invisible.
func (n *Node) isForeign(f found) bool {
	return f.seen.Shared && f.seen.Labels.Cluster != "" && f.seen.Labels.Cluster != n.labels.Cluster
}

// quarantined lists the instances that carry our label and are unknown to the control
// plane.
func (n *Node) quarantined() []mariposa.Quarantined {
	out := make([]mariposa.Quarantined, 0, len(n.found))
	for _, id := range slices.Sorted(maps.Keys(n.found)) {
		f := n.found[id]
		if n.isForeign(f) {
			continue // it belongs to another cluster
		}
		q := mariposa.Quarantined{
			ID: id, Name: f.seen.Name, Project: f.seen.Project, Compute: f.compute, PhysicalID: f.seen.PhysicalID,
			State: mariposa.StateStopped, Reason: "this store does not know it",
		}
		if f.seen.Running {
			q.State = mariposa.StateRunning
		}
		switch {
		case f.seen.Labels.Cluster != n.labels.Cluster:
			q.Reason = "it was created by another store"
		case f.seen.Labels.Incarnation != n.labels.Incarnation:
			q.Reason = "it was created under another incarnation of the store"
		}
		out = append(out, q)
	}
	return out
}
