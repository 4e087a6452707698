package lxc

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	ossignal "os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"mariposa/driver/cgroup"
	"mariposa/driver/logfile"
	"mariposa/driver/osproc"
	"mariposa/driver/ostool"
	"mariposa/driver/statefile"
	"mariposa/driver/supervise"
)

// SupervisorCommand is the argument that makes the mariposa binary a supervisor.
const SupervisorCommand = "lxc-supervisor"

// holdArgument starts a program that does nothing: it keeps a namespace alive until that has been
// opened, and is then killed.
const holdArgument = "hold"

const startTimeout = 2 * time.Minute // of the start of a container

// request says what a supervisor is to run. It is passed in memory.
type request struct {
	Record   record            `json:"record"`
	Lower    string            `json:"lower"` // the files of its image
	Binds    []bind            `json:"binds"`
	Command  []string          `json:"command"`          // the first process
	Script   []string          `json:"script,omitempty"` // run once, after the first boot
	Fixed    map[string]string `json:"fixed"`            // what the guest can read of itself
	Group    string            `json:"group"`
	LogSize  int64             `json:"log_size"`
	LogFiles int               `json:"log_files"`
}

// SupervisorMain is the supervisor of one container. Only the driver starts it. args is what
// follows SupervisorCommand; the result is the exit code of the program.
func SupervisorMain(args []string) int {
	if len(args) == 1 && args[0] == holdArgument {
		time.Sleep(time.Minute)
		return 0
	}
	s := supervisor{}
	task, err := supervise.Accept(args, &s.request)
	if task == nil {
		fmt.Fprintf(os.Stderr, "mariposa %s: %v\n", SupervisorCommand, err)
		return 2
	}
	s.task = task
	if err != nil {
		return s.refuse(err)
	}
	s.group = groupNamed(cgroup.Find(), s.Group)
	if err := s.start(); err != nil {
		return s.refuse(err)
	}
	s.supervise()
	s.finish()
	return 0
}

type supervisor struct {
	request
	task  *supervise.Task
	group cgroup.Group

	log     lockedWriter
	console *os.File
	copied  chan struct{} // closed when the console was copied
	oom     *cgroup.OOMWatch
	lxc     *exec.Cmd // lxc-start
	ended   chan struct{}
	init    osproc.Process
	signals chan os.Signal
}

// lockedWriter is a log that the console and the script write to.
type lockedWriter struct {
	mu sync.Mutex
	to *logfile.Writer
}

// Write adds output. A log that cannot be written (a full disk) loses lines, but never blocks.
func (w *lockedWriter) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	_, _ = w.to.Write(p)
	return len(p), nil
}

// refuse reports why the container does not run, and leaves nothing of it behind.
func (s *supervisor) refuse(err error) int {
	if s.group.Name != "" {
		_ = s.group.KillAll() // the agent tries again
	}
	s.task.Refuse(err)
	return 1
}

// start mounts the files of the container and starts it.
func (s *supervisor) start() (err error) {
	s.signals = make(chan os.Signal, 8)
	ossignal.Notify(s.signals, unix.SIGTERM, unix.SIGINT, unix.SIGHUP)
	if s.log.to, err = logfile.Open(filepath.Join(s.task.Dir, logFile), s.LogSize, s.LogFiles); err != nil {
		return fmt.Errorf("cannot open the log: %w", err)
	}
	if err := s.serveMdata(); err != nil {
		return fmt.Errorf("cannot open its metadata socket: %w", err)
	}
	if err := s.mountAll(); err != nil {
		return err
	}
	config := filepath.Join(s.Record.Private, configFile)
	text, err := os.ReadFile(config)
	if err == nil {
		err = checkPrivateNetwork(string(text)) // the last look before it matters
	}
	if err != nil {
		return err
	}
	if err := s.openConsole(); err != nil {
		return fmt.Errorf("cannot open its console: %w", err)
	}
	s.oom = s.group.WatchOOM()
	if err := s.startContainer(config); err != nil {
		return err
	}
	if err := s.awaitRunning(); err != nil {
		return err
	}
	is, err := s.task.Write(s.Record.Run, s.Record.ManualRestarts, s.init)
	if err != nil {
		return err
	}
	s.task.Ready(is)
	return nil
}

