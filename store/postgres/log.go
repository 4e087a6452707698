package postgres

import (
	"context"
	"fmt"
	"math"
	"time"

	"github.com/jackc/pgx/v5"

	"mariposa/store"
	"mariposa/store/internal/codec"
	"mariposa/store/internal/feed"
)

// log fills the feed from the table of changes, except for changes that this process
// wrote itself.
type log struct {
	feed   *feed.Feed
	codec  *codec.Codec
	guard  *guard
	recent int64 // how many changes the feed keeps
}

// chunk is a row of the log.
type chunk struct {
	first int64
	at    time.Time
	body  []byte
}

// pageSize is how many chunks are read at a time.
const pageSize = 32

const everything = math.MaxInt64

const (
	// nextChunks are those after a chunk, firstChunks are those from the chunk that
	// contains a revision.
	nextChunks  = "SELECT first, at, body FROM changes WHERE first > $1 AND first < $2 ORDER BY first LIMIT 32"
	lastChunks  = "SELECT first, at, body FROM changes WHERE first < $1 ORDER BY first DESC LIMIT 32"
	firstChunks = `SELECT first, at, body FROM changes
		WHERE first >= (SELECT coalesce(max(first), 0) FROM changes WHERE first <= $1) ORDER BY first LIMIT 32`

	// tagged are the last chunks with a project or a task. The two steps avoid walking
	// the whole log.
	tagged = `SELECT c.first, c.at, c.body
		FROM (SELECT first FROM %s WHERE %s = $2 AND first < $1 ORDER BY first DESC LIMIT 32) AS t
		CROSS JOIN LATERAL (SELECT first, at, body FROM changes WHERE changes.first = t.first OFFSET 0) AS c`
)

// follow advances the feed to the newest change, or to a change that the caller has.
func (l *log) follow(ctx context.Context, conn *pgx.Conn, before int64) error {
	for {
		_, have := l.feed.Bounds()
		var trimmed, newest int64
		var incarnation string
		var chunks []chunk
		var q pgx.Batch
		q.Queue(readBounds).QueryRow(func(row pgx.Row) error { return row.Scan(&trimmed, &newest, &incarnation) })
		q.Queue(nextChunks, have, before).Query(func(rows pgx.Rows) (err error) {
			chunks, err = scanChunks(rows)
			return err
		})
		if err := conn.SendBatch(ctx, &q).Close(); err != nil {
			return err
		}
		if incarnation != l.guard.incarnation {
			return l.guard.report("it is a new incarnation")
		}
		if err := l.guard.checkRevision(newest, have); err != nil {
			return err
		}
		l.feed.Trimmed(trimmed)
		if behind := min(newest, before) - have; behind > 2*l.recent {
			if skipped, err := l.skip(ctx, conn, have, have+behind-l.recent); skipped || err != nil {
				if err != nil {
					return err
				}
				continue
			}
		}
		if err := l.add(chunks); err != nil || len(chunks) < pageSize {
			return err
		}
	}
}

// skip skips changes that the feed would not keep, up to the end of a commit.
func (l *log) skip(ctx context.Context, conn *pgx.Conn, from, to int64) (skipped bool, err error) {
	var end int64
	err = conn.QueryRow(ctx, "SELECT coalesce(max(first), 1) - 1 FROM changes WHERE first <= $1", to).Scan(&end)
	if err != nil || end <= from {
		return false, err
	}
	l.feed.Advance(end)
	return true, nil
}

func (l *log) add(chunks []chunk) error {
	for _, c := range chunks {
		entries, err := l.codec.Entries(c.first, c.at, c.body)
		if err != nil {
			return err
		}
		if end, thinned := endOfThinned(c.first, entries); thinned {
			l.feed.Advance(end)
			continue
		}
		changes, size := make([]store.Change, len(entries)), 0
		for i := range entries {
			if changes[i], err = entries[i].Change(); err != nil {
				return err
			}
			size += entries[i].Size()
		}
		if !l.feed.Offer(changes, size) {
			l.feed.Advance(c.first - 1) // the changes in between were trimmed
			l.feed.Offer(changes, size)
		}
	}
	return nil
}

