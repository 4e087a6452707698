package cli

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"mariposa"
	"mariposa/client"
	"mariposa/contract"
)

const (
	// usagePace is the minimum interval between two measurements: each one queries the
	// nodes.
	usagePace = 2 * time.Second
	// maxMeasured is the maximum number of instances that an overview measures.
	maxMeasured = 200
)

// meter measures the resource usage of instances for an overview. From the second
// measurement on it shows the current CPU usage; the first shows only the average since
// the start.
type meter struct {
	at   time.Time
	last map[string]mariposa.Usage // by instance
	now  usageNow
}

// usageNow is the usage of services and nodes: CPU in cores, memory in bytes.
type usageNow struct {
	Services []serviceUsage       `json:"services"`
	Nodes    map[string]usedByAll `json:"nodes"` // by id
}

type serviceUsage struct {
	Service   string `json:"service"`
	Instances int    `json:"instances"`
	usedByAll
}

// usedByAll is the total usage of some instances.
type usedByAll struct {
	CPU    float64 `json:"cpu"`
	Memory int64   `json:"memory"`
}

// measure measures again, unless the last measurement is recent. Instances that cannot be
// measured are skipped, because usage is only additional information.
func (m meter) measure(ctx context.Context, c *client.Client, project string, now time.Time) meter {
	if now.Sub(m.at) < usagePace {
		return m
	}
	next := meter{at: now, last: map[string]mariposa.Usage{}, now: usageNow{Services: []serviceUsage{}, Nodes: map[string]usedByAll{}}}
	services := map[string]*serviceUsage{}
	for i, err := range c.Instances(ctx, client.InstanceFilter{Project: project, State: string(mariposa.StateRunning), Usage: true}) {
		if err != nil || len(next.last) >= maxMeasured {
			break
		}
		if i.Usage.At.IsZero() {
			continue
		}
		next.last[i.ID] = i.Usage
		used := m.usedBy(&i)
		name := strings.TrimPrefix(i.ProjectName+"/"+cmp.Or(i.ServiceName, i.Name), "/")
		if services[name] == nil {
			services[name] = &serviceUsage{Service: name}
		}
		services[name].Instances++
		services[name].usedByAll = services[name].plus(used)
		next.now.Nodes[i.Node] = next.now.Nodes[i.Node].plus(used)
	}
	for _, s := range services {
		next.now.Services = append(next.now.Services, *s)
	}
	slices.SortFunc(next.now.Services, func(x, y serviceUsage) int {
		return cmp.Or(cmp.Compare(y.CPU, x.CPU), cmp.Compare(y.Memory, x.Memory), strings.Compare(x.Service, y.Service))
	})
	return next
}

// usedBy returns the usage of an instance: its CPU since the last measurement, or else
// since it started.
func (m meter) usedBy(i *contract.Instance) (used usedByAll) {
	if i.Usage.Memory != nil {
		used.Memory = *i.Usage.Memory
	}
	if i.Usage.CPU == nil {
		return used
	}
	cpu, since := *i.Usage.CPU, time.Time{}
	if i.Started != nil {
		since = *i.Started
	}
	if before, known := m.last[i.ID]; known && before.CPU != nil && *before.CPU <= cpu {
		cpu, since = cpu-*before.CPU, before.At
	}
	if span := i.Usage.At.Sub(since).Seconds(); span > 0 && !since.IsZero() {
		used.CPU = cpu / span
	}
	return used
}

func (u usedByAll) plus(o usedByAll) usedByAll {
	return usedByAll{CPU: u.CPU + o.CPU, Memory: u.Memory + o.Memory}
}

func (u usedByAll) cpu() string { return fmt.Sprintf("%.2f", u.CPU) }

// usageTable lists services, those with the highest usage first.
func usageTable(services []serviceUsage) *table {
	t := newTable("SERVICE", "INSTANCES", "CPU", "MEMORY")
	for _, s := range services {
		t.add(cell{s.Service, bold}, number(s.Instances), text(s.cpu()), text(roughBytes(s.Memory)))
	}
	return t
}