// openConsole opens the pipe that lxc-start writes the console to, and copies it into the log. It
// stays open for writing, so that it has no end before the container.
func (s *supervisor) openConsole() (err error) {
	s.console, err = os.OpenFile(filepath.Join(s.task.Dir, consoleFile), os.O_RDWR|unix.O_NONBLOCK, 0)
	if err != nil {
		return err
	}
	s.copied = make(chan struct{})
	go func() { // ends with the deadline that finish sets
		defer close(s.copied)
		out := &logfile.LineEnds{To: &s.log}
		buffer := make([]byte, 32<<10)
		for {
			n, err := s.console.Read(buffer)
			_, _ = out.Write(buffer[:n]) // never fails
			if err != nil {
				break
			}
		}
		s.drain(out, buffer)
	}()
	return nil
}

// drain copies what the console still has.
func (s *supervisor) drain(out *logfile.LineEnds, buffer []byte) {
	raw, err := s.console.SyscallConn()
	if err != nil {
		return
	}
	_ = raw.Control(func(fd uintptr) {
		for {
			n, err := unix.Read(int(fd), buffer)
			if n <= 0 || err != nil {
				return
			}
			_, _ = out.Write(buffer[:n]) // never fails
		}
	})
	out.Flush()
}

// startContainer starts lxc-start, which ends with this process, and its container with it. It does
// not find newuidmap, which would only let it use ids that /etc/subuid gives to root: it is root,
// and sets the ids itself.
func (s *supervisor) startContainer(config string) error {
	log := filepath.Join(s.task.Dir, lxcLogFile)
	if err := statefile.IgnoreMissing(os.Remove(log)); err != nil {
		return err
	}
	args := []string{"-F", "-P", stageDir, "-n", containerName(s.Record.ID), "-f", config, "-o", log, "-l", "INFO", "--"}
	s.lxc = exec.CommandContext(context.Background(), ostool.Find("lxc-start"), append(args, s.Command...)...) //nolint:gosec // it is what we run
	s.lxc.Dir, s.lxc.Env = "/", []string{"PATH=/nonexistent"}
	s.lxc.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Pdeathsig: syscall.SIGKILL}
	s.ended = make(chan struct{})
	if err := osproc.StartBound(s.lxc, s.ended); err != nil { // its log says how the container ended
		return fmt.Errorf("cannot start lxc-start: %w", err)
	}
	return nil
}

// awaitRunning waits until the container runs, and returns why it does not.
func (s *supervisor) awaitRunning() error {
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	for pause := 5 * time.Millisecond; ; pause = min(2*pause, 100*time.Millisecond) {
		select {
		case <-s.ended:
			return s.startedShortly()
		case <-ctx.Done():
			return errors.New("its container did not start in time")
		case <-time.After(pause):
		}
		var ok bool
		if s.init, ok = s.askInit(ctx); ok {
			return nil
		}
	}
}

// askInit returns the first process of the container, if that runs.
func (s *supervisor) askInit(ctx context.Context) (osproc.Process, bool) {
	name := containerName(s.Record.ID)
	if out, err := ostool.Run(ctx, "lxc-info", "-P", stageDir, "-n", name, "-H", "-s"); err != nil || strings.TrimSpace(out) != "RUNNING" {
		return osproc.Process{}, false
	}
	out, err := ostool.Run(ctx, "lxc-info", "-P", stageDir, "-n", name, "-H", "-p")
	pid, parseErr := strconv.Atoi(strings.TrimSpace(out))
	if err != nil || parseErr != nil || pid <= 0 {
		return osproc.Process{}, false
	}
	p, _, _ := osproc.Read(pid)
	p.PID = pid // it may have just ended
	return p, true
}

