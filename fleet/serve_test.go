package fleet_test

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/coder/websocket"

	"mariposa"
	"mariposa/agent"
	"mariposa/clock"
	"mariposa/driver"
	"mariposa/driver/dummy"
	"mariposa/fleet"
	"mariposa/picture"
	"mariposa/seal"
	"mariposa/store"
	"mariposa/store/memory"
	"mariposa/wire"
)

// steady is the clock of the tests. The machine's clock may be set back while they run.
var steady = clock.NewSteady()

// testServer is a control plane without an engine, over loopback.
type testServer struct {
	t       *testing.T
	ctx     context.Context //nolint:containedctx // the life of the test
	store   *memory.Store
	pic     *picture.Picture
	fleet   *fleet.Fleet
	url     string
	client  *http.Client
	dials   atomic.Int32
	serving sync.WaitGroup // connections of agents
	token   string         // what admits agents is the join token with this id; nothing stored if empty
	mu      sync.Mutex
	conns   []*websocket.Conn
}

// quick is the heartbeat interval of agents whose loss must be noticed soon.
const quick = time.Second

func newTestServer(t *testing.T, beat time.Duration) *testServer {
	t.Helper()
	st := memory.New(steady)
	p := newTestReplica(t, beat, st, st, "r1")
	t.Cleanup(func() { _ = st.Close() })
	return p
}

// newTestReplica returns one of several control planes on a store. Its fleet uses the store
// by way of another one.
func newTestReplica(t *testing.T, beat time.Duration, st *memory.Store, way store.Store, name string) *testServer {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
	p := &testServer{t: t, ctx: ctx, store: st, client: &http.Client{Transport: &http.Transport{}}}
	var err error
	if p.pic, err = picture.Open(ctx, p.store); err != nil {
		t.Fatal(err)
	}
	p.fleet, err = fleet.New(ctx, fleet.Options{
		Store: way, Picture: p.pic, Cache: picture.NewVersionCache(p.store, seal.NewVault(seal.NewRing(), p.store)), Clock: steady, Replica: name, Beat: beat,
	})
	if err != nil {
		t.Fatal(err)
	}
	var all sync.WaitGroup
	all.Go(func() { _ = p.pic.Follow(ctx, time.Hour, func(int) {}) })
	all.Go(func() { p.fleet.Run(ctx) })
	srv := httptest.NewServer(http.HandlerFunc(p.serve))
	p.url = srv.URL
	t.Cleanup(func() {
		cancel()
		all.Wait()
		srv.Close()
		p.client.CloseIdleConnections()
	})
	return p
}

func (p *testServer) serve(w http.ResponseWriter, r *http.Request) {
	p.dials.Add(1)
	if r.URL.Path != agent.Path || r.Header.Get("Authorization") != "Bearer the join token" {
		w.WriteHeader(http.StatusUnauthorized)
		return
	}
	conn, err := websocket.Accept(w, r, nil)
	if err != nil {
		return
	}
	p.mu.Lock()
	p.conns = append(p.conns, conn)
	p.mu.Unlock()
	p.serving.Add(1)
	defer p.serving.Done()
	by := fleet.Admission{Own: true}
	if p.token != "" {
		by = fleet.Admission{Token: p.pic.Tokens.Get(p.token)}
	}
	p.fleet.Serve(r.Context(), conn, by)
}

// dial connects as an agent would.
func (p *testServer) dial() (*wire.Pipe, *websocket.Conn) {
	p.t.Helper()
	conn, _, err := websocket.Dial(p.ctx, strings.Replace(p.url, "http", "ws", 1)+agent.Path, &websocket.DialOptions{
		HTTPClient: p.client, HTTPHeader: http.Header{"Authorization": {"Bearer the join token"}},
	})
	if err != nil {
		p.t.Fatal(err)
	}
	return wire.NewPipe(p.ctx, conn), conn
}

// until waits for the picture to show something.
func (p *testServer) until(what string, ok func() bool) {
	p.t.Helper()
	for {
		at := p.pic.Revision()
		if ok() {
			return
		}
		select {
		case <-p.pic.Moved(at):
		case <-p.ctx.Done():
			p.t.Fatalf("%s: never", what)
		}
	}
}

func (p *testServer) epoch(node string) int64 {
	if r := p.pic.Get(mariposa.KindNode, node); r != nil {
		if st, _ := r.Status.(*mariposa.NodeStatus); st != nil && st.State == mariposa.NodeRunning {
			return st.Epoch
		}
	}
	return 0
}

func (p *testServer) state(id string) mariposa.State {
	r := p.pic.Get(mariposa.KindInstance, id)
	if r == nil {
		return ""
	}
	st, _ := r.Status.(*mariposa.InstanceStatus)
	return mariposa.StateOf(r.Spec.(*mariposa.InstanceSpec), st)
}

func (p *testServer) commit(ws ...store.Write) {
	p.t.Helper()
	if res := p.store.Commit(p.ctx, store.Unit{Writes: ws})[0]; res.Err != nil {
		p.t.Fatal(res.Err)
	}
}

// agent runs a node until stop is called, which returns the result of Run.
func (p *testServer) agent(token string, h wire.Hello, drivers ...driver.Driver) (stop func() error) {
	ctx, cancel := context.WithCancel(p.ctx)
	ended := make(chan error, 1)
	go func() {
		ended <- agent.Run(ctx, agent.Link{Servers: []string{p.url + "/"}, Token: token, Client: p.client}, agent.Options{Hello: h, Drivers: drivers, Clock: steady})
	}()
	return sync.OnceValue(func() error {
		cancel()
		return <-ended
	})
}

