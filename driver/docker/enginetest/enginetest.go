// Package enginetest starts Docker engines and Podman for tests. Each has its own directory and its
// own network namespace, so that any number can run beside each other and beside an engine of the
// machine.
package enginetest

import (
	"archive/tar"
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/moby/moby/client"
	"golang.org/x/sys/unix"
)

// These images have a shell and the usual commands; every engine has them.
const (
	// Image stops at once: the first process of a container ignores signals until it has a
	// handler for them.
	Image = "mariposa-test/busybox:1"
	// Graceful gets a SIGTERM to stop, as most images do.
	Graceful = "mariposa-test/busybox:graceful"
)

// Variable names the engine of the tests: the path of another dockerd, or podman.
const Variable = "TEST_ENGINE"

// Engine is a Docker engine, or the service of Podman.
type Engine struct {
	Dir string // everything it has
	API *client.Client

	flags  []string
	inside int // the process in whose namespaces it runs; 0: in a network namespace of its own
	cmd    *exec.Cmd
	holder *exec.Cmd    // keeps the namespaces of Podman; nil for a Docker engine
	door   net.Listener // of the registry that Podman may use; nil for a Docker engine
	log    *os.File
}

// IsPodman reports whether the engine is Podman.
func (e *Engine) IsPodman() bool { return e.holder != nil }

// Host is where it listens.
func (e *Engine) Host() string { return "unix://" + e.Socket() }

// Socket is the path of its socket.
func (e *Engine) Socket() string { return filepath.Join(e.Dir, "docker.sock") }

// Start starts an engine in a directory, with further flags for dockerd.
func Start(dir string, flags ...string) (*Engine, error) {
	if os.Getenv(Variable) == "podman" {
		return StartPodman(dir)
	}
	return start(&Engine{Dir: dir, flags: flags})
}

// StartInside starts a Docker engine in the network and mount namespaces of a process.
func StartInside(pid int, dir string, flags ...string) (*Engine, error) {
	return start(&Engine{Dir: dir, flags: flags, inside: pid})
}

func start(e *Engine) (_ *Engine, err error) {
	if e.log, err = os.OpenFile(filepath.Join(e.Dir, "engine.log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600); err != nil {
		return nil, err
	}
	if e.API, err = client.New(client.WithHost(e.Host())); err != nil {
		return nil, err
	}
	if err := e.Launch(); err != nil {
		_ = e.Stop() // the error is the first one
		return nil, err
	}
	if err := e.importBusybox(); err != nil {
		_ = e.Stop()
		return nil, fmt.Errorf("cannot make a test image: %w", err)
	}
	return e, nil
}

// Launch starts the engine after it was killed.
func (e *Engine) Launch() error {
	cmd := e.docker()
	if e.IsPodman() {
		cmd = e.podman("system", "service", "--time=0", e.Host())
	}
	cmd.Stdout, cmd.Stderr = e.log, e.log
	if err := startForLife(cmd); err != nil {
		return fmt.Errorf("cannot start the engine: %w", err)
	}
	e.cmd = cmd
	if !e.IsPodman() {
		if out, err := exec.CommandContext(context.Background(), "nsenter", "--net=/proc/"+strconv.Itoa(cmd.Process.Pid)+"/ns/net", "ip", "link", "set", "lo", "up").CombinedOutput(); err != nil {
			return fmt.Errorf("cannot set up the network of the engine: %w: %s", err, out)
		}
	}
	return e.awaitAnswer()
}

// docker returns the command of a Docker engine.
func (e *Engine) docker() *exec.Cmd {
	args := []string{
		"--data-root", filepath.Join(e.Dir, "data"), "--exec-root", filepath.Join(e.Dir, "exec"), "--pidfile", filepath.Join(e.Dir, "docker.pid"),
		"--host", e.Host(), "--shutdown-timeout", "1",
		"--default-address-pool", "base=10.64.0.0/12,size=24", // tests need more networks than the engine has by default
	}
	// One that was killed leaves these, and takes a process that nobody has waited for as alive.
	_ = os.Remove(filepath.Join(e.Dir, "docker.pid"))
	_ = os.Remove(filepath.Join(e.Dir, "exec", "containerd", "containerd.pid"))
	program := cmp.Or(os.Getenv(Variable), "dockerd")
	cmd := exec.CommandContext(context.Background(), program, append(args, e.flags...)...) //nolint:gosec // whoever runs the tests names it
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Cloneflags: syscall.CLONE_NEWNET, Pdeathsig: syscall.SIGKILL}
	if e.inside > 0 {
		cmd = exec.CommandContext(context.Background(), "nsenter", slices.Concat([]string{"--target", strconv.Itoa(e.inside), "--net", "--mount", "--", program}, args, e.flags)...) //nolint:gosec // likewise
		cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Pdeathsig: syscall.SIGKILL}
	}
	return cmd
}

// startForLife starts a command that dies with this process. The thread that starts it must live
// on: the command dies with it.
func startForLife(cmd *exec.Cmd) error {
	started := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		err := cmd.Start()
		started <- err
		if err == nil {
			_ = cmd.Wait() // Kill and Stop see how it ended
		}
	}()
	return <-started
}

