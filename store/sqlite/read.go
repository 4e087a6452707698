package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"mariposa"
	"mariposa/store"
	"mariposa/store/internal/codec"
)

// querier is a connection, a transaction or a pool.
type querier interface {
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
}

// scanner is one row.
type scanner interface{ Scan(...any) error }

func scanObject(row scanner) (*codec.Object, error) {
	o := new(codec.Object)
	err := row.Scan(&o.Kind, &o.ID, &o.Project, &o.Archived, &o.Revision, &o.SpecRevision, &o.StatusRevision, &o.SpecJSON, &o.StatusJSON)
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
	row := s.readers.QueryRowContext(ctx, "SELECT "+objectColumns+" FROM objects WHERE kind = ? AND id = ?", string(kind), id)
	o, err := scanObject(row)
	switch {
	case errors.Is(err, sql.ErrNoRows):
		return store.Record{}, fmt.Errorf("%s %s: %w", kind, id, store.ErrNotFound)
	case err != nil:
		return store.Record{}, s.readError(err)
	}
	return o.Record, nil
}

// Snapshot streams from one read transaction. While visit is slow, the write-ahead log
// grows instead of being merged into the file.
func (s *Store) Snapshot(ctx context.Context, visit func(store.Record) error) (int64, error) {
	if err := s.usable(ctx); err != nil {
		return 0, err
	}
	tx, err := s.readers.BeginTx(ctx, &sql.TxOptions{ReadOnly: true})
	if err != nil {
		return 0, s.readError(err)
	}
	defer tx.Rollback()
	_, revision, err := bounds(ctx, tx)
	if err != nil {
		return 0, s.readError(err)
	}
	var refused error
	guarded := func(r store.Record) error {
		refused = visit(r)
		return refused
	}
	for _, k := range mariposa.Kinds {
		if k.LoadedOnDemand() {
			continue
		}
		err := visitObjects(ctx, tx, guarded, "SELECT "+objectColumns+" FROM objects WHERE kind = ? AND archived = 0 ORDER BY id", string(k))
		if refused != nil {
			return 0, refused
		}
		if err != nil {
			return 0, s.readError(err)
		}
	}
	return revision, nil
}

func visitObjects(ctx context.Context, q querier, visit func(store.Record) error, query string, args ...any) error {
	rows, err := q.QueryContext(ctx, query, args...)
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		o, err := scanObject(rows)
		if err != nil {
			return err
		}
		if err := visit(o.Record); err != nil {
			return err
		}
	}
	return rows.Err()
}

// Ledger reads the claims.
func (s *Store) Ledger(ctx context.Context) (map[string]mariposa.Resources, error) {
	if err := s.usable(ctx); err != nil {
		return nil, err
	}
	ledger, err := readLedger(ctx, s.readers)
	return ledger, s.readError(err)
}

func readLedger(ctx context.Context, q querier) (map[string]mariposa.Resources, error) {
	rows, err := q.QueryContext(ctx, "SELECT node, instances, milli_cpu, memory FROM ledger")
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	ledger := make(map[string]mariposa.Resources)
	for rows.Next() {
		var node string
		var r mariposa.Resources
		if err := rows.Scan(&node, &r.Instances, &r.MilliCPU, &r.Memory); err != nil {
			return nil, err
		}
		ledger[node] = r
	}
	return ledger, rows.Err()
}

func readLeases(ctx context.Context, q querier) (map[string]store.Lease, error) {
	rows, err := q.QueryContext(ctx, "SELECT name, holder, epoch, until, note FROM leases")
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	leases := make(map[string]store.Lease)
	for rows.Next() {
		var l store.Lease
		var until int64
		if err := rows.Scan(&l.Name, &l.Holder, &l.Epoch, &until, &l.Note); err != nil {
			return nil, err
		}
		l.Until = timeOf(until)
		leases[l.Name] = l
	}
	return leases, rows.Err()
}

// bounds reads the bounds of the log.
func bounds(ctx context.Context, q querier) (trimmed, revision int64, err error) {
	values, err := readMeta(ctx, q, "trimmed", "revision")
	return values["trimmed"], values["revision"], err
}

// readMeta reads two of the store's numbers.
func readMeta(ctx context.Context, q querier, one, other string) (map[string]int64, error) {
	rows, err := q.QueryContext(ctx, "SELECT key, value FROM meta WHERE key IN (?, ?)", one, other)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	values := make(map[string]int64)
	for rows.Next() {
		var key string
		var value int64
		if err := rows.Scan(&key, &value); err != nil {
			return nil, err
		}
		values[key] = value
	}
	return values, rows.Err()
}
