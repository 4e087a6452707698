package postgres

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"mariposa"
	"mariposa/store"
)

// snapshotPage is how many objects are read at a time. A page is read completely before
// it is visited, so that a slow visitor never blocks a statement.
const snapshotPage = 1000

const nextObjects = "SELECT " + objectColumns + " FROM objects WHERE kind = $1 AND id > $2 AND NOT archived ORDER BY id LIMIT 1000"

// Snapshot reads the counter and the objects in one repeatable-read transaction. Half of
// the readers' connections stay free for reads by visitors.
func (s *Store) Snapshot(ctx context.Context, visit func(store.Record) error) (int64, error) {
	if err := s.usable(ctx); err != nil {
		return 0, err
	}
	select {
	case s.visits <- struct{}{}:
		defer func() { <-s.visits }()
	case <-s.life.Done():
		return 0, store.ErrClosed
	case <-ctx.Done():
		return 0, ctx.Err()
	}
	for try := 1; ; try++ {
		v := visitor{store: s, visit: visit}
		err := v.snapshot(ctx)
		switch {
		case err == nil:
			return v.revision, nil
		case v.refused != nil:
			return 0, v.refused
		case try == 1 && v.dead && !v.visited:
			s.readers.Reset()
		default:
			return 0, s.readError(ctx, err)
		}
	}
}

// visitor is one attempt at a snapshot.
type visitor struct {
	store    *Store
	visit    func(store.Record) error
	revision int64
	visited  bool  // too late to retry
	refused  error // what the caller's visit returned
	dead     bool  // the connection is lost
}

func (v *visitor) snapshot(ctx context.Context) error {
	conn, err := v.acquire(ctx)
	if err != nil {
		return &connectError{err}
	}
	defer conn.Release()
	if err = v.begin(ctx, conn.Conn()); err == nil {
		err = v.walk(ctx, conn.Conn())
	}
	v.dead = conn.Conn().IsClosed()
	if !v.dead {
		rollback(conn.Conn())
	}
	return wrapConnectionLost(err, conn.Conn())
}

func (v *visitor) acquire(ctx context.Context) (*pgxpool.Conn, error) {
	ctx, cancel := v.store.bound(ctx)
	defer cancel()
	return v.store.readers.Acquire(ctx)
}

// rollback ends a transaction that has written nothing. If it fails, the pool discards
// the connection.
func rollback(conn *pgx.Conn) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	_, _ = conn.Exec(ctx, "ROLLBACK")
}

func (v *visitor) begin(ctx context.Context, conn *pgx.Conn) error {
	ctx, cancel := v.store.bound(ctx)
	defer cancel()
	var q pgx.Batch
	q.Queue("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
	q.Queue("SET LOCAL idle_in_transaction_session_timeout = '1min'") // between two pages
	q.Queue("SELECT revision FROM counter WHERE one").QueryRow(func(row pgx.Row) error { return row.Scan(&v.revision) })
	return conn.SendBatch(ctx, &q).Close()
}

func (v *visitor) walk(ctx context.Context, conn *pgx.Conn) error {
	for _, kind := range mariposa.Kinds {
		if kind.LoadedOnDemand() {
			continue
		}
		for last, full := "", true; full; {
			page, err := v.page(ctx, conn, kind, last)
			if err != nil {
				return err
			}
			for i := range page {
				v.visited = true
				if v.refused = v.visit(page[i]); v.refused != nil {
					return v.refused
				}
			}
			if full = len(page) == snapshotPage; full {
				last = page[len(page)-1].ID
			}
		}
	}
	return nil
}

func (v *visitor) page(ctx context.Context, conn *pgx.Conn, kind mariposa.Kind, after string) ([]store.Record, error) {
	ctx, cancel := v.store.bound(ctx)
	defer cancel()
	return readRecords(ctx, conn, nextObjects, string(kind), after)
}
