package fleet

import (
	"context"
	"log/slog"
	"maps"
	"slices"
	"time"

	"mariposa/relay"
	"mariposa/store"
)

// replicas are the replicas that are alive according to the store. If that is unknown,
// none counts as dead.
type replicas struct {
	f      *Fleet
	known  bool
	all    []relay.Replica
	living map[string]bool
	asked  bool // when they last heard from nodes
}

// findReplicas reads from the store which replicas are alive.
func (f *Fleet) findReplicas(ctx context.Context) *replicas {
	r := &replicas{f: f, living: map[string]bool{}}
	began := f.Clock.Now()
	f.noteAsked(began)
	leases, err := f.Store.Leases(ctx, store.ReplicaPrefix)
	f.noteCall(began, err)
	f.noteAnswered(err)
	if err != nil {
		slog.Warn("cannot read which replicas are alive; the status of their nodes stays unchanged", "err", err)
		return r
	}
	r.known = true
	r.all = relay.FromLeases(leases)
	for _, other := range r.all {
		r.living[other.Name] = true
	}
	f.noteReplicas(r.all)
	if f.forgetLiving(r.living) && f.Regained != nil {
		f.Regained()
	}
	return r
}

// noteReplicas notes the names of the living replicas, and their addresses, which nodes
// learn.
func (f *Fleet) noteReplicas(all []relay.Replica) {
	var names, urls []string
	for _, r := range all {
		names = append(names, r.Name)
		if r.URL != "" {
			urls = append(urls, r.URL)
		}
	}
	slices.Sort(urls)
	f.mu.Lock()
	defer f.mu.Unlock()
	if slices.ContainsFunc(f.living, func(name string) bool { return !slices.Contains(names, name) }) {
		f.lostReplica = f.Clock.Now()
	}
	if f.living = names; f.Links != nil {
		f.servers = slices.Compact(urls)
	}
}

// newServers returns the addresses of the living replicas if they are not those that the
// session's node knows. Like Step, it is called by one goroutine at a time.
func (s *Session) newServers() []string {
	s.f.mu.Lock()
	now := s.f.servers
	s.f.mu.Unlock()
	if len(now) == 0 || slices.Equal(now, s.servers) {
		return nil
	}
	s.servers = now
	return now
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

// ask asks the living replicas when they last heard from nodes, once.
func (r *replicas) ask(ctx context.Context) {
	if !r.asked {
		r.asked = true
		r.f.AskHeartbeats(ctx)
	}
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
