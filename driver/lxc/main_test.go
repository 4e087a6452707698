package lxc_test

import (
	"archive/tar"
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"mariposa/driver/drivertest/island"
	"mariposa/driver/lxc"
	"mariposa/leaktest"
)

// The test binary replaces mariposa: it is its own supervisor.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == lxc.SupervisorCommand {
		syscall.Exit(lxc.SupervisorMain(os.Args[2:])) // not os.Exit: under -race that sleeps for a second
	}
	island.Enter()
	if len(os.Args) == 4 && os.Args[1] == "agent" {
		os.Exit(agentMain(os.Args[2], os.Args[3]))
	}
	leaktest.Main(m)
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
