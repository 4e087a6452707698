package volume

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"mariposa/driver"
	"mariposa/driver/ostool"
)

// limited is a volume with a size. Its directory has the file with its file system, and a
// directory where that is mounted. The content is one level below: if nothing is mounted, there is
// no content, so that nothing is ever written beside the file system.
type limited struct{ dir string }

func (l limited) image() string { return filepath.Join(l.dir, "volume.img") }
func (l limited) mount() string { return filepath.Join(l.dir, "mount") }
func (l limited) data() string  { return filepath.Join(l.mount(), "data") }

// exists reports whether the directory looks like that of a volume with a size.
func (l limited) exists() bool {
	image, err := os.Lstat(l.image())
	if err != nil || !image.Mode().IsRegular() {
		return false
	}
	mount, err := os.Lstat(l.mount())
	return err == nil && mount.IsDir()
}

// isMounted reports whether the file system of the volume is mounted.
func (l limited) isMounted() bool {
	mounted, err := isMountPoint(l.mount())
	return err == nil && mounted
}

// size returns the size of the volume; 0 if that cannot be read.
func (l limited) size() int64 {
	info, err := os.Lstat(l.image())
	if err != nil {
		return 0
	}
	return info.Size()
}

const (
	smallest = 1 << 20 // of a file system that can grow
	block    = 4096    // the largest block size of ext4
)

// roundSize returns the size of the file for a volume.
func roundSize(size int64) int64 {
	return (max(size, smallest) + block - 1) / block * block
}

// create makes the directory of the volume, with an empty file system.
func (l limited) create(ctx context.Context, size int64) error {
	if err := requireLimits(); err != nil {
		return fmt.Errorf("its size of %s cannot be enforced on this node: %w, or remove size from the volume in the manifest", formatSize(size), err)
	}
	if err := os.MkdirAll(l.mount(), 0o700); err != nil {
		return err
	}
	f, err := os.OpenFile(l.image(), os.O_CREATE|os.O_EXCL|os.O_RDWR, 0o600)
	if err != nil {
		return err
	}
	if err := errors.Join(f.Truncate(roundSize(size)), f.Close()); err != nil {
		return err
	}
	// No blocks are reserved for root, and tables that are zero anyway are not written.
	_, err = ostool.Run(ctx, makeFileSystem, "-q", "-F", "-m", "0", "-E", "nodiscard,lazy_itable_init=1,lazy_journal_init=1", l.image())
	if err != nil {
		return err
	}
	return syncFile(l.image())
}

const makeFileSystem = "mkfs.ext4"

// requireLimits explains why this machine cannot limit the size of a volume, and what to do.
func requireLimits() error {
	if os.Geteuid() != 0 {
		return errors.New("the agent does not run as root and cannot mount a file system; run it as root")
	}
	if ostool.Find(makeFileSystem) == "" {
		return fmt.Errorf("the program %s is missing; install e2fsprogs", makeFileSystem)
	}
	control, err := openLoopControl()
	if err != nil {
		return err
	}
	return control.Close()
}

