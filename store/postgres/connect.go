package postgres

import (
	"context"
	"fmt"
	"net/url"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

// How long the server lets our statements run, wait for a lock, and leave a transaction
// idle. The last one bounds how long a frozen replica can block the others' writes.
const (
	statementTimeout = 15 * time.Second
	lockTimeout      = 5 * time.Second
	idleTimeout      = 5 * time.Second

	// connectTimeout and answerTimeout are the client's: they end calls that would hang
	// for ever on a dead network.
	connectTimeout = 5 * time.Second
	answerTimeout  = 20 * time.Second
)

// maxReaders limits the connections for reading; the writer and the listener have one
// each in addition.
const maxReaders = 8

// settings are set on every connection.
//
// The plans are pinned: every statement is written for one index, and no other plan is
// better. By default, the server plans by statistics, which say that a new table is
// empty; such a plan reads the whole table, is cached with the prepared statement, and
// stays after the table has grown: it halves the throughput. With the other plan types
// disabled, a generic plan is right from the start and saves planning each time.
// Disabled plan types look infinitely expensive, so JIT compilation, which depends on
// the cost, must be off.
func settings() map[string]string {
	millis := func(d time.Duration) string { return fmt.Sprint(d.Milliseconds()) }
	return map[string]string{
		"application_name":                    "mariposa",
		"timezone":                            "UTC",
		"client_encoding":                     "UTF8",
		"default_transaction_isolation":       "read committed",
		"statement_timeout":                   millis(statementTimeout),
		"lock_timeout":                        millis(lockTimeout),
		"idle_in_transaction_session_timeout": millis(idleTimeout),

		// The server checks for lost clients as often as we check for a lost server.
		"tcp_keepalives_idle":     "5",
		"tcp_keepalives_interval": "2",
		"tcp_keepalives_count":    "3",

		"plan_cache_mode":   "force_generic_plan",
		"enable_seqscan":    "off",
		"enable_bitmapscan": "off",
		"enable_hashjoin":   "off",
		"enable_mergejoin":  "off",
		"enable_sort":       "off",
		"jit":               "off",
	}
}

// parse reads a connection URL and adds our settings; an application_name in the URL is
// kept. No error repeats the URL, because it contains the password.
func parse(target string) (*pgxpool.Config, error) {
	c, err := pgxpool.ParseConfig(target)
	if err != nil {
		return nil, fmt.Errorf("invalid store URL: %s; use postgres://user:password@host:port/database", reason(target, err))
	}
	c.MaxConns = maxReaders
	c.MinConns, c.MinIdleConns = 0, 0
	c.MaxConnIdleTime = time.Minute
	if c.ConnConfig.ConnectTimeout == 0 {
		c.ConnConfig.ConnectTimeout = connectTimeout
	}
	for name, value := range settings() {
		if name != "application_name" || c.ConnConfig.RuntimeParams[name] == "" {
			c.ConnConfig.RuntimeParams[name] = value
		}
	}
	if c.ConnConfig.ValidateConnect == nil && severalHosts(c.ConnConfig) {
		c.ConnConfig.ValidateConnect = pgconn.ValidateConnectTargetSessionAttrsReadWrite
	}
	return c, nil
}

// reason describes what is wrong with a URL, as far as possible without repeating any of
// it.
func reason(target string, err error) string {
	u, bad := url.Parse(target)
	if bad != nil {
		return "not a URL"
	}
	_, text, _ := strings.Cut(err.Error(), "`: ") // after the URL that pgx repeats
	if secret, _ := u.User.Password(); text == "" || secret != "" && strings.Contains(text, secret) {
		return "not a PostgreSQL URL"
	}
	return text
}

// severalHosts reports whether a URL names several servers, of which the one that
// accepts writes must be found. (The same host can be listed several times, with and
// without encryption.) A single server that accepts no writes can still be read.
func severalHosts(c *pgx.ConnConfig) bool {
	for _, f := range c.Fallbacks {
		if f.Host != c.Host || f.Port != c.Port {
			return true
		}
	}
	return false
}

// connect opens a connection outside the pool.
func connect(ctx context.Context, c *pgx.ConnConfig) (*pgx.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, answerTimeout)
	defer cancel()
	return pgx.ConnectConfig(ctx, c.Copy())
}

// connect opens a connection and checks the database behind it.
func (l *log) connect(ctx context.Context, c *pgx.ConnConfig) (*pgx.Conn, error) {
	conn, err := connect(ctx, c)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, answerTimeout)
	defer cancel()
	if err := l.guard.check(ctx, conn); err != nil {
		disconnect(conn)
		return nil, err
	}
	return conn, nil
}

// disconnect closes a connection, whatever its state, without waiting long for the other
// side.
func disconnect(conn *pgx.Conn) {
	if conn == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	_ = conn.Close(ctx) // errors do not matter here
}
