package lxc

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"mariposa/driver"
	"mariposa/driver/osproc"
	"mariposa/driver/ostool"
	"mariposa/driver/statefile"
	"mariposa/driver/supervise"
)

// Stop asks the init of a container to shut down, and kills it after the timeout.
func (d *Driver) Stop(ctx context.Context, id string, timeout time.Duration) (driver.Observed, error) {
	return d.operate(ctx, id, func(ctx context.Context, e *entry) error {
		if !e.Live {
			return nil
		}
		return d.end(ctx, e, timeout)
	})
}

// end ends a running instance and handles its end.
func (d *Driver) end(ctx context.Context, e *entry, timeout time.Duration) error {
	// The kernel drops signals for which the first process of a container has no handler yet.
	var ask <-chan time.Time
	if timeout != 0 && !d.requestStop(ctx, e, true) {
		ticker := time.NewTicker(stopInterval)
		defer ticker.Stop()
		ask = ticker.C
	}
	var force <-chan time.Time
	if timeout >= 0 {
		timer := time.NewTimer(timeout)
		defer timer.Stop()
		force = timer.C
	}
	for {
		select {
		case <-e.Gone:
			d.handleEnd(e)
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-ask:
			if d.requestStop(ctx, e, false) {
				ask = nil
			}
		case <-force:
			if err := d.killContainer(ctx, e); err != nil {
				return err
			}
		}
	}
}

// stopInterval is how often a container is checked that does not handle its stop signal yet.
const stopInterval = 50 * time.Millisecond

// requestStop sends a container its stop signal. It returns false if the container does not seem
// to handle the signal yet; the signal is then sent only if try is set.
func (d *Driver) requestStop(ctx context.Context, e *entry, try bool) bool {
	init, ok := d.initOf(ctx, e)
	if !ok {
		return false
	}
	signal := haltSignal(init.PID, e.record.HasInit)
	handled := handles(init.PID, int(signal))
	if handled || try {
		init.Kill(signal)
	}
	return handled
}

// killContainer kills the init of a container, and with it all of its processes. If that has no
// effect, everything is killed.
func (d *Driver) killContainer(ctx context.Context, e *entry) error {
	if init, ok := d.initOf(ctx, e); ok {
		init.Kill(unix.SIGKILL)
		select {
		case <-e.Gone:
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(supervise.Timeout):
		}
	}
	e.State.Process().Kill(unix.SIGKILL)
	return d.groupOf(e.ID).KillAll()
}

// initOf returns the first process of a running container. It is another one after the container
// has rebooted.
func (d *Driver) initOf(ctx context.Context, e *entry) (osproc.Process, bool) {
	return findInit(ctx, e.ID, e.State.Main())
}

func findInit(ctx context.Context, id string, known osproc.Process) (osproc.Process, bool) {
	if known.Alive() {
		return known, true
	}
	out, err := ostool.Run(ctx, "lxc-info", "-P", stageDir, "-n", containerName(id), "-H", "-p")
	if err != nil {
		return osproc.Process{}, false
	}
	pid, err := strconv.Atoi(strings.TrimSpace(out))
	if err != nil {
		return osproc.Process{}, false
	}
	p, _, ok := osproc.Read(pid)
	return p, ok
}

// Remove removes an instance, running or not, with everything that belongs to it.
func (d *Driver) Remove(ctx context.Context, id string) error {
	_, err := d.operate(ctx, id, func(ctx context.Context, e *entry) error {
		if e.Live {
			if err := d.end(ctx, e, 0); err != nil {
				return err
			}
		}
		if e.record.ID == "" {
			return d.options.Images.Release(d.holder(id)) // of a start that was interrupted
		}
		return d.removeTraces(e)
	})
	return err
}

// removeTraces removes everything of an instance that does not run. Its directory is renamed
// first: a half-removed one must not be taken for a complete one.
func (d *Driver) removeTraces(e *entry) error {
	gone := filepath.Join(filepath.Dir(e.Dir), gonePrefix+e.ID)
	if err := os.Rename(e.Dir, gone); err != nil && !statefile.IsGone(err) {
		return fmt.Errorf("cannot remove the files of an instance: %w", err)
	}
	g := d.groupOf(e.ID)
	err := errors.Join(removeAll(gone), removeAll(filepath.Join(filepath.Dir(e.Dir), newPrefix+e.ID)), removeAll(cmp.Or(e.record.Private, d.privatePath(e))), g.Remove())
	if err == nil {
		err = d.options.Images.Release(d.holder(e.ID))
	}
	if err != nil {
		return err
	}
	e.record, e.State, e.Exit, e.limits, e.damaged = record{}, supervise.State{}, supervise.Exit{}, "", ""
	d.roster.Lock()
	e.held, e.Observed, e.known, e.in = held{}, driver.Observed{}, record{}, nil
	d.roster.Unlock()
	d.options.Networks.Disconnect(owned(e.ID))
	d.options.Networks.Clear(d.ctx)
	return nil
}

// Update changes the limits of a running container.
func (d *Driver) Update(ctx context.Context, i driver.Instance) (driver.Observed, error) {
	if _, err := d.roster.Find(ctx, i.ID); err != nil {
		return driver.Observed{ID: i.ID}, err
	}
	return d.operate(ctx, i.ID, func(_ context.Context, e *entry) error {
		if e.record.ID == "" {
			return driver.ErrNotFound
		}
		if i.Workload == nil || i.Workload.Memory == e.record.Memory && i.Workload.MilliCPU == e.record.MilliCPU {
			return nil
		}
		r := e.record
		r.Memory, r.MilliCPU = i.Workload.Memory, i.Workload.MilliCPU
		if e.Live {
			e.limits = d.groupOf(e.ID).Limit(r.Memory, r.MilliCPU)
		}
		if err := statefile.Write(filepath.Join(e.Dir, recordFile), r); err != nil {
			return fmt.Errorf("cannot record the limits of the instance: %w", err)
		}
		e.record = r
		d.refresh(e)
		return nil
	})
}
