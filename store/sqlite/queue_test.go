package sqlite

import (
	"context"
	"errors"
	"path/filepath"
	"runtime"
	"sync"
	"testing"

	"mariposa/store"
	"mariposa/store/internal/batch"
)

func onGroup(f func() error) func(*batch.Group) error {
	return func(*batch.Group) error { return f() }
}

// block keeps the writer busy until the returned function is called.
func block(s *Store) (release func()) {
	busy, free, done := make(chan struct{}), make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		_ = s.queue.Do(context.Background(), onGroup(func() error {
			close(busy)
			<-free
			return nil
		}))
	}()
	<-busy
	return func() {
		close(free)
		<-done
	}
}

// queued waits until n calls are in the queue.
func queued(s *Store, n int) {
	for s.queue.Len() < n {
		runtime.Gosched()
	}
}

func TestWhatComesWhileTheWriterIsBusyIsOneCommit(t *testing.T) {
	s := open(t, filepath.Join(t.TempDir(), "store"), Options{})
	release := block(s)
	var wg sync.WaitGroup
	for i := range 100 {
		wg.Go(func() { commit(t, s, node(string(rune('a'+i)), "1")) })
	}
	queued(s, 100)
	release()
	wg.Wait()
	if chunks := onWriter(t, s, "SELECT count(*) FROM changes"); chunks != "1" {
		t.Fatalf("%s commits", chunks)
	}
}

func TestUrgentUnitsGoFirst(t *testing.T) {
	s := open(t, filepath.Join(t.TempDir(), "store"), Options{})
	release := block(s)
	var bulk, urgent []store.Result
	var wg sync.WaitGroup
	wg.Go(func() { bulk = commit(t, s, node("a", "1"), node("b", "1")) })
	queued(s, 1)
	wg.Go(func() {
		u := node("c", "1")
		u.Urgent = true
		urgent = commit(t, s, u)
	})
	queued(s, 2)
	release()
	wg.Wait()
	if urgent[0].First != 1 || bulk[0].First != 2 || bulk[1].First != 3 {
		t.Fatalf("urgent %+v, bulk %+v", urgent, bulk)
	}
}

func TestAUnitGivenUpInTheQueueIsDropped(t *testing.T) {
	s := open(t, filepath.Join(t.TempDir(), "store"), Options{})
	release := block(s)
	ctx, cancel := context.WithCancel(t.Context())
	dropped := make(chan []store.Result)
	go func() { dropped <- s.Commit(ctx, node("a", "1"), node("b", "1")) }()
	queued(s, 1)
	cancel()
	for _, r := range <-dropped { // while the writer is still busy
		if !errors.Is(r.Err, context.Canceled) {
			t.Fatalf("%+v", r)
		}
	}
	release()
	if r := commit(t, s, node("c", "1")); r[0].First != 1 {
		t.Fatalf("a dropped unit took a revision: %+v", r)
	}
}

func TestAUnitGivenUpWhileItIsCommittedIsWaitedFor(t *testing.T) {
	s := open(t, filepath.Join(t.TempDir(), "store"), Options{})
	ctx, cancel := context.WithCancel(t.Context())
	err := s.queue.Do(ctx, onGroup(func() error {
		cancel() // already taken: the caller of this group gives up
		return nil
	}))
	if err != nil {
		t.Fatalf("the result was lost: %v", err)
	}
}

func TestCloseWaitsForWhatIsQueued(t *testing.T) {
	path := filepath.Join(t.TempDir(), "store")
	s := open(t, path, Options{})
	release := block(s)
	results := make(chan []store.Result)
	go func() { results <- s.Commit(context.Background(), node("a", "1")) }()
	queued(s, 1)
	closed := make(chan error)
	go func() { closed <- s.Close() }()
	release()
	if r := <-results; r[0].Err != nil {
		t.Fatal(r[0].Err)
	}
	if err := <-closed; err != nil {
		t.Fatal(err)
	}
	if _, err := open(t, path, Options{}).Get(t.Context(), "node", "a"); err != nil {
		t.Fatal(err)
	}
}

func TestTrimTakesAsManyStepsAsItNeeds(t *testing.T) {
	s := open(t, filepath.Join(t.TempDir(), "store"), Options{})
	const commits = 2*trimStep + trimStep/2
	for range commits {
		commit(t, s, node("a", "1"))
	}
	if point, err := s.Trim(t.Context(), 0, 10); err != nil || point != commits-10 {
		t.Fatalf("trimmed at %d, %v", point, err)
	}
	if left := onWriter(t, s, "SELECT count(*) FROM changes"); left != "10" {
		t.Fatalf("%s commits left", left)
	}
}
