package process

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"mariposa/driver"
)

var _ driver.Execer = (*Driver)(nil)

// execContext is what a command needs to know to run inside an instance.
type execContext struct {
	dir     string
	private string
	ports   []port
	group   group
	main    proc          // the instance's own command
	gone    chan struct{} // closed once the instance's supervisor has ended

	confinement *sandbox // nil: the instance is not isolated
}

// ended reports whether the instance is over. Its own command goes first, then
// what runs inside, then its supervisor.
func (in *execContext) ended() bool {
	main, alive := readProc(in.main.pid)
	return isClosed(in.gone) || !alive || main.start != in.main.start
}

// Exec runs a command in the instance's working folder, environment and cgroups,
// under a supervisor of its own that ends it when nobody holds the session any
// more: not even an agent killed in mid-session leaves it behind.
func (d *Driver) Exec(ctx context.Context, i driver.Instance, o driver.ExecOptions) (driver.Session, error) {
	if err := checkExec(i, o); err != nil {
		return nil, err
	}
	_, leave, err := d.enter(ctx)
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
		return errors.New("what the instance was made from is not known on this node, so nothing can be run as it runs")
	}
	if len(o.Command) == 0 || o.Command[0] == "" {
		return &driver.CommandError{Err: errors.New("there is no command")}
	}
	if slices.ContainsFunc(o.Command, hasNUL) {
		return &driver.CommandError{Err: errNUL}
	}
	return nil
}

// session is a command inside an instance, seen from the agent.
type session struct {
	d       *Driver
	leave   func()      // called once the supervisor is gone
	shim    *os.Process // nil: it is an init's child
	reports *os.File    // what the supervisor reports
	control *os.File    // closed, it ends the command; a byte through it is a signal
	in      *os.File
	out     *output
	errs    *output // nil with a terminal, where in and out are one
	tty     bool
	label   string
	main    proc // the command

	closeOnce sync.Once
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
	i.Workload = putPort(i.Workload, in.ports)
	env := environ(s.d.environment(i, in.dir, in.private, in.ports, in.confinement != nil))
	for _, v := range o.Environment {
		if !env.has(v.Name) {
			env.set(v.Name, v.Value)
		}
	}
	env.set(envExec, s.label)
	told, err := writeOrders(execOrders{
		orders: orders{Argv: o.Command, Env: env, Sandbox: in.confinement}, Dir: startDir(i, in.dir), Groups: in.group.dirs, Unified: in.group.unified, Terminal: s.tty,
	})
	if err != nil {
		return fmt.Errorf("cannot tell the supervisor what to run: %w", err)
	}
	defer told.Close()
	if err := s.spawn(i.ID, in, theirs, told); err != nil {
		closeAll([]*os.File{s.reports})
		return fmt.Errorf("cannot start the supervisor: %w", err)
	}
	closeAll(theirs)
	return s.awaitStart(ctx, in)
}

