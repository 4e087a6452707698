package process

import (
	"fmt"
	"os"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"
)

// mapNamespace opens a user namespace that maps the files of an owner to a uid, for an
// ID-mapped mount. It outlives the process that it is created with.
func mapNamespace(executable string, owner, uid int) (int, error) {
	ids := []syscall.SysProcIDMap{{ContainerID: owner, HostID: uid, Size: 1}}
	pid, err := syscall.ForkExec(executable, []string{"mariposa", "shim", holdArgument}, &syscall.ProcAttr{
		Dir: "/", Env: []string{},
		Sys: &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWUSER, UidMappings: ids, GidMappings: ids, Setsid: true},
	})
	if err != nil {
		return -1, fmt.Errorf("cannot create a user namespace: %w", err)
	}
	fd, err := unix.Open("/proc/"+strconv.Itoa(pid)+"/ns/user", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	_ = unix.Kill(pid, unix.SIGKILL) // our child: its pid is not reused until it is reaped
	_, _ = syscall.Wait4(pid, nil, 0, nil)
	return fd, err
}

// holdArgument starts a program that does nothing: it keeps a namespace alive until that
// has been opened, and is then killed.
const holdArgument = "hold"

// canMap reports whether the file system of a directory supports ID-mapped mounts.
func (d *Driver) canMap(path string) bool {
	var st unix.Stat_t
	if unix.Stat(path, &st) != nil {
		return false
	}
	d.mapMu.Lock()
	defer d.mapMu.Unlock()
	if d.mappable == nil {
		return false
	}
	can, known := d.mappable[st.Dev]
	if !known {
		can = d.tryMap(path) == nil
		d.mappable[st.Dev] = can
	}
	return can
}

func (d *Driver) tryMap(path string) error {
	ns, err := mapNamespace(d.ownExecutable(), d.options.UIDs.First, d.options.UIDs.First+1)
	if err != nil {
		return err
	}
	defer unix.Close(ns)
	tree, err := cloneTree(path, unix.MountAttr{Attr_set: unix.MOUNT_ATTR_IDMAP, Userns_fd: uint64(ns)})
	if err != nil {
		return err
	}
	return os.NewFile(uintptr(tree), path).Close()
}
