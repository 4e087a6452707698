package kvm

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"

	"mariposa"
	"mariposa/driver"
	"mariposa/driver/bridge"
	"mariposa/driver/cgroup"
	"mariposa/driver/roster"
	"mariposa/driver/supervise"
)

// entry is the driver's state of one instance. The roster's mutex guards the last fields; the
// others belong to the operation that holds the entry.
type entry struct {
	roster.Slot
	supervise.Life

	record record
	limits string
	paused string // why the running machine is paused
	// damaged says why nothing is known of the instance but that it is there; empty if all is.
	damaged string

	values sync.Mutex // held while its values are read or written

	held      held                    // what no other instance may have
	interrupt context.CancelCauseFunc // ends the wait for a snapshot of the running machine; nil if none is waited for
	known     record
}

// held is what an instance has of the node, from its first start to its removal.
type held struct {
	uid      int
	links    []bridge.Link
	forwards []forward
	volumes  []string
}

// owned returns an instance as the networks know it.
func owned(id string) bridge.Owner {
	return bridge.Owner{Compute: mariposa.ComputeKVM, ID: id}
}

func (d *Driver) newEntry(id string) *entry {
	return &entry{Slot: roster.NewSlot(id), Life: supervise.Life{Dir: filepath.Join(d.options.Dir, instancesDir, id)}}
}

// groupOf returns the cgroups that an instance has or would have.
func (d *Driver) groupOf(id string) cgroup.Group {
	return cgroup.Group{Hierarchy: d.groups, Name: filepath.Join(d.options.Cgroup, fmt.Sprintf("%s.%08x", id, hash(d.options.Dir)))}
}

// watch waits for the end of the supervisor. If no operation waits for it too, the instance has
// ended by itself, which is reported. The caller holds the entry.
func (d *Driver) watch(e *entry, pidfd *os.File) {
	e.Follow(d.gate, pidfd, func(gone chan struct{}) {
		if e.Acquire(d.ctx) != nil {
			return
		}
		defer e.Release()
		if e.Live && e.Gone == gone {
			d.handleEnd(e)
			d.roster.TellChange(e)
		}
	})
}

// refresh updates what other goroutines see of an instance.
func (d *Driver) refresh(e *entry) {
	o := e.observe()
	d.roster.Lock()
	defer d.roster.Unlock()
	e.Observed, e.known = o, e.record
}

func (e *entry) observe() driver.Observed {
	r := &e.record
	o := driver.Observed{
		ID: e.ID, Labels: r.Labels, Origin: r.Origin, Name: r.Name, Project: r.Project, Running: e.Live,
		PhysicalID: machineName(e.ID), Started: e.State.Started, ManualRestarts: e.State.ManualRestarts, Details: e.details(),
	}
	if e.Live {
		o.Addresses = r.addresses()
		return o
	}
	o.Finished, o.ExitCode, o.Reason = e.Exit.At, e.Exit.Code, e.Exit.Reason
	return o
}

func (e *entry) details() map[string]string {
	r := &e.record
	m := map[string]string{
		"machine": machineName(e.ID), "image": r.Ref, "image_id": r.Image, "acceleration": accelNames[r.Accel],
		"memory": strconv.FormatInt(r.Memory>>20, 10) + " MiB", "cpus": strconv.Itoa(r.CPUs),
	}
	if e.Live && e.State.PID != 0 {
		m["pid"] = strconv.Itoa(e.State.PID)
	}
	var all []string
	for _, l := range r.Links {
		all = append(all, l.Address.Addr().String())
		l.Describe(m)
	}
	if len(all) > 0 {
		m["addresses"] = strings.Join(all, ", ")
	}
	if e.Live && e.paused != "" {
		m["paused"] = e.paused
	}
	if e.limits != "" {
		m["limits"] = e.limits
	}
	return m
}

// addresses returns where an instance is reached: its address in its first network with each of
// its ports, or that alone if it has none; or the ports of the node that lead to it.
func (r *record) addresses() (all []string) {
	for _, f := range r.Forwards {
		all = append(all, net.JoinHostPort(f.Address, strconv.Itoa(f.Port)))
	}
	if len(r.Links) == 0 {
		return all
	}
	ip := r.Links[0].Address.Addr().String()
	if len(r.Ports) == 0 {
		return []string{ip}
	}
	for _, p := range r.Ports {
		all = append(all, net.JoinHostPort(ip, strconv.Itoa(p)))
	}
	return all
}
