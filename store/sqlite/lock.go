package sqlite

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// lock keeps other processes away from the store's file. SQLite would let them share it,
// but the writer keeps leases and claims in memory and would not see theirs. The kernel
// releases it with the process, however that ends.
type lock struct{ file *os.File }

// forkTime is how long a child of a killed process may keep the lock: until it has executed its
// program, which closes the file.
const forkTime = 5 * time.Second

func lockFile(path string) (*lock, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	for deadline := time.Now().Add(forkTime); ; {
		err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if !errors.Is(err, syscall.EWOULDBLOCK) {
			break
		}
		by := owner(f)
		if isAlive(by) || time.Now().After(deadline) {
			err = fmt.Errorf("in use by process %s: stop that process first", by)
			break
		}
		time.Sleep(5 * time.Millisecond)
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
	b, err := io.ReadAll(io.NewSectionReader(f, 0, 32))
	pid := strings.TrimSpace(string(b))
	if err != nil || pid == "" {
		return "(unknown)"
	}
	return pid
}

// isAlive reports whether a process exists; true if it cannot be known.
func isAlive(pid string) bool {
	n, err := strconv.Atoi(pid)
	return err != nil || !errors.Is(syscall.Kill(n, 0), syscall.ESRCH)
}

// free releases the lock, also for children that have not executed their program yet. The file
// stays: removing it would race with a process that opens it.
func (l *lock) free() error {
	return errors.Join(syscall.Flock(int(l.file.Fd()), syscall.LOCK_UN), l.file.Close())
}
