package postgres

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"mariposa"
	"mariposa/store"
	"mariposa/store/internal/codec"
)

// read runs a read that may be repeated on a connection of the pool: if the connection
// turns out to be dead, it is replaced once.
func (s *Store) read(ctx context.Context, f func(context.Context, *pgx.Conn) error) error {
	if err := s.usable(ctx); err != nil {
		return err
	}
	bound, cancel := s.bound(ctx)
	defer cancel()
	for try := 1; ; try++ {
		dead, err := s.lend(bound, f)
		if dead && try == 1 && bound.Err() == nil {
			s.readers.Reset() // the others are probably dead too
			continue
		}
		return s.readError(ctx, err)
	}
}

// bound returns a context that ends with the caller's, with the store, or when the
// server has been silent for too long.
func (s *Store) bound(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithTimeout(ctx, answerTimeout)
	stop := context.AfterFunc(s.life, cancel)
	return ctx, func() {
		stop()
		cancel()
	}
}

// lend runs f on a connection and reports whether the connection died.
func (s *Store) lend(ctx context.Context, f func(context.Context, *pgx.Conn) error) (dead bool, err error) {
	conn, err := s.readers.Acquire(ctx)
	if err != nil {
		return false, &connectError{err}
	}
	defer conn.Release()
	err = f(ctx, conn.Conn())
	return err != nil && conn.Conn().IsClosed(), wrapConnectionLost(err, conn.Conn())
}

// wrapConnectionLost wraps errors that came with the end of a connection in a
// connectError.
func wrapConnectionLost(err error, conn *pgx.Conn) error {
	if err != nil && conn.IsClosed() {
		return &connectError{err}
	}
	return err
}

// readError classifies a failed read: it was interrupted by Close, canceled by its
// caller, or the server is unavailable.
func (s *Store) readError(ctx context.Context, err error) error {
	if err == nil {
		return nil
	}
	if s.feed.Closed() {
		return store.ErrClosed
	}
	if rewound := s.guard.err(); rewound != nil {
		return rewound
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	var away *connectError
	if e := serverError(err); errors.As(err, &away) || e != nil && isRefusal(e.Code) {
		return unavailable(err)
	}
	return err
}

func scanObject(row pgx.Row) (*codec.Object, error) {
	o := new(codec.Object)
	err := row.Scan((*string)(&o.Kind), &o.ID, &o.Project, &o.Archived, &o.Revision, &o.SpecRevision, &o.StatusRevision, &o.SpecJSON, &o.StatusJSON)
	if err != nil {
		return nil, err
	}
	if err := o.Decode(); err != nil {
		return nil, fmt.Errorf("%s %s: %w", o.Kind, o.ID, err)
	}
	return o, nil
}

// Get reads one object.
func (s *Store) Get(ctx context.Context, kind mariposa.Kind, id string) (store.Record, error) {
	if err := s.usable(ctx); err != nil {
		return store.Record{}, err
	}
	missing := fmt.Errorf("%s %s: %w", kind, id, store.ErrNotFound)
	if !isName(id) || !isName(string(kind)) {
		return store.Record{}, missing
	}
	var o *codec.Object
	err := s.read(ctx, func(ctx context.Context, conn *pgx.Conn) (err error) {
		o, err = scanObject(conn.QueryRow(ctx, "SELECT "+objectColumns+" FROM objects WHERE kind = $1 AND id = $2", string(kind), id))
		return err
	})
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return store.Record{}, missing
	case err != nil:
		return store.Record{}, err
	}
	return o.Record, nil
}

func readRecords(ctx context.Context, conn *pgx.Conn, query string, args ...any) ([]store.Record, error) {
	rows, err := conn.Query(ctx, query, args...)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	var found []store.Record
	for rows.Next() {
		o, err := scanObject(rows)
		if err != nil {
			return nil, err
		}
		found = append(found, o.Record)
	}
	return found, rows.Err()
}

// Ledger reads the claims.
func (s *Store) Ledger(ctx context.Context) (ledger map[string]mariposa.Resources, err error) {
	err = s.read(ctx, func(ctx context.Context, conn *pgx.Conn) error {
		ledger = make(map[string]mariposa.Resources)
		rows, err := conn.Query(ctx, "SELECT node, instances, milli_cpu, memory FROM ledger WHERE instances <> 0 OR milli_cpu <> 0 OR memory <> 0")
		if err != nil {
			return err
		}
		defer rows.Close()
		return scanLedger(rows, ledger)
	})
	if err != nil {
		return nil, err
	}
	return ledger, nil
}

func scanLedger(rows pgx.Rows, ledger map[string]mariposa.Resources) error {
	for rows.Next() {
		var node string
		var r mariposa.Resources
		if err := rows.Scan(&node, &r.Instances, &r.MilliCPU, &r.Memory); err != nil {
			return err
		}
		ledger[node] = r
	}
	return rows.Err()
}