// followInit reports each first process that a container has after it has rebooted.
func (s *supervisor) followInit(init osproc.Process, reboots chan<- osproc.Process) {
	for {
		if fd, ok := init.Open(); ok {
			file := os.NewFile(uintptr(fd), "init") //nolint:gosec // a file descriptor is positive
			_ = osproc.AwaitEnd(file)               // if that fails, the next look shows it
			_ = file.Close()
		}
		next, ok := s.awaitReboot(init)
		if !ok {
			return
		}
		init = next
		select {
		case reboots <- init:
		case <-s.ended:
			return
		}
	}
}

// awaitReboot waits until a container has another first process; false if it has ended.
func (s *supervisor) awaitReboot(before osproc.Process) (osproc.Process, bool) {
	for {
		select {
		case <-s.ended:
			return osproc.Process{}, false
		case <-time.After(rebootPause):
		}
		if p, ok := s.askInit(context.Background()); ok && p != before && p.Start != 0 {
			return p, true
		}
	}
}

// startedShortly returns why a container has ended before it was seen running: nil if it ran, but
// not for long.
func (s *supervisor) startedShortly() error {
	b, err := os.ReadFile(filepath.Join(s.task.Dir, lxcLogFile))
	if err != nil {
		return errors.New("lxc-start did not start the container")
	}
	if pid, ok := startedPID(string(b)); ok {
		s.init = osproc.Process{PID: pid}
		return nil
	}
	return explainLog(string(b))
}

// supervise runs the script at the first boot, and waits for the end of the container.
func (s *supervisor) supervise() {
	go s.runScript() // ends with the container
	reboots := make(chan osproc.Process)
	go s.followInit(s.init, reboots) // the same
	trims := time.NewTicker(trimInterval)
	defer trims.Stop()
	for {
		select {
		case <-s.ended:
			return
		case <-trims.C:
			trimLog(filepath.Join(s.task.Dir, lxcLogFile))
		case s.init = <-reboots:
			_, _ = s.task.Write(s.Record.Run, s.Record.ManualRestarts, s.init) // the agent still has the state of before
		case signal := <-s.signals:
			if signal == unix.SIGTERM { // the machine is shut down
				s.init.Kill(haltSignal(s.init.PID, s.Record.HasInit))
			}
		}
	}
}

// runScript runs the script of an instance, once in its life.
func (s *supervisor) runScript() {
	if len(s.Script) == 0 {
		return
	}
	mark, err := os.OpenFile(filepath.Join(s.task.Dir, bootedFile), os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return // it was started before
	}
	_ = mark.Close()                                                                                                   // it is empty
	cmd := exec.CommandContext(context.Background(), ostool.Find("lxc-attach"), s.Record.attachArgs(nil, s.Script)...) //nolint:gosec // it is what we run
	cmd.Dir, cmd.Env, cmd.SysProcAttr = "/", []string{}, &syscall.SysProcAttr{Setsid: true}
	cmd.Stdout, cmd.Stderr = &s.log, &s.log
	if err := cmd.Run(); err != nil {
		_, _ = fmt.Fprintf(&s.log, "mariposa: the command of the first boot failed: %v\n", err)
	}
}

// finish completes the log and records the end of the container.
func (s *supervisor) finish() {
	_ = s.console.SetReadDeadline(time.Now()) // never fails for a pipe
	<-s.copied
	_ = s.group.KillAll() // nothing is left, unless lxc-start was killed
	x := supervise.Exit{Run: s.Record.Run, At: time.Now().UTC()}
	b := tailOf(filepath.Join(s.task.Dir, lxcLogFile), endSize) // without it, the code is unknown
	status, _ := s.lxc.ProcessState.Sys().(syscall.WaitStatus)  // always is one
	x.Code, x.Reason = howEnded(string(b), s.oom.Happened(), status)
	_ = s.group.Remove()                   // the agent tries again
	_ = supervise.WriteExit(s.task.Dir, x) // the agent records an end without a code
}
