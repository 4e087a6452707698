package process

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"testing"

	"mariposa/driver"
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

// TestFollowingAcrossRotations writes and reads in turns, with rotations at
// every possible place between.
func TestFollowingAcrossRotations(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "log")
	log, err := openRotatingLog(path, 250, 3)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = log.file.Close() }()
	r := &logReader{ctx: t.Context(), path: path, keep: 3, closed: make(chan struct{})}
	r.open(driver.LogOptions{Tail: -1, Follow: true})
	defer r.Close()
	var want, got bytes.Buffer
	buffer := make([]byte, 64)
	for n := range 2000 {
		line := fmt.Sprintf("line %d\n", n)
		want.WriteString(line)
		if _, err := log.Write([]byte(line)); err != nil {
			t.Fatal(err)
		}
		if n%17 != 0 { // never further behind than the kept files reach
			continue
		}
		for {
			k, err := r.readNow(buffer)
			got.Write(buffer[:k])
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				t.Fatal(err)
			}
		}
	}
	if !bytes.HasPrefix(want.Bytes(), got.Bytes()) || got.Len() < want.Len()-400 {
		t.Errorf("read %d of %d bytes, not the same", got.Len(), want.Len())
	}
}

func TestTailAcrossFiles(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		files []string // the oldest first
		tail  int
		want  string
	}{
		"within one":          {[]string{"a\nb\nc\n"}, 2, "b\nc\n"},
		"more than there are": {[]string{"a\nb\n"}, 9, "a\nb\n"},
		"none":                {[]string{"a\nb\n"}, 0, ""},
		"an unfinished line":  {[]string{"a\nb\nc"}, 2, "b\nc"},
		"across two":          {[]string{"a\nb\n", "c\nd\n"}, 3, "b\nc\nd\n"},
		"exactly the newest":  {[]string{"a\nb\n", "c\nd\n"}, 2, "c\nd\n"},
		"a line in two files": {[]string{"a\nb", "b\nc\n"}, 2, "bb\nc\n"},
		"an empty newest":     {[]string{"a\nb\n", ""}, 1, "b\n"},
		"three files":         {[]string{"a\n", "b\n", "c\n"}, 3, "a\nb\nc\n"},
		"nothing at all":      {nil, 3, ""},
	} {
		path := filepath.Join(t.TempDir(), "log")
		for n, text := range c.files {
			if err := os.WriteFile(rotated(path, len(c.files)-1-n), []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		r := &logReader{ctx: t.Context(), path: path, keep: 3, closed: make(chan struct{})}
		r.open(driver.LogOptions{Tail: c.tail})
		got, err := io.ReadAll(r)
		if err != nil || string(got) != c.want {
			t.Errorf("%s: %q (%v), want %q", name, got, err, c.want)
		}
		_ = r.Close()
	}
}
