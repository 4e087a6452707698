package batch

import (
	"context"
	"sync"

	"mariposa/store"
)

// Queue is where callers wait until the writer takes their requests. It has no timer: an
// idle writer takes a unit at once, and units that arrive while it is busy form the next
// group.
type Queue struct {
	mu          sync.Mutex
	closed      bool
	lanes       [2][]*job // urgent ones, then the rest
	skippedBulk bool      // the last group skipped bulk work in favor of urgent work
	wake        chan struct{}
}

// job is one call: units, or an action on a group.
type job struct {
	units    []Unit
	action   func(*Group) error
	leases   []string // that the action reads
	results  []store.Result
	lane     int
	taken    int  // units that groups have taken so far
	inFlight bool // a group has some of them now
	dropped  bool // its caller has canceled the units not taken
	done     chan struct{}
}

// NewQueue returns an empty queue.
func NewQueue() *Queue {
	return &Queue{wake: make(chan struct{}, 1)}
}

// Commit queues units and waits for their results. Units not yet taken when the context
// ends are dropped; the others are waited for.
func (q *Queue) Commit(ctx context.Context, units []store.Unit) []store.Result {
	if len(units) == 0 {
		return nil
	}
	j := &job{units: Prepare(units), lane: 1, results: make([]store.Result, len(units)), done: make(chan struct{})}
	for i := range units {
		if units[i].Urgent {
			j.lane = 0 // for the whole call, as its units keep their order
		}
	}
	q.do(ctx, j)
	return j.results
}

// Do queues an action, waits for it, and returns its error, or the group's. What the
// action does to the group is written with the group, so an action that fails must leave
// the group as it was. A group that is retried calls the action again. The action must
// name the leases it will read.
func (q *Queue) Do(ctx context.Context, action func(*Group) error, leases ...string) error {
	j := &job{action: action, leases: leases, results: make([]store.Result, 1), done: make(chan struct{})}
	q.do(ctx, j)
	return j.results[0].Err
}

func (q *Queue) do(ctx context.Context, j *job) {
	if err := q.push(ctx, j); err != nil {
		j.fail(0, err)
		return
	}
	select {
	case <-j.done:
	case <-ctx.Done():
		if q.drop(j, ctx.Err()) {
			<-j.done
		}
	}
}

func (q *Queue) push(ctx context.Context, j *job) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed {
		return store.ErrClosed
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	q.lanes[j.lane] = append(q.lanes[j.lane], j)
	q.signal()
	return nil
}

// drop removes the units that were not taken and reports whether a group still has some
// of the job.
func (q *Queue) drop(j *job, err error) (inFlight bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if j.taken == len(j.results) {
		return true // done, or just about to be
	}
	j.dropped = true
	j.fail(j.taken, err)
	lane := q.lanes[j.lane]
	for i := range lane {
		if lane[i] == j {
			q.lanes[j.lane] = append(lane[:i:i], lane[i+1:]...)
			break
		}
	}
	return j.inFlight
}

func (j *job) fail(from int, err error) {
	for i := from; i < len(j.results); i++ {
		j.results[i] = store.Result{Err: err}
	}
}

func (q *Queue) signal() {
	select {
	case q.wake <- struct{}{}:
	default:
	}
}

// Len returns the number of calls with units that are not taken yet.
func (q *Queue) Len() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.lanes[0]) + len(q.lanes[1])
}

// Close rejects new work. What is in the queue is still taken.
func (q *Queue) Close() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.closed = true
	q.signal()
}

// Take waits for work and takes as much as fits into a group: at most so many units and
// writes, but at least one unit. It returns nil once the queue is closed and empty.
func (q *Queue) Take(units, writes int) *Batch {
	for {
		q.mu.Lock()
		b := q.take(units, writes)
		closed := q.closed
		q.mu.Unlock()
		if len(b.parts) > 0 {
			return b
		}
		if closed {
			return nil
		}
		<-q.wake
	}
}

// urgentFill is how many bulk writes may be added to urgent ones: few, so that urgent
// work waits for a small commit instead of a large one.
const urgentFill = 64

func (q *Queue) take(units, writes int) *Batch {
	b := &Batch{queue: q}
	rushed := q.skippedBulk
	q.skippedBulk = false
	for lane := range q.lanes {
		if lane > 0 && b.size > 0 && !rushed { // at least every other group takes bulk work in full
			writes, q.skippedBulk = min(writes, urgentFill), true
		}
		for len(q.lanes[lane]) > 0 {
			j := q.lanes[lane][0]
			p := part{job: j, from: j.taken}
			for j.taken < len(j.results) && units > 0 {
				n := j.weight(j.taken)
				if n > writes && b.size > 0 {
					units = 0 // full; smaller units must not overtake
					break
				}
				units, writes, b.size = units-1, writes-n, b.size+1
				j.taken++
			}
			if p.to = j.taken; p.to > p.from {
				j.inFlight = true
				b.parts = append(b.parts, p)
			}
			if j.taken < len(j.results) {
				return b
			}
			q.lanes[lane][0] = nil
			q.lanes[lane] = q.lanes[lane][1:]
		}
	}
	return b
}

func (j *job) weight(i int) int {
	if j.action != nil {
		return 1
	}
	return len(j.units[i].Writes) + len(j.units[i].Entries)
}

// Poll takes work like Take, but returns nil at once when there is none.
func (q *Queue) Poll(units, writes int) *Batch {
	q.mu.Lock()
	defer q.mu.Unlock()
	if b := q.take(units, writes); len(b.parts) > 0 {
		return b
	}
	return nil
}