// awaitAnswer waits until the engine answers.
func (e *Engine) awaitAnswer() error {
	deadline := time.Now().Add(2 * time.Minute)
	for {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		_, err := e.API.Ping(ctx, client.PingOptions{NegotiateAPIVersion: true})
		cancel()
		if err == nil {
			return nil
		}
		if time.Now().After(deadline) || !e.isAlive() {
			text, _ := os.ReadFile(e.log.Name())
			return fmt.Errorf("the engine does not answer: %w\n%s", err, text[max(0, len(text)-4000):])
		}
		time.Sleep(20 * time.Millisecond)
	}
}

func (e *Engine) isAlive() bool { return isAlive(e.cmd.Process.Pid) }

func isAlive(pid int) bool { return syscall.Kill(pid, 0) == nil && !isZombie(pid) }

func isZombie(pid int) bool {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	return err != nil || bytes.Contains(b, []byte(") Z "))
}

// Dial connects to an address in the network namespace of the engine.
func (e *Engine) Dial(ctx context.Context, address string) (net.Conn, error) {
	space, err := os.Open("/proc/" + strconv.Itoa(e.cmd.Process.Pid) + "/ns/net")
	if err != nil {
		return nil, err
	}
	defer space.Close() // it was only read
	type result struct {
		conn net.Conn
		err  error
	}
	done := make(chan result, 1)
	go func() {
		runtime.LockOSThread() // for ever: the thread ends with the goroutine, and nobody else gets into the namespace
		if err := unix.Setns(int(space.Fd()), unix.CLONE_NEWNET); err != nil {
			done <- result{err: err}
			return
		}
		conn, err := new(net.Dialer).DialContext(ctx, "tcp", address)
		done <- result{conn, err}
	}()
	r := <-done
	return r.conn, r.err
}

// Kill ends the engine at once. Containers keep running if it is Podman or has the flag
// --live-restore.
func (e *Engine) Kill() error {
	err := syscall.Kill(e.cmd.Process.Pid, syscall.SIGKILL)
	e.awaitEnd()
	e.killLeftovers(func(proc string) bool { return e.isProgram(proc, "containerd") })
	return err
}

// Freeze stops the engine without ending it; Thaw lets it go on.
func (e *Engine) Freeze() error { return syscall.Kill(e.cmd.Process.Pid, syscall.SIGSTOP) }

// Thaw continues a frozen engine.
func (e *Engine) Thaw() error { return syscall.Kill(e.cmd.Process.Pid, syscall.SIGCONT) }

func (e *Engine) awaitEnd() {
	for deadline := time.Now().Add(time.Minute); e.isAlive() && time.Now().Before(deadline); {
		time.Sleep(10 * time.Millisecond)
	}
}

// Stop ends the engine with all of its containers, and removes what it has mounted.
func (e *Engine) Stop() error {
	if e.cmd == nil || e.cmd.Process == nil {
		e.stopPodman()
		return nil
	}
	if e.isAlive() {
		_ = syscall.Kill(e.cmd.Process.Pid, syscall.SIGCONT)
		_ = syscall.Kill(e.cmd.Process.Pid, syscall.SIGTERM)
		e.awaitEnd()
	}
	e.killLeftovers(func(proc string) bool {
		return e.isProgram(proc, "containerd", "containerd-shim", "containerd-shim-runc-v2") || e.isContainer(proc)
	})
	e.stopPodman()
	mounts, err := os.ReadFile("/proc/self/mounts")
	for _, line := range strings.Split(string(mounts), "\n") {
		if fields := strings.Fields(line); len(fields) > 1 && strings.HasPrefix(fields[1], e.Dir+"/") {
			_ = unix.Unmount(fields[1], unix.MNT_DETACH) // it may be below another one
		}
	}
	return errors.Join(err, e.API.Close(), e.log.Close())
}

