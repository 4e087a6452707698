package process

import (
	"context"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"mariposa/driver"
)

// What a shim understands.
const (
	signalStop = unix.SIGTERM // end gently
	signalKill = unix.SIGUSR1 // end by force
)

// Stop ends the whole process group: SIGTERM, and SIGKILL after timeout.
func (d *Driver) Stop(ctx context.Context, id string, timeout time.Duration) (driver.Observed, error) {
	return d.operate(ctx, id, func(ctx context.Context, e *entry) error { return d.stop(ctx, e, timeout) })
}

func (d *Driver) stop(ctx context.Context, e *entry, timeout time.Duration) error {
	if !e.live {
		return nil
	}
	d.stopGently(e)
	var expired <-chan time.Time
	if timeout >= 0 {
		timer := time.NewTimer(timeout)
		defer timer.Stop()
		expired = timer.C
	}
	select {
	case <-e.gone:
	case <-expired:
		return d.force(ctx, e)
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	d.handleEnd(e)
	return nil
}

func (d *Driver) stopGently(e *entry) {
	if !e.stray {
		signal(e.pidfd, signalStop)
		return
	}
	left, _ := d.leftoverProcesses(e)
	for _, p := range left {
		p.kill(unix.SIGTERM)
	}
}

// force ends an instance now. A shim that does not manage is killed itself and
// its processes with it.
func (d *Driver) force(ctx context.Context, e *entry) error {
	if e.stray {
		if err := d.killAll(e); err != nil {
			return err
		}
	} else {
		signal(e.pidfd, signalKill)
	}
	hung := time.NewTimer(shimTimeout)
	defer hung.Stop()
	select {
	case <-e.gone:
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-hung.C:
		signal(e.pidfd, unix.SIGKILL)
		if err := d.killAll(e); err != nil {
			return err
		}
		<-e.gone
	}
	d.handleEnd(e)
	return nil
}

// Remove ends the instance and deletes its directory and cgroups.
func (d *Driver) Remove(ctx context.Context, id string) error {
	_, err := d.operate(ctx, id, func(ctx context.Context, e *entry) error {
		if e.live {
			if err := d.force(ctx, e); err != nil {
				return err
			}
		}
		return d.removeTraces(e)
	})
	return err
}

// removeTraces takes every trace of an ended instance away. Its secrets go first,
// while its record still says where they are. Then the directory changes its
// name: half deleted, it must not look like an instance.
func (d *Driver) removeTraces(e *entry) error {
	if err := e.folder.remove(); err != nil {
		return err
	}
	gone := filepath.Join(d.root, gonePrefix+e.id)
	if err := os.Rename(e.dir, gone); err != nil && !isGone(err) {
		return err
	}
	if err := removeAll(gone); err != nil {
		return err
	}
	if err := d.groupOf(e.id).remove(); err != nil {
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	e.observed = driver.Observed{}
	if d.entries[e.id] == e {
		delete(d.entries, e.id)
	}
	d.freePorts(e.id)
	d.freeUID(e.id)
	return nil
}

// removeAll deletes a tree, also what an instance has closed against us.
func removeAll(path string) error {
	if os.RemoveAll(path) == nil {
		return nil
	}
	if info, err := os.Lstat(path); err == nil && info.IsDir() {
		_ = os.Chmod(path, 0o700) // ours, and no link
		_ = walkTree(path, func(root *os.Root, below string) error {
			if info, err := root.Lstat(below); err == nil && info.IsDir() {
				_ = root.Chmod(below, 0o700) // what stays closed shows when it is removed
			}
			return nil
		})
	}
	return os.RemoveAll(path)
}
