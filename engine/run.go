package engine

import (
	"context"
	"log/slog"
	"sync"
	"time"
)

// Runner calls Step for the projects that were woken: for each at most once at a time,
// for many concurrently. Most of a step is waiting for the group commit.
type Runner struct {
	workers int
	step    func(ctx context.Context, project string)

	mu       sync.Mutex
	ready    []string
	state    map[string]turnState
	notEmpty *sync.Cond
	ended    bool
}

type turnState uint8

const (
	stepQueued  turnState = iota + 1
	stepRunning           // a worker has it
	wokenAgain            // a worker has it, and it was woken again
)

// NewRunner returns a runner with a number of workers, which Run starts.
func NewRunner(workers int) *Runner {
	r := &Runner{workers: workers, state: map[string]turnState{}}
	r.notEmpty = sync.NewCond(&r.mu)
	return r
}

// Wake requests a step of a project. It never blocks.
func (r *Runner) Wake(project string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch r.state[project] {
	case 0:
		r.state[project] = stepQueued
		r.ready = append(r.ready, project)
		r.notEmpty.Signal()
	case stepRunning:
		r.state[project] = wokenAgain
	}
}

// Run keeps an engine running until the context ends: it renews the leases and steps the
// woken projects. When it returns, no step is running and the leases are handed over.
func (r *Runner) Run(ctx context.Context, e *Engine) {
	r.step = e.Step
	var all sync.WaitGroup
	for range r.workers {
		all.Go(func() { r.work(ctx) })
	}
	r.keepLeases(ctx, e)
	r.mu.Lock()
	r.ended = true
	r.notEmpty.Broadcast()
	r.mu.Unlock()
	all.Wait()
	bye, cancel := context.WithTimeout(context.WithoutCancel(ctx), 3*time.Second)
	defer cancel()
	if err := e.Release(bye); err != nil {
		slog.Warn("cannot hand over the leases; they will expire", "err", err)
	}
}

func (r *Runner) keepLeases(ctx context.Context, e *Engine) {
	every := time.NewTicker(e.TTL / 3)
	defer every.Stop()
	for {
		if err := e.Renew(ctx); err != nil && ctx.Err() == nil {
			slog.Warn("cannot renew the leases; retrying", "err", err)
		}
		select {
		case <-ctx.Done():
			return
		case <-every.C:
		}
	}
}

func (r *Runner) work(ctx context.Context) {
	for {
		project, ok := r.next()
		if !ok {
			return
		}
		r.step(ctx, project)
		r.mu.Lock()
		if r.state[project] == wokenAgain {
			r.state[project] = stepQueued
			r.ready = append(r.ready, project)
			r.notEmpty.Signal()
		} else {
			delete(r.state, project)
		}
		r.mu.Unlock()
	}
}

func (r *Runner) next() (string, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for len(r.ready) == 0 && !r.ended {
		r.notEmpty.Wait()
	}
	if r.ended {
		return "", false
	}
	project := r.ready[0]
	r.ready = r.ready[1:]
	r.state[project] = stepRunning
	return project, true
}
