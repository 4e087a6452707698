// Package dummy runs instances that are only records, for load tests, demonstrations and
// the simulator. Their behavior depends only on the options of the workload and a hash,
// never on chance or on the machine.
//
// The package owns its World of dummies, which outlives a driver as processes outlive an
// agent. It starts no goroutine; waits sleep on the given clock, so in virtual time they
// run as the simulator's coroutines. It does not know nodes: lost nodes are handled by
// the agent.
package dummy

import (
	"cmp"
	"context"
	"errors"
	"io"
	"slices"
	"strings"
	"sync"
	"time"

	"mariposa"
	"mariposa/clock"
	"mariposa/driver"
)

var (
	_ driver.Driver         = (*Driver)(nil)
	_ driver.ValuePublisher = (*Driver)(nil)
	_ driver.Crasher        = (*Driver)(nil)
	_ driver.NonBlocker     = (*Driver)(nil)
)

// ErrConfiguredToFail is the error of a dummy that is configured to fail.
var ErrConfiguredToFail = errors.New("the dummy is configured to fail")

var (
	errClosed     = errors.New("the dummy driver is closed")
	errNotRunning = errors.New("the dummy is not running")
)

const (
	reasonStarting = "it is still starting"
	reasonCanceled = "its start was cancelled"
)

// Driver acts on a World. The world's mutex guards its state; events are reported
// without holding it.
type Driver struct {
	world    *World
	clock    clock.Clock
	report   func(driver.Event)
	lost     error // why its simulated engine is lost
	closed   bool
	closing  context.Context //nolint:containedctx // ends with Close, which ends all waits
	close    context.CancelFunc
	sleeping sync.WaitGroup
}

// New attaches a driver to a world. A world has one driver at a time.
func New(w *World, c clock.Clock) *Driver {
	d := &Driver{world: w, clock: c, report: func(driver.Event) {}}
	d.closing, d.close = context.WithCancel(context.Background())
	return d
}

// Compute returns the dummy type.
func (d *Driver) Compute() mariposa.ComputeType { return mariposa.ComputeDummy }

// Capabilities returns what dummies simulate: addresses, volumes and networks, so that
// manifests can be tried, but no commands.
func (d *Driver) Capabilities() mariposa.Capabilities {
	return mariposa.Capabilities{
		Mdata: true, Ports: true, Volumes: true, Networks: true, Images: true, Crash: true, Survives: true, Unbounded: true,
		Updates: []string{"dummy.update_in_place_prop"},
	}
}

// Watch sets the function that receives changes of dummies.
func (d *Driver) Watch(report func(driver.Event)) {
	d.world.mu.Lock()
	defer d.world.mu.Unlock()
	d.report = report
}

// IsNonBlocking reports whether operations on a dummy never wait.
func (d *Driver) IsNonBlocking(id string, w *mariposa.Workload) bool {
	waits := func(k *mariposa.Dummy) bool { return k != nil && (k.Wait > 0 || k.MaxWait > 0) }
	if w != nil && waits(w.Dummy) {
		return false
	}
	d.world.mu.Lock()
	defer d.world.mu.Unlock()
	in := d.world.instances[id]
	return in == nil || !waits(&in.Knobs)
}

// Start creates the dummy, waits as configured, and runs or fails. It has its physical id
// before the wait.
func (d *Driver) Start(ctx context.Context, i driver.Instance) (driver.Observed, error) {
	w := d.world
	w.mu.Lock()
	defer w.mu.Unlock()
	in := w.instances[i.ID]
	if err := d.usableLocked(ctx); err != nil || (in != nil && in.Running) {
		return in.observe(i.ID), err
	}
	if in == nil {
		in = w.make(i)
	}
	in.Attempt++
	in.Knobs, in.values = knobsOf(i), i.Mdata.Values
	if wait := w.wait(in); wait > 0 {
		in.Running, in.Started, in.Finished, in.Exit, in.Reason = false, time.Time{}, time.Time{}, nil, reasonStarting
		err := w.put(in)
		if err == nil {
			err = d.sleep(ctx, wait)
		}
		if err != nil {
			in.Reason = reasonCanceled
			return in.observe(in.ID), err
		}
	}
	return d.run(in, i.ManualRestarts)
}

