package batch

import (
	"context"
	"time"

	"mariposa/store"
)

// Hold, like every change of a lease, is part of a group commit: a fleet that reconnects
// all at once must not cost a sync per node.
func (q *Queue) Hold(ctx context.Context, holder string, ttl time.Duration, names ...string) ([]store.Lease, error) {
	if holder == "" {
		return nil, store.ErrNoHolder
	}
	var held []store.Lease
	err := q.Do(ctx, func(g *Group) error {
		held = g.Hold(holder, ttl, names...)
		return nil
	}, names...)
	if err != nil {
		return nil, err
	}
	return held, nil
}

// Seize takes a lease by force.
func (q *Queue) Seize(ctx context.Context, holder, name string) (store.Lease, error) {
	if holder == "" {
		return store.Lease{}, store.ErrNoHolder
	}
	var seized store.Lease
	err := q.Do(ctx, func(g *Group) error {
		seized = g.Seize(holder, name)
		return nil
	}, name)
	if err != nil {
		return store.Lease{}, err
	}
	return seized, nil
}

// Announce sets the note of a lease that the holder has.
func (q *Queue) Announce(ctx context.Context, holder, name, note string) error {
	if holder == "" {
		return store.ErrNoHolder
	}
	return q.Do(ctx, func(g *Group) error { return g.Announce(holder, name, note) }, name)
}

// Release skips leases that have another holder.
func (q *Queue) Release(ctx context.Context, holder string, names ...string) error {
	return q.Do(ctx, func(g *Group) error {
		g.Release(holder, names...)
		return nil
	}, names...)
}
