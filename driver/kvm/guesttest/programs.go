package guesttest

import (
	"context"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// start moves the files to a file system that containers can be started on, which the first one of
// a machine is not. It mounts what every program expects, runs the script, and ends the machine.
const start = `#!/bin/busybox sh
export PATH=/bin:/usr/bin:/usr/sbin HOME=/tmp
if [ ! -e /new ]; then
	/bin/busybox --install -s /bin
	mkdir /new
	mount -t tmpfs -o mode=755 root /new
	cp -a /bin /dev /etc /init /lib* /new /proc /run /sys /tmp /usr /var /*.test /new 2>/dev/null
	exec switch_root /new /init
fi
mount -t devtmpfs dev /dev
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t tmpfs tmp /tmp
mount -t tmpfs run /run
mount -t cgroup2 cgroup2 /sys/fs/cgroup
for module in /lib/*.ko; do insmod "$module"; done
%s
poweroff -f
`

// Programs returns an initial RAM disk that runs a shell script and then ends the machine. It has
// modules of the kernel, and programs of this machine with the libraries that they need, by their
// path in the guest.
func Programs(ctx context.Context, script string, modules []string, programs map[string]string) ([]byte, error) {
	dir, err := root()
	if err != nil {
		return nil, err
	}
	files := map[string]string{"bin/busybox": "/bin/busybox"}
	for path, program := range programs {
		files[path] = program
		libraries, err := librariesOf(ctx, program)
		if err != nil {
			return nil, err
		}
		for _, library := range libraries {
			files[strings.TrimPrefix(library, "/")] = library
		}
	}
	var a archive
	dirs := map[string]bool{}
	for _, dir := range []string{"bin", "dev", "etc", "lib", "proc", "run", "sys", "tmp", "usr", "var"} {
		dirs[dir] = true
	}
	for path := range files {
		for d := filepath.Dir(path); d != "."; d = filepath.Dir(d) {
			dirs[d] = true
		}
	}
	for _, name := range slices.Sorted(maps.Keys(dirs)) { // parents first
		a.add(name, fs.ModeDir|0o755, nil)
	}
	for _, path := range slices.Sorted(maps.Keys(files)) {
		content, err := os.ReadFile(files[path])
		if err != nil {
			return nil, err
		}
		a.add(path, 0o755, content)
	}
	a.add("init", 0o755, fmt.Appendf(nil, start, script))
	if err := addModules(&a, filepath.Join(dir, ".cache/kernel/lib/modules"), modules); err != nil {
		return nil, err
	}
	a.add("TRAILER!!!", 0, nil)
	return a.Bytes(), nil
}

// librariesOf returns the libraries that a program needs.
func librariesOf(ctx context.Context, program string) (all []string, err error) {
	out, err := exec.CommandContext(ctx, "ldd", program).CombinedOutput()
	if strings.Contains(string(out), "not a dynamic executable") {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("ldd %s: %w: %s", program, err, out)
	}
	for _, word := range strings.Fields(string(out)) {
		if strings.HasPrefix(word, "/") {
			all = append(all, word)
		}
	}
	return all, nil
}

// Run runs a shell script in a machine of its own, with cgroups of version 2 only, and returns what
// it writes. See Programs.
func Run(ctx context.Context, dir, script string, modules []string, programs map[string]string) (string, error) {
	kernel, err := Kernel()
	if err != nil {
		return "", err
	}
	initrd, err := Programs(ctx, script, modules, programs)
	if err != nil {
		return "", err
	}
	file := filepath.Join(dir, "initrd")
	if err := os.WriteFile(file, initrd, 0o600); err != nil {
		return "", err
	}
	out, err := exec.CommandContext(ctx, "qemu-system-x86_64", "-nodefaults", "-display", "none", "-accel", "tcg,tb-size=64", "-cpu", "max", "-m", "768M", "-no-reboot", //nolint:gosec // our own arguments
		"-kernel", kernel, "-initrd", file, "-append", Append+" apparmor=0", "-serial", "stdio").CombinedOutput()
	return string(out), err
}
