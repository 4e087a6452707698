package process

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"mariposa/driver"
	"mariposa/driver/streams"
)

var _ driver.Execer = (*Driver)(nil)

// execContext is what it takes to run a command in an instance.
type execContext struct {
	dir     string
	inside  string // its directory as its command sees it: an isolated instance that was running when the root was moved still sees the former path
	private string
	ports   []port
	volumes []string // the directories of its volumes and networks, as its command sees them
	group   group
	main    proc          // the instance's own command
	gone    chan struct{} // closed once the instance's supervisor has ended

	confinement *sandbox // nil: the instance is not isolated
}

// ended reports whether the instance has ended. Its own command ends first, then the
// commands that people run in it, then its supervisor.
func (in *execContext) ended() bool {
	main, alive := readProc(in.main.pid)
	return isClosed(in.gone) || !alive || main.start != in.main.start
}

// How long an instance may take to end after a command in it was killed. Processes of a cgroup
// are killed together, and end in any order.
const (
	endsAfterShim    = 5 * time.Second // only who kills the supervisor of a command waits for so long
	endsAfterCommand = time.Second / 2
)

// endsWith reports whether the instance of a killed command has ended, or does so in time.
func (s *session) endsWith(in *execContext, d time.Duration) bool {
	if in.ended() || s.abandoned.Load() {
		return in.ended()
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-in.gone:
		return true
	case <-timer.C:
		return in.ended()
	}
}

// asSeenInside returns an instance with its volumes and networks where its command sees
// them. After a move of the root, those of an isolated one have other paths on the machine.
func (in *execContext) asSeenInside(i driver.Instance) driver.Instance {
	if in.confinement == nil {
		return i
	}
	find := func(source *string) {
		same := func(path string) bool { return filepath.Base(path) == filepath.Base(*source) }
		if at := slices.IndexFunc(in.volumes, same); at >= 0 {
			*source = in.volumes[at]
		}
	}
	i.Volumes, i.Networks = slices.Clone(i.Volumes), slices.Clone(i.Networks)
	for n := range i.Volumes {
		find(&i.Volumes[n].Source)
	}
	for n := range i.Networks {
		find(&i.Networks[n].Source)
	}
	return i
}

// Exec runs a command with the instance's working directory, environment and cgroups. The
// command has its own supervisor, which kills it when the session is closed. So it does
// not outlive an agent that is killed during the session.
func (d *Driver) Exec(ctx context.Context, i driver.Instance, o driver.ExecOptions) (driver.Session, error) {
	if err := checkExec(i, o); err != nil {
		return nil, err
	}
	_, leave, err := d.gate.Enter(ctx)
	if err != nil {
		return nil, err
	}
	in, err := d.running(i.ID)
	if err == nil {
		s := &session{d: d, leave: leave, label: rand.Text(), tty: o.Terminal != nil, done: make(chan struct{})}
		if err = s.start(ctx, i, o, in); err == nil {
			return s, nil
		}
		_ = s.Close()
	}
	leave()
	return nil, err
}

func checkExec(i driver.Instance, o driver.ExecOptions) error {
	if i.Workload == nil {
		return errors.New("this node does not have the definition of the instance, so no command can run in it")
	}
	if len(o.Command) == 0 || o.Command[0] == "" {
		return &driver.CommandError{Err: errors.New("the command is empty")}
	}
	if slices.ContainsFunc(o.Command, hasNUL) {
		return &driver.CommandError{Err: errNUL}
	}
	return nil
}

// session is the agent's side of a command that runs in an instance.
type session struct {
	d       *Driver
	leave   func()      // called once the supervisor is gone
	shim    *os.Process // nil if it is a child of an init
	reports *os.File    // from the supervisor
	control *os.File    // closing it ends the command; each byte is a signal
	in      *os.File
	out     *streams.Output
	errs    *streams.Output // nil with a terminal
	tty     bool
	label   string
	main    proc // the command

	closeOnce sync.Once
	abandoned atomic.Bool   // the command is being killed here
	done      chan struct{} // closed once the supervisor is gone
	code      int
	err       error
}

