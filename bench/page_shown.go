package bench

import (
	"context"
	"fmt"
	"sync"
	"time"

	"mariposa"
	"mariposa/contract"
)

// showTime is how long a page may take to show what has happened.
const showTime = time.Minute

// shown is what a page shows of the project that converges.
type shown struct {
	hasInstances bool // and not only counts

	mu        sync.Mutex
	running   int             // by its state
	instances map[string]bool // that run
	at        time.Time       // of the last change
	changed   chan struct{}   // closed and replaced after a change
}

func newShown(hasInstances bool) *shown {
	return &shown{hasInstances: hasInstances, instances: map[string]bool{}, changed: make(chan struct{})}
}

func (s *shown) setState(doc contract.ProjectState) {
	running := 0
	for _, one := range doc.Services {
		running += one.Running
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if running != s.running {
		s.running = running
		s.touch()
	}
}

func (s *shown) setInstances(doc contract.ChangedInstances) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range doc.Instances {
		if one := &doc.Instances[i]; one.State == mariposa.StateRunning {
			s.instances[one.ID] = true
		} else {
			delete(s.instances, one.ID)
		}
	}
	s.touch()
}

func (s *shown) touch() {
	s.at = time.Now()
	close(s.changed)
	s.changed = make(chan struct{})
}

// await waits until the page shows that a number of instances run, and returns since when.
func (s *shown) await(ctx context.Context, n int) (time.Time, error) {
	ctx, cancel := context.WithTimeout(ctx, showTime)
	defer cancel()
	for {
		s.mu.Lock()
		at, running, instances, changed := s.at, s.running, len(s.instances), s.changed
		s.mu.Unlock()
		if running == n && (!s.hasInstances || instances == n) {
			return at, nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return at, fmt.Errorf("%d running instances, and %d one by one, instead of %d: %w", running, instances, n, ctx.Err())
		}
	}
}
