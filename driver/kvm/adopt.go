package kvm

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"mariposa/driver/statefile"
	"mariposa/driver/supervise"
)

// These are the reasons of ends that no supervisor recorded.
const (
	reasonKilled       = "its supervisor was killed"
	reasonRestarted    = "the node was restarted"
	reasonNeverStarted = "it never started"
)

// adoptAll finds what an earlier agent left.
func (d *Driver) adoptAll() error {
	dir := filepath.Join(d.options.Dir, instancesDir)
	list, err := os.ReadDir(dir)
	if err != nil {
		return fmt.Errorf("cannot list the virtual machines: %w", err)
	}
	for _, f := range list {
		switch name := f.Name(); {
		case strings.HasPrefix(name, newPrefix), strings.HasPrefix(name, gonePrefix):
			// The first was never started, and nothing of the second runs any more.
			_ = os.RemoveAll(filepath.Join(dir, name)) // the next start tries again
		case f.IsDir() && checkID(name) == nil:
			if err := d.adopt(name); err != nil {
				return fmt.Errorf("cannot adopt instance %s: %w", name, err)
			}
		}
	}
	d.clearMemory()
	d.clearVolumes()
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
	if d.options.Networks != nil {
		d.options.Networks.Keep(owned(id), e.record.Links)
	}
	e.held = held{uid: e.record.UID, links: e.record.Links, forwards: e.record.Forwards, volumes: e.record.Volumes}
	d.roster.Add(e)
	if pidfd != nil {
		e.state, e.live = s, true
		d.watch(e, pidfd)
		d.watchChanges(e)
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
	default: // it was killed before the machine ran
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

// clearMemory removes the private directories of instances that no longer exist.
func (d *Driver) clearMemory() {
	dir := d.memory.Find()
	if dir == "" {
		return
	}
	list, _ := os.ReadDir(dir) // unreadable ones are removed another time
	for _, f := range list {
		if !d.roster.Has(f.Name()) {
			_ = os.RemoveAll(filepath.Join(dir, f.Name()))
		}
	}
}

// privatePath returns the directory of an instance's configuration and values.
func (d *Driver) privatePath(e *entry) string {
	if dir := d.memory.Find(); dir != "" {
		return filepath.Join(dir, e.ID)
	}
	return filepath.Join(e.dir, privateDir)
}