// start starts the supervisor and waits until it has started the command.
func (s *session) start(ctx context.Context, i driver.Instance, o driver.ExecOptions, in *execContext) error {
	theirs, err := s.streams(o.Terminal, in)
	defer closeAll(theirs)
	if err != nil {
		return err
	}
	i = in.asSeenInside(i)
	i.Workload = putPort(i.Workload, in.ports)
	env := environ(s.d.environment(i, in.inside, in.private, in.ports, in.confinement != nil))
	for _, v := range o.Environment {
		if !env.has(v.Name) {
			env.set(v.Name, v.Value)
		}
	}
	env.set(envExec, s.label)
	request, err := writeRequest(execRequest{
		startRequest: startRequest{Argv: o.Command, Env: env, Sandbox: in.confinement}, Dir: startDir(i, in.inside), Groups: in.group.dirs, Unified: in.group.unified, Terminal: s.tty,
	})
	if err != nil {
		return fmt.Errorf("cannot send the command to the supervisor: %w", err)
	}
	defer request.Close()
	if err := s.spawn(i.ID, in, theirs, request); err != nil {
		closeAll([]*os.File{s.reports})
		return fmt.Errorf("cannot start the supervisor: %w", err)
	}
	closeAll(theirs)
	return s.awaitStart(ctx, in)
}

// streams opens the command's input and output; theirs are the command's ends.
func (s *session) streams(size *driver.Size, in *execContext) (theirs []*os.File, err error) {
	if size != nil {
		multiplexer := "/dev/ptmx"
		if in.confinement != nil { // a terminal that the instance sees
			multiplexer = "/proc/" + strconv.Itoa(in.main.pid) + "/root/dev/pts/ptmx"
		}
		ours, its, err := streams.OpenTerminal(multiplexer, *size)
		if err != nil {
			return nil, fmt.Errorf("cannot open a terminal: %w", err)
		}
		s.in, s.out = ours, &streams.Output{File: ours}
		return []*os.File{its, its, its}, nil
	}
	ours := make([]*os.File, 3)
	for n := range ours {
		reads, writes, err := streams.Pipe(n != 0)
		if err != nil {
			closeAll(ours)
			return theirs, fmt.Errorf("cannot open a pipe: %w", err)
		}
		if n == 0 {
			ours[n], theirs = writes, append(theirs, reads)
		} else {
			ours[n], theirs = reads, append(theirs, writes)
		}
	}
	s.in, s.out, s.errs = ours[0], &streams.Output{File: ours[1]}, &streams.Output{File: ours[2]}
	return theirs, nil
}

// spawn starts the supervisor in its own session, with an environment built from scratch,
// like the instance's own supervisor. For an isolated instance, the init starts it.
func (s *session) spawn(id string, in *execContext, theirs []*os.File, requestFile *os.File) error {
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer null.Close()
	reports, theirReports, err := streams.Pipe(true)
	if err != nil {
		return err
	}
	s.reports = reports
	defer theirReports.Close()
	theirControl, line, err := streams.Pipe(false)
	if err != nil {
		return err
	}
	s.control = line
	defer theirControl.Close()
	files := append(slices.Clone(theirs), theirReports, requestFile, theirControl)
	if in.confinement != nil {
		return requestExec(in.dir, files)
	}
	s.shim, err = os.StartProcess(s.d.ownExecutable(), []string{"mariposa", "shim", execArgument}, &os.ProcAttr{
		Dir: "/", Env: []string{envRoot + "=" + s.d.root, envShim + "=" + id, "GOMAXPROCS=1", "GOGC=20"},
		Files: append([]*os.File{null, null, null}, files...),
		Sys:   &syscall.SysProcAttr{Setsid: true},
	})
	return err
}

