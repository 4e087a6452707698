package memory

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"

	"mariposa/clock"
	"mariposa/store"
	"mariposa/store/internal/codec"
)

// Copy returns another store in the same state, with the same identity. Neither sees what
// is later written to the other: it is the copy of a database, or a standby that has not
// received the newest changes.
func (s *Store) Copy() *Store {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := New(s.clock, WithIdentity(s.identity), WithIncarnations(s.newIncarnation))
	for kind, all := range s.objects {
		c.objects[kind] = all.Copy()
	}
	c.revision, c.log = s.revision, s.log
	c.log.changes, c.log.ends, c.log.old = slices.Clip(s.log.changes), slices.Clip(s.log.ends), slices.Clip(s.log.old)
	s.log.changes, s.log.ends, s.log.old = c.log.changes, c.log.ends, c.log.old // either of them must copy them before it appends
	c.leases, c.ledger = maps.Clone(s.leases), maps.Clone(s.ledger)
	c.audit = audit{s.audit.mark, slices.Clone(s.audit.entries)}
	return c
}

// Restore returns a store with the content of a dump, as a new incarnation. It takes the
// place of a store whose newest revision was replaced (zero: none), and continues above
// that revision. The log of the dump is left out.
func Restore(ctx context.Context, clk clock.Clock, from store.DumpSource, replaced int64, options ...Option) (*Store, error) {
	s := New(clk, options...)
	for {
		it, err := from.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err == nil {
			err = s.put(it)
		}
		if err == nil {
			err = ctx.Err()
		}
		if err != nil {
			return nil, err
		}
	}
	h := from.Head()
	s.identity = store.Identity{Cluster: h.Cluster, Incarnation: s.newIncarnation(h.Incarnation)}
	s.revision = store.RestoredRevision(h.Revision, replaced)
	s.log.trimmed = s.revision // readers of the time that is lost must begin anew
	s.audit.mark = h.Audit
	return s, nil
}

// put stores one item of a dump. Leases are released: those who held them belong to the
// time that is lost.
func (s *Store) put(it *store.DumpItem) error {
	switch {
	case it.Object != nil:
		r, err := codec.DecodeObject(it.Object)
		if err != nil {
			return fmt.Errorf("%s %s: %w", it.Object.Kind, it.Object.ID, err)
		}
		s.objects[r.Kind].Set(r.ID, &r)
	case it.Chunk != nil:
	case it.Lease != nil:
		s.leases[it.Lease.Name] = it.Lease.Released()
	case it.Claim != nil:
		s.ledger[it.Claim.Node] = it.Claim.Taken
	case it.Audit != nil:
		a, err := codec.AuditOf(it.Audit)
		if err != nil {
			return fmt.Errorf("audit entry %d: %w", it.Audit.ID, err)
		}
		s.audit.entries = append(s.audit.entries, a)
	default:
		return errors.New("unknown item")
	}
	return nil
}
