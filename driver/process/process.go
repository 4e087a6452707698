// Package process runs instances as processes of this machine, isolated from it and from
// each other. Each one has a directory and a small supervisor, the shim: our own binary,
// started as `mariposa shim DIR`. The shim outlives the agent. It holds the lock of the
// directory, starts the command, writes its log, and records how it ended. So an agent
// that is killed at any moment finds every instance again, with its pid and later its
// exit code, and never runs one twice.
//
// The command of an isolated instance runs under an init (init.go): the first process of
// its own namespaces. The init builds the instance's view of the file system (rootfs.go)
// and starts the command without privileges (confine.go, seccomp.go). The namespaces end
// with the init, and so does every process in them.
//
// Commands and environments may contain secrets, so they are never written to disk: the
// agent passes them to the shim in memory, and passes them again for a later start. The
// record of an instance (record.go) is enough to find it, but not to start it. Its files
// and values are in a private directory, on a file system in memory if the machine has
// one.
//
// The package owns the directories below its root, the volumes, the processes that carry
// that root in their environment, and their cgroups. It does not know the desired state
// of an instance. It touches no process that it cannot prove to be its own by start time,
// label or cgroup.
package process

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"mariposa"
	"mariposa/driver"
	"mariposa/driver/gate"
	"mariposa/driver/lockfile"
	"mariposa/driver/logfile"
	"mariposa/driver/memdir"
	"mariposa/driver/volume"
)

var _ driver.Driver = (*Driver)(nil)

// Options configure a driver.
type Options struct {
	Root     string // a directory of its own, created if missing
	Volumes  string // the directory of volumes, created with the first one; .volumes below Root if empty
	Networks string // the same for networks; .networks below Root if empty
	// Hidden are directories that no instance can see, in addition to Root, Volumes and
	// Networks.
	Hidden    []string
	Isolation Isolation
	UIDs      UIDs     // the uids of isolated instances if the agent is root; DefaultUIDs if zero
	Paths     []string // directories and files that isolated instances can read in addition to those of the system
	TmpSize   int64    // the size of /tmp, and of /dev/shm, in an isolated instance; 64 MiB if zero
	Processes int64    // how many processes and threads an isolated instance may have; 1024 if zero

	Names driver.NameServer // of the node; nil if it has none

	LogSize  int64 // bytes after which a log is rotated; 8 MiB if zero
	LogFiles int   // how many files of that size are kept; 3 if zero
}

// Driver is the agent's side: it starts shims and sends them signals. One epoll loop
// reports when they end.
type Driver struct {
	root       string
	memory     *memdir.Dir
	executable string
	options    Options
	hierarchy  hierarchy
	boot       string
	rootLock   *os.File
	exits      *exits
	support    isolationSupport
	volumes    *volume.Store
	hidden     []string // directories that no instance can see, without symbolic links

	mapMu    sync.Mutex
	mappable map[uint64]bool // whether a file system supports ID-mapped mounts, by device

	ctx  context.Context // ends with Close
	gate *gate.Gate      // of operations

	mu          sync.Mutex
	entries     map[string]*entry
	ports       map[int]string // the instance that has a port
	uids        map[int]string // the instance that has a uid
	reportEvent func(driver.Event)
	unreported  []driver.Event // from before Watch was called
}

// New opens a root and finds the instances that run or have ended there. Only one driver
// may have a root open: a second one is an error.
func New(o Options) (*Driver, error) {
	root, err := openRoot(o.Root)
	if err != nil {
		return nil, err
	}
	executable, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("cannot find the mariposa executable: %w", err)
	}
	if o.Volumes, err = filepath.Abs(cmp.Or(o.Volumes, filepath.Join(root, ".volumes"))); err != nil {
		return nil, err
	}
	if o.Networks, err = filepath.Abs(cmp.Or(o.Networks, filepath.Join(root, ".networks"))); err != nil {
		return nil, err
	}
	o.LogSize, o.LogFiles = cmp.Or(o.LogSize, 8<<20), cmp.Or(o.LogFiles, 3)
	o.UIDs, o.TmpSize, o.Processes = cmp.Or(o.UIDs, DefaultUIDs), cmp.Or(o.TmpSize, DefaultTmpSize), cmp.Or(o.Processes, DefaultProcesses)
	o.Paths = slices.Clone(o.Paths)
	d := &Driver{
		root: root, executable: executable, options: o, gate: gate.New(errClosed),
		hierarchy: findHierarchy(), boot: bootID(), memory: memdir.New(root, memdir.Places()),
		entries: map[string]*entry{}, ports: map[int]string{}, uids: map[int]string{}, mappable: map[uint64]bool{},
	}
	for _, path := range append([]string{root, o.Volumes, o.Networks}, o.Hidden...) {
		if path, err = filepath.Abs(path); err != nil {
			return nil, err
		}
		if real, err := filepath.EvalSymlinks(path); err == nil {
			path = real
		}
		d.hidden = append(d.hidden, path)
	}
	if err := d.isolate(); err != nil {
		return nil, err
	}
	d.volumes = volume.New(volume.Options{Dir: o.Volumes, Owner: d.volumeOwner(), Mode: 0o700, RemoveAll: removeAll})
	// A fork in progress when an agent was killed may hold the lock for a moment.
	if d.rootLock, err = lockfile.Within(filepath.Join(root, ".lock"), 2*time.Second); err != nil {
		return nil, fmt.Errorf("cannot use %s: another agent has it open: %w", root, err)
	}
	if d.exits, err = watchExits(d.shimGone); err != nil {
		_ = d.rootLock.Close()
		return nil, err
	}
	d.ctx = d.gate.Context()
	if err := d.adoptAll(); err != nil {
		_ = d.Close()
		return nil, err
	}
	return d, nil
}

