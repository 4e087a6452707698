package supervise

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"mariposa/driver/lockfile"
	"mariposa/driver/osproc"
)

// Starter starts supervisors.
type Starter struct {
	Executable string  // the mariposa binary
	Command    string  // the argument that makes it a supervisor
	Cloneflags uintptr // the namespaces that each gets
}

// Supervisor is a supervisor that was just started.
type Supervisor struct {
	osproc.Process
	PIDFD *os.File // belongs to the caller

	dir     string
	reports *os.File
}

// report is sent once by a supervisor to the agent that started it.
type report struct {
	State State  `json:"state,omitzero"`
	Error string `json:"error,omitempty"`
}

// Start starts the supervisor of an instance, and passes it the lock of its directory and a
// request, which may contain secrets: it is passed in memory. Call Report next.
func (s Starter) Start(dir string, request any) (*Supervisor, error) {
	lock, err := lockfile.Within(filepath.Join(dir, lockFile), Timeout)
	if err != nil {
		return nil, fmt.Errorf("its last supervisor has not ended: %w", err)
	}
	defer lock.Close() // the supervisor has its own copy
	file, err := writeRequest(request)
	if err != nil {
		return nil, fmt.Errorf("cannot send the start request to the supervisor: %w", err)
	}
	defer file.Close() // the same
	reader, writer, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	pid, err := s.spawn(dir, lock, writer, file)
	_ = writer.Close() // the supervisor has its own copy
	if err != nil {
		_ = reader.Close() // nobody writes to it
		return nil, fmt.Errorf("cannot start the supervisor: %w", err)
	}
	p, _, _ := osproc.Read(pid) // our child: its pid is not reused
	pidfd, ok := p.Open()
	if !ok { // its end would not be noticed
		_ = reader.Close()
		_ = syscall.Kill(pid, syscall.SIGKILL) // our child: it is there until it is waited for
		_, _ = syscall.Wait4(pid, nil, 0, nil)
		return nil, errors.New("its supervisor ended at once, or cannot be watched: " + lastLine(filepath.Join(dir, logFile)))
	}
	return &Supervisor{p, os.NewFile(uintptr(pidfd), "supervisor"), dir, reader}, nil //nolint:gosec // a file descriptor is positive
}

// Report waits until the instance runs, and returns its state, or why it does not.
func (s *Supervisor) Report(ctx context.Context) (State, error) {
	defer s.reports.Close() // it was only read
	stop := context.AfterFunc(ctx, func() { _ = s.reports.SetReadDeadline(time.Now()) })
	defer stop()
	b, err := io.ReadAll(s.reports)
	if cause := context.Cause(ctx); err != nil && cause != nil {
		return State{}, cause
	}
	var r report
	if json.Unmarshal(b, &r) != nil {
		return State{}, errors.New("its supervisor failed: " + lastLine(filepath.Join(s.dir, logFile)))
	}
	if r.Error != "" {
		return State{}, errors.New(r.Error)
	}
	return r.State, nil
}

// writeRequest writes a request into an anonymous file in memory: it is complete before a
// supervisor starts.
func writeRequest(request any) (*os.File, error) {
	b, err := json.Marshal(request)
	if err != nil {
		return nil, err
	}
	fd, err := unix.MemfdCreate("request", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(fd), "request") //nolint:gosec // a file descriptor is positive
	if _, err = f.Write(b); err == nil {
		_, err = f.Seek(0, io.SeekStart)
	}
	if err != nil {
		_ = f.Close() // the error is returned
		return nil, err
	}
	return f, nil
}

// spawn starts a supervisor in its own session. Its environment is built from scratch, because the
// agent's may contain tokens.
func (s Starter) spawn(dir string, lock, report, request *os.File) (pid int, err error) {
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return 0, err
	}
	defer null.Close() // it was only passed on
	log, err := os.OpenFile(filepath.Join(dir, logFile), os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return 0, err
	}
	defer log.Close() // the same
	pid, _, err = syscall.StartProcess(s.executable(), []string{"mariposa", s.Command, dir}, &syscall.ProcAttr{
		Dir: "/",
		// One scheduler thread and a frequent garbage collection keep a supervisor small.
		Env:   []string{"GOMAXPROCS=1", "GOGC=20"},
		Files: []uintptr{null.Fd(), null.Fd(), log.Fd(), lock.Fd(), report.Fd(), request.Fd()},
		Sys:   &syscall.SysProcAttr{Setsid: true, Cloneflags: s.Cloneflags},
	})
	return pid, err
}

func (s Starter) executable() string {
	if _, err := os.Stat(s.Executable); err != nil {
		return "/proc/self/exe" // the file was replaced or deleted; this path still works
	}
	return s.Executable
}

// lastLine returns the last line of a file, for an error.
func lastLine(path string) string {
	b, _ := os.ReadFile(path) // it may be empty
	lines := strings.Split(strings.TrimSpace(string(b)), "\n")
	if text := lines[len(lines)-1]; text != "" {
		return text
	}
	return "it was killed"
}
