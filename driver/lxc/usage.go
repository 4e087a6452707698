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
	e, in, err := d.running(ctx, id)
	if err != nil {
		return mariposa.Usage{}, err
	}
	log := logfile.Size(filepath.Join(e.Dir, logFile), d.options.LogFiles)
	u := mariposa.Usage{At: time.Now().UTC(), Log: &log}
	d.groupOf(id).Measure(&u)
	if init, ok := findInit(ctx, id, in.init); ok {
		if b, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(init.PID), "net/dev")); err == nil {
			received, sent := traffic(string(b))
			u.NetworkIn, u.NetworkOut = &received, &sent
		}
	}
	return u, nil
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
func (d *Driver) running(ctx context.Context, id string) (*entry, *inside, error) {
	e, err := d.roster.Find(ctx, id)
	if err != nil {
		return nil, nil, err
	}
	d.roster.Lock()
	defer d.roster.Unlock()
	if e.in == nil {
		return nil, nil, driver.ErrNotFound
	}
	return e, e.in, nil
}
