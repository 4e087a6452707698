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
	a.remove(t, id)
	left, err := filepath.Glob(tree + id + ".*")
	if err != nil || len(left) > 0 {
		t.Errorf("left behind: %v (%v)", left, err)
	}
}

// TestLimitsChangeWhileItRuns also limits an instance that had no limits, and so no group of version 1
// for its share of the processor.
func TestLimitsChangeWhileItRuns(t *testing.T) {
	t.Parallel()
	a, _, id := newAgent(t)
	i := sh(id, "sleep 1000 & wait")
	o := a.start(t, i)
	for _, c := range []struct {
		memory, cpu int64
		limits      string
		files       map[string]string // of version 1
	}{
		{64 << 20, 250, "enforced: memory 64 MiB, cpu 0.25", map[string]string{"memory.limit_in_bytes": "67108864", "cpu.cfs_quota_us": "25000"}},
		{128 << 20, 500, "enforced: memory 128 MiB, cpu 0.5", map[string]string{"memory.limit_in_bytes": "134217728", "cpu.cfs_quota_us": "50000"}},
		{32 << 20, 0, "enforced: memory 32 MiB", map[string]string{"memory.limit_in_bytes": "33554432", "cpu.cfs_quota_us": "-1"}},
		{0, 0, "", map[string]string{"memory.limit_in_bytes": "9223372036854771712", "cpu.cfs_quota_us": "-1"}},
	} {
		workload := *i.Workload
		workload.Memory, workload.MilliCPU = c.memory, c.cpu
		changed := i
		changed.Workload = &workload
		now, err := a.Update(within(t), changed)
		if err != nil {
			t.Fatal(err)
		}
		if now.PhysicalID != o.PhysicalID || now.Details["limits"] != c.limits {
			t.Errorf("it has %+v, want %q", now, c.limits)
		}
		for name, want := range c.files {
			controller, _, _ := strings.Cut(name, ".")
			files, _ := filepath.Glob("/sys/fs/cgroup/" + controller + "/mariposa/" + id + ".*/" + name)
			if len(files) == 0 { // this machine has version 2
				continue
			}
			if is, err := os.ReadFile(files[0]); err != nil || strings.TrimSpace(string(is)) != want {
				t.Errorf("%s has %q, want %q (%v)", name, is, want, err)
			}
			if procs, err := os.ReadFile(filepath.Join(filepath.Dir(files[0]), "cgroup.procs")); err != nil || len(strings.Fields(string(procs))) < 2 {
				t.Errorf("in %s are %q (%v)", files[0], procs, err)
			}
		}
	}
	a.remove(t, id)
	if left, err := filepath.Glob("/sys/fs/cgroup/*/mariposa/" + id + ".*"); err != nil || len(left) > 0 {
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
