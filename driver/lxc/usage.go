package lxc

import (
	"context"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"mariposa"
	"mariposa/driver"
	"mariposa/driver/logfile"
)

// Usage reads what an instance uses from its cgroups, and its traffic from its interfaces.
func (d *Driver) Usage(ctx context.Context, id string) (mariposa.Usage, error) {
	ctx, leave, err := d.gate.Enter(ctx)
	if err != nil {
		return mariposa.Usage{}, err
	}
	defer leave()
	e, in, err := d.running(id)
	if err != nil {
		return mariposa.Usage{}, err
	}
	log := logfile.Size(filepath.Join(e.dir, logFile), d.options.LogFiles)
	u := mariposa.Usage{At: time.Now().UTC(), Log: &log}
	d.groupOf(id).measure(&u)
	if init, ok := findInit(ctx, id, in.init); ok {
		if b, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(init.pid), "net/dev")); err == nil {
			received, sent := traffic(string(b))
			u.NetworkIn, u.NetworkOut = &received, &sent
		}
	}
	return u, nil
}

// measure reads cpu time, memory and disk usage.
func (g group) measure(u *mariposa.Usage) {
	read := func(controller, name string) string {
		b, _ := os.ReadFile(filepath.Join(g.dir(controller), name)) // missing ones are not measured
		return strings.TrimSpace(string(b))
	}
	memory, cpu, unit := read("memory", "memory.usage_in_bytes"), read("cpuacct", "cpuacct.usage"), 1e9
	cache := field(read("memory", "memory.stat"), "total_inactive_file")
	if g.h.isV2() {
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
	if g.h.isV2() {
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

// traffic adds up the bytes of all interfaces in a /proc/net/dev, except the loopback.
func traffic(text string) (received, sent int64) {
	for line := range strings.Lines(text) {
		name, rest, found := strings.Cut(line, ":")
		f := strings.Fields(rest)
		if !found || strings.TrimSpace(name) == "lo" || len(f) < 9 {
			continue
		}
		in, _ := strconv.ParseInt(f[0], 10, 64)
		out, _ := strconv.ParseInt(f[8], 10, 64)
		received, sent = received+in, sent+out
	}
	return received, sent
}

// running returns a running instance.
func (d *Driver) running(id string) (*entry, *inside, error) {
	e, err := d.find(id)
	if err != nil {
		return nil, nil, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if e.in == nil {
		return nil, nil, driver.ErrNotFound
	}
	return e, e.in, nil
}
