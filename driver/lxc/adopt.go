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
	d.memory.Clear(d.roster.Has, removeAll)
	d.volumes.Clear()
	d.options.Images.ReleaseGone(d.holder(""), d.roster.Has)
	return nil
}

// adopt takes over the instance of one directory.
func (d *Driver) adopt(id string) error {
	e := d.newEntry(id)
	e.Hold() // its supervisor may end meanwhile
	defer e.Release()
	if err := statefile.Read(filepath.Join(e.Dir, recordFile), &e.record); err != nil || e.record.ID != id {
		// What it has is kept: a person may repair the record, or remove the instance.
		e.damaged = fmt.Sprintf("its record %s cannot be read: repair it, or replace the instance", filepath.Join(e.Dir, recordFile))
		e.record = record{ID: id, Private: d.privatePath(e)}
		if s, ok := supervise.ReadState(e.Dir, supervise.AnyRun); ok {
			e.record.Run = s.Run
		}
	}
	s, pidfd, err := supervise.Find(e.Dir, e.record.Run, SupervisorCommand)
	if err != nil {
		return err
	}
	d.options.Networks.Keep(owned(id), e.record.Links)
	e.held = held{ids: e.record.IDs, links: e.record.Links, volumes: e.record.Volumes}
	d.roster.Add(e)
	if pidfd != nil {
		e.State, e.Live = s, true
		d.watch(e, pidfd)
		d.watchInit(e)
		for _, s := range leftSessions(id) {
			d.gate.Go(func() { s.kill(d.ctx, d.groupOf(id)) })
		}
	} else if reason := e.ReadEnd(e.record.Run, d.boot); reason != "" {
		d.clearAndRecordEnd(e, reason)
	}
	d.refresh(e)
	return nil
}

// clearAndRecordEnd kills what is left of an instance without a supervisor, and records its end.
func (d *Driver) clearAndRecordEnd(e *entry, reason string) {
	g := d.groupOf(e.ID)
	_ = g.KillAll() // the removal of the instance tries again
	_ = g.Remove()
	e.RecordEnd(e.record.Run, reason)
}

// handleEnd handles the end of an instance whose supervisor has just ended. The caller holds the
// entry.
func (d *Driver) handleEnd(e *entry) {
	if !e.HandleEnd(e.record.Run) {
		d.clearAndRecordEnd(e, supervise.ReasonKilled)
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
