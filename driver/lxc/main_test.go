package lxc_test

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"mariposa/driver/lxc"
	"mariposa/leaktest"
)

// The test binary replaces mariposa: it is its own supervisor. The tests run in namespaces of
// their own: no container, bridge or rule of them can reach the network of the machine, and
// nothing of them outlives the test.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == lxc.SupervisorCommand {
		syscall.Exit(lxc.SupervisorMain(os.Args[2:])) // not os.Exit: under -race that sleeps for a second
	}
	switch os.Getenv(envStage) {
	case "":
		os.Exit(enterNamespaces())
	case "first":
		os.Exit(firstProcess())
	}
	if os.Getenv(envNamespace) == namespace() || os.Getenv(envNamespace) == "" {
		fmt.Fprintln(os.Stderr, "the tests are in the network namespace of the machine: they do not run there")
		os.Exit(1)
	}
	if len(os.Args) == 4 && os.Args[1] == "agent" {
		os.Exit(agentMain(os.Args[2], os.Args[3]))
	}
	leaktest.Main(m)
}

const (
	envStage     = "TEST_LXC_STAGE"
	envUnified   = "TEST_LXC_UNIFIED" // there are cgroups of version 2 only
	envImages    = "TEST_LXC_IMAGES"  // the directory of the image store
	envNamespace = "TEST_LXC_NETWORK" // the network namespace that the tests must not be in
)

func namespace() string {
	name, err := os.Readlink("/proc/self/ns/net")
	if err != nil {
		return ""
	}
	return name
}

// enterNamespaces runs the tests again in namespaces of their own.
func enterNamespaces() int {
	return runAgain("first", &syscall.SysProcAttr{
		Cloneflags: unix.CLONE_NEWNET | unix.CLONE_NEWNS | unix.CLONE_NEWPID, Pdeathsig: syscall.SIGKILL,
	}, envNamespace+"="+namespace())
}

// firstProcess is the first process of the namespaces: it prepares them and reaps what nobody
// else waits for. Everything in them ends with it.
func firstProcess() int {
	if err := prepareNamespaces(); err != nil {
		fmt.Fprintln(os.Stderr, "cannot prepare the namespaces of the tests:", err)
		return 1
	}
	images, err := os.MkdirTemp("", "mariposa-images-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(images)
	return runAgain("tests", &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}, envImages+"="+images)
}

func runAgain(stage string, attr *syscall.SysProcAttr, env ...string) int {
	cmd := exec.CommandContext(context.Background(), "/proc/self/exe", os.Args[1:]...) //nolint:gosec // ourselves
	cmd.Args[0] = os.Args[0]
	cmd.Stdin, cmd.Stdout, cmd.Stderr, cmd.SysProcAttr = os.Stdin, os.Stdout, os.Stderr, attr
	cmd.Env = append(append(os.Environ(), env...), envStage+"="+stage)
	if err := cmd.Start(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	for {
		var status syscall.WaitStatus
		pid, err := syscall.Wait4(-1, &status, 0, nil)
		switch {
		case err != nil && !errors.Is(err, syscall.EINTR):
			fmt.Fprintln(os.Stderr, err)
			return 1
		case pid == cmd.Process.Pid && status.Exited():
			return status.ExitStatus()
		case pid == cmd.Process.Pid:
			return 128 + int(status.Signal())
		}
	}
}

// prepareNamespaces mounts what shows the new namespaces instead of those of the machine.
func prepareNamespaces() error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_SLAVE, ""); err != nil {
		return err
	}
	if err := unix.Mount("proc", "/proc", "proc", 0, ""); err != nil {
		return err
	}
	cgroups, err := os.MkdirTemp("", "cgroups-")
	if err != nil {
		return err
	}
	defer os.Remove(cgroups)
	if err := unix.Mount("/sys/fs/cgroup", cgroups, "", unix.MS_BIND|unix.MS_REC, ""); err != nil {
		return err
	}
	if err := unix.Unmount("/sys", unix.MNT_DETACH); err != nil {
		return err
	}
	if err := unix.Mount("sysfs", "/sys", "sysfs", 0, ""); err != nil {
		return err
	}
	if os.Getenv(envUnified) != "" {
		if err := unix.Mount("cgroup2", "/sys/fs/cgroup", "cgroup2", 0, ""); err != nil {
			return err
		}
	} else if err := unix.Mount(cgroups, "/sys/fs/cgroup", "", unix.MS_BIND|unix.MS_REC, ""); err != nil {
		return err
	}
	if err := unix.Unmount(cgroups, unix.MNT_DETACH); err != nil {
		return err
	}
	out, err := exec.CommandContext(context.Background(), "ip", "link", "set", "lo", "up").CombinedOutput()
	if err != nil {
		return fmt.Errorf("%w: %s", err, out)
	}
	return nil
}

