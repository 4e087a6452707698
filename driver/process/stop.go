package process

import (
	"context"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"mariposa/driver"
)

// These are the signals that a shim handles.
const (
	signalStop = unix.SIGTERM // stop gracefully
	signalKill = unix.SIGUSR1 // kill
)

// Stop ends the whole process group: SIGTERM, then SIGKILL after timeout.
func (d *Driver) Stop(ctx context.Context, id string, timeout time.Duration) (driver.Observed, error) {
	return d.operate(ctx, id, func(ctx context.Context, e *entry) error { return d.stop(ctx, e, timeout) })
}

func (d *Driver) stop(ctx context.Context, e *entry, timeout time.Duration) error {
	if !e.live {
		return nil
	}
	d.stopGracefully(e)
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

func (d *Driver) stopGracefully(e *entry) {
	if !e.stray {
		signal(e.pidfd, signalStop)
		return
	}
	left, _ := d.leftoverProcesses(e)
	for _, p := range left {
		p.kill(unix.SIGTERM)
	}
}

// force kills an instance. If its shim does not manage that, the shim and all processes
// of the instance are killed directly.
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

// removeTraces removes an ended instance. Its secrets go first, while its record still
// says where they are. Then the directory is renamed: a half-deleted one must not look
// like an instance.
func (d *Driver) removeTraces(e *entry) error {
	if err := e.private.remove(); err != nil {
		return err
	}
	gone := filepath.Join(d.root, gonePrefix+e.id)
	if err := os.Rename(e.dir, gone); err != nil && !isGone(err) {
		return err
	}
	if err := removeAll(gone); err != nil {
		return err
	}
	if err := d.groupOf(e).remove(); err != nil {
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

// removeAll deletes a tree, including directories that an instance has made inaccessible.
func removeAll(path string) error {
	if os.RemoveAll(path) == nil {
		return nil
	}
	if info, err := os.Lstat(path); err == nil && info.IsDir() {
		_ = os.Chmod(path, 0o700) // our own directory, not a link
		_ = walkTree(path, func(root *os.Root, below string) error {
			if info, err := root.Lstat(below); err == nil && info.IsDir() {
				_ = root.Chmod(below, 0o700) // an error shows up when it is removed
			}
			return nil
		})
	}
	return os.RemoveAll(path)
}
