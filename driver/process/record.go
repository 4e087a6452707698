package process

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"mariposa/driver"
)

// The files of an instance's directory. The holder of the lock writes: the
// agent before it hands the lock to a new shim and after a shim has died, the
// shim in between.
const (
	lockFile    = "lock"
	specFile    = "spec.json"  // what to run; by the agent
	stateFile   = "state.json" // what runs; by the shim
	exitFile    = "exit.json"  // how it ended; by the shim, or by the agent when the shim could not
	logFile     = "log"
	shimLogFile = "shim.log" // what a shim says when it dies of a fault of its own
	workDir     = "work"
)

// Directories that are being made or taken away; never instances.
const (
	newPrefix  = ".new-"
	gonePrefix = ".gone-"
)

// spec is what is written down of an instance: all that a shim needs to know but
// the command and its environment, which may hold secrets.
type spec struct {
	ID             string        `json:"id"`
	Name           string        `json:"name,omitempty"`
	Project        string        `json:"project,omitempty"`
	Root           string        `json:"root"` // where the instance was made; a copy of the directory is not it
	Labels         driver.Labels `json:"labels"`
	Run            int           `json:"run"` // grows with every start; ties state and exit to it
	ManualRestarts int           `json:"bounces,omitempty"`
	Private        string        `json:"private"` // the folder of its files and values
	Ports          []port        `json:"ports,omitempty"`
	Volumes        []string      `json:"volumes,omitempty"`   // where those are that it uses, and its networks
	Mode           mode          `json:"isolation,omitempty"` // how it is kept apart
	UID            int           `json:"uid,omitempty"`       // whom an isolated one runs as
	Processes      int64         `json:"processes,omitempty"` // how many an isolated one may have
	Memory         int64         `json:"memory,omitempty"`
	MilliCPU       int64         `json:"milli_cpu,omitempty"`
	LogSize        int64         `json:"log_size"`
	LogFiles       int           `json:"log_files"`
	Cgroups        hierarchy     `json:"cgroups"`
	Group          string        `json:"group"` // the name of its cgroups
}

// orders say what a shim runs, and behind which walls. They are handed over in
// memory.
type orders struct {
	Argv    []string `json:"argv"`
	Env     []string `json:"env"`
	WorkDir string   `json:"work_dir"`          // where it starts
	Sandbox *sandbox `json:"sandbox,omitempty"` // nil: it is not isolated
}

// port is a port of the workload and the one it got on this machine.
type port struct {
	Target int `json:"target"`
	Port   int `json:"port"`
}

// state is what runs, with what it takes to recognise it beyond doubt.
type state struct {
	Run            int       `json:"run"`
	Boot           string    `json:"boot"`
	Shim           int       `json:"shim"`
	ShimStart      uint64    `json:"shim_start"`
	PID            int       `json:"pid"`
	Start          uint64    `json:"start"`
	Started        time.Time `json:"started"`
	ManualRestarts int       `json:"bounces,omitempty"`
	Limits         string    `json:"limits,omitempty"`
}

// exit is how a run ended.
type exit struct {
	Run    int       `json:"run"`
	Code   *int      `json:"code,omitempty"` // 128 plus the signal when one killed it
	Reason string    `json:"reason"`
	At     time.Time `json:"at"`
}

// report is what a shim reports once to the agent that started it.
type report struct {
	State state  `json:"state,omitzero"`
	Error string `json:"error,omitempty"`
}

// writeJSON replaces a file at once, so that a reader meets the old or the new.
func writeJSON(path string, v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return err
	}
	if err := os.WriteFile(path+".tmp", b, 0o600); err != nil {
		return err
	}
	return os.Rename(path+".tmp", path)
}

func readJSON(path string, v any) error {
	b, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	return json.Unmarshal(b, v)
}

// readState finds the state of one run; false when that run never got so far.
func readState(dir string, run int) (state, bool) {
	var s state
	err := readJSON(filepath.Join(dir, stateFile), &s)
	return s, err == nil && s.Run == run
}

// readExit finds the end of one run; false when it left none.
func readExit(dir string, run int) (exit, bool) {
	var x exit
	err := readJSON(filepath.Join(dir, exitFile), &x)
	return x, err == nil && x.Run == run
}

// errLocked: another process holds the lock, so it lives.
var errLocked = errors.New("locked by another process")

// tryLock takes a lock file, or says errLocked. The lock lives as long as any
// copy of the file: an agent hands its copy to the shim, without a gap.
func tryLock(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		_ = f.Close()
		if errors.Is(err, unix.EWOULDBLOCK) {
			return nil, errLocked
		}
		return nil, err
	}
	return f, nil
}

// lockWithin retries for a while: between fork and exec of any child of ours,
// a copy of every file we have open lives on for a moment.
func lockWithin(path string, d time.Duration) (*os.File, error) {
	deadline := time.Now().Add(d)
	for {
		f, err := tryLock(path)
		if !errors.Is(err, errLocked) || time.Now().After(deadline) {
			return f, err
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// checkID keeps ids from being paths.
func checkID(id string) error {
	if id == "" || len(id) > 200 || id[0] == '.' || strings.ContainsAny(id, "/\x00=") {
		return fmt.Errorf("invalid id of a process instance: %q", id)
	}
	return nil
}
