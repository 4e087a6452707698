package lxc

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"mariposa"
	"mariposa/driver"
	"mariposa/driver/bridge"
	"mariposa/driver/osproc"
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
	// damaged says why nothing is known of the instance but that it is there; empty if all is.
	damaged string

	values sync.Mutex // held while its values are read or written

	held  held    // what no other instance may have
	known record  // as of its last start
	in    *inside // for commands that run in the instance; nil if it is not running
}

// held is what an instance has of the node, from its first start to its removal.
type held struct {
	ids     int
	links   []bridge.Link
	volumes []string
}

// owned returns an instance as the networks know it.
func owned(id string) bridge.Owner {
	return bridge.Owner{Compute: mariposa.ComputeInfrastructure, ID: id}
}

func (d *Driver) newEntry(id string) *entry {
	return &entry{Slot: roster.NewSlot(id), Life: supervise.Life{Dir: filepath.Join(d.options.Dir, instancesDir, id)}}
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

// watchInit notices that a container has rebooted: its first process has ended, and then it has
// another one, which its supervisor records. The caller holds the entry.
func (d *Driver) watchInit(e *entry) {
	init, gone, run := e.State.Main(), e.Gone, e.record.Run
	pidfd, alive := init.Open()
	d.gate.Go(func() {
		if alive {
			file := os.NewFile(uintptr(pidfd), "init") //nolint:gosec // a file descriptor is positive
			stop := context.AfterFunc(d.ctx, func() { _ = file.Close() })
			_ = osproc.AwaitEnd(file) // if that fails, the next look shows it
			stop()
			_ = file.Close() // a second time if the driver is closed
		}
		for {
			select {
			case <-gone: // it has not rebooted, but ended
				return
			case <-d.ctx.Done():
				return
			case <-time.After(rebootPause):
			}
			if s, ok := supervise.ReadState(e.Dir, run); ok && (s.PID != init.PID || s.Start != init.Start) {
				d.handleReboot(e, gone, s)
				return
			}
		}
	})
}

// rebootPause is how often the state of an instance is read between the end of its first process
// and its own end or its reboot.
const rebootPause = 50 * time.Millisecond

// handleReboot reports that a container runs again.
func (d *Driver) handleReboot(e *entry, gone chan struct{}, now supervise.State) {
	if e.Acquire(d.ctx) != nil {
		return
	}
	defer e.Release()
	if !e.Live || e.Gone != gone {
		return
	}
	e.State = now
	d.refresh(e)
	d.watchInit(e)
	d.roster.TellChange(e)
}

// refresh updates what other goroutines see of an instance.
func (d *Driver) refresh(e *entry) {
	o := e.observe()
	var in *inside
	if e.Live {
		in = &inside{record: e.record, init: e.State.Main(), gone: e.Gone}
	}
	d.roster.Lock()
	defer d.roster.Unlock()
	e.Observed, e.in, e.known = o, in, e.record
}

func (e *entry) observe() driver.Observed {
	r := &e.record
	o := driver.Observed{
		ID: e.ID, Labels: r.Labels, Origin: r.Origin, Name: r.Name, Project: r.Project, Running: e.Live,
		PhysicalID: containerName(e.ID), Started: e.State.Started, ManualRestarts: e.State.ManualRestarts, Details: e.details(),
	}
	if e.Live {
		o.Addresses = r.addresses()
		return o
	}
	o.Finished, o.ExitCode, o.Reason = e.Exit.At, e.Exit.Code, e.Exit.Reason
	return o
}

// containerName returns the name of an instance's container.
func containerName(id string) string { return "mariposa-" + id }

func (e *entry) details() map[string]string {
	r := &e.record
	m := map[string]string{"container": containerName(e.ID), "image": r.Ref, "image_id": r.Image, "isolation": r.isolation()}
	if e.Live && e.State.PID != 0 {
		m["pid"] = strconv.Itoa(e.State.PID)
	}
	var all []string
	for _, l := range r.Links {
		all = append(all, l.Address.Addr().String())
		l.Describe(m)
	}
	m["addresses"] = strings.Join(all, ", ")
	if e.limits != "" {
		m["limits"] = e.limits
	}
	return m
}

// isolation says for people how an instance is isolated.
func (r *record) isolation() string {
	if r.IDs == 0 {
		return "privileged: root inside is root of the machine"
	}
	return fmt.Sprintf("unprivileged: ids %d to %d", r.IDs, r.IDs+idCount-1)
}

// addresses returns where an instance is reached: its address in its first network with each of
// its ports, or that alone if it has none.
func (r *record) addresses() (all []string) {
	if len(r.Links) == 0 {
		return nil
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