// run finishes a start, with the mutex held.
func (d *Driver) run(in *instance, manualRestarts int) (driver.Observed, error) {
	in.Running, in.Exit, in.Reason, in.Finished, in.Sick = true, nil, "", time.Time{}, false
	in.Started = d.clock.Now()
	var failure error
	if in.Knobs.Fail {
		failure = ErrConfiguredToFail
		in.Running, in.Finished, in.Reason = false, in.Started, failure.Error()
	} else {
		in.ManualRestarts = manualRestarts
	}
	if err := d.world.put(in); err != nil {
		in.Running, failure = false, err
	}
	return in.observe(in.ID), failure
}

// Update changes update_in_place_prop and the other options after a wait.
func (d *Driver) Update(ctx context.Context, i driver.Instance) (driver.Observed, error) {
	w := d.world
	w.mu.Lock()
	defer w.mu.Unlock()
	in, err := w.instances[i.ID], d.usableLocked(ctx)
	switch {
	case err != nil:
	case in == nil:
		err = driver.ErrNotFound
	case !in.Running:
		err = errNotRunning
	default:
		in.Attempt++
		k := knobsOf(i)
		if err = d.sleep(ctx, w.waitFor(in, k)); err == nil && k.Fail {
			err = ErrConfiguredToFail
		}
		if err == nil {
			in.Knobs = k
			err = w.put(in)
		}
	}
	return in.observe(i.ID), err
}

// PublishValues keeps the values that the dummy could read if it were real.
func (d *Driver) PublishValues(ctx context.Context, id string, values []mariposa.Variable) error {
	d.world.mu.Lock()
	defer d.world.mu.Unlock()
	if err := d.usableLocked(ctx); err != nil {
		return err
	}
	in := d.world.instances[id]
	if in == nil {
		return driver.ErrNotFound
	}
	in.values = values
	return nil
}

// PublishedValues returns the dummy's last values.
func (d *Driver) PublishedValues(_ context.Context, id string) ([]mariposa.Variable, error) {
	d.world.mu.Lock()
	defer d.world.mu.Unlock()
	in := d.world.instances[id]
	if in == nil {
		return nil, driver.ErrNotFound
	}
	return slices.SortedFunc(slices.Values(in.values), func(a, b mariposa.Variable) int { return strings.Compare(a.Name, b.Name) }), nil
}

// Stop stops the dummy at once, always gracefully.
func (d *Driver) Stop(ctx context.Context, id string, _ time.Duration) (driver.Observed, error) {
	d.world.mu.Lock()
	defer d.world.mu.Unlock()
	in, err := d.world.instances[id], d.usableLocked(ctx)
	if err == nil && in != nil && in.Running {
		err = d.end(in, 0, "stopped")
	}
	return in.observe(id), err
}

// Remove stops the dummy, waits as configured, and removes it. A dummy that never ran, or
// whose last start was canceled, has nothing to stop and is removed at once. Remove never
// fails by itself.
func (d *Driver) Remove(ctx context.Context, id string) error {
	w := d.world
	w.mu.Lock()
	defer w.mu.Unlock()
	in := w.instances[id]
	if err := d.usableLocked(ctx); err != nil || in == nil {
		return err
	}
	if in.Running {
		if err := d.end(in, 0, "stopped"); err != nil {
			return err
		}
	}
	in.Attempt++
	if !in.Started.IsZero() {
		if err := d.sleep(ctx, w.wait(in)); err != nil {
			return err
		}
	}
	return w.drop(id)
}

// Crash makes a running dummy end by itself, as if killed.
func (d *Driver) Crash(id string) error {
	return d.changeAndReport(id, func(in *instance) error { return d.end(in, 137, "killed by signal 9") })
}

// SetHealthy makes the health checks of a running dummy pass or fail. After a restart they pass.
func (d *Driver) SetHealthy(id string, healthy bool) error {
	d.world.mu.Lock()
	defer d.world.mu.Unlock()
	in := d.world.instances[id]
	switch {
	case in == nil:
		return driver.ErrNotFound
	case !in.Running:
		return errNotRunning
	}
	in.Sick = !healthy
	return d.world.put(in)
}

// Probe answers a health check: it passes unless the dummy is sick.
func (d *Driver) Probe(_ context.Context, id string, _ *mariposa.HealthCheck) error {
	d.world.mu.Lock()
	defer d.world.mu.Unlock()
	switch in := d.world.instances[id]; {
	case in == nil || !in.Running:
		return errors.New("refused the connection")
	case in.Sick:
		return errors.New("answered 503")
	}
	return nil
}

