package lxc

import (
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// lxc-start says in its log how the first process of a container started and ended.
var (
	logStarted  = regexp.MustCompile(`Started ".*" with pid "(\d+)"`)
	logEnded    = regexp.MustCompile(`Child <\d+> ended on (?:error \((\d+)\)|signal .*\((\d+)\))`)
	logError    = regexp.MustCompile(`(?m)^lxc-start \S+ \d+\.\d+ ERROR +\S+ - [^ ]+:\d+ - (.*)$`)
	logNoExec   = regexp.MustCompile(`(.*) - Failed to exec "(.*)"$`)
	logMount    = regexp.MustCompile(`(.*) - Failed to mount "(.*)" on "(.*)"`)
	logWorkDir  = regexp.MustCompile(`Could not change directory to "(.*)"`)
	rootfsMount = regexp.MustCompile(`^.*/lxc/rootfs`)
)

const (
	// maxLog bounds the log of lxc-start, which grows with every reboot of its container.
	maxLog       = 1 << 20
	trimInterval = 5 * time.Second
	// endSize is how much of it is read when the container has ended.
	endSize = 64 << 10
)

// trimLog empties a log that has become too large. What is written later counts.
func trimLog(path string) {
	if info, err := os.Stat(path); err == nil && info.Size() > maxLog {
		_ = os.Truncate(path, 0) // tried again later
	}
}

// tailOf returns the end of a file; empty if it cannot be read.
func tailOf(path string, size int64) []byte {
	f, err := os.Open(path)
	if err != nil {
		return nil
	}
	defer f.Close() // it was only read
	if info, err := f.Stat(); err == nil && info.Size() > size {
		if _, err := f.Seek(-size, io.SeekEnd); err != nil {
			return nil
		}
	}
	b, _ := io.ReadAll(io.LimitReader(f, 2*size)) // what was read counts
	return b
}

// startedPID returns the first process that a container last had.
func startedPID(log string) (int, bool) {
	all := logStarted.FindAllStringSubmatch(log, -1)
	if len(all) == 0 {
		return 0, false
	}
	pid, err := strconv.Atoi(all[len(all)-1][1])
	return pid, err == nil
}

// howEnded describes the end of a container. Its init ends with a signal when it is shut down:
// the kernel tells lxc-start so.
func howEnded(log string, outOfMemory bool, lxc syscall.WaitStatus) (*int, string) {
	all := logEnded.FindAllStringSubmatch(log, -1)
	switch {
	case len(all) == 0 && lxc.Signaled():
		return nil, fmt.Sprintf("ended; how is unknown, because lxc-start was killed by signal %d (%s)", lxc.Signal(), unix.SignalName(lxc.Signal()))
	case log == "":
		return nil, "ended; how is unknown, because the log of lxc-start is gone"
	}
	code, signal := 0, 0
	if len(all) > 0 {
		last := all[len(all)-1]
		code, _ = strconv.Atoi(last[1])
		signal, _ = strconv.Atoi(last[2])
	}
	killed := signal == int(unix.SIGKILL) || code == 128+int(unix.SIGKILL)
	switch {
	case killed && outOfMemory:
		code = 128 + int(unix.SIGKILL)
		return &code, "ran out of memory and was killed"
	case signal == int(unix.SIGINT):
		code = 0
		return &code, "was shut down"
	case signal != 0:
		code = 128 + signal
		return &code, fmt.Sprintf("killed by signal %d (%s)", signal, unix.SignalName(syscall.Signal(signal)))
	}
	return &code, fmt.Sprintf("exited with code %d", code)
}

// explainLog says why a container did not start.
func explainLog(log string) error {
	all := logError.FindAllStringSubmatch(log, -1)
	for _, m := range all {
		text := m[1]
		if exec := logNoExec.FindStringSubmatch(text); exec != nil {
			if strings.HasPrefix(exec[1], "No such file") {
				return fmt.Errorf("its image has no program %s: check `command` and `entrypoint`", exec[2])
			}
			return fmt.Errorf("its program %s cannot be executed: %s", exec[2], strings.ToLower(exec[1]))
		}
		if mount := logMount.FindStringSubmatch(text); mount != nil {
			return fmt.Errorf("nothing can be mounted at %s of its image: %s", rootfsMount.ReplaceAllString(mount[3], ""), strings.ToLower(mount[1]))
		}
		if dir := logWorkDir.FindStringSubmatch(text); dir != nil {
			return fmt.Errorf("its image has no directory %s: check `working_dir`", dir[1])
		}
	}
	if len(all) == 0 {
		return errors.New("lxc-start did not start the container, and does not say why")
	}
	return fmt.Errorf("lxc-start did not start the container: %s", all[0][1])
}

// haltSignal returns the signal that stops a container gracefully. systemd reads its own from a
// file; other inits understand that of a power failure.
func haltSignal(pid int, hasInit bool) unix.Signal {
	const systemdHalt = 34 + 3 // SIGRTMIN+3
	switch {
	case !hasInit:
		return unix.SIGTERM
	case blocks(pid, systemdHalt):
		return unix.Signal(systemdHalt)
	}
	return unix.SIGPWR
}