// refused runs a node that is expected to stop by itself.
func (p *testServer) refused(token string, h wire.Hello, drivers ...driver.Driver) error {
	p.t.Helper()
	ended := make(chan error, 1)
	go func() {
		ended <- agent.Run(p.ctx, agent.Link{Servers: []string{p.url}, Token: token, Client: p.client}, agent.Options{Hello: h, Drivers: drivers, Clock: steady})
	}()
	select {
	case err := <-ended:
		return err
	case <-time.After(time.Minute):
		p.t.Fatal("the agent still tries")
		return nil
	}
}

func TestInstancesComeUpOverARealConnectionAndOutliveIt(t *testing.T) {
	t.Parallel()
	p := newTestServer(t, quick)
	world := dummy.NewWorld(1)
	d := dummy.New(world, steady)
	stop := p.agent("the join token", *hello("n1"), d)
	t.Cleanup(func() { _ = stop() })
	p.until("the node joins", func() bool { return p.epoch("n1") == 1 })
	p.commit(
		store.Write{Kind: mariposa.KindProject, ID: "p", Project: "p", Spec: &mariposa.ProjectSpec{Name: "shop", Organization: "default", Number: 1}},
		store.Write{Kind: mariposa.KindVersion, ID: mariposa.VersionID("p", 1), Project: "p", Spec: &mariposa.VersionSpec{Project: "p", Number: 1, Manifest: []byte(manifestBody)}},
		put("i1", instance("i1", "n1", "web")), put("i2", instance("i2", "n1", "own")))
	up := func() bool {
		return p.state("i1") == mariposa.StateRunning && p.state("i2") == mariposa.StateRunning
	}
	p.until("they come up", up)
	before, err := d.List(p.ctx)
	if err != nil || len(before) != 2 {
		t.Fatalf("%+v, %v", before, err)
	}
	p.mu.Lock()
	_ = p.conns[0].CloseNow()
	p.mu.Unlock()
	p.until("the node is back", func() bool { return p.epoch("n1") == 2 })
	if !up() {
		t.Error("they did not survive it")
	}
	gone := instance("i2", "n1", "own")
	gone.Goal, gone.Generation = mariposa.GoalGone, 2
	p.commit(put("i2", gone))
	p.until("one goes", func() bool { return p.state("i2") == mariposa.StateDestroyed })
	after, err := d.List(p.ctx)
	if err != nil || len(after) != 1 || after[0].Started != before[0].Started || !after[0].Running {
		t.Errorf("%+v, before %+v, %v", after, before, err)
	}
	log, err := p.fleet.Logs(p.ctx, "n1", "i1", mariposa.LogOptions{Tail: 10})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := log.Read(make([]byte, 10)); err == nil || !strings.Contains(err.Error(), "not supported") {
		t.Errorf("the log of a dummy: %v", err)
	}
	_ = log.Close()
	if err := p.fleet.Crash(p.ctx, "n1", wire.Crash{Instance: "i1"}); err != nil {
		t.Fatal(err)
	}
	p.until("it crashes", func() bool { return p.state("i1") == mariposa.StateFailed })
	if err := stop(); err != nil {
		t.Errorf("the agent ended with %v", err)
	}
	if world.Len() != 1 {
		t.Error("what it had ended with it")
	}
	p.until("the node is missed", func() bool {
		r := p.pic.Get(mariposa.KindNode, "n1")
		return r.Status.(*mariposa.NodeStatus).State == mariposa.NodeUnknown
	})
}

func TestAWrongJoinTokenIsAFinalRefusal(t *testing.T) {
	t.Parallel()
	p := newTestServer(t, quick)
	err := p.refused("a guess", *hello("n1"), dummy.New(dummy.NewWorld(1), steady))
	if err == nil || !strings.Contains(err.Error(), "join token is invalid") {
		t.Errorf("got %v", err)
	}
	if p.dials.Load() != 1 {
		t.Errorf("it tried %d times", p.dials.Load())
	}
}

func TestAFinalRefusalReachesTheAgent(t *testing.T) {
	t.Parallel()
	p := newTestServer(t, quick)
	stop := p.agent("the join token", *hello("n1"), dummy.New(dummy.NewWorld(1), steady))
	p.until("the node joins", func() bool { return p.epoch("n1") == 1 })
	other := hello("n1")
	other.Key = "a key from another machine"
	err := p.refused("the join token", *other, dummy.New(dummy.NewWorld(2), steady))
	if err == nil || !strings.Contains(err.Error(), "registered with another key") {
		t.Errorf("got %v", err)
	}
	if err := stop(); err != nil {
		t.Errorf("the first ended with %v", err)
	}
}

type cannotList struct{ *dummy.Driver }

var errCannotList = errors.New("the disk is broken")

func (cannotList) List(context.Context) ([]driver.Observed, error) { return nil, errCannotList }

func TestAnAgentThatCannotListNeverConnects(t *testing.T) {
	t.Parallel()
	p := newTestServer(t, quick)
	err := p.refused("the join token", *hello("n1"), cannotList{dummy.New(dummy.NewWorld(1), steady)})
	if !errors.Is(err, errCannotList) || p.dials.Load() != 0 {
		t.Errorf("got %v after %d dials", err, p.dials.Load())
	}
}

func TestWhoDoesNotSayHelloIsSentAway(t *testing.T) {
	t.Parallel()
	p := newTestServer(t, quick)
	pipe, _ := p.dial()
	defer pipe.Close()
	pipe.Send(wire.Frame{Heartbeat: &wire.Heartbeat{}})
	f, err := pipe.Read(p.ctx)
	if err != nil || f.Bye == nil || !f.Bye.Final {
		t.Errorf("got %+v, %v", f, err)
	}
	if _, err := pipe.Read(p.ctx); err == nil {
		t.Error("the connection goes on")
	}
}