// endOfThinned returns the last revision of a chunk that lost changes before its last
// one. A chunk that lost changes at its end is found by the gap before the next chunk.
func endOfThinned(first int64, entries []codec.Entry) (end int64, thinned bool) {
	if len(entries) == 0 {
		return first, true
	}
	end = entries[len(entries)-1].Head().Revision
	return end, end != first+int64(len(entries))-1
}

func scanChunks(rows pgx.Rows) ([]chunk, error) {
	var chunks []chunk
	for rows.Next() {
		var c chunk
		if err := rows.Scan(&c.first, &c.at, &c.body); err != nil {
			return nil, err
		}
		c.at = c.at.UTC()
		chunks = append(chunks, c)
	}
	return chunks, rows.Err()
}

// Wait sleeps until the log grows past a revision.
func (s *Store) Wait(ctx context.Context, after int64) error { return s.feed.Wait(ctx, after) }

// Changes reads from memory if it can, else from the database.
func (s *Store) Changes(ctx context.Context, after int64, limit int) ([]store.Change, error) {
	if err := s.usable(ctx); err != nil {
		return nil, err
	}
	changes, ok, err := s.feed.Recent(after, limit)
	if ok || err != nil {
		return changes, err
	}
	found := feed.NewAfter(after, limit)
	err = s.visitChunks(ctx, found.Add, func(last int64) (string, []any) {
		if last == 0 {
			return firstChunks, []any{after + 1}
		}
		return nextChunks, []any{last, int64(everything)}
	})
	if err != nil {
		return nil, err
	}
	return found.Changes()
}

// History reads the chunks that contain the project or task, newest first.
func (s *Store) History(ctx context.Context, q store.HistoryQuery) ([]store.Change, error) {
	if !isName(q.Task) || !isName(q.Project) {
		return nil, s.usable(ctx)
	}
	query, args := historyQuery(q)
	found := feed.NewMatching(q)
	err := s.visitChunks(ctx, found.Add, func(last int64) (string, []any) {
		if last == 0 {
			if last = q.Before; last <= 0 {
				last = everything
			}
		}
		return query, append([]any{last}, args...)
	})
	if err != nil {
		return nil, err
	}
	return found.Changes, nil
}

// historyQuery returns the query for a page of a history's chunks below a revision, and
// its arguments after that one.
func historyQuery(q store.HistoryQuery) (query string, args []any) {
	switch {
	case q.Task != "":
		return fmt.Sprintf(tagged, "change_task", "task"), []any{q.Task}
	case q.Project != "":
		return fmt.Sprintf(tagged, "change_project", "project"), []any{q.Project}
	}
	return lastChunks, nil
}

// visitChunks calls visit with chunks until it has enough, a page at a time. The query
// for each page gets the end of the last one; 0 for the first.
func (s *Store) visitChunks(ctx context.Context, visit func([]codec.Entry) (more bool, err error), page func(last int64) (string, []any)) error {
	for last := int64(0); ; {
		var chunks []chunk
		query, args := page(last)
		err := s.read(ctx, func(ctx context.Context, conn *pgx.Conn) error {
			rows, err := conn.Query(ctx, query, args...)
			if err != nil {
				return err
			}
			defer rows.Close()
			chunks, err = scanChunks(rows)
			return err
		})
		if err != nil {
			return err
		}
		for _, c := range chunks {
			entries, err := s.codec.Entries(c.first, c.at, c.body)
			if err != nil {
				return err
			}
			if more, err := visit(entries); err != nil || !more {
				return err
			}
			last = c.first
		}
		if len(chunks) < pageSize {
			return nil
		}
	}
}
