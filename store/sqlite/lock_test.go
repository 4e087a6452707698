package sqlite

import (
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"
)

// inherit starts a process that has a lock's file open for a while, like a child that has not
// executed its program yet.
func inherit(t *testing.T, l *lock, d time.Duration) {
	t.Helper()
	child := exec.CommandContext(t.Context(), "sleep", strconv.FormatFloat(d.Seconds(), 'f', -1, 64))
	child.ExtraFiles = []*os.File{l.file}
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = child.Wait() })
}

// A lock that was given back is free at once, whoever has inherited its file.
func TestALockIsFreeAlthoughAChildHasItsFile(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "lock")
	l, err := lockFile(path)
	if err != nil {
		t.Fatal(err)
	}
	inherit(t, l, time.Minute)
	if _, err := lockFile(path); err == nil || !strings.Contains(err.Error(), "in use by process "+strconv.Itoa(os.Getpid())) {
		t.Errorf("locked twice: %v", err)
	}
	if err := l.free(); err != nil {
		t.Fatal(err)
	}
	begun := time.Now()
	again, err := lockFile(path)
	if err != nil || time.Since(begun) > forkTime {
		t.Fatalf("after %v: %v", time.Since(begun), err)
	}
	if err := again.free(); err != nil {
		t.Fatal(err)
	}
}

// The child of a process that was killed keeps the lock for a moment: it is waited for.
func TestALockOfAKilledProcessIsWaitedFor(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "lock")
	l, err := lockFile(path)
	if err != nil {
		t.Fatal(err)
	}
	gone := exec.CommandContext(t.Context(), "true")
	if err := gone.Run(); err != nil {
		t.Fatal(err)
	}
	// As if the owner had died.
	if err := l.file.Truncate(0); err != nil {
		t.Fatal(err)
	}
	if _, err := l.file.WriteAt([]byte(strconv.Itoa(gone.Process.Pid)+"\n"), 0); err != nil {
		t.Fatal(err)
	}
	inherit(t, l, 200*time.Millisecond)
	if err := l.file.Close(); err != nil { // without unlocking, as the kernel does
		t.Fatal(err)
	}
	again, err := lockFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := again.free(); err != nil {
		t.Fatal(err)
	}
}
