package agent_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"mariposa"
	"mariposa/agent"
	"mariposa/clock/clocktest"
	"mariposa/driver"
	"mariposa/driver/dummy"
	"mariposa/leaktest"
	"mariposa/wire"
)

func TestMain(m *testing.M) {
	slog.SetDefault(slog.New(slog.DiscardHandler)) // the tests cause many warnings
	leaktest.Main(m)
}

// conn is the server's end of a connection, simulated by a test.
type conn struct {
	mu     sync.Mutex
	frames []wire.Frame
	closed bool
	seq    int64
}

func (c *conn) Send(f wire.Frame) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.frames = append(c.frames, f)
}

func (c *conn) Close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closed = true
}

func (c *conn) Abort() { c.Close() }

func (c *conn) isClosed() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.closed
}

// sent returns the frames that the node has sent so far.
func (c *conn) sent() []wire.Frame {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.frames)
}

// rig is one node with the test as its server.
type rig struct {
	t        *testing.T
	clk      *clocktest.Virtual
	world    *dummy.World
	dummy    *dummy.Driver
	extra    []driver.Driver
	slots    int
	node     *agent.Node
	conn     *conn
	woken    atomic.Bool
	wakes    chan struct{}
	inc      string
	mdata    string  // where instances read their values
	own      bool    // the node shares nothing with other clusters
	away     *string // why the engine of the dummy driver is away, if it has one
	unlisted bool    // its engine goes away before it can be listed, and nothing says so
	tell     func(driver.Event)
}

func newRig(t *testing.T, extra ...driver.Driver) *rig {
	t.Helper()
	r := &rig{t: t, clk: clocktest.New(), world: dummy.NewWorld(1), extra: extra, inc: "first", wakes: make(chan struct{}, 1)}
	t.Cleanup(r.clk.Forget) // operations that tests leave in progress
	r.boot()
	return r
}

// shared is a driver that is shared with other clusters.
type shared struct{ *dummy.Driver }

func (s shared) List(ctx context.Context) ([]driver.Observed, error) {
	all, err := s.Driver.List(ctx)
	for i := range all {
		all[i].Shared = true
	}
	return all, err
}

// boot starts or restarts the agent. Running instances outlive it.
func (r *rig) boot() {
	r.t.Helper()
	r.clk.Forget() // the timers of the previous agent
	r.dummy = dummy.New(r.world, r.clk)
	for _, d := range r.extra {
		if h, ok := d.(interface {
			suspendBy(f func(arm func(wake func())) error)
		}); ok {
			h.suspendBy(r.clk.Suspend)
		}
	}
	r.node = agent.NewNode(agent.Options{
		Hello: wire.Hello{Node: "n1", Name: "n1", Key: "the key of the node"}, Drivers: append([]driver.Driver{r.place()}, r.extra...),
		Clock: r.clk, Wake: r.wake, Slots: r.slots, Mdata: r.mdata, Spawn: r.clk.Go,
	})
	if err := r.node.List(r.t.Context()); err != nil {
		r.t.Fatal(err)
	}
}

// engined is a driver with an engine that may be away.
type engined struct {
	*dummy.Driver
	r *rig
}

func (e engined) Unavailable() string { return *e.r.away }

func (e engined) Details() map[string]string { return map[string]string{"engine": "1.0"} }

func (e engined) Watch(report func(driver.Event)) {
	e.r.tell = report
	e.Driver.Watch(report)
}

func (e engined) List(ctx context.Context) ([]driver.Observed, error) {
	if *e.r.away != "" {
		return nil, errors.New(*e.r.away)
	}
	if e.r.unlisted {
		return nil, fmt.Errorf("list instances: %w", driver.ErrEngineAway)
	}
	return e.Driver.List(ctx)
}

// setEngine makes the engine go away for a reason, or come back.
func (r *rig) setEngine(why string) {
	*r.away = why
	if why != "" {
		r.tell(driver.Event{Kind: driver.EngineLost, Reason: why})
	} else {
		r.tell(driver.Event{Kind: driver.EngineBack})
	}
	r.run()
}