// awaitStart waits for the supervisor's first report, then watches the supervisor.
func (s *session) awaitStart(ctx context.Context, in *execContext) error {
	decoder := json.NewDecoder(s.reports)
	unhook := context.AfterFunc(ctx, func() { _ = s.Close() })
	var first execReport
	err := decoder.Decode(&first)
	if err != nil || first.Error != "" {
		unhook()
		s.reap(err == nil)
		switch {
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case err != nil:
			return errors.New("its supervisor was killed")
		case first.Command:
			return &driver.CommandError{Err: errors.New(first.Error)}
		}
		return errors.New(first.Error)
	}
	if in.confinement == nil { // else the pid belongs to another PID namespace
		s.main = proc{pid: first.PID, start: first.Start}
	}
	over := make(chan struct{})
	go func() { // ends with the supervisor
		defer s.leave()
		defer unhook()
		var last execReport
		lost := decoder.Decode(&last)
		s.reap(lost == nil)
		// The supervisor of a command in an isolated instance ends with the instance.
		// Without isolation, it may be killed with the instance's cgroups, by the thread
		// that put the command there.
		if lost != nil && s.endsWith(in, endsAfterShim) {
			s.code, s.err = killed, driver.ErrInstanceEnded
		} else if lost != nil {
			s.code, s.err = -1, errors.New("its supervisor was killed")
		} else if s.code = last.Code; s.code == killed && s.endsWith(in, endsAfterCommand) {
			s.err = driver.ErrInstanceEnded
		}
		close(s.done)
		s.out.Finish()
		if s.errs != nil {
			s.errs.Finish()
		}
		close(over)
	}()
	go func() { // ends with the other
		select {
		case <-in.gone:
		case <-s.d.ctx.Done():
		case <-over:
			return
		}
		s.abandon() // its output can still be read
	}()
	return nil
}

// reap waits for the end of the supervisor. A supervisor that did not report the end of
// its command was killed; then the processes that it left are killed here.
func (s *session) reap(decoder bool) {
	if s.shim != nil {
		_, _ = s.shim.Wait() // only its reports matter
	} else {
		_, _ = io.Copy(io.Discard, s.reports) // an init reaps it, which closes its files
	}
	_ = s.reports.Close()
	if !decoder {
		s.killAll()
	}
}

// killAll kills the command, its process group and all processes with its label, until
// two searches in a row find none: a process has no label during exec.
func (s *session) killAll() {
	if main, ok := readProc(s.main.pid); ok && main.start == s.main.start {
		_ = unix.Kill(-main.pid, unix.SIGKILL) // it is alive, so this is its own group
	}
	s.main.kill(unix.SIGKILL)
	deadline := time.Now().Add(shimTimeout)
	for quiet := 0; quiet < 2 && time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
		quiet++
		all, _ := findLabelled(s.d.root) // processes that are not found end with the instance
		for _, l := range all {
			if l.exec == s.label {
				l.kill(unix.SIGKILL)
				quiet = 0
			}
		}
	}
}

// killed is the exit code of a command that was killed.
const killed = 128 + int(unix.SIGKILL)

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

func (s *session) Stdout() io.Reader { return s.out }

func (s *session) Stderr() io.Reader {
	if s.errs == nil {
		return nil
	}
	return s.errs
}

func (s *session) Write(p []byte) (int, error) { return s.in.Write(p) }

// CloseWrite ends the input. A terminal has no end of input, so it writes the character
// that a person would type.
func (s *session) CloseWrite() error {
	if !s.tty {
		return s.in.Close()
	}
	_, err := s.in.Write([]byte{4})
	return err
}

func (s *session) Resize(size driver.Size) error {
	if !s.tty {
		return nil
	}
	return streams.Resize(s.in, size)
}

func (s *session) Signal(n syscall.Signal) error {
	if n <= 0 || n > 64 {
		return fmt.Errorf("there is no signal %d", n)
	}
	_, err := s.control.Write([]byte{byte(n)})
	return err
}

func (s *session) Wait() (int, error) {
	<-s.done
	return s.code, s.err
}

// abandon ends the command. It does not wait for a supervisor that does not respond because
// the instance has stopped it.
func (s *session) abandon() {
	s.abandoned.Store(true)
	closeAll([]*os.File{s.control})
	if s.reports != nil {
		_ = s.reports.SetReadDeadline(time.Now().Add(shimTimeout))
	}
}

func (s *session) Close() error {
	s.closeOnce.Do(func() {
		s.abandon()
		files := []*os.File{s.in}
		for _, o := range []*streams.Output{s.out, s.errs} {
			if o != nil {
				files = append(files, o.File)
			}
		}
		closeAll(files) // with a terminal, one of them is closed twice, which is harmless
	})
	return nil
}

func closeAll(files []*os.File) {
	for _, f := range files {
		_ = f.Close()
	}
}
