package fleet

import (
	"context"
	"log/slog"
	"strings"
	"time"

	"mariposa/store"
)

// replicas is who lives, as far as the store tells; unknown is nobody's death.
type replicas struct {
	f      *Fleet
	now    time.Time
	known  bool
	living map[string]bool
}

// findReplicas asks the store which replicas live.
func (f *Fleet) findReplicas(ctx context.Context, now time.Time) *replicas {
	r := &replicas{f: f, now: now, living: map[string]bool{}}
	leases, err := f.Store.Leases(ctx, store.ReplicaPrefix)
	if err != nil {
		slog.Warn("cannot see which replicas live; judging none of their nodes", "err", err)
		return r
	}
	r.known = true
	for _, l := range leases {
		r.living[strings.TrimPrefix(l.Name, store.ReplicaPrefix)] = true
	}
	return r
}

// goneSince says since when a replica has been seen to be no more. Its nodes get
// a lifetime from then on to come to another one.
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

// Reachable reports whether a node has a connection, as far as this replica can
// tell: a session here, or one of another replica.
func (f *Fleet) Reachable(r *store.Node) bool {
	st := r.Status()
	f.mu.Lock()
	defer f.mu.Unlock()
	_, dead := f.goneReplicas[st.Replica]
	return f.sessions[r.ID] != nil || (st.Replica != f.Replica && !dead)
}
