package process

import (
	"cmp"
	"path/filepath"
	"strconv"
	"strings"

	"mariposa/driver"
)

// entry is the driver's state of one instance. The driver's mutex guards the last fields,
// and the values they point to never change. The other fields belong to the operation
// that holds op.
type entry struct {
	id  string
	dir string
	op  chan struct{} // contains one token while an operation is in progress

	moved bool // its root was moved since it started; its supervisor holds the lock, so it is no copy

	private privateFiles

	spec  spec
	state state
	exit  exit
	live  bool // started, and its end is not handled yet
	stray bool // found by its label alone: no directory, perhaps no shim

	pidfd int           // of the shim, or of a stray's oldest process; -1 if none
	gone  chan struct{} // closed once that process has ended

	// Guarded by the mutex, and updated by refreshObserved.
	observed    driver.Observed // the zero value: no such instance yet
	uses        []string        // the directories of its volumes and networks
	execContext *execContext    // for commands that run in the instance; nil if it is not running
}

func newEntry(id, dir string) *entry {
	return &entry{id: id, dir: dir, op: make(chan struct{}, 1), pidfd: -1}
}

func (e *entry) release() { <-e.op }

// refreshObserved updates the fields that other goroutines read.
func (d *Driver) refreshObserved(e *entry) {
	o := e.observe()
	var in *execContext
	if e.live && !e.stray {
		in = &execContext{dir: e.dir, inside: e.dir, private: d.locate(e.spec.Root, e.spec.Private), ports: e.spec.Ports, volumes: e.spec.Volumes, group: d.groupOf(e).existing(), main: proc{pid: e.state.PID, start: e.state.Start}, gone: e.gone}
		if e.spec.Mode != modeNone {
			in.inside, in.private = filepath.Join(e.spec.Root, e.id), e.spec.Private
			in.confinement = d.confinement(in.inside, &e.spec)
		}
	}
	d.mu.Lock()
	e.observed, e.execContext, e.uses = o, in, e.spec.Volumes
	d.mu.Unlock()
}

func (e *entry) observe() driver.Observed {
	o := driver.Observed{
		ID:             e.id,
		Labels:         e.spec.Labels,
		Origin:         e.spec.Origin,
		Name:           e.spec.Name,
		Project:        e.spec.Project,
		Running:        e.live,
		Started:        e.state.Started,
		ManualRestarts: e.state.ManualRestarts,
		Addresses:      e.spec.addresses(),
		Details:        e.details(),
	}
	if e.state.PID != 0 {
		o.PhysicalID = strconv.Itoa(e.state.PID) + "-" + strconv.FormatUint(e.state.Start, 10)
	}
	if !e.live {
		o.Finished = e.exit.At
		o.ExitCode = e.exit.Code
		o.Reason = e.exit.Reason
	}
	return o
}

func (e *entry) details() map[string]string {
	m := map[string]string{"directory": e.dir}
	if e.stray {
		m = map[string]string{"directory": "lost: " + e.dir}
	}
	if e.state.PID != 0 {
		m["pid"] = strconv.Itoa(e.state.PID)
	}
	if e.state.PID != 0 {
		m["isolation"] = cmp.Or(string(e.spec.Mode), "none")
	}
	if e.spec.Mode == modeRoot {
		m["uid"] = strconv.Itoa(e.spec.UID)
	}
	if e.state.Limits != "" {
		m["limits"] = e.state.Limits
	}
	if len(e.spec.Ports) > 0 {
		parts := make([]string, len(e.spec.Ports))
		for n, p := range e.spec.Ports {
			parts[n] = strconv.Itoa(p.Target) + "=" + strconv.Itoa(p.Port)
		}
		m["ports"] = strings.Join(parts, ",")
	}
	return m
}

func (s *spec) addresses() []string {
	var list []string
	for _, p := range s.Ports {
		list = append(list, "127.0.0.1:"+strconv.Itoa(p.Port))
	}
	return list
}
