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
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"reflect"
	"slices"
	"sync/atomic"
	"time"

	"mariposa"
	"mariposa/clock"
	"mariposa/driver"
	"mariposa/health"
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
	Slots   int           // concurrent starts, and concurrent stops and removals, per driver; DefaultSlots if zero
	Timeout time.Duration // of one driver operation, in addition to an instance's stop timeout; 2 min if zero
	Seen    wire.Seen     // the newest state of the store that it knew of when it ended
	// Remember stores what Seen will be. It is called with every heartbeat. May be nil.
	Remember func(wire.Seen)
	// Admitted is called whenever the control plane has admitted the node. May be nil.
	Admitted func()
	// Machine reads the facts of the machine. It is called now and then, off the loop. May
	// be nil.
	Machine func() *mariposa.Machine
	// Reboots reports whether the machine is shutting down. It is called when the agent
	// ends. May be nil.
	Reboots func() bool
	// ValuesKey is the secret from which the tokens of instances are derived that read their
	// values; the node's key if empty. It never changes.
	ValuesKey string
	// StoreKeys stores the node's keys durably. If nil, its key cannot be rotated.
	StoreKeys func(Keys) error
	Spawn     func(func()) // runs a driver operation off the loop; a goroutine if nil. Virtual time uses coroutines
	// Probe runs the health checks that use the network; health.ProbeNetwork if nil.
	Probe health.Prober
	// Names is the DNS server of the node; nil if it has none.
	Names *NameServer
}

// Node is one compute node: a state machine. All input goes through its mailbox; Step
// does the work.
type Node struct {
	Options
	lanes map[mariposa.ComputeType]*lane
	inbox *mailbox.Box[func(ctx context.Context)]

	labels           driver.Labels
	past             []string // former incarnations of the store, as the server says
	instances        map[string]*instance
	found            map[string]found // found by the drivers, not assigned
	listed           bool
	newIncarnation   bool            // the store has another incarnation than when this node last knew its instances
	snapshot         map[string]bool // ids in the control plane's snapshot being received; nil between snapshots
	resources        map[string]*resource
	offeredResources map[string]bool // resource ids in the snapshot being received; nil between snapshots
	valuesServer     *valuesServer
	earlyValues      earlyValues
	snapshots        snapshots
	checker          *health.Checker
	members          map[string]*membership // of the balancers on the node

	keys      atomic.Pointer[Keys]
	keyHash   string      // of the key that the control plane admitted it with
	hasJoined atomic.Bool // the control plane has admitted it before, or it has instances
	out       Outlet
	seq       int64
	order     wire.FrameOrder
	welcomed  bool
	patience  time.Duration // how long the next welcome may take; zero: as long as the first
	complete  bool          // the snapshot is complete, so reports can be sent
	lastHeard time.Time
	beat      time.Duration
	stopBeat  func()
	stopWatch func()
	left      chan struct{} // closed when the connection has ended after a reboot was announced; nil before

	dirtyInstances map[string]struct{} // instances whose status must be reported
	staleResources map[string]struct{} // resources whose state must be reported
	machineChanged bool                // the facts of the machine must be reported
	offersChanged  bool                // what the node can run must be reported
	inventory      bool                // the quarantine must be reported
	inventoryHeld  bool                // but not yet: the last one was large
	interned       map[string]string   // names that many instances share
	stepCtx        context.Context     //nolint:containedctx // the context of the current step; operations outlive frames, not the agent
}

// How long the control plane may take to answer a hello: short at first, because another
// server may answer at once, and longer each time, because all may be busy. The node counts
// as unknown 11 s after its last heartbeat.
const (
	firstWelcomeTimeout = 2500 * time.Millisecond
	lastWelcomeTimeout  = 10 * time.Second
)

// Outlet carries frames to the control plane. Send never blocks.
type Outlet interface {
	Send(wire.Frame)
	Close() // ends the connection once all frames are sent
	Abort() // ends the connection at once: the peer does not answer
}

type found struct {
	compute mariposa.ComputeType
	since   time.Time // when it was found, or quarantined
	seen    driver.Observed
}

