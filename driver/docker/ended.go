package docker

import (
	"maps"
	"strconv"
	"strings"
	"time"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/api/types/events"

	"mariposa"
	"mariposa/driver"
)

// The engine reports the end of a container before it has cleaned up, and answers no question about
// the container until then. The event says how the container ended, so the end is reported from it
// and the replacement can be assigned meanwhile.

// seeEnd reports the end of an instance from the event of the engine. It returns false if the
// event does not tell enough, and the engine must be asked.
func (d *Driver) seeEnd(id string, m events.Message) bool {
	code, err := strconv.Atoi(m.Actor.Attributes["exitCode"])
	at := time.Unix(0, m.TimeNano).UTC()
	if err != nil || m.TimeNano == 0 || d.adoptions.of(id) != nil || code == killedCode && !d.isSpared(at) {
		return false
	}
	d.mu.Lock()
	e := d.entries[id]
	d.mu.Unlock()
	if e == nil {
		return false
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.busy || !e.last.Running || e.last.PhysicalID != m.Actor.ID || !at.After(e.last.Started) { // it may be the end of an earlier run
		return false
	}
	o := e.last
	o.Running, o.Finished, o.ExitCode, o.Addresses = false, at, &code, nil
	o.Reason = howEnded(&container.State{ExitCode: code}, notOOM)
	o.Details = maps.Clone(o.Details)
	maps.DeleteFunc(o.Details, func(name, _ string) bool {
		return name == "pid" || name == "published" || strings.HasPrefix(name, mariposa.NetworkDetail(""))
	})
	e.note(o)
	d.noteCleanup(m.Actor.ID)
	d.tell(o)
	return true
}

// isSpared reports whether the kernel has OOM-killed nothing shortly before a time.
func (d *Driver) isSpared(at time.Time) bool {
	killed, known := d.kernelHasKilled(at)
	return known && !killed
}

// isSameEnd reports whether both are the end of one run. The engine may date it a little earlier
// than its event.
func isSameEnd(a, b driver.Observed) bool {
	return a.ID != "" && a.PhysicalID == b.PhysicalID && !a.Running && !b.Running && !a.Finished.IsZero() && !b.Finished.IsZero() && a.Started.Equal(b.Started)
}