// abilities returns what the node last said that it can run, over the current connection.
func (r *rig) abilities() (drivers []mariposa.ComputeType, offers map[mariposa.ComputeType]mariposa.Offer) {
	for _, f := range r.conn.sent() {
		switch {
		case f.Hello != nil:
			drivers, offers = f.Hello.Drivers, f.Hello.Offers
		case f.Report != nil && f.Report.Abilities != nil:
			drivers, offers = f.Report.Abilities.Drivers, f.Report.Abilities.Offers
		}
	}
	return drivers, offers
}

func (r *rig) place() driver.Driver {
	if r.away != nil {
		return engined{r.dummy, r}
	}
	if r.own {
		return r.dummy
	}
	return shared{r.dummy}
}

func (r *rig) wake() {
	r.woken.Store(true)
	select {
	case r.wakes <- struct{}{}:
	default:
	}
}

// linger lets time pass while the server responds to heartbeats.
func (r *rig) linger(d time.Duration) {
	for end := r.clk.Now().Add(d); r.clk.Now().Before(end); {
		r.pass(5 * time.Second)
		r.say(wire.Frame{Heartbeat: &wire.Heartbeat{}})
	}
}

// run lets the node process its mailbox.
func (r *rig) run() {
	for r.woken.Swap(false) {
		r.node.Step(r.t.Context())
	}
}

func (r *rig) pass(d time.Duration) {
	until := r.clk.Now().Add(d)
	for do := r.clk.Next(until); do != nil; do = r.clk.Next(until) {
		do()
		r.run()
	}
}

// dial opens a connection without a response.
func (r *rig) dial() *conn {
	r.t.Helper()
	r.conn = &conn{}
	r.node.Connected(r.conn)
	r.run()
	if f := r.conn.sent(); len(f) != 1 || f[0].Hello == nil || f[0].Seq != 1 {
		r.t.Fatalf("the node did not say hello: %+v", f)
	}
	return r.conn
}

// say sends the next frame to the node.
func (r *rig) say(f wire.Frame) {
	if f.Heartbeat != nil {
		f.Heartbeat.Sent = r.conn.seq
	} else {
		r.conn.seq++
		f.Seq = r.conn.seq
	}
	r.node.Receive(r.conn, f)
	r.run()
}

// connect opens a session with a snapshot.
func (r *rig) connect(items ...wire.Assignment) *conn {
	r.t.Helper()
	c := r.dial()
	r.say(wire.Frame{Welcome: &wire.Welcome{Epoch: 1, Cluster: "ours", Incarnation: r.inc, HeartbeatInterval: 5 * time.Second}})
	r.say(wire.Frame{Assign: &wire.Assign{Snapshot: true, Last: true, Items: items, Workloads: workloads(items)}})
	return c
}

func (r *rig) assign(items ...wire.Assignment) {
	r.say(wire.Frame{Assign: &wire.Assign{Items: items, Workloads: workloads(items)}})
}

// kept are the workloads of the tests, by key.
var kept sync.Map

func workloads(items []wire.Assignment) map[string]*mariposa.Workload {
	out := map[string]*mariposa.Workload{}
	for _, it := range items {
		if w, ok := kept.Load(it.Workload); ok {
			out[it.Workload] = w.(*mariposa.Workload)
		}
	}
	return out
}

var workloadNo atomic.Int64

func work(w mariposa.Workload) string {
	key := "w" + time.Duration(workloadNo.Add(1)).String()
	kept.Store(key, &w)
	return key
}

func dummyWork() string { return work(mariposa.Workload{Compute: mariposa.ComputeDummy}) }

func wanted(id string, generation int64, workload string) wire.Assignment {
	return wire.Assignment{ID: id, Name: "web." + id, Project: "shop", Service: "web", Generation: generation, Goal: mariposa.GoalRunning, Workload: workload}
}

func unwanted(id string, generation int64) wire.Assignment {
	return wire.Assignment{ID: id, Name: "web." + id, Generation: generation, Goal: mariposa.GoalGone}
}

