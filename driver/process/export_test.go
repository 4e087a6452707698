package process

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"mariposa/driver/memdir"
)

// UseFailpoints makes starts die at the stage that the file ROOT/.failpoint names. A shim
// does not have the agent's environment, so a file is used: "stage self" kills the
// process that gets there, "stage parent" kills the agent that started it, and "stage
// hang" stops it, or makes it sleep if it is an init.
func UseFailpoints() {
	failpoint = func(root, stage string) {
		b, err := os.ReadFile(filepath.Join(root, ".failpoint"))
		if err != nil {
			return
		}
		at, whom, _ := strings.Cut(strings.TrimSpace(string(b)), " ")
		if at != stage {
			return
		}
		_ = os.Remove(filepath.Join(root, ".failpoint"))
		if os.Getpid() == 1 && whom == "self" { // it cannot be killed from where it is
			syscall.Exit(137)
		}
		switch whom {
		case "parent":
			_ = unix.Kill(os.Getppid(), unix.SIGKILL)
			return
		case "hang":
			_ = unix.Kill(os.Getpid(), unix.SIGSTOP)
		default:
			_ = unix.Kill(os.Getpid(), unix.SIGKILL)
		}
		time.Sleep(time.Hour) // the signal may take a moment; nothing may happen until then
	}
}

// Labelled lists the processes that carry a root, except shims.
func Labelled(root string) (pids, shims []int, err error) {
	all, err := findLabelled(root)
	for _, l := range all {
		switch {
		case l.init: // ends with the shim, or ends it
		case l.shim:
			shims = append(shims, l.pid)
		default:
			pids = append(pids, l.pid)
		}
	}
	return pids, shims, err
}

// Leftovers counts the processes of an instance that an agent would find, those that are about
// to die included.
func (d *Driver) Leftovers(id string) (int, error) {
	d.mu.Lock()
	e := d.entries[id]
	d.mu.Unlock()
	list, err := d.leftoverProcesses(e)
	return len(list), err
}

// KeepBeside makes a driver keep private directories beside instances, as on a
// machine without a file system in memory.
func (d *Driver) KeepBeside() {
	d.memory.Release()
	d.memory = memdir.New(d.root, nil)
}

// Private returns the path of an instance's private directory.
func (d *Driver) Private(id string) string {
	d.mu.Lock()
	defer d.mu.Unlock()
	if e := d.entries[id]; e != nil {
		return e.private.path
	}
	return ""
}

// WithoutMaps makes a driver assume that no file system supports ID-mapped mounts.
func (d *Driver) WithoutMaps() { d.mappable = nil }

// Check calls check with the test's own files.
func (u UIDs) Check(files ...string) error { return u.check(files) }

// UseUnified makes a driver use cgroups of version 2 at this mount.
func (d *Driver) UseUnified(mount string) { d.hierarchy = hierarchy{Unified: mount} }

// Inits lists the inits of isolated instances that carry a root.
func Inits(root string) (pids []int) {
	all, _ := findLabelled(root)
	for _, l := range all {
		if l.init {
			pids = append(pids, l.pid)
		}
	}
	return pids
}

// Hides reports whether a path is hidden from all instances.
func (d *Driver) Hides(path string) bool { return d.isHidden(path) }

// LandlockVersion returns the Landlock version of the kernel.
func LandlockVersion() int { return landlockVersion() }
