package sqlite

import (
	"context"
	"database/sql"

	"mariposa"
	"mariposa/store"
	"mariposa/store/internal/batch"
	"mariposa/store/internal/codec"
)

// base is the state on which a group builds: the objects it touches, as they are, and
// the writer's leases and claims.
type base struct {
	*writer
	objects map[batch.Key]*codec.Object // nil: there is none
}

func (b base) Object(k batch.Key) *codec.Object { return b.objects[k] }

func (b base) Lease(name string) store.Lease {
	if l, known := b.leases[name]; known {
		return l
	}
	return store.Lease{Name: name}
}

func (b base) Claimed(node string) mariposa.Resources { return b.ledger[node] }

func (b base) Audited() store.AuditMark { return b.audit }

// read loads the objects that a batch touches, those not cached from disk, many per
// statement.
func (w *writer) read(ctx context.Context, b *batch.Batch) (base, error) {
	found := base{w, make(map[batch.Key]*codec.Object)}
	missing := make(map[mariposa.Kind][]any)
	b.Keys(func(k batch.Key) {
		if _, seen := found.objects[k]; seen {
			return
		}
		o := w.objects.get(k)
		found.objects[k] = o
		if o == nil {
			missing[k.Kind] = append(missing[k.Kind], k.ID)
		}
	})
	for kind, ids := range missing {
		for i, n := range manyRows {
			for ; len(ids) >= n; ids = ids[n:] {
				if err := w.find(ctx, w.statements.find.stmts[i], kind, ids[:n], found.objects); err != nil {
					return base{}, err
				}
			}
		}
	}
	return found, nil
}

func (w *writer) find(ctx context.Context, stmt *sql.Stmt, kind mariposa.Kind, ids []any, found map[batch.Key]*codec.Object) error {
	rows, err := stmt.QueryContext(ctx, append([]any{string(kind)}, ids...)...)
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		o, err := scanObject(rows)
		if err != nil {
			return err
		}
		found[batch.Key{Kind: o.Kind, ID: o.ID}] = o
	}
	return rows.Err()
}

// transact writes a group in one transaction and returns the size of its changes.
func (w *writer) transact(ctx context.Context, g *batch.Group) (size int, err error) {
	if _, err := w.conn.ExecContext(ctx, "BEGIN IMMEDIATE"); err != nil {
		return 0, err
	}
	size, err = w.write(ctx, g)
	if err == nil {
		_, err = w.conn.ExecContext(ctx, "COMMIT")
	}
	if err != nil {
		// It fails if SQLite has already rolled back by itself, which is fine.
		_, _ = w.conn.ExecContext(ctx, "ROLLBACK")
	}
	return size, err
}

func (w *writer) write(ctx context.Context, g *batch.Group) (size int, err error) {
	if len(g.Changes) > 0 {
		if size, err = w.writeChanges(ctx, g); err != nil {
			return 0, err
		}
		if err := w.writeObjects(ctx, g); err != nil {
			return 0, err
		}
		if err := w.setMeta(ctx, "revision", g.Revision); err != nil {
			return 0, err
		}
	}
	if err := w.writeLeases(ctx, g.Leases); err != nil {
		return 0, err
	}
	if err := w.writeLedger(ctx, g.Ledger); err != nil {
		return 0, err
	}
	if err := w.writeAudit(ctx, g); err != nil {
		return 0, err
	}
	for _, also := range g.ExtraActions {
		if err := also(ctx); err != nil {
			return 0, err
		}
	}
	return size, nil
}

// writeObjects writes each object once, in its final state, in the order of the table.
func (w *writer) writeObjects(ctx context.Context, g *batch.Group) error {
	s := w.statements
	args := s.args[:0]
	for _, k := range g.Written() {
		o := g.Objects[k]
		if o == nil {
			if _, err := s.remove.ExecContext(ctx, string(k.Kind), k.ID); err != nil {
				return err
			}
			continue
		}
		var status any // a nil slice would be stored as an empty status, not as none
		if o.StatusJSON != nil {
			status = o.StatusJSON
		}
		args = append(args, string(o.Kind), o.ID, o.Project, o.Archived, o.Revision, o.SpecRevision, o.StatusRevision, o.SpecJSON, status, string(o.ArchivedState()))
	}
	err := s.put.exec(ctx, args)
	clear(args)
	s.args = args[:0]
	return err
}

// writeChanges appends the group to the log. It also fills in the encodings that
// writeObjects needs.
func (w *writer) writeChanges(ctx context.Context, g *batch.Group) (size int, err error) {
	chunk, err := w.codec.Chunk(g.Changes, g.After)
	if err != nil {
		return 0, err
	}
	first := g.Changes[0].Revision
	s := w.statements
	if _, err := s.appendChange.ExecContext(ctx, first, g.Revision, g.Now.UnixNano(), chunk.Body); err != nil {
		return 0, err
	}
	projects, tasks := g.Tags(chunk)
	args := s.args[:0]
	for _, p := range projects {
		args = append(args, first, p.Project, p.Changes, p.Bytes)
	}
	if err := s.tagProject.exec(ctx, args); err != nil {
		return 0, err
	}
	args = args[:0]
	for _, task := range tasks {
		args = append(args, first, task)
	}
	err = s.tagTask.exec(ctx, args)
	s.args = args[:0]
	return chunk.Size, err
}

func (w *writer) writeLeases(ctx context.Context, leases map[string]store.Lease) error {
	args := make([]any, 0, 5*len(leases))
	for _, l := range leases {
		args = append(args, l.Name, l.Holder, l.Epoch, nanosOf(l.Until), l.Note)
	}
	return w.statements.putLease.exec(ctx, args)
}

// writeLedger keeps no row for a node without claims.
func (w *writer) writeLedger(ctx context.Context, ledger map[string]mariposa.Resources) error {
	args := make([]any, 0, 4*len(ledger))
	for node, r := range ledger {
		if r != (mariposa.Resources{}) {
			args = append(args, node, r.Instances, r.MilliCPU, r.Memory)
		} else if _, err := w.statements.removeClaim.ExecContext(ctx, node); err != nil {
			return err
		}
	}
	return w.statements.putClaim.exec(ctx, args)
}

func (w *writer) setMeta(ctx context.Context, key string, value int64) error {
	_, err := w.statements.setMeta.ExecContext(ctx, value, key)
	return err
}
