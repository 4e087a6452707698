package postgres

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"mariposa/store"
	"mariposa/store/internal/batch"
)

// The maximum size of one transaction. Urgent work waits for at most one of them, so
// they must stay short.
const (
	maxUnits  = 500
	maxWrites = 500
)

// maxTries is how often a group is tried when a lost connection or another replica's
// transaction interferes.
const maxTries = 5

// writer commits the groups of this process. Other processes write too, so it caches
// nothing between groups.
type writer struct {
	config *pgx.ConnConfig
	queue  *batch.Queue
	log    *log

	id      string // of its row in writers
	seq     int64  // of the newest attempt
	conn    *pgx.Conn
	backend atomic.Uint32 // the server process behind conn

	patience time.Duration // how long Close waits for an unreachable server

	closing chan struct{} // closed once the store is being closed
	ended   chan struct{} // closed once the writer has ended
}

func newWriter(config *pgx.ConnConfig, queue *batch.Queue, log *log) *writer {
	return &writer{
		config: config.Copy(), queue: queue, log: log, id: uuid.NewString(), patience: 5 * time.Second,
		closing: make(chan struct{}), ended: make(chan struct{}),
	}
}

// run commits groups until the queue is closed and empty.
func (w *writer) run() {
	defer close(w.ended)
	for b := w.queue.Take(maxUnits, maxWrites); b != nil; b = w.queue.Take(maxUnits, maxWrites) {
		b.Done(w.commit(b))
	}
	w.removeRow()
}

// commit makes one batch durable and publishes it to the feed. It returns nil only if the
// batch is committed, and an error only if it is not: an attempt whose response was lost
// is settled first.
func (w *writer) commit(b *batch.Batch) error {
	for try := 1; ; try++ {
		if err := w.log.guard.err(); err != nil {
			return err
		}
		sent, err := w.try(b)
		if err == nil {
			return nil
		}
		lost := w.conn == nil || w.conn.IsClosed() || isBroken(err)
		w.disconnect()
		if sent != nil {
			committed, unsettled := w.settle(sent)
			switch {
			case unsettled != nil:
				return cmp.Or(w.log.guard.err(), unsettled)
			case committed:
				w.publish(sent)
				return nil
			}
		}
		if rewound := w.log.guard.err(); rewound != nil {
			return rewound
		}
		var away *connectError
		// Whoever held the lock may have ended since, so the first timeout is always tried again.
		again := lost && !errors.As(err, &away) || isContended(err) || isBlocked(err) && (w.unblock() || try == 1)
		if try == maxTries || !again {
			return unavailable(err)
		}
	}
}

// attempt is a group whose commit was requested.
type attempt struct {
	seq   int64
	group *batch.Group
	size  int // the size of its changes
}

// try runs one transaction. If it returns an attempt with an error, it is unknown
// whether that was committed.
func (w *writer) try(b *batch.Batch) (*attempt, error) {
	ctx, cancel := context.WithTimeout(context.Background(), answerTimeout)
	defer cancel()
	if err := w.connect(ctx); err != nil {
		return nil, err
	}
	ground, err := w.begin(ctx, b)
	if err != nil {
		return nil, err
	}
	g := batch.NewGroup(ground, ground.revision, ground.now)
	b.Apply(g)
	if !g.Dirty() {
		if _, err := w.conn.Exec(ctx, "ROLLBACK"); err != nil {
			w.disconnect() // nothing is lost: what was read is correct
		}
		return nil, nil
	}
	for _, also := range g.ExtraActions {
		if err := also(ctx); err != nil {
			return nil, err
		}
	}
	w.seq++
	a := &attempt{seq: w.seq, group: g}
	statements, err := w.statements(a)
	if err != nil {
		return nil, err
	}
	if err := w.conn.SendBatch(ctx, statements).Close(); err != nil {
		return a, err
	}
	w.publish(a)
	return nil, nil
}