// DefaultSlots is how many instances an agent starts at once with one driver.
const DefaultSlots = 16

// NewNode returns a node that is not connected.
func NewNode(o Options) *Node {
	if o.Slots == 0 {
		o.Slots = DefaultSlots
	}
	if o.Timeout == 0 {
		o.Timeout = 2 * time.Minute
	}
	n := &Node{
		Options: o, lanes: map[mariposa.ComputeType]*lane{}, instances: map[string]*instance{}, found: map[string]found{},
		resources: map[string]*resource{}, staleResources: map[string]struct{}{},
		dirtyInstances: map[string]struct{}{}, members: map[string]*membership{},
		interned: map[string]string{}, stopBeat: func() {}, stopWatch: func() {},
	}
	n.keys.Store(&Keys{Current: o.Hello.Key, Former: o.Hello.FormerKey})
	n.valuesServer = newValuesServer(o.Mdata, cmp.Or(o.ValuesKey, o.Hello.Key))
	n.inbox = mailbox.New[func(context.Context)](o.Wake)
	n.checker = n.newChecker()
	n.Hello.Protocol, n.Hello.Acks, n.Hello.Drivers, n.Hello.Capabilities = wire.Protocol, true, nil, map[mariposa.ComputeType]mariposa.Capabilities{}
	n.Hello.Offers = map[mariposa.ComputeType]mariposa.Offer{}
	n.Hello.Names = o.Names != nil
	for _, d := range o.Drivers {
		n.addDriver(d)
	}
	return n
}

// List finds the instances that the drivers already have. It must succeed before the
// node connects: an agent must never start an instance a second time. If the engine of a
// driver is away, its instances wait until they can be listed.
func (n *Node) List(ctx context.Context) error {
	for kind, l := range n.lanes {
		all, err := l.driver.List(ctx)
		if err != nil && (l.unavailable() != "" || errors.Is(err, driver.ErrEngineAway)) {
			slog.Warn("cannot list instances yet: their engine is away", "node", n.Hello.Name, "compute", kind, "err", err)
			l.isUnlisted = true
			if l.unavailable() == "" { // the driver has not noticed, or the engine is back
				n.Clock.After(retryDelay, func() { n.post(func() { n.relist(kind) }) })
			}
			continue
		}
		if err != nil {
			return fmt.Errorf("list %s instances on this node: %w", kind, err)
		}
		for _, o := range all {
			n.found[o.ID] = found{kind, n.Clock.Now(), o}
			n.Names.setOwner(o.ID, o.Details, o.Origin)
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
		if n.left != nil { // it ends, and must not count as running again
			out.Close()
			return
		}
		n.out, n.seq, n.order = out, 0, wire.FrameOrder{}
		n.lastHeard = n.Clock.Now()
		h := n.Hello
		keys := n.keys.Load()
		h.Key, h.FormerKey = keys.Current, keys.Former
		if n.Seen.Incarnation != "" {
			h.Seen = new(n.Seen)
		}
		n.machineChanged, n.offersChanged = false, false
		n.send(wire.Frame{Hello: &h})
		n.watchSilence(out)
	})
}

// SetMachine sets the facts of the machine. They go with the next hello, or with the next
// report if they have changed.
func (n *Node) SetMachine(m *mariposa.Machine) {
	n.post(func() {
		if reflect.DeepEqual(m, n.Hello.Machine) {
			return
		}
		n.Hello.Machine = m
		n.machineChanged = n.out != nil // its hello has gone
	})
}

