package fleet

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
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
	from  string   // the address of its agent
	past  []string // incarnations of the store before the current one that the node has seen
	inbox *mailbox.Box[message]

	waiting atomic.Int64 // bytes of the frames in the inbox
	reading *readBudget

	began        time.Time
	countStreams func() int // that are open; nil in virtual time

	dial func(wire.Open) (*wire.Stream, error) // opens a stream; nil in virtual time, which has no streams

	mu       sync.Mutex // guards the fields of this group: frames are sent from several goroutines
	out      Outlet
	seq      int64
	ended    bool
	endCause string // why it has ended
	// quarantine are the reported instances in quarantine; written only by Step, and never
	// changed in place.
	quarantine []mariposa.Quarantined
	sampled    bool      // the agent has not reported them yet, and quarantine is what is stored of many
	retry      func()    // cancels the scheduled retry of a store write
	renewBy    time.Time // when it ends at the latest so that its node connects with its new key; zero: it need not

	order             wire.FrameOrder                     // used by the reader of the connection
	snapshotSent      bool                                // after it, changes are sent
	pending           map[string]*mariposa.InstanceStatus // reported, not yet stored
	nextID            string                              // the instance whose pending status is stored first, if there are too many
	recent            map[string]*mariposa.InstanceStatus // stored, perhaps not yet in the picture
	recentAt          int64
	provided          map[string]wire.Provided // reported resources, not yet stored
	inventory         inventory                // of which the last part has not arrived
	quarantineTotal   int                      // reported instances in quarantine
	quarantineExcess  []string                 // what was cut of them
	quarantineChanged bool
	quarantineNews    bool     // other instances are in it
	excess            []string // what was cut of all other reports
	excessChanged     bool
	machine           *mariposa.Machine
	machineChanged    bool
	reboots           bool                         // its machine is shutting down
	judged            bool                         // its node counts as unknown, though it is connected here
	endings           map[string]ending            // what the node was told about the ends of instances
	members           map[string][]mariposa.Member // what its balancers were told
	histories         map[string]balancerHistory   // by balancer
	leaving           map[string]string            // instances that wait for balancers before they stop, with their projects
	keyRequested      time.Time                    // the newest request for a new key that the node knows of
	offeredKey        string                       // the hash of a key that the node has stored, not yet stored here
	servers           []string                     // that the node knows of
	ready             chan struct{}                // closed once the node knows its instances, so streams can be opened
	names             namesSent
}

// message is one item in a session's mailbox; an empty one triggers a retry.
type message struct {
	frame  *wire.Frame
	broken error         // the agent broke the protocol
	change *store.Change // of an instance, a resource or the node
	values []string      // instances whose live values have changed
	names  bool          // names that the node knows have changed

	balancer string // a balancer whose members may have changed
	leaving  string // a project whose leaving instances may stop
}

func newSession(f *Fleet, h *wire.Hello, spec *mariposa.NodeSpec, epoch int64, from string, out Outlet, wake func()) *Session {
	var c cutter
	s := &Session{
		f: f, node: h.Node, hello: c.hello(h), spec: spec, epoch: epoch, from: from, out: out, began: f.Clock.Now(),
		pending: map[string]*mariposa.InstanceStatus{}, recent: map[string]*mariposa.InstanceStatus{}, retry: func() {}, ready: make(chan struct{}),
		provided: map[string]wire.Provided{}, endings: map[string]ending{}, members: map[string][]mariposa.Member{}, histories: map[string]balancerHistory{}, leaving: map[string]string{}, reading: f.readings.of(h.Node),
	}
	s.machine, s.past, s.excess = s.hello.Machine, f.pastOf(h), c.excess
	if len(c.excess) > 0 {
		s.logExcess(c.excess)
	}
	if r := f.Picture.Nodes.Get(h.Node); r != nil && r.Status() != nil { // until the agent reports another
		s.quarantine, s.quarantineTotal = r.Status().Quarantined, r.Status().CountQuarantined()
		s.sampled = s.quarantineTotal > len(s.quarantine)
	}
	s.order.Accept(1) //nolint:errcheck // the hello was frame 1
	s.inbox = mailbox.New[message](wake)
	return s
}

