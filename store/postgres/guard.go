package postgres

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"mariposa/store"
	"mariposa/store/internal/feed"
)

// guard detects that the database has gone back to an earlier state: a backup was
// restored, or a standby took over that lacked the newest commits. A database cannot do
// that under an open connection, so every new connection is checked. Once detected, this
// store is of no more use: what was read from it and what is in the database contradict
// each other.
type guard struct {
	feed        *feed.Feed
	incarnation string

	once    sync.Once
	rewound chan struct{} // closed once it was detected
	cause   error         // set before
}

const (
	readIncarnation = "SELECT value FROM meta WHERE key = 'incarnation'"
	readState       = "SELECT c.revision, t.revision, pg_is_in_recovery(), (" + readIncarnation + ") FROM counter AS c, trimmed AS t"
)

// errBehind: a standby has not received everything yet that this process has seen.
var errBehind = errors.New("this server is a standby that is behind; connect to the primary")

// err returns an error once the database has gone back.
func (g *guard) err() error {
	select {
	case <-g.rewound:
		return g.cause
	default:
		return nil
	}
}

// report notes that the database has gone back, and returns that error.
func (g *guard) report(format string, args ...any) error {
	g.once.Do(func() {
		g.cause = fmt.Errorf("%w: %s", store.ErrRewound, fmt.Sprintf(format, args...))
		close(g.rewound)
	})
	return g.cause
}

// check checks the database behind a new connection against what this process has seen.
func (g *guard) check(ctx context.Context, conn *pgx.Conn) error {
	if err := g.err(); err != nil {
		return err
	}
	_, have := g.feed.Bounds()
	first, at := g.feed.Newest()
	var revision, trimmed int64
	var standby bool
	var incarnation string
	var found *time.Time
	var q pgx.Batch
	q.Queue(readState).QueryRow(func(row pgx.Row) error { return row.Scan(&revision, &trimmed, &standby, &incarnation) })
	q.Queue("SELECT max(at) FROM changes WHERE first = $1", first).QueryRow(func(row pgx.Row) error { return row.Scan(&found) })
	if err := conn.SendBatch(ctx, &q).Close(); err != nil {
		if e := serverError(err); e != nil && e.Code == "42P01" || errors.Is(err, pgx.ErrNoRows) { // there is no such table
			return g.report("its tables are gone")
		}
		return err
	}
	switch {
	case standby && revision < have:
		return errBehind
	case first <= revision && first > trimmed && (found == nil || !found.Equal(at)):
		return g.report("revision %d is not the one that was there before", first)
	}
	if incarnation != g.incarnation {
		return g.report("it is a new incarnation")
	}
	return g.checkRevision(revision, have)
}

// checkRevision compares the counter with a revision that this process has seen.
func (g *guard) checkRevision(newest, have int64) error {
	if newest < have {
		return g.report("its newest revision is %d, and %d was there before", newest, have)
	}
	return nil
}

// Rewound is closed once the database was found to have gone back.
func (s *Store) Rewound() <-chan struct{} { return s.guard.rewound }

// Revision reads the counter.
func (s *Store) Revision(ctx context.Context) (revision int64, err error) {
	err = s.read(ctx, func(ctx context.Context, conn *pgx.Conn) error {
		return conn.QueryRow(ctx, "SELECT revision FROM counter WHERE one").Scan(&revision)
	})
	return revision, err
}

// Reincarnate replaces the incarnation, unless another replica has.
func (s *Store) Reincarnate(ctx context.Context, old string) error {
	return s.read(ctx, func(ctx context.Context, conn *pgx.Conn) error {
		_, err := conn.Exec(ctx, "UPDATE meta SET value = $1 WHERE key = 'incarnation' AND value = $2", uuid.NewString(), old)
		return err
	})
}
