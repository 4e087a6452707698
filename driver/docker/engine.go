package docker

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/containerd/errdefs"
	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/api/types/events"
	"github.com/moby/moby/client"

	"mariposa/driver"
)

const (
	// probeTimeout is how long an engine may take to answer before it counts as hanging.
	probeTimeout = 5 * time.Second
	// listTimeout is how long an engine that has just answered may take for a long list, or to
	// describe itself.
	listTimeout = 4 * probeTimeout
	// pulseInterval is how often it is asked whether it is there.
	pulseInterval = 5 * time.Second
	// listInterval is how often all containers are looked at, in case an event was lost.
	listInterval = 30 * time.Second
	// Pauses between attempts to reach an engine that is away.
	firstPause, lastPause = 100 * time.Millisecond, 5 * time.Second
)

// engineState is what is known of the engine.
type engineState struct {
	away    string // why it cannot be used; empty if it can
	details map[string]string
	kernel  string // that it runs on
	// unlimited is why it enforces no limits; empty if it does.
	unlimited string
	events    *client.EventsResult // of the current connection; nil if it is away
	stop      context.CancelFunc   // ends them
}

// Unavailable explains why no container can be started here.
func (d *Driver) Unavailable() string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.engine.away
}

// Details describe the engine.
func (d *Driver) Details() map[string]string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return maps.Clone(d.engine.details)
}

// connect reaches the engine, subscribes to its events and then looks at every container. It
// returns why that failed.
func (d *Driver) connect() error {
	details, kernel, err := d.reach()
	if err != nil {
		return err
	}
	d.forgetNetworks("")
	unlimited := unlimitedReason(d.api().DaemonHost())
	if unlimited != "" {
		details[limitsDetail] = "not enforced: " + unlimited
	}
	if why := d.whyNoNames(); why != "" {
		details[namesDetail] = "not resolved: " + why
	}
	ctx, cancel := context.WithTimeout(d.ctx, listTimeout)
	defer cancel()
	following, stop := context.WithCancel(d.ctx)
	all := d.api().Events(following, client.EventsListOptions{Filters: make(client.Filters).
		Add("type", string(events.ContainerEventType)). // also foreign ones: adopted containers have no label
		Add("event", string(events.ActionDie), string(events.ActionStart), string(events.ActionDestroy), string(events.ActionOOM)).
		Add("event", "died", string(events.ActionRemove))}) // what Podman calls them
	err = d.reconcileClaims(ctx)
	if err == nil {
		err = d.lookAtAll(ctx, false)
	}
	if err != nil {
		stop()
		return err
	}
	d.sweepFiles(ctx)
	d.mu.Lock()
	defer d.mu.Unlock()
	d.engine = engineState{events: &all, stop: stop, details: details, kernel: kernel, unlimited: unlimited}
	return nil
}

// probe connects for the first time. If the engine does not answer, follow tries again.
func (d *Driver) probe() {
	if err := d.connect(); err != nil {
		d.mu.Lock()
		defer d.mu.Unlock()
		d.engine = engineState{away: err.Error()}
	}
}

// follow reports what happens in the engine until the driver is closed.
func (d *Driver) follow() {
	for d.ctx.Err() == nil {
		d.mu.Lock()
		at := d.engine
		d.mu.Unlock()
		if at.events != nil {
			err := d.readEvents(at.events)
			at.stop()
			if d.ctx.Err() != nil {
				return
			}
			d.lose(err)
		}
		d.reconnect()
	}
}

// readEvents handles events until there are no more.
func (d *Driver) readEvents(from *client.EventsResult) error {
	lists := time.NewTicker(listInterval)
	defer lists.Stop()
	ctx, cancel := context.WithCancel(d.ctx)
	defer cancel()
	hangs := make(chan error, 1)
	d.gate.Go(func() { d.watchPulse(ctx, hangs) })
	for {
		select {
		case <-d.ctx.Done():
			return d.ctx.Err()
		case err := <-from.Err:
			return err
		case err := <-hangs:
			return err
		case <-lists.C:
			listing, stop := context.WithTimeout(ctx, listTimeout)
			err := d.lookAtAll(listing, true)
			stop()
			if err != nil {
				return err
			}
		case m := <-from.Messages:
			if id := d.instanceOf(m.Actor.ID, m.Actor.Attributes); id != "" {
				d.handle(id, m)
			}
		}
	}
}

