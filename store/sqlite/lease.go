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

// Time returns the time by the machine's clock.
func (s *Store) Time(ctx context.Context) (time.Time, error) { return s.clock.Now(), s.usable(ctx) }

// Seize takes a lease by force.
func (s *Store) Seize(ctx context.Context, holder, name string) (store.Lease, error) {
	return s.queue.Seize(ctx, holder, name)
}

// Announce sets the note of a lease that the holder has.
func (s *Store) Announce(ctx context.Context, holder, name, note string) error {
	return s.queue.Announce(ctx, holder, name, note)
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
