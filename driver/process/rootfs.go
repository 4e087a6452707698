package process

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// rootDir is where an instance's view of the file system is built, in its own directory.
// Only its own mount namespace ever sees the contents.
const rootDir = "root"

// rootfs builds what an instance sees, and makes it the root of the calling process. All
// mounts end with the mount namespace, that is, with its last process.
type rootfs struct {
	*sandbox
	path   string
	root   *os.Root
	userNS map[int]int // user namespaces that map an owner's files to the instance, by owner
}

func (r *rootfs) enter() error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("cannot make its mounts private: %w", err)
	}
	if err := r.mount("tmpfs", "", unix.MS_NOSUID|unix.MS_NODEV, "mode=755,size=4m"); err != nil {
		return err
	}
	var err error
	if r.root, err = os.OpenRoot(r.path); err != nil {
		return err
	}
	defer r.root.Close()
	for _, step := range []func() error{r.mountSystem, r.mountBinds, r.writeAccounts, r.seal, r.pivot} {
		if err := step(); err != nil {
			return err
		}
	}
	return nil
}

// mount mounts a new file system for the instance.
func (r *rootfs) mount(fstype, target string, flags uintptr, data string) error {
	if target != "" {
		if err := r.root.MkdirAll(target[1:], 0o755); err != nil {
			return fmt.Errorf("cannot create its %s: %w", target, err)
		}
	}
	if err := unix.Mount(fstype, r.path+target, fstype, flags, data); err != nil {
		return fmt.Errorf("cannot mount its %s: %w", strings.TrimPrefix(target+" ("+fstype+")", " "), err)
	}
	return nil
}

// mountSystem mounts the file systems that are created for this instance only.
func (r *rootfs) mountSystem() error {
	const quiet = unix.MS_NOSUID | unix.MS_NODEV
	id := strconv.Itoa(r.UID)
	size := "size=" + strconv.FormatInt(r.TmpSize, 10) + ",nr_inodes=" + strconv.FormatInt(max(1024, r.TmpSize>>12), 10)
	for _, m := range []struct {
		fstype, target string
		flags          uintptr
		data           string
	}{
		{"proc", "/proc", quiet | unix.MS_NOEXEC, ""},
		{"tmpfs", "/dev", unix.MS_NOSUID | unix.MS_NOEXEC, "mode=755,size=64k"},
		{"devpts", "/dev/pts", unix.MS_NOSUID | unix.MS_NOEXEC, "newinstance,ptmxmode=0666,mode=0600,uid=" + id + ",gid=" + strconv.Itoa(r.GID)},
		{"tmpfs", "/dev/shm", quiet | unix.MS_NOEXEC, "mode=1777," + size},
		{"tmpfs", "/tmp", quiet, "mode=1777," + size},
	} {
		if err := r.mount(m.fstype, m.target, m.flags, m.data); err != nil {
			return err
		}
	}
	for _, dir := range []string{"etc", "run", "var", "root", "home"} {
		if err := r.root.Mkdir(dir, 0o755); err != nil {
			return err
		}
	}
	for link, to := range map[string]string{
		"dev/ptmx": "pts/ptmx", "dev/fd": "/proc/self/fd", "dev/stdin": "/proc/self/fd/0", "dev/stdout": "/proc/self/fd/1",
		"dev/stderr": "/proc/self/fd/2", "var/tmp": "../tmp", "var/run": "../run", "etc/mtab": "/proc/self/mounts",
	} {
		if err := r.root.Symlink(to, link); err != nil {
			return err
		}
	}
	return nil
}

// mountBinds mounts the parts of the machine that the instance can see, directories
// before the paths in them.
func (r *rootfs) mountBinds() error {
	slices.SortStableFunc(r.Binds, func(a, b bind) int { return strings.Compare(a.Target, b.Target) })
	for _, b := range r.Binds {
		err := r.bind(b)
		if b.Optional && isGone(err) {
			continue
		}
		if err != nil {
			return fmt.Errorf("cannot mount %s for it: %w", b.Target, err)
		}
	}
	return nil
}

