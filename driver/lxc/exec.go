package lxc

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"mariposa/driver"
	"mariposa/driver/osproc"
	"mariposa/driver/ostool"
	"mariposa/driver/streams"
	"mariposa/driver/supervise"
)

// envSession marks the processes of a command that runs in an instance, so that all of them can be
// ended.
const envSession = "MARIPOSA_SESSION"

const killedCode = 128 + int(unix.SIGKILL)

// inside is what it takes to run a command in an instance.
type inside struct {
	record record
	init   osproc.Process
	gone   chan struct{} // closed once its supervisor has ended
}

// attachArgs returns the arguments of lxc-attach that run a command in an instance, with its
// environment and as its user.
func (r *record) attachArgs(env, command []string) []string {
	args := []string{
		"-q", "-P", stageDir, "-n", containerName(r.ID), "-f", filepath.Join(r.Private, configFile), "--clear-env",
		"-u", strconv.Itoa(r.User.UID), "-g", strconv.Itoa(r.User.GID),
	}
	for _, v := range env {
		args = append(args, "-v", v)
	}
	args = append(args, "--")
	if r.Dir != "" {
		command = slices.Concat([]string{"/bin/sh", "-c", `cd -- "$0" && exec "$@"`, r.Dir}, command)
	}
	return append(args, r.sourced(command)...)
}

// session is a command in an instance.
type session struct {
	d        *Driver
	id       string
	in       *inside
	cmd      *exec.Cmd
	mark     string
	terminal bool
	input    *os.File
	out      *streams.Output
	errs     *streams.Output // nil with a terminal
	stdout   io.Reader       // out, as the command wrote it

	closed  atomic.Bool
	closing sync.Once
	done    chan struct{} // closed when it has ended, with the next two
	code    int
	err     error
}

// Exec runs a command in an instance.
func (d *Driver) Exec(ctx context.Context, i driver.Instance, o driver.ExecOptions) (driver.Session, error) {
	if len(o.Command) == 0 || o.Command[0] == "" {
		return nil, &driver.CommandError{Err: errors.New("the command is empty")}
	}
	if slices.ContainsFunc(o.Command, func(word string) bool { return strings.Contains(word, "\x00") }) {
		return nil, &driver.CommandError{Err: errors.New("the command cannot contain a NUL character")}
	}
	_, leave, err := d.gate.Enter(ctx)
	if err != nil {
		return nil, err
	}
	s, err := d.exec(ctx, i.ID, o)
	if err != nil {
		leave()
		return nil, err
	}
	d.roster.Lock()
	d.sessions[s] = struct{}{}
	d.roster.Unlock()
	stop := context.AfterFunc(ctx, func() { _ = s.Close() })
	go func() { // Close of the driver waits for it: it has entered
		defer leave()
		s.wait()
		stop()
		d.roster.Lock()
		delete(d.sessions, s)
		d.roster.Unlock()
	}()
	if d.gate.IsShut() {
		_ = s.Close() // the driver was closed meanwhile
	}
	return s, nil
}

// exec starts a command.
func (d *Driver) exec(ctx context.Context, id string, o driver.ExecOptions) (*session, error) {
	_, in, err := d.running(ctx, id)
	if err != nil {
		return nil, err
	}
	init, ok := findInit(ctx, id, in.init)
	if !ok {
		return nil, driver.ErrNotFound // it has just ended
	}
	current := *in
	current.init = init
	if o.User != "" {
		root := filepath.Join("/proc", strconv.Itoa(init.PID), "root")
		if current.record.User, err = resolveUser([]string{root}, o.User); err != nil {
			return nil, &driver.CommandError{Err: err}
		}
	}
	if err := findProgram(init.PID, &in.record, o.Command[0]); err != nil {
		return nil, &driver.CommandError{Err: err}
	}
	s := &session{d: d, id: id, in: &current, mark: rand.Text(), terminal: o.Terminal != nil, done: make(chan struct{})}
	env := []string{envSession + "=" + s.mark}
	for _, v := range o.Environment {
		if !slices.Contains(in.record.Variables, v.Name) {
			env = append(env, v.Name+"="+v.Value)
		}
	}
	s.cmd = exec.CommandContext(context.WithoutCancel(ctx), ostool.Find("lxc-attach"), current.record.attachArgs(env, o.Command)...) //nolint:gosec // it is what we run
	s.cmd.Dir, s.cmd.Env, s.cmd.SysProcAttr = "/", []string{}, &syscall.SysProcAttr{Setsid: true, Setctty: s.terminal}
	theirs, err := s.open(o.Terminal)
	if err == nil {
		err = s.cmd.Start()
	}
	for _, f := range theirs {
		_ = f.Close() // the command has its own copies
	}
	if err != nil {
		s.closeFiles()
		return nil, fmt.Errorf("cannot start lxc-attach: %w", err)
	}
	return s, nil
}