// killLeftovers kills the processes of an engine that was killed, and waits for their end.
func (e *Engine) killLeftovers(is func(proc string) bool) {
	for range 500 {
		left := false
		dirs, _ := filepath.Glob("/proc/[0-9]*")
		for _, dir := range dirs {
			if !is(dir) {
				continue
			}
			left = true
			if pid, err := strconv.Atoi(filepath.Base(dir)); err == nil {
				_ = syscall.Kill(pid, syscall.SIGKILL) // it may have ended
			}
		}
		if !left {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// isProgram reports whether a process is one of these programs of the engine. All have its
// directory among their arguments.
func (e *Engine) isProgram(proc string, programs ...string) bool {
	cmdline, err := os.ReadFile(filepath.Join(proc, "cmdline"))
	return err == nil && slices.Contains(programs, filepathBase(cmdline)) && bytes.Contains(cmdline, []byte(e.Dir+"/"))
}

// isContainer reports whether a process is in a container of the engine, whose files are in
// its directory.
func (e *Engine) isContainer(proc string) bool {
	mounts, _ := os.ReadFile(filepath.Join(proc, "mountinfo")) // fails if the process has ended
	for line := range bytes.Lines(mounts) {
		if fields := bytes.Fields(line); len(fields) > 4 && string(fields[4]) == "/" {
			return bytes.Contains(line, []byte(e.Dir+"/"))
		}
	}
	return false
}

// filepathBase returns the last part of the program in a command line.
func filepathBase(cmdline []byte) string {
	program, _, _ := bytes.Cut(cmdline, []byte{0})
	return filepath.Base(string(program))
}

// importBusybox makes an image from the static busybox of this machine.
func (e *Engine) importBusybox() error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	out, err := exec.CommandContext(ctx, "/bin/busybox", "--list").Output()
	if err != nil {
		return err
	}
	files := []tar.Header{
		{Name: "bin/", Typeflag: tar.TypeDir, Mode: 0o755},
		{Name: "etc/", Typeflag: tar.TypeDir, Mode: 0o755},
		{Name: "tmp/", Typeflag: tar.TypeDir, Mode: 0o1777},
		{Name: "run/", Typeflag: tar.TypeDir, Mode: 0o755},
		{Name: "etc/passwd", Typeflag: tar.TypeReg, Mode: 0o644, Size: int64(len(passwd))},
		{Name: "etc/group", Typeflag: tar.TypeReg, Mode: 0o644, Size: int64(len(group))},
	}
	content := map[string][]byte{"etc/passwd": []byte(passwd), "etc/group": []byte(group)}
	// The stty of busybox fails now and then on a terminal of the engine, so that of the machine
	// is used, from the machine's shell.
	for to, from := range map[string]string{"bin/busybox": "/bin/busybox", "bin/sh": "/bin/dash", "bin/stty": "/usr/bin/stty"} {
		if err := addProgram(ctx, content, to, from); err != nil {
			return err
		}
	}
	for name := range content {
		if !slices.ContainsFunc(files, func(h tar.Header) bool { return h.Name == name }) {
			files = append(files, tar.Header{Name: name, Typeflag: tar.TypeReg, Mode: 0o755, Size: int64(len(content[name]))})
		}
	}
	for _, name := range strings.Fields(string(out)) {
		if content["bin/"+name] == nil {
			files = append(files, tar.Header{Name: "bin/" + name, Typeflag: tar.TypeSymlink, Linkname: "busybox"})
		}
	}
	var image bytes.Buffer
	w := tar.NewWriter(&image)
	for i := range files {
		if err := w.WriteHeader(&files[i]); err != nil {
			return err
		}
		if _, err := w.Write(content[files[i].Name]); err != nil {
			return err
		}
	}
	if err := w.Close(); err != nil {
		return err
	}
	if err := e.importImage(ctx, Graceful, image.Bytes(), `CMD ["/bin/sleep", "1000000"]`, "ENV PATH=/bin"); err != nil {
		return err
	}
	return e.Build(ctx, Image, "FROM "+Graceful+"\nSTOPSIGNAL SIGKILL\n")
}

// Build builds an image from a Dockerfile.
func (e *Engine) Build(ctx context.Context, name, dockerfile string) error {
	var files bytes.Buffer
	w := tar.NewWriter(&files)
	err := w.WriteHeader(&tar.Header{Name: "Dockerfile", Typeflag: tar.TypeReg, Mode: 0o644, Size: int64(len(dockerfile))})
	if err == nil {
		_, err = w.Write([]byte(dockerfile))
	}
	if err = errors.Join(err, w.Close()); err != nil {
		return err
	}
	r, err := e.API.ImageBuild(ctx, &files, client.ImageBuildOptions{Tags: []string{name}, Remove: true})
	if err != nil {
		return err
	}
	defer r.Body.Close() // it was only read
	text, err := io.ReadAll(r.Body)
	if err == nil && !bytes.Contains(text, []byte("Successfully tagged")) {
		err = fmt.Errorf("the build of %s failed: %s", name, text)
	}
	return err
}

// addProgram adds a program of this machine with its libraries to the files of an image.
func addProgram(ctx context.Context, files map[string][]byte, to, from string) error {
	b, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	files[to] = b
	out, err := exec.CommandContext(ctx, "ldd", from).CombinedOutput()
	if bytes.Contains(out, []byte("not a dynamic executable")) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("ldd %s: %w: %s", from, err, out)
	}
	for _, word := range strings.Fields(string(out)) {
		if !strings.HasPrefix(word, "/") {
			continue
		}
		if files[word[1:]], err = os.ReadFile(word); err != nil {
			return err
		}
	}
	return nil
}

// importImage makes an image from the files in an archive.
func (e *Engine) importImage(ctx context.Context, name string, archive []byte, changes ...string) error {
	r, err := e.API.ImageImport(ctx, client.ImageImportSource{Source: bytes.NewReader(archive), SourceName: "-"}, name, client.ImageImportOptions{Changes: changes})
	if err != nil {
		return err
	}
	defer r.Close() // it was only read
	_, err = new(bytes.Buffer).ReadFrom(r)
	return err
}

const (
	passwd = "root:x:0:0::/:/bin/sh\nweb:x:1234:1235::/:/bin/sh\n"
	group  = "root:x:0:\nweb:x:1235:\n"
)
