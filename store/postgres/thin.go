package postgres

import (
	"context"
	"errors"

	"github.com/jackc/pgx/v5"

	"mariposa/store"
	"mariposa/store/internal/codec"
)

// thinStep is how many chunks are thinned in one transaction. Most are rewritten.
const thinStep = 20

const (
	logSizes  = "SELECT project, sum(changes)::bigint, sum(bytes)::bigint FROM change_project WHERE $1 OR project = ANY($2) GROUP BY project HAVING sum(changes) > 0"
	logSizeOf = "SELECT coalesce(sum(changes), 0)::bigint, coalesce(sum(bytes), 0)::bigint FROM change_project WHERE project = $1"
	oldestOf  = `SELECT c.first, c.last, p.changes, p.bytes
		FROM (SELECT first, changes, bytes FROM change_project WHERE project = $1 AND first > $2 AND changes > 0 ORDER BY first LIMIT 1) AS p
		CROSS JOIN LATERAL (SELECT first, last FROM changes WHERE changes.first = p.first OFFSET 0) AS c`
	sharedBody = `SELECT body FROM changes AS c WHERE first = $1 AND
		EXISTS (SELECT FROM change_project AS p WHERE p.first + 0 = c.first AND p.project <> $2 AND p.changes > 0)`
)

// LogSizes adds up the sizes in the index of histories.
func (s *Store) LogSizes(ctx context.Context, projects ...string) (map[string]store.LogSize, error) {
	names := make([]string, 0, len(projects))
	for _, p := range projects {
		if isName(p) {
			names = append(names, p)
		}
	}
	var sizes map[string]store.LogSize
	err := s.read(ctx, func(ctx context.Context, conn *pgx.Conn) error {
		sizes = make(map[string]store.LogSize)
		rows, err := conn.Query(ctx, logSizes, len(projects) == 0, names)
		if err != nil {
			return err
		}
		var project string
		var n store.LogSize
		_, err = pgx.ForEachRow(rows, []any{&project, &n.Changes, &n.Bytes}, func() error {
			sizes[project] = n
			return nil
		})
		return err
	})
	return sizes, err
}

// Thin rewrites chunks, step by step. It bypasses the group commit, as Trim does.
func (s *Store) Thin(ctx context.Context, project string, keep store.LogSize, upTo int64) (int64, error) {
	if !isName(project) {
		point, _ := s.feed.Bounds()
		return point, s.usable(ctx)
	}
	for {
		var point int64
		var n int
		err := s.read(ctx, func(ctx context.Context, conn *pgx.Conn) error {
			return pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) (err error) {
				point, n, err = s.thin(ctx, tx, project, keep, upTo)
				return err
			})
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
func (s *Store) thin(ctx context.Context, tx pgx.Tx, project string, keep store.LogSize, upTo int64) (point int64, n int, err error) {
	if point, err = lockTrimmed(ctx, tx); err != nil {
		return 0, 0, err
	}
	var size store.LogSize
	if err := tx.QueryRow(ctx, logSizeOf, project).Scan(&size.Changes, &size.Bytes); err != nil {
		return 0, 0, err
	}
	end, after := int64(0), int64(0)
	for ; n < thinStep && !size.Within(keep); n++ {
		var first, last int64
		var part store.LogSize
		err := tx.QueryRow(ctx, oldestOf, project, after).Scan(&first, &last, &part.Changes, &part.Bytes)
		if errors.Is(err, pgx.ErrNoRows) || err == nil && last > upTo {
			break
		}
		if err == nil {
			err = s.thinChunk(ctx, tx, first, project)
		}
		if err != nil {
			return 0, 0, err
		}
		size, after, end = size.Minus(part), first, last
	}
	point, err = setTrimmed(ctx, tx, point, end)
	return point, n, err
}

// thinChunk removes a project from a chunk.
func (s *Store) thinChunk(ctx context.Context, tx pgx.Tx, first int64, project string) error {
	rest, err := s.restOfChunk(ctx, tx, first, project)
	if err != nil {
		return err
	}
	var q pgx.Batch
	if rest.Body == nil {
		q.Queue("DELETE FROM changes WHERE first = $1", first)
		q.Queue("DELETE FROM change_project WHERE first + 0 = $1", first)
		q.Queue("DELETE FROM change_task WHERE first + 0 = $1", first)
		return tx.SendBatch(ctx, &q).Close()
	}
	q.Queue("UPDATE changes SET body = $2 WHERE first = $1", first, rest.Body)
	if rest.Mentions {
		q.Queue("UPDATE change_project SET changes = 0, bytes = 0 WHERE first = $1 AND project = $2", first, project)
	} else {
		q.Queue("DELETE FROM change_project WHERE first = $1 AND project = $2", first, project)
	}
	q.Queue("DELETE FROM change_task WHERE first = $1 AND task = ANY($2)", first, rest.Tasks)
	return tx.SendBatch(ctx, &q).Close()
}

// restOfChunk returns a chunk without a project. A chunk that contains only this project
// need not be read.
func (s *Store) restOfChunk(ctx context.Context, tx pgx.Tx, first int64, project string) (rest codec.Thinned, err error) {
	var body []byte
	err = tx.QueryRow(ctx, sharedBody, first, project).Scan(&body)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return rest, nil
	case err != nil:
		return rest, err
	}
	return s.codec.Thin(first, body, project)
}
