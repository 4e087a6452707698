package fleet

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/coder/websocket"
	"github.com/google/uuid"

	"mariposa"
	"mariposa/listener"
	"mariposa/store"
	"mariposa/wire"
)

// Nodes that wait until an operator accepts them: those with a join token if the
// installation approves nodes, and those without one.

const (
	maxPending = 1000 // nodes with a join token that wait for approval
	// DefaultPendingNodes is how many nodes without a join token may wait by default.
	DefaultPendingNodes = 100
	// maxPendingFrom is how many of them may come from one address.
	maxPendingFrom = 10
	// pendingLifetime is how long a node without a join token is kept that does not connect.
	pendingLifetime = 24 * time.Hour
	// seenInterval is how often it is stored that such a node still connects.
	seenInterval = pendingLifetime / 4
	// pendingGrace is how long such nodes have to connect after this replica was started.
	pendingGrace = 10 * time.Minute
	// pendingLease serializes their registration, so that their number is exact.
	pendingLease = "pending-nodes"
)

// Limits of connections without a join token or a key: how many may be open at once, in
// total and from one address, how long they may take and how much they may send.
const (
	maxTokenless     = 64
	maxTokenlessFrom = 8
	tokenlessTimeout = 5 * time.Second
	maxTokenlessRead = 256 << 10
)

// tokenlessGate counts the connections of agents without a join token or a key.
type tokenlessGate struct {
	mu    sync.Mutex
	total int
	from  map[string]int // by the network of the address
}

// EnterTokenless admits one more connection from an address without a join token or a key;
// false if there are too many. Leave must be called when it ends.
func (f *Fleet) EnterTokenless(from string) (leave func(), ok bool) {
	g, group := &f.tokenless, listener.Group(from)
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.total >= maxTokenless || g.from[group] >= maxTokenlessFrom {
		return nil, false
	}
	if g.from == nil {
		g.from = map[string]int{}
	}
	g.total++
	g.from[group]++
	return func() {
		g.mu.Lock()
		defer g.mu.Unlock()
		g.total--
		if g.from[group]--; g.from[group] == 0 {
			delete(g.from, group)
		}
	}, true
}

// ServeTokenless reads the hello of an agent without a join token or a key, and tells it to
// wait. The agent learns nothing about this installation.
func (f *Fleet) ServeTokenless(ctx context.Context, conn *websocket.Conn, by Admission) {
	ctx, cancel := context.WithTimeout(ctx, 2*tokenlessTimeout)
	defer cancel()
	defer func() { _ = conn.CloseNow() }() // after the close handshake, it does nothing
	conn.SetReadLimit(maxTokenlessRead)
	read, cancelRead := context.WithTimeout(ctx, tokenlessTimeout)
	_, b, err := conn.Read(read)
	cancelRead()
	if err != nil {
		return // it is slow, or sends too much
	}
	bye := &wire.Bye{Reason: "the first frame of an agent must be a hello", Final: true}
	if first, err := wire.Decode(b); err == nil && first.Hello != nil && first.Seq == 1 {
		by.Tokenless = true
		bye = f.Announce(ctx, first.Hello, by)
	}
	if b, err = wire.Encode(wire.Frame{Seq: 1, Bye: bye}); err == nil && conn.Write(ctx, websocket.MessageText, b) == nil {
		_ = conn.Close(websocket.StatusNormalClosure, "") // the agent may be gone
	}
}

// TakesTokenless reports whether nodes without a join token may wait.
func (f *Fleet) TakesTokenless() bool { return f.PendingNodes > 0 }

// Announce records a node without a join token as pending, once, and returns what its agent
// is told.
func (f *Fleet) Announce(ctx context.Context, h *wire.Hello, by Admission) *wire.Bye {
	if bye := f.checkAnnounced(h, by); bye != nil {
		return bye
	}
	if f.hasLapsed() {
		return &wire.Bye{Reason: lapsedReason}
	}
	r := f.Picture.Nodes.Get(h.Node)
	if r == nil {
		if bye := f.registerTokenless(ctx, h, by); bye != nil {
			return bye
		}
		return waitingBye(h.Name, mariposa.HashKey(h.Key))
	}
	spec := r.Spec()
	if _, ok := admittingKey(spec, h); !ok {
		return finalError("node %s is registered with another key: its data directory was lost or copied; use a new directory, or a join token after the node was removed", h.Name)
	}
	if !spec.Tokenless {
		return &wire.Bye{Reason: "the node was accepted: connect again"}
	}
	if bye := checkWaiting(h, spec); bye != nil {
		return bye
	}
	f.noteWaiting(ctx, r, by)
	return waitingBye(spec.Name, spec.KeyHash)
}

