package postgres

import (
	"context"
	"errors"
	"testing"
	"time"

	"mariposa"
	"mariposa/store"
	"mariposa/store/postgres/pgtest"
)

// wantRewound waits until a store says that its database has gone back.
func wantRewound(t *testing.T, s *Store) {
	t.Helper()
	select {
	case <-s.Rewound():
	case <-time.After(time.Minute):
		t.Fatal("it was not noticed that the database has gone back")
	}
	away(t, s)
	if err := s.Commit(t.Context(), node("b", "1"))[0].Err; !errors.Is(err, store.ErrRewound) {
		t.Errorf("a commit answers %v", err)
	}
	if _, err := s.Get(t.Context(), mariposa.KindNode, "a"); !errors.Is(err, store.ErrRewound) {
		t.Errorf("a read answers %v", err)
	}
}

func wantNotRewound(t *testing.T, s *Store) {
	t.Helper()
	select {
	case <-s.Rewound():
		t.Fatalf("nothing has gone back: %v", s.guard.err())
	default:
	}
}

// A restored backup has fewer changes than were read before.
func TestARestoredDatabaseIsNoticed(t *testing.T) {
	t.Parallel()
	server := pgtest.Shared(t)
	target := server.Database(t, "")
	s, idle := open(t, target, Options{}), open(t, target, Options{})
	commit(t, s, node("a", "1"))
	saved := server.Save(t, target)
	well(t, s, idle, "2")
	server.Restore(t, target, saved)
	wantRewound(t, s)
	wantRewound(t, idle)
	again := open(t, target, Options{})
	wantNotRewound(t, again)
	if r := commit(t, again, node("a", "3"))[0]; r.First != 2 {
		t.Errorf("the next revision is %d", r.First)
	}
}

// By the time the others connect again, a new replica has written more than there was
// before. The revisions are not lower, but they are others.
func TestARestoredDatabaseThatHasGrownIsNoticed(t *testing.T) {
	t.Parallel()
	server := pgtest.Shared(t)
	target := server.Database(t, "")
	s := open(t, target, Options{})
	commit(t, s, node("a", "1"))
	saved := server.Save(t, target)
	commit(t, s, node("a", "2"))
	grown := server.Database(t, saved)
	fresh := open(t, grown, Options{})
	for range 5 {
		commit(t, fresh, node("a", "3"))
	}
	if err := fresh.Close(); err != nil {
		t.Fatal(err)
	}
	server.Restore(t, target, databaseName(t, grown))
	wantRewound(t, s)
}

// Replicas notice a new incarnation, though no connection was lost.
func TestANewIncarnationIsNoticedByAll(t *testing.T) {
	t.Parallel()
	target := pgtest.Shared(t).Database(t, "")
	s, other := open(t, target, Options{}), open(t, target, Options{})
	id, err := s.Identity(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Reincarnate(t.Context(), "another"); err != nil {
		t.Fatal(err)
	}
	commit(t, s, node("a", "1"))
	if err := s.Reincarnate(t.Context(), id.Incarnation); err != nil {
		t.Fatal(err)
	}
	wantRewound(t, s)
	wantRewound(t, other)
	wantNotRewound(t, open(t, target, Options{}))
}

// A restart loses nothing and is no reason for an alarm.
func TestARestartIsNoRewind(t *testing.T) {
	t.Parallel()
	server := pgtest.New(t)
	target := server.Database(t, "")
	s, idle := open(t, target, Options{}), open(t, target, Options{})
	for i := range 3 {
		commit(t, s, node("a", "1"))
		if i%2 == 0 {
			server.Kill()
		} else {
			server.Stop()
		}
		if err := server.Start(); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		for s.Commit(ctx, node("b", "1"))[0].Err != nil && ctx.Err() == nil {
			wantNotRewound(t, s)
		}
		cancel()
	}
	well(t, idle, s, "2")
	wantNotRewound(t, s)
	wantNotRewound(t, idle)
}

func databaseName(t *testing.T, target string) string {
	t.Helper()
	c, err := parse(target)
	if err != nil {
		t.Fatal(err)
	}
	return c.ConnConfig.Database
}
