package kvm

import (
	"bytes"
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