// watchPulse asks the engine now and then whether it is there: one that hangs sends no events,
// but ends no connection either.
func (d *Driver) watchPulse(ctx context.Context, hangs chan<- error) {
	pulse := time.NewTicker(pulseInterval)
	defer pulse.Stop()
	d.sampleKills()
	for {
		select {
		case <-ctx.Done():
			return
		case <-pulse.C:
			d.sampleKills()
		}
		asking, stop := context.WithTimeout(ctx, probeTimeout)
		_, err := d.api().Ping(asking, client.PingOptions{})
		stop()
		if err != nil && ctx.Err() == nil {
			hangs <- err
			return
		}
	}
}

// lose records that the engine is away, and reports it.
func (d *Driver) lose(err error) {
	why := d.theEngine() + " does not answer"
	if err != nil {
		why = d.explain(err).Error()
	}
	d.mu.Lock()
	d.engine = engineState{away: why, details: d.engine.details, kernel: d.engine.kernel}
	report := d.report
	d.mu.Unlock()
	report(driver.Event{Kind: driver.EngineLost, Reason: why})
}

// reconnect waits until the engine answers, and reports that it is back.
func (d *Driver) reconnect() {
	for pause := firstPause; ; pause = min(2*pause, lastPause) {
		select {
		case <-d.ctx.Done():
			return
		case <-time.After(pause):
		}
		err := d.connect()
		d.mu.Lock()
		report := d.report
		if err != nil {
			d.engine.away = err.Error()
		}
		d.mu.Unlock()
		if err == nil {
			report(driver.Event{Kind: driver.EngineBack})
			return
		}
	}
}

// look looks at one instance and reports what has changed.
func (d *Driver) look(id string) {
	if d.isBusy(id) {
		return // it is looked at when the operation ends
	}
	ctx, cancel := context.WithTimeout(d.ctx, probeTimeout)
	defer cancel()
	c, err := d.container(ctx, id)
	switch {
	case err == nil && d.awaitOOM(id, c):
	case err == nil:
		d.see(id, d.observed(id, c), true)
	case errdefs.IsNotFound(err):
		d.seeGone(id)
		d.forgetGone(ctx, id)
	} // otherwise the engine is away, which readEvents notices
}

