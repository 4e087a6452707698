package lxc

import (
	"errors"
	"fmt"
	"os"
	"strconv"

	"golang.org/x/sys/unix"

	"mariposa/driver/volume"
)

// bind is something of the node that a container sees.
type bind struct {
	Source   string `json:"source"`
	ReadOnly bool   `json:"read_only,omitempty"`
	Volume   string `json:"volume,omitempty"` // its name: its files have the ids that the container sees
}

// mountAll mounts the root file system of a container and what it has of the node. Nobody else
// sees that: the supervisor has its own mount namespace, and all is gone when it ends.
func (s *supervisor) mountAll() error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_SLAVE, ""); err != nil {
		return fmt.Errorf("cannot separate its mounts from those of the machine: %w", err)
	}
	userNS := -1
	if s.Record.IDs != 0 {
		var err error
		if userNS, err = mapNamespace("/proc/self/exe", 0, s.Record.IDs); err != nil {
			return fmt.Errorf("cannot create a user namespace: %w", err)
		}
		defer unix.Close(userNS) // it was only used
	}
	trees := make([]int, 0, len(s.Binds))
	defer func() {
		for _, tree := range trees {
			_ = unix.Close(tree) // its mount stays
		}
	}()
	for _, b := range s.Binds { // before the stage could hide one
		tree, err := b.open(userNS)
		if err != nil {
			return err
		}
		trees = append(trees, tree)
	}
	if err := volume.DetachAll(); err != nil { // its own are in the trees
		return fmt.Errorf("cannot leave the volumes of others: %w", err)
	}
	if err := s.mountStage(userNS); err != nil {
		return err
	}
	for n, tree := range trees {
		if err := attach(tree, bindSource(n)); err != nil {
			return fmt.Errorf("cannot mount %s: %w", s.Binds[n].Source, err)
		}
	}
	return nil
}

// open returns a mount of the source that is not attached anywhere.
func (b *bind) open(userNS int) (int, error) {
	attr := unix.MountAttr{Attr_set: unix.MOUNT_ATTR_NODEV, Propagation: unix.MS_PRIVATE}
	if b.ReadOnly {
		attr.Attr_set |= unix.MOUNT_ATTR_RDONLY
	}
	if b.Volume != "" && userNS >= 0 {
		attr.Attr_set |= unix.MOUNT_ATTR_IDMAP
		attr.Userns_fd = uint64(userNS)
	}
	tree, err := cloneTree(b.Source, attr)
	switch {
	case b.Volume != "" && (errors.Is(err, unix.EINVAL) || errors.Is(err, unix.EOPNOTSUPP)):
		return -1, fmt.Errorf("cannot mount its volume %s: the file system of %s cannot map ids; move the volumes of this node to ext4, xfs or btrfs", b.Volume, b.Source)
	case err != nil:
		return -1, fmt.Errorf("cannot mount %s: %w", b.Source, err)
	}
	return tree, nil
}

// mountStage mounts the root file system. Paths of the machine do not appear in the container's
// list of mounts.
func (s *supervisor) mountStage(userNS int) error {
	fail := func(err error) error { return fmt.Errorf("cannot mount its root file system: %w", err) }
	attr := unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY | unix.MOUNT_ATTR_NODEV, Propagation: unix.MS_PRIVATE}
	if userNS >= 0 && s.Record.Rootfs == rootfsOverlay {
		attr.Attr_set |= unix.MOUNT_ATTR_IDMAP
		attr.Userns_fd = uint64(userNS)
	}
	lower, err := cloneTree(s.Lower, attr)
	if err != nil {
		return fail(err)
	}
	defer unix.Close(lower) // its mount stays
	instance, err := cloneTree(s.task.Dir, unix.MountAttr{Attr_set: unix.MOUNT_ATTR_NODEV, Propagation: unix.MS_PRIVATE})
	if err != nil {
		return fail(err)
	}
	defer unix.Close(instance) // the same
	if err := os.MkdirAll(stageDir, 0o755); err != nil {
		return fail(err)
	}
	if err := unix.Mount("tmpfs", stageDir, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "mode=0755,size=4m"); err != nil {
		return fail(err)
	}
	for _, dir := range []string{stageRootfs, stageBinds} {
		if err := os.Mkdir(dir, 0o755); err != nil {
			return fail(err)
		}
	}
	if err := errors.Join(attach(lower, stageLower), attach(instance, stageInstance)); err != nil {
		return fail(err)
	}
	if s.Record.Rootfs == rootfsCopy {
		err = unix.Mount(stageInstance+"/"+rootfsDir, stageRootfs, "", unix.MS_BIND, "")
	} else {
		options := "lowerdir=" + stageLower + ",upperdir=" + stageInstance + "/" + upperDir + ",workdir=" + stageInstance + "/" + workDir
		err = unix.Mount("overlay", stageRootfs, "overlay", unix.MS_NODEV, options)
	}
	if err != nil {
		return fail(err)
	}
	return nil
}

// attach makes a mount visible at a path, which it creates.
func attach(tree int, path string) error {
	var st unix.Stat_t
	if err := unix.Fstat(tree, &st); err != nil {
		return err
	}
	if st.Mode&unix.S_IFMT == unix.S_IFDIR {
		if err := os.Mkdir(path, 0o755); err != nil {
			return err
		}
	} else if err := os.WriteFile(path, nil, 0o600); err != nil {
		return err
	}
	if err := unix.MoveMount(tree, "", unix.AT_FDCWD, path, unix.MOVE_MOUNT_F_EMPTY_PATH); err != nil {
		return errors.New("move_mount to " + strconv.Quote(path) + ": " + err.Error())
	}
	return nil
}
