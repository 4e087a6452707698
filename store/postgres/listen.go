package postgres

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// channel is the notification channel of commits. A notification has no payload: the log
// has all changes, in order.
const channel = "mariposa"

// pollInterval is how often the log is read without a notification: one can be lost, with a
// connection for example.
const pollInterval = time.Second

// listener adds the commits of other replicas to the feed.
type listener struct {
	config *pgx.ConnConfig
	log    *log
	own    *atomic.Uint32 // the server process that commits for us
	behind bool           // another replica has committed since the log was read
}

// run listens until the context ends, and reconnects when a connection breaks.
func (l *listener) run(ctx context.Context) {
	// Notifications only set a flag: one read of the log is enough for any number of
	// them. Our own commits are in the feed already.
	l.config.OnNotification = func(_ *pgconn.PgConn, n *pgconn.Notification) {
		if n.PID != l.own.Load() {
			l.behind = true
		}
	}
	for pause := time.Duration(0); ; pause = min(max(2*pause, 20*time.Millisecond), pollInterval) {
		select {
		case <-ctx.Done():
			return
		case <-time.After(pause):
		}
		if l.listen(ctx) {
			pause = 0
		}
	}
}

// listen follows the log on one connection until it breaks, and reports whether it
// worked at all.
func (l *listener) listen(ctx context.Context) (useful bool) {
	conn, err := l.log.connect(ctx, l.config)
	if err != nil {
		return false
	}
	defer disconnect(conn)
	for listening := false; ; {
		if !listening {
			_, err := conn.Exec(ctx, "LISTEN "+channel)
			if err != nil && !readOnly(err) { // a standby sends no notifications, but can be polled
				return useful
			}
			listening = err == nil
		}
		l.behind = false
		if l.follow(ctx, conn) != nil {
			return useful
		}
		useful = true
		if l.sleep(ctx, conn) != nil {
			return useful
		}
	}
}

func (l *listener) follow(ctx context.Context, conn *pgx.Conn) error {
	ctx, cancel := context.WithTimeout(ctx, answerTimeout)
	defer cancel()
	return l.log.follow(ctx, conn, everything)
}

// sleep returns when another replica has committed, or after the fallback interval.
func (l *listener) sleep(ctx context.Context, conn *pgx.Conn) error {
	due, cancel := context.WithTimeout(ctx, pollInterval)
	defer cancel()
	for !l.behind {
		if err := conn.PgConn().WaitForNotification(due); err != nil {
			if ctx.Err() == nil && due.Err() != nil && !conn.IsClosed() {
				return nil
			}
			return err
		}
	}
	return nil
}
