package postgres

import (
	"context"
	"fmt"
	"math"
	"time"

	"github.com/jackc/pgx/v5"

	"mariposa/store"
)

// trimStep is how many chunks are deleted in one transaction, so that each stays short.
const trimStep = 1000

// forget deletes changes up to a revision.
var forget = []string{
	"DELETE FROM changes WHERE first <= $1",
	"DELETE FROM change_project WHERE first + 0 <= $1",
	"DELETE FROM change_task WHERE first + 0 <= $1",
}

const oldestChunks = "SELECT last, at FROM changes ORDER BY first LIMIT $1"

// Trim deletes the oldest chunks, step by step. It bypasses the group commit: nothing
// else touches the old end of the log, and concurrent trims wait for each other.
func (s *Store) Trim(ctx context.Context, maxAge time.Duration, maxChanges int64) (int64, error) {
	for {
		var point int64
		var n int
		err := s.read(ctx, func(ctx context.Context, conn *pgx.Conn) error {
			return pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) (err error) {
				point, n, err = trim(ctx, tx, maxAge, maxChanges)
				return err
			})
		})
		if err != nil {
			return 0, err
		}
		s.feed.Trimmed(point)
		if n < trimStep {
			return point, s.read(ctx, sweep)
		}
	}
}

// trim deletes chunks at the front that are too old or too many, at most trimStep of
// them. It returns the revision after which the log is complete and how many chunks it
// deleted.
func trim(ctx context.Context, tx pgx.Tx, maxAge time.Duration, maxChanges int64) (point int64, n int, err error) {
	if point, err = lockTrimmed(ctx, tx); err != nil {
		return 0, 0, err
	}
	var now time.Time
	var revision int64
	if err := tx.QueryRow(ctx, "SELECT clock_timestamp(), revision FROM counter WHERE one").Scan(&now, &revision); err != nil {
		return 0, 0, err
	}
	oldest, newest := time.Time{}, int64(math.MinInt64)
	if maxAge > 0 {
		oldest = now.Add(-maxAge)
	}
	if maxChanges > 0 {
		newest = revision - maxChanges
	}
	last, n, err := oldChunks(ctx, tx, oldest, newest)
	if err != nil || n == 0 {
		return point, n, err
	}
	for _, statement := range forget {
		if _, err := tx.Exec(ctx, statement, last); err != nil {
			return 0, 0, err
		}
	}
	point, err = setTrimmed(ctx, tx, point, last)
	return point, n, err
}

// lockTrimmed returns the oldest revision after which the log is complete. Until the
// transaction ends, nothing else changes the old end of the log.
func lockTrimmed(ctx context.Context, tx pgx.Tx) (point int64, err error) {
	err = tx.QueryRow(ctx, "SELECT revision FROM trimmed WHERE one FOR UPDATE").Scan(&point)
	return point, err
}

// setTrimmed notes that the log is not complete up to a revision, and returns the oldest
// one after which it is.
func setTrimmed(ctx context.Context, tx pgx.Tx, point, revision int64) (int64, error) {
	if revision <= point {
		return point, nil
	}
	_, err := tx.Exec(ctx, "UPDATE trimmed SET revision = $1 WHERE one", revision)
	return revision, err
}

// oldChunks returns the end of the last chunk that is too old, and how many there are,
// up to trimStep.
func oldChunks(ctx context.Context, tx pgx.Tx, oldest time.Time, newest int64) (end int64, n int, err error) {
	rows, err := tx.Query(ctx, oldestChunks, trimStep)
	if err != nil {
		return 0, 0, err
	}
	defer rows.Close()
	for rows.Next() {
		var last int64
		var at time.Time
		if err := rows.Scan(&last, &at); err != nil {
			return 0, 0, err
		}
		if !at.Before(oldest) && last > newest {
			break
		}
		end = last
		n++
	}
	return end, n, rows.Err()
}

// sweep deletes obsolete rows: of nodes without claims, of replicas that are gone, and of
// writers not seen for a month. It skips locked rows: they do no harm, and waiting for one row while holding
// others could deadlock.
func sweep(ctx context.Context, conn *pgx.Conn) error {
	for _, statement := range []string{
		`DELETE FROM ledger WHERE node IN
			(SELECT node FROM ledger WHERE instances = 0 AND milli_cpu = 0 AND memory = 0 FOR UPDATE SKIP LOCKED)`,
		fmt.Sprintf(`DELETE FROM leases WHERE name IN
			(SELECT name FROM leases WHERE name >= '%[1]s' AND name <= '%[1]s' || chr(1114111) AND (holder = '' OR until < clock_timestamp() - interval '%[2]d seconds')
			FOR UPDATE SKIP LOCKED)`, store.ReplicaPrefix, int(store.ReplicaMemory.Seconds())),
		`DELETE FROM writers WHERE id IN
			(SELECT id FROM writers WHERE seen < clock_timestamp() - interval '30 days' FOR UPDATE SKIP LOCKED)`,
	} {
		if _, err := conn.Exec(ctx, statement); err != nil {
			return err
		}
	}
	return nil
}
