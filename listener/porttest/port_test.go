package porttest

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// otherProcess is set in the environment of a test binary that only reserves ports.
const otherProcess = "MARIPOSA_TEST_RESERVE"

func TestMain(m *testing.M) {
	if n, err := strconv.Atoi(os.Getenv(otherProcess)); err == nil {
		for range n {
			port, err := Find()
			if err != nil {
				fmt.Println(err)
				os.Exit(1)
			}
			fmt.Println(port)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// The tests of several packages run at once, and a port is free while its server restarts.
func TestAPortIsReservedForOneProcess(t *testing.T) {
	t.Parallel()
	const each = 200 // of 2000: without reservations, some of them would be the same
	var ports []string
	for range each {
		ports = append(ports, strconv.Itoa(Reserve(t)))
	}
	other := exec.CommandContext(t.Context(), os.Args[0])
	other.Env = append(os.Environ(), otherProcess+"="+strconv.Itoa(each))
	out, err := other.CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	ports = append(ports, strings.Fields(string(out))...)
	slices.Sort(ports)
	if different := len(slices.Compact(slices.Clone(ports))); len(ports) != 2*each || different != len(ports) {
		t.Errorf("two processes reserved %d ports, %d of them different", len(ports), different)
	}
}

func TestAReservedPortIsFreeAgainAfterTheTest(t *testing.T) {
	t.Parallel()
	file, err := os.OpenFile(lockPath(), os.O_CREATE|os.O_RDWR, 0o666) // as another process has it
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	var port int
	t.Run("test", func(t *testing.T) {
		port = Reserve(t)
		if lock(file, port, unix.F_WRLCK) == nil {
			t.Error("another process can reserve it too")
		}
	})
	if err := lock(file, port, unix.F_WRLCK); err != nil {
		t.Errorf("another process cannot reserve it afterwards: %v", err)
	}
}

func TestNobodyListensOnTheReservedPortOfAClosedListener(t *testing.T) {
	t.Parallel()
	l := Listen(t)
	address := l.Addr().String()
	dial := func() error {
		c, err := new(net.Dialer).DialContext(t.Context(), "tcp", address)
		if err == nil {
			_ = c.Close()
		}
		return err
	}
	if err := dial(); err != nil {
		t.Fatal(err)
	}
	_ = l.Close()
	if err := dial(); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("got %v", err)
	}
	again, err := new(net.ListenConfig).Listen(t.Context(), "tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	_ = again.Close()
}
