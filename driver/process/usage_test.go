package process_test

import (
	"testing"

	"mariposa"
	"mariposa/driver/drivertest"
	"mariposa/driver/process"
)

func TestUsageCountsAllFilesOfALog(t *testing.T) {
	t.Parallel()
	a := open(t, process.Options{Root: newRoot(t), LogSize: 64 << 10, LogFiles: 3})
	id := drivertest.NewID()
	a.start(t, sh(id, "n=0; while [ $n -lt 30000 ]; do echo line $n; n=$((n+1)); done; echo done; sleep 1000"))
	awaitLog(t, a, id, "done")
	u, err := a.Usage(within(t), id)
	if err != nil || u.Log == nil || *u.Log < 64<<10 || *u.Log > 3*64<<10 {
		t.Errorf("of 300 kB of log, 3 files of 64 KiB are kept: %+v, %v", u, err)
	}
}

func TestUsageCountsAllProcessesOfAnInstance(t *testing.T) {
	t.Parallel()
	a := open(t, process.Options{Root: newRoot(t)})
	busy, idle := drivertest.NewID(), drivertest.NewID()
	a.start(t, sh(busy, "while :; do :; done & wait"))
	a.start(t, instance(idle, "sleep", "1000"))
	usage := func(id string) mariposa.Usage {
		u, err := a.Usage(within(t), id)
		if err != nil || u.CPU == nil || u.Memory == nil {
			t.Fatalf("Usage: %+v, %v", u, err)
		}
		return u
	}
	eventually(t, "a child's computing counts", func() bool { return *usage(busy).CPU > 0.05 })
	rest := usage(idle)
	if *rest.Log != 0 {
		t.Errorf("what says nothing has %d bytes of log", *rest.Log)
	}
	if *rest.CPU >= *usage(busy).CPU || *rest.Memory <= 0 || *rest.Memory > 64<<20 {
		t.Errorf("what sleeps takes %v s and %d bytes", *rest.CPU, *rest.Memory)
	}
	if rest.NetworkIn != nil || rest.NetworkOut != nil {
		t.Error("the network is shared with the node, so usage cannot be measured")
	}
}
