package process_test

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"

	"mariposa/driver"
	"mariposa/driver/drivertest"
	"mariposa/driver/process"
)

func groupsOf(t *testing.T, o driver.Observed) string {
	t.Helper()
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pidOf(t, o)) + "/cgroup")
	must(t, err)
	return string(b)
}

func TestMemoryLimit(t *testing.T) {
	t.Parallel()
	a := open(t, process.Options{Root: newRoot(t)})
	// They are given time to be seen running.
	direct, nested := sh(drivertest.NewID(), "sleep 1; exec tail /dev/zero"), sh(drivertest.NewID(), "sleep 1; tail /dev/zero; exit $?")
	direct.Workload.Memory, nested.Workload.Memory = 32<<20, 32<<20
	o := a.start(t, direct)
	if o.Details["limits"] != "enforced: memory 32 MiB" {
		t.Fatalf("limits: %q", o.Details["limits"])
	}
	end := a.awaitEnd(t)
	if end.Reason != "killed: it exceeded its memory limit of 32 MiB" || end.ExitCode == nil || *end.ExitCode != 137 {
		t.Errorf("it ended as %+v", end)
	}
	a.start(t, nested)
	// The kernel kills the process with the most memory or, if that is already exiting,
	// the shell.
	if end := a.awaitEnd(t); end.Reason != "exited with code 137 after it exceeded its memory limit of 32 MiB" && end.Reason != "killed: it exceeded its memory limit of 32 MiB" {
		t.Errorf("it ended as %+v", end)
	}
}

func TestLimitsHoldFromTheStartAndGoWithTheInstance(t *testing.T) {
	t.Parallel()
	a, _, id := newAgent(t)
	i := instance(id, "sleep", "1000")
	i.Workload.Memory, i.Workload.MilliCPU = 64<<20, 250
	o := a.start(t, i)
	if o.Details["limits"] != "enforced: memory 64 MiB, cpu 0.25" {
		t.Errorf("limits: %q", o.Details["limits"])
	}
	groups := groupsOf(t, o)
	is := []string{":memory:", ":cpu:"}
	tree, limits := "/sys/fs/cgroup/*/mariposa/", map[string]string{"cpu.cfs_quota_us": "25000", "memory.limit_in_bytes": "67108864"}
	if _, err := os.Stat("/sys/fs/cgroup/cgroup.controllers"); err == nil { // version 2 only
		is = []string{"0::"}
		tree, limits = "/sys/fs/cgroup/mariposa/", map[string]string{"cpu.max": "25000 100000", "memory.max": "67108864"}
	}
	for _, c := range is {
		if !strings.Contains(groups, c+"/mariposa/"+id+".") {
			t.Errorf("it is not in the group %s\n%s", c, groups)
		}
	}
	for name, want := range limits {
		files, err := filepath.Glob(tree + id + ".*/" + name)
		if err != nil || len(files) != 1 {
			t.Fatalf("its files %s are %v (%v)", name, files, err)
		}
		if is, err := os.ReadFile(files[0]); err != nil || strings.TrimSpace(string(is)) != want {
			t.Errorf("%s has %q, want %q (%v)", name, is, want, err)
		}
	}
	changed := i
	workload := *i.Workload
	workload.Memory = 128 << 20
	changed.Workload = &workload
	if _, err := a.Update(within(t), changed); err == nil {
		t.Error("other limits were taken without effect")
	}
	a.remove(t, id)
	left, err := filepath.Glob(tree + id + ".*")
	if err != nil || len(left) > 0 {
		t.Errorf("left behind: %v (%v)", left, err)
	}
}

// TestVersion2 uses the tree of version 2 that this machine has next to those of version
// 1. It has no controllers, so limits cannot be set there, but groups work.
func TestVersion2(t *testing.T) {
	t.Parallel()
	a, _, id := newAgent(t)
	a.UseUnified("/sys/fs/cgroup/unified")
	i := instance(id, "sleep", "1000")
	i.Workload.Memory = 64 << 20
	o := a.start(t, i)
	if groups := groupsOf(t, o); !strings.Contains(groups, "0::/mariposa/"+id+".") {
		t.Errorf("it is not in its group:\n%s", groups)
	}
	if l := o.Details["limits"]; l != "not enforced: memory 64 MiB (this machine has no such cgroup controller)" {
		t.Errorf("limits: %q", l)
	}
	a.remove(t, id)
	if left, err := filepath.Glob("/sys/fs/cgroup/unified/mariposa/" + id + ".*"); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v (%v)", left, err)
	}
}

// TestASupervisorNeverEndsItselfWithItsGroup lets many commands end as soon as they
// start: the thread that put them into their group may still be in it then.
func TestASupervisorNeverEndsItselfWithItsGroup(t *testing.T) {
	t.Parallel()
	a := open(t, process.Options{Root: newRoot(t)})
	const n = 40
	var all sync.WaitGroup
	for range n {
		i := sh(drivertest.NewID(), "exit 7")
		i.Workload.Memory = 64 << 20
		all.Go(func() {
			if _, err := a.Start(t.Context(), i); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	for range n {
		if end := a.awaitEnd(t); end.Reason != "exited with code 7" {
			t.Errorf("it ended as %+v", end)
		}
	}
}
