package sqlite

import (
	"context"
	"time"

	"mariposa/store"
	"mariposa/store/internal/batch"
)

// Hold, like every change of a lease, is part of a group commit: a fleet that
// comes back at once must not cost a sync per node.
func (s *Store) Hold(ctx context.Context, holder string, ttl time.Duration, names ...string) ([]store.Lease, error) {
	if holder == "" {
		return nil, store.ErrNoHolder
	}
	var held []store.Lease
	err := s.queue.Do(ctx, func(g *batch.Group) error {
		held = g.Hold(holder, ttl, names...)
		return nil
	})
	if err != nil {
		return nil, err
	}
	return held, nil
}

// Seize takes a lease by force.
func (s *Store) Seize(ctx context.Context, holder, name string) (store.Lease, error) {
	if holder == "" {
		return store.Lease{}, store.ErrNoHolder
	}
	var seized store.Lease
	err := s.queue.Do(ctx, func(g *batch.Group) error {
		seized = g.Seize(holder, name)
		return nil
	})
	if err != nil {
		return store.Lease{}, err
	}
	return seized, nil
}

// Leases skips what has lapsed.
func (s *Store) Leases(ctx context.Context, prefix string) ([]store.Lease, error) {
	if err := s.usable(ctx); err != nil {
		return nil, err
	}
	all, err := readLeases(ctx, s.readers)
	if err != nil {
		return nil, s.readError(err)
	}
	return store.Holding(all, prefix, s.clock.Now()), nil
}

// Release skips leases that have gone to somebody else.
func (s *Store) Release(ctx context.Context, holder string, names ...string) error {
	return s.queue.Do(ctx, func(g *batch.Group) error {
		g.Release(holder, names...)
		return nil
	})
}
