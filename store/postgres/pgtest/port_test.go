package pgtest

import (
	"os"
	"testing"
)

// The tests of several packages run at once, and a port is free while its server restarts.
func TestAPortIsReservedForOneProcess(t *testing.T) {
	t.Parallel()
	port, err := FreePort()
	if err != nil {
		t.Fatal(err)
	}
	other, err := os.OpenFile(portsFile(), os.O_RDWR, 0) // locks belong to an open file
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	if reservePort(other, port) == nil {
		t.Errorf("another process can reserve port %d too", port)
	}
	next, err := FreePort()
	if err != nil || next == port {
		t.Errorf("reserved port %d twice: %v", next, err)
	}
}
