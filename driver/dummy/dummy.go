// Package dummy makes instances that are nothing but a record: they carry load
// tests, demonstrations and the simulator. Everything about them is decided by
// the workload's knobs and a hash, never by chance or by the machine.
//
// The package owns its World of dummies, which outlives a driver as processes
// outlive an agent. It starts no goroutine: what has to wait stands in one heap
// with one timer of the clock it was given, so in virtual time it runs on the
// simulator's thread alone. It refuses to know nodes; a lost one is the agent's
// business.
package dummy

import (
	"context"
	"errors"
	"io"
	"slices"
	"strings"
	"time"

	"mariposa"
	"mariposa/clock"
	"mariposa/driver"
)

var (
	_ driver.Driver = (*Driver)(nil)
	_ driver.Teller = (*Driver)(nil)
)

// ErrToldToFail is what a dummy with the fail knob answers.
var ErrToldToFail = errors.New("dummy told to fail")

var (
	errClosed     = errors.New("the dummy driver is closed")
	errNotRunning = errors.New("the dummy does not run")
)

const (
	reasonUnderWay = "its start is under way"
	reasonGivenUp  = "its start was given up"
)

// Driver acts on a World. Its state is guarded by the world's mutex; callbacks
// are called without it.
type Driver struct {
	world  *World
	clock  clock.Clock
	ended  func(driver.Observed)
	waits  waits
	closed bool
}

// New attaches a driver to a world. One at a time, like agents on a node.
func New(w *World, c clock.Clock) *Driver {
	d := &Driver{world: w, clock: c}
	_, machine := c.(clock.Real)
	d.waits = waits{clock: c, fire: d.fire, hooks: machine}
	return d
}

// Compute says that it makes dummies.
func (d *Driver) Compute() mariposa.ComputeType { return mariposa.ComputeDummy }

// Watch sets who is told when a dummy crashes.
func (d *Driver) Watch(ended func(driver.Observed)) {
	d.world.mu.Lock()
	defer d.world.mu.Unlock()
	d.ended = ended
}

// Start makes the dummy, waits as it is told to, and runs or fails. It has its
// physical id before the wait.
func (d *Driver) Start(ctx context.Context, i driver.Instance, done func(driver.Observed, error)) {
	w := d.world
	w.mu.Lock()
	in := w.instances[i.ID]
	if err := d.refuses(ctx); err != nil || (in != nil && in.Running) {
		o := in.observe(i.ID)
		w.mu.Unlock()
		done(o, err)
		return
	}
	if in == nil {
		in = w.make(i)
	}
	in.Attempt++
	in.Knobs, in.values = knobs(i), i.Mdata.Values
	wait := w.wait(in)
	if wait == 0 {
		o, err := d.run(in, i.Bounces)
		w.mu.Unlock()
		done(o, err)
		return
	}
	d.startLater(ctx, in, i.Bounces, wait, done)
}

// startLater is the start of a dummy that waits. It is called with the mutex
// held and lets it go. Apart from Start, whose short way it would burden.
func (d *Driver) startLater(ctx context.Context, in *instance, bounces int, wait time.Duration, done func(driver.Observed, error)) {
	in.Running, in.Started, in.Finished, in.Exit, in.Reason = false, time.Time{}, time.Time{}, nil, reasonUnderWay
	if err := d.world.put(in); err != nil {
		o := in.observe(in.ID)
		d.world.mu.Unlock()
		done(o, err)
		return
	}
	d.after(ctx, wait, func(err error) func() {
		if err != nil {
			in.Reason = reasonGivenUp
			o := in.observe(in.ID)
			return func() { done(o, err) }
		}
		o, err := d.run(in, bounces)
		return func() { done(o, err) }
	})
}

// run is the end of a start, under the mutex.
func (d *Driver) run(in *instance, bounces int) (driver.Observed, error) {
	in.Running, in.Exit, in.Reason, in.Finished = true, nil, "", time.Time{}
	in.Started = d.clock.Now()
	var failure error
	if in.Knobs.Fail {
		failure = ErrToldToFail
		in.Running, in.Finished, in.Reason = false, in.Started, failure.Error()
	} else {
		in.Bounces = bounces
	}
	if err := d.world.put(in); err != nil {
		in.Running, failure = false, err
	}
	return in.observe(in.ID), failure
}

// Update changes update_in_place_prop and the other knobs after a wait.
func (d *Driver) Update(ctx context.Context, i driver.Instance, done func(driver.Observed, error)) {
	w := d.world
	w.mu.Lock()
	in := w.instances[i.ID]
	err := d.refuses(ctx)
	switch {
	case err != nil:
	case in == nil:
		err = driver.ErrNotFound
	case !in.Running:
		err = errNotRunning
	}
	if err != nil {
		o := in.observe(i.ID)
		w.mu.Unlock()
		done(o, err)
		return
	}
	in.Attempt++
	k := knobs(i)
	d.after(ctx, w.waitFor(in, k), func(err error) func() {
		switch {
		case err != nil:
		case k.Fail:
			err = ErrToldToFail
		default:
			in.Knobs = k
			err = w.put(in)
		}
		o := in.observe(i.ID)
		return func() { done(o, err) }
	})
}

