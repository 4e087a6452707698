package postgres

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"mariposa/store"
)

// Dump reads from one repeatable-read transaction on a connection of its own. Until it
// ends, the server keeps old versions of rows.
func (s *Store) Dump(ctx context.Context, d store.Dump) error {
	if err := s.usable(ctx); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(s.life, cancel)()
	conn, err := s.writer.log.connect(ctx, s.writer.config)
	if err != nil {
		return s.readError(ctx, &connectError{err})
	}
	defer disconnect(conn)
	p := dumper{dump: d}
	err = p.run(ctx, conn)
	if p.refused != nil {
		return p.refused
	}
	return s.readError(ctx, wrapConnectionLost(err, conn))
}

// DumpDatabase dumps a database, whether servers use it or not. It stays as it is: a
// schema of an older release is not migrated.
func DumpDatabase(ctx context.Context, url string, d store.Dump) error {
	config, err := parse(url)
	if err != nil {
		return err
	}
	conn, err := connect(ctx, config.ConnConfig)
	if err == nil {
		defer disconnect(conn)
		p := dumper{dump: d}
		if err = p.run(ctx, conn); p.refused != nil {
			return p.refused
		}
	}
	if err != nil {
		return fmt.Errorf("store %s/%s: %w", config.ConnConfig.Host, config.ConnConfig.Database, openError(ctx, err))
	}
	return nil
}

// dumper is one dump in progress.
type dumper struct {
	dump    store.Dump
	refused error // what the caller's function returned
}

// dumpSettings are those of the transaction. A statement takes as long as the receiver of
// the dump. The tables are locked against a restore, which empties them: that is not part
// of the state that the transaction sees.
var dumpSettings = []string{
	"BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY",
	"SET LOCAL statement_timeout = 0",
	"SET LOCAL idle_in_transaction_session_timeout = 0",
	"LOCK TABLE objects, changes, leases, ledger, audit, counter, trimmed, meta IN ACCESS SHARE MODE",
}

func (p *dumper) run(ctx context.Context, conn *pgx.Conn) error {
	h, err := p.begin(ctx, conn)
	if err != nil {
		return err
	}
	if p.refused = p.dump.Head(h); p.refused != nil {
		return p.refused
	}
	for _, part := range []func(context.Context, *pgx.Conn) error{p.objects, p.chunks, p.leases, p.claims, p.audit} {
		if err := part(ctx, conn); err != nil {
			return err
		}
	}
	return nil
}

// oldestDumped is the oldest schema that can be dumped without a migration.
const oldestDumped = 2

// begin opens the transaction and reads the head.
func (p *dumper) begin(ctx context.Context, conn *pgx.Conn) (h store.DumpHead, err error) {
	ctx, cancel := context.WithTimeout(ctx, answerTimeout)
	defer cancel()
	schema, err := schemaVersion(ctx, conn)
	switch {
	case err != nil:
		return h, err
	case schema == 0:
		return h, fmt.Errorf("%w: the database is empty", store.ErrUnavailable)
	case schema > store.Schema:
		return h, fmt.Errorf("written by a newer version of mariposa (schema %d; this version supports up to %d): run that version", schema, store.Schema)
	case schema < oldestDumped:
		return h, fmt.Errorf("written by an old version of mariposa (schema %d): start this version once, then back it up", schema)
	}
	h.Schema = int(schema)
	var q pgx.Batch
	for _, statement := range dumpSettings {
		q.Queue(statement)
	}
	const head = `SELECT c.revision, t.revision, c.audit, c.audit_lag, clock_timestamp(), (SELECT value FROM meta WHERE key = 'cluster'), (` + readIncarnation + `)
		FROM counter AS c, trimmed AS t`
	q.Queue(head).QueryRow(func(row pgx.Row) error {
		return row.Scan(&h.Revision, &h.Trimmed, &h.Audit.Last, &h.Audit.Lag, &h.Time, &h.Cluster, &h.Incarnation)
	})
	err = conn.SendBatch(ctx, &q).Close()
	h.Time = h.Time.UTC()
	return h, err
}

// each passes on one item for each row, as the rows arrive.
func (p *dumper) each(ctx context.Context, conn *pgx.Conn, query string, scan func(pgx.Rows) (*store.DumpItem, error)) error {
	rows, err := conn.Query(ctx, query)
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		it, err := scan(rows)
		if err != nil {
			return err
		}
		if p.refused = p.dump.Item(it); p.refused != nil {
			return p.refused
		}
	}
	return rows.Err()
}

func (p *dumper) objects(ctx context.Context, conn *pgx.Conn) error {
	return p.each(ctx, conn, "SELECT "+objectColumns+" FROM objects ORDER BY kind, id", func(rows pgx.Rows) (*store.DumpItem, error) {
		o := new(store.EncodedObject)
		return &store.DumpItem{Object: o}, rows.Scan((*string)(&o.Kind), &o.ID, &o.Project, &o.Archived, &o.Revision, &o.SpecRevision, &o.StatusRevision, &o.Spec, &o.Status)
	})
}

func (p *dumper) chunks(ctx context.Context, conn *pgx.Conn) error {
	return p.each(ctx, conn, "SELECT first, last, at, body FROM changes ORDER BY first", func(rows pgx.Rows) (*store.DumpItem, error) {
		c := new(store.EncodedChunk)
		err := rows.Scan(&c.First, &c.Last, &c.At, &c.Body)
		return &store.DumpItem{Chunk: c}, err
	})
}

// keptOfLeases are the columns of leases in a dump. The note is of a replica that runs, and
// older schemas do not have it.
const keptOfLeases = "name, holder, epoch, until"

func (p *dumper) leases(ctx context.Context, conn *pgx.Conn) error {
	return p.each(ctx, conn, "SELECT "+keptOfLeases+" FROM leases ORDER BY name", func(rows pgx.Rows) (*store.DumpItem, error) {
		l, until := new(store.Lease), (*time.Time)(nil)
		err := rows.Scan(&l.Name, &l.Holder, &l.Epoch, &until)
		if until != nil {
			l.Until = *until
		}
		return &store.DumpItem{Lease: l}, err
	})
}

func (p *dumper) claims(ctx context.Context, conn *pgx.Conn) error {
	const query = "SELECT " + ledgerColumns + " FROM ledger WHERE instances <> 0 OR milli_cpu <> 0 OR memory <> 0 ORDER BY node"
	return p.each(ctx, conn, query, func(rows pgx.Rows) (*store.DumpItem, error) {
		c := new(store.NodeClaim)
		return &store.DumpItem{Claim: c}, rows.Scan(&c.Node, &c.Taken.Instances, &c.Taken.MilliCPU, &c.Taken.Memory)
	})
}

func (p *dumper) audit(ctx context.Context, conn *pgx.Conn) error {
	return p.each(ctx, conn, "SELECT id, at, body FROM audit ORDER BY id", func(rows pgx.Rows) (*store.DumpItem, error) {
		a := new(store.EncodedAudit)
		return &store.DumpItem{Audit: a}, rows.Scan(&a.ID, &a.At, &a.Body)
	})
}
