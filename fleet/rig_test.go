package fleet_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"time"

	"mariposa"
	"mariposa/clock/clocktest"
	"mariposa/discover"
	"mariposa/fleet"
	"mariposa/leaktest"
	"mariposa/picture"
	"mariposa/seal"
	"mariposa/store"
	"mariposa/store/memory"
	"mariposa/wire"
)

func TestMain(m *testing.M) {
	slog.SetDefault(slog.New(slog.NewTextHandler(io.Discard, nil))) // the tests cause many warnings
	leaktest.Main(m)
}

// faultyStore is a store that can be made to fail.
type faultyStore struct {
	store.Store
	mu   sync.Mutex
	fail error
	only func(store.Unit) bool // which units fail; nil: all
	lies bool                  // it reports a failure but commits
	slow func()                // takes up time while leases are read

	slowCommit func(store.Unit) // takes up time while a unit is committed
	slowSeize  func()           // takes up time while a session is opened
}

func (m *faultyStore) setFault(err error, only func(store.Unit) bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.fail, m.only = err, only
}

func (m *faultyStore) Commit(ctx context.Context, units ...store.Unit) []store.Result {
	m.mu.Lock()
	fail, only, lies := m.fail, m.only, m.lies
	m.mu.Unlock()
	out := make([]store.Result, len(units))
	for i, u := range units {
		if fail != nil && (only == nil || only(u)) {
			if lies {
				m.Store.Commit(ctx, u)
			}
			out[i].Err = fail
			continue
		}
		if m.slowCommit != nil {
			m.slowCommit(u)
		}
		out[i] = m.Store.Commit(ctx, u)[0]
	}
	return out
}

func (m *faultyStore) Leases(ctx context.Context, prefix string) ([]store.Lease, error) {
	if m.slow != nil {
		m.slow()
	}
	return m.Store.Leases(ctx, prefix)
}

func (m *faultyStore) Seize(ctx context.Context, holder, name string) (store.Lease, error) {
	m.mu.Lock()
	fail := m.fail
	m.mu.Unlock()
	if fail != nil {
		return store.Lease{}, fail
	}
	if m.slowSeize != nil {
		m.slowSeize()
	}
	return m.Store.Seize(ctx, holder, name)
}

// rig is a fleet whose agents are simulated by the test.
type rig struct {
	t     *testing.T
	clk   *clocktest.Virtual
	store *faultyStore
	pic   *picture.Picture
	fleet *fleet.Fleet
	open  []*peer
	by    fleet.Admission // what admits agents
	ring  *seal.Ring
}

func newRig(t *testing.T) *rig {
	t.Helper()
	clk := clocktest.New()
	r := &rig{t: t, clk: clk, store: &faultyStore{Store: memory.New(clk)}, by: fleet.Admission{Own: true}, ring: seal.NewRing()}
	r.boot("r1")
	return r
}

// boot creates a new fleet on the same store.
func (r *rig) boot(replica string) {
	r.t.Helper()
	var err error
	if r.pic, err = picture.Open(r.t.Context(), r.store); err != nil {
		r.t.Fatal(err)
	}
	r.fleet, err = fleet.New(r.t.Context(), fleet.Options{
		Store: r.store, Picture: r.pic, Cache: picture.NewVersionCache(r.store, seal.NewVault(seal.NewRing(), r.store)), Clock: r.clk, Replica: replica, Ring: r.ring,
		Names: discover.NewBook(r.pic, ""),
	})
	if err != nil {
		r.t.Fatal(err)
	}
}

// peer is an agent's end of a session, simulated by a test.
type peer struct {
	r       *rig
	session *fleet.Session
	mu      sync.Mutex
	frames  []wire.Frame
	closed  bool
	woken   bool
	seq     int64
	err     error // that Step ended with
}

func (p *peer) Send(f wire.Frame) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.closed {
		p.frames = append(p.frames, f)
	}
}

func (p *peer) Close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
}

func (p *peer) heard() []wire.Frame {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.frames)
}

func (p *peer) isClosed() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.closed
}

func hello(node string) *wire.Hello {
	return &wire.Hello{
		Protocol: wire.Protocol, Node: node, Name: node, Key: "the secret key of " + node,
		Capacity: mariposa.Resources{Instances: 10, Memory: 1 << 30}, Drivers: []mariposa.ComputeType{mariposa.ComputeDummy},
	}
}

// try opens a session and returns the result.
func (r *rig) try(h *wire.Hello) (*peer, *wire.Bye) {
	p := &peer{r: r, seq: 1}
	s, bye := r.fleet.Open(r.t.Context(), h, r.by, p, func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.woken = true
	})
	p.session = s
	if bye == nil {
		r.open = append(r.open, p)
	}
	return p, bye
}

func (r *rig) connect(node string) *peer {
	r.t.Helper()
	p, bye := r.try(hello(node))
	if bye != nil {
		r.t.Fatalf("%s was refused: %s", node, bye.Reason)
	}
	r.run()
	return p
}

