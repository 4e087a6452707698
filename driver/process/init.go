package process

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	ossignal "os/signal"
	"path/filepath"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// initArgument starts the first process of an isolated instance: `mariposa shim init`. It
// runs as root of the instance's namespaces, which end with it. It builds the instance's
// file system view, starts the command without privileges, forwards signals and reaps
// processes. Commands that people run in the instance are its children too, so that they
// run in the same namespaces.
const initArgument = "init"

// These are its open files. User namespaces for volumes follow.
const (
	initReportFD   = 3
	initRequestFD  = 4
	initOutputFD   = 5
	initListenerFD = 6
	initUserNSFD   = 7
)

// execSocket is the socket, in the instance's directory, on which an init accepts
// commands to run.
const execSocket = "exec.sock"

// initRequest says what to build and run. Without a command, everything else is tried. It
// is passed in memory.
type initRequest struct {
	startRequest
	Dir    string      `json:"dir"`
	UserNS map[int]int `json:"user_ns,omitempty"`
}

// initReport is what it reports to the shim: that the command is running, or why not;
// then how it ended.
type initReport struct {
	Error  string             `json:"error,omitempty"`
	Status syscall.WaitStatus `json:"status,omitempty"`
}

type initStage struct {
	initRequest
	command int // its pid in this PID namespace
	signals chan os.Signal
	deaths  chan os.Signal
}

func initMain() int {
	for fd := initReportFD; fd <= initListenerFD; fd++ {
		unix.CloseOnExec(fd)
	}
	var i initStage
	request := os.NewFile(initRequestFD, "request")
	if os.Getpid() != 1 || json.NewDecoder(request).Decode(&i.initRequest) != nil || i.Sandbox == nil {
		fmt.Fprintln(os.Stderr, "mariposa shim is started by the agent: do not run it by hand")
		return 2
	}
	_ = request.Close()
	for _, fd := range i.UserNS {
		unix.CloseOnExec(fd)
	}
	closeInherited(initListenerFD)
	if err := i.start(); err != nil {
		i.sendReport(initReport{Error: err.Error()})
		return 1
	}
	i.sendReport(initReport{})
	if i.command != 0 {
		i.supervise()
	}
	return 0 // remaining processes end with this one
}

// start sets up the isolation and starts the command in it.
func (i *initStage) start() error {
	// Within the instance's memory limit, the kernel kills this process last. Without
	// root this is not permitted, and there is no such limit either.
	_ = os.WriteFile(oomScore, []byte("-999"), 0)
	root := filepath.Dir(i.Dir)
	failpoint(root, "init")
	view := rootfs{sandbox: i.Sandbox, path: filepath.Join(i.Dir, rootDir), userNS: i.UserNS}
	err := view.enter()
	for _, fd := range i.UserNS {
		_ = unix.Close(fd)
	}
	if err != nil {
		return err
	}
	if err := i.Sandbox.limitSelf(); err != nil {
		return err
	}
	if len(i.Argv) == 0 {
		return i.try()
	}
	var path string
	i.Sandbox.asInstance(func() {
		if err = checkStartDir(i.WorkDir, true); err == nil {
			path, err = lookPath(i.Argv[0], i.Env, i.WorkDir)
		}
	})
	if err != nil {
		return err
	}
	i.signals, i.deaths = make(chan os.Signal, 8), make(chan os.Signal, 1)
	ossignal.Notify(i.signals, unix.SIGTERM, unix.SIGINT, unix.SIGHUP, unix.SIGUSR1)
	ossignal.Notify(i.deaths, unix.SIGCHLD)
	null, err := os.Open(os.DevNull)
	if err != nil {
		return err
	}
	defer null.Close()
	i.command, err = i.Sandbox.fork(path, i.Argv, syscall.ProcAttr{
		Dir: i.WorkDir, Env: i.Env, Files: []uintptr{null.Fd(), initOutputFD, initOutputFD},
		Sys: &syscall.SysProcAttr{Setsid: true},
	})
	_ = unix.Close(initOutputFD)
	if err != nil {
		return explain(i.Argv[0], path, err)
	}
	i.startRequest = startRequest{Sandbox: i.Sandbox} // the rest is no longer needed
	return nil
}

