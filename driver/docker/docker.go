// Package docker runs instances as containers of a Docker engine, through its API. Podman offers
// the same API; podman.go says where it differs.
//
// The engine has the truth: a container carries in its labels whose it is, which instance
// it is and where it came from. The driver keeps only what the engine cannot: a small record
// for each instance (how often it was restarted), and its files and values, which the
// container sees through mounts. A container without our labels is never touched unless it is adopted.
//
// One goroutine follows the engine's events (engine.go). If the engine goes away, that is
// reported and nothing else changes: instances are what they were until the engine says
// otherwise.
//
// A foreign container has none of our labels, and an engine cannot add any. If one is adopted,
// the driver keeps a durable record of which instance it is (adopt.go).
//
// The package owns the containers, networks and volumes with its scope in their labels, and
// the directory Options.Dir. It does not know the desired state of an instance.
package docker

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/containerd/errdefs"
	"github.com/moby/moby/api/types/network"
	"github.com/moby/moby/client"

	"mariposa"
	"mariposa/driver"
	"mariposa/driver/bridge"
	"mariposa/driver/gate"
	"mariposa/driver/memdir"
	"mariposa/driver/volume"
)

var (
	_ driver.Driver         = (*Driver)(nil)
	_ driver.Conditional    = (*Driver)(nil)
	_ driver.ValuePublisher = (*Driver)(nil)
	_ driver.Provider       = (*Driver)(nil)
	_ driver.Imager         = (*Driver)(nil)
	_ driver.Resolver       = (*Driver)(nil)
	_ driver.Execer         = (*Driver)(nil)
	_ driver.Adopter        = (*Driver)(nil)
)

// Options configure a driver.
type Options struct {
	// Host is where the engine listens, such as unix:///var/run/docker.sock. If empty, the
	// environment of the agent says so, as for Docker's own client.
	Host string
	// DefaultHosts are the sockets to look for if neither says so: the first that exists is used
	// from then on. If empty, those of Docker and Podman.
	DefaultHosts []string
	// Dir is a directory for records, files and values of instances.
	Dir string
	// Scope names the node: the engine may be used by several.
	Scope string
	// Publish is the address of the node at which ports are published; all if zero.
	Publish netip.Addr
	// Shared returns the networks of the system containers and virtual machines of this node,
	// whose bridges the containers of their projects use too; nil if it runs none. It may be nil.
	Shared func() *bridge.Networks
	// Names is the DNS server of the node; nil if there is none.
	Names driver.NameServer
}

// Driver runs instances in one engine.
type Driver struct {
	options  Options
	client   atomic.Pointer[client.Client]
	isPodman atomic.Bool // the engine is Podman
	memory   *memdir.Dir
	private  *privateRepositories
	volumes  *volume.Store // those with a size; the engine has the others

	adoptions adoptions

	ctx  context.Context // ends with Close
	gate *gate.Gate      // of operations, and of the goroutine that follows the engine

	operations sync.RWMutex // held by operations on instances, and exclusively to remove files that none of them uses

	networks sync.RWMutex                // held by those who create containers, and exclusively to remove the network of a project
	ensuring sync.Mutex                  // held while such a network is created, and of the field below
	ensured  map[string]*network.Network // those of projects that have been seen, by name

	mu       sync.Mutex
	entries  map[string]*entry // by instance id: known or in an operation
	report   func(driver.Event)
	engine   engineState
	ooms     memoryEnds
	cleanups map[string]chan struct{} // by container: closed when the engine has cleaned up after it
	sessions map[*session]struct{}
	marks    map[string]bool // of all commands that have begun
}

// entry is what the driver remembers of an instance between two looks at the engine.
type entry struct {
	mu       sync.Mutex      // held while a change is reported, so that those of one instance are in order
	last     driver.Observed // as last seen, with its id if it exists
	busy     bool            // an operation changes it: what happens meanwhile is its doing
	missed   bool            // something happened meanwhile
	started  string          // the container that was started meanwhile; empty if none was
	changed  chan struct{}   // closed with the next change, for readers of its log
	valuesMu sync.Mutex      // held while its values are read or written
}