func halted(id string, generation int64, workload string) wire.Assignment {
	it := wanted(id, generation, workload)
	it.Goal = mariposa.GoalHalted
	return it
}

// withManualRestarts returns an assignment that requests a total number of restarts.
func withManualRestarts(it wire.Assignment, n int) wire.Assignment {
	it.ManualRestarts = n
	return it
}

func known(it wire.Assignment, st mariposa.InstanceStatus) wire.Assignment {
	it.Status = &st
	return it
}

// statuses returns the last reported status of each instance over the current
// connection.
func (r *rig) statuses() map[string]mariposa.InstanceStatus {
	out := map[string]mariposa.InstanceStatus{}
	for _, f := range r.conn.sent() {
		if f.Report != nil {
			for _, it := range f.Report.Items {
				out[it.ID] = it.Status
			}
		}
	}
	return out
}

// states lists the states that an instance went through, as reported.
func (r *rig) states(id string) []mariposa.State {
	var out []mariposa.State
	for _, f := range r.conn.sent() {
		if f.Report == nil {
			continue
		}
		for _, it := range f.Report.Items {
			if it.ID == id && (len(out) == 0 || out[len(out)-1] != it.Status.State) {
				out = append(out, it.Status.State)
			}
		}
	}
	return out
}

// quarantine returns the newest inventory.
func (r *rig) quarantine() []mariposa.Quarantined {
	for _, f := range slices.Backward(r.conn.sent()) {
		if f.Report != nil && f.Report.Inventory {
			return f.Report.Quarantined
		}
	}
	r.t.Fatal("no inventory was sent")
	return nil
}

func (r *rig) wantState(id string, state mariposa.State) mariposa.InstanceStatus {
	r.t.Helper()
	st, ok := r.statuses()[id]
	if !ok || st.State != state {
		r.t.Fatalf("%s is %q (%s), want %s", id, st.State, st.Reason, state)
	}
	return st
}

// real returns the state of an instance in the driver.
func (r *rig) real(id string) (driver.Observed, bool) {
	r.t.Helper()
	all, err := r.dummy.List(r.t.Context())
	if err != nil {
		r.t.Fatal(err)
	}
	for _, o := range all {
		if o.ID == id {
			return o, true
		}
	}
	return driver.Observed{}, false
}

func (r *rig) crash(id string) {
	r.t.Helper()
	if err := r.dummy.Crash(id); err != nil {
		r.t.Fatal(err)
	}
	r.run()
}

// make adds a dummy to the world without the agent.
func (r *rig) make(id, cluster, incarnation string) {
	r.t.Helper()
	labels := driver.Labels{Cluster: cluster, Incarnation: incarnation}
	if _, err := dummy.New(r.world, r.clk).Start(r.t.Context(), driver.Instance{ID: id, Labels: labels}); err != nil {
		r.t.Fatal(err)
	}
}

// manualDriver is a driver whose operations end when the test decides.
type manualDriver struct {
	suspend     func(arm func(wake func())) error // of the rig's clock
	mu          sync.Mutex
	calls       []*call
	log         []string
	list        []driver.Observed
	kept        map[string][]mariposa.Variable // what PublishedValues returns
	fail        error                          // of List
	reportEvent func(driver.Event)
	logs        func(ctx context.Context, id string) (io.ReadCloser, error)
}

type call struct {
	what, id string
	instance driver.Instance     // of a start or an update
	values   []mariposa.Variable // of a PublishValues
	timeout  time.Duration       // of a stop
	ctx      context.Context     //nolint:containedctx // of a start or a stop
	wake     func()
	members  []mariposa.Member
	o        driver.Observed // what it answers
	err      error
	over     bool
}

var (
	_ driver.Driver         = (*manualDriver)(nil)
	_ driver.ValuePublisher = (*manualDriver)(nil)
)

// do waits until the test ends the call.
func (h *manualDriver) do(c *call) (driver.Observed, error) {
	err := h.suspend(func(wake func()) {
		c.wake = wake
		h.mu.Lock()
		defer h.mu.Unlock()
		h.calls = append(h.calls, c)
		h.log = append(h.log, c.what+" "+c.id)
	})
	if err != nil {
		return driver.Observed{ID: c.id}, err
	}
	return c.o, c.err
}

