// Package porttest reserves TCP ports for tests, so that nothing else in a test run takes
// them: no other test, no program that lets the kernel pick its port, no agent and no
// instance.
//
// A test needs a reserved port if it stops a server and starts it again on the same port, if
// nothing may listen on a port before a server starts or after it stops, or if it tells a
// program which port to use. Everything else should listen on port 0.
package porttest

import (
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
)

// The reserved ports are below those of the metadata services of agents, those of process
// instances, and those that the kernel picks.
const first, last = 10_000, 11_999

// reserved are the ports of this process. Other processes see them as locked bytes of a
// file, until they are released or this process ends.
var reserved struct {
	mu    sync.Mutex
	file  *os.File
	ports map[int]bool
}

// lockPath is the file with the reserved ports of all processes of this user. A user may not
// be able to open the file of another one in a directory that they share.
func lockPath() string {
	return filepath.Join(os.TempDir(), fmt.Sprintf("mariposa-test-ports-%d.lock", os.Getuid()))
}

// Reserve returns a port that is the test's until it ends. Nothing listens on it.
func Reserve(t testing.TB) int {
	t.Helper()
	port, err := Find()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { release(port) })
	return port
}

// Address returns an address of this machine with a port that is the test's until it ends.
func Address(t testing.TB) string {
	t.Helper()
	return net.JoinHostPort("127.0.0.1", strconv.Itoa(Reserve(t)))
}

// Listen returns a listener on this machine whose port stays the test's when the listener is
// closed: connections are refused from then on, until the test listens again.
func Listen(t testing.TB) net.Listener {
	t.Helper()
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", Address(t))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() }) // the test may have closed it
	return l
}

// Find reserves a port until this process ends, for servers that several tests share.
func Find() (int, error) {
	reserved.mu.Lock()
	defer reserved.mu.Unlock()
	if reserved.file == nil {
		f, err := os.OpenFile(lockPath(), os.O_CREATE|os.O_RDWR, 0o666)
		if err != nil {
			return 0, err
		}
		reserved.file, reserved.ports = f, map[int]bool{}
	}
	start := rand.IntN(last - first + 1)
	for i := range last - first + 1 {
		port := first + (start+i)%(last-first+1)
		if reserved.ports[port] || lock(reserved.file, port, unix.F_WRLCK) != nil {
			continue
		}
		if l, err := net.Listen("tcp", ":"+strconv.Itoa(port)); err == nil {
			reserved.ports[port] = true
			return port, l.Close()
		}
		_ = lock(reserved.file, port, unix.F_UNLCK) // somebody else uses it
	}
	return 0, fmt.Errorf("no port between %d and %d is free", first, last)
}

func release(port int) {
	reserved.mu.Lock()
	defer reserved.mu.Unlock()
	delete(reserved.ports, port)
	_ = lock(reserved.file, port, unix.F_UNLCK) // otherwise it stays reserved until the process ends
}

// lock locks or unlocks the byte of a port. It fails if another process has locked it.
func lock(f *os.File, port int, how int16) error {
	return unix.FcntlFlock(f.Fd(), unix.F_OFD_SETLK, &unix.Flock_t{Type: how, Start: int64(port), Len: 1})
}
