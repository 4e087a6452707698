package docker

import (
	"context"
	"time"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/api/types/events"
)

// The engine learns that a container has ended and that it ran out of memory on two separate
// paths, in any order. If the end arrives first, the container is not marked as OOM-killed; only
// an event that follows says so.

const (
	// oomWait is how long to wait for that event before an end is reported.
	oomWait = 300 * time.Millisecond
	// oomTime is how recent that event must be when the container ends. An earlier one was about
	// another process in it.
	oomTime = 5 * time.Second
)

// handle handles an event about an instance.
func (d *Driver) handle(id string, m events.Message) {
	switch m.Action {
	case events.ActionOOM:
		d.noteOOM(m.Actor.ID, time.Unix(0, m.TimeNano))
	case events.ActionStart, events.ActionDestroy, events.ActionRemove:
		d.noteOOM(m.Actor.ID, time.Time{})
	case events.ActionDie:
		if d.mayBeOOM(id) {
			d.gate.Go(func() {
				select {
				case <-d.ctx.Done():
				case <-time.After(oomWait): // the event itself ends the wait: it is looked at then
					d.look(id)
				}
			})
			return
		}
	}
	d.look(id)
}

// noteOOM records when a container ran out of memory; the zero time forgets it.
func (d *Driver) noteOOM(physical string, at time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if at.IsZero() {
		delete(d.ooms, physical)
		return
	}
	d.ooms[physical] = at
}

// wasOOMKilled reports whether a container ended because it ran out of memory.
func (d *Driver) wasOOMKilled(c *container.InspectResponse) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	at, noted := d.ooms[c.ID]
	return c.State.OOMKilled || noted && c.State.ExitCode == killedCode && parseTime(c.State.FinishedAt).Sub(at) < oomTime
}

// killedCode is the exit code of a process that was killed.
const killedCode = 137

// mayBeOOM reports whether an instance was killed and the reason is not known yet.
func (d *Driver) mayBeOOM(id string) bool {
	ctx, cancel := context.WithTimeout(d.ctx, probeTimeout)
	defer cancel()
	c, err := d.container(ctx, id)
	return err == nil && !c.State.Running && c.State.ExitCode == killedCode && c.HostConfig.Memory > 0 && !d.wasOOMKilled(c)
}