// checkAnnounced checks the hello of a node without a join token. Its id must be one that
// cannot be the name of another node.
func (f *Fleet) checkAnnounced(h *wire.Hello, by Admission) *wire.Bye {
	if bye := f.checkHello(h, by); bye != nil {
		return bye
	}
	switch err := mariposa.CheckNodeName(h.Name); {
	case !f.TakesTokenless():
		return finalError("unknown node: start the agent with a join token (mariposa node join-token)")
	case uuid.Validate(h.Node) != nil:
		return finalError("invalid node id %q: without a join token, it must be a UUID", h.Node)
	case err != nil:
		return finalError("%s; choose another name with --name", err)
	}
	return nil
}

// registerTokenless stores the record of a node without a join token, if there is room. It
// does not ask whether the name is free: it tells nothing about other nodes.
func (f *Fleet) registerTokenless(ctx context.Context, h *wire.Hello, by Admission) *wire.Bye {
	if bye := f.checkRoom(f.Picture.Nodes.All(), by); bye != nil { // costs nothing, however many try
		return bye
	}
	f.registering.Lock()
	defer f.registering.Unlock()
	lease, err := f.Store.Seize(ctx, f.Replica, pendingLease)
	if err != nil {
		return unavailableError("register a new node", err)
	}
	all, err := f.Store.List(ctx, store.Query{Kind: mariposa.KindNode}) // the picture may be behind
	if err != nil {
		return unavailableError("register a new node", err)
	}
	nodes := make([]*store.Node, len(all))
	for i := range all {
		nodes[i] = (*store.Node)(&all[i])
	}
	if bye := f.checkRoom(nodes, by); bye != nil {
		return bye
	}
	now := f.Clock.Now()
	st := f.pendingStatus(h, by)
	st.LastSeen, st.Machine = now, h.Machine.Summary()
	unit := store.Unit{Fences: []store.Fence{{Lease: pendingLease, Epoch: lease.Epoch}}}
	unit.Absent(mariposa.KindNode, h.Node)
	unit.Put(store.Write{
		Kind: mariposa.KindNode, ID: h.Node, Status: st, Event: nodeEvent("node.pending", h),
		Spec: &mariposa.NodeSpec{
			Name: h.Name, Dummy: h.Dummy, KeyHash: mariposa.HashKey(h.Key), Created: now,
			Approval: mariposa.ApprovalPending, Tokenless: true,
		},
	})
	unit.Audit = []mariposa.Audit{nodeAudit("node.announce", h, by, "without a join token; the fingerprint of its key is "+mariposa.Fingerprint(mariposa.HashKey(h.Key)))}
	err = f.Store.Commit(ctx, unit)[0].Err
	switch {
	case errors.Is(err, store.ErrConflict): // another connection of the same node was faster
		return nil
	case err != nil:
		return unavailableError("register a new node", err)
	}
	slog.Info("a node without a join token waits for approval", "node", h.Name, "id", h.Node, "from", by.From, "key", mariposa.Fingerprint(mariposa.HashKey(h.Key)))
	return nil
}

// checkRoom reports that too many nodes without a join token wait already.
func (f *Fleet) checkRoom(nodes []*store.Node, by Admission) *wire.Bye {
	total, from := 0, 0
	group := listener.Group(by.From)
	for _, r := range nodes {
		if spec := r.Spec(); !spec.Tokenless || spec.Approval != mariposa.ApprovalPending {
			continue
		}
		total++
		if st := r.Status(); st != nil && listener.Group(st.Address) == group {
			from++
		}
	}
	switch {
	case from >= maxPendingFrom:
		return &wire.Bye{Reason: fmt.Sprintf("%d nodes from this address already wait for approval: have them accepted or rejected, or use a join token (mariposa node join-token)", maxPendingFrom), Pending: true}
	case total >= f.PendingNodes:
		return &wire.Bye{Reason: "no more nodes can wait for approval at the moment: have some accepted or rejected, or use a join token (mariposa node join-token)", Pending: true}
	}
	return nil
}

