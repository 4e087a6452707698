package kvm

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	ossignal "os/signal"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"mariposa/driver/cgroup"
	"mariposa/driver/kvm/qmp"
	"mariposa/driver/logfile"
	"mariposa/driver/mdata"
	"mariposa/driver/osproc"
	"mariposa/driver/ostool"
	"mariposa/driver/supervise"
)

// SupervisorCommand is the argument that makes the mariposa binary a supervisor.
const SupervisorCommand = "kvm-supervisor"

// startTimeout limits the start of QEMU, not the boot of the machine.
const startTimeout = time.Minute

// request says what a supervisor is to run. It is passed in memory.
type request struct {
	Record   record            `json:"record"`
	UUID     string            `json:"uuid"`
	Files    files             `json:"files"`
	Append   string            `json:"append,omitempty"`
	Fixed    map[string]string `json:"fixed"` // what the guest can read of itself
	Group    string            `json:"group"`
	LogSize  int64             `json:"log_size"`
	LogFiles int               `json:"log_files"`
}

// files are the paths of what QEMU gets.
type files struct {
	Base       string       `json:"base,omitempty"` // the disk of the image
	BaseFormat string       `json:"base_format,omitempty"`
	Kernel     string       `json:"kernel,omitempty"`
	Initrd     string       `json:"initrd,omitempty"`
	Seed       string       `json:"seed,omitempty"`
	Volumes    []volumeFile `json:"volumes,omitempty"`
}

type volumeFile struct {
	Name     string `json:"name"`
	Path     string `json:"path"`
	ReadOnly bool   `json:"read_only,omitempty"`
}

// SupervisorMain is the supervisor of one machine. Only the driver starts it. args is what follows
// SupervisorCommand; the result is the exit code of the program.
func SupervisorMain(args []string) int {
	s := &supervisor{over: make(chan struct{})}
	task, err := supervise.Accept(args, &s.request)
	if task == nil {
		fmt.Fprintf(os.Stderr, "mariposa %s: %v\n", SupervisorCommand, err)
		return 2
	}
	s.task = task
	if err == nil {
		s.group = cgroup.Group{Hierarchy: cgroup.Find(), Name: s.Group}
		err = s.start()
	}
	if err != nil {
		s.kill()
		s.task.Refuse(err)
		return 1
	}
	s.supervise()
	s.finish()
	return 0
}

type supervisor struct {
	request
	task  *supervise.Task
	group cgroup.Group

	log     *logfile.Writer
	console *console
	control net.Listener
	qemu    *exec.Cmd
	stderr  limited
	over    chan struct{} // closed when QEMU has ended
	qmp     *qmp.Client
	jobs    jobs
	main    osproc.Process
	signals chan os.Signal

	mu       sync.Mutex
	ending   ending // what QEMU has said of its end
	pause    pause
	paused   chan struct{} // the machine was paused
	rebooted chan struct{}
	watchers map[net.Conn]struct{} // agents that want to know of reboots
}

// ending is what QEMU says of the end of a machine.
type ending struct {
	known    bool
	guest    bool   // the guest itself ended it
	reason   string // in the words of QEMU
	panicked bool

	unrestored  string // the snapshot that we ended it for
	outOfMemory bool   // the kernel has killed it
}

