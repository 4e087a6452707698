package process

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"mariposa/driver"
	"mariposa/driver/lockfile"
)

// failpoint lets tests kill an agent or a shim in the middle of a start.
var failpoint = func(root, stage string) {}

// Start runs the instance's command under a new shim, and returns once the command has
// been executed.
func (d *Driver) Start(ctx context.Context, i driver.Instance) (driver.Observed, error) {
	if err := check(i); err != nil {
		return driver.Observed{ID: i.ID}, err
	}
	return d.operate(ctx, i.ID, func(ctx context.Context, e *entry) error { return d.start(ctx, e, i) })
}

func check(i driver.Instance) error {
	if err := checkID(i.ID); err != nil {
		return err
	}
	if i.Workload == nil || len(i.Workload.Command) == 0 || i.Workload.Command[0] == "" {
		return errors.New("a process instance needs a command to run")
	}
	if slices.ContainsFunc(i.Workload.Command, hasNUL) {
		return errNUL
	}
	for _, v := range i.Volumes {
		if !filepath.IsAbs(v.Source) {
			return fmt.Errorf("its volume %s was not created for compute type process", v.Name)
		}
	}
	for _, n := range i.Networks {
		if !filepath.IsAbs(n.Source) {
			return fmt.Errorf("its network %s was not created for compute type process", n.Name)
		}
	}
	for _, v := range i.Workload.Environment {
		if v.Name == "" || strings.ContainsAny(v.Name, "=\x00") {
			return fmt.Errorf("invalid name of a variable: %q", v.Name)
		}
		if strings.Contains(v.Value, "\x00") {
			return fmt.Errorf("the value of variable %s cannot contain a NUL character; put the value into a file", v.Name)
		}
	}
	return nil
}

func hasNUL(word string) bool { return strings.Contains(word, "\x00") }

var errNUL = errors.New("the command cannot contain a NUL character")

func (d *Driver) start(ctx context.Context, e *entry, i driver.Instance) error {
	if e.live {
		return nil // it is running, or has just ended, which is reported as an event
	}
	if why := d.Unavailable(); why != "" {
		return errors.New("this node cannot run it: " + why)
	}
	_, err := os.Stat(e.dir)
	first := isGone(err)
	lock, err := d.prepare(e, i, first)
	if err != nil {
		return err
	}
	i.Workload = putPort(i.Workload, e.spec.Ports)
	r, err := d.launch(ctx, e, i, lock)
	if err == nil && r.Error == "" {
		e.state, e.live, e.stray = r.State, true, false
		d.refreshObserved(e)
		return nil
	}
	if errors.Is(err, errClosed) {
		return err // the shim continues; the next driver adopts the instance
	}
	if err == nil {
		err = refusal(r.Error)
	}
	d.undoStart(e, first, err, i.Workload.Command[0])
	return err
}

// refusal is the reason why the command is not running, as a shim reports it. Nothing is
// left running.
type refusal string

func (r refusal) Error() string { return string(r) }

// undoStart cleans up a failed start. Nothing is left of a first start; an instance that
// had run before records why it could not be restarted.
func (d *Driver) undoStart(e *entry, first bool, cause error, command string) {
	if e.gone != nil {
		signal(e.pidfd, unix.SIGKILL)
		<-e.gone
		d.exits.release(e)
	}
	var refused refusal
	if !errors.As(cause, &refused) {
		_ = d.killAll(e) // the shim may have left processes
	}
	if first {
		if err := d.removeTraces(e); err == nil {
			return
		}
	}
	e.exit = exit{Run: e.spec.Run, Reason: cause.Error(), At: time.Now().UTC()}
	e.live = false
	noted := e.exit
	noted.Reason = withoutName(noted.Reason, command)
	_ = writeJSON(filepath.Join(e.dir, exitFile), noted)
	d.refreshObserved(e)
}

// prepare records the instance and returns the lock of its directory. A new directory
// gets its final name only when it is complete, so that every directory an agent finds
// has a record.
func (d *Driver) prepare(e *entry, i driver.Instance, first bool) (*os.File, error) {
	ports, err := d.assignPorts(e, i.Workload.Ports)
	if err != nil {
		return nil, err
	}
	uid, err := d.uidFor(e, i)
	if err != nil {
		return nil, err
	}
	s := spec{
		Mode: d.support.mode, UID: uid,
		ID: i.ID, Name: i.Name, Project: i.Project, Root: d.root, Labels: i.Labels, Origin: i.Origin, Run: e.spec.Run + 1,
		ManualRestarts: i.ManualRestarts, Private: d.privatePath(e), Ports: ports, Volumes: sources(i),
		Memory: i.Workload.Memory, MilliCPU: i.Workload.MilliCPU,
		LogSize: d.options.LogSize, LogFiles: d.options.LogFiles,
		Cgroups: d.hierarchy, Group: groupName(d.root, e.id),
	}
	if s.Mode != modeNone {
		s.Processes = d.options.Processes
	}
	if !first {
		lock, err := lockfile.Within(filepath.Join(e.dir, lockFile), shimTimeout)
		if err != nil {
			return nil, fmt.Errorf("cannot restart instance %s: %w", e.id, err)
		}
		err = d.chownWork(e.dir, &s)
		if err == nil {
			err = writeJSON(filepath.Join(e.dir, specFile), s)
		}
		if err != nil {
			_ = lock.Close()
			return nil, err
		}
		e.spec = s
		failpoint(d.root, "again")
		return lock, nil
	}
	lock, err := d.makeDirectory(e, s)
	if err != nil {
		return nil, fmt.Errorf("cannot create the directory of instance %s: %w", e.id, err)
	}
	e.spec = s
	return lock, nil
}

