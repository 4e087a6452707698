package simulate

import (
	"context"
	"slices"
	"time"

	"mariposa"
	"mariposa/clock"
	"mariposa/store"
)

// wrongClock is the clock of a machine that is set wrong.
type wrongClock struct {
	worldClock
	by time.Duration
}

func (c wrongClock) Now() time.Time { return c.worldClock.Now().Add(c.by) }

// wrongBy returns by how much a machine's clock is wrong: in half of the worlds by hours.
func (w *World) wrongBy() time.Duration {
	if w.scenarioRun != nil || w.Seed%4 < 2 {
		return 0
	}
	w.seen["wrong clock"]++
	return time.Duration(w.rng.IntN(int(4*time.Hour))) - 2*time.Hour
}

// sharedClock returns the clock of a server: that of the store, as far as the machine can
// tell.
func (s *server) sharedClock() *clock.Shared {
	c := clock.NewShared(wrongClock{worldClock{s.w, s.life}, s.w.wrongBy()})
	before := c.Now()
	shown, err := s.w.store.Time(s.w.ctx)
	if err != nil {
		s.w.fail("read the clock of the store: %v", err)
	}
	c.Observe(before, shown, c.Now())
	return c
}

// loseStore cuts a server off from the store for a while. It keeps running.
func (s *server) loseStore() {
	if s.store.unreachable {
		return
	}
	s.store.unreachable, s.store.began = true, s.w.now
	s.w.seen["store unreachable"]++
	s.w.note("a server cannot reach the store")
	worldClock{s.w, s.life}.After(time.Duration(1+s.w.rng.IntN(60))*time.Second, s.regainStore)
}

func (s *server) regainStore() {
	if s.store.unreachable {
		s.store.unreachable, s.disturbed = false, s.w.now
		if s.w.now.Sub(s.store.began) >= noticed {
			s.store.outage = s.w.now
		}
		s.w.note("a server reaches the store again")
	}
}

// loseServer cuts a node off from one server for a while, but not from the others.
func (n *node) loseServer(s *server) {
	n.unreached = s
	n.disturb()
	n.w.seen["server unreachable"]++
	n.w.note("%s cannot reach one of the servers", n.name)
	if n.link != nil && n.link.server == s {
		n.link.cut("the server cannot be reached")
	}
	worldClock{n.w, &lifetime{}}.After(time.Duration(n.w.rng.IntN(300))*time.Second, func() {
		n.unreached = nil
		n.disturb()
	})
}

// reachable lists the servers that a node can reach.
func (n *node) reachable() []*server {
	if n.away {
		return nil
	}
	return slices.DeleteFunc(slices.Clone(n.w.servers), func(s *server) bool { return s == n.unreached })
}

// away returns the error of every call while the store cannot be reached, or does not
// answer and the caller does not wait.
func (h *storeHandle) away() error {
	if h.unreachable || h.isStalled() && !h.blocking {
		return store.ErrUnavailable
	}
	return h.checkRewound()
}

func (h *storeHandle) Get(ctx context.Context, kind mariposa.Kind, id string) (store.Record, error) {
	if err := h.away(); err != nil {
		return store.Record{}, err
	}
	return h.Store.Get(ctx, kind, id)
}

func (h *storeHandle) List(ctx context.Context, q store.Query) ([]store.Record, error) {
	if err := h.away(); err != nil {
		return nil, err
	}
	return h.Store.List(ctx, q)
}

func (h *storeHandle) Sizes(ctx context.Context, project string) (map[mariposa.Kind]int64, error) {
	if err := h.away(); err != nil {
		return nil, err
	}
	return h.Store.Sizes(ctx, project)
}

func (h *storeHandle) Snapshot(ctx context.Context, visit func(store.Record) error) (int64, error) {
	if err := h.away(); err != nil {
		return 0, err
	}
	return h.Store.Snapshot(ctx, visit)
}

func (h *storeHandle) Changes(ctx context.Context, after int64, limit int) ([]store.Change, error) {
	if err := h.away(); err != nil {
		return nil, err
	}
	return h.Store.Changes(ctx, after, limit)
}

func (h *storeHandle) Leases(ctx context.Context, prefix string) ([]store.Lease, error) {
	late := h.delay()
	if err := h.away(); err != nil {
		return nil, err
	}
	defer late()
	return h.Store.Leases(ctx, prefix)
}

func (h *storeHandle) Release(ctx context.Context, holder string, names ...string) error {
	if err := h.away(); err != nil {
		return err
	}
	return h.Store.Release(ctx, holder, names...)
}

func (h *storeHandle) Ledger(ctx context.Context) (map[string]mariposa.Resources, error) {
	if err := h.away(); err != nil {
		return nil, err
	}
	return h.Store.Ledger(ctx)
}

func (h *storeHandle) Revision(ctx context.Context) (int64, error) {
	late := h.delay()
	if err := h.away(); err != nil {
		return 0, err
	}
	defer late()
	return h.Store.Revision(ctx)
}
