package memory

import (
	"context"
	"maps"
	"slices"

	"mariposa"
	"mariposa/store"
	"mariposa/store/internal/codec"
)

// Dump copies everything before it passes it on. Unlike the durable stores, it leaves out
// the rest of commits that Thin has cut.
func (s *Store) Dump(ctx context.Context, d store.Dump) error {
	head, items, err := s.copy(ctx)
	if err != nil {
		return err
	}
	if err := d.Head(head); err != nil {
		return err
	}
	for _, it := range items {
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := d.Item(it); err != nil {
			return err
		}
	}
	return nil
}

func (s *Store) copy(ctx context.Context) (head store.DumpHead, items []*store.DumpItem, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.usable(ctx); err != nil {
		return head, nil, err
	}
	head = store.DumpHead{
		Identity: s.identity, Schema: store.Schema, Revision: s.revision, Trimmed: s.log.trimmed, Audit: s.audit.mark, Time: s.clock.Now(),
	}
	for _, k := range mariposa.Kinds {
		s.objects[k].Scan(func(_ string, r *store.Record) bool {
			o := codec.Object{Record: *r}
			if err = o.Encode(); err != nil {
				return false
			}
			items = append(items, &store.DumpItem{Object: &store.EncodedObject{
				Kind: r.Kind, ID: r.ID, Project: r.Project, Archived: r.Archived,
				Revision: r.Revision, SpecRevision: r.SpecRevision, StatusRevision: r.StatusRevision, Spec: o.SpecJSON, Status: o.StatusJSON,
			}})
			return true
		})
		if err != nil {
			return head, nil, err
		}
	}
	chunks, err := s.log.chunks()
	items = append(items, chunks...)
	for _, name := range slices.Sorted(maps.Keys(s.leases)) {
		l := s.leases[name]
		items = append(items, &store.DumpItem{Lease: &l})
	}
	for _, node := range slices.Sorted(maps.Keys(s.ledger)) {
		items = append(items, &store.DumpItem{Claim: &store.NodeClaim{Node: node, Taken: s.ledger[node]}})
	}
	for i := range s.audit.entries {
		a, bad := codec.EncodeAudit(&s.audit.entries[i])
		if bad != nil {
			return head, nil, bad
		}
		items = append(items, &store.DumpItem{Audit: a})
	}
	return head, items, err
}

// chunks encodes the complete part of the log.
func (l *log) chunks() (items []*store.DumpItem, err error) {
	c, err := codec.New()
	if err != nil {
		return nil, err
	}
	defer c.Close()
	before := l.trimmed
	for _, end := range l.ends {
		changes := l.changes[before-l.trimmed : end-l.trimmed]
		chunk, err := c.ChunkOf(before+1, end, changes[0].Time, changes)
		if err != nil {
			return nil, err
		}
		items = append(items, &store.DumpItem{Chunk: chunk})
		before = end
	}
	return items, nil
}
