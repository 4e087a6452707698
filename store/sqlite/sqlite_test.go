package sqlite

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"mariposa"
	"mariposa/clock"
	"mariposa/leaktest"
	"mariposa/store"
	"mariposa/store/storetest"
)

// TestMain also runs as the child process that other tests kill.
func TestMain(m *testing.M) {
	if path := os.Getenv(childVariable); path != "" {
		os.Exit(child(path))
	}
	leaktest.Main(m)
}

// Only eight changes are kept in memory, so that every test of the feed reads some of it
// from memory and some from disk.
func TestStore(t *testing.T) {
	storetest.Run(t, func(t *testing.T) storetest.Harness {
		clk := storetest.NewClock()
		o := Options{Clock: clk, RecentChanges: 8}
		path := filepath.Join(t.TempDir(), "store")
		s := open(t, path, o)
		return storetest.Harness{Store: s, Advance: clk.Advance, Reopen: func() store.Store {
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
			s = open(t, path, o)
			return s
		}}
	})
}

func open(t testing.TB, path string, o Options) *Store {
	t.Helper()
	s, err := Open(context.Background(), path, o)
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

func TestCommitsAreSynced(t *testing.T) {
	s := open(t, filepath.Join(t.TempDir(), "store"), Options{})
	for pragma, want := range map[string]string{"synchronous": "2", "journal_mode": "wal", "page_size": "8192"} {
		if got := onWriter(t, s, "PRAGMA "+pragma); got != want {
			t.Errorf("%s is %s, want %s", pragma, got, want)
		}
	}
}

// onWriter queries one value on the writer's connection and goroutine.
func onWriter(t testing.TB, s *Store, query string) (value string) {
	t.Helper()
	err := s.queue.Do(context.Background(), onGroup(func() error {
		return s.writer.conn.QueryRowContext(context.Background(), query).Scan(&value)
	}))
	if err != nil {
		t.Fatal(err)
	}
	return value
}

func TestNobodyElseMayLookIntoTheFiles(t *testing.T) {
	folder := filepath.Join(t.TempDir(), "data", "deep")
	s := open(t, filepath.Join(folder, "store"), Options{})
	commit(t, s, node("a", "1"))
	entries, err := os.ReadDir(folder)
	if err != nil || len(entries) < 4 { // the file, its lock, log and index
		t.Fatalf("%v, %v", entries, err)
	}
	for _, e := range entries {
		if info, err := e.Info(); err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%s has mode %v, %v", e.Name(), info.Mode(), err)
		}
	}
	if info, err := os.Stat(folder); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("the folder has mode %v, %v", info.Mode(), err)
	}
}