// open opens the input and the output of the command; theirs are the command's ends.
func (s *session) open(size *driver.Size) (theirs []*os.File, err error) {
	if size != nil {
		ours, its, err := streams.OpenTerminal("/dev/ptmx", *size)
		if err != nil {
			return nil, err
		}
		s.input, s.out = ours, &streams.Output{File: ours}
		s.stdout = newTerminalOutput(s.out)
		s.cmd.Stdin, s.cmd.Stdout, s.cmd.Stderr = its, its, its
		return []*os.File{its}, nil
	}
	ends := make([]*os.File, 3)
	for n := range ends {
		reads, writes, err := streams.Pipe(n != 0)
		if err != nil {
			return theirs, err
		}
		switch n {
		case 0:
			s.input, ends[n] = writes, reads
		case 1:
			s.out, ends[n] = &streams.Output{File: reads}, writes
			s.stdout = s.out
		default:
			s.errs, ends[n] = &streams.Output{File: reads}, writes
		}
		theirs = append(theirs, ends[n])
	}
	s.cmd.Stdin, s.cmd.Stdout, s.cmd.Stderr = ends[0], ends[1], ends[2]
	return theirs, nil
}

func (s *session) closeFiles() {
	for _, o := range []*streams.Output{s.out, s.errs} {
		if o != nil {
			_ = o.File.Close() // nothing is lost: nobody reads it
		}
	}
	if s.input != nil {
		_ = s.input.Close() // with a terminal, a second time, which is harmless
	}
}

// findProgram checks that an instance has a program, in its PATH or at a path.
func findProgram(init int, r *record, name string) error {
	root := filepath.Join("/proc", strconv.Itoa(init), "root")
	paths := []string{name}
	if !strings.Contains(name, "/") {
		paths = nil
		for _, dir := range filepath.SplitList(r.Path) {
			paths = append(paths, filepath.Join(dir, name))
		}
	}
	for _, path := range paths {
		if !filepath.IsAbs(path) {
			path = filepath.Join("/", r.Dir, path)
		}
		if isProgram(root, path) {
			return nil
		}
	}
	return fmt.Errorf("there is no program %q in the instance", name)
}

// wait waits for the end of the command, and finds out how it ended.
func (s *session) wait() {
	err := s.cmd.Wait()
	if s.closed.Load() {
		s.killAll() // what it has started
	}
	s.code = s.cmd.ProcessState.ExitCode()
	if status, ok := s.cmd.ProcessState.Sys().(syscall.WaitStatus); ok && status.Signaled() {
		s.code = 128 + int(status.Signal())
	}
	var ended *exec.ExitError
	if err != nil && !errors.As(err, &ended) {
		s.err = err
	}
	if s.endedWithInstance() {
		s.err = driver.ErrInstanceEnded
	}
	if s.out.Finish(); s.errs != nil {
		s.errs.Finish()
	}
	close(s.done)
}

// endedWithInstance reports whether the instance has ended. The processes of a command are killed
// a moment before its init is gone.
func (s *session) endedWithInstance() bool {
	for range 40 {
		if !s.in.init.Alive() {
			return true
		}
		if s.code != killedCode || s.closed.Load() {
			return false
		}
		time.Sleep(10 * time.Millisecond)
	}
	return false
}

// Stdout is the output of the command; with a terminal, all of it.
func (s *session) Stdout() io.Reader { return s.stdout }

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
		return s.input.Write(p)
	}
}

