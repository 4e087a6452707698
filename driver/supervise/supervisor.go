package supervise

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"mariposa/driver/osproc"
	"mariposa/driver/statefile"
)

// These are the open files of a supervisor.
const (
	lockFD    = 3
	reportFD  = 4
	requestFD = 5
)

// Task is what a supervisor was started for.
type Task struct {
	Dir     string // of its instance
	reports *os.File
}

// ErrByHand means that a person has started a supervisor.
var ErrByHand = errors.New("it is started by the agent: do not run it by hand")

// Accept takes over the directory that a supervisor was started for, and reads its request. args
// is what follows the command. Without a task, the error is for the person who started it.
func Accept(args []string, request any) (*Task, error) {
	if len(args) != 1 || !holdsLock(args[0]) {
		return nil, ErrByHand
	}
	for fd := lockFD; fd <= requestFD; fd++ {
		unix.CloseOnExec(fd)
	}
	t := &Task{Dir: args[0], reports: os.NewFile(reportFD, "report")}
	requests := os.NewFile(requestFD, "request")
	defer requests.Close() // its memory is no longer needed
	if err := json.NewDecoder(requests).Decode(request); err != nil {
		return t, fmt.Errorf("cannot read the start request: %w", err)
	}
	return t, nil
}

// holdsLock checks that the inherited file is the lock of this directory, and locked: an instance
// must never have two supervisors.
func holdsLock(dir string) bool {
	var ours, named unix.Stat_t
	return unix.Fstat(lockFD, &ours) == nil &&
		unix.Stat(filepath.Join(dir, lockFile), &named) == nil &&
		ours.Dev == named.Dev && ours.Ino == named.Ino &&
		unix.Flock(lockFD, unix.LOCK_EX|unix.LOCK_NB) == nil
}

// Refuse reports why the instance does not run.
func (t *Task) Refuse(err error) {
	_ = json.NewEncoder(t.reports).Encode(report{Error: err.Error()}) // fails if the agent was killed; it records the end itself
	_ = t.reports.Close()
}

// Write records that the instance runs, with its main process.
func (t *Task) Write(run, manualRestarts int, main osproc.Process) (State, error) {
	self, _, _ := osproc.Read(os.Getpid())
	s := State{
		Run: run, Boot: osproc.BootID(), Supervisor: self.PID, SupervisorStart: self.Start, PID: main.PID, Start: main.Start,
		Started: time.Now().UTC(), ManualRestarts: manualRestarts,
	}
	if err := statefile.Write(filepath.Join(t.Dir, stateFile), s); err != nil {
		return s, fmt.Errorf("cannot record its state: %w", err)
	}
	return s, nil
}

// Ready reports that the instance runs.
func (t *Task) Ready(s State) {
	_ = json.NewEncoder(t.reports).Encode(report{State: s}) // fails if the agent was killed; the next one reads the state
	_ = t.reports.Close()
}
