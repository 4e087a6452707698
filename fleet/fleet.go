// Package fleet is the control plane's side of the nodes. It has one session for each
// connected agent, sends each node its goals, stores what the node reports, and marks
// nodes as unknown that have been silent too long. The control plane never calls nodes:
// they connect, and converge by themselves.
//
// The package owns sessions and the status of nodes and instances. It does not plan: it
// reads the desired state from the picture.
package fleet

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"mariposa"
	"mariposa/clock"
	"mariposa/discover"
	"mariposa/picture"
	"mariposa/relay"
	"mariposa/seal"
	"mariposa/store"
	"mariposa/wire"
)

// Options configure a fleet.
type Options struct {
	Store   store.Store
	Picture *picture.Picture
	Cache   *picture.VersionCache
	Clock   clock.Clock
	Replica string
	Beat    time.Duration // the heartbeat interval of agents; 5 s if zero
	Release string        // of this server, for messages to people
	Domain  string        // the domain of instance names; mariposa.internal if empty
	// ApproveNodes makes new nodes wait until a person approves them.
	ApproveNodes bool
	// PendingNodes is how many nodes without a join token may wait until a person accepts
	// them; none if zero.
	PendingNodes int
	// StormBreaker is the share of nodes, in percent, that may vanish within a minute before
	// rescheduling stops, if the installation has no such setting; the default if zero, any
	// if negative.
	StormBreaker int
	// Regained is called when a replica that was gone is back, so that its nodes are
	// reachable again.
	Regained func()
	// Outdated is called when a node has seen a revision that the store does not have. If
	// nil, nodes are not believed.
	Outdated func(seen int64)
	// Ring signs the states of the store and the provenances of instances that nodes are told.
	// If nil, nodes are not believed.
	Ring *seal.Ring
	// Links are the connections to the other replicas; nil if there can be none.
	Links *relay.Links
	// NeighborTimeout is how long another replica may take to say when it heard from nodes; a
	// second if zero.
	NeighborTimeout time.Duration
	// Names are those that nodes with DNS servers are told; nil: none.
	Names *discover.Book
}

// Fleet contains the sessions of this replica.
type Fleet struct {
	Options
	identity store.Identity
	began    time.Time
	balancer balancer
	// balancers are the load balancers of all projects.
	balancers balancers
	proofs    proofs
	opens     *throttle // of sessions
	statuses  *throttle // of what nodes report about themselves
	reports   reportLimiter
	readings  readLimiter
	logged    reminders
	// unfinished bounds the frames of all agents that have not arrived completely.
	unfinished *wire.Unfinished
	joined     chan struct{} // closed and replaced when a node opens a session, here or elsewhere

	tokenless   tokenlessGate
	waiting     waitingGate
	registering sync.Mutex    // held while a node without a join token is registered
	joining     chan struct{} // has an element while a node joins with a token

	mu             sync.Mutex
	sessions       map[string]*Session
	lastHeard      map[string]time.Time
	heardElsewhere map[string]time.Time  // when other replicas last heard from nodes, as far as they said
	lastStored     map[string]time.Time  // when the feed last showed that another replica heard from a node
	liveFacts      map[string]*liveFacts // by project, the facts behind its last live values; used only by the feed
	goneReplicas   map[string]time.Time  // when other replicas were first seen to be gone
	watching       time.Time             // since when nothing has kept this replica from watching nodes
	lastTick       time.Time             // when the last one ended
	asked          time.Time             // when a read of the store began that has not been answered; zero if there is none
	unanswered     bool                  // the last read of the store failed
	lapsed         bool                  // this replica's own lease could not be renewed in time
	cancelLapse    func()                // cancels the timer that sets it
	regained       time.Time             // when it was renewed after that
	servers        []string              // addresses of the living replicas
	living         []string              // the names of the living replicas
	lostReplica    time.Time             // when one of them was last noticed to be gone
	neighbors      map[string]*neighbor  // the other replicas that are asked for heartbeats
	drains         chan struct{}         // tells Run that a drain may have made progress

	nameReaders nameReaders
}

// Outlet carries frames to an agent. Send never blocks; Close ends the connection once
// all frames are sent.
type Outlet interface {
	Send(wire.Frame)
	Close()
}

// New returns a fleet without sessions.
func New(ctx context.Context, o Options) (*Fleet, error) {
	if o.Beat == 0 {
		o.Beat = 5 * time.Second
	}
	id, err := o.Store.Identity(ctx)
	if err != nil {
		return nil, err
	}
	f := &Fleet{
		Options: o, identity: id, began: o.Clock.Now(), joined: make(chan struct{}), joining: make(chan struct{}, 1), cancelLapse: func() {}, drains: make(chan struct{}, 1),
		sessions: map[string]*Session{}, lastHeard: map[string]time.Time{}, lastStored: map[string]time.Time{}, liveFacts: map[string]*liveFacts{}, goneReplicas: map[string]time.Time{},
		opens: newThrottle(openBurst, openInterval), statuses: newThrottle(statusBurst, statusInterval),
		unfinished:     wire.NewUnfinished(maxUnfinished, unfinishedTime),
		heardElsewhere: map[string]time.Time{}, neighbors: map[string]*neighbor{},
	}
	f.findBalancers()
	o.Picture.Subscribe(f.routeChanges)
	return f, nil
}

