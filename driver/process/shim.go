package process

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	ossignal "os/signal"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"mariposa/driver/logfile"
	"mariposa/driver/streams"
)

// ShimMain is the supervisor of one instance: `mariposa shim DIR`. Only the driver starts
// it. args is what follows "shim"; the result is the exit code of the program. It runs on
// one goroutine, plus one that copies the log. Other arguments start the other helper
// programs of an instance: the supervisor of a command in it, and the first process of
// its namespaces.
func ShimMain(args []string) int {
	if len(args) == 1 {
		switch args[0] {
		case execArgument:
			return execMain()
		case initArgument:
			return initMain()
		case holdArgument:
			select {}
		}
	}
	if len(args) != 1 || !holdsLock(args[0]) {
		fmt.Fprintln(os.Stderr, "mariposa shim is started by the agent: do not run it by hand")
		return 2
	}
	unix.CloseOnExec(shimLockFD)
	unix.CloseOnExec(shimReportFD)
	unix.CloseOnExec(shimRequestFD)
	closeInherited(shimRequestFD)
	s := shim{dir: args[0], boot: bootID(), reports: os.NewFile(shimReportFD, "report")}
	if err := s.holdDir(); err != nil {
		return s.refuse(fmt.Errorf("cannot open the directory of the instance: %w", err))
	}
	// Orphaned processes become our children, whatever their session, so that none
	// outlives the instance unnoticed.
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return s.refuse(fmt.Errorf("cannot start supervising: %w", err))
	}
	if err := readJSON(filepath.Join(s.dir, specFile), &s.spec); err != nil {
		return s.refuse(fmt.Errorf("cannot read the start request: %w", err))
	}
	if err := s.readRequest(); err != nil {
		return s.refuse(fmt.Errorf("cannot read the start request: %w", err))
	}
	if err := s.start(); err != nil {
		return s.refuse(err)
	}
	s.supervise()
	s.finish()
	return 0
}

// holdsLock checks that the inherited file is the lock of this directory, and locked: an
// instance must never have two shims.
func holdsLock(dir string) bool {
	var ours, named unix.Stat_t
	return unix.Fstat(shimLockFD, &ours) == nil &&
		unix.Stat(filepath.Join(dir, lockFile), &named) == nil &&
		ours.Dev == named.Dev && ours.Ino == named.Ino &&
		unix.Flock(shimLockFD, unix.LOCK_EX|unix.LOCK_NB) == nil
}

// holdDir makes the shim find its directory wherever that is moved while the instance runs.
func (s *shim) holdDir() (err error) {
	s.held, err = os.Open(s.dir)
	return err
}

// file returns the path of a file in the directory of the instance, wherever that is now.
func (s *shim) file(name string) string {
	return "/proc/self/fd/" + strconv.Itoa(int(s.held.Fd())) + "/" + name
}

type shim struct {
	dir  string   // the directory of the instance, when it was started
	held *os.File // the same, wherever it is now
	boot string
	spec spec
	startRequest
	reports *os.File // for one report to the agent

	group       group
	limits      string
	child       int // the command, or the init of an isolated instance
	command     int
	initReports int // from the init, if there is one
	status      syscall.WaitStatus
	isolated    bool
	signals     chan os.Signal
	deaths      chan os.Signal
	logged      chan struct{} // closed when the log is complete
	output      *os.File
}

// readRequest reads what to run, and frees the memory in which it was passed.
func (s *shim) readRequest() error {
	f := os.NewFile(shimRequestFD, "request")
	defer f.Close()
	if err := json.NewDecoder(f).Decode(&s.startRequest); err != nil {
		return err
	}
	if len(s.Argv) == 0 {
		return errors.New("the command is empty")
	}
	return nil
}

