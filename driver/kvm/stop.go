package kvm

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"mariposa/driver"
	"mariposa/driver/statefile"
	"mariposa/driver/supervise"
)

// powerInterval is how often the power button of a machine is pressed: a guest that is still
// booting does not notice it.
const powerInterval = 2 * time.Second

// Stop presses the power button of a machine, and kills it after the timeout.
func (d *Driver) Stop(ctx context.Context, id string, timeout time.Duration) (driver.Observed, error) {
	defer d.interruptAfter(ctx, id, timeout)()
	return d.operate(ctx, id, func(ctx context.Context, e *entry) error {
		if !e.Live {
			return nil
		}
		return d.end(ctx, e, timeout)
	})
}

// end ends a running instance and handles its end.
func (d *Driver) end(ctx context.Context, e *entry, timeout time.Duration) error {
	var press <-chan time.Time
	if timeout != 0 {
		pressPower(ctx, e)
		ticker := time.NewTicker(powerInterval)
		defer ticker.Stop()
		press = ticker.C
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
		case <-press:
			pressPower(ctx, e)
		case <-force:
			if err := d.killMachine(ctx, e); err != nil {
				return err
			}
		}
	}
}

// pressPower presses the power button. A supervisor or a QEMU that hangs must not delay the kill, and
// the button is pressed again.
func pressPower(ctx context.Context, e *entry) {
	ctx, cancel := context.WithTimeout(ctx, powerInterval)
	defer cancel()
	_, _ = tell(ctx, e.Dir, order{Do: orderPowerDown})
}

// killMachine kills QEMU. If that has no effect, everything is killed.
func (d *Driver) killMachine(ctx context.Context, e *entry) error {
	e.State.Main().Kill(unix.SIGKILL)
	select {
	case <-e.Gone:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(supervise.Timeout):
	}
	e.State.Process().Kill(unix.SIGKILL)
	return d.groupOf(e.ID).KillAll()
}

// Remove removes an instance, running or not, with everything that belongs to it.
func (d *Driver) Remove(ctx context.Context, id string) error {
	defer d.interruptAfter(ctx, id, 0)()
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
	err := errors.Join(os.RemoveAll(gone), os.RemoveAll(filepath.Join(filepath.Dir(e.Dir), newPrefix+e.ID)), os.RemoveAll(cmp.Or(e.record.Private, d.privatePath(e))), d.groupOf(e.ID).Remove())
	if err == nil {
		err = d.options.Images.Release(d.holder(e.ID))
	}
	if err != nil {
		return err
	}
	e.record, e.State, e.Exit, e.limits, e.damaged = record{}, supervise.State{}, supervise.Exit{}, "", ""
	d.roster.Lock()
	e.held, e.Observed, e.known = held{}, driver.Observed{}, record{}
	d.roster.Unlock()
	if d.options.Networks != nil {
		d.options.Networks.Disconnect(owned(e.ID))
		d.options.Networks.Clear(d.ctx)
	}
	return nil
}

// Update changes how much of the processor a running machine gets.
func (d *Driver) Update(ctx context.Context, i driver.Instance) (driver.Observed, error) {
	return d.existing(ctx, i.ID, func(_ context.Context, e *entry) error {
		if i.Workload == nil || i.Workload.MilliCPU == e.record.MilliCPU {
			return nil
		}
		r := e.record
		r.MilliCPU = i.Workload.MilliCPU
		if e.Live {
			e.limits = d.groupOf(e.ID).Limit(0, r.MilliCPU)
			if want := max(1, int((r.MilliCPU+999)/1000)); e.limits == "" && want > r.CPUs {
				e.limits = fmt.Sprintf("it has %d processors until it is restarted", r.CPUs)
			}
		}
		if err := statefile.Write(filepath.Join(e.Dir, recordFile), r); err != nil {
			return fmt.Errorf("cannot record the limits of the instance: %w", err)
		}
		e.record = r
		d.refresh(e)
		return nil
	})
}