// try takes the last step without a command.
func (i *initStage) try() (err error) {
	onOwnThread(func() {
		if err = i.Sandbox.confineThread(); err != nil || i.Sandbox.Mode != modeRoot {
			return
		}
		if _, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, uintptr(i.Sandbox.UID), uintptr(i.Sandbox.UID), uintptr(i.Sandbox.UID)); errno != 0 {
			err = fmt.Errorf("cannot switch to its user: %w", errno)
		}
	})
	return err
}

// sendReport reports to the shim. The message carries the command's pid as a credential,
// which the kernel translates into the shim's namespace.
func (i *initStage) sendReport(r initReport) {
	b, _ := json.Marshal(r)
	who := unix.Ucred{Pid: int32(os.Getpid()), Uid: uint32(os.Getuid()), Gid: uint32(os.Getgid())}
	if i.command != 0 {
		who.Pid = int32(i.command)
	}
	_ = unix.Sendmsg(initReportFD, b, unix.UnixCredentials(&who), nil, unix.MSG_NOSIGNAL) // the shim may have been killed
}

// supervise forwards signals until the command has ended.
func (i *initStage) supervise() {
	go i.serveExec() // ends with the program
	for {
		select {
		case sig := <-i.signals:
			if sig == unix.SIGTERM {
				_ = unix.Kill(-i.command, unix.SIGTERM)
				_ = unix.Kill(-i.command, unix.SIGCONT) // a stopped process would not notice
			}
		case <-i.deaths:
			if status, ended := i.reap(); ended {
				i.command = 0 // the pid is no longer valid
				i.sendReport(initReport{Status: status})
				return
			}
		}
	}
}

// reap reaps processes until the command is among them.
func (i *initStage) reap() (status syscall.WaitStatus, ended bool) {
	for {
		var info waitInfo
		if waitid(&info) != nil || info.Signo == 0 {
			return 0, false
		}
		_, _ = syscall.Wait4(int(info.Pid), &status, 0, nil)
		if int(info.Pid) == i.command {
			return status, true
		}
	}
}

// execFiles is how many files a request to run a command carries: its three streams, and
// those for its supervisor.
const execFiles = 6

// serveExec starts the supervisors of commands that are requested on the socket. Only the
// agent can reach the socket.
func (i *initStage) serveExec() {
	f := os.NewFile(initListenerFD, "exec")
	listener, err := net.FileListener(f)
	_ = f.Close()
	if err != nil {
		fmt.Fprintln(os.Stderr, "cannot accept commands:", err)
		return
	}
	for {
		c, err := listener.Accept()
		if err != nil {
			return
		}
		if files, err := receiveFiles(c.(*net.UnixConn)); err == nil {
			if err := i.startExec(files); err != nil {
				b, _ := json.Marshal(execReport{Error: "cannot start the supervisor: " + err.Error()})
				_, _ = unix.Write(files[execReportFD-execStreamsFD], b)
			}
			for _, fd := range files {
				_ = unix.Close(fd)
			}
		}
		_ = c.Close()
	}
}

// receiveFiles receives the files of a command.
func receiveFiles(c *net.UnixConn) ([]int, error) {
	b, oob := make([]byte, 1), make([]byte, unix.CmsgSpace(4*execFiles))
	_, n, _, _, err := c.ReadMsgUnix(b, oob)
	if err != nil {
		return nil, err
	}
	messages, err := unix.ParseSocketControlMessage(oob[:n])
	if err != nil {
		return nil, err
	}
	var files []int
	for _, m := range messages {
		if fds, err := unix.ParseUnixRights(&m); err == nil {
			files = append(files, fds...)
		}
	}
	for _, fd := range files {
		unix.CloseOnExec(fd)
	}
	if len(files) != execFiles {
		for _, fd := range files {
			_ = unix.Close(fd)
		}
		return nil, errors.New("a request to run a command must carry six file descriptors")
	}
	return files, nil
}

func (i *initStage) startExec(files []int) error {
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer null.Close()
	env := os.Environ()
	for n, v := range env {
		if id, ok := strings.CutPrefix(v, envInit+"="); ok {
			env[n] = envShim + "=" + id
		}
	}
	attr := &syscall.ProcAttr{Dir: "/", Env: env, Files: []uintptr{null.Fd(), null.Fd(), null.Fd()}, Sys: &syscall.SysProcAttr{Setsid: true}}
	for _, fd := range files {
		attr.Files = append(attr.Files, uintptr(fd))
	}
	_, err = syscall.ForkExec("/proc/self/exe", []string{"mariposa", "shim", execArgument}, attr)
	return err
}