// lifetime is how long a silent node counts as running: 11 s with the default interval, so
// that a heartbeat may be missed once.
func (f *Fleet) lifetime() time.Duration { return 11 * f.Beat / 5 }

// Open begins a session for an agent that sent a hello. It calls wake when the session
// has work for Step. A refusal is returned as a wire.Bye.
func (f *Fleet) Open(ctx context.Context, h *wire.Hello, by Admission, out Outlet, wake func()) (*Session, *wire.Bye) {
	s, bye, _ := f.open(ctx, h, by, out, wake) // the refusal says it
	return s, bye
}

// open is Open. It also returns why the session could not be stored.
func (f *Fleet) open(ctx context.Context, h *wire.Hello, by Admission, out Outlet, wake func()) (*Session, *wire.Bye, error) {
	if bye := f.checkHello(h, by); bye != nil {
		return nil, bye, nil
	}
	if by.Tokenless {
		return nil, f.Announce(ctx, h, by), nil
	}
	if f.hasLapsed() {
		f.NoteAttempt(by)
		return nil, &wire.Bye{Reason: lapsedReason}, nil
	}
	if bye := f.checkSeen(ctx, h); bye != nil {
		return nil, bye, nil
	}
	spec, writes, bye := f.register(h, by)
	if bye != nil {
		return nil, bye, nil
	}
	if spec.Approval != "" {
		bye, err := f.awaitApproval(ctx, h, spec, writes)
		return nil, bye, err
	}
	if bye := f.checkHome(ctx, h, by); bye != nil {
		return nil, bye, nil
	}
	f.noteAlive(h.Node) // even if the store fails: a node is not unknown because of a store outage
	if f.Stalled() {
		return nil, &wire.Bye{Reason: lapsedReason}, nil
	}
	if wait := f.opens.take(h.Node, f.Clock.Now()); wait > 0 {
		return nil, f.refuseOpening(h, wait), nil
	}
	s, bye, err := f.startSession(ctx, h, by, spec, writes, out, wake)
	if bye != nil && !errors.Is(err, store.ErrFenced) { // a lost race of two connections counts
		f.opens.giveBack(h.Node)
	}
	return s, bye, err
}

// refuseOpening tells a node that it opens sessions too often.
func (f *Fleet) refuseOpening(h *wire.Hello, wait time.Duration) *wire.Bye {
	if f.mayLog(h.Node, "too many sessions") {
		slog.Warn("a node opens sessions too often, and must wait each time", "node", h.Name, "id", h.Node, "interval", openInterval)
	}
	return &wire.Bye{Reason: fmt.Sprintf("the node connects too often: after %d sessions in a row, a server opens one every %s for a node; try again in %s",
		openBurst, openInterval, max(time.Second, wait.Round(time.Second)))}
}

// startSession begins a session of a node that may have one, and stores it.
func (f *Fleet) startSession(ctx context.Context, h *wire.Hello, by Admission, spec *mariposa.NodeSpec, writes store.Unit, out Outlet, wake func()) (*Session, *wire.Bye, error) {
	lease, err := f.Store.Seize(ctx, f.Replica, leaseName(h.Node))
	if err == nil {
		err = ctx.Err() // the agent may have left
	}
	if err != nil {
		return nil, unavailableError("open a session", err), err
	}
	s := newSession(f, h, spec, lease.Epoch, by.From, out, wake)
	f.mu.Lock()
	if f.lapsed { // meanwhile
		f.mu.Unlock()
		return nil, &wire.Bye{Reason: lapsedReason}, nil
	}
	old := f.sessions[h.Node]
	f.sessions[h.Node] = s
	f.noteJoined()
	f.mu.Unlock()
	if old != nil {
		old.end("the node opened another session")
	}
	writes.Fences = s.fence()
	writes.Urgent = true
	status := s.nodeStatus(mariposa.NodeRunning)
	for i := range writes.Writes {
		if writes.Writes[i].Kind == mariposa.KindNode {
			writes.Writes[i].Status = status
		}
	}
	if res := f.Store.Commit(ctx, writes)[0]; res.Err != nil {
		s.stop("the session could not be stored") // the caller sends the refusal
		return nil, unavailableError("open a session", res.Err), res.Err
	}
	revision := f.Picture.Revision()
	s.send(wire.Frame{Welcome: &wire.Welcome{Epoch: lease.Epoch, Cluster: f.identity.Cluster, Incarnation: f.identity.Incarnation, Revision: revision, HeartbeatInterval: f.Beat, Servers: s.newServers(), KeyHash: admittedWith(spec, h), Past: s.past, Proof: f.prove(revision, s.past)}})
	return s, nil, nil
}

