package postgres

import (
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

// How much goes into one transaction at most. Urgent work waits for at most one
// of them, so they must stay well below a blink.
const (
	maxUnits  = 500
	maxWrites = 500
)

// A group that a lost connection or another replica's transaction got in the way
// of is tried again at once, so many times.
const maxTries = 5

// writer commits the groups of this process. Others write too, so it keeps
// nothing of what it has read from one group to the next.
type writer struct {
	config *pgx.ConnConfig
	queue  *batch.Queue
	log    *log

	id      string // of its row in writers
	seq     int64  // of the newest attempt
	conn    *pgx.Conn
	backend atomic.Uint32 // the server's process behind conn

	patience time.Duration // how long Close waits for a server that is away

	closing chan struct{} // closed once the store is being closed
	ended   chan struct{} // closed once the writer is gone
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

// commit makes one batch durable and tells the feed. It returns nil only for
// what is committed, and an error only for what is not: an attempt whose answer
// was lost is settled before anything else.
func (w *writer) commit(b *batch.Batch) error {
	for try := 1; ; try++ {
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
				return unsettled
			case committed:
				w.publish(sent)
				return nil
			}
		}
		var away *connectError
		again := lost && !errors.As(err, &away) || isContended(err) || isBlocked(err) && w.unblock()
		if try == maxTries || !again {
			return unavailable(err)
		}
	}
}

// attempt is a group whose commit was asked for.
type attempt struct {
	seq   int64
	group *batch.Group
	size  int // of its changes
}

// try is one transaction. With an attempt and an error, nobody knows whether
// that was committed.
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
			w.disconnect() // nothing is lost with it: what was read is true
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

// publish tells the feed of a commit, before its callers are answered.
func (w *writer) publish(a *attempt) {
	changes := a.group.Changes
	if w.log.feed.Offer(changes, a.size) {
		return
	}
	// Other replicas have written in between. What cannot be read now is left
	// to those who want it.
	ctx, cancel := context.WithTimeout(context.Background(), answerTimeout)
	defer cancel()
	if w.log.follow(ctx, w.conn, changes[0].Revision) != nil {
		w.disconnect()
	}
	if !w.log.feed.Offer(changes, a.size) {
		w.log.feed.Advance(a.group.Revision)
	}
}

// settle finds out whether an attempt was committed. It waits for the server as
// long as that takes, because every answer but the right one would be a lie;
// whoever else wants to write meanwhile is told that the server is away.
func (w *writer) settle(a *attempt) (committed bool, err error) {
	closing, late := w.closing, (<-chan time.Time)(nil)
	for pause := 10 * time.Millisecond; ; pause = min(2*pause, 500*time.Millisecond) {
		seq, err := w.newest()
		if err == nil {
			return seq == a.seq, nil
		}
		w.disconnect()
		if isBlocked(err) && w.unblock() {
			continue
		}
		w.refuseQueued(err)
		select {
		case <-time.After(pause):
		case <-closing:
			closing, late = nil, time.After(w.patience)
		case <-late:
			return false, fmt.Errorf("%w before the server told whether it had committed: %w", store.ErrClosed, oneLine{err})
		}
	}
}

// refuseQueued sends home who is in the queue, but not for ever: those who come back
// at once must not keep the writer from looking for the server.
func (w *writer) refuseQueued(err error) {
	for range 100 {
		b := w.queue.Poll(maxUnits, maxWrites)
		if b == nil {
			return
		}
		b.Done(unavailable(err))
	}
}

// newest reads which attempt of this writer was the last to be committed. Each
// one locks the writer's row before its commit is asked for, so that waiting for
// that lock is waiting for its end, even when the server has not yet noticed
// that the connection is gone.
func (w *writer) newest() (seq int64, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), answerTimeout)
	defer cancel()
	if err := w.connect(ctx); err != nil {
		return 0, err
	}
	err = w.conn.QueryRow(ctx, lockWriter, w.id).Scan(&seq)
	return seq, err
}

// unblock ends the transactions of writers that have been silent for too long,
// and reports whether there were any. The server ends those that are idle by
// itself, but not one whose client fell silent in the middle of an exchange:
// stopped, or cut off without a word.
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

// connect makes a connection where there is none, and the writer's row.
func (w *writer) connect(ctx context.Context) error {
	if w.conn != nil && !w.conn.IsClosed() {
		return nil
	}
	w.disconnect()
	conn, err := connect(ctx, w.config)
	if err != nil {
		return &connectError{err}
	}
	w.conn = conn
	w.backend.Store(conn.PgConn().PID())
	var q pgx.Batch
	q.Queue(registerWriter, w.id)
	// Done means durable. Stricter settings than the default are left alone.
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

// removeRow removes the writer's row, if that costs nothing: rows that stay behind
// are swept up when the log is trimmed.
func (w *writer) removeRow() {
	if w.conn != nil {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		_, _ = w.conn.Exec(ctx, "DELETE FROM writers WHERE id = $1", w.id)
	}
	w.disconnect()
}