func TestAFileOpenedBeforeNamesItsProcess(t *testing.T) {
	path := filepath.Join(t.TempDir(), "store")
	s := open(t, path, Options{})
	if _, err := Open(t.Context(), path, Options{}); err == nil || !strings.Contains(err.Error(), fmt.Sprintf("process %d", os.Getpid())) {
		t.Fatalf("second opening: %v", err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	open(t, path, Options{})
}

func TestANewerSchemaIsRefused(t *testing.T) {
	path := filepath.Join(t.TempDir(), "store")
	s := open(t, path, Options{})
	err := s.queue.Do(t.Context(), onGroup(func() error {
		_, err := s.writer.conn.ExecContext(t.Context(), "INSERT INTO goose_db_version (version_id, is_applied) VALUES (99, 1)")
		return err
	}))
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(t.Context(), path, Options{}); err == nil || !strings.Contains(err.Error(), "newer version of mariposa (schema 99") {
		t.Fatalf("opening: %v", err)
	}
}

func TestWhatIsNoStoreIsRefused(t *testing.T) {
	path := filepath.Join(t.TempDir(), "store")
	if err := os.WriteFile(path, []byte(strings.Repeat("not a database ", 1000)), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(t.Context(), path, Options{}); err == nil || !strings.Contains(err.Error(), path) {
		t.Fatalf("opening: %v", err)
	}
}

func TestPathsMayHoldAnyCharacter(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a b?c#d%20e", "störe")
	s := open(t, path, Options{})
	commit(t, s, node("a", "1"))
	if _, err := os.Stat(path); err != nil {
		t.Fatal(err)
	}
}

func TestWhatIsListedByProjectIsIndexedByIt(t *testing.T) {
	s := open(t, filepath.Join(t.TempDir(), "store"), Options{})
	for _, kind := range mariposa.Kinds {
		q := listQuery(store.Query{Kind: kind, Project: "p", Before: "x", Limit: 10})
		plan := planOf(t, s, q.text, q.args)
		if got := strings.Contains(plan, "INDEX objects_of_project (kind=? AND project=? AND id<?)"); got != kind.IndexedByProject() {
			t.Errorf("%s: %s", kind, plan)
		}
	}
	for _, kind := range []mariposa.Kind{mariposa.KindVersion, mariposa.KindTask, mariposa.KindMetadata, mariposa.KindAnswer} {
		if !kind.IndexedByProject() {
			t.Errorf("%s is not", kind)
		}
	}
}

func TestTasksAreLookedUpHoweverManyProjectsTheyAreOf(t *testing.T) {
	s := open(t, filepath.Join(t.TempDir(), "store"), Options{})
	one := store.Query{Kind: mariposa.KindTask, Before: "x", Limit: 10}
	failed, mine, several := one, one, one
	failed.State, mine.State, mine.Project, several.Projects = mariposa.TaskFailed, mariposa.TaskFailed, "p", []string{"p", "q"}
	both := several
	both.State = mariposa.TaskFailed
	const (
		ofProject = "COVERING INDEX objects_of_project (kind=? AND project=? AND id<?)"
		ended     = "INDEX tasks_ended (state=? AND id<?)"
		endedOf   = "INDEX tasks_ended_of_project (project=? AND state=? AND id<?)"
		byID      = "PRIMARY KEY (kind=? AND id<?)"
	)
	for _, c := range []struct {
		q    *query
		want string
		n    int // how often
	}{
		{listQuery(failed), ended, 1},
		{listQuery(mine), endedOf, 1},
		{mergeQuery(several), ofProject, 2},
		{mergeQuery(both), "COVERING " + endedOf, 2},
		{spanQuery(several), byID, 1},
		{spanQuery(both), "COVERING " + ended, 1},
		{spanEnd(several), byID, 1},
		{spanEnd(both), "COVERING " + ended, 1},
	} {
		plan := planOf(t, s, c.q.text, c.q.args)
		if strings.Count(plan, c.want) != c.n || strings.Contains(plan, "ORDER BY") {
			t.Errorf("%s: want %s\n%s", c.q.text, c.want, plan)
		}
	}
}

// The simulation runs every tenth seed on this store, in virtual time.
func TestTheStoreLivesInABubble(t *testing.T) {
	path := filepath.Join(t.TempDir(), "store")
	synctest.Test(t, func(t *testing.T) {
		s, err := Open(t.Context(), path, Options{Clock: clock.Real{}})
		if err != nil {
			t.Fatal(err)
		}
		held, err := s.Hold(t.Context(), "me", time.Hour, "l")
		if err != nil || len(held) != 1 {
			t.Fatalf("%v, %v", held, err)
		}
		woken := make(chan error, 1)
		go func() { woken <- s.Wait(t.Context(), 0) }()
		synctest.Wait()
		time.Sleep(59 * time.Minute) // virtual
		u := node("a", "1")
		u.Fences = []store.Fence{{Lease: "l", Epoch: 1}}
		commit(t, s, u)
		if err := <-woken; err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		if r := s.Commit(t.Context(), u); r[0].Err == nil {
			t.Fatal("the fence held beyond the lapse")
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	})
}

func TestTheSchemaIsTheNewestMigration(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("migrations/*.sql")
	if err != nil || len(files) != store.Schema {
		t.Errorf("%d migrations, and store.Schema is %d: %v", len(files), store.Schema, err)
	}
	if other, err := filepath.Glob("../postgres/migrations/*.sql"); err != nil || len(other) != store.Schema {
		t.Errorf("%d migrations of PostgreSQL, and store.Schema is %d: %v", len(other), store.Schema, err)
	}
}
