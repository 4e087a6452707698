package dummy

import (
	"container/heap"
	"context"
	"time"

	"mariposa/clock"
)

// waits is what a driver has to do later: one heap, and one timer for the
// earliest. It is guarded by the world's mutex.
type waits struct {
	clock  clock.Clock
	fire   func()
	hooks  bool // contexts are hooked; see wait
	heap   waitHeap
	seq    uint64
	armed  time.Time // when the timer is set for; zero: not set
	cancel func()
}

// waiting is one operation that waits.
type waiting struct {
	due    time.Time
	seq    uint64 // order among those due at the same time
	at     int    // its place in the heap; -1: taken out
	ctx    context.Context
	settle func(error) // called once, by whoever took it out
	unhook func() bool
}

// end answers an operation that was taken out of the heap.
func (x *waiting) end(err error) {
	if x.unhook != nil {
		x.unhook()
	}
	x.settle(err)
}

// wait puts an operation off, under the mutex. To notice at once that a
// context has ended takes a goroutine of the context's, so that is done on the
// machine's clock only; in virtual time it shows when the wait is over.
func (d *Driver) wait(ctx context.Context, wait time.Duration, settle func(error)) {
	w := &d.waits
	w.seq++
	x := &waiting{due: w.clock.Now().Add(wait), seq: w.seq, ctx: ctx, settle: settle}
	heap.Push(&w.heap, x)
	w.arm()
	if w.hooks && ctx.Done() != nil {
		x.unhook = context.AfterFunc(ctx, func() { d.giveUp(x) })
	}
}

// arm sets the timer for the earliest.
func (w *waits) arm() {
	if len(w.heap) == 0 {
		w.disarm()
		return
	}
	due := w.heap[0].due
	if !w.armed.IsZero() && !due.Before(w.armed) {
		return // it fires in time, and is set again then
	}
	w.disarm()
	w.armed = due
	w.cancel = w.clock.After(max(0, due.Sub(w.clock.Now())), w.fire)
}

func (w *waits) disarm() {
	if w.cancel != nil {
		w.cancel()
	}
	w.armed, w.cancel = time.Time{}, nil
}

// take removes all that is due.
func (w *waits) take() []*waiting {
	var list []*waiting
	now := w.clock.Now()
	for len(w.heap) > 0 && !w.heap[0].due.After(now) {
		list = append(list, heap.Pop(&w.heap).(*waiting))
	}
	return list
}

// clear removes everything, in order.
func (w *waits) clear() []*waiting {
	w.disarm()
	var list []*waiting
	for len(w.heap) > 0 {
		list = append(list, heap.Pop(&w.heap).(*waiting))
	}
	return list
}

// fire is the timer's call.
func (d *Driver) fire() {
	d.world.mu.Lock()
	d.waits.armed, d.waits.cancel = time.Time{}, nil
	due := d.waits.take()
	d.waits.arm()
	d.world.mu.Unlock()
	for _, x := range due {
		x.end(x.ctx.Err())
	}
}

// giveUp ends a wait whose context has ended.
func (d *Driver) giveUp(x *waiting) {
	d.world.mu.Lock()
	waits := x.at >= 0
	if waits {
		heap.Remove(&d.waits.heap, x.at)
	}
	d.world.mu.Unlock()
	if waits {
		x.settle(x.ctx.Err())
	}
}

// waitHeap orders by time, then by who came first.
type waitHeap []*waiting

func (h waitHeap) Len() int { return len(h) }

func (h waitHeap) Less(a, b int) bool {
	if !h[a].due.Equal(h[b].due) {
		return h[a].due.Before(h[b].due)
	}
	return h[a].seq < h[b].seq
}

func (h waitHeap) Swap(a, b int) {
	h[a], h[b] = h[b], h[a]
	h[a].at, h[b].at = a, b
}

func (h *waitHeap) Push(x any) {
	w := x.(*waiting)
	w.at = len(*h)
	*h = append(*h, w)
}

func (h *waitHeap) Pop() any {
	old := *h
	w := old[len(old)-1]
	old[len(old)-1] = nil
	*h = old[:len(old)-1]
	w.at = -1
	return w
}
