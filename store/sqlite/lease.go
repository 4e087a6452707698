package sqlite

import (
	"context"
	"time"

	"mariposa/store"
)

// Hold takes those of the named leases that are free.
func (s *Store) Hold(ctx context.Context, holder string, ttl time.Duration, names ...string) ([]store.Lease, error) {
	return s.queue.Hold(ctx, holder, ttl, names...)
}

// Seize takes a lease by force.
func (s *Store) Seize(ctx context.Context, holder, name string) (store.Lease, error) {
	return s.queue.Seize(ctx, holder, name)
}

// Leases skips expired leases.
func (s *Store) Leases(ctx context.Context, prefix string) ([]store.Lease, error) {
	if err := s.usable(ctx); err != nil {
		return nil, err
	}
	all, err := readLeases(ctx, s.readers)
	if err != nil {
		return nil, s.readError(err)
	}
	return store.LiveLeases(all, prefix, s.clock.Now()), nil
}

// Release skips leases that have another holder.
func (s *Store) Release(ctx context.Context, holder string, names ...string) error {
	return s.queue.Release(ctx, holder, names...)
}
