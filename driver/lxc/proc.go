package lxc

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// proc is a process. Pid and start time together identify one; a pid alone does not.
type proc struct {
	pid   int
	start uint64 // in clock ticks since boot
}

// readProc reads a process and its parent; false if it is gone or a zombie.
func readProc(pid int) (p proc, parent int, ok bool) {
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
	p.pid = pid
	p.start, err = strconv.ParseUint(f[19], 10, 64)
	parent, _ = strconv.Atoi(f[1])
	return p, parent, err == nil
}

// alive reports whether this process still runs.
func (p proc) alive() bool {
	now, _, ok := readProc(p.pid)
	return ok && now == p
}

// open returns a pidfd that is certain to refer to this process, not to a later one with the
// same pid; false if the process is gone.
func (p proc) open() (int, bool) {
	if p.pid <= 0 {
		return -1, false
	}
	fd, err := unix.PidfdOpen(p.pid, unix.PIDFD_NONBLOCK)
	if errors.Is(err, unix.EINVAL) { // before Linux 5.10
		if fd, err = unix.PidfdOpen(p.pid, 0); err == nil {
			err = unix.SetNonblock(fd, true)
		}
	}
	if err != nil {
		return -1, false
	}
	if !p.alive() {
		_ = unix.Close(fd)
		return -1, false
	}
	return fd, true
}

// kill sends a signal to this process, if it still runs.
func (p proc) kill(s unix.Signal) {
	if fd, ok := p.open(); ok {
		_ = unix.PidfdSendSignal(fd, s, nil, 0) // it may have ended meanwhile
		_ = unix.Close(fd)
	}
}

// awaitEnd waits until the process of a pidfd has ended, or the file is closed.
func awaitEnd(pidfd *os.File) error {
	raw, err := pidfd.SyscallConn()
	if err != nil {
		return err
	}
	return raw.Read(func(fd uintptr) bool {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 0) //nolint:gosec // a file descriptor fits
		return n > 0 || err != nil && !errors.Is(err, unix.EINTR)
	})
}

// blocks reports whether a process blocks a signal, to read it from a file instead.
func blocks(pid, signal int) bool { return hasSignal(pid, signal, "SigBlk:") }

// handles reports whether a process does something about a signal: now, or when it reads those
// that it blocks.
func handles(pid, signal int) bool {
	return hasSignal(pid, signal, "SigCgt:") || hasSignal(pid, signal, "SigBlk:")
}

// hasSignal reports whether a signal is in one of the sets of a process.
func hasSignal(pid, signal int, set string) bool {
	b, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "status"))
	if err != nil {
		return false
	}
	for line := range strings.Lines(string(b)) {
		if text, ok := strings.CutPrefix(line, set); ok {
			mask, err := strconv.ParseUint(strings.TrimSpace(text), 16, 64)
			return err == nil && mask&(1<<(signal-1)) != 0
		}
	}
	return false
}

// bootID identifies this boot of the machine.
func bootID() string {
	b, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
}
