// Package guesttest makes a small Linux guest for tests: the kernel of the distribution, and an
// initial RAM disk with the programs of busybox and the tools of the metadata protocol.
package guesttest

import (
	"bytes"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

//go:embed init
var initScript []byte

//go:embed memory.bin
var memory []byte

// Memory returns a disk that boots, and remembers the last byte of the console. It answers a ? with
// that byte, as a capital letter.
func Memory() []byte { return append(slices.Clone(memory), make([]byte, 1<<20-len(memory))...) }

// modules are what the guest needs of the kernel.
var modules = []string{
	"virtio", "virtio_ring", "virtio_pci_legacy_dev", "virtio_pci_modern_dev", "virtio_pci", "virtio_blk",
	"failover", "net_failover", "virtio_net", "cdrom", "isofs", "button", "evdev", "pvpanic", "pvpanic-mmio",
}

// Append is the command line of the guest's kernel: it says nothing, so that the log has what
// programs write.
const Append = "console=ttyS0 quiet loglevel=0 no_timer_check panic=-1"

// root returns the directory of the source tree.
func root() (string, error) {
	dir, err := os.Getwd()
	for ; err == nil; dir = filepath.Dir(dir) {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir, nil
		}
		if dir == "/" {
			return "", errors.New("the tests do not run in the source tree")
		}
	}
	return "", err
}

// Kernel returns the path of the kernel.
func Kernel() (string, error) {
	dir, err := root()
	if err != nil {
		return "", err
	}
	found, err := filepath.Glob(filepath.Join(dir, ".cache/kernel/boot/vmlinuz-*"))
	if err == nil && len(found) == 0 {
		err = errors.New("there is no kernel for guests in .cache/kernel: run scripts/setup.sh")
	}
	if err != nil {
		return "", err
	}
	return found[len(found)-1], nil
}

// Initrd returns the initial RAM disk.
func Initrd(ctx context.Context) ([]byte, error) {
	dir, err := root()
	if err != nil {
		return nil, err
	}
	var a archive
	for _, name := range []string{"bin", "dev", "proc", "sys", "tmp", "mnt", "lib"} {
		a.add(name, fs.ModeDir|0o755, nil)
	}
	program, err := os.ReadFile("/bin/busybox")
	if err != nil {
		return nil, err
	}
	a.add("bin/busybox", 0o755, program)
	a.add("init", 0o755, initScript)
	if err := addModules(&a, filepath.Join(dir, ".cache/kernel/lib/modules"), modules); err != nil {
		return nil, err
	}
	tool, err := Tool(ctx)
	if err != nil {
		return nil, err
	}
	a.add("bin/mdata", 0o755, tool)
	a.add("TRAILER!!!", 0, nil)
	return a.Bytes(), nil
}

func addModules(a *archive, dir string, modules []string) error {
	paths := map[string]string{}
	err := filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
		if name, ok := strings.CutSuffix(filepath.Base(path), ".ko"); ok {
			paths[name] = path
		}
		return err
	})
	if err != nil {
		return err
	}
	for n, name := range modules {
		if paths[name] == "" {
			continue // it is part of the kernel
		}
		content, err := os.ReadFile(paths[name])
		if err != nil {
			return err
		}
		a.add(fmt.Sprintf("lib/%02d-%s.ko", n, name), 0o644, content)
	}
	return nil
}

// Tool builds the tool of the metadata protocol. It is static, also if the tests are not.
func Tool(ctx context.Context) ([]byte, error) {
	dir, err := root()
	if err != nil {
		return nil, err
	}
	tmp, err := os.MkdirTemp("", "mdata-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(tmp)
	cmd := exec.CommandContext(ctx, "go", "build", "-trimpath", "-ldflags=-s -w", "-o", filepath.Join(tmp, "mdata"), "./cmd/mdata")
	cmd.Dir, cmd.Env = dir, append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=")
	if out, err := cmd.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("cannot build the tool of the metadata protocol: %w: %s", err, out)
	}
	return os.ReadFile(filepath.Join(tmp, "mdata"))
}

// archive is a cpio archive, as the kernel reads it.
type archive struct {
	bytes.Buffer

	count int
}

func (a *archive) add(name string, mode fs.FileMode, content []byte) {
	a.count++
	bits := uint32(mode.Perm())
	switch {
	case mode.IsDir():
		bits |= 0o040000
	case mode != 0:
		bits |= 0o100000
	}
	// inode, mode, uid, gid, links, mtime, size, device, device of the file, length of the name, checksum
	fmt.Fprintf(a, "070701%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x", a.count, bits, 0, 0, 1, 0, len(content), 0, 0, 0, 0, len(name)+1, 0)
	a.WriteString(name + "\x00")
	a.pad()
	a.Write(content)
	a.pad()
}

func (a *archive) pad() {
	for a.Len()%4 > 0 {
		a.WriteByte(0)
	}
}