// Disconnected notifies the node that the connection is lost. Instances keep running.
func (n *Node) Disconnected(out Outlet) {
	n.inbox.Put(func(context.Context) {
		if n.out == out {
			n.resetConnection()
			n.leftIfAnnounced()
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
	n.updateChecks()
	n.updateOwners()
	n.updateMembers()
	n.report()
}

// post runs f in the next step. It may be called from any goroutine.
func (n *Node) post(f func()) { n.inbox.Put(func(context.Context) { f() }) }

func (n *Node) resetConnection() {
	n.inventoryHeld = false
	n.Names.disconnected()
	n.out, n.welcomed, n.complete, n.snapshot, n.offeredResources, n.earlyValues = nil, false, false, nil, nil, earlyValues{}
	n.stopBeat()
	n.stopWatch()
	n.stopBeat, n.stopWatch = func() {}, func() {}
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
	n.lastHeard = n.Clock.Now()
	if f.Heartbeat != nil {
		if err := n.order.Check(f.Heartbeat); err != nil {
			return err
		}
		n.noteSeen(n.labels.Incarnation, f.Heartbeat.Revision, f.Heartbeat.Proof)
		return nil
	}
	if next, err := n.order.Accept(f.Seq); err != nil || !next {
		return err
	}
	switch {
	case f.Welcome != nil:
		n.handleWelcome(f.Welcome)
	case f.Assign != nil && n.welcomed:
		n.noteSeen(n.labels.Incarnation, f.Assign.Revision, f.Assign.Proof)
		n.handleAssign(f.Assign)
	case f.Provide != nil && n.welcomed:
		n.handleProvide(f.Provide)
	case f.Mdata != nil && n.welcomed:
		return n.handleMdata(f.Mdata)
	case f.Names != nil && n.welcomed:
		n.Names.apply(f.Names)
	case f.Balance != nil && n.welcomed:
		n.handleBalance(f.Balance)
	case f.Crash != nil:
		n.crash(f.Crash)
	case f.Rotate != nil && n.welcomed:
		n.offerKey()
	default:
		return fmt.Errorf("the control plane sent an unexpected frame")
	}
	return nil
}

func (n *Node) handleWelcome(w *wire.Welcome) {
	n.welcomed, n.patience = true, 0
	if n.Seen.Incarnation != "" && n.Seen.Incarnation != w.Incarnation {
		n.newIncarnation = true
	}
	if n.labels.Incarnation != w.Incarnation {
		for _, i := range n.instances { // this store has its own counters
			i.desired.Generation, i.status.Generation, i.generation, i.fromThisStore, i.recountRestarts = 0, 0, 0, false, true
		}
	}
	n.labels = driver.Labels{Cluster: w.Cluster, Incarnation: w.Incarnation}
	n.past = w.Past
	if n.Admitted != nil {
		n.Admitted()
	}
	n.noteSeen(w.Incarnation, w.Revision, w.Proof)
	n.beat = max(w.HeartbeatInterval, 10*time.Millisecond)
	n.snapshot, n.offeredResources = map[string]bool{}, map[string]bool{}
	n.stopBeat()
	n.stopWatch()
	n.scheduleHeartbeat(n.out)
	n.watchSilence(n.out)
	n.noteKey(w.KeyHash)
}

// noteSeen notes a state of the store, with the server's proof of it.
func (n *Node) noteSeen(incarnation string, revision int64, proof string) {
	is := n.Seen.Incarnation == incarnation && (n.Seen.Proof != "" || proof == "")
	if incarnation == "" || is && n.Seen.Revision >= revision {
		return
	}
	if n.Seen = (wire.Seen{Incarnation: incarnation, Revision: revision, Past: n.past, Proof: proof}); n.Remember != nil {
		n.Remember(n.Seen)
	}
}

// scheduleHeartbeat keeps the connection alive.
func (n *Node) scheduleHeartbeat(out Outlet) {
	n.stopBeat = n.Clock.After(n.beat, func() {
		n.post(func() {
			if n.out != out {
				return
			}
			n.out.Send(wire.Frame{Heartbeat: &wire.Heartbeat{Sent: n.seq}})
			n.scheduleHeartbeat(out)
		})
	})
}

// watchSilence reconnects when the control plane has been silent too long. A node whose
// connection was cut without a trace reconnects before the control plane considers it
// unknown, which takes 11/5 of the heartbeat interval.
func (n *Node) watchSilence(out Outlet) {
	limit := cmp.Or(n.patience, firstWelcomeTimeout)
	if n.welcomed {
		limit = 9 * n.beat / 5
	}
	now := n.Clock.Now()
	if now.Before(n.lastHeard) { // the clock was set back
		n.lastHeard = now
	}
	n.stopWatch = n.Clock.After(n.lastHeard.Add(limit).Sub(now), func() {
		n.post(func() {
			switch {
			case n.out != out:
			case n.Clock.Now().Sub(n.lastHeard) < limit:
				n.watchSilence(out)
			default:
				slog.Warn("no message from the control plane; reconnecting", "node", n.Hello.Name)
				if !n.welcomed {
					n.patience = min(2*limit, lastWelcomeTimeout)
				}
				n.out.Abort() // a proper end would wait for an answer
				n.resetConnection()
			}
		})
	})
}

// crash makes an instance fail as if by itself, or its health checks, if its driver can.
func (n *Node) crash(c *wire.Crash) {
	i := n.instances[c.Instance]
	if i == nil {
		return
	}
	d, ok := n.lane(i.compute).driver.(driver.Crasher)
	if !ok {
		return
	}
	var err error
	if c.Health != "" {
		err = d.SetHealthy(c.Instance, c.Health == mariposa.HealthHealthy)
	} else {
		err = d.Crash(c.Instance)
	}
	if err != nil {
		slog.Warn("cannot make an instance fail", "instance", c.Instance, "err", err)
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
		n.assign(it, a.Workloads[it.Workload], a.Logins[it.Login])
		n.assignChecks(it.ID, it.Checks, a.Checks[it.Checks])
	}
	if !a.Snapshot || !a.Last {
		return
	}
	for _, id := range slices.Sorted(maps.Keys(n.instances)) {
		if i := n.instances[id]; !n.snapshot[id] && !i.tombstone {
			n.quarantine(i)
		}
	}
	n.snapshot, n.newIncarnation = nil, false
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
	if n.machineChanged {
		n.machineChanged = false
		n.send(wire.Frame{Report: &wire.Report{Machine: n.Hello.Machine}})
	}
	if n.offersChanged {
		n.offersChanged = false
		n.send(wire.Frame{Report: &wire.Report{Abilities: &wire.Abilities{Drivers: n.Hello.Drivers, Offers: maps.Clone(n.Hello.Offers)}}})
	}
	n.reportProvided(false) // resources are reported made before their users, and gone after them
	n.reportInstances()
	n.reportProvided(true)
}

// reportInstances sends the changes of instances and of the quarantine.
func (n *Node) reportInstances() {
	r := &wire.Report{}
	if n.inventory && !n.inventoryHeld {
		n.inventory = false
		parts := wire.PackQuarantined(n.quarantined())
		last := len(parts) - 1
		for _, part := range parts[:last] {
			n.send(wire.Frame{Report: &wire.Report{Quarantined: part}})
		}
		r.Inventory, r.Quarantined = true, parts[last]
		n.postponeInventory(time.Duration(last) * inventoryPause)
	}
	ids := slices.Sorted(maps.Keys(n.dirtyInstances))
	clear(n.dirtyInstances)
	for _, id := range ids {
		i := n.instances[id]
		if i == nil || i.status.State == "" {
			continue
		}
		r.Add(wire.Status{ID: id, Status: i.status})
		n.forgetIfDone(i)
		if r.IsFull() {
			n.send(wire.Frame{Report: r})
			r = &wire.Report{}
		}
	}
	if len(r.Items) > 0 || r.Inventory {
		n.send(wire.Frame{Report: r})
	}
}

// inventoryPause is how long after an inventory the next one is sent, for each of its parts
// but the first. While thousands of quarantined instances are removed, each removal changes
// the inventory, and servers read only so much.
const inventoryPause = 500 * time.Millisecond

func (n *Node) postponeInventory(pause time.Duration) {
	if pause > 0 {
		n.inventoryHeld = true
		n.Clock.After(pause, func() { n.post(func() { n.inventoryHeld = false }) }) // the step reports
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
			State: mariposa.StateStopped, Reason: "this store does not know it", Since: f.since, Origin: f.seen.Origin,
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