// streams opens what the command reads and writes; theirs are its own ends.
func (s *session) streams(size *driver.Size, in *execContext) (theirs []*os.File, err error) {
	if size != nil {
		multiplexer := "/dev/ptmx"
		if in.confinement != nil { // of the terminals that the instance sees
			multiplexer = "/proc/" + strconv.Itoa(in.main.pid) + "/root/dev/pts/ptmx"
		}
		ours, its, err := openTerminal(multiplexer, *size)
		if err != nil {
			return nil, fmt.Errorf("cannot open a terminal: %w", err)
		}
		s.in, s.out = ours, &output{ours}
		return []*os.File{its, its, its}, nil
	}
	ours := make([]*os.File, 3)
	for n := range ours {
		reads, writes, err := pipe(n != 0)
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
	s.in, s.out, s.errs = ours[0], &output{ours[1]}, &output{ours[2]}
	return theirs, nil
}

// spawn starts the supervisor in a session of its own, with an environment made
// from nothing, as the instance's own supervisor has. That of an isolated instance
// is started by its init.
func (s *session) spawn(id string, in *execContext, theirs []*os.File, ordersFile *os.File) error {
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer null.Close()
	reports, theirReports, err := pipe(true)
	if err != nil {
		return err
	}
	s.reports = reports
	defer theirReports.Close()
	theirControl, line, err := pipe(false)
	if err != nil {
		return err
	}
	s.control = line
	defer theirControl.Close()
	files := append(slices.Clone(theirs), theirReports, ordersFile, theirControl)
	if in.confinement != nil {
		return askInit(in.dir, files)
	}
	s.shim, err = os.StartProcess(s.d.ownExecutable(), []string{"mariposa", "shim", execArgument}, &os.ProcAttr{
		Dir: "/", Env: []string{envRoot + "=" + s.d.root, envShim + "=" + id, "GOMAXPROCS=1", "GOGC=20"},
		Files: append([]*os.File{null, null, null}, files...),
		Sys:   &syscall.SysProcAttr{Setsid: true},
	})
	return err
}

// awaitStart waits for the supervisor's first word, and then lets it be watched.
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
	if in.confinement == nil { // else the number means nothing out here
		s.main = proc{pid: first.PID, start: first.Start}
	}
	over := make(chan struct{})
	go func() { // ends with the supervisor
		defer s.leave()
		defer unhook()
		var last execReport
		lost := decoder.Decode(&last)
		s.reap(lost == nil)
		// The supervisor of an isolated one ends with the instance; another may be found in
		// the instance's cgroups, by the thread that has put the command there.
		if lost != nil && in.ended() {
			s.code, s.err = killed, driver.ErrInstanceEnded
		} else if lost != nil {
			s.code, s.err = -1, errors.New("its supervisor was killed")
		} else if s.code = last.Code; s.code == killed && in.ended() {
			s.err = driver.ErrInstanceEnded
		}
		close(s.done)
		s.out.finish()
		if s.errs != nil {
			s.errs.finish()
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
		s.letGo() // what was written can still be read
	}()
	return nil
}

// reap waits for the supervisor's end. One that did not report how its command
// ended was killed, and what it has left behind is killed here.
func (s *session) reap(decoder bool) {
	if s.shim != nil {
		_, _ = s.shim.Wait() // how it ended does not matter: its reports do
	} else {
		_, _ = io.Copy(io.Discard, s.reports) // an init reaps it; its files are closed then
	}
	_ = s.reports.Close()
	if !decoder {
		s.killAll()
	}
}

// killAll kills the command, its process group and all that carries its label, until
// two looks in a row find nobody: a process shows no label while it becomes
// another program.
func (s *session) killAll() {
	if main, ok := readProc(s.main.pid); ok && main.start == s.main.start {
		_ = unix.Kill(-main.pid, unix.SIGKILL) // it lives, so the number means its own group
	}
	s.main.kill(unix.SIGKILL)
	deadline := time.Now().Add(shimTimeout)
	for nobody := 0; nobody < 2 && time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
		nobody++
		all, _ := findLabelled(s.d.root) // what cannot be found now ends with the instance
		for _, l := range all {
			if l.exec == s.label {
				l.kill(unix.SIGKILL)
				nobody = 0
			}
		}
	}
}

// killed is the exit code of what was ended by force.
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

// CloseWrite ends the input. A terminal has no end; there, what a person would
// type to say so is written.
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
	return resize(s.in, size)
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

// letGo ends the command. A supervisor that does not answer, because the instance has
// stopped it, is waited for no longer.
func (s *session) letGo() {
	closeAll([]*os.File{s.control})
	if s.reports != nil {
		_ = s.reports.SetReadDeadline(time.Now().Add(shimTimeout))
	}
}

func (s *session) Close() error {
	s.closeOnce.Do(func() {
		s.letGo()
		files := []*os.File{s.in}
		for _, o := range []*output{s.out, s.errs} {
			if o != nil {
				files = append(files, o.file)
			}
		}
		closeAll(files) // with a terminal one of them twice, which does no harm
	})
	return nil
}
