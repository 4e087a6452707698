package cli

import (
	"context"
	"strings"
	"sync"
	"time"

	"mariposa"
	"mariposa/contract"
)

// watchWaits asks from time to time what the task waits for while the feed has no news about
// it: a wait for a lost node, for example, makes no events. The returned function ends that.
func (f *follower) watchWaits(ctx context.Context) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	var done sync.WaitGroup
	done.Go(func() {
		tick := time.NewTicker(f.a.env.Quiet)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
			if f.news.Swap(false) {
				continue
			}
			if t, err := f.c.Task(ctx, f.id); err == nil && !isOver(t) { // otherwise the feed says so
				f.show.waiting(t.Waits, f.a.suggest(t.ProjectName, "", f.a.waitsOf(t)))
			}
		}
	})
	return func() {
		cancel()
		done.Wait()
	}
}

// waitsOf says what an active task waits for, and for how long at most; empty: nothing.
func (a *app) waitsOf(t *contract.Task) string {
	if t.Waits == "" || t.State != mariposa.TaskActive {
		return t.Waits
	}
	if t.WaitsUntil == nil {
		return withWaits(t.Waits)
	}
	return "waits up to " + roughDuration(max(0, t.WaitsUntil.Sub(a.now()))) + ": " + strings.TrimPrefix(t.Waits, "waits for ")
}

// withWaits returns a sentence about a wait that says so.
func withWaits(sentence string) string {
	if sentence == "" || strings.Contains(sentence, "wait") {
		return sentence
	}
	return "waits: " + sentence
}

// serialDisplay lets two goroutines use a display.
type serialDisplay struct {
	mu sync.Mutex
	display
}

func (s *serialDisplay) task(t *contract.Task, at time.Time) { s.do(func() { s.display.task(t, at) }) }

func (s *serialDisplay) projectStatus(how mariposa.Status, why string, at time.Time) {
	s.do(func() { s.display.projectStatus(how, why, at) })
}

func (s *serialDisplay) trouble(why string) { s.do(func() { s.display.trouble(why) }) }

func (s *serialDisplay) waiting(why, how string) { s.do(func() { s.display.waiting(why, how) }) }

func (s *serialDisplay) end() { s.do(s.display.end) }

func (s *serialDisplay) do(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f()
}