// start starts QEMU, and lets the machine run.
func (s *supervisor) start() (err error) {
	s.jobs.running, s.paused = make(chan struct{}, 1), make(chan struct{}, 1)
	s.signals, s.rebooted = make(chan os.Signal, 8), make(chan struct{}, 1)
	ossignal.Notify(s.signals, unix.SIGTERM, unix.SIGINT, unix.SIGHUP)
	if s.log, err = logfile.Open(filepath.Join(s.task.Dir, logFile), s.LogSize, s.LogFiles); err != nil {
		return fmt.Errorf("cannot open the log: %w", err)
	}
	if s.control, err = listenControl(s.task.Dir); err != nil {
		return fmt.Errorf("cannot open its control socket: %w", err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	ours, err := s.startQEMU(ctx)
	if err != nil {
		return err
	}
	s.console = newConsole(ours.console, s.log)
	if s.qmp, err = qmp.Open(ctx, ours.qmp, s.handle); err != nil {
		return s.explain(err)
	}
	if err := s.group.Add(s.main.PID); err != nil {
		return err
	}
	if err := s.qmp.Run(ctx, "cont", nil, nil); err != nil {
		return s.explain(err)
	}
	go func() { // ends with QEMU
		_ = mdata.Serve(ours.mdata, &mdata.Files{
			Published: filepath.Join(s.Record.Private, mdataFile), Own: filepath.Join(s.task.Dir, guestFile), Fixed: s.Fixed,
		})
	}()
	go s.serveControl() // ends with the socket
	is, err := s.task.Write(s.Record.Run, s.Record.ManualRestarts, s.main)
	if err != nil {
		return err
	}
	s.task.Ready(is)
	return nil
}

// sockets are our ends of the sockets that QEMU has.
type sockets struct{ qmp, console, mdata net.Conn }

// startQEMU starts QEMU with a machine that does not run yet.
func (s *supervisor) startQEMU(ctx context.Context) (ours sockets, err error) {
	var theirs []*os.File
	defer func() { closeAll(theirs) }()
	give := func(f *os.File) int { // the number of a file in QEMU
		theirs = append(theirs, f)
		return 2 + len(theirs)
	}
	m, err := s.machine(ctx, give, &ours)
	if err != nil {
		return ours, err
	}
	s.qemu = exec.CommandContext(context.Background(), ostool.Find(qemuProgram), m.arguments()...) //nolint:gosec // it is what we run
	s.qemu.Dir, s.qemu.Env, s.qemu.ExtraFiles, s.qemu.Stderr = "/", []string{"PATH=/nonexistent", "HOME=/nonexistent", "TMPDIR=/nonexistent"}, theirs, &s.stderr
	credential := &syscall.Credential{Uid: uint32(s.Record.UID), Gid: uint32(s.Record.UID)} //nolint:gosec // ids are positive
	if s.Record.Accel == accelKVM {
		credential.Groups = kvmGroups()
	}
	// QEMU reaches its networks by open files. Without a bridge, it needs those of the node.
	flags := uintptr(unix.CLONE_NEWIPC | unix.CLONE_NEWUTS)
	if len(m.Taps) > 0 {
		flags |= unix.CLONE_NEWNET
	}
	s.qemu.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Credential: credential, Cloneflags: flags, Pdeathsig: syscall.SIGKILL}
	if err := osproc.StartBound(s.qemu, s.over); err != nil { // its state says how it ended
		return ours, fmt.Errorf("cannot start QEMU: %w", err)
	}
	s.main, _, _ = osproc.Read(s.qemu.Process.Pid) // our child: its pid is not reused
	return ours, nil
}

// machine opens everything that QEMU gets.
func (s *supervisor) machine(ctx context.Context, give func(*os.File) int, ours *sockets) (m *machine, err error) {
	r := &s.Record
	m = &machine{Name: machineName(r.ID), UUID: s.UUID, Accel: r.Accel, CPUs: r.CPUs, Memory: r.Memory, Append: s.Append, Links: r.Links, Forwards: r.Forwards}
	for _, to := range []struct {
		conn *net.Conn
		fd   *int
	}{{&ours.qmp, &m.QMP}, {&ours.console, &m.Console}, {&ours.mdata, &m.Mdata}} {
		conn, theirs, err := socketPair()
		if err != nil {
			return nil, err
		}
		*to.conn, *to.fd = conn, give(theirs)
	}
	open := func(path string) (int, error) {
		f, err := os.Open(path)
		if err != nil {
			return 0, fmt.Errorf("cannot open a file of its image: %w", err)
		}
		return give(f), nil
	}
	if err := s.openDisks(m, give, open); err != nil {
		return nil, err
	}
	for _, f := range []struct {
		path string
		fd   *int
	}{{s.Files.Kernel, &m.Kernel}, {s.Files.Initrd, &m.Initrd}} {
		if f.path == "" {
			continue
		}
		if *f.fd, err = open(f.path); err != nil {
			return nil, err
		}
	}
	for n, l := range r.Links {
		tap, err := openTap(ctx, tapName(s.task.Dir, n), l.Bridge)
		if err != nil {
			return nil, err
		}
		m.Taps = append(m.Taps, give(tap))
	}
	return m, nil
}

// openDisks opens the disks of the machine. Those that it writes to are locked.
func (s *supervisor) openDisks(m *machine, give func(*os.File) int, open func(path string) (int, error)) (err error) {
	if s.Record.HasDisk {
		base := &disk{Format: s.Files.BaseFormat, ReadOnly: true}
		if base.FD, err = open(s.Files.Base); err != nil {
			return err
		}
		f, err := openDisk(filepath.Join(s.task.Dir, diskFile), false)
		if err != nil {
			return fmt.Errorf("cannot open its disk: %w", err)
		}
		m.Root = &disk{Name: "root", Format: "qcow2", Backing: base, FD: give(f)}
	}
	for n, v := range s.Files.Volumes {
		f, err := openDisk(v.Path, v.ReadOnly)
		if errors.Is(err, errDiskInUse) {
			return fmt.Errorf("volume %s is in use: two virtual machines cannot use a disk at the same time", v.Name)
		}
		if err != nil {
			return fmt.Errorf("cannot open the disk of volume %s: %w", v.Name, err)
		}
		m.Volumes = append(m.Volumes, disk{Name: volumeNode(n), Serial: serialOf(v.Name), Format: "raw", ReadOnly: v.ReadOnly, FD: give(f)})
	}
	if s.Files.Seed != "" {
		m.Seed = &disk{Name: "seed", Format: "raw", ReadOnly: true}
		if m.Seed.FD, err = open(s.Files.Seed); err != nil {
			return err
		}
	}
	return nil
}

// explain returns why QEMU does not run.
func (s *supervisor) explain(err error) error {
	if errors.Is(err, qmp.ErrClosed) {
		select {
		case <-s.over:
		case <-time.After(supervise.Timeout):
		}
		return fmt.Errorf("QEMU did not start the machine: %s", lastLine(s.stderr.String()))
	}
	return fmt.Errorf("QEMU did not start the machine: %w", err)
}

// handle handles an event of QEMU.
func (s *supervisor) handle(e qmp.Event) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch e.Name {
	case "SHUTDOWN":
		var data struct {
			Guest  bool   `json:"guest"`
			Reason string `json:"reason"`
		}
		_ = json.Unmarshal(e.Data, &data) // the zero value if QEMU says nothing
		s.ending.known, s.ending.guest, s.ending.reason = true, data.Guest, data.Reason
	case "GUEST_PANICKED":
		s.ending.panicked = true
	case "RESET":
		select {
		case s.rebooted <- struct{}{}:
		default: // one is not handled yet
		}
	case "BLOCK_IO_ERROR":
		s.handleError(e.Data)
	case "JOB_STATUS_CHANGE":
		s.jobs.changed(e.Data)
	}
}

