package process

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"mariposa/driver/lockfile"
)

// shimTimeout limits the work of a shim that does not wait for anything else.
const shimTimeout = 5 * time.Second

// These are the reasons of ends that no shim recorded.
const (
	reasonShimKilled   = "its supervisor was killed"
	reasonRestarted    = "the machine was restarted"
	reasonDisappeared  = "its process disappeared"
	reasonNeverStarted = "it never started"
	reasonDamaged      = "its record cannot be read"
	reasonLost         = "it ended; its exit code is unknown because its directory is gone"
)

// adoptAll finds what an earlier agent left: first by the directories, then by the labels
// of processes whose directory is gone.
func (d *Driver) adoptAll() error {
	list, err := os.ReadDir(d.root)
	if err != nil {
		return err
	}
	for _, f := range list {
		switch name := f.Name(); {
		case strings.HasPrefix(name, newPrefix), strings.HasPrefix(name, gonePrefix):
			// The first was never started, and nothing of the second runs any more.
			_ = removeAll(filepath.Join(d.root, name))
		case f.IsDir() && checkID(name) == nil:
			if err := d.adopt(name); err != nil {
				return fmt.Errorf("cannot adopt instance %s: %w", name, err)
			}
		}
	}
	if err := d.adoptStrays(); err != nil {
		return err
	}
	d.clearMemory()
	d.clearResources()
	return nil
}

// adopt takes over the instance of one directory.
func (d *Driver) adopt(id string) error {
	e := newEntry(id, filepath.Join(d.root, id))
	e.op <- struct{}{} // its shim may end meanwhile
	defer e.release()
	if readJSON(filepath.Join(e.dir, specFile), &e.spec) != nil {
		return d.adoptDamaged(e)
	}
	lock, err := d.awaitShim(e)
	if err != nil {
		return err
	}
	e.moved = lock == nil && e.spec.Root != d.root
	if e.moved || e.spec.Root == d.root { // else it is a copy, and the private directory belongs to the original
		e.private.path, e.private.owner = d.locate(e.spec.Root, e.spec.Private), e.spec.owner()
	}
	if lock != nil { // no shim: the instance has ended
		defer lock.Close()
		d.recordDeadEnd(e)
	}
	d.addEntry(e)
	return nil
}

// locate returns where a path is that may have been moved with the root.
func (d *Driver) locate(root, path string) string {
	if below, ok := strings.CutPrefix(path, root+"/"); ok {
		return filepath.Join(d.root, below)
	}
	return path
}

// rootOf returns the root that the processes of an instance are labelled with: the former
// one, if it was moved since they started.
func (d *Driver) rootOf(e *entry) string {
	if e.moved {
		return e.spec.Root
	}
	return d.root
}

// addEntry adds an instance that was found.
func (d *Driver) addEntry(e *entry) {
	d.refreshObserved(e)
	d.mu.Lock()
	defer d.mu.Unlock()
	d.entries[e.id] = e
	for _, p := range e.spec.Ports {
		d.ports[p.Port] = e.id
	}
	if e.spec.Mode == modeRoot && d.uids[e.spec.UID] == "" {
		d.uids[e.spec.UID] = e.id
	}
}

// adoptDamaged takes over a directory whose spec is unreadable, for example after a power
// cut or on a full disk. If the instance runs, its label finds it, as for a stray.
func (d *Driver) adoptDamaged(e *entry) error {
	all, err := findLabelled(d.root)
	if err != nil {
		return err
	}
	for _, l := range all {
		if l.id == e.id {
			return nil
		}
	}
	// Nothing shows which run these belong to, so a new run must not read them.
	_ = os.Remove(filepath.Join(e.dir, stateFile))
	_ = os.Remove(filepath.Join(e.dir, exitFile))
	e.exit.Reason, e.private.path = reasonDamaged, d.privatePath(e)
	d.addEntry(e)
	return nil
}

