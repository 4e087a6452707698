package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"

	"mariposa/clock"
	"mariposa/store"
)

// maxDumpWAL is how large the write-ahead log may become during a dump. While a dump is
// read, it is not merged into the file. The dump ends with an error before the disk is
// full.
const maxDumpWAL = 2 << 30

// Dump reads from one transaction, which does not hold up the writer.
func (s *Store) Dump(ctx context.Context, d store.Dump) error {
	if err := s.usable(ctx); err != nil {
		return err
	}
	p := dumper{clock: s.clock, wal: s.path + "-wal", maxWAL: maxDumpWAL, dump: d}
	err := p.run(ctx, s.readers)
	if p.refused != nil {
		return p.refused
	}
	return s.readError(err)
}

// DumpFile dumps a store that no server uses. The file stays as it is: a schema of an
// older release is not migrated.
func DumpFile(ctx context.Context, path string, d store.Dump) error {
	if _, err := os.Stat(path); err != nil {
		return fmt.Errorf("store %s: %w", path, err)
	}
	held, err := lockFile(path + ".lock")
	if err != nil {
		return fmt.Errorf("store %s: %w", path, err)
	}
	db, err := openDB(path, reading)
	if err == nil {
		p := dumper{clock: clock.Real{}, dump: d}
		err = errors.Join(p.run(ctx, db), db.Close())
	}
	if err := errors.Join(err, held.free()); err != nil {
		return fmt.Errorf("store %s: %w", path, err)
	}
	return nil
}

// dumper is one dump in progress.
type dumper struct {
	clock   clock.Clock
	wal     string // the write-ahead log; empty if nothing is written meanwhile
	maxWAL  int64
	dump    store.Dump
	refused error // what the caller's function returned
	items   int
}

func (p *dumper) run(ctx context.Context, db *sql.DB) error {
	tx, err := db.BeginTx(ctx, &sql.TxOptions{ReadOnly: true})
	if err != nil {
		return err
	}
	defer tx.Rollback()
	head, err := p.head(ctx, tx)
	if err != nil {
		return err
	}
	if p.refused = p.dump.Head(head); p.refused != nil {
		return p.refused
	}
	for _, part := range []func(context.Context, querier) error{p.objects, p.chunks, p.leases, p.claims, p.audit} {
		if err := part(ctx, tx); err != nil {
			return err
		}
	}
	return nil
}

// oldestDumped is the oldest schema that can be dumped without a migration.
const oldestDumped = 2

func (p *dumper) head(ctx context.Context, tx *sql.Tx) (h store.DumpHead, err error) {
	err = tx.QueryRowContext(ctx, "SELECT coalesce(max(version_id), 0) FROM goose_db_version WHERE is_applied").Scan(&h.Schema)
	switch {
	case err != nil:
		return h, fmt.Errorf("read schema: %w", err)
	case h.Schema > store.Schema:
		return h, fmt.Errorf("written by a newer version of mariposa (schema %d; this version supports up to %d): run that version", h.Schema, store.Schema)
	case h.Schema < oldestDumped:
		return h, fmt.Errorf("written by an old version of mariposa (schema %d): start this version once, then back it up", h.Schema)
	}
	const texts = "SELECT (SELECT value FROM meta WHERE key = 'cluster'), (SELECT value FROM meta WHERE key = 'incarnation')"
	if err := tx.QueryRowContext(ctx, texts).Scan(&h.Cluster, &h.Incarnation); err != nil {
		return h, err
	}
	if h.Trimmed, h.Revision, err = bounds(ctx, tx); err != nil {
		return h, err
	}
	h.Audit, err = readAuditMark(ctx, tx)
	h.Time = timeOf(p.clock.Now().UnixNano())
	return h, err
}

// checkEvery is how many items are passed on between two looks at the write-ahead log.
const checkEvery = 1000

func (p *dumper) pass(it *store.DumpItem) error {
	if p.items++; p.items%checkEvery == 0 && p.wal != "" {
		if info, err := os.Stat(p.wal); err == nil && info.Size() > p.maxWAL {
			return fmt.Errorf("%w: the backup takes too long: changes meanwhile have filled %d MiB of the disk; use a faster connection, or a time with fewer changes",
				store.ErrUnavailable, info.Size()>>20)
		}
	}
	p.refused = p.dump.Item(it)
	return p.refused
}

// each passes on one item for each row.
func (p *dumper) each(ctx context.Context, q querier, query string, scan func(*sql.Rows) (*store.DumpItem, error)) error {
	rows, err := q.QueryContext(ctx, query)
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		it, err := scan(rows)
		if err != nil {
			return err
		}
		if err := p.pass(it); err != nil {
			return err
		}
	}
	return rows.Err()
}

func (p *dumper) objects(ctx context.Context, q querier) error {
	return p.each(ctx, q, "SELECT "+objectColumns+" FROM objects ORDER BY kind, id", func(rows *sql.Rows) (*store.DumpItem, error) {
		o := new(store.EncodedObject)
		return &store.DumpItem{Object: o}, rows.Scan((*string)(&o.Kind), &o.ID, &o.Project, &o.Archived, &o.Revision, &o.SpecRevision, &o.StatusRevision, &o.Spec, &o.Status)
	})
}

func (p *dumper) chunks(ctx context.Context, q querier) error {
	return p.each(ctx, q, "SELECT first, last, at, body FROM changes ORDER BY first", func(rows *sql.Rows) (*store.DumpItem, error) {
		c, at := new(store.EncodedChunk), int64(0)
		err := rows.Scan(&c.First, &c.Last, &at, &c.Body)
		c.At = timeOf(at)
		return &store.DumpItem{Chunk: c}, err
	})
}

func (p *dumper) leases(ctx context.Context, q querier) error {
	return p.each(ctx, q, "SELECT name, holder, epoch, until FROM leases ORDER BY name", func(rows *sql.Rows) (*store.DumpItem, error) {
		l, until := new(store.Lease), int64(0)
		err := rows.Scan(&l.Name, &l.Holder, &l.Epoch, &until)
		l.Until = timeOf(until)
		return &store.DumpItem{Lease: l}, err
	})
}

func (p *dumper) claims(ctx context.Context, q querier) error {
	return p.each(ctx, q, "SELECT node, instances, milli_cpu, memory FROM ledger ORDER BY node", func(rows *sql.Rows) (*store.DumpItem, error) {
		c := new(store.NodeClaim)
		return &store.DumpItem{Claim: c}, rows.Scan(&c.Node, &c.Taken.Instances, &c.Taken.MilliCPU, &c.Taken.Memory)
	})
}

func (p *dumper) audit(ctx context.Context, q querier) error {
	return p.each(ctx, q, "SELECT id, at, body FROM audit ORDER BY id", func(rows *sql.Rows) (*store.DumpItem, error) {
		a, at := new(store.EncodedAudit), int64(0)
		err := rows.Scan(&a.ID, &at, &a.Body)
		a.At = timeOf(at)
		return &store.DumpItem{Audit: a}, err
	})
}
