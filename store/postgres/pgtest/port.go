package pgtest

import (
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"sync"

	"golang.org/x/sys/unix"
)

// ports are the ports that this process has reserved. Other processes see them as locked
// bytes of a file, until this process ends.
var ports struct {
	mu       sync.Mutex
	file     *os.File
	reserved map[int]bool
}

// portsFile is the file with the reserved ports of all processes of this user. A user may not
// be able to open the file of another one in a directory that they share.
func portsFile() string {
	return filepath.Join(os.TempDir(), fmt.Sprintf("mariposa-test-ports-%d.lock", os.Getuid()))
}

// FreePort reserves a port on which nothing listens, for a server that is stopped and
// started again on the same port. It is below the range from which the kernel takes the
// local ports of outgoing connections, which could take the port meanwhile, and below
// the ports of instances. No other test gets it before this process ends.
func FreePort() (int, error) {
	const first, last = 10_000, 14_999
	ports.mu.Lock()
	defer ports.mu.Unlock()
	if ports.file == nil {
		f, err := os.OpenFile(portsFile(), os.O_CREATE|os.O_RDWR, 0o666)
		if err != nil {
			return 0, err
		}
		ports.file, ports.reserved = f, map[int]bool{}
	}
	for range 1000 {
		port := first + rand.IntN(last-first+1)
		if ports.reserved[port] || reservePort(ports.file, port) != nil {
			continue
		}
		ports.reserved[port] = true
		if l, err := net.Listen("tcp", "127.0.0.1:"+strconv.Itoa(port)); err == nil {
			return port, l.Close()
		}
	}
	return 0, fmt.Errorf("no port between %d and %d is free", first, last)
}

// reservePort locks the byte of a port. It fails if another process has locked it.
func reservePort(f *os.File, port int) error {
	return unix.FcntlFlock(f.Fd(), unix.F_OFD_SETLK, &unix.Flock_t{Type: unix.F_WRLCK, Start: int64(port), Len: 1})
}