// start runs the command and reports that to the agent. If it fails, it leaves nothing
// behind.
func (s *shim) start() error {
	root := filepath.Dir(s.dir)
	failpoint(root, "born")
	log, err := logfile.Open(s.file(logFile), s.spec.LogSize, s.spec.LogFiles)
	if err != nil {
		return fmt.Errorf("cannot open the log: %w", err)
	}
	// Signals are caught before the command starts, or its early end would be missed.
	// Those that an agent under nohup ignores get their default effect in the command,
	// too.
	s.signals, s.deaths = make(chan os.Signal, 8), make(chan os.Signal, 1)
	ossignal.Notify(s.signals, unix.SIGTERM, unix.SIGINT, unix.SIGHUP, unix.SIGUSR1)
	ossignal.Notify(s.deaths, unix.SIGCHLD)
	s.group, s.limits = s.spec.Cgroups.makeGroup(&s.spec)
	output, input, err := streams.Pipe(true)
	if err != nil {
		return err
	}
	err = s.startCommand(input)
	_ = input.Close()
	if err != nil {
		_ = s.group.remove()
		return err
	}
	s.isolated = s.Sandbox != nil
	s.startRequest = startRequest{} // no longer needed
	failpoint(root, "forked")
	s.output, s.logged = output, make(chan struct{})
	go copyOutput(log, output, s.logged)
	s.sendReport(report{State: s.writeState()})
	return nil
}

// startCommand starts the command, under an init if it is isolated.
func (s *shim) startCommand(output *os.File) error {
	if s.Sandbox != nil {
		return s.startInit(output)
	}
	if err := checkStartDir(s.WorkDir, false); err != nil {
		return err
	}
	path, err := lookPath(s.Argv[0], s.Env, s.WorkDir)
	if err != nil {
		return err
	}
	null, err := os.Open(os.DevNull)
	if err != nil {
		return err
	}
	defer null.Close()
	s.child, err = s.fork(path, s.Argv, syscall.ProcAttr{
		Dir: s.WorkDir, Env: s.Env, Files: []uintptr{null.Fd(), output.Fd(), output.Fd()},
		Sys: &syscall.SysProcAttr{Setsid: true},
	})
	if err != nil {
		return explain(s.Argv[0], path, err)
	}
	s.command = s.child
	return nil
}

// writeState records the running process. If this fails, the instance still runs, but a
// later agent takes it for a hung start and kills it.
func (s *shim) writeState() state {
	st := state{
		Run: s.spec.Run, Boot: s.boot, Shim: os.Getpid(), PID: s.command,
		Started: time.Now().UTC(), ManualRestarts: s.spec.ManualRestarts, Limits: s.limits,
	}
	st.ShimStart = startOf(st.Shim)
	st.Start = startOf(st.PID)
	if err := writeJSON(s.file(stateFile), st); err != nil {
		fmt.Fprintln(os.Stderr, "cannot write the state:", err)
	}
	failpoint(filepath.Dir(s.dir), "noted")
	return st
}

// startOf returns the start time of a child, even of a zombie: it is not reaped yet, so
// its pid is not reused.
func startOf(pid int) uint64 {
	b, _ := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	_, start := parseStat(b)
	return start
}

func (s *shim) sendReport(r report) {
	b, _ := json.Marshal(r)
	_, _ = s.reports.Write(b) // fails if the agent was killed
	_ = s.reports.Close()
}

// refuse ends a shim whose command could not be started.
func (s *shim) refuse(err error) int {
	x := exit{Run: s.spec.Run, Reason: err.Error(), At: time.Now().UTC()}
	if len(s.Argv) > 0 {
		x.Reason = withoutName(x.Reason, s.Argv[0])
	}
	if s.spec.Run > 0 {
		_ = writeJSON(s.file(exitFile), x)
	}
	s.sendReport(report{Error: err.Error()})
	return 1
}

// supervise forwards signals until the command and everything that it started have ended.
func (s *shim) supervise() {
	for {
		select {
		case sig := <-s.signals:
			s.forwardSignal(sig)
		case <-s.deaths:
			if s.reap() {
				s.killLeftovers()
				return
			}
		}
	}
}

