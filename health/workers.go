package health

import "time"

// Workers run probes in goroutines that are used again soon. A new goroutine has to grow its
// stack for each connection, which is a good part of the cost of a check.
type Workers struct{ jobs chan func() }

// NewWorkers returns workers, of which none exists yet.
func NewWorkers() *Workers { return &Workers{jobs: make(chan func())} }

// idle is how long a worker waits for more to do: long enough if there are many checks, and
// short enough to leave nothing behind.
const idle = 50 * time.Millisecond

// Run runs a function in an idle worker, or in a new one.
func (w *Workers) Run(f func()) {
	select {
	case w.jobs <- f:
	default:
		go w.work(f)
	}
}

func (w *Workers) work(f func()) {
	timer := time.NewTimer(idle)
	defer timer.Stop()
	for {
		f()
		timer.Reset(idle)
		select {
		case f = <-w.jobs:
		case <-timer.C:
			return
		}
	}
}
