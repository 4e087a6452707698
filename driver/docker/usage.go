package docker

import (
	"context"
	"encoding/json"
	"strings"

	"github.com/containerd/errdefs"
	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"

	"mariposa"
	"mariposa/driver"
)

// Usage measures what a container uses.
func (d *Driver) Usage(ctx context.Context, id string) (mariposa.Usage, error) {
	ctx, leave, err := d.gate.Enter(ctx)
	if err != nil {
		return mariposa.Usage{}, err
	}
	defer leave()
	c, err := d.container(ctx, id)
	if errdefs.IsNotFound(err) || err == nil && !c.State.Running {
		return mariposa.Usage{}, driver.ErrNotFound
	}
	if err != nil {
		return mariposa.Usage{}, d.explain(err)
	}
	r, err := d.api().ContainerStats(ctx, c.ID, client.ContainerStatsOptions{})
	if err != nil {
		return mariposa.Usage{}, d.explain(err)
	}
	defer r.Body.Close() // it was only read
	var s container.StatsResponse
	if err := json.NewDecoder(r.Body).Decode(&s); err != nil {
		return mariposa.Usage{}, d.explain(err)
	}
	return usageOf(&s), nil
}

// usageOf converts the engine's figures.
func usageOf(s *container.StatsResponse) mariposa.Usage {
	u := mariposa.Usage{At: now()}
	if s.CPUStats.CPUUsage.TotalUsage > 0 {
		seconds := float64(s.CPUStats.CPUUsage.TotalUsage) / 1e9
		u.CPU = &seconds
	}
	if used := s.MemoryStats.Usage; used > 0 {
		// Pages of files that the kernel can drop at any time are not the instance's.
		for _, name := range []string{"total_inactive_file", "inactive_file"} {
			if cache, known := s.MemoryStats.Stats[name]; known && cache < used {
				used -= cache
				break
			}
		}
		u.Memory = bytesOf(used)
	}
	if len(s.Networks) > 0 {
		var in, out uint64
		for _, n := range s.Networks {
			in, out = in+n.RxBytes, out+n.TxBytes
		}
		u.NetworkIn, u.NetworkOut = bytesOf(in), bytesOf(out)
	}
	if all := s.BlkioStats.IoServiceBytesRecursive; len(all) > 0 {
		var read, written uint64
		for _, e := range all {
			switch strings.ToLower(e.Op) {
			case "read":
				read += e.Value
			case "write":
				written += e.Value
			}
		}
		u.DiskRead, u.DiskWritten = bytesOf(read), bytesOf(written)
	}
	return u
}

func bytesOf(n uint64) *int64 {
	b := int64(min(n, 1<<62)) //nolint:gosec // it fits
	return &b
}
