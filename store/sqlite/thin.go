package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"strings"

	"mariposa/store"
	"mariposa/store/internal/batch"
	"mariposa/store/internal/codec"
)

// thinStep is how many chunks are thinned in one transaction. Most are rewritten.
const thinStep = 20

// LogSizes adds up the sizes in the index of histories.
func (s *Store) LogSizes(ctx context.Context, projects ...string) (map[string]store.LogSize, error) {
	if err := s.usable(ctx); err != nil {
		return nil, err
	}
	query, args := "SELECT project, sum(changes), sum(bytes) FROM change_project", make([]any, len(projects))
	for i, p := range projects {
		args[i] = p
	}
	if len(projects) > 0 {
		query += " WHERE project IN (?" + strings.Repeat(", ?", len(projects)-1) + ")"
	}
	rows, err := s.readers.QueryContext(ctx, query+" GROUP BY project HAVING sum(changes) > 0", args...)
	if err != nil {
		return nil, s.readError(err)
	}
	defer rows.Close()
	sizes := make(map[string]store.LogSize)
	for rows.Next() {
		var project string
		var n store.LogSize
		if err := rows.Scan(&project, &n.Changes, &n.Bytes); err != nil {
			return nil, s.readError(err)
		}
		sizes[project] = n
	}
	return sizes, s.readError(rows.Err())
}

// Thin rewrites chunks, step by step.
func (s *Store) Thin(ctx context.Context, project string, keep store.LogSize, upTo int64) (int64, error) {
	for {
		var point int64
		var n int
		err := s.queue.Do(ctx, func(g *batch.Group) error {
			g.ExtraActions = append(g.ExtraActions, func(ctx context.Context) (err error) {
				point, n, err = s.writer.thin(ctx, project, keep, upTo)
				return err
			})
			return nil
		})
		if err != nil {
			return 0, err
		}
		s.feed.Trimmed(point)
		if n < thinStep {
			return point, nil
		}
	}
}

// thin removes a project from the oldest chunks that it is in, at most thinStep of them.
// It returns the revision after which the log is complete and how many chunks it changed.
func (w *writer) thin(ctx context.Context, project string, keep store.LogSize, upTo int64) (point int64, n int, err error) {
	var size store.LogSize
	err = w.conn.QueryRowContext(ctx, "SELECT coalesce(sum(changes), 0), coalesce(sum(bytes), 0) FROM change_project WHERE project = ?", project).Scan(&size.Changes, &size.Bytes)
	if err != nil {
		return 0, 0, err
	}
	end, after := int64(0), int64(0)
	for ; n < thinStep && !size.Within(keep); n++ {
		var first, last int64
		var part store.LogSize
		err := w.conn.QueryRowContext(ctx, `SELECT c.first, c.last, p.changes, p.bytes FROM change_project AS p CROSS JOIN changes AS c ON c.first = p.first
			WHERE p.project = ? AND p.first > ? AND p.changes > 0 ORDER BY p.first LIMIT 1`, project, after).Scan(&first, &last, &part.Changes, &part.Bytes)
		if errors.Is(err, sql.ErrNoRows) || err == nil && last > upTo {
			break
		}
		if err == nil {
			err = w.thinChunk(ctx, first, project)
		}
		if err != nil {
			return 0, 0, err
		}
		size, after, end = size.Minus(part), first, last
	}
	point, err = w.setTrimmed(ctx, end)
	return point, n, err
}

// thinChunk removes a project from a chunk.
func (w *writer) thinChunk(ctx context.Context, first int64, project string) error {
	rest, err := w.restOfChunk(ctx, first, project)
	do := func(statement string, args ...any) {
		if err == nil {
			_, err = w.conn.ExecContext(ctx, statement, args...)
		}
	}
	if rest.Body == nil {
		for _, table := range []string{"changes", "change_project", "change_task"} {
			do("DELETE FROM "+table+" WHERE first = ?", first)
		}
		return err
	}
	do("UPDATE changes SET body = ? WHERE first = ?", rest.Body, first)
	if rest.Mentions {
		do("UPDATE change_project SET changes = 0, bytes = 0 WHERE first = ? AND project = ?", first, project)
	} else {
		do("DELETE FROM change_project WHERE first = ? AND project = ?", first, project)
	}
	for _, task := range rest.Tasks {
		do("DELETE FROM change_task WHERE first = ? AND task = ?", first, task)
	}
	return err
}

// restOfChunk returns a chunk without a project. A chunk that contains only this project
// need not be read.
func (w *writer) restOfChunk(ctx context.Context, first int64, project string) (rest codec.Thinned, err error) {
	var body []byte
	err = w.conn.QueryRowContext(ctx, `SELECT body FROM changes AS c WHERE first = ? AND
		EXISTS (SELECT 1 FROM change_project AS p WHERE p.first = c.first AND p.project <> ? AND p.changes > 0)`, first, project).Scan(&body)
	switch {
	case errors.Is(err, sql.ErrNoRows):
		return rest, nil
	case err != nil:
		return rest, err
	}
	return w.codec.Thin(first, body, project)
}