func (d *Driver) makeDirectory(e *entry, s spec) (*os.File, error) {
	tmp := filepath.Join(d.root, newPrefix+e.id)
	if err := removeAll(tmp); err != nil {
		return nil, err
	}
	if err := os.MkdirAll(filepath.Join(tmp, workDir), 0o700); err != nil {
		return nil, err
	}
	if err := d.chownWork(tmp, &s); err != nil {
		return nil, err
	}
	failpoint(d.root, "made")
	if err := writeJSON(filepath.Join(tmp, specFile), s); err != nil {
		return nil, err
	}
	failpoint(d.root, "written")
	lock, err := lockfile.Try(filepath.Join(tmp, lockFile))
	if err != nil {
		return nil, err
	}
	if err := os.Rename(tmp, e.dir); err != nil {
		_ = lock.Close()
		return nil, err
	}
	failpoint(d.root, "placed")
	return lock, nil
}

// launch fills the private directory, starts a shim, passes it the lock and its request,
// and waits for its report.
func (d *Driver) launch(ctx context.Context, e *entry, i driver.Instance, lock *os.File) (report, error) {
	defer lock.Close()
	e.gone = nil
	if err := linkVolumes(filepath.Join(e.dir, workDir), i.Volumes, e.spec.owner()); err != nil {
		return report{}, refusal(err.Error())
	}
	if err := e.private.make(e.spec.Private, e.spec.owner(), i.Workload.Files, i.Mdata.Values); err != nil {
		return report{}, refusal(err.Error())
	}
	sandbox, err := d.sandbox(e, i)
	if err != nil {
		return report{}, err
	}
	request, err := writeRequest(startRequest{
		Argv: i.Workload.Command, Env: d.environment(i, e.dir, e.spec.Private, e.spec.Ports, sandbox != nil),
		WorkDir: startDir(i, e.dir), Sandbox: sandbox,
	})
	if err != nil {
		return report{}, refusal("cannot send the start request to the supervisor: " + err.Error())
	}
	defer request.Close()
	reader, writer, err := os.Pipe()
	if err != nil {
		return report{}, err
	}
	defer reader.Close()
	pidfd, err := d.spawn(e.dir, e.id, lock, writer, request)
	_ = writer.Close()
	if err != nil {
		return report{}, fmt.Errorf("cannot start the supervisor: %w", err)
	}
	if err := d.exits.watch(e, pidfd); err != nil {
		signal(pidfd, unix.SIGKILL)
		_ = unix.Close(pidfd)
		return report{}, err
	}
	failpoint(d.root, "spawned")
	defer context.AfterFunc(ctx, func() { _ = reader.SetReadDeadline(time.Now()) })()
	b, err := io.ReadAll(reader)
	if cause := context.Cause(ctx); err != nil && cause != nil {
		return report{}, cause
	}
	var r report
	if json.Unmarshal(b, &r) != nil {
		return report{}, d.explainShimFailure(e)
	}
	return r, nil
}

// explainShimFailure explains why a shim died without a report.
func (d *Driver) explainShimFailure(e *entry) error {
	b, _ := os.ReadFile(filepath.Join(e.dir, shimLogFile))
	if line, _, _ := strings.Cut(string(b), "\n"); line != "" {
		return fmt.Errorf("the supervisor failed: %s", line)
	}
	return errors.New(reasonShimKilled)
}

// These are the open files of a shim.
const (
	shimLockFD    = 3
	shimReportFD  = 4
	shimRequestFD = 5
)

// writeRequest writes a request into an anonymous file in memory. It is complete before a
// shim starts, so that an agent that is killed at any moment never leaves a shim with
// half a request.
func writeRequest(o any) (*os.File, error) {
	b, err := json.Marshal(o)
	if err != nil {
		return nil, err
	}
	fd, err := unix.MemfdCreate("request", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(fd), "request")
	if _, err = f.Write(b); err == nil {
		_, err = f.Seek(0, io.SeekStart)
	}
	if err != nil {
		_ = f.Close()
		return nil, err
	}
	return f, nil
}

// spawn starts a shim in its own session. Its environment is built from scratch, because
// the agent's may contain tokens.
func (d *Driver) spawn(dir, id string, lock, report, requestFile *os.File) (pidfd int, err error) {
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return -1, err
	}
	defer null.Close()
	log, err := os.OpenFile(filepath.Join(dir, shimLogFile), os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return -1, err
	}
	defer log.Close()
	pidfd = -1
	pid, _, err := syscall.StartProcess(d.ownExecutable(), []string{"mariposa", "shim", dir}, &syscall.ProcAttr{
		Dir: "/",
		// One scheduler thread and a frequent garbage collection keep a shim small.
		Env:   []string{envRoot + "=" + d.root, envShim + "=" + id, "GOMAXPROCS=1", "GOGC=20"},
		Files: []uintptr{null.Fd(), null.Fd(), log.Fd(), lock.Fd(), report.Fd(), requestFile.Fd()},
		Sys:   &syscall.SysProcAttr{Setsid: true, PidFD: &pidfd},
	})
	if err != nil {
		return -1, err
	}
	if pidfd < 0 {
		return unix.PidfdOpen(pid, 0) // our child: its pid is not reused yet
	}
	return pidfd, nil
}

// ownExecutable returns the program that supervisors run.
func (d *Driver) ownExecutable() string {
	if _, err := os.Stat(d.executable); err != nil {
		return "/proc/self/exe" // the file was replaced or deleted; this path still works
	}
	return d.executable
}
