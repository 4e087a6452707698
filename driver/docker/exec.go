package docker

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/containerd/errdefs"
	"github.com/moby/moby/api/pkg/stdcopy"
	"github.com/moby/moby/client"

	"mariposa/driver"
)

// envSession marks the processes of a command that runs in an instance: the engine can start
// one, but not end it.
const envSession = "MARIPOSA_SESSION"

const (
	execTimeout = 30 * time.Second // of the start of a command
	// startTime is how long a command may have neither a process nor an exit code. Some engines
	// forget the process of one that has ended.
	startTime = 5 * time.Second
)

// session is a command in a container.
type session struct {
	d         *Driver
	id        string // of the instance
	exec      string // of the command in the engine
	mark      string // in the environment of its processes
	conn      client.HijackedResponse
	out, errs *os.File // pipes: the command does not wait until its last output is read
	outEnd    *os.File
	errsEnd   *os.File
	terminal  bool
	closed    atomic.Bool   // its processes were killed on request
	killing   sync.Once     // guards killLater
	done      chan struct{} // closed when it has ended, with the next two
	code      int
	err       error
}

// Exec runs a command in a container.
func (d *Driver) Exec(ctx context.Context, i driver.Instance, o driver.ExecOptions) (driver.Session, error) {
	if len(o.Command) == 0 {
		return nil, &driver.CommandError{Err: errors.New("there is no command")}
	}
	inner, leave, err := d.gate.Enter(context.WithoutCancel(ctx))
	if err != nil {
		return nil, err
	}
	s, err := d.exec(ctx, inner, i.ID, o)
	if err != nil {
		leave()
		return nil, d.explain(err)
	}
	d.mu.Lock()
	d.sessions[s] = struct{}{}
	d.mu.Unlock()
	stop := context.AfterFunc(ctx, func() { _ = s.Close() })
	go func() { // Close of the driver waits for it: it has entered
		defer leave()
		s.run(inner)
		stop()
		d.forgetSession(s)
	}()
	return s, nil
}

// forgetSession forgets a command that has ended or could not be started. If it runs nevertheless,
// because the engine did not say so, it is killed.
func (d *Driver) forgetSession(s *session) {
	if s.err != nil {
		killMarked(s.mark)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.sessions, s)
	delete(d.marks, s.mark)
}

// exec starts a command and waits until it runs, for a while. Its connection lasts as long as
// another context.
func (d *Driver) exec(ctx, lasting context.Context, id string, o driver.ExecOptions) (*session, error) {
	ctx, cancel := context.WithTimeout(ctx, execTimeout)
	defer cancel()
	c, err := d.container(ctx, id)
	if errdefs.IsNotFound(err) || err == nil && !c.State.Running {
		return nil, driver.ErrNotFound
	}
	if err != nil {
		return nil, err
	}
	s := &session{d: d, id: id, mark: d.sessionPrefix() + rand.Text(), terminal: o.Terminal != nil, done: make(chan struct{})}
	if err := s.openPipes(); err != nil {
		return nil, err
	}
	create := client.ExecCreateOptions{
		Cmd: o.Command, AttachStdin: true, AttachStdout: true, AttachStderr: true, TTY: s.terminal, User: o.User, Env: []string{envSession + "=" + s.mark},
	}
	for _, v := range o.Environment {
		if !slices.ContainsFunc(c.Config.Env, func(own string) bool { return strings.HasPrefix(own, v.Name+"=") }) {
			create.Env = append(create.Env, v.Name+"="+v.Value)
		}
	}
	attach := client.ExecAttachOptions{TTY: s.terminal}
	if s.terminal {
		create.ConsoleSize = client.ConsoleSize{Height: uint(o.Terminal.Rows), Width: uint(o.Terminal.Cols)}
		attach.ConsoleSize = create.ConsoleSize
	}
	d.mu.Lock()
	d.marks[s.mark] = true // before it can have a process
	d.mu.Unlock()
	if s.err = s.start(ctx, lasting, create, attach); s.err != nil {
		d.forgetSession(s)
		s.closePipes()
		return nil, s.err
	}
	if s.terminal {
		_ = s.Resize(*o.Terminal) // engines of before 2022 ignore the first size
	}
	return s, nil
}

