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
	seen := map[int]bool{port: true}
	for range 300 { // without reservations, a few of them would be the same
		next, err := FreePort()
		if err != nil || seen[next] {
			t.Fatalf("reserved port %d twice: %v", next, err)
		}
		seen[next] = true
	}
}