// open mounts the volume unless it is mounted, and makes it larger if it is smaller than size. A
// *driver.GrowError says that it is mounted, but could not be made larger.
func (l limited) open(size int64) error {
	image, err := os.OpenFile(l.image(), os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer image.Close() // what was written is synced
	device, err := attach(image)
	if err != nil {
		return err
	}
	defer device.Close() // the kernel frees it if nothing is mounted from it
	mounted, err := isMountPoint(l.mount())
	if err != nil {
		return err
	}
	if !mounted {
		// Blocks of deleted files are given back to the machine.
		if err := unix.Mount(device.Name(), l.mount(), "ext4", unix.MS_NODEV, "discard"); err != nil {
			return fmt.Errorf("mount %s at %s: %w", device.Name(), l.mount(), err)
		}
	}
	if size == 0 {
		return nil
	}
	if err := l.grow(image, device, roundSize(size)); err != nil {
		return &driver.GrowError{Err: fmt.Errorf("cannot make the volume larger, to %s: %w", formatSize(size), err)}
	}
	return nil
}

// grow makes the mounted file system at least as large as size. The file system itself knows how
// large it is, so an interrupted attempt is repeated.
func (l limited) grow(image, device *os.File, size int64) error {
	have, blockSize, err := readSize(device)
	if err != nil || have >= size {
		return err
	}
	info, err := image.Stat()
	if err == nil && info.Size() < size {
		err = errors.Join(image.Truncate(size), image.Sync())
	}
	if err != nil {
		return err
	}
	if err := unix.IoctlSetInt(int(device.Fd()), unix.LOOP_SET_CAPACITY, 0); err != nil {
		return fmt.Errorf("cannot resize %s: %w", device.Name(), err)
	}
	top, err := os.Open(l.mount())
	if err != nil {
		return err
	}
	defer top.Close() // only asked
	err = ioctlUint64(int(top.Fd()), resizeFS, uint64(size/blockSize))
	if errors.Is(err, unix.EPERM) {
		return errors.New("the agent may not resize file systems; give it the capability CAP_SYS_RESOURCE")
	}
	return err
}

// resizeFS is the request to resize a mounted ext4 file system: _IOW('f', 16, __u64).
const resizeFS = 0x40086610

// readSize returns the size of the ext4 file system on a device, and its block size. A file system
// whose last group of blocks would be too small is a bit smaller than its device; that counts as
// complete.
func readSize(device io.ReaderAt) (size, blockSize int64, err error) {
	super := make([]byte, 1024)
	if _, err := device.ReadAt(super, 1024); err != nil {
		return 0, 0, err
	}
	number := func(at int) int64 { return int64(binary.LittleEndian.Uint32(super[at:])) }
	if binary.LittleEndian.Uint16(super[0x38:]) != 0xef53 {
		return 0, 0, errors.New("its file does not contain an ext4 file system")
	}
	blockSize = 1024 << number(0x18)
	return (number(0x4) | number(0x150)<<32) * blockSize, blockSize, nil
}

// unmount makes the content inaccessible. It is an error if something on the machine uses it, and
// none if it is not mounted.
func (l limited) unmount() error {
	mounted, err := isMountPoint(l.mount())
	if errors.Is(err, fs.ErrNotExist) || err == nil && !mounted {
		return nil
	}
	if err == nil {
		err = unix.Unmount(l.mount(), unix.UMOUNT_NOFOLLOW)
	}
	if errors.Is(err, unix.EBUSY) {
		return fmt.Errorf("a process on this machine still uses %s", l.mount())
	}
	return err
}

// DetachAll unmounts all volumes with a size in the mount namespace of the caller, which must not be
// that of the machine. Otherwise a process that lives as long as an instance would keep the volumes
// of others that were mounted when it began.
func DetachAll() error {
	b, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return err
	}
	for line := range strings.Lines(string(b)) {
		fields := strings.Fields(line)
		if len(fields) < 5 || filepath.Base(fields[4]) != "mount" {
			continue
		}
		l := limited{dir: filepath.Dir(fields[4])}
		if _, missing := os.Lstat(filepath.Join(filepath.Dir(l.dir), sizedPrefix+filepath.Base(l.dir))); missing == nil {
			err = errors.Join(err, unix.Unmount(l.mount(), unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW))
		}
	}
	return err
}

// isMountPoint reports whether a file system is mounted at a path.
func isMountPoint(path string) (bool, error) {
	var is unix.Statx_t
	if err := unix.Statx(unix.AT_FDCWD, path, unix.AT_SYMLINK_NOFOLLOW, unix.STATX_TYPE, &is); err != nil {
		return false, &fs.PathError{Op: "statx", Path: path, Err: err}
	}
	return is.Attributes&unix.STATX_ATTR_MOUNT_ROOT != 0, nil
}

// syncFile makes what was written to a file durable.
func syncFile(path string) error {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}

// formatSize formats a size for people.
func formatSize(bytes int64) string {
	for _, u := range []struct {
		name string
		unit int64
	}{{"GiB", 1 << 30}, {"MiB", 1 << 20}, {"KiB", 1 << 10}} {
		if bytes >= u.unit && bytes%u.unit == 0 {
			return fmt.Sprintf("%d %s", bytes/u.unit, u.name)
		}
	}
	return fmt.Sprintf("%d bytes", bytes)
}
