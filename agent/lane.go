package agent

import (
	"context"
	"fmt"
	"slices"
	"time"

	"mariposa"
	"mariposa/driver"
)

// lane makes the blocking calls of one driver asynchronous for the node's loop.
// Operations run off the loop: a limited number at once, and one at a time for each
// instance. What an instance needs is decided when its turn comes, not when it is
// queued.
type lane struct {
	driver driver.Driver // nil if this node has no driver for this compute type
	limit  int           // concurrent operations; no limit if zero
	busy   int
	queue  []*instance
}

func (n *Node) addDriver(d driver.Driver) {
	kind, can := d.Compute(), d.Capabilities()
	l := &lane{driver: d, limit: n.Slots}
	if can.Unbounded {
		l.limit = 0
	}
	n.lanes[kind] = l
	n.Hello.Capabilities[kind] = can
	if c, ok := d.(driver.Conditional); ok {
		n.Hello.Offers[kind] = mariposa.Offer{Unavailable: c.Unavailable(), Details: c.Details()}
	}
	if n.Hello.Offers[kind].Unavailable == "" {
		n.Hello.Drivers = append(n.Hello.Drivers, kind)
	}
	d.Watch(func(e driver.Event) { n.post(func() { n.handleDriverEvent(kind, e) }) })
}

// lane returns the lane of a compute type; this node may have no driver for it.
func (n *Node) lane(kind mariposa.ComputeType) *lane {
	l := n.lanes[kind]
	if l == nil {
		l = &lane{}
		n.lanes[kind] = l
	}
	return l
}

// isWaiting reports whether an instance is queued.
func (l *lane) isWaiting(i *instance) bool { return slices.Contains(l.queue, i) }

// dequeue removes an instance from the queue and reports whether it was there.
func (l *lane) dequeue(i *instance) bool {
	at := slices.Index(l.queue, i)
	if at >= 0 {
		l.queue = slices.Delete(l.queue, at, at+1)
	}
	return at >= 0
}

// startOrQueue starts an operation, or queues it when its driver is at its limit.
func (n *Node) startOrQueue(i *instance) {
	i.inOperation = true
	l := n.lane(i.compute)
	if l.limit > 0 && l.busy >= l.limit {
		l.queue = append(l.queue, i)
		return
	}
	l.busy++
	n.operate(i)
}

// finishOperation ends an operation, starts the next in the queue and checks the goal
// again.
func (n *Node) finishOperation(i *instance) {
	i.inOperation = false
	l := n.lane(i.compute)
	if len(l.queue) > 0 {
		next := l.queue[0]
		l.queue = l.queue[1:]
		n.operate(next)
	} else {
		l.busy--
	}
	if i.toQuarantine {
		n.quarantine(i)
		return
	}
	n.publishValues(i)
	n.pursue(i)
}

// runAsync makes a blocking call off the loop and handles its result on the loop. A call
// that never blocks is made at once: that saves a goroutine, a timer, and a report that
// is outdated when it is sent. A goroutine ends with its call, which ends with its
// context or with the driver's Close; the context outlives frames and steps.
func (n *Node) runAsync(l *lane, id string, w *mariposa.Workload, call func(ctx context.Context) (then func())) {
	n.runAsyncWithin(context.WithoutCancel(n.stepCtx), l, id, w, call)
}

// runAsyncWithin is runAsync for a call that also ends with a context of the caller.
func (n *Node) runAsyncWithin(base context.Context, l *lane, id string, w *mariposa.Workload, call func(ctx context.Context) (then func())) {
	work := func() {
		ctx, cancel := context.WithTimeout(base, n.Timeout)
		defer cancel()
		n.post(call(ctx))
	}
	p, ok := l.driver.(driver.NonBlocker)
	switch {
	case n.Spawn != nil:
		n.Spawn(work)
	case ok && p.IsNonBlocking(id, w):
		n.post(call(base))
	default:
		go work()
	}
}

// fetchTimeout is how long an image fetch may take.
const fetchTimeout = time.Hour

// startWithImage returns a start that first pulls the instance's image, if its compute
// type has images. Both end with base, which is canceled if the start becomes obsolete.
func (n *Node) startWithImage(base context.Context, i *instance, d driver.Driver) operation {
	im, ok := d.(driver.Imager)
	if !ok || i.workload.Image == "" {
		return d.Start
	}
	return func(_ context.Context, in driver.Instance) (driver.Observed, error) {
		fetching, cancel := context.WithTimeout(base, fetchTimeout)
		defer cancel()
		image, tenth := in.Workload.Image, int64(-1)
		err := im.EnsureImage(fetching, image, func(p driver.Progress) {
			if now := 10 * p.Done / max(p.Total, 1); now != tenth {
				tenth = now
				n.post(func() { n.noteFetchProgress(i, image, 10*now) })
			}
		})
		if err != nil {
			return driver.Observed{ID: in.ID}, fmt.Errorf("cannot pull image %s: %w", image, err)
		}
		ctx, stop := context.WithTimeout(base, n.Timeout) // the timeout begins only now
		defer stop()
		return d.Start(ctx, in)
	}
}

// noteFetchProgress records the progress of an image fetch during a start.
func (n *Node) noteFetchProgress(i *instance, image string, percent int64) {
	if i.starting {
		n.setState(i, mariposa.StateProvisioning, fmt.Sprintf("pulling image %s: %d %%", image, percent))
	}
}
