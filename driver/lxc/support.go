package lxc

import (
	"context"
	"hash/fnv"
	"maps"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"mariposa/driver/ostool"
)

// support is what this machine can do.
type support struct {
	unavailable string // why it can run no system container; empty if it can
	version     string // of LXC
	userNS      bool   // containers can have ids of their own
	overlay     bool   // they can share the files of their image
	noUserNS    string // why they cannot have ids of their own
	seccomp     string // the distribution's profile; empty if it has none
}

// findSupport finds out what this machine can do.
func (d *Driver) findSupport() (s support) {
	switch {
	case os.Geteuid() != 0:
		s.unavailable = "the agent must run as root to run system containers"
		return s
	case !d.groups.Exists():
		s.unavailable = "this machine has no cgroups: mount them, for example by a boot with systemd"
		return s
	}
	for _, tool := range []string{"lxc-start", "lxc-attach", "lxc-info", "ip"} {
		if ostool.Find(tool) == "" {
			s.unavailable = "this machine does not have the program " + tool + ": install " + packageOf(tool)
			return s
		}
	}
	ctx, cancel := context.WithTimeout(d.ctx, ostool.Timeout)
	defer cancel()
	out, err := ostool.Run(ctx, "lxc-start", "--version")
	if err != nil {
		s.unavailable = "lxc-start does not work here: " + err.Error()
		return s
	}
	s.version = strings.TrimSpace(out)
	if major, _, _ := strings.Cut(s.version, "."); len(major) == 1 && major < "4" {
		s.unavailable = "LXC " + s.version + " is too old: install version 4 or later"
		return s
	}
	if path := "/usr/share/lxc/config/common.seccomp"; isFile(path) {
		s.seccomp = path
	}
	ns, err := mapNamespace(d.ownExecutable(), 0, firstIDs)
	if err != nil {
		// A full machine must not make containers privileged that a tenant controls.
		s.noUserNS = "this machine has no user namespaces: " + lastPart(err)
		if s.overlay = true; !d.options.Privileged {
			s.unavailable = s.noUserNS + ": check user.max_user_namespaces, or allow privileged system containers with --lxc privileged"
		}
		return s
	}
	defer unix.Close(ns)
	s.userNS = true
	s.overlay = kernelAtLeast(5, 19) && canMap(d.options.Images.Dir(), ns) == nil
	return s
}

func packageOf(tool string) string {
	if tool == "ip" {
		return "the package iproute2"
	}
	return "the package lxc"
}

// probeInterval is how often a machine that can run no system container is looked at again:
// someone may have installed what was missing.
const probeInterval = 30 * time.Second

// Unavailable explains why no system container can be started here.
func (d *Driver) Unavailable() string { return d.supported().unavailable }

// supported returns what this machine can do.
func (d *Driver) supported() support {
	d.supportMu.Lock()
	defer d.supportMu.Unlock()
	if d.support.unavailable != "" && time.Since(d.probed) > probeInterval && d.ctx.Err() == nil {
		d.support, d.probed = d.findSupport(), time.Now()
	}
	return d.support
}

// Details describe how system containers run here.
func (d *Driver) Details() map[string]string {
	is := d.supported()
	if is.unavailable != "" {
		return nil
	}
	m := map[string]string{"lxc": is.version, "cgroups": "version 1", "seccomp": "the distribution's profile"}
	if d.groups.IsV2() {
		m["cgroups"] = "version 2"
	}
	if is.seccomp == "" {
		m["seccomp"] = "none: the distribution has no profile"
	}
	switch {
	case !is.userNS:
		m["isolation"] = "privileged: root inside is root of the machine, because " + is.noUserNS
	case is.overlay:
		m["isolation"] = "unprivileged: each container has ids of its own"
	default:
		m["isolation"] = "unprivileged: each container has ids of its own, and a full copy of its image, because the kernel cannot map the ids of the image's files"
	}
	maps.Copy(m, d.options.Networks.Details())
	return m
}

// isFile reports whether a file exists.
func isFile(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.Mode().IsRegular()
}

// mapNamespace opens a user namespace that maps the ids of a container to those from a first one
// on. It outlives the process that it is created with.
func mapNamespace(executable string, inside, outside int) (int, error) {
	ids := []syscall.SysProcIDMap{{ContainerID: inside, HostID: outside, Size: idCount}}
	pid, err := syscall.ForkExec(executable, []string{"mariposa", SupervisorCommand, holdArgument}, &syscall.ProcAttr{
		Dir: "/", Env: []string{},
		Sys: &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWUSER, UidMappings: ids, GidMappings: ids, Setsid: true},
	})
	if err != nil {
		return -1, err
	}
	fd, err := unix.Open("/proc/"+strconv.Itoa(pid)+"/ns/user", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	_ = unix.Kill(pid, unix.SIGKILL) // our child: its pid is not reused until it is reaped
	_, _ = syscall.Wait4(pid, nil, 0, nil)
	return fd, err
}

// canMap reports why the ids of files on the file system of a directory cannot be mapped.
func canMap(path string, userNS int) error {
	tree, err := cloneTree(path, unix.MountAttr{Attr_set: unix.MOUNT_ATTR_IDMAP, Userns_fd: uint64(userNS)})
	if err != nil {
		return err
	}
	return unix.Close(tree)
}

// cloneTree copies the mount at a path and sets its attributes.
func cloneTree(path string, attr unix.MountAttr) (int, error) {
	tree, err := unix.OpenTree(unix.AT_FDCWD, path, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
	if err != nil {
		return -1, err
	}
	if err := unix.MountSetattr(tree, "", unix.AT_EMPTY_PATH, &attr); err != nil {
		_ = unix.Close(tree)
		return -1, err
	}
	return tree, nil
}

// kernelAtLeast compares the version of the kernel.
func kernelAtLeast(major, minor int) bool {
	var u unix.Utsname
	if unix.Uname(&u) != nil {
		return false
	}
	parts := strings.FieldsFunc(unix.ByteSliceToString(u.Release[:]), func(r rune) bool { return r == '.' || r == '-' })
	if len(parts) < 2 {
		return false
	}
	x, _ := strconv.Atoi(parts[0])
	y, _ := strconv.Atoi(parts[1])
	return x > major || x == major && y >= minor
}

// lastPart returns the innermost part of an error's text.
func lastPart(err error) string {
	parts := strings.Split(err.Error(), ": ")
	return parts[len(parts)-1]
}

func hashOf(text string) uint32 {
	h := fnv.New32a()
	_, _ = h.Write([]byte(text)) // never fails
	return h.Sum32()
}
