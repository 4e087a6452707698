// Package supervise starts supervisors: processes of our own binary that run one instance each,
// record how it ended, and outlive the agent. An agent that is killed at any moment finds every
// supervisor again, by the lock that it holds in the directory of its instance.
//
// The package owns the lock, the state and the end in that directory, and the start of a
// supervisor. It does not know what supervisors run.
package supervise

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"mariposa/driver/lockfile"
	"mariposa/driver/osproc"
	"mariposa/driver/statefile"
)

// These are in the directory of an instance.
const (
	stateFile = "state.json"
	exitFile  = "exit.json"
	lockFile  = "lock"
	logFile   = "supervisor.log"
)

// Timeout is how long a supervisor may take for work that waits for nothing else.
const Timeout = 10 * time.Second

// State is a running instance, with enough data to recognize its processes reliably.
type State struct {
	Run             int       `json:"run"`
	Boot            string    `json:"boot"`
	Supervisor      int       `json:"supervisor"`
	SupervisorStart uint64    `json:"supervisor_start"`
	PID             int       `json:"pid"` // of its main process
	Start           uint64    `json:"start"`
	Started         time.Time `json:"started"`
	ManualRestarts  int       `json:"bounces,omitempty"`
}

// Process returns the supervisor.
func (s *State) Process() osproc.Process {
	return osproc.Process{PID: s.Supervisor, Start: s.SupervisorStart}
}

// Main returns the main process of the instance.
func (s *State) Main() osproc.Process { return osproc.Process{PID: s.PID, Start: s.Start} }

// Exit records how a run ended.
type Exit struct {
	Run    int       `json:"run"`
	Code   *int      `json:"code,omitempty"` // 128 plus the signal, if one killed it
	Reason string    `json:"reason"`
	At     time.Time `json:"at"`
}

// AnyRun means the last run, whichever it was.
const AnyRun = -1

// ReadState reads the state of a run; false if that run did not get that far.
func ReadState(dir string, run int) (s State, ok bool) {
	err := statefile.Read(filepath.Join(dir, stateFile), &s)
	return s, err == nil && (s.Run == run || run == AnyRun)
}

// ReadExit reads the end of a run; false if it was not recorded.
func ReadExit(dir string, run int) (x Exit, ok bool) {
	err := statefile.Read(filepath.Join(dir, exitFile), &x)
	return x, err == nil && x.Run == run
}

// WriteExit records the end of a run.
func WriteExit(dir string, x Exit) error { return statefile.Write(filepath.Join(dir, exitFile), x) }

// Find returns the supervisor of a run with its pidfd; nil if there is none. It waits for one that
// has just started until that has written its state. One that does not do so in time is killed.
func Find(dir string, run int, command string) (State, *os.File, error) {
	deadline := time.Now().Add(Timeout)
	for {
		lock, err := lockfile.Try(filepath.Join(dir, lockFile))
		if err == nil {
			return State{}, nil, lock.Close()
		}
		if !errors.Is(err, lockfile.ErrLocked) {
			return State{}, nil, err
		}
		if s, ok := ReadState(dir, run); ok {
			if fd, ok := s.Process().Open(); ok {
				return s, os.NewFile(uintptr(fd), "supervisor"), nil //nolint:gosec // a file descriptor is positive
			}
		}
		if time.Now().After(deadline) {
			for pid, args := range osproc.FindArgs(command) {
				if p, _, ok := osproc.Read(pid); ok && slices.Contains(args, dir) {
					p.Kill(unix.SIGKILL)
				}
			}
			deadline = time.Now().Add(Timeout)
		}
		time.Sleep(5 * time.Millisecond)
	}
}
