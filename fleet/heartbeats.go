package fleet

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"io"
	"maps"
	"sync"
	"time"

	"mariposa"
	"mariposa/relay"
	"mariposa/store"
	"mariposa/wire"
)

// When nodes were last heard from is not stored. Each replica asks the others about it, now
// and then and whenever somebody wants to know, and remembers the newest answer: it is what
// is known once a replica does not answer any more.

// neighbor is another replica that is asked when it last heard from nodes.
type neighbor struct {
	mu    sync.Mutex // held while it is asked
	until time.Time  // when to ask again

	// Guarded by the fleet's lock.
	answered bool      // it has answered before
	failed   time.Time // when it first did not answer any more; zero if it did the last time
	began    time.Time // when it began to listen to nodes
}

// heartbeats is what a replica answers.
type heartbeats struct {
	Began time.Time            `json:"began"` // to listen to nodes
	Nodes map[string]time.Time `json:"nodes"` // when they were last heard from
}

const (
	// heartbeatsFresh is how long the answer of a replica is used.
	heartbeatsFresh = 500 * time.Millisecond
	// heartbeatsPause is how long a replica is not asked that did not answer.
	heartbeatsPause = 3 * time.Second
	// maxHeartbeats bounds the size of an answer, in bytes: a hundred thousand nodes.
	maxHeartbeats = 16 << 20
	// heartbeatsRecent is how old the sign of life of a node without a session may be that
	// other replicas are told. They ask more often than that.
	heartbeatsRecent = time.Minute
)

// NoteAttempt notes that an agent wanted to connect, although this replica cannot open a
// session now: its node is alive.
func (f *Fleet) NoteAttempt(by Admission) {
	if by.Node != "" {
		f.noteAlive(by.Node)
	}
}

// noteAlive notes a sign of life of a node that proved its identity.
func (f *Fleet) noteAlive(node string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.lastHeard[node] = f.Clock.Now()
}

// sendHeartbeats tells another replica when this one heard from nodes.
func (w *forwards) sendHeartbeats(link *wire.Stream) {
	all := heartbeats{w.f.began, map[string]time.Time{}}
	w.f.mu.Lock()
	recent := w.f.Clock.Now().Add(-heartbeatsRecent)
	for node, at := range w.f.lastHeard {
		if w.f.sessions[node] != nil || at.After(recent) {
			all.Nodes[node] = at
		}
	}
	w.f.mu.Unlock()
	b, err := json.Marshal(all)
	if err != nil || link.Send(wire.Message{}) != nil {
		return
	}
	if _, err := link.Write(b); err == nil {
		_ = link.Send(wire.Message{Last: true}) // fails only if the other replica is gone
	}
}

// followHeartbeats asks the other replicas once in a heartbeat interval until the context
// ends.
func (f *Fleet) followHeartbeats(ctx context.Context) {
	every := time.NewTicker(f.Beat)
	defer every.Stop()
	for {
		f.AskHeartbeats(ctx)
		select {
		case <-ctx.Done():
			return
		case <-every.C:
		}
	}
}

// AskHeartbeats asks the other replicas when they last heard from nodes, unless they were
// just asked. It returns when they have answered, or a moment later.
func (f *Fleet) AskHeartbeats(ctx context.Context) {
	if f.Links == nil {
		return
	}
	others := map[string]bool{}
	for _, r := range f.Picture.Nodes.All() {
		if replica := f.holder(r.ID); replica != "" {
			others[replica] = true
		}
	}
	f.mu.Lock()
	for _, replica := range f.living { // during an outage of the store, agents try one after another
		others[replica] = true
	}
	delete(others, f.Replica)
	maps.DeleteFunc(f.neighbors, func(replica string, _ *neighbor) bool { return !others[replica] })
	asked := map[string]*neighbor{}
	for replica := range others {
		if f.neighbors[replica] == nil {
			f.neighbors[replica] = &neighbor{}
		}
		asked[replica] = f.neighbors[replica]
	}
	f.mu.Unlock()
	var all sync.WaitGroup
	for replica, n := range asked {
		all.Go(func() { f.askNeighbor(ctx, replica, n) })
	}
	all.Wait()
}

