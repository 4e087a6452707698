package sqlite

import (
	"context"
	"math"
	"time"

	"mariposa/store"
	"mariposa/store/internal/batch"
	"mariposa/store/internal/codec"
	"mariposa/store/internal/feed"
)

// Wait sleeps until the log grows past a revision.
func (s *Store) Wait(ctx context.Context, after int64) error { return s.feed.Wait(ctx, after) }

// Changes reads from memory if it can, else from disk.
func (s *Store) Changes(ctx context.Context, after int64, limit int) ([]store.Change, error) {
	if err := s.usable(ctx); err != nil {
		return nil, err
	}
	changes, ok, err := s.feed.Recent(after, limit)
	if ok || err != nil {
		return changes, err
	}
	found := feed.NewAfter(after, limit)
	err = s.visitChunks(ctx, found.Add, `SELECT first, at, body FROM changes
		WHERE first >= (SELECT coalesce(max(first), 0) FROM changes WHERE first <= ?) ORDER BY first`, after+1)
	if err != nil {
		return nil, s.readError(err)
	}
	return found.Changes()
}

// History reads the chunks that contain the project or task, newest first.
func (s *Store) History(ctx context.Context, q store.HistoryQuery) ([]store.Change, error) {
	if err := s.usable(ctx); err != nil {
		return nil, err
	}
	before := q.Before
	if before <= 0 {
		before = math.MaxInt64
	}
	query, args := "SELECT first, at, body FROM changes WHERE first < ? ORDER BY first DESC", []any{before}
	switch {
	case q.Task != "":
		query, args = `SELECT c.first, c.at, c.body FROM change_task AS t CROSS JOIN changes AS c ON c.first = t.first
			WHERE t.task = ? AND t.first < ? ORDER BY t.first DESC`, []any{q.Task, before}
	case q.Project != "":
		query, args = `SELECT c.first, c.at, c.body FROM change_project AS p CROSS JOIN changes AS c ON c.first = p.first
			WHERE p.project = ? AND p.first < ? ORDER BY p.first DESC`, []any{q.Project, before}
	}
	found := feed.NewMatching(q)
	if err := s.visitChunks(ctx, found.Add, query, args...); err != nil {
		return nil, s.readError(err)
	}
	return found.Changes, nil
}

// visitChunks calls visit with the chunks of a query for first, at and body until it has
// enough.
func (s *Store) visitChunks(ctx context.Context, visit func([]codec.Entry) (more bool, err error), query string, args ...any) error {
	rows, err := s.readers.QueryContext(ctx, query, args...)
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		var first, at int64
		var body []byte
		if err := rows.Scan(&first, &at, &body); err != nil {
			return err
		}
		entries, err := s.codec.Entries(first, timeOf(at), body)
		if err != nil {
			return err
		}
		if more, err := visit(entries); err != nil || !more {
			return err
		}
	}
	return rows.Err()
}

// trimStep is how many chunks are deleted in one transaction, so that nothing waits long
// behind it.
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

// trim deletes chunks at the front that are older than a time or end at or below a
// revision, at most trimStep of them. It returns the revision after which the log is
// complete and how many chunks it deleted.
func (w *writer) trim(ctx context.Context, oldest, newest int64) (point int64, n int, err error) {
	point, n, err = w.trimPoint(ctx, oldest, newest)
	if err != nil || n == 0 {
		return point, n, err
	}
	for _, table := range []string{"changes", "change_project", "change_task"} {
		if _, err := w.conn.ExecContext(ctx, "DELETE FROM "+table+" WHERE first <= ?", point); err != nil {
			return 0, 0, err
		}
	}
	return point, n, w.setMeta(ctx, "trimmed", point)
}

func (w *writer) trimPoint(ctx context.Context, oldest, newest int64) (point int64, n int, err error) {
	if point, _, err = bounds(ctx, w.conn); err != nil {
		return 0, 0, err
	}
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
		point = last
		n++
	}
	return point, n, rows.Err()
}
