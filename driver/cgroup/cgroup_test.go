package cgroup

import (
	"os"
	"path/filepath"
	"testing"
)

func TestHierarchyOfEachKindOfMachine(t *testing.T) {
	t.Parallel()
	v1 := parse("cgroup /c/memory cgroup rw,memory 0 0\ncgroup /c/cpu,cpuacct cgroup rw,cpu,cpuacct 0 0\ncgroup2 /c/unified cgroup2 rw 0 0\n", "3:memory:/\n2:cpu,cpuacct:/box\n0::/\n")
	if v1.IsV2() || v1.mount("memory") != "/c/memory" || v1.mount("cpu") != "/c/cpu,cpuacct/box" || len(v1.all) != 3 {
		t.Errorf("version 1: %+v", v1)
	}
	v2 := parse("cgroup2 /sys/fs/cgroup cgroup2 rw 0 0\n", "0::/init.scope\n")
	if !v2.IsV2() || v2.mount("memory") != "/sys/fs/cgroup" {
		t.Errorf("version 2: %+v", v2)
	}
	g := Group{Hierarchy: v2, Name: "mariposa-lxc/a"}
	if g.Dir("memory") != "/sys/fs/cgroup/mariposa-lxc/a" {
		t.Errorf("%q", g.Dir("memory"))
	}
}

func TestLimitsOfVersion2(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	g := Group{Hierarchy: Hierarchy{unified: dir}, Name: "a"}
	if err := os.Mkdir(filepath.Join(dir, "a"), 0o700); err != nil {
		t.Fatal(err)
	}
	check := func(memory, cpu int64, want map[string]string) {
		t.Helper()
		if missed := g.Limit(memory, cpu); missed != "" {
			t.Error(missed)
		}
		for name, value := range want {
			if b, _ := os.ReadFile(filepath.Join(dir, "a", name)); string(b) != value {
				t.Errorf("%s has %q, want %q", name, b, value)
			}
		}
	}
	check(64<<20, 1500, map[string]string{"memory.max": "67108864", "memory.swap.max": "0", "cpu.max": "150000 100000", "pids.max": "4096"})
	check(0, 0, map[string]string{"memory.max": "max", "memory.swap.max": "max", "cpu.max": "max 100000"})
	if err := os.WriteFile(filepath.Join(dir, "a", "memory.events"), []byte("low 0\noom 3\noom_kill 2\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if n := g.OOMKills(); n != 2 {
		t.Errorf("%d kills, want 2", n)
	}
}
