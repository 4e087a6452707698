package sqlite

import (
	"context"
	"math"
	"time"

	"mariposa/store/internal/batch"
)

// trimStep is how many chunks are deleted in one transaction, so that other work does not
// wait long.
const trimStep = 1000

// Trim deletes the oldest chunks, step by step.
func (s *Store) Trim(ctx context.Context, maxAge time.Duration, maxChanges int64) (int64, error) {
	for {
		var point int64
		var n int
		err := s.queue.Do(ctx, func(g *batch.Group) error {
			oldest, newest := int64(math.MinInt64), int64(math.MinInt64)
			if maxAge > 0 {
				oldest = g.Now.Add(-maxAge).UnixNano()
			}
			if maxChanges > 0 {
				newest = s.writer.revision - maxChanges
			}
			g.ExtraActions = append(g.ExtraActions, func(ctx context.Context) (err error) {
				if err := s.writer.forgetReplicas(ctx, g); err != nil {
					return err
				}
				point, n, err = s.writer.trim(ctx, oldest, newest)
				return err
			})
			return nil
		})
		if err != nil {
			return 0, err
		}
		s.feed.Trimmed(point)
		if n < trimStep {
			return point, nil
		}
	}
}

// forgetReplicas deletes the leases of replicas that are gone. If the group fails, the
// leases are read again.
func (w *writer) forgetReplicas(ctx context.Context, g *batch.Group) error {
	for name, l := range w.leases {
		if _, written := g.Leases[name]; written || !l.IsForgettable(g.Now) {
			continue
		}
		if _, err := w.conn.ExecContext(ctx, "DELETE FROM leases WHERE name = ?", name); err != nil {
			return err
		}
		delete(w.leases, name)
	}
	return nil
}

// trim deletes chunks at the front that are older than a time or end at or below a
// revision, at most trimStep of them. It returns the revision after which the log is
// complete and how many chunks it deleted.
func (w *writer) trim(ctx context.Context, oldest, newest int64) (point int64, n int, err error) {
	last, n, err := w.oldChunks(ctx, oldest, newest)
	if err != nil {
		return 0, 0, err
	}
	if n > 0 {
		for _, table := range []string{"changes", "change_project", "change_task"} {
			if _, err := w.conn.ExecContext(ctx, "DELETE FROM "+table+" WHERE first <= ?", last); err != nil {
				return 0, 0, err
			}
		}
	}
	point, err = w.setTrimmed(ctx, last)
	return point, n, err
}

// setTrimmed notes that the log is not complete up to a revision, and returns the oldest
// one after which it is.
func (w *writer) setTrimmed(ctx context.Context, revision int64) (int64, error) {
	point, _, err := bounds(ctx, w.conn)
	if err != nil || revision <= point {
		return point, err
	}
	return revision, w.setMeta(ctx, "trimmed", revision)
}

// oldChunks returns the end of the last chunk that is too old, and how many there are,
// up to trimStep.
func (w *writer) oldChunks(ctx context.Context, oldest, newest int64) (end int64, n int, err error) {
	rows, err := w.conn.QueryContext(ctx, "SELECT last, at FROM changes ORDER BY first LIMIT ?", trimStep)
	if err != nil {
		return 0, 0, err
	}
	defer rows.Close()
	for rows.Next() {
		var last, at int64
		if err := rows.Scan(&last, &at); err != nil {
			return 0, 0, err
		}
		if at >= oldest && last > newest {
			break
		}
		end = last
		n++
	}
	return end, n, rows.Err()
}
