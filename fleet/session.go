package fleet

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"mariposa"
	"mariposa/mailbox"
	"mariposa/store"
	"mariposa/wire"
)

// Session is one agent's connection to this replica. Its epoch fences its writes: the
// newest connection of a node wins.
type Session struct {
	f     *Fleet
	node  string
	hello *wire.Hello
	spec  *mariposa.NodeSpec
	epoch int64
	from  string // the address of its agent
	inbox *mailbox.Box[message]

	dial func(wire.Open) (*wire.Stream, error) // opens a stream; nil in virtual time, which has no streams

	mu       sync.Mutex // guards the fields of this group: frames are sent from several goroutines
	out      Outlet
	seq      int64
	ended    bool
	endCause string // why it has ended
	retry    func() // cancels the scheduled retry of a store write

	order             wire.FrameOrder
	sentAtBeats       [2]int64                            // the newest frame sent at the last heartbeat but one, and at the last
	snapshotSent      bool                                // after it, changes are sent
	pending           map[string]*mariposa.InstanceStatus // reported, not yet stored
	recent            map[string]*mariposa.InstanceStatus // stored, perhaps not yet in the picture
	recentAt          int64
	provided          map[string]wire.Provided // reported resources, not yet stored
	quarantine        []mariposa.Quarantined
	quarantineChanged bool
	judged            bool            // its node counts as unknown, though it is connected here
	frozen            map[string]bool // instances that the node knows to be frozen
	ready             chan struct{}   // closed once the node knows its instances, so streams can be opened
}

// message is one item in a session's mailbox; an empty one triggers a retry.
type message struct {
	frame  *wire.Frame
	change *store.Change // of an instance, a resource or the node
	values []string      // instances whose live values have changed
}

func newSession(f *Fleet, h *wire.Hello, spec *mariposa.NodeSpec, epoch int64, from string, out Outlet, wake func()) *Session {
	s := &Session{
		f: f, node: h.Node, hello: h, spec: spec, epoch: epoch, from: from, out: out,
		pending: map[string]*mariposa.InstanceStatus{}, recent: map[string]*mariposa.InstanceStatus{}, retry: func() {}, ready: make(chan struct{}),
		provided: map[string]wire.Provided{}, frozen: map[string]bool{},
	}
	s.order.Accept(1) //nolint:errcheck // the hello was frame 1
	s.inbox = mailbox.New[message](wake)
	return s
}

// Node returns the id of the session's node.
func (s *Session) Node() string { return s.node }

// Receive passes a frame from the agent to the session. Any frame is a sign of life.
func (s *Session) Receive(f wire.Frame) {
	s.f.noteHeard(s)
	s.inbox.Put(message{frame: &f})
}

// Step processes the mailbox. It is called by one goroutine at a time. An error ends the
// session.
func (s *Session) Step(ctx context.Context) error {
	if s.isEnded() {
		return nil
	}
	if s.f.Picture.Revision() >= s.recentAt {
		clear(s.recent)
	}
	var changed []store.Change
	var values []string
	open := false
	for _, m := range s.inbox.Take() {
		switch {
		case m.frame != nil:
			if err := s.handleFrame(ctx, m.frame); err != nil {
				return err
			}
		case m.values != nil:
			values = append(values, m.values...)
		case m.change == nil: // a retry
		case m.change.Record.Kind == mariposa.KindNode:
			if s.handleNodeChange(m.change) {
				open = true
			}
		default:
			changed = append(changed, *m.change)
		}
	}
	if open && !s.snapshotSent {
		s.snapshotSent = true
		if err := s.sendSnapshot(ctx); err != nil {
			return err
		}
		close(s.ready)
	} else if s.snapshotSent {
		records := s.records(values)
		if err := s.sendValues(ctx, records); err != nil {
			return err
		}
		// The stop timeout of those that are stopping may be shorter now.
		if err := s.sendFrames(ctx, slices.Concat(s.frozenOrThawed(records), stoppingInstances(records))); err != nil {
			return err
		}
		if err := s.sendChanges(ctx, changed); err != nil {
			return err
		}
	}
	return s.storePending(ctx)
}

// handleNodeChange reports whether the session's own opening has come through the feed:
// from then on the picture shows everything that was stored before it.
func (s *Session) handleNodeChange(c *store.Change) bool {
	if c.Deleted {
		s.end("the node was removed")
		return false
	}
	spec := c.Record.Spec.(*mariposa.NodeSpec)
	if c.Spec && spec.Lost {
		s.end("the node is simulating a failure")
		return false
	}
	if c.Spec && s.snapshotSent {
		s.sendTombstones(spec.Purge)
	}
	st, _ := c.Record.Status.(*mariposa.NodeStatus)
	if st == nil || st.Epoch != s.epoch {
		return false
	}
	s.judged = st.State == mariposa.NodeUnknown
	return true
}

