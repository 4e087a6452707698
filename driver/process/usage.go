package process

import (
	"bytes"
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

// Usage adds up the usage of an instance's processes from /proc: those of its session and
// of its cgroups. Processes share the node's network, so network usage is not measured.
func (d *Driver) Usage(ctx context.Context, id string) (mariposa.Usage, error) {
	_, leave, err := d.gate.Enter(ctx)
	if err != nil {
		return mariposa.Usage{}, err
	}
	defer leave()
	e, in, err := d.findEntry(id)
	if err == nil && in == nil {
		err = driver.ErrNotFound
	}
	if err != nil {
		return mariposa.Usage{}, err
	}
	members := map[int]bool{in.main.pid: true}
	for _, pid := range in.group.pids() {
		members[pid] = true
	}
	var sum usageSum
	err = eachPID(func(pid int) {
		if b, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "stat")); err == nil {
			if f, start := parseStat(b); start != 0 && (members[pid] || f[3] == strconv.Itoa(in.main.pid)) {
				sum.add(pid, f)
			}
		}
	})
	if err != nil {
		return mariposa.Usage{}, err
	}
	log := logfile.Size(filepath.Join(e.dir, logFile), d.options.LogFiles)
	u := mariposa.Usage{At: time.Now().UTC(), CPU: &sum.cpu, Memory: &sum.memory, Log: &log}
	if !sum.diskUnknown {
		u.DiskRead, u.DiskWritten = &sum.read, &sum.written
	}
	return u, nil
}

// usageSum is the usage of several processes, including children that they have waited
// for.
type usageSum struct {
	cpu           float64 // seconds
	memory        int64
	read, written int64
	diskUnknown   bool
}

// add adds one process, given the fields of its stat from its state on.
func (c *usageSum) add(pid int, stat []string) {
	for _, ticks := range stat[11:15] { // user and system, its own and its children's
		n, _ := strconv.ParseInt(ticks, 10, 64)
		c.cpu += (time.Duration(n) * tick).Seconds()
	}
	if len(stat) > 21 {
		pages, _ := strconv.ParseInt(stat[21], 10, 64)
		c.memory += pages * int64(os.Getpagesize())
	}
	b, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "io"))
	if err != nil && !isGone(err) {
		c.diskUnknown = true
	}
	for line := range bytes.Lines(b) {
		name, value, _ := strings.Cut(strings.TrimSpace(string(line)), ": ")
		n, _ := strconv.ParseInt(value, 10, 64)
		switch name {
		case "read_bytes":
			c.read += n
		case "write_bytes":
			c.written += n
		}
	}
}
