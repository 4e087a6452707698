package sqlite

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"time"

	"mariposa"
	"mariposa/clock"
	"mariposa/store"
	"mariposa/store/internal/batch"
	"mariposa/store/internal/codec"
	"mariposa/store/internal/feed"
)

// The maximum size of one transaction. Urgent work waits for at most one of them, so
// they must stay short.
const (
	maxUnits  = 500
	maxWrites = 500
)

// writer is the only writer. Nothing else uses the file, so it can cache what it has
// read or written.
type writer struct {
	clock clock.Clock
	queue *batch.Queue
	feed  *feed.Feed
	codec *codec.Codec
	db    *sql.DB

	conn       *sql.Conn
	statements *statements
	stale      bool // a transaction failed: the fields below may be wrong

	revision int64
	objects  cache
	leases   map[string]store.Lease
	ledger   map[string]mariposa.Resources
	audit    store.AuditMark
}

// run commits groups until the queue is closed and empty.
func (w *writer) run(ended chan<- struct{}) {
	defer close(ended)
	for b := w.queue.Take(maxUnits, maxWrites); b != nil; b = w.queue.Take(maxUnits, maxWrites) {
		err := w.commit(context.Background(), b)
		if err != nil {
			w.stale = true
			err = fmt.Errorf("%w: %w", store.ErrUnavailable, err)
		}
		b.Done(err)
	}
}

// commit makes one batch durable and publishes it to the feed.
func (w *writer) commit(ctx context.Context, b *batch.Batch) error {
	if err := w.recover(ctx); err != nil {
		return err
	}
	base, err := w.read(ctx, b)
	if err != nil {
		return err
	}
	g := batch.NewGroup(base, w.revision, timeOf(w.clock.Now().UnixNano()))
	b.Apply(g)
	if !g.Dirty() {
		return nil
	}
	size, err := w.transact(ctx, g)
	if err != nil {
		return err
	}
	w.keep(g)
	w.feed.Publish(g.Changes, size)
	return nil
}

// keep caches what a group wrote.
func (w *writer) keep(g *batch.Group) {
	w.revision, w.audit = g.Revision, g.Mark
	for k, o := range g.Objects {
		if o != nil {
			o.SpecJSON, o.StatusJSON = nil, nil // on disk now, and too large to cache
		}
		w.objects.put(k, o)
	}
	for name, l := range g.Leases {
		w.leases[name] = l
	}
	for node, r := range g.Ledger {
		w.ledger[node] = r
	}
}

// recover reloads the writer's state after a failed transaction. The same connection is
// tried first, then a new one.
func (w *writer) recover(ctx context.Context) error {
	if !w.stale {
		return nil
	}
	if w.statements == nil || w.reload(ctx) != nil {
		w.disconnect()
		if err := w.connect(ctx); err != nil {
			return err
		}
	}
	w.stale = false
	return nil
}

// reload reads in a transaction, because beginning one proves that the failed one has
// ended.
func (w *writer) reload(ctx context.Context) error {
	if _, err := w.conn.ExecContext(ctx, "BEGIN"); err != nil {
		return err
	}
	err := w.load(ctx)
	_, end := w.conn.ExecContext(ctx, "ROLLBACK")
	return errors.Join(err, end)
}

// connect opens the writer's connection and loads its state.
func (w *writer) connect(ctx context.Context) (err error) {
	if w.conn, err = w.db.Conn(ctx); err != nil {
		return err
	}
	if w.statements, err = prepareAll(ctx, w.conn); err != nil {
		return err
	}
	return w.load(ctx)
}

// disconnect discards the connection, whatever its state.
func (w *writer) disconnect() {
	w.finalize()
	if w.conn != nil {
		// This error makes the pool discard the connection. Raw returns it, or another
		// error if the connection is gone already.
		_ = w.conn.Raw(func(any) error { return driver.ErrBadConn })
	}
	w.conn, w.statements = nil, nil
}

// finalize frees the statements, unless the connection is gone already: then the driver
// would free them twice and crash.
func (w *writer) finalize() {
	if w.statements != nil && w.conn.Raw(func(any) error { return nil }) == nil {
		w.statements.close()
	}
}

func (w *writer) close() error {
	w.finalize()
	var err error
	if w.conn != nil {
		if err = w.conn.Close(); errors.Is(err, sql.ErrConnDone) {
			err = nil // broken, and not repaired since
		}
	}
	if w.db != nil {
		err = errors.Join(err, w.db.Close())
	}
	return err
}

// load reads all of the writer's state except the objects, which are read on demand.
func (w *writer) load(ctx context.Context) error {
	w.objects.clear()
	trimmed, revision, err := bounds(ctx, w.conn)
	if err != nil {
		return err
	}
	if w.leases, err = readLeases(ctx, w.conn); err != nil {
		return err
	}
	if w.ledger, err = readLedger(ctx, w.conn); err != nil {
		return err
	}
	if w.audit, err = readAuditMark(ctx, w.conn); err != nil {
		return err
	}
	w.revision = revision
	// A transaction can fail and still be on disk, if only the sync failed. Then readers
	// must continue the log from there.
	if from, to := w.feed.Bounds(); from != trimmed || to != revision {
		w.feed.Reset(trimmed, revision)
	}
	return nil
}

// timeOf converts a stored time: nanoseconds since 1970, 0 for none.
func timeOf(nanos int64) time.Time {
	if nanos == 0 {
		return time.Time{}
	}
	return time.Unix(0, nanos).UTC()
}

func nanosOf(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.UnixNano()
}