const (
	passwd  = "root:x:0:0::/root:/bin/sh\nweb:x:1234:1235::/:/bin/sh\n"
	groups  = "root:x:0:\nweb:x:1235:\n"
	inittab = "::sysinit:/bin/echo booted\n::respawn:/bin/sleep 100000\n::shutdown:/bin/echo going down\n"
)

// busybox returns a root file system with the programs of busybox, with or without an init.
func busybox(init bool) ([]byte, error) {
	ctx := context.Background()
	out, err := exec.CommandContext(ctx, "/bin/busybox", "--list").Output()
	if err != nil {
		return nil, err
	}
	var image bytes.Buffer
	w := tar.NewWriter(&image)
	add := func(h tar.Header, content []byte) {
		h.Size = int64(len(content))
		if err == nil {
			err = w.WriteHeader(&h)
		}
		if err == nil {
			_, err = w.Write(content)
		}
	}
	for dir, mode := range map[string]int64{"./": 0o755, "bin/": 0o755, "etc/": 0o755, "tmp/": 0o1777, "root/": 0o700, "srv/": 0o755, "proc/": 0o755, "sys/": 0o755, "dev/": 0o755} {
		add(tar.Header{Name: dir, Typeflag: tar.TypeDir, Mode: mode}, nil)
	}
	program, readErr := os.ReadFile("/bin/busybox")
	if readErr != nil {
		return nil, readErr
	}
	add(tar.Header{Name: "bin/busybox", Typeflag: tar.TypeReg, Mode: 0o755}, program)
	add(tar.Header{Name: "etc/passwd", Typeflag: tar.TypeReg, Mode: 0o644}, []byte(passwd))
	add(tar.Header{Name: "etc/group", Typeflag: tar.TypeReg, Mode: 0o644}, []byte(groups))
	add(tar.Header{Name: "srv/owned", Typeflag: tar.TypeReg, Mode: 0o4751, Uid: 1234, Gid: 1235}, []byte("text"))
	for _, name := range strings.Fields(string(out)) {
		if name != "busybox" && name != "init" {
			add(tar.Header{Name: "bin/" + name, Typeflag: tar.TypeSymlink, Linkname: "busybox"}, nil)
		}
	}
	if init {
		add(tar.Header{Name: "sbin/init", Typeflag: tar.TypeSymlink, Linkname: "/bin/busybox"}, nil)
		add(tar.Header{Name: "etc/inittab", Typeflag: tar.TypeReg, Mode: 0o644}, []byte(inittab))
	}
	if err == nil {
		err = w.Close()
	}
	return image.Bytes(), err
}

// removeCgroups removes the parents of the cgroups that tests have made.
func removeCgroups(name string) {
	for _, dir := range []string{"/sys/fs/cgroup/*/" + name, "/sys/fs/cgroup/*/*/" + name, "/sys/fs/cgroup/*/*/*/" + name, "/sys/fs/cgroup/" + name} {
		paths, _ := filepath.Glob(dir)
		for _, path := range paths {
			for _, below := range []string{"pivot/lxc.pivot", "pivot"} {
				_ = unix.Rmdir(filepath.Join(path, below))
			}
			_ = unix.Rmdir(path)
		}
	}
}
