package process

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"

	"mariposa/driver"
)

// startInit starts an isolated instance: its init in new namespaces, and the command
// under it. The shim itself stays outside. A request without a command tries everything
// else.
func (s *shim) startInit(output *os.File) error {
	theirs, err := s.openInitFiles(output)
	defer closeAll(theirs)
	if err != nil {
		return err
	}
	attr := syscall.ProcAttr{
		Dir: "/", Env: s.spec.initEnvironment(),
		Files: []uintptr{0, 1, 2},
		Sys:   &syscall.SysProcAttr{Setsid: true, Cloneflags: unix.CLONE_NEWPID | unix.CLONE_NEWNS | unix.CLONE_NEWIPC},
	}
	for _, f := range theirs {
		attr.Files = append(attr.Files, f.Fd())
	}
	if s.Sandbox.Mode == modeUser {
		attr.Sys.Cloneflags |= unix.CLONE_NEWUSER
		// Without root, the init would lose its capabilities in the namespace on exec.
		attr.Sys.AmbientCaps = []uintptr{unix.CAP_SYS_ADMIN, unix.CAP_SETPCAP}
		attr.Sys.UidMappings = []syscall.SysProcIDMap{{ContainerID: s.Sandbox.UID, HostID: s.Sandbox.UID, Size: 1}}
		attr.Sys.GidMappings = []syscall.SysProcIDMap{{ContainerID: s.Sandbox.GID, HostID: s.Sandbox.GID, Size: 1}}
	}
	if s.child, err = s.fork("/proc/self/exe", []string{"mariposa", "shim", initArgument}, attr); err != nil {
		return fmt.Errorf("cannot create its namespaces: %w", err)
	}
	closeAll(theirs)
	return s.awaitInit()
}

// initEnvironment labels an init with what must be known of an instance whose directory
// is lost. Labels that the instance itself sets are not trusted.
func (s *spec) initEnvironment() []string {
	var e environ
	for _, p := range s.Ports {
		e.set("PORT_"+strconv.Itoa(p.Target), strconv.Itoa(p.Port))
	}
	for n, source := range s.Volumes {
		e.set(envVolume+strconv.Itoa(n), source)
	}
	e.set(envCluster, s.Labels.Cluster)
	e.set(envIncarnation, s.Labels.Incarnation)
	e.set(envRoot, s.Root)
	e.set(envInit, s.ID)
	e.set("GOMAXPROCS", "1")
	e.set("GOGC", "20")
	return e
}

// openInitFiles opens the files that an init inherits.
func (s *shim) openInitFiles(output *os.File) (theirs []*os.File, err error) {
	if err := os.MkdirAll(filepath.Join(s.dir, rootDir), 0o700); err != nil {
		return nil, err
	}
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	s.initReports = pair[0]
	theirs = append(theirs, os.NewFile(uintptr(pair[1]), "reports"))
	if err := unix.SetsockoptInt(pair[0], unix.SOL_SOCKET, unix.SO_PASSCRED, 1); err != nil {
		return theirs, err
	}
	o := initRequest{startRequest: s.startRequest, Dir: s.dir, UserNS: map[int]int{}}
	var namespaces []*os.File
	for _, b := range s.Sandbox.Binds {
		if _, have := o.UserNS[b.Owner]; b.Kind != bindMapped || have {
			continue
		}
		ns, err := mapNamespace("/proc/self/exe", b.Owner, s.Sandbox.UID)
		if err != nil {
			closeAll(namespaces)
			return theirs, err
		}
		o.UserNS[b.Owner] = initUserNSFD + len(namespaces)
		namespaces = append(namespaces, os.NewFile(uintptr(ns), "user namespace"))
	}
	request, err := writeRequest(o)
	if err != nil {
		closeAll(namespaces)
		return theirs, err
	}
	listener, err := listenIn(s.dir)
	if err != nil {
		closeAll(append(namespaces, request))
		return theirs, fmt.Errorf("cannot listen for commands: %w", err)
	}
	copied, err := unix.FcntlInt(output.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		closeAll(append(namespaces, request, listener))
		return theirs, err
	}
	return append(append(theirs, request, os.NewFile(uintptr(copied), "output"), listener), namespaces...), nil
}

// listenIn creates the socket in a directory. The path may be longer than a socket
// address allows.
func listenIn(dir string) (*os.File, error) {
	d, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	defer d.Close()
	if err := os.Remove(filepath.Join(dir, execSocket)); err != nil && !isGone(err) {
		return nil, err
	}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Net: "unix", Name: socketAddress(d)})
	if err != nil {
		return nil, err
	}
	l.SetUnlinkOnClose(false)
	defer l.Close()
	return l.File()
}

func socketAddress(dir *os.File) string {
	return "/proc/self/fd/" + strconv.Itoa(int(dir.Fd())) + "/" + execSocket
}

// awaitInit waits until the init reports that the command is running.
func (s *shim) awaitInit() error {
	r, pid, err := s.receiveReport()
	if err != nil {
		err = errors.New("the first process of the instance was killed while it started")
	} else if r.Error != "" {
		err = errors.New(r.Error)
	}
	if err != nil {
		_ = unix.Kill(s.child, unix.SIGKILL) // our child, not yet reaped
		_, _ = syscall.Wait4(s.child, nil, 0, nil)
		return err
	}
	s.command = pid
	return nil
}

// receiveReport reads one message of the init, and the pid that it is about.
func (s *shim) receiveReport() (r initReport, pid int, err error) {
	b, oob := make([]byte, 64<<10), make([]byte, unix.CmsgSpace(unix.SizeofUcred))
	n, oobn, _, _, err := unix.Recvmsg(s.initReports, b, oob, 0)
	for errors.Is(err, unix.EINTR) {
		n, oobn, _, _, err = unix.Recvmsg(s.initReports, b, oob, 0)
	}
	if err == nil {
		err = json.Unmarshal(b[:n], &r) // an empty message: the init is gone
	}
	if err != nil {
		return r, 0, err
	}
	messages, err := unix.ParseSocketControlMessage(oob[:oobn])
	if err != nil || len(messages) != 1 {
		return r, 0, errors.New("the message of the init process has no credentials")
	}
	who, err := unix.ParseUnixCredentials(&messages[0])
	if err != nil {
		return r, 0, err
	}
	return r, int(who.Pid), nil
}

// initStatus returns the exit status of the command. An init that did not report it was
// killed, and the command with it.
func (s *shim) initStatus() syscall.WaitStatus {
	r, _, err := s.receiveReport()
	if err != nil {
		return syscall.WaitStatus(unix.SIGKILL)
	}
	return r.Status
}

// tryInit tries the isolation without a command.
func (s *shim) tryInit() error {
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer null.Close()
	if err := s.startInit(null); err != nil {
		return err
	}
	_, _ = syscall.Wait4(s.child, nil, 0, nil)
	return unix.Close(s.initReports)
}

// requestExec sends an init the files of a command to run.
func requestExec(dir string, files []*os.File) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer d.Close()
	c, err := net.DialUnix("unix", nil, &net.UnixAddr{Net: "unix", Name: socketAddress(d)})
	if errors.Is(err, unix.ECONNREFUSED) || isGone(err) {
		return driver.ErrNotFound // it has just ended, or is still starting
	}
	if err != nil {
		return err
	}
	defer c.Close()
	var fds []int
	for _, f := range files {
		fds = append(fds, int(f.Fd()))
	}
	_, _, err = c.WriteMsgUnix([]byte{1}, unix.UnixRights(fds...), nil)
	return err
}
