package memory

import (
	"context"
	"maps"
	"time"

	"mariposa"
	"mariposa/store"
)

// lease returns a lease by name; one that was never held is free at epoch 0.
func (s *Store) lease(name string) store.Lease {
	if l, known := s.leases[name]; known {
		return l
	}
	return store.Lease{Name: name}
}

// Hold takes the leases that are free and skips the others.
func (s *Store) Hold(ctx context.Context, holder string, ttl time.Duration, names ...string) ([]store.Lease, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.usable(ctx); err != nil {
		return nil, err
	}
	if holder == "" {
		return nil, store.ErrNoHolder
	}
	now := s.clock.Now()
	var held []store.Lease
	for _, name := range names {
		if l, ok := s.lease(name).Held(holder, now, now.Add(ttl)); ok {
			s.leases[name] = l
			held = append(held, l)
		}
	}
	return held, nil
}

// Time returns the time by the store's clock.
func (s *Store) Time(ctx context.Context) (time.Time, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.clock.Now(), s.usable(ctx)
}

// Seize takes a lease by force.
func (s *Store) Seize(ctx context.Context, holder, name string) (store.Lease, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.usable(ctx); err != nil {
		return store.Lease{}, err
	}
	if holder == "" {
		return store.Lease{}, store.ErrNoHolder
	}
	l := s.lease(name).Seized(holder)
	s.leases[name] = l
	return l, nil
}

// Announce sets the note of a lease that the holder has.
func (s *Store) Announce(ctx context.Context, holder, name, note string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.usable(ctx); err != nil {
		return err
	}
	if holder == "" {
		return store.ErrNoHolder
	}
	l, err := s.lease(name).Announced(holder, note, s.clock.Now())
	if err == nil {
		s.leases[name] = l
	}
	return err
}

// Release skips leases that have another holder.
func (s *Store) Release(ctx context.Context, holder string, names ...string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.usable(ctx); err != nil {
		return err
	}
	for _, name := range names {
		if l, known := s.leases[name]; known && l.Holder == holder {
			s.leases[name] = l.Released()
		}
	}
	return nil
}

// Leases skips expired leases.
func (s *Store) Leases(ctx context.Context, prefix string) ([]store.Lease, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.usable(ctx); err != nil {
		return nil, err
	}
	return store.LiveLeases(s.leases, prefix, s.clock.Now()), nil
}

// Ledger leaves out nodes without claims.
func (s *Store) Ledger(ctx context.Context) (map[string]mariposa.Resources, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.usable(ctx); err != nil {
		return nil, err
	}
	return maps.Clone(s.ledger), nil
}
