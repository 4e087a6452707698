// Package haproxy runs load balancers, with HAProxy. Each instance is one HAProxy, started and
// supervised as a plain process of this machine by package process: it outlives the agent, and an
// agent that is killed at any moment finds it again. HAProxy opens its ports and then runs as a
// user without privileges.
//
// Members are changed over the control socket of HAProxy, without reloads. One loop for each
// balancer compares what HAProxy has with what it should have, at every change and every few
// seconds, so that changes by hand are corrected. The members are also stored, so that a restarted
// HAProxy has them from its first moment. Only a change of the routes reloads it, which loses no
// connection either.
//
// A balancer with an address is an external HAProxy: nothing is started, and the same loop uses
// that socket.
//
// The package owns the directory Options.Dir, and a directory in memory with the configurations,
// certificates and sockets. It does not know why an instance is a member.
package haproxy

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"math"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"time"

	"mariposa"
	"mariposa/driver"
	"mariposa/driver/gate"
	"mariposa/driver/memdir"
	"mariposa/driver/process"
)

var (
	_ driver.Driver         = (*Driver)(nil)
	_ driver.Conditional    = (*Driver)(nil)
	_ driver.ValuePublisher = (*Driver)(nil)
	_ driver.Balancer       = (*Driver)(nil)
)

// Options configure a driver.
type Options struct {
	Dir string // a directory of its own, created if missing
	// Addresses are the control sockets of external balancers that projects may use: paths of
	// sockets, or host:port.
	Addresses []string
	// Interval is how often a balancer is compared with what it should be; 2 s if zero.
	Interval time.Duration
	// StallLimit is for how long HAProxy may fail to answer before it is restarted; 30 s if zero.
	StallLimit time.Duration
}

// Driver runs the load balancers of one node.
type Driver struct {
	options Options
	inner   *process.Driver
	memory  *memdir.Dir
	gate    *gate.Gate

	supportMu sync.Mutex
	support   support

	mu      sync.Mutex
	entries map[string]*entry
	report  func(driver.Event)
	closed  bool
}

var errClosed = errors.New("the driver of load balancers is closed")

// New opens a directory and finds the balancers that run or have ended there. Only one driver may
// have a directory open.
func New(o Options) (*Driver, error) {
	if o.Dir == "" {
		return nil, errors.New("the driver of load balancers needs a directory")
	}
	dir, err := filepath.Abs(o.Dir)
	if err == nil {
		err = os.MkdirAll(filepath.Join(dir, recordsDir), 0o700)
	}
	if err != nil {
		return nil, fmt.Errorf("cannot create the directory of the load balancers: %w", err)
	}
	o.Dir = dir
	if o.Interval == 0 {
		o.Interval = 2 * time.Second
	}
	if o.StallLimit == 0 {
		o.StallLimit = 30 * time.Second
	}
	inner, err := process.New(process.Options{Root: filepath.Join(dir, "instances"), Isolation: process.IsolationOff})
	if err != nil {
		return nil, err
	}
	d := &Driver{options: o, inner: inner, memory: memdir.New(dir, memdir.Places()), gate: gate.New(errClosed), entries: map[string]*entry{}}
	if err := d.loadRecords(); err != nil {
		_ = inner.Close()
		return nil, err
	}
	return d, nil
}

// Compute returns the compute type balancer.
func (*Driver) Compute() mariposa.ComputeType { return mariposa.ComputeBalancer }

// Capabilities returns what balancers can do.
func (*Driver) Capabilities() mariposa.Capabilities {
	return mariposa.Capabilities{Logs: true, Mdata: true, Ports: true, Survives: true}
}

// Watch sets the function that receives ends and changed members, and takes over the balancers
// that run.
func (d *Driver) Watch(report func(driver.Event)) {
	d.mu.Lock()
	d.report = report
	d.mu.Unlock()
	d.inner.Watch(d.handleEvent)
	list, _ := d.inner.List(d.gate.Context()) // the agent lists them too, and reports an error
	for _, o := range list {
		if e := d.entry(o.ID); e != nil && o.Running {
			d.adopt(e, o)
		}
	}
	d.mu.Lock()
	all := slices.Collect(maps.Values(d.entries))
	d.mu.Unlock()
	for _, e := range all {
		if e.isExternal() && e.observed().Running {
			d.follow(e)
		}
	}
	d.gate.Go(d.awaitSupport)
}

// handleEvent passes on what happened to a process.
func (d *Driver) handleEvent(event driver.Event) {
	if event.Kind == driver.InstanceChanged {
		e := d.entry(event.Instance.ID)
		if e == nil {
			return
		}
		if !event.Instance.Running {
			e.unfollow()
		}
		event.Instance = d.note(e, event.Instance)
		e.mu.Lock()
		quiet := e.quiet
		e.mu.Unlock()
		if quiet {
			return
		}
	}
	d.tell(event)
}

