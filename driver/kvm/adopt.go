package kvm

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"mariposa/driver/statefile"
	"mariposa/driver/supervise"
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
	d.memory.Clear(d.roster.Has, os.RemoveAll)
	d.clearVolumes()
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
	if d.options.Networks != nil {
		d.options.Networks.Keep(owned(id), e.record.Links)
	}
	e.held = held{uid: e.record.UID, links: e.record.Links, forwards: e.record.Forwards, volumes: e.record.Volumes}
	d.roster.Add(e)
	if pidfd != nil {
		e.State, e.Live = s, true
		d.watch(e, pidfd)
		d.watchChanges(e)
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

// privatePath returns the directory of an instance's configuration and values.
func (d *Driver) privatePath(e *entry) string {
	if dir := d.memory.Find(); dir != "" {
		return filepath.Join(dir, e.ID)
	}
	return filepath.Join(e.Dir, privateDir)
}