// openRoot creates the root and returns it without symbolic links, because it is compared
// with the environment of processes.
func openRoot(root string) (string, error) {
	if root == "" {
		return "", errors.New("the process driver needs a directory for its instances")
	}
	if err := os.MkdirAll(root, 0o700); err != nil {
		return "", fmt.Errorf("cannot create the directory of the process instances: %w", err)
	}
	root, err := filepath.Abs(root)
	if err != nil {
		return "", err
	}
	return filepath.EvalSymlinks(root)
}

// Compute returns the compute type process.
func (d *Driver) Compute() mariposa.ComputeType { return mariposa.ComputeProcess }

// Capabilities returns what process instances support.
func (d *Driver) Capabilities() mariposa.Capabilities {
	return mariposa.Capabilities{Logs: true, Exec: true, Mdata: true, Ports: true, Volumes: true, Networks: true, Survives: true}
}

// Watch sets the callback for ends, the only change that happens to a process by itself.
// The callback must not wait for an operation on the same instance. There is no engine
// that could be lost.
func (d *Driver) Watch(report func(driver.Event)) {
	d.mu.Lock()
	d.reportEvent = report
	early := d.unreported
	d.unreported = nil
	d.mu.Unlock()
	for _, e := range early {
		report(e)
	}
}

func (d *Driver) report(o driver.Observed) {
	e := driver.Event{Kind: driver.InstanceChanged, Instance: o}
	d.mu.Lock()
	report := d.reportEvent
	if report == nil {
		d.unreported = append(d.unreported, e)
	}
	d.mu.Unlock()
	if report != nil {
		report(e)
	}
}

// List returns every instance below the root, and every process that carries the root in
// its environment although its directory is gone.
func (d *Driver) List(ctx context.Context) ([]driver.Observed, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if err := d.adoptStrays(); err != nil {
		return nil, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.gate.IsShut() {
		return nil, errClosed
	}
	list := make([]driver.Observed, 0, len(d.entries))
	for _, e := range d.entries {
		if e.observed.ID != "" {
			list = append(list, e.observed)
		}
	}
	slices.SortFunc(list, func(a, b driver.Observed) int { return strings.Compare(a.ID, b.ID) })
	return list, nil
}

// Logs reads the standard output and error of an instance, across log rotations.
func (d *Driver) Logs(ctx context.Context, id string, o driver.LogOptions) (io.ReadCloser, error) {
	e, _, err := d.findEntry(id)
	if err != nil {
		return nil, err
	}
	return logfile.Read(ctx, filepath.Join(e.dir, logFile), d.options.LogFiles, o), nil
}

// Update changes the limits of an instance. Nothing else of a process can be changed.
func (d *Driver) Update(ctx context.Context, i driver.Instance) (driver.Observed, error) {
	if _, _, err := d.findEntry(i.ID); err != nil {
		return driver.Observed{ID: i.ID}, err
	}
	return d.operate(ctx, i.ID, func(_ context.Context, e *entry) error {
		if i.Workload == nil || (i.Workload.Memory == e.spec.Memory && i.Workload.MilliCPU == e.spec.MilliCPU) {
			return nil
		}
		return d.changeLimits(e, i.Workload.Memory, i.Workload.MilliCPU)
	})
}

// Close cancels operations in progress and releases the root; instances keep running. A
// canceled Start may still succeed: the next driver of the root then finds the instance.
func (d *Driver) Close() error {
	if !d.gate.Shut() {
		return nil
	}
	d.gate.Wait()
	d.exits.close()
	d.memory.Release() // the next driver creates it again
	return d.rootLock.Close()
}

var errClosed = errors.New("the process driver is closed")

// operate runs one operation on an instance, after any other operation on it, and returns
// the resulting state.
func (d *Driver) operate(ctx context.Context, id string, work func(context.Context, *entry) error) (driver.Observed, error) {
	if err := checkID(id); err != nil {
		return driver.Observed{ID: id}, err
	}
	ctx, leave, err := d.gate.Enter(ctx)
	if err != nil {
		return driver.Observed{ID: id}, err
	}
	defer leave()
	e, err := d.acquire(ctx, id)
	if err != nil {
		return driver.Observed{ID: id}, err
	}
	defer e.release()
	err = work(ctx, e)
	o := e.observed
	o.ID = id
	d.dropUnused(e)
	return o, err
}

// acquire reserves an instance for one operation, and creates its entry if there is none.
func (d *Driver) acquire(ctx context.Context, id string) (*entry, error) {
	for {
		d.mu.Lock()
		e := d.entries[id]
		if e == nil {
			e = newEntry(id, filepath.Join(d.root, id))
			d.entries[id] = e
		}
		d.mu.Unlock()
		select {
		case e.op <- struct{}{}:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
		d.mu.Lock()
		current := d.entries[id] == e
		d.mu.Unlock()
		if current {
			return e, nil
		}
		e.release() // it was removed while we waited
	}
}

// dropUnused removes an entry whose instance does not exist after an operation.
func (d *Driver) dropUnused(e *entry) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if e.observed.ID == "" && d.entries[e.id] == e {
		delete(d.entries, e.id)
		d.freePorts(e.id)
		d.freeUID(e.id)
	}
}

// signal sends a signal to the process of a pidfd; it is not an error if the process is
// gone.
func signal(pidfd int, s unix.Signal) {
	_ = unix.PidfdSendSignal(pidfd, s, nil, 0)
}