// Restart makes a running dummy end and run again by itself, as an engine with its own
// restart policy would.
func (d *Driver) Restart(id string) error {
	return d.changeAndReport(id, func(in *instance) error {
		if now := d.clock.Now(); now.After(in.Started) {
			in.Started = now
		} else { // the clock stands still: keep the two runs distinguishable
			in.Started = in.Started.Add(1)
		}
		return d.world.put(in)
	})
}

// Readdress gives a running dummy another address.
func (d *Driver) Readdress(id, address string) error {
	return d.changeAndReport(id, func(in *instance) error {
		in.Addresses = []string{address}
		return d.world.put(in)
	})
}

// changeAndReport changes a running dummy from outside and reports that.
func (d *Driver) changeAndReport(id string, change func(*instance) error) error {
	d.world.mu.Lock()
	in := d.world.instances[id]
	if in == nil || !in.Running {
		d.world.mu.Unlock()
		if in == nil {
			return driver.ErrNotFound
		}
		return errNotRunning
	}
	err := change(in)
	o, report := in.observe(id), d.report
	d.world.mu.Unlock()
	report(driver.Event{Kind: driver.InstanceChanged, Instance: o})
	return err
}

// LoseEngine simulates a daemon that cannot be reached: operations fail, and changes are
// not reported, until restore is called.
func (d *Driver) LoseEngine(reason string) (restore func()) {
	d.world.mu.Lock()
	report := d.report
	d.lost, d.report = errors.New(reason), func(driver.Event) {}
	d.world.mu.Unlock()
	report(driver.Event{Kind: driver.EngineLost, Reason: reason})
	return func() {
		d.world.mu.Lock()
		d.lost, d.report = nil, report
		d.world.mu.Unlock()
		report(driver.Event{Kind: driver.EngineBack})
	}
}

// Usage returns zeros: a record uses nothing.
func (d *Driver) Usage(ctx context.Context, id string) (mariposa.Usage, error) {
	d.world.mu.Lock()
	defer d.world.mu.Unlock()
	if err := d.usableLocked(ctx); err != nil {
		return mariposa.Usage{}, err
	}
	if in := d.world.instances[id]; in == nil || !in.Running {
		return mariposa.Usage{}, driver.ErrNotFound
	}
	return mariposa.Usage{
		At: d.clock.Now(), CPU: new(float64), Memory: new(int64),
		NetworkIn: new(int64), NetworkOut: new(int64), DiskRead: new(int64), DiskWritten: new(int64),
	}, nil
}

// List returns every dummy of the world.
func (d *Driver) List(ctx context.Context) ([]driver.Observed, error) {
	w := d.world
	w.mu.Lock()
	defer w.mu.Unlock()
	if err := d.usableLocked(ctx); err != nil {
		return nil, err
	}
	list := make([]driver.Observed, 0, len(w.instances))
	for id, in := range w.instances {
		list = append(list, in.observe(id))
	}
	slices.SortFunc(list, func(a, b driver.Observed) int { return strings.Compare(a.ID, b.ID) })
	return list, nil
}

// Logs fails: dummies have no logs.
func (d *Driver) Logs(_ context.Context, id string, _ driver.LogOptions) (io.ReadCloser, error) {
	d.world.mu.Lock()
	defer d.world.mu.Unlock()
	if d.world.instances[id] == nil {
		return nil, driver.ErrNotFound
	}
	return nil, driver.ErrNotSupported
}

// Close ends waiting operations; the dummies stay in the world.
func (d *Driver) Close() error {
	d.world.mu.Lock()
	d.closed = true
	d.world.mu.Unlock()
	d.close()
	d.sleeping.Wait()
	return nil
}

// usableLocked returns why no operation can begin, with the mutex held.
func (d *Driver) usableLocked(ctx context.Context) error {
	switch {
	case d.closed:
		return errClosed
	case d.lost != nil:
		return d.lost
	}
	return ctx.Err()
}

// end ends a running dummy, with the mutex held. It has ended even if that could not be
// stored.
func (d *Driver) end(in *instance, code int, reason string) error {
	in.Running, in.Finished, in.Exit, in.Reason = false, d.clock.Now(), &code, reason
	return d.world.put(in)
}

// sleep waits with the mutex released.
func (d *Driver) sleep(ctx context.Context, wait time.Duration) error {
	if wait == 0 {
		return nil
	}
	d.sleeping.Add(1)
	defer d.sleeping.Done()
	d.world.mu.Unlock()
	defer d.world.mu.Lock()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(d.closing, func() { cancel(errClosed) })()
	if err := clock.Sleep(ctx, d.clock, wait); err != nil {
		return cmp.Or(context.Cause(ctx), err)
	}
	return nil
}
