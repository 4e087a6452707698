package kvm

import (
	"context"
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"mariposa/driver/ostool"
)

const tunDevice = "/dev/net/tun"

// openTap creates an interface of the node that leads to a machine, and attaches it to a bridge. It
// exists as long as its file is open.
func openTap(ctx context.Context, name, bridge string) (*os.File, error) {
	fd, err := unix.Open(tunDevice, unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("cannot open %s: %w", tunDevice, err)
	}
	f := os.NewFile(uintptr(fd), name) //nolint:gosec // a file descriptor is positive
	request, err := unix.NewIfreq(name)
	if err == nil {
		request.SetUint16(unix.IFF_TAP | unix.IFF_NO_PI | unix.IFF_VNET_HDR)
		err = unix.IoctlIfreq(fd, unix.TUNSETIFF, request)
	}
	if err == nil {
		_, err = ostool.Run(ctx, "ip", "link", "set", name, "master", bridge, "up")
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("cannot attach it to its network: %w", err), f.Close())
	}
	return f, nil
}

// tapName returns the name of an interface, which has up to 15 characters.
func tapName(dir string, n int) string { return fmt.Sprintf("mpvm%08x%x", hash(dir), n) }