func (s *shim) forwardSignal(sig os.Signal) {
	switch {
	case s.isolated && sig == unix.SIGUSR1:
		_ = unix.Kill(s.child, unix.SIGKILL) // everything in its namespaces ends with it
		return
	case s.isolated && (sig == unix.SIGTERM || sig == unix.SIGINT):
		_ = unix.Kill(s.child, unix.SIGTERM) // it forwards the signal
		return
	case s.isolated:
		return
	}
	switch sig {
	case unix.SIGUSR1:
		_ = unix.Kill(-s.child, unix.SIGKILL)
	case unix.SIGTERM, unix.SIGINT:
		_ = unix.Kill(-s.child, unix.SIGTERM)
		_ = unix.Kill(-s.child, unix.SIGCONT) // a stopped process would not notice
	}
}

// waitInfo is the part of siginfo_t that waitid fills in.
type waitInfo struct {
	Signo, Errno, Code int32
	_                  [0]uintptr // the union begins at a pointer's alignment
	Pid                int32
	_                  [112]byte
}

// reap reaps dead children and reports whether the command is among them. The rest of its
// process group is killed before the command is reaped: until then, the id of the group
// cannot be reused.
func (s *shim) reap() (ended bool) {
	for {
		var info waitInfo
		if waitid(&info) != nil || info.Signo == 0 {
			return ended
		}
		if int(info.Pid) == s.child {
			_ = unix.Kill(-s.child, unix.SIGKILL)
			_, _ = syscall.Wait4(s.child, &s.status, 0, nil)
			ended = true
			continue
		}
		_, _ = syscall.Wait4(int(info.Pid), nil, 0, nil)
	}
}

// killLeftovers kills the processes that the command left, until we have no children.
// When one dies, its children become ours.
func (s *shim) killLeftovers() {
	for wait := 5 * time.Millisecond; s.hasChildren(); wait = min(2*wait, time.Second) {
		self := os.Getpid()
		_ = eachPID(func(pid int) {
			if p, ok := readProc(pid); ok && p.parent == self {
				_ = unix.Kill(pid, unix.SIGKILL) // our child, not reaped yet, so its pid is not reused
			}
		})
		select {
		case <-s.deaths:
		case <-time.After(wait):
		}
		s.reap()
	}
}

func (s *shim) hasChildren() bool {
	var info waitInfo
	return !errors.Is(waitid(&info), unix.ECHILD)
}

// exitCode returns the exit code of the command: 128 plus the signal if one killed it.
func (s *shim) exitCode() int {
	if s.status.Signaled() {
		return 128 + int(s.status.Signal())
	}
	return s.status.ExitStatus()
}

// finish records how the command ended, after its log is complete.
func (s *shim) finish() {
	_ = s.output.SetReadDeadline(time.Now().Add(shimTimeout)) // another process may still have the other end open
	<-s.logged
	if s.isolated {
		s.status = s.initStatus()
	}
	x := exit{Run: s.spec.Run, At: time.Now().UTC()}
	oom := s.group.oomKills() > s.group.ooms
	code := s.exitCode()
	x.Code = &code
	if now := (spec{}); readJSON(filepath.Join(s.dir, specFile), &now) == nil {
		s.spec.Memory = now.Memory // it may have been changed
	}
	switch exceeded := "it exceeded its memory limit of " + formatSize(s.spec.Memory); {
	case oom && s.status.Signaled() && s.status.Signal() == unix.SIGKILL:
		x.Reason = "killed: " + exceeded
	case s.status.Signaled():
		x.Reason = "killed by signal " + strconv.Itoa(int(s.status.Signal()))
	case oom && code != 0:
		x.Reason = "exited with code " + strconv.Itoa(code) + " after " + exceeded
	default:
		x.Reason = "exited with code " + strconv.Itoa(code)
	}
	s.group.killMembers()
	_ = s.group.remove()
	if err := writeJSON(s.file(exitFile), x); err != nil {
		fmt.Fprintln(os.Stderr, "cannot write the exit record:", err)
	}
}
