package postgres

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// channel is on which a commit is told of. The word carries nothing: the log
// says it all, and says it in order.
const channel = "mariposa"

// fallback is how often the log is read without being told to: a word can be
// lost, with a connection for example, and nobody would know.
const fallback = time.Second

// listener brings into the feed what other replicas commit.
type listener struct {
	config *pgx.ConnConfig
	log    *log
	own    *atomic.Uint32 // the server's process that commits for us
	behind bool           // somebody else has committed since the log was read
}

// run listens until the context ends, on one connection after the other.
func (l *listener) run(ctx context.Context) {
	// Not buffered, but noted: one reading of the log is the answer to any
	// number of words. Our own commits are in the feed already.
	l.config.OnNotification = func(_ *pgconn.PgConn, n *pgconn.Notification) {
		if n.PID != l.own.Load() {
			l.behind = true
		}
	}
	for pause := time.Duration(0); ; pause = min(max(2*pause, 20*time.Millisecond), fallback) {
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

// listen follows the log on one connection until that breaks, and reports
// whether it was of any use.
func (l *listener) listen(ctx context.Context) (useful bool) {
	conn, err := connect(ctx, l.config)
	if err != nil {
		return false
	}
	defer disconnect(conn)
	for listening := false; ; {
		if !listening {
			_, err := conn.Exec(ctx, "LISTEN "+channel)
			if err != nil && !readOnly(err) { // a standby tells nobody, but can be looked at
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

// sleep returns when somebody else has committed, or it is time to look.
func (l *listener) sleep(ctx context.Context, conn *pgx.Conn) error {
	due, cancel := context.WithTimeout(ctx, fallback)
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
