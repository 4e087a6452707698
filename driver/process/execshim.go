package process

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	ossignal "os/signal"
	"syscall"

	"golang.org/x/sys/unix"
)

// execArgument starts the supervisor of a command in an instance: `mariposa shim exec`.
const execArgument = "exec"

// These are its open files; 3 to 5 belong to the command.
const (
	execStreamsFD = 3
	execReportFD  = 6
	execRequestFD = 7
	execControlFD = 8
)

// execRequest says what it runs. It is passed in memory.
type execRequest struct {
	startRequest
	Dir      string   `json:"dir"`
	Groups   []string `json:"groups,omitempty"`
	Unified  bool     `json:"unified,omitempty"`
	Terminal bool     `json:"terminal,omitempty"`
}

// execReport is what it reports: that the command is running, or why not; then how it
// ended.
type execReport struct {
	Error   string `json:"error,omitempty"`
	Command bool   `json:"command,omitempty"` // the command itself caused the error
	PID     int    `json:"pid,omitempty"`     // of the running command, with its start time
	Start   uint64 `json:"start,omitempty"`
	Code    int    `json:"code"`
}

// execMain supervises one command in an instance. It forwards the signals that arrive on
// the control pipe. The pipe is closed when the session ends or the agent dies; then it
// kills the command and everything that the command started.
func execMain() int {
	for fd := execStreamsFD; fd <= execControlFD; fd++ {
		unix.CloseOnExec(fd)
	}
	var o execRequest
	request := os.NewFile(execRequestFD, "request")
	if json.NewDecoder(request).Decode(&o) != nil || len(o.Argv) == 0 {
		fmt.Fprintln(os.Stderr, "mariposa shim is started by the agent: do not run it by hand")
		return 2
	}
	_ = request.Close()
	closeInherited(execControlFD)
	reports := json.NewEncoder(os.NewFile(execReportFD, "report"))
	s := shim{deaths: make(chan os.Signal, 1)}
	ossignal.Notify(s.deaths, unix.SIGCHLD)
	// The control pipe ends the command. Signals that are caught here, rather than
	// ignored, have their default effect on the command.
	ossignal.Notify(make(chan os.Signal, 1), unix.SIGHUP, unix.SIGINT, unix.SIGTERM, unix.SIGUSR1)
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		_ = reports.Encode(execReport{Error: "cannot start supervising: " + err.Error()})
		return 1
	}
	command, err := s.run(&o)
	if err != nil {
		_ = reports.Encode(execReport{Error: err.Error(), Command: command})
		return 1
	}
	_ = reports.Encode(execReport{PID: s.child, Start: startOf(s.child)}) // fails if the agent was killed; then the control pipe is closed too
	s.watchControl(os.NewFile(execControlFD, "line"))
	_ = reports.Encode(execReport{Code: s.exitCode()})
	return 0
}

// run starts the command; the first result reports whether the command itself caused the
// error.
func (s *shim) run(o *execRequest) (bool, error) {
	var path string
	var err error
	look := func() {
		if err = checkStartDir(o.Dir, o.Sandbox != nil); err == nil {
			path, err = lookPath(o.Argv[0], o.Env, o.Dir)
		}
	}
	if o.Sandbox != nil {
		o.Sandbox.asInstance(look)
	} else {
		look()
	}
	if err != nil {
		return true, err
	}
	attr := syscall.ProcAttr{
		Dir: o.Dir, Env: o.Env, Files: []uintptr{execStreamsFD, execStreamsFD + 1, execStreamsFD + 2},
		Sys: &syscall.SysProcAttr{Setsid: true, Setctty: o.Terminal},
	}
	if o.Sandbox != nil {
		s.child, err = o.Sandbox.fork(path, o.Argv, attr)
	} else if len(o.Groups) > 0 {
		s.child, err = group{dirs: o.Groups, unified: o.Unified}.fork(path, o.Argv, attr)
	} else {
		s.child, err = syscall.ForkExec(path, o.Argv, &attr)
	}
	for fd := range 3 {
		_ = unix.Close(execStreamsFD + fd) // only the command may have them, or their end would go unnoticed
	}
	if errors.Is(err, unix.EACCES) || errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOEXEC) || errors.Is(err, unix.E2BIG) {
		return true, explain(o.Argv[0], path, err)
	}
	return false, err
}

// watchControl waits for the end of the command or of the control pipe.
func (s *shim) watchControl(control *os.File) {
	signals := make(chan unix.Signal)
	go func() { // ends with the program
		defer close(signals)
		for b := make([]byte, 1); ; {
			if n, err := control.Read(b); n == 0 || err != nil {
				return
			}
			signals <- unix.Signal(b[0])
		}
	}()
	for {
		select {
		case sig, more := <-signals:
			if !more {
				_ = unix.Kill(-s.child, unix.SIGKILL)
				s.killLeftovers()
				return
			}
			_ = unix.Kill(-s.child, sig)
		case <-s.deaths:
			if s.reap() {
				s.killLeftovers()
				return
			}
		}
	}
}