// supervise waits for the end of the machine.
func (s *supervisor) supervise() {
	retry := time.NewTicker(resumeInterval)
	defer retry.Stop()
	retry.Stop() // unless it is paused
	for {
		select {
		case <-s.over:
			return
		case <-s.rebooted:
			if _, err := s.task.Write(s.Record.Run, s.Record.ManualRestarts, s.main); err == nil { // else the agent has the state of before
				s.tellWatchers()
			}
		case <-s.paused:
			s.tellWatchers()
			retry.Reset(resumeInterval)
		case <-retry.C:
			if s.resume() {
				retry.Stop()
			}
		case signal := <-s.signals:
			if signal == unix.SIGTERM { // the node is shut down
				_ = s.powerDown()
			}
		}
	}
}

// powerDown presses the power button of the machine.
func (s *supervisor) powerDown() error {
	ctx, cancel := context.WithTimeout(context.Background(), supervise.Timeout)
	defer cancel()
	return s.qmp.Run(ctx, "system_powerdown", nil, nil)
}

// kill ends QEMU, if it runs.
func (s *supervisor) kill() {
	if s.qemu == nil || s.qemu.Process == nil {
		return
	}
	_ = s.qemu.Process.Kill()
	<-s.over
	_ = s.group.Remove() // the agent tries again
}

// finish completes the log and records the end of the machine.
func (s *supervisor) finish() {
	_ = s.control.Close()
	s.console.finish()
	s.mu.Lock()
	e := s.ending
	s.mu.Unlock()
	status, _ := s.qemu.ProcessState.Sys().(syscall.WaitStatus) // always is one
	x := supervise.Exit{Run: s.Record.Run, At: time.Now().UTC()}
	e.outOfMemory = s.group.OOMKills() > 0
	x.Code, x.Reason = howEnded(e, status, s.stderr.String())
	_ = s.group.Remove()                   // the agent tries again
	_ = supervise.WriteExit(s.task.Dir, x) // the agent records an end without a code
}

// howEnded describes the end of a machine.
func howEnded(e ending, qemu syscall.WaitStatus, stderr string) (*int, string) {
	code := func(n int) *int { return &n }
	switch {
	case e.unrestored != "":
		return code(1), "snapshot " + e.unrestored + " could not be restored"
	case e.panicked:
		return code(1), "its kernel panicked"
	case e.known && e.guest:
		return code(0), "was shut down"
	case e.outOfMemory:
		return code(128 + int(unix.SIGKILL)), "the node ran out of memory, and its kernel killed the machine"
	case e.known && e.reason == "host-qmp-quit", qemu.Signaled() && qemu.Signal() == unix.SIGKILL:
		return code(128 + int(unix.SIGKILL)), "killed by signal 9 (SIGKILL)"
	case qemu.Signaled():
		return code(128 + int(qemu.Signal())), fmt.Sprintf("QEMU was killed by signal %d (%s)", qemu.Signal(), unix.SignalName(qemu.Signal()))
	case qemu.ExitStatus() != 0:
		return code(qemu.ExitStatus()), "QEMU failed: " + lastLine(stderr)
	}
	return code(0), "was shut down"
}

// limited keeps the beginning and drops the rest.
type limited struct {
	mu sync.Mutex
	b  bytes.Buffer
}

const maxStderr = 16 << 10

// Write never fails.
func (l *limited) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.b.Write(p[:min(len(p), max(0, maxStderr-l.b.Len()))])
	return len(p), nil
}

func (l *limited) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// socketPair returns a connection and the other end of it, for a program.
func socketPair() (net.Conn, *os.File, error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, err
	}
	ours, theirs := os.NewFile(uintptr(fds[0]), "ours"), os.NewFile(uintptr(fds[1]), "theirs") //nolint:gosec // file descriptors are positive
	defer ours.Close()                                                                         // the connection has its own copy
	conn, err := net.FileConn(ours)
	if err != nil {
		_ = theirs.Close() // the error is returned
		return nil, nil, err
	}
	return conn, theirs, nil
}

// kvmGroups returns the group that may use /dev/kvm.
func kvmGroups() []uint32 {
	var is unix.Stat_t
	if unix.Stat("/dev/kvm", &is) != nil {
		return nil
	}
	return []uint32{is.Gid}
}