func (f *Fleet) askNeighbor(ctx context.Context, replica string, n *neighbor) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if time.Now().Before(n.until) {
		return
	}
	asker := ctx
	ctx, cancel := context.WithTimeout(ctx, cmp.Or(f.NeighborTimeout, time.Second))
	defer cancel()
	all, err := f.readHeartbeats(ctx, replica)
	if broken := (*relay.UnreachableError)(nil); errors.As(err, &broken) && broken.Sent {
		all, err = f.readHeartbeats(ctx, replica) // over a new link; the old one may be dead since this process was stopped
	}
	if asker.Err() != nil {
		return // nobody waits for the answer
	}
	if err != nil { // what it said before is still known
		n.until = time.Now().Add(heartbeatsPause)
		f.noteFailure(n)
		return
	}
	n.until = time.Now().Add(heartbeatsFresh)
	maps.DeleteFunc(all.Nodes, func(node string, _ time.Time) bool { return f.Picture.Nodes.Get(node) == nil })
	f.mu.Lock()
	defer f.mu.Unlock()
	n.answered, n.failed, n.began = true, time.Time{}, all.Began
	for node, at := range all.Nodes {
		if at.After(f.heardElsewhere[node]) {
			f.heardElsewhere[node] = at
		}
	}
}

func (f *Fleet) noteFailure(n *neighbor) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if n.failed.IsZero() {
		n.failed = f.Clock.Now()
	}
}

// lastReplicaLoss returns when a replica was last lost: it died, restarted, or is alive but does
// not answer. Until then a node may have tried to connect to it, and no other replica knows.
func (f *Fleet) lastReplicaLoss() time.Time {
	f.mu.Lock()
	defer f.mu.Unlock()
	at := f.lostReplica
	for _, replica := range f.living {
		if n := f.neighbors[replica]; n != nil {
			at = laterOf(at, laterOf(n.failed, n.began))
		}
	}
	return at
}

func (f *Fleet) readHeartbeats(ctx context.Context, replica string) (all heartbeats, err error) {
	st, err := f.Links.Open(ctx, replica, wire.Forward{Heartbeats: true})
	if err != nil {
		return heartbeats{}, err
	}
	defer st.Close()
	defer context.AfterFunc(ctx, func() { _ = st.Close() })()
	r := &reader{stream: &stream{channel: st, endReason: st.EndReason}}
	err = json.NewDecoder(io.LimitReader(r, maxHeartbeats)).Decode(&all)
	return all, err
}

// LastHeartbeat returns when a node was last heard from; nil if this replica does not know.
// stored is what its record says: for a running node, since when it is.
func (f *Fleet) LastHeartbeat(r *store.Node, stored time.Time) *time.Time {
	holder := f.holder(r.ID)
	f.mu.Lock()
	defer f.mu.Unlock()
	heard := laterOf(f.lastHeard[r.ID], f.heardElsewhere[r.ID])
	at := laterOf(stored, heard)
	if st := r.Status(); st == nil || st.State != mariposa.NodeRunning || f.Clock.Now().Sub(at) <= f.lifetime() {
		return &at
	}
	// It has been heard since, or would not be running any more. Only a replica that never
	// answered knows when, if the node is connected to one.
	if n := f.neighbors[holder]; heard.IsZero() || holder != "" && (n == nil || !n.answered) {
		return nil
	}
	return &at
}

// lastSeenAround returns when a node was last heard from whose replica is gone: what that
// replica said before, or else when it was noticed to be gone.
func (f *Fleet) lastSeenAround(node string, gone time.Time) time.Time {
	f.mu.Lock()
	defer f.mu.Unlock()
	if at := laterOf(f.lastHeard[node], f.heardElsewhere[node]); gone.Sub(at) < heartbeatsRecent {
		return at
	}
	return gone
}

// heardByOthers returns when another replica last heard from a node, as far as it said.
func (f *Fleet) heardByOthers(node string) time.Time {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.heardElsewhere[node]
}

func laterOf(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}
