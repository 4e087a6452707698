package process

import (
	"os"
	"path/filepath"
	"testing"
)

func TestHierarchyOfEachKindOfMachine(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		mounts string
		want   hierarchy
	}{
		"version 1":       {"cgroup /c/memory cgroup rw,memory 0 0\ncgroup /c/cpu,cpuacct cgroup rw,cpu,cpuacct 0 0\n", hierarchy{Memory: "/c/memory", CPU: "/c/cpu,cpuacct"}},
		"version 2":       {"cgroup2 /sys/fs/cgroup cgroup2 rw,nsdelegate 0 0\n", hierarchy{Unified: "/sys/fs/cgroup"}},
		"both":            {"cgroup2 /c/unified cgroup2 rw 0 0\ncgroup /c/memory cgroup rw,memory 0 0\n", hierarchy{Memory: "/c/memory"}},
		"no limits at v1": {"cgroup /c/systemd cgroup rw,name=systemd 0 0\ncgroup /c/cpuset cgroup rw,cpuset 0 0\n", hierarchy{}},
		"none":            {"proc /proc proc rw 0 0\n", hierarchy{}},
	} {
		if got := parseHierarchy(c.mounts); got != c.want {
			t.Errorf("%s: %+v, want %+v", name, got, c.want)
		}
	}
}

func TestLimitsOfVersion2(t *testing.T) {
	t.Parallel()
	h, dir := hierarchy{Unified: "/"}, t.TempDir()
	if err := h.limitMemory(dir, 64<<20, nil); err != nil {
		t.Fatal(err)
	}
	if err := h.limitCPU(dir, 1500, nil); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{"memory.max": "67108864", "cpu.max": "150000 100000"} {
		if b, _ := os.ReadFile(filepath.Join(dir, name)); string(b) != want {
			t.Errorf("%s has %q, want %q", name, b, want)
		}
	}
	if err := os.WriteFile(filepath.Join(dir, "memory.events"), []byte("low 0\noom 3\noom_kill 2\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if n := (group{dirs: []string{dir}}).oomKills(); n != 2 {
		t.Errorf("%d kills, want 2", n)
	}
}

func TestSizeReadsAsPeopleWriteIt(t *testing.T) {
	t.Parallel()
	for bytes, want := range map[int64]string{64 << 20: "64 MiB", 2 << 30: "2 GiB", 1536 << 20: "1536 MiB", 1000: "1000 bytes"} {
		if got := formatSize(bytes); got != want {
			t.Errorf("%d is %q, want %q", bytes, got, want)
		}
	}
}
