package kvm

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

// Usage reads what an instance uses: processor and memory of its QEMU process from its cgroups,
// traffic from its interfaces on the node, and disks from QEMU.
func (d *Driver) Usage(ctx context.Context, id string) (mariposa.Usage, error) {
	e, r, leave, err := d.kept(ctx, id)
	if err != nil {
		return mariposa.Usage{}, err
	}
	defer leave()
	d.roster.Lock()
	running := e.Observed.Running
	d.roster.Unlock()
	if !running {
		return mariposa.Usage{}, driver.ErrNotFound
	}
	log := logfile.Size(filepath.Join(e.Dir, logFile), d.options.LogFiles)
	u := mariposa.Usage{At: time.Now().UTC(), Log: &log}
	d.groupOf(id).Measure(&u)
	if a, err := tell(ctx, e.Dir, order{Do: orderMeasure}); err == nil {
		u.DiskRead, u.DiskWritten = &a.DiskRead, &a.DiskWritten
	}
	if len(r.Links) > 0 {
		var in, out int64
		for n := range r.Links { // what the node sends is what the machine receives
			name := tapName(e.Dir, n)
			in, out = in+counter(name, "tx_bytes"), out+counter(name, "rx_bytes")
		}
		u.NetworkIn, u.NetworkOut = &in, &out
	}
	return u, nil
}

// counter reads a counter of an interface; 0 if it is gone.
func counter(name, what string) int64 {
	b, _ := os.ReadFile(filepath.Join("/sys/class/net", name, "statistics", what))
	n, _ := strconv.ParseInt(strings.TrimSpace(string(b)), 10, 64)
	return n
}
