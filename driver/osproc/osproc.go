// Package osproc identifies processes of this machine reliably: a pid alone may belong to another
// process a moment later. It also starts commands that end with this process. It does not know
// whose they are.
package osproc

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Process is a process. Pid and start time together identify one.
type Process struct {
	PID   int
	Start uint64 // in clock ticks since boot
}

// Read reads a process and its parent; false if it is gone or a zombie.
func Read(pid int) (p Process, parent int, ok bool) {
	b, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "stat"))
	if err != nil {
		return p, 0, false
	}
	// The command in parentheses may itself contain spaces and parentheses.
	end := bytes.LastIndexByte(b, ')')
	if end < 0 {
		return p, 0, false
	}
	f := strings.Fields(string(b[end+1:]))
	if len(f) < 20 || f[0] == "Z" || f[0] == "X" {
		return p, 0, false
	}
	p.PID = pid
	p.Start, err = strconv.ParseUint(f[19], 10, 64)
	parent, _ = strconv.Atoi(f[1])
	return p, parent, err == nil
}

// Alive reports whether this process still runs.
func (p Process) Alive() bool {
	now, _, ok := Read(p.PID)
	return ok && now == p
}

// Open returns a pidfd that is certain to refer to this process, not to a later one with the
// same pid; false if the process is gone.
func (p Process) Open() (int, bool) {
	if p.PID <= 0 {
		return -1, false
	}
	fd, err := unix.PidfdOpen(p.PID, unix.PIDFD_NONBLOCK)
	if errors.Is(err, unix.EINVAL) { // before Linux 5.10
		if fd, err = unix.PidfdOpen(p.PID, 0); err == nil {
			err = unix.SetNonblock(fd, true)
		}
	}
	if err != nil {
		return -1, false
	}
	if !p.Alive() {
		_ = unix.Close(fd)
		return -1, false
	}
	return fd, true
}

// Kill sends a signal to this process, if it still runs.
func (p Process) Kill(s unix.Signal) {
	if fd, ok := p.Open(); ok {
		_ = unix.PidfdSendSignal(fd, s, nil, 0) // it may have ended meanwhile
		_ = unix.Close(fd)
	}
}

// AwaitEnd waits until the process of a pidfd has ended, or the file is closed.
func AwaitEnd(pidfd *os.File) error {
	raw, err := pidfd.SyscallConn()
	if err != nil {
		return err
	}
	return raw.Read(func(fd uintptr) bool {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 0) //nolint:gosec // a file descriptor fits
		return n > 0 || err != nil && !errors.Is(err, unix.EINTR)
	})
}

// Reap removes the zombie of a child. For the process of another parent it fails.
func Reap(pidfd *os.File) error {
	raw, err := pidfd.SyscallConn()
	if err != nil {
		return err
	}
	var failed error
	err = raw.Control(func(fd uintptr) {
		failed = unix.Waitid(unix.P_PIDFD, int(fd), nil, unix.WEXITED|unix.WNOHANG, nil)
	})
	if err != nil {
		return err
	}
	return failed
}

// FindArgs returns the arguments of all processes that run a program, or a command of ours, by
// pid.
func FindArgs(program string) map[int][]string {
	found := map[int][]string{}
	paths, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, path := range paths {
		b, err := os.ReadFile(path)
		if err != nil {
			continue // it has ended
		}
		args := strings.Split(strings.TrimSuffix(string(b), "\x00"), "\x00")
		if pid, err := strconv.Atoi(filepath.Base(filepath.Dir(path))); err == nil && (filepath.Base(args[0]) == program || len(args) > 1 && args[1] == program) {
			found[pid] = args
		}
	}
	return found
}

// BootID identifies this boot of the machine.
func BootID() string {
	b, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
}

// StartBound starts a command that has a signal for the death of its parent, and closes over when
// it has ended. The kernel sends the signal when the thread ends that has started the command, so
// that thread lives as long as this process.
func StartBound(cmd *exec.Cmd, over chan<- struct{}) error {
	started := make(chan error)
	go func() {
		runtime.LockOSThread()
		err := cmd.Start()
		started <- err
		if err != nil {
			return
		}
		_ = cmd.Wait() // its state says how it ended
		close(over)
		select {}
	}()
	return <-started
}
