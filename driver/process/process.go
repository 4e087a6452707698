// Package process runs instances as processes of this machine, isolated from it and
// from each other. Each one has a directory and a small supervisor (the shim: our own
// binary, started as `mariposa shim DIR`) that outlives the agent: it holds the
// directory's lock, starts the command, keeps its log, and records how it ended. So
// an agent killed at any moment finds every instance again, with its pid and later
// its exit code, and none is ever run twice.
//
// The command of an isolated instance runs behind an init (init.go): the first
// process of namespaces of its own, which builds the instance's view of the file
// system (rootfs.go) and starts the command without rights (confine.go,
// seccomp.go). The namespaces end with the init, and so does all that ran in them.
//
// Commands and environments may hold secrets, so they are on no disk: the agent
// hands them to the shim in memory, and a later start brings them again. What is
// recorded of an instance (record.go) is enough to find it, never to start it. Files and values that it is given lie in
// a private folder, on a file system in memory where the machine has one.
//
// The package owns the directories below its root, the volumes, the processes that carry
// that root in their environment, and their cgroups. It refuses to know what
// is wanted of an instance, and touches no process that it cannot prove to be
// its own by start time, label or cgroup.
package process

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"mariposa"
	"mariposa/driver"
)

var _ driver.Driver = (*Driver)(nil)

// Options say where a driver keeps its instances and how much of their logs.
type Options struct {
	Root     string // a directory of its own, made when missing
	Volumes  string // where volumes are kept, made with the first; .volumes below Root if empty
	Networks string // likewise of networks; .networks below Root if empty
	// Hidden are folders that no instance sees, whatever else it is shown; Root,
	// Volumes and Networks always are.
	Hidden    []string
	Isolation Isolation
	UIDs      UIDs     // whom isolated instances run as, by an agent that is root; DefaultUIDs if zero
	Paths     []string // folders and files that isolated instances can read beside those of the system
	TmpSize   int64    // bytes that an isolated instance may have in /tmp, and in /dev/shm; 0: 64 MiB
	Processes int64    // how many processes and threads it may have; 0: 1024

	LogSize  int64 // bytes after which a log is rotated; 0: 8 MiB
	LogFiles int   // how many files of that size are kept; 0: 3
}

// Driver is the agent's side: it starts and signals shims. One epoll loop reports
// when they end.
type Driver struct {
	root       string
	memory     *memory
	executable string
	options    Options
	hierarchy  hierarchy
	boot       string
	rootLock   *os.File
	exits      *exits
	walls      walls
	hidden     []string // folders that no instance sees, without symbolic links

	mapMu    sync.Mutex
	mappable map[uint64]bool // whether a file system can show files as another's, by device

	ctx    context.Context // ends with Close
	cancel context.CancelFunc
	work   sync.WaitGroup // operations in flight

	mu          sync.Mutex
	entries     map[string]*entry
	ports       map[int]string // given to which instance
	uids        map[int]string // likewise
	reportEvent func(driver.Event)
	unreported  []driver.Event // from before anyone watched
	closed      bool
}

// New opens a root and finds again what runs or has ended there. Only one
// driver may have a root open: a second one is an error.
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
		root: root, executable: executable, options: o,
		hierarchy: findHierarchy(), boot: bootID(), memory: &memory{places: memoryPlaces(), root: root},
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
	// A fork that the killed agent had under way may hold the lock for a moment.
	if d.rootLock, err = lockWithin(filepath.Join(root, ".lock"), 2*time.Second); err != nil {
		return nil, fmt.Errorf("cannot use %s: another agent has it open: %w", root, err)
	}
	if d.exits, err = watchExits(d.shimGone); err != nil {
		_ = d.rootLock.Close()
		return nil, err
	}
	d.ctx, d.cancel = context.WithCancel(context.Background())
	if err := d.adoptAll(); err != nil {
		_ = d.Close()
		return nil, err
	}
	return d, nil
}

// openRoot makes the root and returns it free of symbolic links, because it is
// compared with what processes carry in their environment.
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

// Compute says that it makes processes.
func (d *Driver) Compute() mariposa.ComputeType { return mariposa.ComputeProcess }

// Capabilities are those of processes.
func (d *Driver) Capabilities() mariposa.Capabilities {
	return mariposa.Capabilities{Logs: true, Exec: true, Mdata: true, Ports: true, Volumes: true, Networks: true, Survives: true}
}

// Watch sets the callback for ends: the one thing that happens to a process by
// itself. It must not wait for an operation on the instance that it is called for.
// There is no engine that could be lost.
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

// List reports every instance below the root, and every process that carries
// the root in its environment though its directory is gone.
func (d *Driver) List(ctx context.Context) ([]driver.Observed, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if err := d.adoptStrays(); err != nil {
		return nil, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
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

// Update has nothing it could change in a running process: the same workload
// is reported as it is, other limits are refused.
func (d *Driver) Update(ctx context.Context, i driver.Instance) (driver.Observed, error) {
	if _, _, err := d.findEntry(i.ID); err != nil {
		return driver.Observed{ID: i.ID}, err
	}
	return d.operate(ctx, i.ID, func(_ context.Context, e *entry) error {
		if i.Workload == nil || (i.Workload.Memory == e.spec.Memory && i.Workload.MilliCPU == e.spec.MilliCPU) {
			return nil
		}
		return fmt.Errorf("the limits of a running process cannot be changed: %w", driver.ErrNotSupported)
	})
}

// Close ends what is in flight and lets the root go; instances run on. A Start
// in flight may still come true: the next driver on the root finds it.
func (d *Driver) Close() error {
	d.mu.Lock()
	if d.closed {
		d.mu.Unlock()
		return nil
	}
	d.closed = true
	d.mu.Unlock()
	d.cancel()
	d.work.Wait()
	d.exits.close()
	_ = os.Remove(d.memory.dir) // if it is empty: the next driver makes it again
	return d.rootLock.Close()
}

var errClosed = errors.New("the process driver is closed")

// operate runs one operation on an instance, after whatever is under way on the
// same instance, and says how it is then.
func (d *Driver) operate(ctx context.Context, id string, work func(context.Context, *entry) error) (driver.Observed, error) {
	if err := checkID(id); err != nil {
		return driver.Observed{ID: id}, err
	}
	ctx, leave, err := d.enter(ctx)
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

// enter lets Close wait for what begins now, and ends its context then.
func (d *Driver) enter(ctx context.Context) (_ context.Context, leave func(), err error) {
	if err := ctx.Err(); err != nil {
		return nil, nil, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return nil, nil, errClosed
	}
	d.work.Add(1)
	ctx, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(d.ctx, func() { cancel(errClosed) })
	return ctx, func() {
		stop()
		cancel(nil)
		d.work.Done()
	}, nil
}

// acquire takes an instance for one operation, making its entry when there is none.
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

// dropUnused forgets an entry that an operation has left without an instance.
func (d *Driver) dropUnused(e *entry) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if e.observed.ID == "" && d.entries[e.id] == e {
		delete(d.entries, e.id)
		d.freePorts(e.id)
		d.freeUID(e.id)
	}
}

// signal sends a signal to the process behind a pidfd; one that is gone is no error.
func signal(pidfd int, s unix.Signal) {
	_ = unix.PidfdSendSignal(pidfd, s, nil, 0)
}