// noteJoined wakes requests that wait for a node. The caller holds the lock.
func (f *Fleet) noteJoined() {
	close(f.joined)
	f.joined = make(chan struct{})
}

func finalError(format string, args ...any) *wire.Bye {
	return &wire.Bye{Reason: mariposa.Errorf(mariposa.InvalidArgument, format, args...).Message, Final: true}
}

func unavailableError(what string, err error) *wire.Bye {
	if !errors.Is(err, context.Canceled) && !errors.Is(err, store.ErrConflict) { // the agent has left, or another was faster
		slog.Warn("cannot "+what, "err", err)
	}
	return &wire.Bye{Reason: "the server cannot " + what + " now; try again"}
}

func leaseName(node string) string { return "node/" + node }

// routeChanges routes changes to the sessions they concern.
func (f *Fleet) routeChanges(changes []store.Change) {
	f.routeNames(changes)
	byNode := map[string][]message{}
	touched := map[string][]string{} // the changed services by project
	moved := false                   // a node may have opened a session at another replica
	balanced := map[string]bool{}    // projects in which members of balancers may have changed
	touch := func(project string, services ...string) { touched[project] = append(touched[project], services...) }
	for i := range changes {
		c := &changes[i]
		switch spec := c.Record.Spec.(type) {
		case *mariposa.ProjectSpec:
			touch(c.Record.ID)
			balanced[c.Record.ID] = true
		case *mariposa.ServiceSpec:
			touch(spec.Project, spec.Name)
			balanced[spec.Project] = true
		case *mariposa.OrganizationSpec: // its name is part of its projects' values
			for _, p := range f.Picture.ProjectsOf(c.Record.ID) {
				touch(p.ID)
			}
		case *mariposa.InstanceSpec:
			f.noteDrain(spec.Node, c)
			f.noteBalancer(&c.Record, c.Deleted)
			balanced[spec.Project] = true
			if c.Spec || c.Deleted {
				byNode[spec.Node] = append(byNode[spec.Node], message{change: c})
			}
		case *mariposa.VolumeSpec:
			if c.Spec && !c.Deleted {
				byNode[spec.Node] = append(byNode[spec.Node], message{change: c})
			}
		case *mariposa.AttachmentSpec:
			if c.Spec && !c.Deleted {
				byNode[spec.Node] = append(byNode[spec.Node], message{change: c})
			}
		case *mariposa.NodeSpec:
			f.noteDrain(c.Record.ID, c)
			f.noteStored(c)
			byNode[c.Record.ID] = append(byNode[c.Record.ID], message{change: c})
			moved = true
			if c.Status && f.hasBalancers() {
				f.projectsOn(c.Record.ID, balanced)
			}
		}
	}
	for _, project := range slices.Sorted(maps.Keys(touched)) {
		for node, ids := range f.findChangedValues(project, touched[project]) {
			byNode[node] = append(byNode[node], message{values: ids})
		}
	}
	f.routeMembers(balanced, byNode)
	f.mu.Lock()
	defer f.mu.Unlock()
	if moved {
		f.noteJoined()
	}
	for node, notified := range byNode {
		if s := f.sessions[node]; s != nil {
			s.inbox.Put(notified...)
		}
	}
}

// LastHeard returns when a node was last heard from, and its session here, if any.
func (f *Fleet) LastHeard(node string) (time.Time, *Session) {
	f.mu.Lock()
	defer f.mu.Unlock()
	at, ok := f.lastHeard[node]
	if !ok {
		at = f.began
	}
	return at, f.sessions[node]
}

// noteStored notes that another replica has stored the status of a running node.
func (f *Fleet) noteStored(c *store.Change) {
	f.mu.Lock()
	defer f.mu.Unlock()
	switch st, _ := c.Record.Status.(*mariposa.NodeStatus); {
	case c.Deleted:
		delete(f.lastStored, c.Record.ID)
		delete(f.heardElsewhere, c.Record.ID)
		f.opens.forget(c.Record.ID)
		f.statuses.forget(c.Record.ID)
		f.reports.forget(c.Record.ID)
		f.readings.forget(c.Record.ID)
	case c.Status && st.State == mariposa.NodeRunning && st.Replica != f.Replica:
		f.lastStored[c.Record.ID] = f.Clock.Now()
	}
}

func (f *Fleet) noteHeard(s *Session) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.sessions[s.node] == s {
		f.lastHeard[s.node] = f.Clock.Now()
	}
}

func (f *Fleet) removeSession(s *Session) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.sessions[s.node] == s {
		delete(f.sessions, s.node)
	}
}

// Sessions returns how many agents are connected here.
func (f *Fleet) Sessions() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.sessions)
}
