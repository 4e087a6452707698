// Package lxc runs instances as system containers, with the LXC tools of the distribution.
//
// Each instance has a directory and a small supervisor: our own binary, started as `mariposa
// lxc-supervisor DIR`. The supervisor has a mount namespace of its own, in which it mounts the
// root file system; it starts the container with lxc-start, writes its console to a log, and
// records how it ended. It outlives the agent, so an agent that is killed at any moment finds
// every container again, and later its exit code.
//
// A container has its own user namespace with a range of ids that no other container has, its
// own network namespace, always, and its own cgroups with the limits of its workload. Its root
// file system is an overlay on that of its image, which all containers of the image share. Where
// the machine cannot do that, Details says so.
//
// Environments may contain secrets, so the configuration of a container, its files and its
// values are in a private directory, on a file system in memory if the machine has one.
//
// The package owns the directory Options.Dir and the cgroups below Options.Cgroup. It does not know
// the desired state of an instance.
package lxc

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
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
	"mariposa/driver/volume"
)

var (
	_ driver.Driver         = (*Driver)(nil)
	_ driver.Conditional    = (*Driver)(nil)
	_ driver.ValuePublisher = (*Driver)(nil)
	_ driver.Provider       = (*Driver)(nil)
	_ driver.Imager         = (*Driver)(nil)
	_ driver.Execer         = (*Driver)(nil)
)

// Options configure a driver.
type Options struct {
	// Dir is a directory for everything that instances have on this node.
	Dir string
	// Images is the image store of the node.
	Images *imagestore.Store
	// Scope names the node: several may run on one machine.
	Scope string
	// Networks are the networks of the node.
	Networks *bridge.Networks
	// Privileged allows containers in which root is root of the machine, on a machine without
	// user namespaces.
	Privileged bool
	// Cgroup is the name of the cgroups' parent; mariposa-lxc if empty.
	Cgroup string

	LogSize  int64 // bytes after which a log is rotated; 8 MiB if zero
	LogFiles int   // how many files of that size are kept; 3 if zero
}

// Driver runs the system containers of one node.
type Driver struct {
	options    Options
	executable string
	memory     *memdir.Dir
	boot       string
	groups     cgroup.Hierarchy
	lock       *os.File
	volumes    *volume.Store

	ctx  context.Context // ends with Close
	gate *gate.Gate      // of operations, and of everything that waits for an end

	supportMu sync.Mutex
	support   support
	probed    time.Time // when that was found out

	roster   *roster.Roster[*entry]
	sessions map[*session]struct{} // guarded by the roster
}

// New opens a directory and finds the instances that run or have ended there. Only one driver
// may have a directory open.
func New(o Options) (*Driver, error) {
	if o.Dir == "" || o.Scope == "" || o.Images == nil || o.Networks == nil {
		return nil, errors.New("the driver of system containers needs a directory, a scope, an image store and networks")
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
		return nil, fmt.Errorf("cannot create the directory of the system containers: %w", err)
	}
	executable, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("cannot find the mariposa executable: %w", err)
	}
	o.Dir = dir
	o.Cgroup, o.LogSize, o.LogFiles = cmp.Or(o.Cgroup, "mariposa-lxc"), cmp.Or(o.LogSize, 8<<20), cmp.Or(o.LogFiles, 3)
	d := &Driver{
		gate: gate.New(errClosed), options: o, executable: executable, memory: memdir.New(dir, memdir.Places()), boot: osproc.BootID(), groups: cgroup.Find(),
		sessions: map[*session]struct{}{},
		// Root of the container owns a volume, and may change that.
		volumes: volume.New(volume.Options{Dir: filepath.Join(dir, volumesDir), Mode: 0o755, RemoveAll: removeAll}),
	}
	d.roster = roster.New(d.gate, d.newEntry)
	if d.lock, err = lockfile.Within(filepath.Join(dir, ".lock"), 2*time.Second); err != nil {
		return nil, fmt.Errorf("cannot use %s: another agent has it open: %w", dir, err)
	}
	d.ctx = d.gate.Context()
	d.support, d.probed = d.findSupport(), time.Now()
	if d.support.unavailable == "" {
		o.Networks.Restore(d.ctx)
	}
	if err := d.adoptAll(); err != nil {
		_ = d.Close()
		return nil, err
	}
	return d, nil
}

// Compute returns the compute type infrastructure.
func (*Driver) Compute() mariposa.ComputeType { return mariposa.ComputeInfrastructure }

// Capabilities returns what system containers can do.
func (*Driver) Capabilities() mariposa.Capabilities {
	return mariposa.Capabilities{
		Logs: true, Exec: true, Mdata: true, Ports: true, Volumes: true, Networks: true, Images: true, Survives: true,
		Updates: []string{"memory", "cpu"},
	}
}

// Watch sets the function that receives ends, the only change that happens to a container by
// itself. There is no engine that could be lost.
func (d *Driver) Watch(report func(driver.Event)) {
	d.roster.Watch(report)
	d.gate.Go(d.awaitSupport)
}

// awaitSupport reports that a machine which could run no system container can do so now.
func (d *Driver) awaitSupport() {
	for d.Unavailable() != "" {
		select {
		case <-d.ctx.Done():
			return
		case <-time.After(probeInterval + time.Second):
		}
		if d.Unavailable() == "" {
			d.roster.Tell(driver.Event{Kind: driver.EngineBack})
		}
	}
}

// List returns every instance of this node.
func (d *Driver) List(ctx context.Context) ([]driver.Observed, error) { return d.roster.List(ctx) }

// Logs reads the console of an instance and the output of its script.
func (d *Driver) Logs(ctx context.Context, id string, o driver.LogOptions) (io.ReadCloser, error) {
	e, err := d.roster.Find(ctx, id)
	if err != nil {
		return nil, err
	}
	return logfile.Read(ctx, filepath.Join(e.Dir, logFile), d.options.LogFiles, o), nil
}

// Close cancels operations in progress and ends commands that run in instances; instances keep
// running.
func (d *Driver) Close() error {
	if !d.gate.Shut() {
		return nil
	}
	d.closeSessions()
	d.gate.Wait()
	d.roster.Each(func(e *entry) { e.Unfollow() }) // nothing changes them any more
	d.memory.Release()
	return d.lock.Close()
}

var errClosed = errors.New("the driver of system containers is closed")

// operate runs one operation on an instance.
func (d *Driver) operate(ctx context.Context, id string, work func(context.Context, *entry) error) (driver.Observed, error) {
	if err := checkID(id); err != nil {
		return driver.Observed{ID: id}, err
	}
	return d.roster.Operate(ctx, id, work)
}

// ownExecutable returns the program that supervisors run.
func (d *Driver) ownExecutable() string {
	if _, err := os.Stat(d.executable); err != nil {
		return "/proc/self/exe" // the file was replaced or deleted; this path still works
	}
	return d.executable
}