func (d *Driver) tell(event driver.Event) {
	d.mu.Lock()
	report := d.report
	d.mu.Unlock()
	if report != nil {
		report(event)
	}
}

// note completes what the process driver observed of a balancer, and keeps it.
func (d *Driver) note(e *entry, o driver.Observed) driver.Observed {
	e.mu.Lock()
	defer e.mu.Unlock()
	o.Addresses, o.Details = nil, maps.Clone(o.Details)
	if o.Running {
		for _, p := range e.config.Listen {
			o.Addresses = append(o.Addresses, net.JoinHostPort("127.0.0.1", strconv.Itoa(p)))
		}
		o.Members = withoutCounters(e.statuses)
	}
	if o.Details == nil {
		o.Details = map[string]string{}
	}
	delete(o.Details, "isolation")
	delete(o.Details, mariposa.BalancerProblem) // it may be what was noted before
	if e.problem != "" {
		o.Details[mariposa.BalancerProblem] = e.problem
	}
	e.seen = o
	return o
}

// List returns every balancer of this node.
func (d *Driver) List(ctx context.Context) ([]driver.Observed, error) {
	list, err := d.inner.List(ctx)
	if err != nil {
		return nil, err
	}
	for n, o := range list {
		if e := d.entry(o.ID); e != nil {
			list[n] = d.note(e, o)
		}
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, e := range d.entries {
		if e.isExternal() && e.record.ID != "" {
			list = append(list, e.observed())
		}
	}
	slices.SortFunc(list, func(a, b driver.Observed) int { return compareIDs(a.ID, b.ID) })
	return list, nil
}

// Start writes the configuration of a balancer, and starts its HAProxy.
func (d *Driver) Start(ctx context.Context, i driver.Instance) (driver.Observed, error) {
	none := driver.Observed{ID: i.ID}
	ctx, leave, err := d.gate.Enter(ctx)
	if err != nil {
		return none, err
	}
	defer leave()
	if err := checkID(i.ID); err != nil {
		return none, err
	}
	if e := d.entry(i.ID); e != nil && e.observed().Running {
		if i.Members == nil {
			return e.observed(), nil
		}
		return e.observed(), d.SetMembers(ctx, i.ID, i.Members)
	}
	wanted, problem, err := d.valuesForStart(ctx, &i)
	if err != nil {
		return none, err
	}
	e := d.makeEntry(i)
	if i.Members != nil {
		e.setMembers(i.Members)
	}
	if wanted.config.Address != "" {
		return d.startExternal(e, i, wanted)
	}
	if why := d.Unavailable(); why != "" {
		d.dropUnused(e)
		return none, errors.New("this node cannot run it: " + why)
	}
	if err := d.prepare(e, wanted, problem); err != nil {
		d.dropUnused(e)
		return none, err
	}
	return d.launch(ctx, e, i)
}

// launch starts HAProxy, and waits until it answers.
func (d *Driver) launch(ctx context.Context, e *entry, i driver.Instance) (driver.Observed, error) {
	w := mariposa.Workload{Compute: mariposa.ComputeProcess, Command: d.command(e), StopTimeout: 10 * time.Second}
	if i.Workload != nil {
		w.Memory, w.MilliCPU, w.Tags = i.Workload.Memory, i.Workload.MilliCPU, i.Workload.Tags
	}
	i.Workload, i.Mdata.URL, i.Mdata.Token = &w, "", ""
	_, err := d.find(ctx, i.ID)
	first := err != nil
	e.expectEnd(true)
	o, err := d.inner.Start(ctx, i)
	if err == nil {
		if err = d.awaitSocket(ctx, e); err != nil && ctx.Err() == nil {
			o = d.undoStart(ctx, e, first)
		}
	}
	e.expectEnd(false)
	if err != nil {
		d.dropUnused(e)
		return d.note(e, o), err
	}
	o = d.note(e, o)
	d.follow(e)
	if now, err := d.find(ctx, e.id); err == nil && !now.Running { // it ended after its answer
		d.handleEvent(driver.Event{Kind: driver.InstanceChanged, Instance: now})
	}
	return o, nil
}

// undoStart ends an HAProxy that does not answer. Nothing is left of a first start.
func (d *Driver) undoStart(ctx context.Context, e *entry, first bool) driver.Observed {
	o, err := d.inner.Stop(ctx, e.id, 0)
	if err == nil && first && d.inner.Remove(ctx, e.id) == nil {
		return driver.Observed{ID: e.id}
	}
	return o
}

// startTimeout is how long HAProxy may take until it answers.
const startTimeout = 20 * time.Second

// awaitSocket waits until HAProxy answers, or returns why it does not.
func (d *Driver) awaitSocket(ctx context.Context, e *entry) error {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	for {
		if _, err := e.socket().ask(ctx, "show info"); err == nil {
			return nil
		}
		if o, err := d.find(ctx, e.id); err != nil || !o.Running {
			return errors.New("HAProxy " + d.lastWords(ctx, e.id))
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("HAProxy did not answer within %s", startTimeout)
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// find returns the process of a balancer.
func (d *Driver) find(ctx context.Context, id string) (driver.Observed, error) {
	list, err := d.inner.List(ctx)
	if err != nil {
		return driver.Observed{}, err
	}
	if n := slices.IndexFunc(list, func(o driver.Observed) bool { return o.ID == id }); n >= 0 {
		return list[n], nil
	}
	return driver.Observed{}, driver.ErrNotFound
}

// Update changes the limits of a running HAProxy. Everything else that can change in place comes with
// the live values.
func (d *Driver) Update(ctx context.Context, i driver.Instance) (driver.Observed, error) {
	e := d.entry(i.ID)
	switch {
	case d.gate.IsShut():
		return driver.Observed{ID: i.ID}, errClosed
	case e == nil:
		return driver.Observed{ID: i.ID}, driver.ErrNotFound
	case e.isExternal() || i.Workload == nil:
		return e.observed(), nil
	}
	i.Workload = &mariposa.Workload{Compute: mariposa.ComputeProcess, Memory: i.Workload.Memory, MilliCPU: i.Workload.MilliCPU}
	o, err := d.inner.Update(ctx, i)
	if err != nil {
		return e.observed(), err
	}
	return d.note(e, o), nil
}

// Stop lets a balancer finish its connections, and ends it after the timeout.
func (d *Driver) Stop(ctx context.Context, id string, timeout time.Duration) (driver.Observed, error) {
	e := d.entry(id)
	if e == nil {
		return driver.Observed{ID: id}, nil
	}
	if e.isExternal() {
		return d.stopExternal(e)
	}
	ctx, leave, err := d.gate.Enter(ctx)
	if err != nil {
		return driver.Observed{ID: id}, err
	}
	defer leave()
	e.expectEnd(true)
	defer e.expectEnd(false)
	if timeout < 0 {
		timeout = math.MaxInt64
	}
	if timeout > 0 {
		if err := d.finish(ctx, e, timeout); err != nil {
			return e.observed(), err
		}
	}
	e.unfollow()
	o, err := d.inner.Stop(ctx, id, min(timeout, quitTimeout))
	return d.note(e, o), err
}

// quitTimeout is how long HAProxy may take to end at once.
const quitTimeout = 2 * time.Second

// Remove ends a balancer, and removes everything of it.
func (d *Driver) Remove(ctx context.Context, id string) error {
	e := d.entry(id)
	if e == nil {
		return d.inner.Remove(ctx, id)
	}
	ctx, leave, err := d.gate.Enter(ctx)
	if err != nil {
		return err
	}
	defer leave()
	e.expectEnd(true)
	defer e.expectEnd(false)
	e.unfollow()
	if e.isExternal() {
		d.clearExternal(ctx, e)
	} else if err := d.inner.Remove(ctx, id); err != nil {
		return err
	}
	if err := errors.Join(os.RemoveAll(d.runDir(id)), removeRecord(d.recordFile(id))); err != nil {
		return fmt.Errorf("cannot remove the files of a load balancer: %w", err)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.entries, id)
	return nil
}

// Logs reads what HAProxy has written. An external balancer has no log here.
func (d *Driver) Logs(ctx context.Context, id string, o driver.LogOptions) (io.ReadCloser, error) {
	if e := d.entry(id); e != nil && e.isExternal() {
		return nil, driver.ErrNotSupported
	}
	return d.inner.Logs(ctx, id, o)
}

// Usage measures a balancer, with the counters of its members.
func (d *Driver) Usage(ctx context.Context, id string) (mariposa.Usage, error) {
	e := d.entry(id)
	if e == nil || !e.observed().Running {
		return mariposa.Usage{}, driver.ErrNotFound
	}
	u := mariposa.Usage{At: time.Now().UTC()}
	if !e.isExternal() {
		var err error
		if u, err = d.inner.Usage(ctx, id); err != nil {
			return u, err
		}
	}
	members, err := d.readMembers(ctx, e)
	if err != nil {
		slog.Warn("cannot read the counters of a load balancer", "instance", id, "err", err)
	}
	u.Balancer = &mariposa.BalancerUsage{Members: members}
	return u, nil
}

// Close ends the loops of the driver; balancers keep running.
func (d *Driver) Close() error {
	if !d.gate.Shut() {
		return nil
	}
	d.mu.Lock()
	all := slices.Collect(maps.Values(d.entries))
	d.closed = true
	d.mu.Unlock()
	for _, e := range all {
		e.unfollow()
	}
	d.gate.Wait()
	d.memory.Release()
	return d.inner.Close()
}

// SetMembers sets what members a balancer should have.
func (d *Driver) SetMembers(_ context.Context, id string, members []mariposa.Member) error {
	e := d.entry(id)
	if e == nil {
		return driver.ErrNotFound
	}
	if err := checkMembers(members); err != nil {
		return err
	}
	e.setMembers(members)
	err := d.storeRecord(e)
	e.wakeUp()
	return err
}
