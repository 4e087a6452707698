package manifest

import (
	"syscall"
	"testing"
	"time"

	"go.yaml.in/yaml/v3"
)

func readText(t testing.TB, text string) *yaml.Node {
	t.Helper()
	node, faults := read([]byte(text))
	if len(faults) > 0 {
		t.Fatal(faults)
	}
	return node
}

// cpuTime returns the CPU time of this process so far, which does not depend on the load
// of the machine.
func cpuTime() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		panic(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