// run follows the feed and steps the sessions until nothing is left to do.
func (r *rig) run() {
	r.t.Helper()
	for busy := true; busy; {
		n, err := r.pic.Advance(r.t.Context())
		if err != nil {
			r.t.Fatal(err)
		}
		busy = n > 0
		for _, p := range r.open {
			p.mu.Lock()
			woken := p.woken
			p.woken = false
			p.mu.Unlock()
			if woken {
				busy = true
				if err := p.session.Step(r.t.Context()); err != nil {
					p.err = err
					p.session.End(err.Error())
				}
			}
		}
	}
}

// say sends a frame to the session, without stepping it.
func (p *peer) say(f wire.Frame) {
	if f.Heartbeat != nil {
		f.Heartbeat.Sent = p.seq
	} else {
		p.seq++
		f.Seq = p.seq
	}
	p.session.Receive(f)
}

func (p *peer) report(items ...wire.Status) {
	p.say(wire.Frame{Report: &wire.Report{Items: items}})
	p.r.run()
}

func statusItem(id string, state mariposa.State) wire.Status {
	return wire.Status{ID: id, Status: mariposa.InstanceStatus{State: state, Generation: 1}}
}

// assigned returns all assignments that the agent received, in order.
func (p *peer) assigned() (out []wire.Assignment) {
	for _, f := range p.heard() {
		if f.Assign != nil {
			out = append(out, f.Assign.Items...)
		}
	}
	return out
}

func (r *rig) commit(ws ...store.Write) {
	r.t.Helper()
	if res := r.store.Store.Commit(r.t.Context(), store.Unit{Writes: ws})[0]; res.Err != nil {
		r.t.Fatal(res.Err)
	}
	r.run()
}

const manifestBody = `services:
  web:
    compute_type: dummy
    environment: ["SCALE={{.scale}}"]
  own:
    compute_type: dummy
    environment: ["ME={{.instance.uuid}}"]
`

func (r *rig) project(id, body string) {
	r.t.Helper()
	r.commit(
		store.Write{Kind: mariposa.KindProject, ID: id, Project: id, Spec: &mariposa.ProjectSpec{Name: "shop", Organization: "default", Number: 1}},
		store.Write{Kind: mariposa.KindVersion, ID: mariposa.VersionID(id, 1), Project: id, Spec: &mariposa.VersionSpec{Project: id, Number: 1, Manifest: []byte(body)}})
}

func instance(id, node, service string) *mariposa.InstanceSpec {
	return &mariposa.InstanceSpec{
		Name: service + ".1-" + id, Slot: 1, Project: "p", Service: "s-" + service, ServiceName: service, Number: 1,
		Compute: mariposa.ComputeDummy, Node: node, Goal: mariposa.GoalRunning, Generation: 1, Managed: true, Memory: 1 << 20,
	}
}

func put(id string, spec *mariposa.InstanceSpec) store.Write {
	return store.Write{Kind: mariposa.KindInstance, ID: id, Project: spec.Project, Spec: spec}
}

func (r *rig) status(id string) *mariposa.InstanceStatus {
	r.t.Helper()
	rec, err := r.store.Get(r.t.Context(), mariposa.KindInstance, id)
	if err != nil {
		r.t.Fatal(err)
	}
	st, _ := rec.Status.(*mariposa.InstanceStatus)
	if st == nil {
		return &mariposa.InstanceStatus{}
	}
	return st
}

func (r *rig) node(id string) (*mariposa.NodeSpec, *mariposa.NodeStatus) {
	r.t.Helper()
	rec, err := r.store.Get(r.t.Context(), mariposa.KindNode, id)
	if err != nil {
		r.t.Fatal(err)
	}
	return rec.Spec.(*mariposa.NodeSpec), rec.Status.(*mariposa.NodeStatus)
}

func (r *rig) amend(id string, f func(*mariposa.NodeSpec)) {
	r.t.Helper()
	spec, _ := r.node(id)
	next := *spec
	f(&next)
	r.commit(store.Write{Kind: mariposa.KindNode, ID: id, Spec: &next})
}

// remove does what `mariposa node rm` does.
func (r *rig) remove(id string) {
	r.t.Helper()
	r.commit(store.Write{Kind: mariposa.KindNode, ID: id, Delete: true})
}

var errTest = errors.New("the store fails")

func ids(n int) []string {
	out := make([]string, n)
	for i := range out {
		out[i] = fmt.Sprintf("i%04d", i)
	}
	return out
}

// pass lets time pass, with the ticks of the fleet.
func (r *rig) pass(d time.Duration) {
	r.t.Helper()
	for step := time.Second; d > 0; d -= step {
		r.clk.Pass(min(d, step))
		r.fleet.Tick(r.t.Context())
		r.run()
	}
}
