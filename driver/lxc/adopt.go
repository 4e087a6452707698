package lxc

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"mariposa/driver/cgroup"
	"mariposa/driver/osproc"
	"mariposa/driver/statefile"
	"mariposa/driver/supervise"
)

// These are the reasons of ends that no supervisor recorded.
const (
	reasonKilled       = "its supervisor was killed"
	reasonRestarted    = "the machine was restarted"
	reasonNeverStarted = "it never started"
)

// adoptAll finds what an earlier agent left.
func (d *Driver) adoptAll() error {
	dir := filepath.Join(d.options.Dir, instancesDir)
	list, err := os.ReadDir(dir)
	if err != nil {
		return fmt.Errorf("cannot list the system containers: %w", err)
	}
	for _, f := range list {
		switch name := f.Name(); {
		case strings.HasPrefix(name, newPrefix): // it was never started
			_ = removeAll(filepath.Join(dir, name)) // the next start tries again
		case strings.HasPrefix(name, gonePrefix): // nothing of it runs any more; it may be large
			d.gate.Go(func() { _ = removeAll(filepath.Join(dir, name)) })
		case f.IsDir() && checkID(name) == nil:
			if err := d.adopt(name); err != nil {
				return fmt.Errorf("cannot adopt instance %s: %w", name, err)
			}
		}
	}
	d.clearMemory()
	d.volumes.Clear()
	d.releaseImages()
	return nil
}

// releaseImages releases the images of instances that are gone: an agent may have been killed in
// the middle of a start or of a removal.
func (d *Driver) releaseImages() {
	all, _ := d.options.Images.List() // what cannot be read is released later
	for _, i := range all {
		users, _ := d.options.Images.Users(i)
		for _, user := range users {
			id, ours := strings.CutPrefix(user, d.holder(""))
			if ours && !d.roster.Has(id) {
				_ = d.options.Images.Release(user) // tried again with the next start of the agent
			}
		}
	}
}

// adopt takes over the instance of one directory.
func (d *Driver) adopt(id string) error {
	e := d.newEntry(id)
	e.Hold() // its supervisor may end meanwhile
	defer e.Release()
	if err := statefile.Read(filepath.Join(e.dir, recordFile), &e.record); err != nil || e.record.ID != id {
		// What it has is kept: a person may repair the record, or remove the instance.
		e.damaged = fmt.Sprintf("its record %s cannot be read: repair it, or replace the instance", filepath.Join(e.dir, recordFile))
		e.record = record{ID: id, Private: d.privatePath(e)}
		if s, ok := supervise.ReadState(e.dir, supervise.AnyRun); ok {
			e.record.Run = s.Run
		}
	}
	s, pidfd, err := supervise.Find(e.dir, e.record.Run, SupervisorCommand)
	if err != nil {
		return err
	}
	d.options.Networks.Keep(owned(id), e.record.Links)
	e.held = held{ids: e.record.IDs, links: e.record.Links, volumes: e.record.Volumes}
	d.roster.Add(e)
	if pidfd != nil {
		e.state, e.live = s, true
		d.watch(e, pidfd)
		d.watchInit(e)
		for _, s := range leftSessions(id) {
			d.gate.Go(func() { s.kill(d.ctx, d.groupOf(id)) })
		}
	} else {
		d.recordDeadEnd(e)
	}
	d.refresh(e)
	return nil
}

// recordDeadEnd records the end of an instance that has no supervisor.
func (d *Driver) recordDeadEnd(e *entry) {
	var started, ended bool
	e.state, started = supervise.ReadState(e.dir, e.record.Run)
	x, ended := supervise.ReadExit(e.dir, e.record.Run)
	e.live = false
	switch {
	case ended:
		e.exit = x
	case started && e.state.Boot != d.boot:
		d.clearAndRecordEnd(e, reasonRestarted)
	case started:
		d.clearAndRecordEnd(e, reasonKilled)
	default: // it was killed before the container ran
		d.clearAndRecordEnd(e, reasonNeverStarted)
	}
}

// clearAndRecordEnd kills what is left of an instance without a supervisor, and records its end.
func (d *Driver) clearAndRecordEnd(e *entry, reason string) {
	g := d.groupOf(e.ID)
	_ = g.KillAll() // the removal of the instance tries again
	_ = g.Remove()
	e.live = false
	e.exit = supervise.Exit{Run: e.record.Run, Reason: reason, At: time.Now().UTC()}
	_ = supervise.WriteExit(e.dir, e.exit) // fails if the directory is lost
}

// handleEnd handles the end of an instance whose supervisor has just ended. The caller holds the
// entry.
func (d *Driver) handleEnd(e *entry) {
	e.unwatch()
	if x, ok := supervise.ReadExit(e.dir, e.record.Run); ok {
		e.exit, e.live = x, false
	} else {
		d.clearAndRecordEnd(e, reasonKilled)
	}
	d.refresh(e)
}

// leftSession is a command that a killed agent has left in an instance.
type leftSession struct {
	attach osproc.Process // lxc-attach
	mark   string         // in the environment of its processes
}

// leftSessions finds the commands that a killed agent has left in an instance. What other commands
// have left running is the instance's own.
func leftSessions(id string) (all []leftSession) {
	for pid, args := range osproc.FindArgs("lxc-attach") {
		at := slices.Index(args, containerName(id))
		mark := slices.IndexFunc(args, func(a string) bool { return strings.HasPrefix(a, envSession+"=") })
		if at < 1 || args[at-1] != "-n" || mark < at {
			continue
		}
		if p, _, ok := osproc.Read(pid); ok {
			all = append(all, leftSession{p, args[mark]})
		}
	}
	return all
}

// kill kills the processes of the command until lxc-attach has ended: it may be about to start
// them.
func (s leftSession) kill(ctx context.Context, g cgroup.Group) {
	for deadline := time.Now().Add(supervise.Timeout); s.attach.Alive() && time.Now().Before(deadline) && ctx.Err() == nil; time.Sleep(10 * time.Millisecond) {
		killTogether(marked(g.PIDs(), s.mark+"\x00"))
	}
	s.attach.Kill(unix.SIGKILL) // if it hangs
}

// clearMemory removes the private directories of instances that no longer exist.
func (d *Driver) clearMemory() {
	dir := d.memory.Find()
	if dir == "" {
		return
	}
	list, _ := os.ReadDir(dir) // unreadable ones are removed another time
	for _, f := range list {
		if !d.roster.Has(f.Name()) {
			_ = removeAll(filepath.Join(dir, f.Name()))
		}
	}
}
