package sqlite

import (
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"mariposa"
	"mariposa/store"
)

// The store keeps a limited number of files open, during and after any number of
// concurrent reads.
func TestManyReadersKeepFewFilesOpen(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "store.db")
	s := open(t, path, Options{})
	units := make([]store.Unit, 500)
	for i := range units {
		units[i] = store.Unit{Writes: []store.Write{{Kind: mariposa.KindUser, ID: "u", Spec: &mariposa.UserSpec{Name: "u"}, Event: mariposa.Event{Kind: "user.updated"}}}}
	}
	for _, r := range s.Commit(t.Context(), units...) {
		if r.Err != nil {
			t.Fatal(r.Err)
		}
	}
	var all sync.WaitGroup
	begin := make(chan struct{})
	for range 400 {
		all.Go(func() {
			<-begin
			if found, err := s.History(t.Context(), store.HistoryQuery{}); err != nil || len(found) != len(units) {
				t.Errorf("%d changes, %v", len(found), err)
			}
		})
	}
	close(begin)
	all.Wait()
	if n := countOpen(t, path); n > maxReaders+8 {
		t.Errorf("the store has its file open %d times", n)
	}
}

// countOpen counts how often this process has a file open.
func countOpen(t *testing.T, path string) (n int) {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if target, err := os.Readlink("/proc/self/fd/" + e.Name()); err == nil && strings.HasSuffix(target, path) {
			n++
		}
	}
	return n
}