// noteWaiting stores now and then that a node without a join token still connects.
func (f *Fleet) noteWaiting(ctx context.Context, r *store.Node, by Admission) {
	f.noteAlive(r.ID)
	st := r.Status()
	now := f.Clock.Now()
	if st == nil || now.Sub(st.LastSeen) < seenInterval {
		return
	}
	next := *st
	next.LastSeen, next.Address, next.Replica = now, by.From, f.Replica
	var unit store.Unit
	unit.Unchanged(r)
	unit.StatusUnchanged(r)
	unit.Put(store.Write{Kind: mariposa.KindNode, ID: r.ID, Status: &next})
	if err := f.Store.Commit(ctx, unit)[0].Err; err != nil && !errors.Is(err, store.ErrConflict) {
		slog.Warn("cannot store that a pending node has connected", "node", r.Spec().Name, "err", err)
	}
}

// expirePending removes nodes without a join token that were not accepted and no longer
// connect. Any replica may: the record must be as it was read.
func (f *Fleet) expirePending(ctx context.Context, now time.Time) {
	if now.Sub(f.watchedSince(f.began)) < pendingGrace {
		return
	}
	for _, r := range f.Picture.Nodes.All() {
		spec, st := r.Spec(), r.Status()
		if !spec.Tokenless || spec.Approval != mariposa.ApprovalPending || st == nil || now.Sub(st.LastSeen) < pendingLifetime {
			continue
		}
		why := &mariposa.Reason{Code: mariposa.ReasonPendingExpired, Since: st.LastSeen.UTC()}
		var unit store.Unit
		unit.Unchanged(r)
		unit.StatusUnchanged(r)
		unit.Put(store.Write{Kind: mariposa.KindNode, ID: r.ID, Delete: true, Event: mariposa.Event{Kind: "node.expired", Node: r.ID, Actor: "mariposa", Reason: why}})
		if err := f.Store.Commit(ctx, unit)[0].Err; err != nil && !errors.Is(err, store.ErrConflict) {
			slog.Warn("cannot remove a pending node that no longer connects; retrying", "node", spec.Name, "err", err)
		}
	}
}

// pendingStatus is the status of a node that waits for approval. Its resources and
// capabilities are not recorded before.
func (f *Fleet) pendingStatus(h *wire.Hello, by Admission) *mariposa.NodeStatus {
	return &mariposa.NodeStatus{
		State: mariposa.NodePending, Since: f.Clock.Now(), Replica: f.Replica, Address: by.From,
		Reason: &mariposa.Reason{Code: mariposa.ReasonAwaitsApproval, Subject: h.Name},
	}
}

// awaitApproval responds to the agent of a node with a join token that is not approved. The
// agent learns nothing about this installation, and retries until a person has decided.
func (f *Fleet) awaitApproval(ctx context.Context, h *wire.Hello, spec *mariposa.NodeSpec, unit store.Unit) (*wire.Bye, error) {
	if bye := checkWaiting(h, spec); bye != nil {
		return bye, nil
	}
	f.noteAlive(h.Node)
	if len(unit.Writes) > 0 {
		if f.countPending() >= maxPending {
			return &wire.Bye{Reason: fmt.Sprintf("%d nodes are already waiting for approval", maxPending), Pending: true}, nil
		}
		unit.Urgent = true
		if err := f.Store.Commit(ctx, unit)[0].Err; err != nil {
			return unavailableError("register a new node", err), err
		}
	}
	return waitingBye(spec.Name, spec.KeyHash), nil
}

// checkWaiting refuses a node that was rejected, or that changes its name while it waits.
func checkWaiting(h *wire.Hello, spec *mariposa.NodeSpec) *wire.Bye {
	switch {
	case spec.Approval == mariposa.ApprovalRejected:
		return finalError("node %s was rejected: an operator of the installation can accept it with `mariposa node accept` or remove it with `mariposa node rm`", h.Name)
	case spec.Name != h.Name: // people must accept the name that they have seen
		return finalError("this node is waiting for approval as %s and cannot be renamed to %s until it is accepted", spec.Name, h.Name)
	}
	return nil
}

func waitingBye(name, keyHash string) *wire.Bye {
	return &wire.Bye{
		Reason:  fmt.Sprintf("the node is waiting for approval: an operator must run `mariposa node accept %s --fingerprint %s`", name, mariposa.Fingerprint(keyHash)),
		Pending: true,
	}
}

// countPending counts the nodes with a join token that wait.
func (f *Fleet) countPending() (n int) {
	for _, r := range f.Picture.Nodes.All() {
		if spec := r.Spec(); spec.Approval == mariposa.ApprovalPending && !spec.Tokenless {
			n++
		}
	}
	return n
}
