package docker

import (
	"context"
	"time"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/api/types/events"
)

// The engine learns of the end of a container and of its lack of memory by two paths, in any
// order. If it hears of the end first, only an event says later why the container was killed.

const (
	// shortageWait is how long the report of a container that may have run out of memory waits
	// for that event.
	shortageWait = 300 * time.Millisecond
	// shortageTime is how long before its end a container can have run out of memory. What was
	// killed before that was another of its processes.
	shortageTime = 5 * time.Second
)

// handle handles an event about an instance.
func (d *Driver) handle(id string, m events.Message) {
	switch m.Action {
	case events.ActionOOM:
		d.noteShortage(m.Actor.ID, time.Unix(0, m.TimeNano))
	case events.ActionStart, events.ActionDestroy:
		d.noteShortage(m.Actor.ID, time.Time{})
	case events.ActionDie:
		if d.mayLackMemory(id) {
			d.background(func() {
				select {
				case <-d.ctx.Done():
				case <-time.After(shortageWait): // the event itself ends the wait: it is looked at then
					d.look(id)
				}
			})
			return
		}
	}
	d.look(id)
}

// noteShortage notes when a container ran out of memory; zero: it has not, or is gone.
func (d *Driver) noteShortage(physical string, at time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if at.IsZero() {
		delete(d.shortages, physical)
		return
	}
	d.shortages[physical] = at
}

// ranOut reports whether a container that has ended had run out of memory just before.
func (d *Driver) ranOut(c *container.InspectResponse) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	at, noted := d.shortages[c.ID]
	return c.State.OOMKilled || noted && c.State.ExitCode == killedCode && parseTime(c.State.FinishedAt).Sub(at) < shortageTime
}

// killedCode is the exit code of a process that was killed.
const killedCode = 137

// mayLackMemory reports whether an instance was killed, and nobody knows yet why.
func (d *Driver) mayLackMemory(id string) bool {
	ctx, cancel := context.WithTimeout(d.ctx, probeTimeout)
	defer cancel()
	c, err := d.container(ctx, id)
	return err == nil && !c.State.Running && c.State.ExitCode == killedCode && c.HostConfig.Memory > 0 && !d.ranOut(c)
}
