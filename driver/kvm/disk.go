package kvm

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"mariposa/driver/ostool"
	"mariposa/driver/supervise"
)

// A disk is locked by whoever changes it: QEMU, or qemu-img. The lock belongs to the open file that
// they have, so it ends with them, whatever becomes of the agent and the supervisor. Two machines
// with one disk would destroy the file system on it.

// errDiskInUse means that another process has a disk.
var errDiskInUse = errors.New("another process uses it")

// diskTimeout is how long to wait for a process that has a disk and is about to end.
var diskTimeout = supervise.Timeout

// openDisk opens a disk and locks it.
func openDisk(path string, readOnly bool) (*os.File, error) {
	flags, lock := os.O_RDWR, unix.LOCK_EX
	if readOnly {
		flags, lock = os.O_RDONLY, unix.LOCK_SH
	}
	f, err := os.OpenFile(path, flags, 0)
	if err != nil {
		return nil, err
	}
	for deadline := time.Now().Add(diskTimeout); ; {
		err := unix.Flock(int(f.Fd()), lock|unix.LOCK_NB)
		switch {
		case err == nil:
			return f, nil
		case !errors.Is(err, unix.EWOULDBLOCK) && !errors.Is(err, unix.EINTR):
			return nil, errors.Join(err, f.Close())
		case time.Now().After(deadline):
			return nil, errors.Join(errDiskInUse, f.Close())
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// diskName is how qemu-img names the disk that it gets as an open file. It opens no other file,
// whatever the header of the disk says.
const diskName = `json:{"driver":"qcow2","backing":null,"file":{"driver":"file","filename":"/proc/self/fd/3","locking":"off"}}`

// runImg runs qemu-img on the disk of an instance. What the disk contains is written by QEMU, which
// may be in the hands of its guest: qemu-img runs as the same user and without a network.
func runImg(ctx context.Context, r *record, disk *os.File, arguments ...string) (string, error) {
	if err := disk.Chown(r.UID, r.UID); err != nil { // only its directory keeps others away
		return "", err
	}
	ctx, cancel := context.WithTimeout(ctx, ostool.Timeout)
	defer cancel()
	var out, problems bytes.Buffer
	cmd := exec.CommandContext(ctx, ostool.Find(imgProgram), append(arguments, diskName)...) //nolint:gosec // our own arguments
	cmd.Dir, cmd.Env, cmd.WaitDelay, cmd.ExtraFiles = "/", []string{}, supervise.Timeout, []*os.File{disk}
	cmd.Stdout, cmd.Stderr = &out, &problems
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Setsid: true, Cloneflags: unix.CLONE_NEWNET | unix.CLONE_NEWIPC,
		Credential: &syscall.Credential{Uid: uint32(r.UID), Gid: uint32(r.UID)}, //nolint:gosec // ids are positive
	}
	err := cmd.Run()
	switch {
	case ctx.Err() != nil:
		return "", context.Cause(ctx)
	case err != nil && problems.Len() > 0:
		return "", errors.New(lastLine(problems.String()))
	case err != nil:
		return "", fmt.Errorf("%s: %w", imgProgram, err)
	}
	return out.String(), nil
}

// changeDisk runs qemu-img on the disk of an instance that does not run.
func changeDisk(ctx context.Context, e *entry, arguments ...string) error {
	disk, err := openDisk(filepath.Join(e.Dir, diskFile), false)
	if err != nil {
		return fmt.Errorf("cannot change its disk: %w", err)
	}
	defer disk.Close() // qemu-img has its own copy
	_, err = runImg(ctx, &e.record, disk, arguments...)
	return err
}
