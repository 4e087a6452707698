package docker

import (
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/api/types/events"
	"golang.org/x/sys/unix"
)

// The engine learns that a container has ended and that it ran out of memory on two separate
// paths, in any order. If the end arrives first, the container is not marked as OOM-killed; only
// an event that follows says so. An engine on a busy machine may lose that event.
//
// The kernel of the machine counts the processes that it has OOM-killed. If it has
// killed none, an end is reported at once. Otherwise the driver waits for the event, and says what
// is likely if there is none.

const (
	// oomWait is how long to wait for that event before an end is reported.
	oomWait = 3 * time.Second
	// oomTime is how recent that event must be when the container ends. An earlier one was about
	// another process in it.
	oomTime = 5 * time.Second
)

// memoryEnds is what is known of containers that may have run out of memory.
type memoryEnds struct {
	at      map[string]time.Time // when the engine said so, by container id
	asked   map[string]chan struct{}
	likely  map[string]bool // whether the kernel has killed something, if the engine says nothing
	samples []killSample    // the oldest first
}

// killSample is how many processes the kernel had killed at a time.
type killSample struct {
	at    time.Time
	kills int64
}

// handle handles an event about an instance.
func (d *Driver) handle(id string, m events.Message) {
	switch m.Action {
	case events.ActionOOM:
		d.noteOOM(m.Actor.ID, time.Unix(0, m.TimeNano))
	case events.ActionStart, events.ActionDestroy, events.ActionRemove:
		d.noteOOM(m.Actor.ID, time.Time{})
		if m.Action == events.ActionStart && d.missStart(id, m.Actor.ID) {
			return
		}
	case events.ActionDie:
		if d.seeEnd(id, m) {
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
		delete(d.ooms.at, physical)
		delete(d.ooms.likely, physical)
		return
	}
	d.ooms.at[physical] = at
	if asked := d.ooms.asked[physical]; asked != nil {
		close(asked)
		delete(d.ooms.asked, physical)
	}
}

// oomVerdict says whether a container ended because it ran out of memory.
type oomVerdict int

const (
	notOOM oomVerdict = iota
	likelyOOM
	certainOOM
)

func (d *Driver) judgeOOM(c *container.InspectResponse) oomVerdict {
	d.mu.Lock()
	defer d.mu.Unlock()
	at, noted := d.ooms.at[c.ID]
	switch {
	case c.State.OOMKilled, noted && c.State.ExitCode == killedCode && parseTime(c.State.FinishedAt).Sub(at) < oomTime:
		return certainOOM
	case d.ooms.likely[c.ID] && c.State.ExitCode == killedCode:
		return likelyOOM
	}
	return notOOM
}

// killedCode is the exit code of a process that was killed.
const killedCode = 137

// awaitOOM reports whether the end of a container cannot be reported yet, because it may have run
// out of memory. The instance is looked at again when that is known.
func (d *Driver) awaitOOM(id string, c *container.InspectResponse) bool {
	if !d.mayBeOOM(c) {
		return false
	}
	killed, known := d.kernelHasKilled(parseTime(c.State.FinishedAt))
	if known && !killed {
		return false
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.ooms.asked[c.ID] != nil {
		return true // somebody waits already
	}
	asked := make(chan struct{})
	d.ooms.asked[c.ID] = asked
	d.gate.Go(func() {
		select {
		case <-d.ctx.Done():
			return
		case <-asked:
		case <-time.After(oomWait):
			d.giveUpOOM(c.ID, killed)
		}
		d.look(id)
	})
	return true
}

// mayBeOOM reports whether a container may have ended because it ran out of memory, and that has not
// been judged yet.
func (d *Driver) mayBeOOM(c *container.InspectResponse) bool {
	if c.State.Running || c.State.ExitCode != killedCode || c.HostConfig == nil || c.HostConfig.Memory == 0 || d.judgeOOM(c) != notOOM {
		return false
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	_, judged := d.ooms.likely[c.ID]
	return !judged
}

// suspectOOM notes that a container has probably run out of memory, if the kernel has killed
// something when it ended.
func (d *Driver) suspectOOM(c *container.InspectResponse) {
	if !d.mayBeOOM(c) {
		return
	}
	if killed, _ := d.kernelHasKilled(parseTime(c.State.FinishedAt)); killed {
		d.giveUpOOM(c.ID, killed)
	}
}

// giveUpOOM notes that the engine says nothing about the end of a container.
func (d *Driver) giveUpOOM(physical string, killed bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.ooms.asked, physical)
	d.ooms.likely[physical] = killed
}

// sampleKills notes how many processes the kernel has killed by now. Samples older than a minute
// are dropped, but one.
func (d *Driver) sampleKills() {
	kills, ok := d.kernelKills()
	d.mu.Lock()
	defer d.mu.Unlock()
	if !ok {
		d.ooms.samples = nil
		return
	}
	all := append(d.ooms.samples, killSample{time.Now(), kills})
	for len(all) > 1 && time.Since(all[1].at) > time.Minute {
		all = all[1:]
	}
	d.ooms.samples = all
}

// kernelHasKilled reports whether the kernel has OOM-killed a process shortly before
// a time, or since; known is false if that cannot be told.
func (d *Driver) kernelHasKilled(at time.Time) (killed, known bool) {
	now, ok := d.kernelKills()
	d.mu.Lock()
	defer d.mu.Unlock()
	for n := len(d.ooms.samples) - 1; ok && n >= 0; n-- {
		if s := d.ooms.samples[n]; at.Sub(s.at) > time.Second { // a process takes a moment to end
			return now > s.kills, true
		}
	}
	return false, false
}

// kernelKills returns how many processes the kernel has OOM-killed, if the engine
// runs on it.
func (d *Driver) kernelKills() (int64, bool) {
	d.mu.Lock()
	kernel := d.engine.kernel
	d.mu.Unlock()
	var is unix.Utsname
	if unix.Uname(&is) != nil || kernel == "" || unix.ByteSliceToString(is.Release[:]) != kernel || !strings.HasPrefix(d.api().DaemonHost(), "unix://") {
		return 0, false
	}
	b, err := os.ReadFile("/proc/vmstat")
	if err != nil {
		return 0, false
	}
	for line := range strings.Lines(string(b)) {
		if text, found := strings.CutPrefix(line, "oom_kill "); found {
			n, err := strconv.ParseInt(strings.TrimSpace(text), 10, 64)
			return n, err == nil
		}
	}
	return 0, false
}