// Node returns the id of the session's node.
func (s *Session) Node() string { return s.node }

// Receive passes a frame from the agent to the session. Any frame is a sign of life. A
// heartbeat is answered at once: the session itself may be waiting for the store.
func (s *Session) Receive(f wire.Frame) {
	s.f.noteHeard(s)
	var next bool
	var err error
	if f.Heartbeat != nil {
		err = s.answerHeartbeat(f.Heartbeat)
	} else {
		next, err = s.order.Accept(f.Seq)
	}
	switch {
	case err != nil:
		s.inbox.Put(message{broken: err})
	case next && s.waiting.Add(int64(f.Size())) > maxWaiting:
		s.inbox.Put(message{broken: mariposa.Errorf(mariposa.TooLarge, "the agent reports more than can be stored: more than %d MiB of its reports wait", maxWaiting>>20)})
	case next:
		s.inbox.Put(message{frame: &f})
	}
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
	var values, balancers []string
	leaving := map[string]bool{}
	open, names := false, false
	for _, m := range s.inbox.Take() {
		switch {
		case m.broken != nil:
			return m.broken
		case m.frame != nil:
			s.waiting.Add(-int64(m.frame.Size()))
			if err := s.handleFrame(ctx, m.frame); err != nil {
				return err
			}
		case m.names:
			names = true
		case m.values != nil:
			values = append(values, m.values...)
		case m.balancer != "":
			balancers = append(balancers, m.balancer)
		case m.leaving != "":
			leaving[m.leaving] = true
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
		s.sendNames() // before the instances, which have the names in their configuration
		if err := s.sendSnapshot(ctx); err != nil {
			return err
		}
		close(s.ready)
		if r := s.f.Picture.Nodes.Get(s.node); r != nil {
			s.requestKey(r.Spec())
		}
	} else if s.snapshotSent {
		s.updateNames(names, changed)
		if err := s.sendNews(ctx, changed, values, balancers, leaving); err != nil {
			return err
		}
	}
	if err := s.storeKey(ctx); err != nil {
		return err
	}
	if err := s.storePending(ctx); err != nil || !s.reboots {
		return err
	}
	return s.storeReboot(ctx)
}

// sendNews sends the node what has changed: records of its own, instances with other values,
// balancers with other members, and projects whose leaving instances may stop.
func (s *Session) sendNews(ctx context.Context, changed []store.Change, values, balancers []string, leaving map[string]bool) error {
	if err := s.sendMembers(ctx, balancers); err != nil { // before the goals of new balancers
		return err
	}
	records := s.records(values)
	if err := s.sendValues(ctx, records); err != nil {
		return err
	}
	ends, err := s.endOtherwise(ctx, records)
	if err != nil {
		return err
	}
	// The stop timeout of those that are stopping may be shorter now.
	if err := s.sendFrames(ctx, slices.Concat(ends, stoppingInstances(records))); err != nil {
		return err
	}
	if err := s.sendChanges(ctx, changed); err != nil {
		return err
	}
	return s.releaseLeaving(ctx, leaving)
}

// handleNodeChange reports whether the session's own opening has come through the feed:
// from then on the picture shows everything that was stored before it.
func (s *Session) handleNodeChange(c *store.Change) bool {
	if c.Deleted {
		s.endWith(&wire.Bye{Reason: "the node was removed", Removed: true})
		return false
	}
	spec := c.Record.Spec.(*mariposa.NodeSpec)
	if c.Spec && spec.Lost {
		s.end("the node is simulating a failure")
		return false
	}
	if c.Spec && s.snapshotSent {
		s.sendTombstones(spec.Purge)
		s.requestKey(spec)
	}
	st, _ := c.Record.Status.(*mariposa.NodeStatus)
	if st != nil && st.Epoch > s.epoch { // nothing that it stores counts any more
		s.end("the node opened another session")
		return false
	}
	if st == nil || st.Epoch != s.epoch {
		return false
	}
	s.judged = st.State == mariposa.NodeUnknown
	return true
}

func (s *Session) handleFrame(ctx context.Context, f *wire.Frame) error {
	switch {
	case f.Report != nil:
		s.handleReport(ctx, f.Report)
	case f.Rotate != nil:
		return s.handleRotate(f.Rotate)
	case f.Bye != nil && f.Bye.Reboot:
		s.reboots = true
	case f.Bye != nil:
		return errors.New("the agent ended the session: " + shorten(f.Bye.Reason, maxWord))
	default:
		return errors.New("the agent sent a frame that only servers may send")
	}
	return nil
}

// answerHeartbeat responds to a heartbeat. It returns an error if a frame that the agent
// sent before never arrived.
func (s *Session) answerHeartbeat(b *wire.Heartbeat) error {
	if err := s.order.Check(b); err != nil {
		return err
	}
	revision := s.f.Picture.Revision()
	answer := wire.Heartbeat{Revision: revision, Proof: s.f.prove(revision, s.past), Servers: s.newServers()}
	s.mu.Lock()
	defer s.mu.Unlock()
	if answer.Sent = s.seq; !s.ended {
		s.out.Send(wire.Frame{Heartbeat: &answer})
	}
	return nil
}

// storePending stores the pending reports. Those that cannot be stored now are kept and
// retried.
func (s *Session) storePending(ctx context.Context) error {
	batches := slices.Concat(s.provisionBatches(false), s.batches(), s.provisionBatches(true))
	if len(batches) == 0 {
		return nil
	}
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
			s.f.reports.giveBack(s.node, len(batches[i].ids))
			s.retryLater()
		}
	}
	return nil
}