// Tell keeps what the dummy could read if it were more than a record.
func (d *Driver) Tell(ctx context.Context, id string, values []mariposa.Variable, done func(error)) {
	d.world.mu.Lock()
	in, err := d.world.instances[id], d.refuses(ctx)
	switch {
	case err != nil:
	case in == nil:
		err = driver.ErrNotFound
	default:
		in.values = values
	}
	d.world.mu.Unlock()
	done(err)
}

// Told is what the dummy was told last.
func (d *Driver) Told(_ context.Context, id string) ([]mariposa.Variable, error) {
	d.world.mu.Lock()
	defer d.world.mu.Unlock()
	in := d.world.instances[id]
	if in == nil {
		return nil, driver.ErrNotFound
	}
	return slices.SortedFunc(slices.Values(in.values), func(a, b mariposa.Variable) int { return strings.Compare(a.Name, b.Name) }), nil
}

// Stop ends the dummy at once; it always goes gently.
func (d *Driver) Stop(ctx context.Context, id string, _ time.Duration, done func(driver.Observed, error)) {
	w := d.world
	w.mu.Lock()
	in := w.instances[id]
	err := d.refuses(ctx)
	if err == nil && in != nil && in.Running {
		err = d.end(in, 0, "stopped")
	}
	o := in.observe(id)
	w.mu.Unlock()
	done(o, err)
}

// Remove ends the dummy, waits as it is told to, and takes it away. It never
// fails by itself.
func (d *Driver) Remove(ctx context.Context, id string, done func(error)) {
	w := d.world
	w.mu.Lock()
	in := w.instances[id]
	if err := d.refuses(ctx); err != nil || in == nil {
		w.mu.Unlock()
		done(err)
		return
	}
	if in.Running {
		if err := d.end(in, 0, "stopped"); err != nil {
			w.mu.Unlock()
			done(err)
			return
		}
	}
	in.Attempt++
	d.after(ctx, w.wait(in), func(err error) func() {
		if err == nil {
			err = w.drop(id)
		}
		return func() { done(err) }
	})
}

// Crash makes a running dummy end by itself, as if killed.
func (d *Driver) Crash(id string) error {
	w := d.world
	w.mu.Lock()
	in := w.instances[id]
	if in == nil || !in.Running {
		w.mu.Unlock()
		if in == nil {
			return driver.ErrNotFound
		}
		return errNotRunning
	}
	err := d.end(in, 137, "killed by signal 9")
	o, ended := in.observe(id), d.ended
	w.mu.Unlock()
	if ended != nil {
		ended(o)
	}
	return err
}

// List reports every dummy of the world.
func (d *Driver) List(ctx context.Context) ([]driver.Observed, error) {
	w := d.world
	w.mu.Lock()
	defer w.mu.Unlock()
	if err := d.refuses(ctx); err != nil {
		return nil, err
	}
	list := make([]driver.Observed, 0, len(w.instances))
	for id, in := range w.instances {
		list = append(list, in.observe(id))
	}
	slices.SortFunc(list, func(a, b driver.Observed) int { return strings.Compare(a.ID, b.ID) })
	return list, nil
}

// Logs are nothing that a dummy has.
func (d *Driver) Logs(_ context.Context, id string, _ driver.LogOptions) (io.ReadCloser, error) {
	d.world.mu.Lock()
	defer d.world.mu.Unlock()
	if d.world.instances[id] == nil {
		return nil, driver.ErrNotFound
	}
	return nil, driver.ErrNotSupported
}

// Close gives up what waits; the dummies stay in the world.
func (d *Driver) Close() error {
	d.world.mu.Lock()
	d.closed = true
	left := d.waits.clear()
	d.world.mu.Unlock()
	for _, x := range left {
		x.end(errClosed)
	}
	return nil
}

// refuses says why no operation can begin, under the mutex.
func (d *Driver) refuses(ctx context.Context) error {
	if d.closed {
		return errClosed
	}
	return ctx.Err()
}

// end is the end of a running dummy, under the mutex. It has ended even when
// the world could not write that down.
func (d *Driver) end(in *instance, code int, reason string) error {
	in.Running, in.Finished, in.Exit, in.Reason = false, d.clock.Now(), &code, reason
	return d.world.put(in)
}

// after runs f under the mutex, now or after a wait, and then what f returns
// without it. It is called with the mutex held and lets it go.
func (d *Driver) after(ctx context.Context, wait time.Duration, f func(error) func()) {
	if wait == 0 {
		answer := f(nil)
		d.world.mu.Unlock()
		answer()
		return
	}
	d.wait(ctx, wait, func(err error) {
		d.world.mu.Lock()
		answer := f(err)
		d.world.mu.Unlock()
		answer()
	})
	d.world.mu.Unlock()
}