// New returns a driver for an engine. It does not wait for the engine, which may be down.
func New(o Options) (*Driver, error) {
	if o.Dir == "" || o.Scope == "" {
		return nil, errors.New("the docker driver needs a directory and a scope")
	}
	for _, dir := range []string{o.Dir, filepath.Join(o.Dir, recordDir), filepath.Join(o.Dir, adoptedDir)} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return nil, fmt.Errorf("cannot create the directory of the containers: %w", err)
		}
	}
	if len(o.DefaultHosts) == 0 {
		o.DefaultHosts = defaultHosts
	}
	private, err := openPrivate(o.Dir)
	if err != nil {
		return nil, err
	}
	d := &Driver{options: o, private: private, gate: gate.New(errClosed), memory: memdir.New(o.Dir, memdir.Places()), entries: map[string]*entry{}, ensured: map[string]*network.Network{}, sessions: map[*session]struct{}{}, marks: map[string]bool{}, cleanups: map[string]chan struct{}{}, ooms: memoryEnds{at: map[string]time.Time{}, asked: map[string]chan struct{}{}, likely: map[string]bool{}}, report: func(driver.Event) {}}
	d.ctx = d.gate.Context()
	api, err := d.newClient()
	if err != nil {
		return nil, err
	}
	d.client.Store(api)
	d.volumes = volume.New(volume.Options{Dir: filepath.Join(o.Dir, volumesDir), Mode: 0o755, RemoveAll: os.RemoveAll})
	d.volumes.Clear()
	removeUnfinishedFiles(o.Dir, filepath.Join(o.Dir, recordDir))
	if err := d.adoptions.load(filepath.Join(o.Dir, adoptedDir)); err != nil {
		return nil, err
	}
	d.probe()
	return d, nil
}

// Compute returns the compute type docker.
func (*Driver) Compute() mariposa.ComputeType { return mariposa.ComputeDocker }

// Capabilities returns what containers can do.
func (*Driver) Capabilities() mariposa.Capabilities {
	return mariposa.Capabilities{
		Logs: true, Exec: true, Mdata: true, Ports: true, Volumes: true, Networks: true, Images: true, Survives: true,
		Updates: []string{"memory", "cpu"},
	}
}

// Watch sets the function that receives changes, and begins to follow the engine.
func (d *Driver) Watch(report func(driver.Event)) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.report = report
	d.gate.Go(d.follow)
}

// Close cancels operations in progress and ends commands that run in instances; instances
// keep running.
func (d *Driver) Close() error {
	d.gate.Shut()
	d.closeSessions()
	d.gate.Wait()
	d.memory.Release() // the next driver creates it again
	return d.api().Close()
}

var errClosed = errors.New("the docker driver is closed")

// operate runs one operation on an instance and returns its state afterwards. Changes that
// happen meanwhile are not reported, unless the state afterwards does not show them.
func (d *Driver) operate(ctx context.Context, id string, work func(context.Context, *entry) (driver.Observed, error)) (driver.Observed, error) {
	ctx, leave, err := d.gate.Enter(ctx)
	if err != nil {
		return driver.Observed{ID: id}, err
	}
	defer leave()
	d.operations.RLock()
	defer d.operations.RUnlock()
	e := d.entry(id)
	e.mu.Lock()
	e.busy, e.missed, e.started = true, false, ""
	e.mu.Unlock()
	o, err := work(ctx, e)
	if err != nil {
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		o = d.lookAfterError(id, e)
	}
	d.settle(id, e, o)
	o.ID = id
	return o, d.explain(err)
}

// lookAfterError returns the state in which a failed operation has left an instance. If the
// engine does not say, it is as it was.
func (d *Driver) lookAfterError(id string, e *entry) driver.Observed {
	ctx, cancel := context.WithTimeout(d.ctx, probeTimeout)
	defer cancel()
	o, err := d.inspect(ctx, id)
	switch {
	case err == nil:
		return o
	case errdefs.IsNotFound(err):
		return driver.Observed{}
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.last
}

// settle ends an operation that has left an instance as it is described; without an id, it
// does not exist.
func (d *Driver) settle(id string, e *entry, o driver.Observed) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.note(o)
	e.busy = false
	if e.missed || e.started != "" && (!o.Running || o.PhysicalID != e.started) {
		d.gate.Go(func() { d.look(id) })
	}
	if o.ID == "" {
		d.mu.Lock()
		delete(d.entries, id)
		d.mu.Unlock()
	}
}

// entry returns the entry of an instance, and adds it if there is none.
func (d *Driver) entry(id string) *entry {
	d.mu.Lock()
	defer d.mu.Unlock()
	e := d.entries[id]
	if e == nil {
		e = &entry{changed: make(chan struct{})}
		d.entries[id] = e
	}
	return e
}

// note records a state of an instance and wakes up those who wait for a change. The caller
// holds the entry's mutex.
func (e *entry) note(o driver.Observed) {
	e.last = o
	close(e.changed)
	e.changed = make(chan struct{})
}

// now is the time of a measurement.
func now() time.Time { return time.Now().UTC() }
