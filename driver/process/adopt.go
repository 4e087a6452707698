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
)

// shimTimeout is how long a shim may take for what needs no waiting of its own.
const shimTimeout = 5 * time.Second

// The reasons of ends that no shim has written down.
const (
	reasonShimKilled   = "its supervisor was killed"
	reasonRestarted    = "the machine was restarted"
	reasonDisappeared  = "it disappeared"
	reasonNeverStarted = "it never started"
	reasonDamaged      = "its record cannot be read"
	reasonLost         = "it ended, and its directory is gone, so how it ended is not known"
)

// adoptAll finds again what an earlier agent left: first by the directories,
// then by the labels of processes whose directory is gone.
func (d *Driver) adoptAll() error {
	list, err := os.ReadDir(d.root)
	if err != nil {
		return err
	}
	for _, f := range list {
		switch name := f.Name(); {
		case strings.HasPrefix(name, newPrefix), strings.HasPrefix(name, gonePrefix):
			// Nothing ran from the first yet, and nothing runs from the second any more.
			_ = removeAll(filepath.Join(d.root, name))
		case f.IsDir() && checkID(name) == nil:
			if err := d.adopt(name); err != nil {
				return fmt.Errorf("cannot take over instance %s: %w", name, err)
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

// adopt takes over one directory.
func (d *Driver) adopt(id string) error {
	e := newEntry(id, filepath.Join(d.root, id))
	e.op <- struct{}{} // its shim may end while we look
	defer e.release()
	if readJSON(filepath.Join(e.dir, specFile), &e.spec) != nil {
		return d.adoptDamaged(e)
	}
	if e.spec.Root == d.root { // else it is a copy, and the folder is the original's
		e.folder.path, e.folder.owner = e.spec.Private, e.spec.owner()
	}
	lock, err := d.awaitShim(e)
	if err != nil {
		return err
	}
	if lock != nil { // no shim: it has ended, one way or another
		defer lock.Close()
		d.recordDeadEnd(e)
	}
	d.addEntry(e)
	return nil
}

// addEntry makes an instance known that was found.
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

// adoptDamaged takes over a directory whose spec is unreadable (a disk that
// was full, a power cut). If it runs, it is found by its label like a stray.
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
	// What the lost spec tied these to is not known; a new run must not meet them.
	_ = os.Remove(filepath.Join(e.dir, stateFile))
	_ = os.Remove(filepath.Join(e.dir, exitFile))
	e.exit.Reason, e.folder.path = reasonDamaged, d.privatePath(e)
	d.addEntry(e)
	return nil
}

// awaitShim connects an entry with its shim, or returns the lock when no shim
// lives. A shim that has just been born is waited for until it says what it
// runs; one that says nothing for long is ended like a dead one.
func (d *Driver) awaitShim(e *entry) (*os.File, error) {
	deadline := time.Now().Add(shimTimeout)
	for {
		lock, err := tryLock(filepath.Join(e.dir, lockFile))
		if err == nil {
			return lock, nil
		}
		if !errors.Is(err, errLocked) {
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

// recordDeadEnd says how an instance ended whose shim is no more. The caller
// holds the directory's lock, so none can come back.
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
	// The shim may have died between starting the command and saying so.
	found, _ := d.leftoverProcesses(e)
	switch {
	case len(found) > 0:
		d.clearAndRecordEnd(e, reasonShimKilled)
	case started:
		d.clearAndRecordEnd(e, reasonDisappeared)
	case e.exit.Reason == "": // else: how its earlier run ended still holds
		e.exit.Reason = reasonNeverStarted
	}
}

// clearAndRecordEnd clears what is left of an instance without a shim and writes down how it
// ended. What could not be killed is found again by the next sweep.
func (d *Driver) clearAndRecordEnd(e *entry, reason string) {
	if e.state.Boot == d.boot || e.state.Boot == "" {
		_ = d.killAll(e)
	}
	e.live = false
	e.exit = exit{Run: e.spec.Run, Reason: reason, At: time.Now().UTC()}
	if !e.stray {
		_ = writeJSON(filepath.Join(e.dir, exitFile), e.exit) // a lost directory takes no notes
	}
}

// killAll kills every process of an instance, its shim included, until none is
// left, and takes its cgroups away. It waits for all that it ever found: a
// process that was found by its session only is found by nothing once the main
// process is dead, and may take a while to die itself.
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
			return d.groupOf(e.id).remove()
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

// adoptStrays finds processes that carry our root and an id that has no
// directory: someone wiped it. They are reported, and only Stop and Remove
// touch them.
func (d *Driver) adoptStrays() error {
	all, err := findLabelled(d.root)
	if err != nil {
		return fmt.Errorf("cannot look for processes: %w", err)
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
		if d.closed || d.entries[id] != nil {
			continue
		}
		pidfd, ok := l.open()
		if !ok {
			continue // it has ended since we looked
		}
		e := newEntry(id, filepath.Join(d.root, id))
		e.stray, e.live, e.folder.path = true, true, d.privatePath(e)
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
	}
	return nil
}

// shimGone is called by the exit loop: the shim of an instance has ended. If an
// operation is under way it handles that; otherwise the instance ended by itself.
func (d *Driver) shimGone(e *entry, gone chan struct{}) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return // the next driver finds it in the directory
	}
	d.work.Add(1)
	go func() {
		defer d.work.Done()
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
	}()
}

// handleEnd handles the end of an instance whose shim has just gone. The
// caller holds the entry.
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
