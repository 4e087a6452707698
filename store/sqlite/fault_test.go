package sqlite

import (
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"mariposa"
	"mariposa/store"
	"mariposa/store/storetest"
)

// SQLite itself simulates a disk that is full or refuses writes, with the same errors
// wherever the test runs.
func TestAStoreOutlivesADiskThatRefuses(t *testing.T) {
	for name, fault := range map[string]struct{ hurt, heal string }{
		"full":      {"PRAGMA max_page_count = 1", "PRAGMA max_page_count = 1000000"},
		"read-only": {"PRAGMA query_only = 1", "PRAGMA query_only = 0"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := open(t, filepath.Join(t.TempDir(), "store"), Options{})
			outlive(t, s, func() { pragma(t, s, fault.hurt) }, func() { pragma(t, s, fault.heal) })
			pragma(t, s, "PRAGMA query_only = 1")
			if err := s.Ping(t.Context()); !errors.Is(err, store.ErrUnavailable) {
				t.Fatalf("ping of a read-only store: %v", err)
			}
			pragma(t, s, "PRAGMA query_only = 0")
			if err := s.Ping(t.Context()); err != nil {
				t.Fatal(err)
			}
		})
	}
}

// A real file system that is full.
func TestAStoreOutlivesAFullDisk(t *testing.T) {
	folder := t.TempDir()
	if err := syscall.Mount("tmpfs", folder, "tmpfs", 0, "size=8m"); err != nil {
		t.Fatalf("this test mounts a small file system and must run as root: %v", err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(folder, 0); err != nil {
			t.Error(err)
		}
	})
	s := open(t, filepath.Join(folder, "store"), Options{})
	filler := filepath.Join(folder, "filler")
	outlive(t, s, func() { fill(t, filler) }, func() {
		if err := os.Remove(filler); err != nil {
			t.Fatal(err)
		}
	})
}

func TestAStoreOutlivesItsConnection(t *testing.T) {
	s := open(t, filepath.Join(t.TempDir(), "store"), Options{})
	commit(t, s, node("a", "1"))
	for name, harm := range map[string]func() error{
		"a broken connection": func() error {
			s.writer.statements.close()
			err := s.writer.conn.Raw(func(any) error { return driver.ErrBadConn })
			if errors.Is(err, driver.ErrBadConn) {
				return nil
			}
			return err
		},
		"a transaction left open": func() error {
			_, err := s.writer.conn.ExecContext(context.Background(), "BEGIN; UPDATE meta SET value = 99 WHERE key = 'revision'")
			return err
		},
	} {
		if err := s.queue.Do(t.Context(), onGroup(harm)); err != nil {
			t.Fatal(err)
		}
		_, before := s.feed.Bounds()
		if r := s.Commit(t.Context(), node("a", "2")); !errors.Is(r[0].Err, store.ErrUnavailable) {
			t.Fatalf("%s: %+v", name, r)
		}
		if r := commit(t, s, node("a", "3")); r[0].First != before+1 {
			t.Fatalf("%s: %+v", name, r)
		}
	}
}

// A sync that fails after the bytes were written leaves an unreported commit. The store
// finds it, and readers get it.
func TestACommitThatWasTakenForFailedIsFound(t *testing.T) {
	s := open(t, filepath.Join(t.TempDir(), "store"), Options{})
	commit(t, s, node("a", "1"))
	commit(t, s, node("a", "2"))
	err := s.queue.Do(t.Context(), onGroup(func() error {
		s.writer.revision, s.writer.stale = 1, true
		s.feed.Reset(0, 1)
		return nil
	}))
	if err != nil {
		t.Fatal(err)
	}
	if r := commit(t, s, node("a", "3")); r[0].First != 3 {
		t.Fatalf("%+v", r)
	}
	changes, err := s.Changes(t.Context(), 1, 0)
	if err != nil || len(changes) != 2 || changes[0].Revision != 2 {
		t.Fatalf("%+v, %v", changes, err)
	}
}

func fill(t *testing.T, path string) {
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	for err == nil {
		_, err = f.Write(make([]byte, 4096))
	}
	if !errors.Is(err, syscall.ENOSPC) {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
}

func pragma(t *testing.T, s *Store, query string) {
	t.Helper()
	err := s.queue.Do(context.Background(), onGroup(func() error {
		_, err := s.writer.conn.ExecContext(context.Background(), query)
		return err
	}))
	if err != nil {
		t.Fatal(err)
	}
}

// outlive writes before, during and after a fault. During it all callers get an error
// and nothing changes; after it everything works again.
func outlive(t *testing.T, s *Store, hurt, heal func()) {
	for i := range 20 {
		commit(t, s, node(fmt.Sprint("n", i), "before"))
	}
	if _, err := s.Hold(t.Context(), "me", 1<<40, "l"); err != nil {
		t.Fatal(err)
	}
	before := state(t, s)
	hurt()
	conflict := node("n1", "during")
	conflict.Require = []store.Require{{Kind: mariposa.KindNode, ID: "n1", Absent: true}}
	for range 3 {
		// Random bytes, because others would be compressed to almost nothing.
		var units []store.Unit
		for i := range 40 {
			units = append(units, node(fmt.Sprint("during", i), storetest.RandomWord(100_000)))
		}
		units = append(units, node("n1", "during"), conflict, store.Unit{
			Fences: []store.Fence{{Lease: "l", Epoch: 1}},
			Claims: []store.Claim{{Node: "n", Take: mariposa.Resources{Instances: 1}}},
		})
		for i, r := range s.Commit(t.Context(), units...) {
			if !errors.Is(r.Err, store.ErrUnavailable) || r.First != 0 {
				t.Fatalf("unit %d: %+v", i, r)
			}
			if r.Err.Error() == store.ErrUnavailable.Error() {
				t.Fatal("the cause is missing")
			}
		}
		if after := state(t, s); after != before {
			t.Fatalf("the fault left traces:\n%s\n%s", before, after)
		}
	}
	heal()
	u := node("n1", "after")
	u.Fences = []store.Fence{{Lease: "l", Epoch: 1}}
	if r := commit(t, s, u); r[0].First != 21 {
		t.Fatalf("%+v", r)
	}
	changes, err := s.Changes(t.Context(), 0, 0)
	if err != nil || len(changes) != 21 {
		t.Fatalf("%d changes, %v", len(changes), err)
	}
}

// state returns everything that can be read from a store, as one string.
func state(t *testing.T, s *Store) string {
	t.Helper()
	var b strings.Builder
	revision, err := s.Snapshot(t.Context(), func(r store.Record) error {
		_, err := fmt.Fprintln(&b, r.ID, r.Revision, r.Spec.(*mariposa.NodeSpec).Name)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	changes, err := s.Changes(t.Context(), 0, 0)
	if err != nil {
		t.Fatal(err)
	}
	history, err := s.History(t.Context(), store.HistoryQuery{})
	if err != nil {
		t.Fatal(err)
	}
	ledger, err := s.Ledger(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	trimmed, told := s.feed.Bounds()
	fmt.Fprintln(&b, revision, len(changes), len(history), ledger, trimmed, told)
	return b.String()
}
