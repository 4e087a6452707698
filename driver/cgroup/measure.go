package cgroup

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"mariposa"
)

// Measure reads cpu time, memory and disk usage.
func (g Group) Measure(u *mariposa.Usage) {
	read := func(controller, name string) string {
		b, _ := os.ReadFile(filepath.Join(g.Dir(controller), name)) // missing ones are not measured
		return strings.TrimSpace(string(b))
	}
	memory, cpu, unit := read("memory", "memory.usage_in_bytes"), read("cpuacct", "cpuacct.usage"), 1e9
	cache := field(read("memory", "memory.stat"), "total_inactive_file")
	if g.IsV2() {
		memory, unit = read("memory", "memory.current"), 1e6
		cpu = strconv.FormatInt(field(read("cpu", "cpu.stat"), "usage_usec"), 10)
		cache = field(read("memory", "memory.stat"), "inactive_file")
	}
	if used, err := strconv.ParseInt(memory, 10, 64); err == nil {
		used = max(0, used-cache) // pages of files that the kernel can drop at any time are not the instance's
		u.Memory = &used
	}
	if time, err := strconv.ParseInt(cpu, 10, 64); err == nil {
		seconds := float64(time) / unit
		u.CPU = &seconds
	}
	if g.IsV2() {
		if text := read("io", "io.stat"); text != "" {
			in, out := sumFields(text, "rbytes="), sumFields(text, "wbytes=")
			u.DiskRead, u.DiskWritten = &in, &out
		}
		return
	}
	if text := read("blkio", "blkio.throttle.io_service_bytes_recursive"); text != "" {
		in, out := sumFields(text, "Read "), sumFields(text, "Write ")
		u.DiskRead, u.DiskWritten = &in, &out
	}
}

// field returns a number of a file with a name and a number in each line.
func field(text, name string) int64 {
	for line := range strings.Lines(text) {
		if value, ok := strings.CutPrefix(line, name+" "); ok {
			n, _ := strconv.ParseInt(strings.TrimSpace(value), 10, 64)
			return n
		}
	}
	return 0
}

// sumFields adds up the numbers that follow a word.
func sumFields(text, word string) (sum int64) {
	for line := range strings.Lines(text) {
		_, rest, found := strings.Cut(line, word)
		if !found {
			continue
		}
		if f := strings.Fields(rest); len(f) > 0 {
			n, _ := strconv.ParseInt(f[0], 10, 64)
			sum += n
		}
	}
	return sum
}
