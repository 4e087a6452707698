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
// Operations run beside the loop, so many at once at most and one at a time for each
// instance. What an instance needs is decided when its turn comes, not when it is put
// in line.
type lane struct {
	driver driver.Driver // nil: this node has none of the kind
	limit  int           // operations at once; 0: any number
	busy   int
	line   []*instance
}

func (n *Node) addDriver(d driver.Driver) {
	kind, can := d.Compute(), d.Capabilities()
	l := &lane{driver: d, limit: n.Slots}
	if can.Unbounded {
		l.limit = 0
	}
	n.lanes[kind] = l
	n.Hello.Drivers = append(n.Hello.Drivers, kind)
	n.Hello.Capabilities[kind] = can
	d.Watch(func(e driver.Event) { n.post(func() { n.hearEvent(kind, e) }) })
}

// lane finds the lane of a kind, of which this node may have no driver.
func (n *Node) lane(kind mariposa.ComputeType) *lane {
	l := n.lanes[kind]
	if l == nil {
		l = &lane{}
		n.lanes[kind] = l
	}
	return l
}

// isWaiting reports whether an instance waits in line for its turn.
func (l *lane) isWaiting(i *instance) bool { return slices.Contains(l.line, i) }

// leave takes an instance out of the line; false: it does not wait there.
func (l *lane) leave(i *instance) bool {
	at := slices.Index(l.line, i)
	if at >= 0 {
		l.line = slices.Delete(l.line, at, at+1)
	}
	return at >= 0
}

// begin starts an operation, or puts it in line when its driver has enough to do.
func (n *Node) begin(i *instance) {
	i.op = true
	l := n.lane(i.compute)
	if l.limit > 0 && l.busy >= l.limit {
		l.line = append(l.line, i)
		return
	}
	l.busy++
	n.operate(i)
}

// done ends an operation, lets the next in line begin and looks at the goal again.
func (n *Node) done(i *instance) {
	i.op = false
	l := n.lane(i.compute)
	if len(l.line) > 0 {
		next := l.line[0]
		l.line = l.line[1:]
		n.operate(next)
	} else {
		l.busy--
	}
	if i.aside {
		n.setAside(i)
		return
	}
	n.tell(i)
	n.pursue(i)
}

// beside makes a blocking call off the loop, and does what comes of it on the loop.
// A call that never waits is made at once: that saves a goroutine, a timer, and a
// report of what is over by then. A goroutine ends with its call: the call's context, which
// outlives frames and steps, or the driver's Close sees to that.
func (n *Node) beside(l *lane, id string, w *mariposa.Workload, call func(ctx context.Context) (then func())) {
	base := context.WithoutCancel(n.stepCtx)
	work := func() {
		ctx, cancel := context.WithTimeout(base, n.Timeout)
		defer cancel()
		n.post(call(ctx))
	}
	p, ok := l.driver.(driver.Prompter)
	switch {
	case n.Spawn != nil:
		n.Spawn(work)
	case ok && p.Prompt(id, w):
		n.post(call(base))
	default:
		go work()
	}
}

// fetchWithin is how long an image may take to arrive.
const fetchWithin = time.Hour

// startFrom is a start that fetches the instance's image before, where its kind has
// images. What it is for may become obsolete meanwhile: then the fetching ends.
func (n *Node) startFrom(i *instance, d driver.Driver) operation {
	im, ok := d.(driver.Imager)
	if !ok || i.workload.Image == "" {
		return d.Start
	}
	fetching, cancel := context.WithTimeout(context.WithoutCancel(n.stepCtx), fetchWithin)
	i.fetching = cancel
	return func(ctx context.Context, in driver.Instance) (driver.Observed, error) {
		defer cancel()
		image, tenth := in.Workload.Image, int64(-1)
		err := im.EnsureImage(fetching, image, func(p driver.Progress) {
			if now := 10 * p.Done / max(p.Total, 1); now != tenth {
				tenth = now
				n.post(func() { n.fetched(i, image, 10*now) })
			}
		})
		if err != nil {
			return driver.Observed{ID: in.ID}, fmt.Errorf("cannot get its image %s: %w", image, err)
		}
		ctx, stop := context.WithTimeout(context.WithoutCancel(ctx), n.Timeout) // which begins only now
		defer stop()
		return d.Start(ctx, in)
	}
}

// fetched notes how far the image of an instance is that is being started.
func (n *Node) fetched(i *instance, image string, percent int64) {
	if i.starting {
		n.setState(i, mariposa.StateProvisioning, fmt.Sprintf("its image %s is being fetched: %d %%", image, percent))
	}
}
