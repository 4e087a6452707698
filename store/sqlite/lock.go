package sqlite

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"syscall"
)

// lock keeps other processes away from the store's file. SQLite would let them share it,
// but the writer keeps leases and claims in memory and would not see theirs. The kernel
// releases it with the process, however that ends.
type lock struct{ file *os.File }

func lockFile(path string) (*lock, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	if errors.Is(err, syscall.EWOULDBLOCK) {
		err = fmt.Errorf("in use by process %s: stop that process first", owner(f))
	}
	if err == nil {
		err = writePID(f)
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return &lock{f}, nil
}

// writePID stores the process id in the file, for the error message of the next process.
func writePID(f *os.File) error {
	if err := f.Truncate(0); err != nil {
		return err
	}
	_, err := f.WriteAt(fmt.Appendln(nil, os.Getpid()), 0)
	return err
}

func owner(f *os.File) string {
	b, err := io.ReadAll(io.LimitReader(f, 32))
	pid := strings.TrimSpace(string(b))
	if err != nil || pid == "" {
		return "(unknown)"
	}
	return pid
}

// free releases the lock. The file stays: removing it would race with a process that
// opens it.
func (l *lock) free() error { return l.file.Close() }
