package seal

import (
	"context"
	"errors"
	"fmt"

	"mariposa"
	"mariposa/store"
)

const (
	keysPerPage   = 1000
	keysPerCommit = 100
)

// Rotate changes the outer key: it adds a new primary key to the ring, wraps every
// inner key with it, and then drops the others. It returns the new primary key's name
// and the number of keys rewrapped, and reports its progress if progress is not nil.
//
// It may fail or be killed at any point, and leaves nothing that cannot be opened: the
// next Rotate uses the new key and finishes. Requests are served in the meantime.
func (v *Vault) Rotate(ctx context.Context, keys Keys, progress func(done, total int)) (primary string, n int, err error) {
	if err := v.ring.addKey(); err != nil {
		return "", 0, err
	}
	if progress == nil {
		progress = func(int, int) {}
	}
	r := rotation{v: v, keys: keys, progress: progress}
	for {
		if primary, err = r.settle(ctx); err != nil {
			return primary, r.done, err
		}
		former := v.ring.keys()
		set, err := v.ring.dropOthers(primary)
		if err != nil {
			return primary, r.done, err
		}
		if set[0].name != primary {
			continue // another rotation came in between: finish that one
		}
		// A caller that does not use NewKey may have stored a key at the last moment
		// that was wrapped before the rotation began.
		late, err := r.stale(ctx, primary)
		if err != nil || len(late) == 0 {
			return primary, r.done, err
		}
		if err := v.ring.restore(former); err != nil {
			return primary, r.done, err
		}
	}
}

// rotation is one run of Rotate.
type rotation struct {
	v        *Vault
	keys     Keys
	done     int
	progress func(done, total int)
}

// settle rewraps keys until a listing finds none that is not wrapped with the primary
// key, whose name it returns. A listing after the store's own key is rewrapped sees
// all keys that NewKey made before.
func (r *rotation) settle(ctx context.Context) (primary string, err error) {
	for {
		primary = r.v.ring.keys()[0].name
		stale, err := r.stale(ctx, primary)
		if err != nil || len(stale) == 0 {
			return primary, err
		}
		r.progress(r.done, r.done+len(stale))
		for len(stale) > 0 {
			n := min(len(stale), keysPerCommit)
			if err := r.rewrap(ctx, stale[:n]); err != nil {
				return primary, err
			}
			stale = stale[n:]
			r.progress(r.done, r.done+len(stale))
		}
	}
}

// stale lists the keys that are not wrapped with the primary key.
func (r *rotation) stale(ctx context.Context, primary string) ([]store.Record, error) {
	var stale []store.Record
	q := store.Query{Kind: mariposa.KindKey, Limit: keysPerPage}
	for {
		page, err := r.keys.List(ctx, q)
		if err != nil {
			return nil, fmt.Errorf("list keys: %w", err)
		}
		for _, rec := range page {
			if spec, ok := rec.Spec.(*mariposa.KeySpec); !ok || spec.Key != primary {
				stale = append(stale, rec)
			}
		}
		if len(page) < keysPerPage {
			return stale, nil
		}
		q.Before = page[len(page)-1].ID
	}
}

// rewrap wraps keys with the primary key. One that is changed or deleted in the
// meantime is left to the next listing.
func (r *rotation) rewrap(ctx context.Context, stale []store.Record) error {
	units := make([]store.Unit, 0, len(stale))
	for _, rec := range stale {
		unit, err := r.rewrapped(ctx, rec)
		switch {
		case err == nil:
			units = append(units, unit)
		case !errors.Is(err, store.ErrNotFound):
			return err
		}
	}
	var failed error
	for i, result := range r.keys.Commit(ctx, units...) {
		switch {
		case result.Err == nil:
			r.done++
		case !errors.Is(result.Err, store.ErrConflict) && failed == nil:
			failed = fmt.Errorf("store the key of %s: %w: run the rotation again to finish it", ownerName(units[i].Writes[0].ID), result.Err)
		}
	}
	return failed
}

func (r *rotation) rewrapped(ctx context.Context, rec store.Record) (unit store.Unit, err error) {
	inner, err := r.v.open(r.v.ring.keys(), rec)
	var missing *missingKey
	if errors.As(err, &missing) { // another rotation may be ahead of us
		rec, inner, err = r.v.inner(ctx, rec.ID)
	}
	if err != nil {
		return unit, err
	}
	spec := r.v.ring.keys().wrap(rec.ID, inner, (*store.Key)(&rec).Spec().Created)
	unit.Unchanged(&rec)
	unit.Put(keyWrite(spec, "key.rewrapped"))
	return unit, nil
}
