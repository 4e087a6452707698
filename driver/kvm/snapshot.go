package kvm

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"mariposa"
	"mariposa/driver"
)

// A snapshot is in the disk of a machine: the content of the disk, and of a machine that runs also
// its memory and its processors.

var snapshotNames = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$`)

// maxSnapshots bounds the snapshots of one machine.
const maxSnapshots = 32

// The commands of QEMU.
const (
	saveSnapshot   = "snapshot-save"
	loadSnapshot   = "snapshot-load"
	deleteSnapshot = "snapshot-delete"
)

// numberPrefix begins the tags of snapshots whose names are numbers. QEMU gives each snapshot a
// number too, and would take one for the other. No name begins with it.
const numberPrefix = "="

// tagOf returns how QEMU knows a snapshot.
func tagOf(name string) string {
	if strings.Trim(name, "0123456789") == "" {
		return numberPrefix + name
	}
	return name
}

// jobs waits for the ends of what QEMU does in the background.
type jobs struct {
	running chan struct{} // has an element while one runs

	mu      sync.Mutex
	waiting map[string]chan struct{}
	count   int
}

// begin returns the id of a new job, and a channel that is closed when it has ended.
func (j *jobs) begin() (string, chan struct{}) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.count++
	id, done := fmt.Sprint("job", j.count), make(chan struct{})
	if j.waiting == nil {
		j.waiting = map[string]chan struct{}{}
	}
	j.waiting[id] = done
	return id, done
}

func (j *jobs) forget(id string) {
	j.mu.Lock()
	defer j.mu.Unlock()
	delete(j.waiting, id)
}

// changed notes the state of a job.
func (j *jobs) changed(data json.RawMessage) {
	var e struct {
		ID     string `json:"id"`
		Status string `json:"status"`
	}
	if json.Unmarshal(data, &e) != nil || e.Status != "concluded" {
		return
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	if done := j.waiting[e.ID]; done != nil {
		delete(j.waiting, e.ID)
		close(done)
	}
}

// snapshot saves, loads or deletes a snapshot of the running machine. It goes on when the agent has
// given up; the next one waits for it.
func (s *supervisor) snapshot(ctx context.Context, command, name string) error {
	select {
	case s.jobs.running <- struct{}{}:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	result := make(chan error, 1)
	go func() { // ends with QEMU, if not before
		err := s.runJob(command, name)
		<-s.jobs.running
		result <- err
	}()
	select {
	case err := <-result:
		return err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (s *supervisor) runJob(command, name string) error {
	id, done := s.jobs.begin()
	defer s.jobs.forget(id)
	arguments := map[string]any{"job-id": id, "tag": tagOf(name), "devices": []string{"root"}}
	if command != deleteSnapshot {
		arguments["vmstate"] = "root"
	}
	ctx := context.Background() // ends with QEMU
	if err := s.qmp.Run(ctx, command, arguments, nil); err != nil {
		return err
	}
	select {
	case <-done:
	case <-s.over:
		return errors.New("the machine has ended")
	}
	var all []struct {
		ID    string `json:"id"`
		Error string `json:"error"`
	}
	err := s.qmp.Run(ctx, "query-jobs", nil, &all)
	err = errors.Join(err, s.qmp.Run(ctx, "job-dismiss", map[string]any{"id": id}, nil))
	for _, one := range all {
		if one.ID == id && one.Error != "" {
			err = errors.New(one.Error)
		}
	}
	if err != nil && command == loadSnapshot {
		return s.endUnrestored(ctx, name, err)
	}
	return err
}

// endUnrestored ends a machine that was not restored completely. QEMU leaves it paused, with the
// disk of the snapshot and a part of its devices.
func (s *supervisor) endUnrestored(ctx context.Context, name string, cause error) error {
	var is struct {
		Running bool `json:"running"`
	}
	if err := s.qmp.Run(ctx, "query-status", nil, &is); err == nil && is.Running {
		return cause
	}
	s.mu.Lock()
	s.ending.unrestored = name
	s.mu.Unlock()
	_ = s.qemu.Process.Kill() // fails if it has ended
	return fmt.Errorf("the memory in snapshot %s does not fit the machine, which had other processors, networks or volumes then, or another version of QEMU. "+
		"The machine was ended; its disk is restored, and it boots from it when it is started (%w)", name, cause)
}

// Snapshots lists the snapshots of an instance, the oldest first.
func (d *Driver) Snapshots(ctx context.Context, id string) (all []mariposa.Snapshot, err error) {
	e, r, leave, err := d.kept(ctx, id)
	if err != nil {
		return nil, err
	}
	defer leave()
	return listSnapshots(ctx, e, &r) // also while one is saved
}

// existing runs an operation on an instance that exists.
func (d *Driver) existing(ctx context.Context, id string, work func(context.Context, *entry) error) (driver.Observed, error) {
	if _, err := d.roster.Find(ctx, id); err != nil {
		return driver.Observed{ID: id}, err
	}
	return d.operate(ctx, id, func(ctx context.Context, e *entry) error {
		if e.record.ID == "" {
			return driver.ErrNotFound
		}
		return work(ctx, e)
	})
}

func listSnapshots(ctx context.Context, e *entry, r *record) ([]mariposa.Snapshot, error) {
	if !r.HasDisk {
		return nil, nil
	}
	disk, err := os.Open(filepath.Join(e.Dir, diskFile))
	if err != nil {
		return nil, err
	}
	defer disk.Close() // it was only read
	out, err := runImg(ctx, r, disk, "info", "--force-share", "--output=json")
	if err != nil {
		return nil, err
	}
	var info struct {
		Snapshots []struct {
			Name    string `json:"name"`
			Seconds int64  `json:"date-sec"`
			Nanos   int64  `json:"date-nsec"`
			Memory  int64  `json:"vm-state-size"`
		} `json:"snapshots"`
	}
	if err := json.Unmarshal([]byte(out), &info); err != nil {
		return nil, err
	}
	all := make([]mariposa.Snapshot, 0, len(info.Snapshots))
	for _, s := range info.Snapshots {
		all = append(all, mariposa.Snapshot{State: mariposa.SnapshotReady, Name: strings.TrimPrefix(s.Name, numberPrefix), Created: time.Unix(s.Seconds, s.Nanos).UTC(), Memory: s.Memory})
	}
	slices.SortStableFunc(all, func(a, b mariposa.Snapshot) int { return a.Created.Compare(b.Created) })
	return all, nil
}

// Snapshot saves the state of an instance: of one that runs with its memory.
func (d *Driver) Snapshot(ctx context.Context, id, name string) error {
	if !snapshotNames.MatchString(name) {
		return &driver.CommandError{Err: fmt.Errorf("%q is not a valid snapshot name: use up to 63 letters, digits, dots, hyphens and underscores, and begin with a letter or a digit", name)}
	}
	_, err := d.existing(ctx, id, func(ctx context.Context, e *entry) error {
		all, err := listSnapshots(ctx, e, &e.record)
		switch {
		case err != nil:
			return err
		case !e.record.HasDisk:
			return &driver.CommandError{Err: errors.New("it has no disk: its image is a kernel")}
		case find(all, name) != nil:
			return &driver.CommandError{Err: fmt.Errorf("it already has a snapshot %s: choose another name, or delete it first", name)}
		case len(all) >= maxSnapshots:
			return &driver.CommandError{Err: fmt.Errorf("it already has %d snapshots: delete one first", len(all))}
		case e.Live && len(e.record.Volumes) > 0:
			return &driver.CommandError{Err: errors.New("it has volumes, which are not part of a snapshot and would not match its memory: stop it first")}
		}
		return d.change(ctx, e, orderSnapshot, "-c", name)
	})
	return err
}

// Restore makes an instance as it was when a snapshot was taken.
func (d *Driver) Restore(ctx context.Context, id, name string) error {
	_, err := d.existing(ctx, id, func(ctx context.Context, e *entry) error {
		s, err := mustFind(ctx, e, name)
		switch {
		case err != nil:
			return err
		case e.Live && s.Memory == 0:
			return &driver.CommandError{Err: fmt.Errorf("snapshot %s has no memory, because the instance was stopped when it was taken: stop the instance first", name)}
		case !e.Live && s.Memory > 0:
			return &driver.CommandError{Err: fmt.Errorf("snapshot %s has the memory of a running instance: start the instance first", name)}
		}
		return d.change(ctx, e, orderRestore, "-a", name)
	})
	return err
}

// DeleteSnapshot deletes a snapshot.
func (d *Driver) DeleteSnapshot(ctx context.Context, id, name string) error {
	_, err := d.existing(ctx, id, func(ctx context.Context, e *entry) error {
		if _, err := mustFind(ctx, e, name); err != nil {
			return err
		}
		return d.change(ctx, e, orderForget, "-d", name)
	})
	return err
}

// change changes the snapshots of an instance: by its supervisor, or in its disk if it does not
// run.
func (d *Driver) change(ctx context.Context, e *entry, do, option, name string) error {
	if e.Live {
		ctx, cancel := context.WithCancelCause(ctx)
		d.setInterrupt(e, cancel)
		defer func() {
			d.setInterrupt(e, nil)
			cancel(nil)
		}()
		_, err := tell(ctx, e.Dir, order{Do: do, Name: name})
		return err
	}
	return changeDisk(ctx, e, "snapshot", option, tagOf(name))
}

func (d *Driver) setInterrupt(e *entry, cancel context.CancelCauseFunc) {
	d.roster.Lock()
	defer d.roster.Unlock()
	e.interrupt = cancel
}

var errInterrupted = errors.New("the instance was stopped meanwhile")

// interruptAfter lets an operation that ends an instance wait for a change of a snapshot no longer
// than a timeout: QEMU may hang.
func (d *Driver) interruptAfter(ctx context.Context, id string, timeout time.Duration) (done func()) {
	if timeout < 0 {
		return func() {}
	}
	timer := time.AfterFunc(timeout, func() {
		e, err := d.roster.Find(ctx, id)
		if err != nil {
			return
		}
		d.roster.Lock()
		defer d.roster.Unlock()
		if e.interrupt != nil {
			e.interrupt(errInterrupted)
		}
	})
	return func() { timer.Stop() }
}

func find(all []mariposa.Snapshot, name string) *mariposa.Snapshot {
	for n := range all {
		if all[n].Name == name {
			return &all[n]
		}
	}
	return nil
}

func mustFind(ctx context.Context, e *entry, name string) (*mariposa.Snapshot, error) {
	all, err := listSnapshots(ctx, e, &e.record)
	if err != nil {
		return nil, err
	}
	if s := find(all, name); s != nil {
		return s, nil
	}
	var names []string
	for _, s := range all {
		names = append(names, s.Name)
	}
	if len(names) == 0 {
		return nil, &driver.CommandError{Err: errors.New("it has no snapshots")}
	}
	return nil, &driver.CommandError{Err: fmt.Errorf("it has no snapshot %s; it has %s", name, strings.Join(names, ", "))}
}
