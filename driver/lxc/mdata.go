package lxc

import (
	"net"
	"os"
	"path/filepath"
	"strconv"

	"mariposa/driver/mdata"
)

// Below nativeDir, guests of Triton find the socket of the metadata protocol.
const (
	zoneControl = ".zonecontrol"
	mdataSocket = "metadata.sock"
)

// maxClients bounds how many programs of a container read values at the same time.
const maxClients = 64

// serveMdata answers the metadata protocol until the supervisor ends. Only root of the container
// reaches the socket.
func (s *supervisor) serveMdata() error {
	r := &s.Record
	dir := filepath.Join(r.Private, privateNative, zoneControl)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	open, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer open.Close() // the socket is open
	// The path of a socket is short, and that of the directory may not be.
	l, err := net.Listen("unix", filepath.Join("/proc/self/fd", strconv.Itoa(int(open.Fd())), mdataSocket))
	if err != nil {
		return err
	}
	root := r.shifted(owner{})
	if err := give(filepath.Join(dir, mdataSocket), root, 0o600); err != nil {
		return err
	}
	if err := give(dir, root, 0o700); err != nil {
		return err
	}
	values := &mdata.Files{Published: r.mdataPath(), Own: filepath.Join(s.task.Dir, guestFile), Fixed: s.Fixed}
	slots := make(chan struct{}, maxClients)
	go func() { // ends with the supervisor
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			select {
			case slots <- struct{}{}:
			default:
				_ = conn.Close() // too many
				continue
			}
			go func() {
				defer func() { <-slots }()
				defer conn.Close()
				_ = mdata.Serve(conn, values) // ends with the connection
			}()
		}
	}()
	return nil
}
