package sqlite

import (
	"context"
	"math"

	"mariposa/store"
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
