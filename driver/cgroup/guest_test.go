package cgroup

import (
	"context"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"mariposa"
	"mariposa/driver/kvm/guesttest"
)

// This machine may have cgroups of version 1. A virtual machine has those of version 2 only, with
// all controllers, and nobody has turned them on yet.
func TestGroupsOnAMachineWithVersion2(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), 8*time.Minute)
	defer cancel()
	out, err := guesttest.Run(ctx, t.TempDir(), `/cgroup.test -test.v -test.run "^TestAGroupLimitsAndMeasures$"`, nil, map[string]string{"cgroup.test": os.Args[0]})
	if err != nil || !strings.Contains(out, "version 2: true") || !strings.Contains(out, "--- PASS: TestAGroupLimitsAndMeasures") {
		t.Errorf("%v\n%s", err, out)
	}
}

// A group limits its processes, measures them, and says that they ran out of memory.
func TestAGroupLimitsAndMeasures(t *testing.T) {
	t.Parallel()
	for _, leaf := range []bool{false, true} {
		g := Group{Hierarchy: Find(), Name: "mariposa-cgroup-test/a"}
		t.Logf("version 2: %v", g.IsV2())
		if err := g.Make(leaf); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = removeTree(strings.TrimSuffix(g.Dir("memory"), "/a")) })
		if missed := g.Limit(32<<20, 500); missed != "" {
			t.Errorf("leaf %v: %s", leaf, missed)
		}
		inside := g
		if !leaf { // its processes are below it, as those of a container
			inside.Name += "/container"
			if err := inside.Make(true); err != nil {
				t.Fatal(err)
			}
		}
		watch := g.WatchOOM()
		cmd := exec.CommandContext(t.Context(), "/bin/busybox", "sh", "-c", "read line; busybox tail /dev/zero; sleep 1000")
		begin, err := cmd.StdinPipe()
		if err == nil {
			err = cmd.Start()
		}
		if err == nil {
			err = inside.Add(cmd.Process.Pid)
		}
		if err != nil {
			t.Fatal(err)
		}
		_ = begin.Close() // it goes on
		happened := false
		for end := time.Now().Add(5 * time.Minute); ; time.Sleep(10 * time.Millisecond) {
			happened = happened || watch.Happened()
			if happened && (g.OOMKills() > 0 || !leaf && !g.IsV2()) { // version 1 counts those of the group itself
				break
			}
			if time.Now().After(end) {
				t.Fatalf("leaf %v: it is not seen that something was killed for its memory", leaf)
			}
		}
		var u mariposa.Usage
		g.Measure(&u)
		if u.CPU == nil || *u.CPU <= 0 || u.Memory == nil || *u.Memory <= 0 || *u.Memory > 32<<20 {
			t.Errorf("leaf %v: it uses %+v", leaf, u)
		}
		if err := g.KillAll(); err != nil {
			t.Error(err)
		}
		_ = cmd.Wait() // it was killed
		if err := g.Remove(); err != nil {
			t.Error(err)
		}
	}
}