// isBusy reports whether an operation changes an instance, and notes that something happened
// meanwhile.
func (d *Driver) isBusy(id string) bool {
	d.mu.Lock()
	e := d.entries[id]
	d.mu.Unlock()
	if e == nil {
		return false
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.missed = e.missed || e.busy
	return e.busy
}

// missStart notes that a container was started during an operation on its instance. It returns false
// if there is none. Most often the operation has started it, and knows what became of it.
func (d *Driver) missStart(id, physical string) bool {
	e := d.entry(id)
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.busy {
		e.started = physical
	}
	return e.busy
}

// see compares an instance with how it was last seen. It reports changes that no operation
// made, if asked to.
func (d *Driver) see(id string, o driver.Observed, tell bool) {
	e := d.entry(id)
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.busy {
		e.missed = true
		return
	}
	was := e.last
	same := was.ID != "" && was.Running == o.Running && was.PhysicalID == o.PhysicalID && was.Started.Equal(o.Started) && was.Finished.Equal(o.Finished) &&
		slices.Equal(was.Addresses, o.Addresses)
	if same || isSameEnd(was, o) {
		return
	}
	e.note(o)
	if tell && was.ID != "" {
		d.tell(o)
	}
}

// seeGone records that an instance has no container any more. If it ran when it was last
// seen, that was its end.
func (d *Driver) seeGone(id string) {
	d.mu.Lock()
	e := d.entries[id]
	d.mu.Unlock()
	if e == nil {
		return
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.busy {
		e.missed = true
		return
	}
	o := e.last
	e.note(driver.Observed{})
	d.mu.Lock()
	delete(d.entries, id)
	d.mu.Unlock()
	if o.Running {
		o.Running, o.Finished, o.Reason = false, now(), "its container was removed by someone else"
		d.tell(o)
	}
}

func (d *Driver) tell(o driver.Observed) {
	d.mu.Lock()
	report := d.report
	d.mu.Unlock()
	report(driver.Event{Kind: driver.InstanceChanged, Instance: o})
}

// lookAtAll looks at every container of this node. Those that look as before in a summary
// are not inspected if changes are reported as they happen.
func (d *Driver) lookAtAll(ctx context.Context, tell bool) error {
	list, err := d.listOwn(ctx)
	if err != nil {
		return d.explain(err)
	}
	there := map[string]bool{}
	var stale []string
	for _, c := range list {
		id := d.instanceOf(c.ID, c.Labels)
		there[id] = true
		d.mu.Lock()
		e := d.entries[id]
		d.mu.Unlock()
		if !tell || e == nil || !e.looksLike(c) {
			stale = append(stale, id)
		}
	}
	err = d.inspectAll(ctx, stale, func(id string, c *container.InspectResponse) {
		if tell && d.awaitOOM(id, c) {
			return
		}
		d.suspectOOM(c) // an event that was missed does not come again
		d.see(id, d.observed(id, c), tell)
	})
	if err != nil {
		return err
	}
	d.mu.Lock()
	known := slices.Collect(maps.Keys(d.entries))
	d.mu.Unlock()
	for _, id := range append(known, d.adoptions.ids()...) {
		if !there[id] {
			d.look(id) // it may have been created meanwhile
		}
	}
	if err := d.sweepNetworks(ctx); err != nil {
		return d.explain(err)
	}
	d.killLeftCommands()
	return nil
}

// looksLike reports whether a summary shows the instance as it was last seen.
func (e *entry) looksLike(c container.Summary) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.busy || e.last.PhysicalID == c.ID && e.last.Running == isUp(c.State)
}

func isUp(s container.ContainerState) bool {
	return s == container.StateRunning || s == container.StatePaused
}

// inspectAll inspects several instances at once. Those that are gone are left out.
func (d *Driver) inspectAll(ctx context.Context, ids []string, found func(id string, c *container.InspectResponse)) error {
	var all sync.WaitGroup
	queue, failed := make(chan string), make(chan error, 1)
	for range min(8, len(ids)) {
		all.Go(func() {
			for id := range queue {
				c, err := d.container(ctx, id)
				switch {
				case err == nil:
					found(id, c)
				case !errdefs.IsNotFound(err):
					select {
					case failed <- err:
					default:
					}
				}
			}
		})
	}
	for _, id := range ids {
		queue <- id
	}
	close(queue)
	all.Wait()
	select {
	case err := <-failed:
		return d.explain(err)
	default:
		return nil
	}
}

// List returns every instance of this node.
func (d *Driver) List(ctx context.Context) ([]driver.Observed, error) {
	ctx, leave, err := d.gate.Enter(ctx)
	if err != nil {
		return nil, err
	}
	defer leave()
	if why := d.Unavailable(); why != "" {
		return nil, &explained{why, driver.ErrEngineAway}
	}
	list, err := d.listOwn(ctx)
	if err != nil {
		return nil, d.explain(err)
	}
	ids := make([]string, len(list))
	for n, c := range list {
		ids[n] = d.instanceOf(c.ID, c.Labels)
	}
	var mu sync.Mutex
	var out []driver.Observed
	err = d.inspectAll(ctx, ids, func(id string, c *container.InspectResponse) {
		o := d.observed(id, c)
		mu.Lock()
		defer mu.Unlock()
		out = append(out, o)
	})
	if err != nil {
		return nil, err
	}
	slices.SortFunc(out, func(a, b driver.Observed) int { return compareIDs(a.ID, b.ID) })
	return out, nil
}
