// Package lockfile takes locks on files. A lock shows that a process is alive: the kernel
// releases it when the process ends. The package owns no files.
package lockfile

import (
	"context"
	"errors"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// ErrLocked means that another process holds the lock, so that process is alive.
var ErrLocked = errors.New("locked by another process")

// retryPause is how long to wait before a lock is tried again.
const retryPause = 5 * time.Millisecond

// Try takes a lock, or returns ErrLocked. The lock lasts as long as any copy of the open file,
// so a process can pass its copy to a child without a gap.
func Try(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		_ = f.Close() // it was only opened
		if errors.Is(err, unix.EWOULDBLOCK) {
			return nil, ErrLocked
		}
		return nil, err
	}
	return f, nil
}

// Within tries for a while: between fork and exec, any child of ours has a copy of every file
// that we have open.
func Within(path string, d time.Duration) (*os.File, error) {
	deadline := time.Now().Add(d)
	for {
		f, err := Try(path)
		if !errors.Is(err, ErrLocked) || time.Now().After(deadline) {
			return f, err
		}
		time.Sleep(retryPause)
	}
}

// Wait takes a lock once nobody else holds it, unless the context ends first.
func Wait(ctx context.Context, path string) (*os.File, error) {
	for {
		f, err := Try(path)
		if !errors.Is(err, ErrLocked) {
			return f, err
		}
		select {
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		case <-time.After(retryPause):
		}
	}
}
