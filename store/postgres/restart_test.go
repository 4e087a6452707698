package postgres

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"syscall"
	"testing"
	"time"

	"mariposa"
	"mariposa/store"
	"mariposa/store/postgres/pgtest"
	"mariposa/store/storetest"
)

// away expects every call that needs the server to return ErrUnavailable.
func away(t *testing.T, s *Store) {
	t.Helper()
	answers := map[string]error{
		"Commit":  s.Commit(t.Context(), node("lost", "1"))[0].Err,
		"Ping":    s.Ping(t.Context()),
		"Release": s.Release(t.Context(), "h", "l"),
	}
	_, answers["Hold"] = s.Hold(t.Context(), "h", time.Hour, "l")
	_, answers["Get"] = s.Get(t.Context(), mariposa.KindNode, "a")
	_, answers["List"] = s.List(t.Context(), store.Query{Kind: mariposa.KindNode})
	_, answers["Snapshot"] = s.Snapshot(t.Context(), func(store.Record) error { return nil })
	_, answers["History"] = s.History(t.Context(), store.HistoryQuery{})
	_, answers["Ledger"] = s.Ledger(t.Context())
	_, answers["Leases"] = s.Leases(t.Context(), "")
	_, answers["Trim"] = s.Trim(t.Context(), 0, 0)
	_, answers["Thin"] = s.Thin(t.Context(), "p", store.LogSize{Changes: 1}, 1)
	_, answers["LogSizes"] = s.LogSizes(t.Context())
	for name, err := range answers {
		if !errors.Is(err, store.ErrUnavailable) {
			t.Errorf("%s: %v", name, err)
		}
		if err != nil && strings.Contains(err.Error(), pgtest.Password) {
			t.Errorf("%s tells the password: %v", name, err)
		}
	}
}

// well expects a store to work, and the other handle's feed to show it.
func well(t *testing.T, s, other *Store, word string) {
	t.Helper()
	r := commit(t, s, node("a", word))[0]
	if err := s.Ping(t.Context()); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := other.Wait(ctx, r.First-1); err != nil {
		t.Fatal(err)
	}
	changes, err := other.Changes(ctx, r.First-1, 1)
	if err != nil || len(changes) != 1 || changes[0].Record.Spec.(*mariposa.NodeSpec).Name != word {
		t.Fatalf("%+v, %v", changes, err)
	}
	storetest.VerifyLog(t, s)
}

func TestAStoreOutlivesItsServersRestart(t *testing.T) {
	t.Parallel()
	server := pgtest.New(t)
	target := server.Database(t, "")
	s, other := open(t, target, Options{}), open(t, target, Options{})
	well(t, s, other, "before")
	for i, end := range []func(){server.Stop, server.Kill} {
		end()
		away(t, s)
		if _, err := Open(t.Context(), target, Options{}); !errors.Is(err, store.ErrUnavailable) {
			t.Errorf("opening: %v", err)
		}
		if err := server.Start(); err != nil {
			t.Fatal(err)
		}
		well(t, s, other, fmt.Sprint("after ", i))
		server.Stop()
		if err := server.Start(); err != nil { // the restart has not been noticed yet
			t.Fatal(err)
		}
		well(t, other, s, fmt.Sprint("again ", i))
	}
}

func TestAStoreOutlivesAServerThatCanOnlyBeRead(t *testing.T) {
	t.Parallel()
	server := pgtest.New(t)
	target := server.Database(t, "")
	s, other := open(t, target, Options{}), open(t, target, Options{})
	well(t, s, other, "before")
	set := func(mode string) {
		if err := server.Exec("ALTER SYSTEM SET default_transaction_read_only = "+mode, "SELECT pg_reload_conf()"); err != nil {
			t.Fatal(err)
		}
	}
	set("on")
	for start := time.Now(); ; time.Sleep(time.Millisecond) { // the server applies the setting a little later
		if r := s.Commit(t.Context(), node("a", "during")); errors.Is(r[0].Err, store.ErrUnavailable) {
			break
		} else if r[0].Err != nil || time.Since(start) > 10*time.Second {
			t.Fatalf("%+v", r)
		}
	}
	refusing(t, s)
	late := open(t, target, Options{}) // it can still be read
	refusing(t, late)
	set("off")
	calmly(t, func() (any, error) { return nil, s.Ping(t.Context()) })
	calmly(t, func() (any, error) { return nil, late.Ping(t.Context()) })
	well(t, s, other, "after")
	well(t, late, s, "late")
}

