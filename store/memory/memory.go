// Package memory is the model of the store: the contract of package store in its
// simplest form, exact and fast. Tests compare the durable stores with it, and the
// simulation runs on it.
//
// It owns nothing that outlives the process and starts no goroutine. It does not know
// disks, faults or group commits: a Commit is applied before it returns, on the caller's
// goroutine.
package memory

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/tidwall/btree"

	"mariposa"
	"mariposa/clock"
	"mariposa/store"
	"mariposa/store/internal/codec"
)

var _ store.Store = (*Store)(nil)

// Store keeps everything in maps under one mutex.
type Store struct {
	clock          clock.Clock
	newIncarnation func(old string) string // names the next incarnation

	mu       sync.Mutex
	identity store.Identity
	closed   bool
	grown    chan struct{} // closed and renewed whenever the log grows, closed for good by Close
	revision int64
	objects  map[mariposa.Kind]*btree.Map[string, *store.Record] // records are replaced, never changed
	log      log
	leases   map[string]store.Lease
	ledger   map[string]mariposa.Resources
	audit    audit
}

// Option changes a store before its first use.
type Option func(*Store)

// WithIdentity sets the ids of the store, which are fixed otherwise.
func WithIdentity(id store.Identity) Option {
	return func(s *Store) { s.identity = id }
}

// WithIncarnations sets how the incarnations after a given one are named. Where copies of
// a store take its place, a name must not come twice.
func WithIncarnations(next func(old string) string) Option {
	return func(s *Store) { s.newIncarnation = next }
}

// New returns an empty store. The clock dates changes and expires leases.
func New(clk clock.Clock, options ...Option) *Store {
	s := &Store{
		clock:    clk,
		identity: store.Identity{Cluster: "memory", Incarnation: "memory-1"},

		newIncarnation: func(old string) string { return old + "'" },

		grown:   make(chan struct{}),
		objects: make(map[mariposa.Kind]*btree.Map[string, *store.Record]),
		leases:  make(map[string]store.Lease),
		ledger:  make(map[string]mariposa.Resources),
	}
	for _, k := range mariposa.Kinds {
		s.objects[k] = new(btree.Map[string, *store.Record])
	}
	for _, o := range options {
		o(s)
	}
	return s
}

// Commit applies units one after the other, immediately.
func (s *Store) Commit(ctx context.Context, units ...store.Unit) []store.Result {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.usable(ctx); err != nil {
		return store.FailAll(units, err)
	}
	t := commit{Store: s, now: s.clock.Now()}
	before := s.revision
	results := make([]store.Result, len(units))
	for i := range units {
		results[i] = t.apply(&units[i])
	}
	if s.revision > before {
		s.log.end(s.revision)
		close(s.grown)
		s.grown = make(chan struct{})
	}
	return results
}

// usable must be called with the mutex held.
func (s *Store) usable(ctx context.Context) error {
	if s.closed {
		return store.ErrClosed
	}
	return ctx.Err()
}

// Shared is true: replicas in the same process can use it.
func (*Store) Shared() bool { return true }

// Reincarnate replaces the incarnation.
func (s *Store) Reincarnate(ctx context.Context, old string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.usable(ctx); err != nil {
		return err
	}
	if s.identity.Incarnation == old {
		s.identity.Incarnation = s.newIncarnation(old)
	}
	return nil
}

// Rewound is nil: nobody else can change the store.
func (*Store) Rewound() <-chan struct{} { return nil }

// Revision returns the newest revision.
func (s *Store) Revision(ctx context.Context) (int64, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.revision, s.usable(ctx)
}

// Identity returns the ids of the store.
func (s *Store) Identity(ctx context.Context) (store.Identity, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.identity, s.usable(ctx)
}

// Ping succeeds as long as the store is open.
func (s *Store) Ping(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.usable(ctx)
}

// Close makes every later or waiting call return ErrClosed.
func (s *Store) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.closed {
		s.closed = true
		close(s.grown)
	}
	return nil
}

// commit is one call of Commit in progress; the mutex is held throughout.
type commit struct {
	*Store
	now time.Time
}

// apply checks all requirements of a unit before its first write, so that a unit that
// fails leaves nothing to undo.
func (t *commit) apply(u *store.Unit) store.Result {
	claimed, err := t.check(u)
	if err != nil {
		return store.Result{Err: err}
	}
	for node, r := range claimed {
		t.ledger[node] = r
		if r == (mariposa.Resources{}) {
			delete(t.ledger, node)
		}
	}
	var result store.Result
	for i := range u.Writes {
		if !t.write(&u.Writes[i]) {
			continue
		}
		result.Last = t.revision
		if result.First == 0 {
			result.First = t.revision
		}
	}
	for i := range u.Audit {
		t.audit.add(u.Audit[i], t.now)
	}
	return result
}