// publish adds a commit to the feed, before its callers get their results.
func (w *writer) publish(a *attempt) {
	changes := a.group.Changes
	if w.log.feed.Offer(changes, a.size) {
		return
	}
	// Other replicas have written in between. Changes that cannot be read now are left to
	// the readers.
	ctx, cancel := context.WithTimeout(context.Background(), answerTimeout)
	defer cancel()
	if w.log.follow(ctx, w.conn, changes[0].Revision) != nil {
		w.disconnect()
	}
	if !w.log.feed.Offer(changes, a.size) {
		w.log.feed.Advance(a.group.Revision)
	}
}

// settle finds out whether an attempt was committed. It waits for the server as long as
// necessary, because any guess might be wrong; other writers get an error meanwhile.
func (w *writer) settle(a *attempt) (committed bool, err error) {
	closing, late := w.closing, (<-chan time.Time)(nil)
	for pause := 10 * time.Millisecond; ; pause = min(2*pause, 500*time.Millisecond) {
		seq, err := w.lastCommitted()
		if err == nil {
			return seq == a.seq, nil
		}
		w.disconnect()
		if errors.Is(err, store.ErrRewound) {
			return false, err // whether it was committed or not, it is lost
		}
		if isBlocked(err) && w.unblock() {
			continue
		}
		w.refuseQueued(err)
		select {
		case <-time.After(pause):
		case <-closing:
			closing, late = nil, time.After(w.patience)
		case <-late:
			return false, fmt.Errorf("%w before the server confirmed the commit: %w", store.ErrClosed, oneLine{err})
		}
	}
}

// refuseQueued fails the queued work, but a limited number of groups: callers that retry
// at once must not keep the writer from reconnecting.
func (w *writer) refuseQueued(err error) {
	for range 100 {
		b := w.queue.Poll(maxUnits, maxWrites)
		if b == nil {
			return
		}
		b.Done(unavailable(err))
	}
}

// lastCommitted reads which attempt of this writer was committed last. Each attempt locks the
// writer's row before its commit is requested, so waiting for that lock means waiting
// for the attempt's end, even if the server has not noticed yet that the connection is
// gone.
func (w *writer) lastCommitted() (seq int64, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), answerTimeout)
	defer cancel()
	if err := w.connect(ctx); err != nil {
		return 0, err
	}
	err = w.conn.QueryRow(ctx, lockWriter, w.id).Scan(&seq)
	return seq, err
}

// unblock ends the transactions of writers that have been silent for too long, and
// reports whether there were any. The server itself ends idle ones, but not one whose
// client fell silent in the middle of a round trip: stopped, or cut off without notice.
func (w *writer) unblock() bool {
	ctx, cancel := context.WithTimeout(context.Background(), answerTimeout)
	defer cancel()
	if w.connect(ctx) != nil {
		return false
	}
	var ended int
	err := w.conn.QueryRow(ctx, endSilent, idleTimeout.Seconds()).Scan(&ended)
	return err == nil && ended > 0
}

// connect opens a connection if there is none, and registers the writer's row.
func (w *writer) connect(ctx context.Context) error {
	if w.conn != nil && !w.conn.IsClosed() {
		return nil
	}
	w.disconnect()
	conn, err := w.log.connect(ctx, w.config)
	if err != nil {
		return &connectError{err}
	}
	w.conn = conn
	w.backend.Store(conn.PgConn().PID())
	var q pgx.Batch
	q.Queue(registerWriter, w.id)
	// A reported commit must be durable. Settings stricter than the default are kept.
	q.Queue("SELECT set_config('synchronous_commit', 'on', false) WHERE current_setting('synchronous_commit') = 'off'")
	if err := conn.SendBatch(ctx, &q).Close(); err != nil {
		w.disconnect()
		return err
	}
	return nil
}

func (w *writer) disconnect() {
	w.backend.Store(0)
	disconnect(w.conn)
	w.conn = nil
}

// removeRow deletes the writer's row if it can; remaining rows are deleted when the log
// is trimmed.
func (w *writer) removeRow() {
	if w.conn != nil {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		_, _ = w.conn.Exec(ctx, "DELETE FROM writers WHERE id = $1", w.id)
	}
	w.disconnect()
}
