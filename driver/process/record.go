package process

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"mariposa"
	"mariposa/driver"
)

// These are the files in an instance's directory. The holder of the lock writes them: the
// agent until it passes the lock to a new shim and after a shim has died, the shim in
// between.
const (
	lockFile    = "lock"
	specFile    = "spec.json"  // the instance; written by the agent
	stateFile   = "state.json" // the running process; written by the shim
	exitFile    = "exit.json"  // how it ended; written by the shim, or by the agent if the shim was killed
	logFile     = "log"
	shimLogFile = "shim.log" // the output of a shim that crashes
	workDir     = "work"
)

// These prefixes mark directories that are being created or removed. They are never
// instances.
const (
	newPrefix  = ".new-"
	gonePrefix = ".gone-"
)

// spec is the stored part of an instance: all that a shim needs to know except the
// command and its environment, which may contain secrets.
type spec struct {
	ID             string               `json:"id"`
	Name           string               `json:"name,omitempty"`
	Project        string               `json:"project,omitempty"`
	Root           string               `json:"root"` // where the instance was created; a copy of the directory is not the instance
	Labels         driver.Labels        `json:"labels"`
	Origin         *mariposa.Provenance `json:"origin,omitempty"`
	Run            int                  `json:"run"` // incremented with every start; state and exit refer to it
	ManualRestarts int                  `json:"bounces,omitempty"`
	Private        string               `json:"private"` // the directory of its files and values
	Ports          []port               `json:"ports,omitempty"`
	Volumes        []string             `json:"volumes,omitempty"`   // the directories of its volumes and networks
	Mode           mode                 `json:"isolation,omitempty"` // how it is isolated
	UID            int                  `json:"uid,omitempty"`       // the uid of an isolated instance
	Processes      int64                `json:"processes,omitempty"` // how many an isolated instance may have
	Memory         int64                `json:"memory,omitempty"`
	MilliCPU       int64                `json:"milli_cpu,omitempty"`
	LogSize        int64                `json:"log_size"`
	LogFiles       int                  `json:"log_files"`
	Cgroups        hierarchy            `json:"cgroups"`
	Group          string               `json:"group"` // the name of its cgroups
}

// startRequest says what a shim runs, and with which isolation. It is passed in memory.
type startRequest struct {
	Argv    []string `json:"argv"`
	Env     []string `json:"env"`
	WorkDir string   `json:"work_dir"`          // where it starts
	Sandbox *sandbox `json:"sandbox,omitempty"` // nil: it is not isolated
}

// port is a port of the workload and its port on this machine.
type port struct {
	Target int `json:"target"`
	Port   int `json:"port"`
}

// state is the running process, with enough data to recognize it reliably.
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

// exit records how a run ended.
type exit struct {
	Run    int       `json:"run"`
	Code   *int      `json:"code,omitempty"` // 128 plus the signal, if one killed it
	Reason string    `json:"reason"`
	At     time.Time `json:"at"`
}

// report is sent once by a shim to the agent that started it.
type report struct {
	State state  `json:"state,omitzero"`
	Error string `json:"error,omitempty"`
}

// writeJSON replaces a file atomically: readers see either the old or the new content.
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

// readState reads the state of a run; false if that run did not get that far.
func readState(dir string, run int) (state, bool) {
	var s state
	err := readJSON(filepath.Join(dir, stateFile), &s)
	return s, err == nil && s.Run == run
}

// readExit reads the end of a run; false if it was not recorded.
func readExit(dir string, run int) (exit, bool) {
	var x exit
	err := readJSON(filepath.Join(dir, exitFile), &x)
	return x, err == nil && x.Run == run
}

// checkID rejects ids that could be used as paths.
func checkID(id string) error {
	if id == "" || len(id) > 200 || id[0] == '.' || strings.ContainsAny(id, "/\x00=") {
		return fmt.Errorf("invalid id of a process instance: %q", id)
	}
	return nil
}
