package kvm

import (
	"bytes"
	"io"
	"net"
	"path/filepath"
	"testing"
	"time"

	"mariposa/driver/logfile"
)

// A machine that does not read its console keeps nobody attached who has left.
func TestAConsoleThatIsNotRead(t *testing.T) {
	t.Parallel()
	ours, theirs, err := socketPair()
	if err != nil {
		t.Fatal(err)
	}
	defer theirs.Close()
	log, err := logfile.Open(filepath.Join(t.TempDir(), "log"), 1<<20, 2)
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	c := newConsole(ours, log)
	c.patience = 10 * time.Millisecond
	defer func() {
		_ = theirs.Close()
		c.finish()
	}()
	client, end := net.Pipe()
	left := make(chan struct{})
	go func() {
		c.attach(end)
		close(left)
	}()
	_ = client.SetDeadline(time.Now().Add(time.Minute))
	_, _ = client.Write(bytes.Repeat([]byte{'x'}, 4<<20)) // more than a socket holds; it is detached meanwhile
	_ = client.Close()
	select {
	case <-left:
	case <-time.After(time.Minute):
		t.Fatal("it is still attached")
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.attached) > 0 {
		t.Errorf("%d are still attached", len(c.attached))
	}
}

// A serial line writes a few bytes at a time. One who reads late gets all of them, and one who is far
// behind is detached.
func TestAConsoleIsReadLate(t *testing.T) {
	t.Parallel()
	c := &console{attached: map[net.Conn]*attachment{}}
	client, end := net.Pipe()
	defer client.Close()
	left := make(chan struct{})
	go func() {
		c.attach(end)
		close(left)
	}()
	isAttached := func() bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		return c.attached[end] != nil
	}
	for deadline := time.Now().Add(time.Minute); !isAttached(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("it is not attached")
		}
	}
	const all = 5000
	for range all {
		c.broadcast([]byte{'x'})
	}
	_ = client.SetDeadline(time.Now().Add(time.Minute))
	if _, err := io.ReadFull(client, make([]byte, all)); err != nil {
		t.Fatalf("not everything arrived: %v", err)
	}
	c.broadcast(make([]byte, backlog+1))
	select {
	case <-left:
	case <-time.After(time.Minute):
		t.Fatal("one who is far behind is still attached")
	}
}
