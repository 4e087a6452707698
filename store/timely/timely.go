// Package timely bounds how long a caller waits for a store that has fallen silent: a
// database that hangs would keep requests waiting for as long as it hangs. A store that is
// only slow keeps answering, so waiting for it is right.
//
// It owns the decision that a store is silent. Actors, which must know the result of what
// they write, wait as long as it takes; requests get an error. Once a request has waited in
// vain, the next ones get their error at once, until the store answers again: requests that
// wait for each other, or need several calls, would wait many times otherwise.
package timely

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"mariposa"
	"mariposa/store"
)

// Patience is how long a store may be silent.
const Patience = 2 * time.Second

// Store passes calls on, and notes when they are answered.
type Store struct {
	store.Store
	reads, writes *pulse
	patience      time.Duration // zero: calls wait as long as it takes
}

// New returns two views of a store: for actors, whose calls wait, and for requests, whose
// calls fail with ErrUnavailable or ErrUncertain while the store is silent. The answers to
// either show that it is not.
func New(st store.Store, patience time.Duration) (actors, requests *Store) {
	reads := newPulse(func(ctx context.Context) error {
		_, err := st.Revision(ctx)
		return err
	})
	writes := newPulse(st.Ping)
	reads.other, writes.other = writes, reads
	return &Store{st, reads, writes, 0}, &Store{st, reads, writes, patience}
}

// pulse is when a store last answered a kind of call.
type pulse struct {
	began  time.Time
	last   atomic.Int64 // nanoseconds after began
	silent atomic.Bool  // a request has waited in vain, and nothing was answered since
	probe  func(context.Context) error
	other  *pulse // of the other kind of call
}

func newPulse(probe func(context.Context) error) *pulse {
	return &pulse{began: time.Now(), probe: probe}
}

// beat notes the end of a call, which is an answer of the store unless the caller gave up.
func (p *pulse) beat(err error) {
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return
	}
	p.last.Store(int64(time.Since(p.began)))
	if !errors.Is(err, store.ErrUnavailable) {
		p.silent.Store(false)
	}
}

const (
	probeTimeout = 10 * time.Second
	probePause   = 250 * time.Millisecond
)

// fallSilent notes that a request has waited in vain, and finds out when the store answers
// again.
func (p *pulse) fallSilent() {
	if p.silent.Swap(true) {
		return
	}
	go func() {
		for p.silent.Load() {
			ctx, cancel := context.WithTimeout(context.Background(), probeTimeout)
			p.beat(p.probe(ctx))
			cancel()
			if p.silent.Load() {
				time.Sleep(probePause)
			}
		}
	}()
}

// silence returns how long the store has been silent, given when a call began.
func (p *pulse) silence(since time.Time) time.Duration {
	return min(time.Since(since), time.Since(p.began)-time.Duration(p.last.Load()))
}

type answer[T any] struct {
	value T
	err   error
}

// call runs a call. If the store falls silent meanwhile, it ends the call's context, and
// returns silent unless the call ends then.
func call[T any](ctx context.Context, p *pulse, patience time.Duration, silent error, f func(context.Context) (T, error)) (T, error) {
	if patience == 0 {
		v, err := f(ctx)
		p.beat(err)
		return v, err
	}
	if p.silent.Load() {
		var none T
		return none, errSilent
	}
	if p.other.silent.Load() { // probably this kind is, too
		patience /= 8
	}
	began := time.Now()
	inner, cancel := context.WithCancel(ctx)
	done := make(chan answer[T], 1)
	go func() {
		defer cancel()
		v, err := f(inner)
		done <- answer[T]{v, err}
	}()
	timer := time.NewTimer(patience)
	defer timer.Stop()
	for {
		select {
		case a := <-done:
			p.beat(a.err)
			return a.value, a.err
		case <-timer.C:
		}
		quiet := p.silence(began)
		if quiet < patience {
			timer.Reset(patience - quiet)
			continue
		}
		cancel()
		p.fallSilent()
		select {
		case a := <-done: // it was answered just now, or had not been sent yet
			if errors.Is(a.err, context.Canceled) && ctx.Err() == nil {
				a.err = errSilent
			}
			return a.value, a.err
		case <-time.After(patience / 8):
			var none T
			return none, silent
		}
	}
}

var errSilent = fmt.Errorf("%w: it does not answer", store.ErrUnavailable)

func read[T any](ctx context.Context, s *Store, f func(context.Context) (T, error)) (T, error) {
	return call(ctx, s.reads, s.patience, errSilent, f)
}