// last returns the newest call of a kind.
func (h *manualDriver) last(t *testing.T, what string) *call {
	t.Helper()
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, c := range slices.Backward(h.calls) {
		if c.what == what {
			return c
		}
	}
	t.Fatalf("there was no %s: %v", what, h.log)
	return nil
}

// changed notifies the agent of an instance that has changed by itself.
func (h *manualDriver) changed(o driver.Observed) {
	h.reportEvent(driver.Event{Kind: driver.InstanceChanged, Instance: o})
}

func (h *manualDriver) Compute() mariposa.ComputeType { return mariposa.ComputeProcess }

func (h *manualDriver) Capabilities() mariposa.Capabilities {
	return mariposa.Capabilities{Logs: true, Mdata: true, Survives: true}
}

func (h *manualDriver) Start(ctx context.Context, i driver.Instance) (driver.Observed, error) {
	return h.do(&call{what: "start", id: i.ID, instance: i, ctx: ctx})
}

func (h *manualDriver) Update(_ context.Context, i driver.Instance) (driver.Observed, error) {
	return h.do(&call{what: "update", id: i.ID, instance: i})
}

func (h *manualDriver) Stop(ctx context.Context, id string, timeout time.Duration) (driver.Observed, error) {
	return h.do(&call{what: "stop", id: id, timeout: timeout, ctx: ctx})
}

func (h *manualDriver) Remove(_ context.Context, id string) error {
	_, err := h.do(&call{what: "remove", id: id})
	return err
}

func (h *manualDriver) PublishValues(_ context.Context, id string, values []mariposa.Variable) error {
	_, err := h.do(&call{what: "publish", id: id, values: values})
	return err
}

func (h *manualDriver) PublishedValues(_ context.Context, id string) ([]mariposa.Variable, error) {
	if list, ok := h.kept[id]; ok {
		return list, nil
	}
	return nil, driver.ErrNotFound
}
func (h *manualDriver) List(context.Context) ([]driver.Observed, error) { return h.list, h.fail }
func (h *manualDriver) Watch(report func(driver.Event))                 { h.reportEvent = report }
func (h *manualDriver) Close() error                                    { return nil }

func (h *manualDriver) Usage(context.Context, string) (mariposa.Usage, error) {
	return mariposa.Usage{}, driver.ErrNotSupported
}

func (h *manualDriver) Logs(ctx context.Context, id string, _ driver.LogOptions) (io.ReadCloser, error) {
	if h.logs == nil {
		return nil, driver.ErrNotFound
	}
	return h.logs(ctx, id)
}

// suspendBy sets the function that makes operations wait.
func (h *manualDriver) suspendBy(f func(arm func(wake func())) error) { h.suspend = f }

// underWay lists the operations in progress.
func (h *manualDriver) underWay() []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	var out []string
	for _, c := range h.calls {
		if !c.over {
			out = append(out, c.what+" "+c.id)
		}
	}
	return out
}

// end ends an operation in progress.
func (r *rig) end(h *manualDriver, what, id string, o driver.Observed, err error) {
	r.t.Helper()
	h.mu.Lock()
	at := slices.IndexFunc(h.calls, func(c *call) bool { return !c.over && c.what == what && c.id == id })
	if at < 0 {
		h.mu.Unlock()
		r.t.Fatalf("no %s of %s is under way: %v", what, id, h.log)
	}
	c := h.calls[at]
	c.over = true
	h.mu.Unlock()
	o.ID = id
	c.o, c.err = o, err
	c.wake()
	r.run()
}

func (h *manualDriver) want(t *testing.T, what ...string) {
	t.Helper()
	if got := h.underWay(); !slices.Equal(got, what) {
		t.Fatalf("under way: %v, want %v", got, what)
	}
}

func processWork() string { return work(mariposa.Workload{Compute: mariposa.ComputeProcess}) }

var errBroken = errors.New("the disk is broken")
