package process

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// fork starts a program in the instance's cgroups, from its first instruction on. If it
// cannot join them, it runs without limits and reports that.
func (s *shim) fork(path string, argv []string, attr syscall.ProcAttr) (pid int, err error) {
	if len(s.group.dirs) > 0 {
		if pid, err = s.group.fork(path, argv, attr); err == nil {
			return pid, nil
		}
	}
	pid, forkErr := syscall.ForkExec(path, argv, &attr)
	if forkErr == nil && err != nil { // so the command did not cause the error
		_ = s.group.remove()
		s.group = group{}
		if s.limits != "" {
			s.limits = "not enforced: " + explainLimitError(err)
		}
	}
	return pid, forkErr
}

// fork starts a command in the groups.
func (g group) fork(path string, argv []string, attr syscall.ProcAttr) (pid int, err error) {
	if g.unified {
		dir, err := os.Open(g.dirs[0])
		if err != nil {
			return 0, err
		}
		defer dir.Close()
		sys := *attr.Sys
		sys.UseCgroupFD, sys.CgroupFD = true, int(dir.Fd())
		attr.Sys = &sys
		return syscall.ForkExec(path, argv, &attr)
	}
	onOwnThread(func() {
		if err = joinGroups(g.dirs); err == nil {
			pid, err = syscall.ForkExec(path, argv, &attr)
		}
	})
	return pid, err
}

// closeInherited closes files that we have inherited from the agent, and the agent from
// its parent. Open for the life of an instance, they would keep a pipe from ever ending.
// Files up to last are meant for us; files that this program opens are closed on exec.
func closeInherited(last int) {
	dir, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return
	}
	for _, f := range dir {
		fd, err := strconv.Atoi(f.Name())
		if err != nil || fd <= last {
			continue
		}
		if flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0); err == nil && flags&unix.FD_CLOEXEC == 0 {
			_ = unix.Close(fd)
		}
	}
}

// joinGroups moves the calling thread into groups of version 1, which its child inherits.
// The memory of the child counts from exec on.
func joinGroups(dirs []string) error {
	for _, dir := range dirs {
		tid := strconv.Itoa(unix.Gettid())
		if err := os.WriteFile(filepath.Join(dir, "tasks"), []byte(tid), 0); err != nil {
			return fmt.Errorf("cannot enter the cgroup: %w", err)
		}
	}
	return nil
}

// onOwnThread runs f on a thread that ends afterwards. The first thread of a process
// never ends, so a goroutine that gets it keeps it and starts another.
func onOwnThread(f func()) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		if unix.Gettid() == os.Getpid() {
			defer runtime.UnlockOSThread()
			onOwnThread(f)
			return
		}
		f()
	}()
	<-done
}

// copyOutput copies the command's output into the log. A log that cannot be written (a full
// disk) loses lines, but never blocks the command.
func copyOutput(log io.Writer, output *os.File, done chan<- struct{}) {
	defer close(done)
	buffer := make([]byte, 32<<10)
	for {
		n, err := output.Read(buffer)
		if n > 0 {
			_, _ = log.Write(buffer[:n])
		}
		if err != nil {
			return
		}
	}
}

// lookPath finds a command in the PATH that it will run with.
func lookPath(name string, env []string, dir string) (string, error) {
	if strings.Contains(name, "/") {
		path := name
		if !filepath.IsAbs(path) {
			path = filepath.Join(dir, path)
		}
		return path, runnable(name, path)
	}
	var search string
	for _, v := range env {
		if p, ok := strings.CutPrefix(v, "PATH="); ok {
			search = p
		}
	}
	missing := fmt.Errorf("cannot run %q: no such file in PATH", name)
	for _, d := range filepath.SplitList(search) {
		if !filepath.IsAbs(d) {
			d = filepath.Join(dir, d)
		}
		path := filepath.Join(d, name)
		err := runnable(name, path)
		if err == nil {
			return path, nil
		}
		if info, e := os.Stat(path); e == nil && info.Mode().IsRegular() {
			missing = err // it exists but cannot be run
		}
	}
	return "", missing
}

func runnable(name, path string) error {
	info, err := os.Stat(path)
	switch {
	case isGone(err):
		return fmt.Errorf("cannot run %q: no such file", name)
	case err != nil:
		return fmt.Errorf("cannot run %q: %w", name, errors.Unwrap(err))
	case info.IsDir():
		return fmt.Errorf("cannot run %q: it is a directory", name)
	case unix.Access(path, unix.X_OK) != nil:
		return fmt.Errorf("cannot run %q: it is not executable", name)
	}
	return nil
}

// explain explains why an existing executable file did not start.
func explain(name, path string, err error) error {
	switch {
	case errors.Is(err, unix.ENOENT):
		return fmt.Errorf("cannot run %q: the interpreter that %s names does not exist", name, path)
	case errors.Is(err, unix.ENOEXEC):
		return fmt.Errorf("cannot run %q: %s is not a program for this machine", name, path)
	case errors.Is(err, unix.EACCES):
		return fmt.Errorf("cannot run %q: the user that it runs as may not execute it; open it to other users (chmod o+rx)", name)
	case errors.Is(err, unix.E2BIG):
		return fmt.Errorf("cannot run %q: its arguments and environment are too large for this machine; move large values into files", name)
	}
	return fmt.Errorf("cannot run %q: %w", name, err)
}

// withoutName removes the command's name from a message before that is written to disk:
// the name comes from the manifest and may contain a secret.
func withoutName(sentence, command string) string {
	sentence = strings.ReplaceAll(sentence, strconv.Quote(command), "its command")
	return strings.ReplaceAll(sentence, "/"+strings.TrimPrefix(command, "/"), "/…") // where it was found
}

// waitid looks for a dead child without reaping it. The wrapper of x/sys does not return
// the pid.
func waitid(info *waitInfo) error {
	for {
		_, _, errno := unix.Syscall6(unix.SYS_WAITID, unix.P_ALL, 0, uintptr(unsafe.Pointer(info)),
			unix.WEXITED|unix.WNOWAIT|unix.WNOHANG, 0, 0)
		switch errno {
		case 0:
			return nil
		case unix.EINTR:
			continue
		}
		return errno
	}
}
