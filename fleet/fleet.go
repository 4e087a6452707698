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
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"mariposa"
	"mariposa/clock"
	"mariposa/picture"
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
	Domain  string        // the domain of instance names; mariposa.internal if empty
	// ApproveNodes makes new nodes wait until a person approves them.
	ApproveNodes bool
	// Regained is called when a replica that was gone is back, so that its nodes are
	// reachable again.
	Regained func()
}

// Fleet contains the sessions of this replica.
type Fleet struct {
	Options
	identity store.Identity
	began    time.Time
	joined   chan struct{} // closed and replaced when a node opens a session

	mu           sync.Mutex
	sessions     map[string]*Session
	lastHeard    map[string]time.Time
	liveFacts    map[string]*liveFacts // by project, the facts behind its last live values; used only by the feed
	goneReplicas map[string]time.Time  // when other replicas were first seen to be gone
	watching     time.Time             // since when nothing has kept this replica from watching nodes
	lastTick     time.Time             // when the last one ended
	lapsed       bool                  // this replica's own lease could not be renewed in time
	cancelLapse  func()                // cancels the timer that sets it
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
		Options: o, identity: id, began: o.Clock.Now(), joined: make(chan struct{}), cancelLapse: func() {},
		sessions: map[string]*Session{}, lastHeard: map[string]time.Time{}, liveFacts: map[string]*liveFacts{}, goneReplicas: map[string]time.Time{},
	}
	o.Picture.Subscribe(f.routeChanges)
	return f, nil
}

// lifetime is how long a silent node counts as running.
func (f *Fleet) lifetime() time.Duration { return 3 * f.Beat }

// Open begins a session for an agent that sent a hello. It calls wake when the session
// has work for Step. A refusal is returned as a wire.Bye.
func (f *Fleet) Open(ctx context.Context, h *wire.Hello, by Admission, out Outlet, wake func()) (*Session, *wire.Bye) {
	if bye := checkHello(h, by); bye != nil {
		return nil, bye
	}
	if f.hasLapsed() {
		return nil, &wire.Bye{Reason: lapsedReason}
	}
	spec, writes, bye := f.register(h, by)
	if bye != nil {
		return nil, bye
	}
	if spec.Approval != "" {
		return nil, f.awaitApproval(ctx, h, spec, writes)
	}
	f.mu.Lock()
	f.lastHeard[h.Node] = f.Clock.Now() // even if the store fails: a node is not unknown because of a store outage
	f.mu.Unlock()
	lease, err := f.Store.Seize(ctx, f.Replica, leaseName(h.Node))
	if err != nil {
		return nil, unavailableError("open a session", err)
	}
	s := newSession(f, h, spec, lease.Epoch, by.From, out, wake)
	f.mu.Lock()
	old := f.sessions[h.Node]
	f.sessions[h.Node] = s
	close(f.joined)
	f.joined = make(chan struct{})
	f.mu.Unlock()
	if old != nil {
		old.end("the node opened another session")
	}
	writes.Fences = s.fence()
	writes.Urgent = true
	writes.Writes[0].Status = s.nodeStatus(mariposa.NodeRunning)
	if res := f.Store.Commit(ctx, writes)[0]; res.Err != nil {
		s.end("the session could not be stored")
		return nil, unavailableError("open a session", res.Err)
	}
	s.send(wire.Frame{Welcome: &wire.Welcome{Epoch: lease.Epoch, Cluster: f.identity.Cluster, Incarnation: f.identity.Incarnation, HeartbeatInterval: f.Beat}})
	return s, nil
}

func finalError(format string, args ...any) *wire.Bye {
	return &wire.Bye{Reason: mariposa.Errorf(mariposa.InvalidArgument, format, args...).Message, Final: true}
}

func unavailableError(what string, err error) *wire.Bye {
	slog.Warn("cannot "+what, "err", err)
	return &wire.Bye{Reason: "the server cannot " + what + " now; try again"}
}

func leaseName(node string) string { return "node/" + node }

// routeChanges routes changes to the sessions they concern.
func (f *Fleet) routeChanges(changes []store.Change) {
	byNode := map[string][]message{}
	touched := map[string][]string{} // the changed services by project
	touch := func(project string, services ...string) { touched[project] = append(touched[project], services...) }
	for i := range changes {
		c := &changes[i]
		switch spec := c.Record.Spec.(type) {
		case *mariposa.ProjectSpec:
			touch(c.Record.ID)
		case *mariposa.ServiceSpec:
			touch(spec.Project, spec.Name)
		case *mariposa.OrganizationSpec: // its name is part of its projects' values
			for _, p := range f.Picture.ProjectsOf(c.Record.ID) {
				touch(p.ID)
			}
		case *mariposa.InstanceSpec:
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
			byNode[c.Record.ID] = append(byNode[c.Record.ID], message{change: c})
		}
	}
	for _, project := range slices.Sorted(maps.Keys(touched)) {
		for node, ids := range f.findChangedValues(project, touched[project]) {
			byNode[node] = append(byNode[node], message{values: ids})
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
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