func (s *Session) handleFrame(ctx context.Context, f *wire.Frame) error {
	if next, err := s.order.Accept(f.Seq); err != nil || !next {
		return err
	}
	switch {
	case f.Report != nil:
		s.handleReport(ctx, f.Report)
	case f.Heartbeat != nil:
		return s.handleHeartbeat(f.Heartbeat)
	case f.Bye != nil:
		return errors.New("the agent ended the session: " + f.Bye.Reason)
	default:
		return errors.New("the agent sent a frame that only servers may send")
	}
	return nil
}

// handleHeartbeat responds to a heartbeat. It ends the session if a frame sent before the
// last heartbeat but one never arrived: a frame that is only slow has a whole interval to
// arrive.
func (s *Session) handleHeartbeat(b *wire.Heartbeat) error {
	if b.Seen < s.sentAtBeats[0] {
		return errors.New("a frame to the agent was lost")
	}
	s.send(wire.Frame{Heartbeat: &wire.Heartbeat{Seen: s.order.Seen()}})
	s.mu.Lock()
	s.sentAtBeats = [2]int64{s.sentAtBeats[1], s.seq}
	s.mu.Unlock()
	return nil
}

func (s *Session) handleReport(ctx context.Context, r *wire.Report) {
	for i := range r.Items {
		it := &r.Items[i]
		known := s.f.Picture.Instances.Get(it.ID)
		if known == nil || known.Spec().Node != s.node {
			continue // deleted meanwhile, or not this node's
		}
		next := it.Status
		s.maskSecrets(ctx, known.Spec(), &next)
		if s.completeStatus(it.ID, known, &next) {
			s.pending[it.ID] = &next
		}
	}
	s.handleProvided(r.Provided)
	if r.Inventory && !slices.Equal(r.Quarantined, s.quarantine) {
		s.quarantine, s.quarantineChanged = r.Quarantined, true
	}
}

// completeStatus completes a reported status and reports whether it must be stored.
func (s *Session) completeStatus(id string, known *store.Instance, next *mariposa.InstanceStatus) bool {
	last := known.Status()
	if r := s.recent[id]; r != nil {
		last = r
	}
	if p := s.pending[id]; p != nil {
		last = p
	}
	from := mariposa.StateOf(known.Spec(), last)
	if !mariposa.CanFollow(from, next.State) {
		slog.Warn("a node reported an invalid change of state", "node", s.node, "instance", id, "from", from, "to", next.State)
		return false
	}
	if last == nil && next.State == mariposa.StateProvisioning && next.PhysicalID == "" && next.Reason == "" {
		return false // an assignment implies this state
	}
	next.Since = s.f.Clock.Now()
	if last != nil && from == next.State {
		next.Since = last.Since
		return !sameStatus(last, next) || (settlesRecord(known, next) && s.recent[id] == nil)
	}
	return true
}

// settlesRecord reports whether this status allows the deletion of a record that no
// planner deletes: the instance is destroyed, and it is orphaned, or unmanaged with the
// goal gone.
func settlesRecord(known *store.Instance, st *mariposa.InstanceStatus) bool {
	spec := known.Spec()
	return (spec.Orphaned || (!spec.Managed && spec.Goal == mariposa.GoalGone)) && st.State == mariposa.StateDestroyed
}

func sameStatus(a, b *mariposa.InstanceStatus) bool {
	return a.State == b.State && a.Health == b.Health && a.Generation == b.Generation && a.PhysicalID == b.PhysicalID &&
		a.Restarts == b.Restarts && a.ManualRestarts == b.ManualRestarts && a.Reason == b.Reason && slices.Equal(a.Addresses, b.Addresses) && maps.Equal(a.Details, b.Details)
}

// storePending stores the pending reports. Those that cannot be stored now are kept and
// retried.
func (s *Session) storePending(ctx context.Context) error {
	if len(s.pending) == 0 && len(s.provided) == 0 && !s.quarantineChanged && !s.judged {
		return nil
	}
	batches := slices.Concat(s.provisionBatches(false), s.batches(), s.provisionBatches(true))
	units := make([]store.Unit, len(batches))
	for i := range batches {
		units[i] = batches[i].unit
	}
	for i, res := range s.f.Store.Commit(ctx, units...) {
		switch {
		case res.Err == nil, errors.Is(res.Err, store.ErrConflict): // a conflict: the record was deleted before
			s.recentAt = max(s.recentAt, res.Last)
			s.markStored(batches[i])
		case errors.Is(res.Err, store.ErrFenced):
			return errors.New("the node opened another session")
		default:
			slog.Warn("cannot store the report of a node; retrying", "node", s.node, "err", res.Err)
			s.retryLater()
		}
	}
	return nil
}

// markStored removes stored reports from the pending ones; an empty batch stands for the
// status of the node.
func (s *Session) markStored(b batch) {
	if b.ids == nil && b.resource == "" {
		s.quarantineChanged, s.judged = false, false
	}
	delete(s.provided, b.resource)
	for _, id := range b.ids {
		s.recent[id] = s.pending[id]
		delete(s.pending, id)
	}
}