// awaitShim connects an entry with its shim, or returns the lock if no shim is alive. It
// waits for a shim that has just started until that has written its state. A shim that
// does not do so in time is killed like a dead one.
func (d *Driver) awaitShim(e *entry) (*os.File, error) {
	deadline := time.Now().Add(shimTimeout)
	for {
		lock, err := lockfile.Try(filepath.Join(e.dir, lockFile))
		if err == nil {
			return lock, nil
		}
		if !errors.Is(err, lockfile.ErrLocked) {
			return nil, err
		}
		if s, ok := readState(e.dir, e.spec.Run); ok {
			shim := proc{pid: s.Shim, start: s.ShimStart}
			if pidfd, ok := shim.open(); ok {
				e.state, e.live = s, true
				return nil, d.exits.watch(e, pidfd)
			}
		}
		if time.Now().After(deadline) {
			if err := d.killAll(e); err != nil {
				return nil, err
			}
			deadline = time.Now().Add(shimTimeout)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// recordDeadEnd records the end of an instance whose shim is gone. The caller holds the
// lock of the directory, so no shim can come back.
func (d *Driver) recordDeadEnd(e *entry) {
	var started, ended bool
	e.state, started = readState(e.dir, e.spec.Run)
	e.exit, ended = readExit(e.dir, e.spec.Run)
	e.live = false
	if ended {
		return
	}
	if started && e.state.Boot != d.boot {
		d.clearAndRecordEnd(e, reasonRestarted)
		return
	}
	// The shim may have died after it started the command and before it wrote its state.
	found, _ := d.leftoverProcesses(e)
	switch {
	case len(found) > 0:
		d.clearAndRecordEnd(e, reasonShimKilled)
	case started:
		d.clearAndRecordEnd(e, reasonDisappeared)
	case e.exit.Reason == "": // else the end of its earlier run is still valid
		e.exit.Reason = reasonNeverStarted
	}
}

// clearAndRecordEnd kills what is left of an instance without a shim and records its end.
// The next sweep finds processes that could not be killed.
func (d *Driver) clearAndRecordEnd(e *entry, reason string) {
	if e.state.Boot == d.boot || e.state.Boot == "" {
		_ = d.killAll(e)
	}
	e.live = false
	e.exit = exit{Run: e.spec.Run, Reason: reason, At: time.Now().UTC()}
	if !e.stray {
		_ = writeJSON(filepath.Join(e.dir, exitFile), e.exit) // fails if the directory is lost
	}
}

// killAll kills every process of an instance, including its shim, until none is left, and
// removes its cgroups. It waits for every process that it has found: one that was found
// by its session only cannot be found again once the main process is dead, and may take a
// while to die.
func (d *Driver) killAll(e *entry) error {
	deadline := time.Now().Add(shimTimeout)
	var left []proc
	for {
		found, err := d.leftoverProcesses(e)
		if err != nil {
			return err
		}
		left = slices.DeleteFunc(left, func(p proc) bool { return !p.alive() })
		for _, p := range found {
			if !slices.ContainsFunc(left, p.same) {
				left = append(left, p)
			}
		}
		if len(left) == 0 {
			return d.groupOf(e).remove()
		}
		for _, p := range left {
			p.kill(unix.SIGKILL)
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("process %d of instance %s cannot be killed", left[0].pid, e.id)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// adoptStrays finds processes that carry our root and an id without a directory: somebody
// deleted it. They are reported, and only Stop and Remove touch them.
func (d *Driver) adoptStrays() error {
	all, err := findLabelled(d.root)
	if err != nil {
		return fmt.Errorf("cannot list processes: %w", err)
	}
	oldest := map[string]labelled{}
	for _, l := range all {
		if o, ok := oldest[l.id]; (l.inside || !l.shim) && !l.init && (!ok || l.start < o.start || (l.start == o.start && l.pid < o.pid)) {
			oldest[l.id] = l
		}
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	for id, l := range oldest {
		if d.gate.IsShut() || d.entries[id] != nil {
			continue
		}
		pidfd, ok := l.open()
		if !ok {
			continue // it has ended meanwhile
		}
		e := newEntry(id, filepath.Join(d.root, id))
		e.op <- struct{}{} // it may end meanwhile
		e.stray, e.live, e.private.path = true, true, d.privatePath(e)
		e.spec = spec{ID: id, Labels: l.labels, Ports: portsOf(l.env), Volumes: sourcesOf(l.env)}
		e.state = state{PID: l.pid, Start: l.start, Boot: d.boot, Started: startTime(l.start)}
		for _, p := range e.spec.Ports {
			d.ports[p.Port] = id
		}
		if err := d.exits.watch(e, pidfd); err != nil {
			_ = unix.Close(pidfd)
			return err
		}
		e.observed, e.uses = e.observe(), e.spec.Volumes
		d.entries[id] = e
		e.release()
	}
	return nil
}

// shimGone is called by the exit loop when the shim of an instance has ended. An
// operation in progress handles that itself; otherwise the instance ended by itself.
func (d *Driver) shimGone(e *entry, gone chan struct{}) {
	d.gate.Go(func() { // after Close, the next driver finds it in the directory
		select {
		case e.op <- struct{}{}:
		case <-d.ctx.Done():
			return
		}
		defer e.release()
		if e.live && e.gone == gone {
			d.handleEnd(e)
			d.report(e.observed)
		}
	})
}

// handleEnd handles the end of an instance whose shim has just ended. The caller holds
// the entry.
func (d *Driver) handleEnd(e *entry) {
	d.exits.release(e)
	x, ok := readExit(e.dir, e.spec.Run)
	_, err := os.Stat(e.dir)
	switch {
	case ok && !e.stray:
		e.exit, e.live = x, false
	case isGone(err) || e.stray:
		d.clearAndRecordEnd(e, reasonLost)
	default:
		d.clearAndRecordEnd(e, reasonShimKilled)
	}
	d.refreshObserved(e)
}
