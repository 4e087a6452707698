package agent

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"mariposa"
	"mariposa/driver"
)

// lane makes the blocking calls of one driver asynchronous for the node's loop.
// Operations run off the loop: a limited number at once, and one at a time for each
// instance. What an instance needs is decided when its turn comes, not when it is
// queued.
//
// Starts and ends have their own slots: a start may take long, and no stop or removal
// waits for the starts of others.
type lane struct {
	driver driver.Driver // nil if this node has no driver for this compute type
	limit  int           // concurrent starts, and concurrent ends; no limit if zero
	starts slots         // starts and updates
	ends   slots         // stops, removals, and what needs no call
	// isUnlisted: its engine was away when the agent started, so it is not known which
	// instances it has. Nothing is done with any until it is.
	isUnlisted bool
}

// unavailable says why no instance can be started; empty if instances can be started.
func (l *lane) unavailable() string {
	if c, ok := l.driver.(driver.Conditional); ok {
		return c.Unavailable()
	}
	return ""
}

// waitReason returns the reason of an instance whose operation begins: that it waits for its engine if
// that is away, or the one that it has.
func (l *lane) waitReason(reason string) string {
	if why := l.unavailable(); why != "" {
		return waitsForEngine + why
	}
	return reason
}

// slots are the operations of one sort that run at once, and those that wait for them.
type slots struct {
	busy  int
	queue []*instance
}

func (n *Node) addDriver(d driver.Driver) {
	kind, can := d.Compute(), d.Capabilities()
	l := &lane{driver: d, limit: n.Slots}
	if can.Unbounded {
		l.limit = 0
	}
	n.lanes[kind] = l
	n.Hello.Capabilities[kind] = can
	n.updateOffer(kind, l)
	d.Watch(func(e driver.Event) { n.post(func() { n.handleDriverEvent(kind, e) }) })
}

// updateOffer updates what the node says of a compute type that depends on the machine, and
// reports whether that has changed.
func (n *Node) updateOffer(kind mariposa.ComputeType, l *lane) bool {
	var offer mariposa.Offer
	c, isConditional := l.driver.(driver.Conditional)
	if isConditional {
		offer = mariposa.Offer{Unavailable: c.Unavailable(), Details: c.Details()}
	}
	has := slices.Contains(n.Hello.Drivers, kind)
	if old, known := n.Hello.Offers[kind]; has == (offer.Unavailable == "") && known == isConditional && old.Unavailable == offer.Unavailable && maps.Equal(old.Details, offer.Details) {
		return false
	}
	if isConditional {
		n.Hello.Offers = maps.Clone(n.Hello.Offers) // the last hello may still be read
		n.Hello.Offers[kind] = offer
	}
	n.Hello.Drivers = slices.DeleteFunc(slices.Clone(n.Hello.Drivers), func(k mariposa.ComputeType) bool { return k == kind })
	if offer.Unavailable == "" {
		n.Hello.Drivers = append(n.Hello.Drivers, kind)
	}
	return true
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

// slotsFor returns the slots that the next action of an instance needs.
func (l *lane) slotsFor(i *instance) *slots {
	switch i.nextAction() {
	case doStart, doUpdate, doAdopt:
		return &l.starts
	}
	return &l.ends
}

// isWaiting reports whether an instance is queued.
func (i *instance) isWaiting() bool { return i.slots != nil && slices.Contains(i.slots.queue, i) }

// dequeue removes an instance from its queue and reports whether it was there.
func (i *instance) dequeue() bool {
	if i.slots == nil {
		return false
	}
	at := slices.Index(i.slots.queue, i)
	if at >= 0 {
		i.slots.queue = slices.Delete(i.slots.queue, at, at+1)
	}
	return at >= 0
}

// startOrQueue starts an operation, or queues it when its driver is at its limit.
func (n *Node) startOrQueue(i *instance) {
	i.inOperation = true
	l := n.lane(i.compute)
	i.slots = l.slotsFor(i)
	if l.limit > 0 && i.slots.busy >= l.limit {
		i.slots.queue = append(i.slots.queue, i)
		return
	}
	i.slots.busy++
	n.operate(i)
}

// requeue moves a queued instance to the slots that it needs now: its goal may have
// changed.
func (n *Node) requeue(i *instance) {
	if n.lane(i.compute).slotsFor(i) != i.slots && i.dequeue() {
		n.startOrQueue(i)
	}
}

// finishOperation ends an operation, starts the next in the queue and checks the goal
// again.
func (n *Node) finishOperation(i *instance) {
	i.inOperation = false
	n.passOn(n.lane(i.compute), i.slots)
	if i.toQuarantine {
		n.quarantine(i)
		return
	}
	n.publishValues(i)
	n.pursue(i)
}

// passOn gives a slot to the next operation that needs one of this sort.
func (n *Node) passOn(l *lane, s *slots) {
	for len(s.queue) > 0 {
		next := s.queue[0]
		s.queue = s.queue[1:]
		if l.slotsFor(next) == s {
			n.operate(next)
			return
		}
		n.startOrQueue(next)
	}
	s.busy--
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
	if !ok || i.workload.Image == "" || i.desired.Adopts != "" {
		return d.Start
	}
	return func(_ context.Context, in driver.Instance) (driver.Observed, error) {
		fetching, cancel := context.WithTimeout(base, fetchTimeout)
		defer cancel()
		image, tenth := in.Workload.Image, int64(-1)
		err := im.EnsureImage(fetching, image, in.Login, func(p driver.Progress) {
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