// refusing expects a store to accept reads but not writes.
func refusing(t *testing.T, s *Store) {
	t.Helper()
	if err := s.Ping(t.Context()); !errors.Is(err, store.ErrUnavailable) {
		t.Fatalf("ping: %v", err)
	}
	if r := s.Commit(t.Context(), node("lost", "1")); !errors.Is(r[0].Err, store.ErrUnavailable) {
		t.Fatalf("%+v", r)
	}
	if _, err := s.Get(t.Context(), mariposa.KindNode, "a"); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Snapshot(t.Context(), func(store.Record) error { return nil }); err != nil {
		t.Fatal(err)
	}
}

// The first server is lost and its standby takes over. The URL names both. A store opened
// with only the standby can be read all the time.
func TestAStoreFindsTheServerThatTookOver(t *testing.T) {
	t.Parallel()
	first := pgtest.New(t)
	target := first.Database(t, "")
	s := open(t, target, Options{})
	commit(t, s, node("a", "before"))
	second := first.Standby(t)
	database := databaseOf(t, target)
	both := strings.Replace(second.URL(database), "@", fmt.Sprintf("@127.0.0.1:%d,", first.Port), 1)
	s = open(t, both, Options{})
	reader := open(t, second.URL(database), Options{})
	r := commit(t, s, node("a", "by the first"))[0]
	if err := reader.Wait(t.Context(), r.First-1); err != nil { // without a notification: standbys send none
		t.Fatal(err)
	}
	refusing(t, reader)
	first.Kill()
	away(t, s)
	if err := second.Promote(); err != nil {
		t.Fatal(err)
	}
	calmly(t, func() (any, error) { return nil, s.Ping(t.Context()) })
	calmly(t, func() (any, error) { return nil, reader.Ping(t.Context()) })
	well(t, s, reader, "by the second")
	well(t, reader, s, "by who knew it only")
}

func TestNothingIsLostOrDoubledWhenTheServerCrashes(t *testing.T) {
	t.Parallel()
	server := pgtest.New(t)
	target := server.Database(t, "")
	writeUnder(t, replicas(t, target, 3), func(ctx context.Context) {
		for i := 0; ctx.Err() == nil; i++ {
			time.Sleep(time.Duration(200+rand.IntN(300)) * time.Millisecond)
			if i%2 == 0 {
				killBackend(t, target)
				continue
			}
			server.Kill()
			time.Sleep(time.Duration(rand.IntN(50)) * time.Millisecond)
			if err := server.Start(); err != nil {
				t.Error(err)
				return
			}
		}
	})
	storetest.VerifyLog(t, open(t, target, Options{}))
}

// killBackend kills one of the server's processes that works for a store, upon which the
// server disconnects all clients and restarts.
func killBackend(t *testing.T, target string) {
	conn := calmly(t, func() (int, error) {
		config, err := parse(target)
		if err != nil {
			return 0, err
		}
		c, err := connect(context.Background(), config.ConnConfig)
		if err != nil {
			return 0, unavailable(err)
		}
		defer disconnect(c)
		var pid int
		err = c.QueryRow(context.Background(), `SELECT coalesce(max(pid), 0) FROM pg_stat_activity
			WHERE datname = current_database() AND pid <> pg_backend_pid()`).Scan(&pid)
		if err != nil {
			return 0, unavailable(err)
		}
		return pid, nil
	})
	if conn != 0 {
		_ = syscall.Kill(conn, syscall.SIGKILL) // it may have ended on its own
	}
}