// start starts the command.
func (s *session) start(ctx, lasting context.Context, create client.ExecCreateOptions, attach client.ExecAttachOptions) error {
	made, err := s.d.api().ExecCreate(ctx, s.d.reference(s.id), create)
	if errdefs.IsConflict(err) || errdefs.IsNotFound(err) { // it ended just now
		return driver.ErrNotFound
	}
	if err != nil {
		return err
	}
	s.exec = made.ID
	attached, err := s.d.api().ExecAttach(lasting, s.exec, attach)
	if err != nil {
		return commandError(err)
	}
	s.conn = attached.HijackedResponse
	if err := s.awaitStart(ctx); err != nil {
		s.conn.Close()
		return err
	}
	return nil
}

// openPipes opens the pipes of its output.
func (s *session) openPipes() (err error) {
	if s.out, s.outEnd, err = os.Pipe(); err != nil {
		return err
	}
	if s.errs, s.errsEnd, err = os.Pipe(); err != nil {
		s.closePipes()
	}
	return err
}

func (s *session) closePipes() {
	for _, f := range []*os.File{s.out, s.outEnd, s.errs, s.errsEnd} {
		_ = f.Close() // nothing is lost: nobody reads it
	}
}

// awaitStart waits until the command runs, and returns why it cannot.
func (s *session) awaitStart(ctx context.Context) error {
	begun := time.Now()
	for pause := time.Millisecond; ; pause = min(2*pause, 50*time.Millisecond) {
		is, err := s.d.api().ExecInspect(ctx, s.exec, client.ExecInspectOptions{})
		switch {
		case err != nil:
			return err
		case is.PID != 0:
			return nil
		case !is.Running && is.ExitCode != 0: // it never had a process
			text, _ := io.ReadAll(io.LimitReader(s.conn.Reader, 4<<10)) // the engine's words, if it has any
			return commandError(errors.New(string(text)))
		case !is.Running && time.Since(begun) > startTime: // it has ended already
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(pause):
		}
	}
}

// commandError says why a command cannot run.
func commandError(err error) error {
	text := err.Error()
	switch {
	case strings.Contains(text, "executable file not found"), strings.Contains(text, "no such file or directory"):
		return &driver.CommandError{Err: errors.New("there is no such program in the image")}
	case strings.Contains(text, "permission denied"):
		return &driver.CommandError{Err: errors.New("permission denied: the program cannot be executed")}
	}
	return &driver.CommandError{Err: errors.New(strings.TrimSpace(text))}
}

// run copies the output of the command until it ends, and finds out how.
func (s *session) run(ctx context.Context) {
	if s.terminal { // errors show in how it ended
		_, _ = io.Copy(s.outEnd, s.conn.Reader)
	} else {
		_, _ = stdcopy.StdCopy(s.outEnd, s.errsEnd, s.conn.Reader)
	}
	_, _ = s.outEnd.Close(), s.errsEnd.Close() // never fail
	_, _ = io.Copy(io.Discard, s.conn.Reader)  // Podman does not end a command before its output is read
	s.code, s.err = s.result(ctx)
	s.conn.Close()
	close(s.done)
}

// result returns how the command ended.
func (s *session) result(ctx context.Context) (code int, err error) {
	for pause := time.Millisecond; ; pause = min(2*pause, 100*time.Millisecond) {
		is, err := s.d.api().ExecInspect(ctx, s.exec, client.ExecInspectOptions{})
		switch {
		case errdefs.IsNotFound(err): // its container was removed
			return 137, driver.ErrInstanceEnded
		case err != nil:
			return 137, s.d.explain(err)
		case !is.Running:
			if s.endedWithInstance(ctx, is.ExitCode) {
				return is.ExitCode, driver.ErrInstanceEnded
			}
			return is.ExitCode, nil
		}
		select {
		case <-ctx.Done():
			return 137, context.Cause(ctx)
		case <-time.After(pause):
		}
	}
}