func (s *Session) retryLater() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended {
		return
	}
	s.retry()
	s.retry = s.f.Clock.After(time.Second, func() { s.inbox.Put(message{}) })
}

// unitSize is how many statuses go into one unit.
const unitSize = 500

// batch is a unit with the ids of the instances, or of the resource, that it covers.
type batch struct {
	unit     store.Unit
	ids      []string
	resource string
}

// fence makes the session's writes fail once the node opened another session.
func (s *Session) fence() []store.Fence {
	return []store.Fence{{Lease: leaseName(s.node), Epoch: s.epoch}}
}

// batches returns the units to store. Each orphaned instance that is destroyed gets its
// own unit, which requires that its record is unchanged: its claim must not be released
// twice.
func (s *Session) batches() []batch {
	fence := s.fence()
	var all []batch
	if s.quarantineChanged || s.judged {
		all = append(all, batch{unit: store.Unit{Fences: fence, Urgent: s.judged, Writes: s.nodeWrites()}})
	}
	bulk := batch{unit: store.Unit{Fences: fence}}
	for _, id := range slices.Sorted(maps.Keys(s.pending)) {
		known, st := s.f.Picture.Instances.Get(id), s.pending[id]
		switch {
		case known == nil:
			delete(s.pending, id) // deleted meanwhile
			continue
		case settlesRecord(known, st):
			b := batch{unit: store.Unit{Fences: fence}, ids: []string{id}}
			b.unit.Unchanged(known)
			s.writeStatus(&b.unit, known, st)
			all = append(all, b)
			continue
		}
		s.writeStatus(&bulk.unit, known, st)
		if bulk.ids = append(bulk.ids, id); len(bulk.ids) == unitSize {
			all = append(all, bulk)
			bulk = batch{unit: store.Unit{Fences: fence}}
		}
	}
	if len(bulk.ids) > 0 {
		all = append(all, bulk)
	}
	return all
}

// nodeWrites returns the writes of the node's status. A connected node is running,
// whatever another replica concluded from its silence.
func (s *Session) nodeWrites() (all []store.Write) {
	status := s.nodeStatus(mariposa.NodeRunning)
	if s.judged {
		all = append(all, store.Write{Kind: mariposa.KindNode, ID: s.node, Status: status, Event: nodeEvent("node.running", s.hello)})
	}
	if s.quarantineChanged {
		event := nodeEvent("node.quarantine", s.hello)
		event.Reason = &mariposa.Reason{Code: mariposa.ReasonQuarantine, Count: len(s.quarantine)}
		all = append(all, store.Write{Kind: mariposa.KindNode, ID: s.node, Status: status, Event: event})
	}
	return all
}

func (s *Session) writeStatus(u *store.Unit, known *store.Instance, st *mariposa.InstanceStatus) {
	id, spec := known.ID, known.Spec()
	w := store.Write{
		Kind: mariposa.KindInstance, ID: id, Project: spec.Project, Status: st,
		Event: spec.Event("instance."+string(st.State), id, "node "+s.hello.Name, mariposa.Reported(st.Reason)),
	}
	if settlesRecord(known, st) {
		w.Status, w.Delete = nil, true
		u.GiveBack(s.node, spec.Resources())
	}
	u.Put(w)
	u.Urgent = u.Urgent || st.State == mariposa.StateFailed
}

func (s *Session) nodeStatus(state mariposa.NodeState) *mariposa.NodeStatus {
	since := s.f.Clock.Now()
	if r := s.f.Picture.Nodes.Get(s.node); r != nil {
		if st := r.Status(); st != nil && st.State == state {
			since = st.Since
		}
	}
	return &mariposa.NodeStatus{
		State: state, Since: since, Epoch: s.epoch, Replica: s.f.Replica, Address: s.from, Capacity: s.hello.Capacity,
		Drivers: s.hello.Drivers, Capabilities: s.hello.Capabilities, Offers: s.hello.Offers, Quarantined: s.quarantine,
	}
}

// End ends the session from outside: its connection is gone.
func (s *Session) End(why string) { s.end(why) }

func (s *Session) end(why string) {
	s.f.removeSession(s)
	s.mu.Lock()
	already, seq := s.ended, s.seq+1
	unretry := s.retry
	s.ended, s.endCause = true, cmp.Or(s.endCause, why)
	s.mu.Unlock()
	if already {
		return
	}
	unretry()
	s.out.Send(wire.Frame{Seq: seq, Bye: &wire.Bye{Reason: why}})
	s.out.Close()
}

// endReason returns why the session's streams ended.
func (s *Session) endReason() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return errors.New(cmp.Or(s.endCause, "the connection ended"))
}

func (s *Session) isEnded() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.ended
}

func (s *Session) send(f wire.Frame) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended {
		return
	}
	s.seq++
	f.Seq = s.seq
	s.out.Send(f)
}
