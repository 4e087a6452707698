package porttest_test

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

	"mariposa/listener/porttest"
)

// The test binary is also another process that reserves ports.
func TestMain(m *testing.M) {
	if n, err := strconv.Atoi(os.Getenv("RESERVE")); err == nil {
		for range n {
			port, err := porttest.Find()
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
		ports = append(ports, strconv.Itoa(porttest.Reserve(t)))
	}
	other := exec.CommandContext(t.Context(), os.Args[0])
	other.Env = append(os.Environ(), "RESERVE="+strconv.Itoa(each))
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
	for range 30 { // 3000 reservations of 2000 ports
		t.Run("test", func(t *testing.T) {
			for range 100 {
				porttest.Reserve(t)
			}
		})
	}
}

func TestNobodyListensOnTheReservedPortOfAClosedListener(t *testing.T) {
	t.Parallel()
	l := porttest.Listen(t)
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