// endedWithInstance reports whether the instance has ended. The processes of a command are
// killed a moment before the engine says so.
func (s *session) endedWithInstance(ctx context.Context, code int) bool {
	for range 20 {
		c, err := s.d.container(ctx, s.id)
		if errdefs.IsNotFound(err) || err == nil && !c.State.Running {
			return true
		}
		if err != nil || code != 128+int(syscall.SIGKILL) || s.closed.Load() {
			return false
		}
		select {
		case <-ctx.Done():
			return false
		case <-time.After(25 * time.Millisecond):
		}
	}
	return false
}

// Stdout is the output of the command; with a terminal, all of it.
func (s *session) Stdout() io.Reader { return s.out }

// Stderr is its standard error; nil with a terminal.
func (s *session) Stderr() io.Reader {
	if s.terminal {
		return nil
	}
	return s.errs
}

// Write writes to its input.
func (s *session) Write(p []byte) (int, error) {
	select {
	case <-s.done:
		return 0, io.ErrClosedPipe
	default:
		return s.conn.Conn.Write(p)
	}
}

// CloseWrite closes its input.
func (s *session) CloseWrite() error { return s.conn.CloseWrite() }

// Resize changes the size of its terminal.
func (s *session) Resize(size driver.Size) error {
	if !s.terminal {
		return nil
	}
	ctx, cancel := context.WithTimeout(s.d.ctx, probeTimeout)
	defer cancel()
	_, err := s.d.api().ExecResize(ctx, s.exec, client.ExecResizeOptions{Height: uint(size.Rows), Width: uint(size.Cols)})
	return s.d.explain(err)
}

// Signal sends a signal to the command and its process group.
func (s *session) Signal(signal syscall.Signal) error {
	ctx, cancel := context.WithTimeout(s.d.ctx, probeTimeout)
	defer cancel()
	is, err := s.d.api().ExecInspect(ctx, s.exec, client.ExecInspectOptions{})
	if err != nil {
		return s.d.explain(err)
	}
	if !is.Running {
		return nil
	}
	if markOf(is.PID) != s.mark {
		return errors.New("the agent cannot send signals to this command: it must run as root, on the engine's machine")
	}
	return syscall.Kill(-is.PID, signal) // the engine makes each command the leader of a group
}

// Wait waits for the end of the command.
func (s *session) Wait() (int, error) {
	<-s.done
	return s.code, s.err
}

// Close kills the command and what it has started.
func (s *session) Close() error {
	ended := false
	select {
	case <-s.done:
		ended = true
	default:
		s.closed.Store(true)
	}
	_ = s.out.Close() // it may have been closed before
	_ = s.errs.Close()
	if ended {
		return nil
	}
	_ = s.conn.CloseWrite() // it may have ended
	killMarked(s.mark)
	s.killing.Do(func() { go s.killLater() })
	return nil
}

// killLater kills the command as long as it has not ended: while it was being started, its
// processes could not be found.
func (s *session) killLater() {
	for pause := time.Millisecond; ; pause = min(2*pause, time.Second) {
		select {
		case <-s.done:
			return
		case <-time.After(pause):
			killMarked(s.mark)
		}
	}
}

// closeSessions ends all commands, and waits for them a little.
func (d *Driver) closeSessions() {
	d.mu.Lock()
	all := slices.Collect(maps.Keys(d.sessions))
	d.mu.Unlock()
	late := time.After(probeTimeout)
	for _, s := range all {
		_ = s.Close() // never fails
	}
	for _, s := range all {
		select {
		case <-s.done:
		case <-late:
			return
		}
	}
}

// parentOf returns the parent of a process; 0 if it has ended.
func parentOf(pid int) int {
	b, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "stat"))
	if err != nil {
		return 0
	}
	fields := strings.Fields(string(b[bytes.LastIndexByte(b, ')')+1:]))
	if len(fields) < 2 || fields[0] == "Z" {
		return 0
	}
	parent, _ := strconv.Atoi(fields[1])
	return parent
}