// markStored removes stored reports from the pending ones; an empty batch stands for the
// status of the node.
func (s *Session) markStored(b batch) {
	if b.ids == nil && b.resource == "" {
		s.quarantineChanged, s.quarantineNews, s.machineChanged, s.excessChanged, s.judged = false, false, false, false, false
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
	if s.statusChanged() && s.mayWriteStatus() {
		all = append(all, batch{unit: store.Unit{Fences: fence, Urgent: s.judged, Writes: s.nodeWrites()}})
	}
	bulk := batch{unit: store.Unit{Fences: fence}}
	for _, id := range s.storable() {
		known, st := s.f.Picture.Instances.Get(id), s.pending[id]
		switch {
		case known == nil: // deleted since it was listed
			delete(s.pending, id)
			s.f.reports.giveBack(s.node, 1)
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

// storable returns the instances whose pending status can be stored now, however often the
// node changes it. The others stay pending, and a newer status replaces the one that waits.
// They take turns, so that those that change all the time do not hold up the rest.
func (s *Session) storable() []string {
	ids := slices.Sorted(maps.Keys(s.pending))
	ids = slices.DeleteFunc(ids, func(id string) bool {
		if s.f.Picture.Instances.Get(id) != nil {
			return false
		}
		delete(s.pending, id) // deleted meanwhile
		return true
	})
	n := s.f.reports.take(s.node, len(ids), s.f.Picture.CountOn(s.node), s.f.Clock.Now())
	if n == len(ids) {
		return ids
	}
	if s.f.mayLog(s.node, "too many changes") {
		slog.Warn("a node reports too many changes of its instances; only the newest state of each is stored, with a delay", "node", s.hello.Name, "id", s.node)
	}
	s.retryLater()
	from, _ := slices.BinarySearch(ids, s.nextID)
	ids = slices.Concat(ids[from:], ids[:from])
	s.nextID = ids[n]
	return ids[:n]
}

// statusChanged reports whether the status of the node must be stored.
func (s *Session) statusChanged() bool {
	return s.quarantineChanged || s.machineChanged || s.excessChanged || s.judged
}

// mayWriteStatus reports whether the status of the node can be stored now, however often
// the node changes it. If not, the newest is stored later.
func (s *Session) mayWriteStatus() bool {
	if s.judged || s.f.statuses.take(s.node, s.f.Clock.Now()) == 0 {
		return true
	}
	s.retryLater()
	return false
}

// nodeWrites returns the writes of the node's status. A connected node is running,
// whatever another replica concluded from its silence.
func (s *Session) nodeWrites() (all []store.Write) {
	status := s.nodeStatus(mariposa.NodeRunning)
	if s.judged {
		all = append(all, store.Write{Kind: mariposa.KindNode, ID: s.node, Status: status, Event: nodeEvent("node.running", s.hello)})
	}
	if s.quarantineChanged {
		all = append(all, store.Write{Kind: mariposa.KindNode, ID: s.node, Status: status, Event: s.quarantineEvent()})
	}
	if s.machineChanged || s.excessChanged {
		event := nodeEvent("node.facts", s.hello)
		event.Reason = status.Reason
		all = append(all, store.Write{Kind: mariposa.KindNode, ID: s.node, Status: status, Event: event})
	}
	return all
}

func (s *Session) writeStatus(u *store.Unit, known *store.Instance, st *mariposa.InstanceStatus) {
	id, spec := known.ID, known.Spec()
	w := store.Write{Kind: mariposa.KindInstance, ID: id, Project: spec.Project, Status: st, Event: s.eventOf(known, st)}
	if settlesRecord(known, st) {
		w.Status, w.Delete = nil, true
		u.GiveBack(s.node, spec.Resources())
	}
	u.Put(w)
	u.Urgent = u.Urgent || st.State == mariposa.StateFailed
}

// eventOf returns the event of a new status: about its health if only that has changed, else about
// its state. Members of a load balancer come and go with the events of their own; only whether all
// of them are up is news.
func (s *Session) eventOf(known *store.Instance, st *mariposa.InstanceStatus) mariposa.Event {
	last := known.Status()
	if r := s.recent[known.ID]; r != nil {
		last = r
	}
	kind, why := "instance."+string(st.State), mariposa.Reported(st.Reason)
	switch {
	case last == nil || last.State != st.State:
	case last.Health != st.Health && (st.Health == mariposa.HealthHealthy || st.Health == mariposa.HealthUnhealthy):
		kind = "instance." + string(st.Health)
	case haveOnlyMembersChanged(last, st):
		if kind, why = memberNews(last.Members, st.Members); kind == "" {
			return mariposa.Event{}
		}
	}
	return known.Spec().Event(kind, known.ID, "node "+s.hello.Name, why)
}

func (s *Session) nodeStatus(state mariposa.NodeState) *mariposa.NodeStatus {
	since := s.f.Clock.Now()
	var losses []time.Time
	var copied *mariposa.RefusedCopy
	if r := s.f.Picture.Nodes.Get(s.node); r != nil {
		if st := r.Status(); st != nil {
			if losses = st.Losses; st.State == state {
				since = st.Since
			}
			if st.Copy != nil && s.f.Clock.Now().Sub(st.Copy.At) < mariposa.CopyLifetime {
				copied = st.Copy
			}
		}
	}
	sample, total := sampleOf(s.listQuarantine()), s.quarantineTotal
	if total == len(sample) {
		total = 0
	}
	return &mariposa.NodeStatus{
		State: state, Since: since, Epoch: s.epoch, Replica: s.f.Replica, Address: s.from, Home: s.hello.Home, Capacity: s.hello.Capacity,
		Drivers: s.hello.Drivers, Capabilities: s.hello.Capabilities, Offers: s.hello.Offers, Machine: s.machine,
		Quarantined: sample, QuarantinedTotal: total, Losses: losses, Copy: copied, Reason: reportCut(s.excess, s.quarantineExcess),
	}
}

// End ends the session from outside: its connection is gone.
func (s *Session) End(why string) { s.end(why) }

func (s *Session) end(why string) { s.endWith(&wire.Bye{Reason: why}) }

func (s *Session) endWith(bye *wire.Bye) {
	if seq, ok := s.stop(bye.Reason); ok {
		s.out.Send(wire.Frame{Seq: seq, Bye: bye})
		s.out.Close()
	}
}

// stop ends the session and leaves its connection open. It returns the number of the next
// frame; false if the session had ended before.
func (s *Session) stop(why string) (seq int64, ok bool) {
	s.f.removeSession(s)
	s.mu.Lock()
	already, seq := s.ended, s.seq+1
	unretry := s.retry
	s.ended, s.endCause = true, cmp.Or(s.endCause, why)
	s.mu.Unlock()
	if already {
		return 0, false
	}
	unretry()
	s.endNames()
	return seq, true
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