func write[T any](ctx context.Context, s *Store, f func(context.Context) (T, error)) (T, error) {
	return call(ctx, s.writes, s.patience, store.ErrUncertain, f)
}

// Commit commits units. If the store is silent, units that were not sent yet fail with
// ErrUnavailable, others with ErrUncertain.
func (s *Store) Commit(ctx context.Context, units ...store.Unit) []store.Result {
	results, err := write(ctx, s, func(ctx context.Context) ([]store.Result, error) {
		results := s.Store.Commit(ctx, units...)
		for i := range results {
			if results[i].Err != nil {
				return results, results[i].Err
			}
		}
		return results, nil
	})
	if results == nil {
		results = make([]store.Result, len(units))
		for i := range results {
			results[i].Err = err
		}
	}
	for i := range results {
		if errors.Is(results[i].Err, context.Canceled) && ctx.Err() == nil {
			results[i].Err = errSilent
		}
	}
	return results
}

// Hold holds leases.
func (s *Store) Hold(ctx context.Context, holder string, ttl time.Duration, names ...string) ([]store.Lease, error) {
	return write(ctx, s, func(ctx context.Context) ([]store.Lease, error) { return s.Store.Hold(ctx, holder, ttl, names...) })
}

// Seize seizes a lease.
func (s *Store) Seize(ctx context.Context, holder, name string) (store.Lease, error) {
	return write(ctx, s, func(ctx context.Context) (store.Lease, error) { return s.Store.Seize(ctx, holder, name) })
}

// Announce sets the note of a lease.
func (s *Store) Announce(ctx context.Context, holder, name, note string) error {
	_, err := write(ctx, s, func(ctx context.Context) (struct{}, error) {
		return struct{}{}, s.Store.Announce(ctx, holder, name, note)
	})
	return err
}

// Ping reports whether the store accepts writes.
func (s *Store) Ping(ctx context.Context) error {
	_, err := call(ctx, s.writes, s.patience, errSilent, func(ctx context.Context) (struct{}, error) { return struct{}{}, s.Store.Ping(ctx) })
	return err
}

// Get returns one object.
func (s *Store) Get(ctx context.Context, kind mariposa.Kind, id string) (store.Record, error) {
	return read(ctx, s, func(ctx context.Context) (store.Record, error) { return s.Store.Get(ctx, kind, id) })
}

// List lists objects.
func (s *Store) List(ctx context.Context, q store.Query) ([]store.Record, error) {
	return read(ctx, s, func(ctx context.Context) ([]store.Record, error) { return s.Store.List(ctx, q) })
}

// Sizes returns the sizes of a project's objects.
func (s *Store) Sizes(ctx context.Context, project string) (map[mariposa.Kind]int64, error) {
	return read(ctx, s, func(ctx context.Context) (map[mariposa.Kind]int64, error) { return s.Store.Sizes(ctx, project) })
}

// History returns changes, newest first.
func (s *Store) History(ctx context.Context, q store.HistoryQuery) ([]store.Change, error) {
	return read(ctx, s, func(ctx context.Context) ([]store.Change, error) { return s.Store.History(ctx, q) })
}

// Leases returns the leases that are held.
func (s *Store) Leases(ctx context.Context, prefix string) ([]store.Lease, error) {
	return read(ctx, s, func(ctx context.Context) ([]store.Lease, error) { return s.Store.Leases(ctx, prefix) })
}

// Ledger returns what is claimed.
func (s *Store) Ledger(ctx context.Context) (map[string]mariposa.Resources, error) {
	return read(ctx, s, func(ctx context.Context) (map[string]mariposa.Resources, error) { return s.Store.Ledger(ctx) })
}

// LogSizes returns the sizes of projects' logs.
func (s *Store) LogSizes(ctx context.Context, projects ...string) (map[string]store.LogSize, error) {
	return read(ctx, s, func(ctx context.Context) (map[string]store.LogSize, error) { return s.Store.LogSizes(ctx, projects...) })
}

// Audit returns entries of the audit log.
func (s *Store) Audit(ctx context.Context, q store.AuditQuery) ([]mariposa.Audit, error) {
	return read(ctx, s, func(ctx context.Context) ([]mariposa.Audit, error) { return s.Store.Audit(ctx, q) })
}

// Revision returns the newest revision.
func (s *Store) Revision(ctx context.Context) (int64, error) {
	return read(ctx, s, func(ctx context.Context) (int64, error) { return s.Store.Revision(ctx) })
}
