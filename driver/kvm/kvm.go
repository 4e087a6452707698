// Package kvm runs instances as virtual machines, with QEMU.
//
// Each instance has a directory and a small supervisor: our own binary, started as `mariposa
// kvm-supervisor DIR`. The supervisor starts QEMU, controls it over its machine protocol, writes the
// serial console to a log, answers the metadata protocol on the second serial port, and records how
// the machine ended. It outlives the agent, so an agent that is killed at any moment finds every
// machine again.
//
// QEMU is one process for each machine. It runs as a user of its own, in a seccomp sandbox and in
// namespaces without a network, and gets everything that it uses as open files: disks, the
// interfaces of its networks, the console. It cannot open any other file of the node.
//
// The disk of a machine is an overlay on that of its image, which all machines of the image share.
//
// The package owns the directory Options.Dir and the cgroups below Options.Cgroup. It does not know
// the desired state of an instance.
package kvm

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"path/filepath"
	"sync"
	"time"

	"mariposa"
	"mariposa/driver"
	"mariposa/driver/bridge"
	"mariposa/driver/cgroup"
	"mariposa/driver/gate"
	"mariposa/driver/imagestore"
	"mariposa/driver/lockfile"
	"mariposa/driver/logfile"
	"mariposa/driver/memdir"
	"mariposa/driver/osproc"
	"mariposa/driver/roster"
)

var (
	_ driver.Driver         = (*Driver)(nil)
	_ driver.Conditional    = (*Driver)(nil)
	_ driver.ValuePublisher = (*Driver)(nil)
	_ driver.Provider       = (*Driver)(nil)
	_ driver.Imager         = (*Driver)(nil)
	_ driver.Consoler       = (*Driver)(nil)
	_ driver.Snapshotter    = (*Driver)(nil)
)

// Options configure a driver.
type Options struct {
	// Dir is a directory for everything that instances have on this node.
	Dir string
	// Images is the image store of the node.
	Images *imagestore.Store
	// Networks are the networks of the node. If nil, machines have a network of QEMU's own, in
	// which ports of the node lead to them and nothing leads out.
	Networks *bridge.Networks
	// Publish is the address of the node for these ports; the loopback address if zero.
	Publish netip.Addr
	// Scope names the node: several may run on one machine.
	Scope string
	// Cgroup is the name of the cgroups' parent; mariposa-kvm if empty.
	Cgroup string
	// Emulate does without the acceleration of the processor.
	Emulate bool

	LogSize  int64 // bytes after which a log is rotated; 8 MiB if zero
	LogFiles int   // how many files of that size are kept; 3 if zero
}

// defaultMemory is what a machine has whose manifest does not say how much.
const defaultMemory = 512 << 20

// Driver runs the virtual machines of one node.
type Driver struct {
	options    Options
	executable string
	memory     *memdir.Dir
	boot       string
	groups     cgroup.Hierarchy
	lock       *os.File

	ctx  context.Context // ends with Close
	gate *gate.Gate      // of operations, and of everything that waits for an end

	supportMu sync.Mutex
	support   support
	probed    time.Time // when that was found out

	roster *roster.Roster[*entry]
}

// New opens a directory and finds the instances that run or have ended there. Only one driver
// may have a directory open.
func New(o Options) (*Driver, error) {
	if o.Dir == "" || o.Scope == "" || o.Images == nil {
		return nil, errors.New("the driver of virtual machines needs a directory, a scope and an image store")
	}
	dir, err := filepath.Abs(o.Dir)
	for _, sub := range []string{instancesDir, volumesDir} {
		if err == nil {
			err = os.MkdirAll(filepath.Join(dir, sub), 0o700)
		}
	}
	if err == nil {
		dir, err = filepath.EvalSymlinks(dir)
	}
	if err != nil {
		return nil, fmt.Errorf("cannot create the directory of the virtual machines: %w", err)
	}
	executable, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("cannot find the mariposa executable: %w", err)
	}
	o.Dir = dir
	o.Cgroup, o.LogSize, o.LogFiles = cmp.Or(o.Cgroup, "mariposa-kvm"), cmp.Or(o.LogSize, 8<<20), cmp.Or(o.LogFiles, 3)
	if !o.Publish.IsValid() {
		o.Publish = netip.AddrFrom4([4]byte{127, 0, 0, 1})
	}
	d := &Driver{
		gate: gate.New(errClosed), options: o, executable: executable, memory: memdir.New(dir, memdir.Places()), boot: osproc.BootID(), groups: cgroup.Find(),
	}
	d.roster = roster.New(d.gate, d.newEntry)
	if d.lock, err = lockfile.Within(filepath.Join(dir, ".lock"), 2*time.Second); err != nil {
		return nil, fmt.Errorf("cannot use %s: another agent has it open: %w", dir, err)
	}
	d.ctx = d.gate.Context()
	d.support, d.probed = d.findSupport(), time.Now()
	if d.support.unavailable == "" && o.Networks != nil {
		o.Networks.Restore(d.ctx)
	}
	if err := d.adoptAll(); err != nil {
		_ = d.Close()
		return nil, err
	}
	return d, nil
}

// Compute returns the compute type kvm.
func (*Driver) Compute() mariposa.ComputeType { return mariposa.ComputeKVM }

// Capabilities returns what virtual machines can do.
func (*Driver) Capabilities() mariposa.Capabilities {
	return mariposa.Capabilities{
		Logs: true, Mdata: true, Ports: true, Volumes: true, Networks: true, Images: true, Survives: true, Console: true, Snapshots: true, Updates: []string{"cpu"},
	}
}

// Watch sets the function that receives ends and reboots, the only changes that happen to a
// machine by itself. There is no engine that could be lost.
func (d *Driver) Watch(report func(driver.Event)) {
	d.roster.Watch(report)
	d.gate.Go(d.awaitSupport)
}

// List returns every instance of this node.
func (d *Driver) List(ctx context.Context) ([]driver.Observed, error) { return d.roster.List(ctx) }

// Logs reads the serial console of an instance.
func (d *Driver) Logs(ctx context.Context, id string, o driver.LogOptions) (io.ReadCloser, error) {
	e, err := d.roster.Find(ctx, id)
	if err != nil {
		return nil, err
	}
	return logfile.Read(ctx, filepath.Join(e.Dir, logFile), d.options.LogFiles, o), nil
}

// Close cancels operations in progress; instances keep running.
func (d *Driver) Close() error {
	if !d.gate.Shut() {
		return nil
	}
	d.gate.Wait()
	d.roster.Each(func(e *entry) { e.Unfollow() }) // nothing changes them any more
	d.memory.Release()
	return d.lock.Close()
}

var errClosed = errors.New("the driver of virtual machines is closed")

// operate runs one operation on an instance.
func (d *Driver) operate(ctx context.Context, id string, work func(context.Context, *entry) error) (driver.Observed, error) {
	if err := checkID(id); err != nil {
		return driver.Observed{ID: id}, err
	}
	return d.roster.Operate(ctx, id, work)
}
