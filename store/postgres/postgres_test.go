package postgres

import (
	"context"
	"flag"
	"net/url"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"mariposa"
	"mariposa/leaktest"
	"mariposa/store"
	"mariposa/store/postgres/pgtest"
	"mariposa/store/storetest"
)

// TestMain also runs as the child process that other tests kill.
func TestMain(m *testing.M) {
	if target := os.Getenv(childVariable); target != "" {
		os.Exit(child(target))
	}
	fewerChecks()
	leaktest.Main(m)
}

// fewerChecks has property tests run a third of their cases unless -rapid.checks is given:
// here a case takes a hundred times as long as in the other stores, which run all.
func fewerChecks() {
	flag.Parse()
	given := false
	flag.Visit(func(f *flag.Flag) { given = given || f.Name == "rapid.checks" })
	if !given {
		if err := flag.Set("rapid.checks", "30"); err != nil {
			panic(err)
		}
	}
}

// settableClock gives the store at a target a clock that a test can advance: a function in
// a schema that is searched before the server's own.
func settableClock(t testing.TB, target string) (with string, advance func(time.Duration)) {
	t.Helper()
	run := func(sql string, args ...any) {
		t.Helper()
		conn, err := pgx.Connect(context.Background(), target)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close(context.Background())
		do(t, conn, sql, args...)
	}
	run(`CREATE SCHEMA IF NOT EXISTS settable;
		CREATE TABLE IF NOT EXISTS settable.clock (ahead interval NOT NULL);
		DELETE FROM settable.clock;
		INSERT INTO settable.clock VALUES ('0');
		CREATE OR REPLACE FUNCTION settable.clock_timestamp() RETURNS timestamptz LANGUAGE sql VOLATILE
			AS 'SELECT pg_catalog.clock_timestamp() + ahead FROM settable.clock'`)
	u, err := url.Parse(target)
	if err != nil {
		t.Fatal(err)
	}
	q := u.Query()
	q.Set("search_path", "public,settable,pg_catalog")
	u.RawQuery = q.Encode()
	return u.String(), func(d time.Duration) {
		run("UPDATE settable.clock SET ahead = ahead + make_interval(secs => $1)", d.Seconds())
	}
}

// Only eight changes are kept in memory, so that every test of the feed reads some of it
// from memory and some from the database.
func TestStore(t *testing.T) {
	var known sync.Map // the database of each test: the model test needs a hundred stores
	storetest.Run(t, func(t *testing.T) storetest.Harness {
		o := Options{RecentChanges: 8}
		had, again := known.Load(t)
		if !again {
			had = database(t)
			known.Store(t, had)
		}
		target := had.(string)
		if again {
			wipe(t, target)
		}
		target, advance := settableClock(t, target)
		s := open(t, target, o)
		return storetest.Harness{
			Store:   s,
			Advance: advance,
			Reopen: func() store.Store {
				if err := s.Close(); err != nil {
					t.Fatal(err)
				}
				s = open(t, target, o)
				return s
			},
		}
	})
}

// spare are databases that no test uses now. Creating and dropping one takes longer than
// most tests, so the next test gets it, wiped.
var spare struct {
	sync.Mutex
	made bool // the template, with the tables in it
	free []string
}

// database returns the URL of a database with empty tables.
func database(t testing.TB) string {
	t.Helper()
	spare.Lock()
	defer spare.Unlock()
	target := ""
	if n := len(spare.free); n > 0 {
		target, spare.free = spare.free[n-1], spare.free[:n-1]
	} else {
		target = pgtest.Shared(t).Database(keeper{t}, templateDatabase(t))
	}
	t.Cleanup(func() {
		if wipe(t, target); t.Failed() {
			return
		}
		spare.Lock()
		defer spare.Unlock()
		spare.free = append(spare.free, target)
	})
	return target
}

// keeper keeps a database after its test has ended.
type keeper struct{ testing.TB }

func (keeper) Cleanup(func()) {}

// ownDatabase returns a database that the test may damage.
func ownDatabase(t testing.TB) string {
	t.Helper()
	spare.Lock()
	defer spare.Unlock()
	return pgtest.Shared(t).Database(t, templateDatabase(t))
}

func templateDatabase(t testing.TB) string {
	t.Helper()
	const name = "template_store"
	if spare.made {
		return name
	}
	server := pgtest.Shared(t)
	if err := server.Exec("CREATE DATABASE " + name); err != nil {
		t.Fatal(err)
	}
	config, err := parse(server.URL(name))
	if err != nil {
		t.Fatal(err)
	}
	conn, err := connect(context.Background(), config.ConnConfig)
	if err != nil {
		t.Fatal(err)
	}
	defer disconnect(conn)
	if err := migrate(context.Background(), config.ConnConfig, conn); err != nil {
		t.Fatal(err)
	}
	spare.made = true
	return name
}

// wipe empties a database, as if it were new.
func wipe(t testing.TB, target string) {
	t.Helper()
	conn, err := pgx.Connect(context.Background(), target)
	if err != nil {
		t.Error(err)
		return
	}
	defer conn.Close(context.Background())
	do(t, conn, `DELETE FROM objects; DELETE FROM changes; DELETE FROM change_project; DELETE FROM change_task;
		DELETE FROM leases; DELETE FROM ledger; DELETE FROM writers; DELETE FROM meta; DELETE FROM audit;
		UPDATE counter SET revision = 0, audit = 0, audit_lag = 0; UPDATE trimmed SET revision = 0`)
}

func open(t testing.TB, target string, o Options) *Store {
	t.Helper()
	s, err := Open(context.Background(), target, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// dial connects to a database for the test's own use.
func dial(t testing.TB, target string) *pgx.Conn {
	t.Helper()
	conn, err := pgx.Connect(context.Background(), target)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close(context.Background()) })
	return conn
}

func ask[T any](t testing.TB, conn *pgx.Conn, query string, args ...any) (value T) {
	t.Helper()
	if err := conn.QueryRow(context.Background(), query, args...).Scan(&value); err != nil {
		t.Fatalf("%s: %v", query, err)
	}
	return value
}

func do(t testing.TB, conn *pgx.Conn, statement string, args ...any) {
	t.Helper()
	if _, err := conn.Exec(context.Background(), statement, args...); err != nil {
		t.Fatalf("%s: %v", statement, err)
	}
}

// databaseOf returns the name of the database in a URL.
func databaseOf(t testing.TB, target string) string {
	t.Helper()
	u, err := url.Parse(target)
	if err != nil {
		t.Fatal(err)
	}
	return u.Path[1:]
}

func node(id, word string) store.Unit {
	return store.Unit{Writes: []store.Write{{Kind: mariposa.KindNode, ID: id, Spec: &mariposa.NodeSpec{Name: word}}}}
}

func commit(t testing.TB, s *Store, units ...store.Unit) []store.Result {
	t.Helper()
	results := s.Commit(context.Background(), units...)
	for _, r := range results {
		if r.Err != nil {
			t.Fatal(r.Err)
		}
	}
	return results
}
