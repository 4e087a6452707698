package volume

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"unsafe"

	"golang.org/x/sys/unix"
)

// openLoopControl opens what gives out loop devices.
func openLoopControl() (*os.File, error) {
	f, err := os.OpenFile("/dev/loop-control", os.O_RDWR, 0)
	if err != nil {
		return nil, fmt.Errorf("there are no loop devices (%w); load the kernel module loop and let the agent use /dev/loop-control and /dev/loop*", err)
	}
	return f, nil
}

// attach returns a loop device for a file: the one it has, or a free one. Two for the same file
// would destroy its content. The device is freed by the kernel when nothing has it open or
// mounted.
func attach(image *os.File) (*os.File, error) {
	if device, err := attached(image); device != nil || err != nil {
		return device, err
	}
	control, err := openLoopControl()
	if err != nil {
		return nil, err
	}
	defer control.Close() // only asked
	const attempts = 100  // others may take the same device
	for range attempts {
		var number int
		if number, err = unix.IoctlRetInt(int(control.Fd()), unix.LOOP_CTL_GET_FREE); err != nil {
			return nil, fmt.Errorf("there is no free loop device: %w", err)
		}
		var device *os.File
		if device, err = os.OpenFile(fmt.Sprintf("/dev/loop%d", number), os.O_RDWR, 0); err != nil {
			return nil, fmt.Errorf("cannot open a loop device: %w", err)
		}
		config := unix.LoopConfig{Fd: uint32(image.Fd()), Info: unix.LoopInfo64{Flags: unix.LO_FLAGS_AUTOCLEAR}}
		copy(config.Info.File_name[:len(config.Info.File_name)-1], image.Name()) // for people
		if err = unix.IoctlLoopConfigure(int(device.Fd()), &config); err == nil {
			return device, nil
		}
		_ = device.Close() // the error is the other one
		if !errors.Is(err, unix.EBUSY) {
			break
		}
	}
	return nil, fmt.Errorf("cannot set up a loop device: %w", err)
}

// attached returns the loop device that a file has; nil if it has none.
func attached(image *os.File) (*os.File, error) {
	var is unix.Stat_t
	if err := unix.Fstat(int(image.Fd()), &is); err != nil {
		return nil, err
	}
	used, err := filepath.Glob("/sys/block/loop*/loop") // those that have a file
	if err != nil {
		return nil, err
	}
	for _, path := range used {
		device, err := os.Open("/dev/" + filepath.Base(filepath.Dir(path)))
		if err != nil {
			continue // it is someone else's, or gone by now
		}
		has, err := unix.IoctlLoopGetStatus64(int(device.Fd()))
		if err == nil && has.Device == is.Dev && has.Inode == is.Ino {
			return device, nil
		}
		_ = device.Close() // only asked
	}
	return nil, nil //nolint:nilnil // most files have none
}

// ioctlUint64 sends a request with a number.
func ioctlUint64(fd int, request uint, value uint64) error {
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), uintptr(request), uintptr(unsafe.Pointer(&value))) //nolint:gosec // the kernel reads the number
	if errno != 0 {
		return errno
	}
	return nil
}
