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

// start mounts what every program expects, runs the script, and ends the machine.
const start = `#!/bin/busybox sh
/bin/busybox --install -s /bin
export PATH=/bin:/usr/sbin HOME=/tmp
mount -t devtmpfs dev /dev
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t tmpfs tmp /tmp
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
	dirs := map[string]bool{"bin": true, "dev": true, "lib": true, "proc": true, "sys": true, "tmp": true}
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
