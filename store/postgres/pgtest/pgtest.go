// Package pgtest runs real PostgreSQL servers for tests, in a temporary directory and as
// an unprivileged user, as PostgreSQL requires.
//
// It owns the lifetime of the servers: they end with the test binary, however that ends.
// It does not know what is stored in them. It never skips tests: on a machine without
// PostgreSQL, they fail with a hint how to install it.
package pgtest

import (
	"context"
	"fmt"
	"net/url"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

// shared is the one server of a test binary, for tests that do not harm it.
var shared struct {
	sync.Mutex
	server *Server
}

// Start returns the URL of an empty database on the test binary's server, which the
// first call starts. The database is dropped after the test.
func Start(t testing.TB) string {
	t.Helper()
	return Shared(t).Database(t, "")
}

// Shared returns the test binary's server. Tests that stop or change a server call New.
func Shared(t testing.TB) *Server {
	t.Helper()
	shared.Lock()
	defer shared.Unlock()
	if shared.server == nil {
		s, err := prepare()
		if err != nil {
			t.Fatal(err)
		}
		if err := s.Start(); err != nil {
			t.Fatal(err)
		}
		shared.server = s
	}
	return shared.server
}

// New returns a running server that no other test has. Settings are added to
// its configuration, each like "max_connections=20".
func New(t testing.TB, settings ...string) *Server {
	t.Helper()
	s, err := prepare(settings...)
	if err != nil {
		t.Fatal(err)
	}
	s.runFor(t)
	return s
}

// Standby returns a running copy of the server that follows it and can only be
// read, until it is promoted.
func (s *Server) Standby(t testing.TB) *Server {
	t.Helper()
	copied, err := s.follow()
	if err != nil {
		t.Fatal(err)
	}
	copied.runFor(t)
	return copied
}

// runFor starts a server until the test is over.
func (s *Server) runFor(t testing.TB) {
	t.Helper()
	t.Cleanup(func() {
		s.Stop()
		if err := os.RemoveAll(s.folder); err != nil {
			t.Error(err)
		}
	})
	if err := s.Start(); err != nil {
		t.Fatal(err)
	}
}

var databases atomic.Int64

// Database creates a database as a copy of another one of the server (empty: of none)
// and returns its URL. The template must have no connections.
func (s *Server) Database(t testing.TB, template string) string {
	t.Helper()
	name := fmt.Sprintf("test_%d", databases.Add(1))
	create := "CREATE DATABASE " + name
	if template != "" {
		create += " TEMPLATE " + template
	}
	if err := s.Exec(create); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		// One server has the databases of many tests; a test that stopped its own server
		// has nothing to clean up.
		_ = s.Exec("DROP DATABASE IF EXISTS " + name + " WITH (FORCE)")
	})
	return s.URL(name)
}

// Save copies a database, and Restore brings it back to that state. Both end its
// connections, as an operator would.
func (s *Server) Save(t testing.TB, target string) (copied string) {
	t.Helper()
	copied = fmt.Sprintf("saved_%d", databases.Add(1))
	name := databaseOf(t, target)
	s.mustExec(t, endConnections(name)...)
	s.mustExec(t, "CREATE DATABASE "+copied+" TEMPLATE "+name, "ALTER DATABASE "+name+" ALLOW_CONNECTIONS true")
	t.Cleanup(func() { _ = s.Exec("DROP DATABASE IF EXISTS " + copied + " WITH (FORCE)") })
	return copied
}

// Restore replaces a database by a saved one.
func (s *Server) Restore(t testing.TB, target, saved string) {
	t.Helper()
	name := databaseOf(t, target)
	s.mustExec(t, endConnections(name)...)
	s.mustExec(t, "DROP DATABASE "+name+" WITH (FORCE)", "CREATE DATABASE "+name+" TEMPLATE "+saved)
}

func endConnections(name string) []string {
	return []string{
		"ALTER DATABASE " + name + " ALLOW_CONNECTIONS false",
		"SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity WHERE datname = '" + name + "'",
	}
}

func (s *Server) mustExec(t testing.TB, statements ...string) {
	t.Helper()
	if err := s.Exec(statements...); err != nil {
		t.Fatal(err)
	}
}

func databaseOf(t testing.TB, target string) string {
	t.Helper()
	u, err := url.Parse(target)
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimPrefix(u.Path, "/")
}

// Exec runs statements in the server's own database, as its superuser.
func (s *Server) Exec(statements ...string) error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	conn, err := pgx.Connect(ctx, s.URL("postgres"))
	if err != nil {
		return err
	}
	defer conn.Close(ctx)
	for _, statement := range statements {
		if _, err := conn.Exec(ctx, statement); err != nil {
			return fmt.Errorf("%s: %w", statement, err)
		}
	}
	return nil
}
