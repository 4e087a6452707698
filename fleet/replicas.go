package fleet

import (
	"context"
	"log/slog"
	"maps"
	"strings"
	"time"

	"mariposa/store"
)

// replicas are the replicas that are alive according to the store. If that is unknown,
// none counts as dead.
type replicas struct {
	f      *Fleet
	known  bool
	living map[string]bool
}

// findReplicas reads from the store which replicas are alive.
func (f *Fleet) findReplicas(ctx context.Context) *replicas {
	r := &replicas{f: f, living: map[string]bool{}}
	began := f.Clock.Now()
	leases, err := f.Store.Leases(ctx, store.ReplicaPrefix)
	f.noteCall(began, err)
	if err != nil {
		slog.Warn("cannot read which replicas are alive; the status of their nodes stays unchanged", "err", err)
		return r
	}
	r.known = true
	for _, l := range leases {
		r.living[strings.TrimPrefix(l.Name, store.ReplicaPrefix)] = true
	}
	if f.forgetLiving(r.living) && f.Regained != nil {
		f.Regained()
	}
	return r
}

// forgetLiving forgets that living replicas were gone, and reports whether any was.
func (f *Fleet) forgetLiving(living map[string]bool) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	before := len(f.goneReplicas)
	maps.DeleteFunc(f.goneReplicas, func(replica string, _ time.Time) bool { return living[replica] })
	return len(f.goneReplicas) < before
}

// goneSince returns when a replica was first seen to be gone. From then on, its nodes
// have one lifetime to connect to another replica.
func (r *replicas) goneSince(replica string, now time.Time) (time.Time, bool) {
	r.f.mu.Lock()
	defer r.f.mu.Unlock()
	if !r.known || r.living[replica] {
		return time.Time{}, false
	}
	since, seen := r.f.goneReplicas[replica]
	if !seen {
		since = now
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