func (r *rootfs) bind(b bind) error {
	switch b.Kind {
	case bindLink:
		return r.root.Symlink(b.Source, b.Target[1:])
	case bindMask:
		return r.mount("tmpfs", b.Target, unix.MS_NOSUID|unix.MS_NODEV, "mode=755,size=64k")
	case bindReadOnly, bindWritable, bindMapped, bindDevice:
	}
	attr := unix.MountAttr{Attr_set: unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV, Propagation: unix.MS_PRIVATE}
	switch b.Kind {
	case bindReadOnly:
		attr.Attr_set |= unix.MOUNT_ATTR_RDONLY
	case bindDevice:
		attr.Attr_set = unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NOEXEC
	case bindMapped:
		attr.Attr_set |= unix.MOUNT_ATTR_IDMAP
		attr.Userns_fd = uint64(r.userNS[b.Owner])
	case bindWritable, bindMask, bindLink:
	}
	tree, err := cloneTree(b.Source, attr)
	if err != nil {
		return err
	}
	defer unix.Close(tree)
	if err := r.mountPoint(tree, b.Target[1:]); err != nil {
		return err
	}
	return unix.MoveMount(tree, "", unix.AT_FDCWD, r.path+b.Target, unix.MOVE_MOUNT_F_EMPTY_PATH)
}

// cloneTree copies the mounts at a path and sets their attributes.
func cloneTree(path string, attr unix.MountAttr) (int, error) {
	tree, err := unix.OpenTree(unix.AT_FDCWD, path, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_RECURSIVE)
	if err != nil {
		return -1, err
	}
	if err := unix.MountSetattr(tree, "", unix.AT_EMPTY_PATH|unix.AT_RECURSIVE, &attr); err != nil {
		_ = unix.Close(tree)
		return -1, err
	}
	return tree, nil
}

// mountPoint creates a directory or a file to mount a tree on.
func (r *rootfs) mountPoint(tree int, target string) error {
	if _, err := r.root.Stat(target); err == nil {
		return nil
	}
	var st unix.Stat_t
	if err := unix.Fstat(tree, &st); err != nil {
		return err
	}
	if st.Mode&unix.S_IFMT == unix.S_IFDIR {
		return r.root.MkdirAll(target, 0o755)
	}
	if err := r.root.MkdirAll(filepath.Dir(target), 0o755); err != nil {
		return err
	}
	f, err := r.root.OpenFile(target, os.O_CREATE|os.O_WRONLY|os.O_EXCL, 0o444)
	if err != nil {
		return err
	}
	return f.Close()
}

// writeAccounts writes the users and groups of the instance: its own, root, and nobody. It also
// writes its name servers.
func (r *rootfs) writeAccounts() error {
	uid, gid := strconv.Itoa(r.UID), strconv.Itoa(r.GID)
	files := map[string]string{
		"etc/passwd": "root:x:0:0:root:/root:/usr/sbin/nologin\ninstance:x:" + uid + ":" + gid + "::" + r.Work + ":/bin/sh\nnobody:x:65534:65534:nobody:/:/usr/sbin/nologin\n",
		"etc/group":  "root:x:0:\ninstance:x:" + gid + ":\nnogroup:x:65534:\n",
	}
	if r.Resolv != "" {
		files[resolvFile[1:]] = r.Resolv
	}
	for name, text := range files {
		if err := r.root.WriteFile(name, []byte(text), 0o644); err != nil {
			return err
		}
	}
	return nil
}

// seal makes the new root read-only, but not the mounts on it.
func (r *rootfs) seal() error {
	paths := []string{r.path, r.path + "/dev"}
	for _, b := range r.Binds {
		if b.Kind == bindMask {
			paths = append(paths, r.path+b.Target)
		}
	}
	for _, path := range paths {
		if err := unix.MountSetattr(unix.AT_FDCWD, path, 0, &unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY}); err != nil {
			return fmt.Errorf("cannot make its file system read-only: %w", err)
		}
	}
	return nil
}

// pivot switches to the new root and detaches the machine's own.
func (r *rootfs) pivot() error {
	if err := os.Chdir(r.path); err != nil {
		return err
	}
	if err := unix.PivotRoot(".", "."); err != nil {
		return fmt.Errorf("cannot change its root: %w", err)
	}
	return errors.Join(unix.Unmount(".", unix.MNT_DETACH), os.Chdir("/"))
}
