package qmp_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"mariposa/driver/kvm/qmp"
	"mariposa/leaktest"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

// pair returns both ends of a socket.
func pair(t *testing.T) (all [2]net.Conn) {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	for n, fd := range fds {
		f := os.NewFile(uintptr(fd), "socket")
		if all[n], err = net.FileConn(f); err != nil {
			t.Fatal(err)
		}
		_ = f.Close() // the connection has its own copy
		t.Cleanup(func() { _ = all[n].Close() })
	}
	return all
}

// A QEMU that hangs holds up nobody for longer than they wait.
func TestAQEMUThatHangs(t *testing.T) {
	t.Parallel()
	conns := pair(t)
	awake := make(chan struct{})
	go func() { // ends with the connection
		fmt.Fprintln(conns[1], `{"QMP": {}}`)
		requests := bufio.NewScanner(conns[1])
		for n := 0; requests.Scan(); n++ {
			if n > 0 {
				<-awake
			}
			var r struct {
				ID int `json:"id"`
			}
			_ = json.Unmarshal(requests.Bytes(), &r) // ours
			fmt.Fprintf(conns[1], `{"return": {}, "id": %d}`+"\n", r.ID)
		}
	}()
	c, err := qmp.Open(t.Context(), conns[0], func(qmp.Event) {})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	impatient, cancel := context.WithCancel(t.Context())
	cancel()
	returned := make(chan error)
	go func() {
		for range 20_000 { // more than a socket holds
			err = c.Run(impatient, "query-status", nil, nil)
		}
		returned <- err
	}()
	select {
	case err := <-returned:
		if !errors.Is(err, qmp.ErrBusy) {
			t.Errorf("the last command: %v", err)
		}
	case <-time.After(time.Minute):
		t.Fatal("a command waits without end")
	}
	close(awake)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for err = qmp.ErrBusy; errors.Is(err, qmp.ErrBusy); {
		err = c.Run(ctx, "query-status", nil, nil)
	}
	if err != nil {
		t.Errorf("after it hung: %v", err)
	}
}
