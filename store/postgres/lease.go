package postgres

import (
	"context"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/jackc/pgx/v5"

	"mariposa/store"
)

// Hold takes those of the named leases that are free. They expire by the server's clock.
func (s *Store) Hold(ctx context.Context, holder string, ttl time.Duration, names ...string) ([]store.Lease, error) {
	if err := checkLeaseNames(holder, names); err != nil {
		return nil, err
	}
	return s.queue.Hold(ctx, holder, ttl, names...)
}

// Time returns the time by the server's clock.
func (s *Store) Time(ctx context.Context) (now time.Time, err error) {
	err = s.read(ctx, func(ctx context.Context, conn *pgx.Conn) error {
		return conn.QueryRow(ctx, "SELECT clock_timestamp()").Scan(&now)
	})
	return now.UTC(), err
}

// Seize takes a lease by force.
func (s *Store) Seize(ctx context.Context, holder, name string) (store.Lease, error) {
	if err := checkLeaseNames(holder, []string{name}); err != nil {
		return store.Lease{}, err
	}
	return s.queue.Seize(ctx, holder, name)
}

// Announce sets the note of a lease that the holder has.
func (s *Store) Announce(ctx context.Context, holder, name, note string) error {
	if err := checkLeaseNames(holder, []string{name}); err != nil {
		return err
	}
	if !utf8.ValidString(note) || strings.Contains(note, "\x00") {
		return fmt.Errorf("the note of lease %s must be UTF-8 text without NUL bytes", name)
	}
	return s.queue.Announce(ctx, holder, name, note)
}

// Release skips leases that have another holder.
func (s *Store) Release(ctx context.Context, holder string, names ...string) error {
	if err := checkLeaseNames(holder, names); err != nil {
		return err
	}
	return s.queue.Release(ctx, holder, names...)
}

// Leases skips leases that have expired by the server's clock.
func (s *Store) Leases(ctx context.Context, prefix string) ([]store.Lease, error) {
	if !isName(prefix) {
		return nil, s.usable(ctx)
	}
	var now time.Time
	leases := make(map[string]store.Lease)
	err := s.read(ctx, func(ctx context.Context, conn *pgx.Conn) error {
		var q pgx.Batch
		q.Queue("SELECT clock_timestamp()").QueryRow(func(row pgx.Row) error { return row.Scan(&now) })
		q.Queue("SELECT "+leaseColumns+" FROM leases WHERE name >= $1 AND name <= $1 || chr(1114111)", prefix).Query(func(rows pgx.Rows) error {
			clear(leases)
			return scanLeases(rows, leases)
		})
		return conn.SendBatch(ctx, &q).Close()
	})
	if err != nil {
		return nil, err
	}
	return store.LiveLeases(leases, prefix, now), nil
}

func scanLeases(rows pgx.Rows, leases map[string]store.Lease) error {
	for rows.Next() {
		var l store.Lease
		var until *time.Time
		if err := rows.Scan(&l.Name, &l.Holder, &l.Epoch, &until, &l.Note); err != nil {
			return err
		}
		if until != nil {
			l.Until = until.UTC()
		}
		leases[l.Name] = l
	}
	return rows.Err()
}

func checkLeaseNames(holder string, names []string) error {
	if !isName(holder) {
		return badName("holder", holder)
	}
	for _, name := range names {
		if !isName(name) {
			return badName("lease", name)
		}
	}
	return nil
}