// CloseWrite closes its input. A terminal has no end; Ctrl-D is one for its readers.
func (s *session) CloseWrite() error {
	if s.terminal {
		_, err := s.input.Write([]byte{4})
		return err
	}
	return s.input.Close()
}

// Resize changes the size of its terminal.
func (s *session) Resize(size driver.Size) error {
	if !s.terminal {
		return nil
	}
	return streams.Resize(s.input, size)
}

// Signal sends a signal to the command and its process group.
func (s *session) Signal(signal syscall.Signal) error {
	for deadline := time.Now().Add(supervise.Timeout); time.Now().Before(deadline); {
		select {
		case <-s.done:
			return nil
		default:
		}
		for _, p := range marked(childrenOf(s.cmd.Process.Pid), envSession+"="+s.mark+"\x00") {
			group, err := unix.Getpgid(p.PID)
			if err == nil && group == p.PID {
				return ignoreEnded(unix.Kill(-p.PID, signal))
			}
			return ignoreEnded(unix.Kill(p.PID, signal))
		}
		time.Sleep(5 * time.Millisecond) // it is about to start
	}
	return errors.New("the command does not start")
}

func ignoreEnded(err error) error {
	if errors.Is(err, unix.ESRCH) {
		return nil
	}
	return err
}

// Wait waits for the end of the command.
func (s *session) Wait() (int, error) {
	<-s.done
	return s.code, s.err
}

// Close kills the command and what it has started.
func (s *session) Close() error {
	s.closing.Do(func() {
		select {
		case <-s.done:
		default:
			s.closed.Store(true)
			go s.kill() // ends with the command, which Close of the driver waits for
		}
		s.closeOutput()
	})
	return nil
}

// closeOutput lets nobody wait for output any more.
func (s *session) closeOutput() {
	if s.out.Finish(); s.errs != nil {
		s.errs.Finish()
	}
	if !s.terminal {
		_ = s.input.Close() // it may have been closed before
	}
}

// kill kills the command until it has ended.
func (s *session) kill() {
	for n := 0; ; n++ {
		s.killAll()
		if n > 200 { // lxc-attach hangs
			_ = s.cmd.Process.Kill()
		}
		select {
		case <-s.done:
			return
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// killAll kills the processes of the command.
func (s *session) killAll() {
	for range 10 {
		all := marked(append(s.d.groupOf(s.id).PIDs(), childrenOf(s.cmd.Process.Pid)...), envSession+"="+s.mark+"\x00")
		if len(all) == 0 {
			return
		}
		killTogether(all)
	}
}

// killTogether kills processes. None goes on when another one is dead: the exit code is that of
// the kill.
func killTogether(all []osproc.Process) {
	for _, signal := range []unix.Signal{unix.SIGSTOP, unix.SIGKILL} {
		for _, p := range all {
			p.Kill(signal)
		}
	}
}

// closeSessions ends all commands, and waits for them a little.
func (d *Driver) closeSessions() {
	d.roster.Lock()
	all := slices.Collect(maps.Keys(d.sessions))
	d.roster.Unlock()
	late := time.After(supervise.Timeout)
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

// childrenOf lists the children of a process.
func childrenOf(pid int) (list []int) {
	tasks, _ := filepath.Glob(filepath.Join("/proc", strconv.Itoa(pid), "task/*/children"))
	for _, path := range tasks {
		b, _ := os.ReadFile(path) // it may have ended
		for _, text := range strings.Fields(string(b)) {
			if child, err := strconv.Atoi(text); err == nil {
				list = append(list, child)
			}
		}
	}
	return list
}

// marked returns those of some processes that have a variable in their environment, and what they
// have started.
func marked(pids []int, mark string) (list []osproc.Process) {
	parents, ours, procs := map[int]int{}, map[int]bool{}, map[int]osproc.Process{}
	for _, pid := range pids {
		p, parent, ok := osproc.Read(pid)
		if !ok {
			continue
		}
		parents[pid], procs[pid] = parent, p
		b, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "environ"))
		if err == nil && bytes.Contains(append([]byte{0}, b...), []byte("\x00"+mark)) {
			ours[pid] = true
		}
	}
	for pid, p := range procs {
		for at := pid; at > 1; at = parents[at] {
			if ours[at] {
				list = append(list, p)
				break
			}
		}
	}
	return list
}