// check returns the claims on the unit's nodes after it is applied.
func (t *commit) check(u *store.Unit) (map[string]mariposa.Resources, error) {
	if err := u.Check(); err != nil {
		return nil, err
	}
	for i := range u.Fences {
		if err := u.Fences[i].Check(t.leases[u.Fences[i].Lease], t.now); err != nil {
			return nil, err
		}
	}
	for i := range u.Require {
		if err := u.Require[i].Check(t.find(u.Require[i].Kind, u.Require[i].ID)); err != nil {
			return nil, err
		}
	}
	if len(u.Claims) == 0 {
		return nil, nil
	}
	claimed := make(map[string]mariposa.Resources, len(u.Claims))
	for i := range u.Claims {
		c := &u.Claims[i]
		have, seen := claimed[c.Node]
		if !seen {
			have = t.ledger[c.Node]
		}
		sum, err := c.Apply(have)
		if err != nil {
			return nil, err
		}
		claimed[c.Node] = sum
	}
	return claimed, nil
}

func (t *commit) write(w *store.Write) bool {
	change, changed := w.Apply(t.find(w.Kind, w.ID), t.revision+1, t.now)
	if !changed {
		return false
	}
	t.revision++
	t.log.add(change.Logged())
	if change.Deleted {
		t.objects[w.Kind].Delete(w.ID)
		return true
	}
	record := change.Record
	t.objects[w.Kind].Set(w.ID, &record)
	return true
}

// find returns nil when there is no such object.
func (s *Store) find(k mariposa.Kind, id string) *store.Record {
	all, known := s.objects[k]
	if !known {
		return nil
	}
	r, _ := all.Get(id)
	return r
}

// Get returns one object.
func (s *Store) Get(ctx context.Context, kind mariposa.Kind, id string) (store.Record, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.usable(ctx); err != nil {
		return store.Record{}, err
	}
	r := s.find(kind, id)
	if r == nil {
		return store.Record{}, fmt.Errorf("%s %s: %w", kind, id, store.ErrNotFound)
	}
	return *r, nil
}

// List walks down from the highest id.
func (s *Store) List(ctx context.Context, q store.Query) ([]store.Record, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.usable(ctx); err != nil {
		return nil, err
	}
	q, some := q.Normalize()
	if !some {
		return nil, nil
	}
	all := s.objects[q.Kind]
	var found []store.Record
	collect := func(id string, r *store.Record) bool {
		if id != q.Before && q.Matches(r) {
			found = append(found, *r)
		}
		return q.Limit <= 0 || len(found) < q.Limit
	}
	if q.Before == "" {
		all.Reverse(collect)
	} else {
		all.Descend(q.Before, collect)
	}
	return found, nil
}

// Sizes encodes what it counts, as the durable stores do.
func (s *Store) Sizes(ctx context.Context, project string) (map[mariposa.Kind]int64, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.usable(ctx); err != nil {
		return nil, err
	}
	sizes := map[mariposa.Kind]int64{}
	var failed error
	for _, k := range store.SizedKinds {
		s.objects[k].Scan(func(_ string, r *store.Record) bool {
			if r.Project != project {
				return true
			}
			for _, half := range []any{r.Spec, r.Status} {
				b, err := codec.Half(half)
				failed = errors.Join(failed, err)
				if len(b) > 0 {
					sizes[k] += int64(len(b))
				}
			}
			return true
		})
	}
	return sizes, failed
}

// Snapshot collects the objects first and visits them afterwards, so that visit may use
// the store.
func (s *Store) Snapshot(ctx context.Context, visit func(store.Record) error) (int64, error) {
	records, revision, err := s.live(ctx)
	if err != nil {
		return 0, err
	}
	for _, r := range records {
		if err := visit(*r); err != nil {
			return 0, err
		}
	}
	return revision, nil
}

func (s *Store) live(ctx context.Context) ([]*store.Record, int64, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.usable(ctx); err != nil {
		return nil, 0, err
	}
	var records []*store.Record
	for _, k := range mariposa.Kinds {
		if k.LoadedOnDemand() {
			continue
		}
		s.objects[k].Scan(func(_ string, r *store.Record) bool {
			if !r.Archived {
				records = append(records, r)
			}
			return true
		})
	}
	return records, s.revision, nil
}
