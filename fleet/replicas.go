package fleet

import (
	"context"
	"log/slog"
	"strings"
	"time"

	"mariposa/store"
)

// replicas are the replicas that are alive according to the store. If that is unknown,
// none counts as dead.
type replicas struct {
	f      *Fleet
	now    time.Time
	known  bool
	living map[string]bool
}

// findReplicas reads from the store which replicas are alive.
func (f *Fleet) findReplicas(ctx context.Context, now time.Time) *replicas {
	r := &replicas{f: f, now: now, living: map[string]bool{}}
	leases, err := f.Store.Leases(ctx, store.ReplicaPrefix)
	if err != nil {
		slog.Warn("cannot read which replicas are alive; the status of their nodes stays unchanged", "err", err)
		return r
	}
	r.known = true
	for _, l := range leases {
		r.living[strings.TrimPrefix(l.Name, store.ReplicaPrefix)] = true
	}
	return r
}

// goneSince returns when a replica was first seen to be gone. From then on, its nodes
// have one lifetime to connect to another replica.
func (r *replicas) goneSince(replica string) (time.Time, bool) {
	r.f.mu.Lock()
	defer r.f.mu.Unlock()
	if !r.known {
		return time.Time{}, false
	}
	if r.living[replica] {
		delete(r.f.goneReplicas, replica)
		return time.Time{}, false
	}
	since, seen := r.f.goneReplicas[replica]
	if !seen {
		since = r.now
		r.f.goneReplicas[replica] = since
	}
	return since, true
}

// Reachable reports whether a node is connected, as far as this replica knows: to this
// replica, or to another one that is alive.
func (f *Fleet) Reachable(r *store.Node) bool {
	st := r.Status()
	f.mu.Lock()
	defer f.mu.Unlock()
	_, dead := f.goneReplicas[st.Replica]
	return f.sessions[r.ID] != nil || (st.Replica != f.Replica && !dead)
}
