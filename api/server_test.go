package api_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"

	"mariposa"
	"mariposa/agent"
	"mariposa/api"
	"mariposa/auth"
	"mariposa/clock"
	"mariposa/contract"
	"mariposa/driver"
	"mariposa/driver/dummy"
	"mariposa/engine"
	"mariposa/fleet"
	"mariposa/history"
	"mariposa/leaktest"
	"mariposa/listener"
	"mariposa/picture"
	"mariposa/seal"
	"mariposa/store"
	"mariposa/store/memory"
	"mariposa/wire"
)

// steady is the clock of the tests. The machine's clock may be set back while they run.
var steady = clock.NewSteady()

func TestMain(m *testing.M) { leaktest.Main(m) }

const (
	adminToken = "the-admin-token"
	joinToken  = "the-join-token"
)

// testServer is a server over real HTTP with a store in memory. It runs no planner by
// default, so that tests see exactly what the API itself did.
type testServer struct {
	t        testing.TB
	ctx      context.Context
	store    store.Store
	picture  *picture.Picture
	vault    *seal.Vault
	fleet    *fleet.Fleet
	history  *history.Recorder
	url      string
	http     *http.Client
	logs     *lockedBuffer
	token    string // whose calls are made with
	ring     *seal.Ring
	settings settings
}

type option func(*settings)

type settings struct {
	planner bool
	wrap    func(store.Store) store.Store
	clock   clock.Clock
	keep    int
	approve bool
	pending int // nodes that may wait without a join token
	listen  func(net.Listener) net.Listener
	limits  api.Limits
	proxies listener.Proxies
	metrics prometheus.Gatherer
	oidc    *api.OIDC
	// Request timeout and heartbeat interval; zero: the defaults of
	// production.
	requestTimeout, heartbeat time.Duration
}

func withPlanner(s *settings) { s.planner = true }

// withClock sets the clock of the API.
func withClock(c clock.Clock) option { return func(s *settings) { s.clock = c } }

// keepVersions sets how many versions the API keeps.
func keepVersions(versions int) option { return func(s *settings) { s.keep = versions } }

func withStore(wrap func(store.Store) store.Store) option {
	return func(s *settings) { s.wrap = wrap }
}

func newTestServer(t testing.TB, options ...option) *testServer {
	t.Helper()
	sample(t)
	set := settings{
		clock: steady, metrics: prometheus.NewRegistry(),
		limits:         api.Limits{RequestRate: 1 << 20}, // tests walk every route as everybody
		requestTimeout: 5 * time.Minute,                  // a busy machine is no fault of the API
	}
	for _, o := range options {
		o(&set)
	}
	h := &testServer{t: t, store: memory.New(steady), logs: &lockedBuffer{}, token: adminToken, ring: seal.NewRing(), settings: set}
	if set.wrap != nil {
		h.store = set.wrap(h.store)
	}
	h.open()
	return h
}

// sample skips three of four tests under the race detector, always the same ones: all of
// them run the same concurrent code, and take several times as long there.
func sample(t testing.TB) {
	t.Helper()
	name, _, _ := strings.Cut(t.Name(), "/")
	if testing.Short() && crc32.ChecksumIEEE([]byte(name))%4 > 0 {
		t.Skip("the run without the race detector has it")
	}
}

// long marks a slow sequential test. It is skipped under the race detector, where it
// would take several times as long and find nothing.
func long(t *testing.T) {
	t.Helper()
	if testing.Short() {
		t.Skip("the run without the race detector has it")
	}
}

// restart opens the same store as a restarted server or a second replica would.
func (h *testServer) restart() *testServer {
	other := *h
	other.open()
	return &other
}

// open starts everything over the store, until the test ends.
func (h *testServer) open() {
	t, set := h.t, h.settings
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	h.ctx, h.http, h.vault = ctx, &http.Client{Transport: &http.Transport{}}, seal.NewVault(h.ring, h.store)
	admin := mariposa.TokenSpec{Use: mariposa.TokenAdmin, Name: "admin.token", User: mariposa.FirstUser, Created: time.Now()}
	err := errors.Join(h.vault.Check(ctx, h.store, time.Now()), auth.EnsureFirst(ctx, h.store, time.Now()), auth.EnsureToken(ctx, h.store, adminToken, admin, "a test"))
	if err != nil {
		t.Fatal(err)
	}
	h.picture = must(picture.Open(ctx, h.store))(t)
	cache := picture.NewVersionCache(h.store, h.vault)
	h.picture.Subscribe(cache.Invalidate)
	h.fleet = must(fleet.New(ctx, fleet.Options{
		Store: h.store, Picture: h.picture, Cache: cache, Clock: steady, Replica: "r1", Beat: 5 * time.Second, ApproveNodes: set.approve, PendingNodes: set.pending, Ring: h.ring,
	}))(t)
	var all sync.WaitGroup
	runner := engine.NewRunner(4)
	e := engine.New(engine.Options{Store: h.store, Picture: h.picture, Cache: cache, Clock: steady, NewID: newID, Wake: runner.Wake, Holder: "r1"})
	h.history = history.New(history.Options{Picture: h.picture, Used: e.Used, Clock: steady})
	if set.planner {
		all.Go(func() { runner.Run(ctx, e) })
	}
	all.Go(func() { _ = h.picture.Follow(ctx, time.Hour, func(int) {}) })
	all.Go(func() { h.fleet.Run(ctx) })
	server := httptest.NewUnstartedServer(api.New(api.Options{
		Store: h.store, Picture: h.picture, Cache: cache, Fleet: h.fleet, History: h.history, Clock: set.clock, NewID: newID, KeepVersions: set.keep, Limits: set.limits, Proxies: set.proxies,
		Vault: h.vault, Place: e.Place, Trial: e.Trial, JoinToken: joinToken, Version: "test", Metrics: set.metrics,
		RequestTimeout: set.requestTimeout, Heartbeat: set.heartbeat, OIDC: set.oidc,
		Logger: slog.New(slog.NewTextHandler(h.logs, &slog.HandlerOptions{Level: slog.LevelDebug})),
	}))
	server.Config.BaseContext = func(net.Listener) context.Context { return ctx }
	if set.listen != nil {
		server.Listener = set.listen(server.Listener)
	}
	server.Start()
	h.url = server.URL
	client := h.http
	t.Cleanup(func() {
		cancel()
		client.CloseIdleConnections()
		server.Close()
		all.Wait()
	})
}

// as returns a client of the same server with another token.
func (h *testServer) as(token string) *testServer {
	other := *h
	other.token = token
	return &other
}

func newID() string { return uuid.Must(uuid.NewV7()).String() }

func must[T any](v T, err error) func(testing.TB) T {
	return func(t testing.TB) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

// reply is a response with its whole body.
type reply struct {
	t      testing.TB
	status int
	header http.Header
	body   []byte
}

// call sends a request with the server's current token, by default the admin's. A
// string body is sent as it is, anything else as JSON; headers are pairs.
func (h *testServer) call(method, path string, body any, headers ...string) reply {
	h.t.Helper()
	var r io.Reader
	kind := ""
	switch b := body.(type) {
	case nil:
	case string:
		r, kind = strings.NewReader(b), "application/yaml"
	case []byte:
		r, kind = bytes.NewReader(b), "application/json"
	default:
		r, kind = bytes.NewReader(must(json.Marshal(b))(h.t)), "application/json"
	}
	req := must(http.NewRequestWithContext(h.ctx, method, h.url+path, r))(h.t)
	req.Header.Set("Authorization", "Bearer "+h.token)
	if kind != "" {
		req.Header.Set("Content-Type", kind)
	}
	for i := 0; i+1 < len(headers); i += 2 {
		if headers[i+1] == "" {
			req.Header.Del(headers[i])
		} else {
			req.Header.Set(headers[i], headers[i+1])
		}
	}
	res := must(h.http.Do(req))(h.t)
	defer res.Body.Close()
	return reply{t: h.t, status: res.StatusCode, header: res.Header, body: must(io.ReadAll(res.Body))(h.t)}
}

// want checks the status and decodes the response.
func want[T any](r reply, status int) T {
	r.t.Helper()
	var doc T
	if r.status != status {
		r.t.Fatalf("answered %d instead of %d: %s", r.status, status, r.body)
	}
	if err := json.Unmarshal(r.body, &doc); err != nil {
		r.t.Fatalf("%v in %s", err, r.body)
	}
	return doc
}

type failure struct {
	Code    mariposa.Code    `json:"code"`
	Message string           `json:"message"`
	Errors  []mariposa.Fault `json:"errors"`
}

// wantError checks that a response is an error of the contract.
func (r reply) wantError(status int, code mariposa.Code, parts ...string) failure {
	r.t.Helper()
	f := want[failure](r, status)
	if f.Code != code || f.Message == "" || f.Errors == nil || r.header.Get("Content-Type") != "application/json" {
		r.t.Fatalf("not a failure of code %s in the words of the contract: %s", code, r.body)
	}
	for _, p := range parts {
		if !strings.Contains(f.Message, p) {
			r.t.Fatalf("the message does not say %q: %s", p, f.Message)
		}
	}
	return f
}

const hello = "services:\n  web: {compute_type: dummy, scale: 2}\n  db: {compute_type: dummy}\n"

// create creates a project and returns the response.
func (h *testServer) create(name, manifest string) contract.Changed {
	h.t.Helper()
	return want[contract.Changed](h.call("POST", "/v1/projects?name="+name, manifest), http.StatusCreated)
}

// plan writes what the planner would: the first task is completed and these goals are
// in force.
func (h *testServer) plan(id string, st *mariposa.ProjectStatus) {
	h.t.Helper()
	u := store.Unit{Writes: []store.Write{{Kind: mariposa.KindProject, ID: id, Project: id, Status: st, Event: mariposa.Event{Kind: "project.converged", Project: id}}}}
	for _, r := range h.picture.TasksOf(id) {
		u.Writes = append(u.Writes, store.Write{
			Kind: mariposa.KindTask, ID: r.ID, Archive: true, Status: &mariposa.TaskStatus{State: mariposa.TaskCompleted, Finished: time.Now()},
			Event: mariposa.Event{Kind: "task.completed", Project: id, Task: r.ID},
		})
	}
	h.commit(u)
}

// settled returns the status after the planner has rolled out the first version of hello.
func settled(c contract.Changed) *mariposa.ProjectStatus {
	return &mariposa.ProjectStatus{
		Goal: mariposa.GoalStarted, Version: c.Version, Number: c.Number, Status: mariposa.StatusConverged,
		Services: map[string]*mariposa.ServiceStatus{
			"web": {ID: "id-web", Scale: 2, Number: c.Number, Status: mariposa.StatusConverged},
			"db":  {ID: "id-db", Scale: 1, Number: c.Number, Status: mariposa.StatusConverged},
		},
	}
}

func (h *testServer) commit(u store.Unit) int64 {
	h.t.Helper()
	res := h.store.Commit(h.ctx, u)[0]
	if res.Err != nil {
		h.t.Fatal(res.Err)
	}
	if err := h.picture.Await(h.ctx, res.Last); err != nil {
		h.t.Fatal(err)
	}
	return res.Last
}

// node adds a node to the store.
func (h *testServer) node(id string, spec mariposa.NodeSpec, st mariposa.NodeStatus) {
	h.t.Helper()
	h.commit(store.Unit{Writes: []store.Write{{Kind: mariposa.KindNode, ID: id, Spec: &spec, Status: &st, Event: mariposa.Event{Kind: "node.running", Node: id}}}})
}

// declaredCapabilities are the capabilities that nodes report for their drivers.
var declaredCapabilities = map[mariposa.ComputeType]mariposa.Capabilities{mariposa.ComputeDummy: {Crash: true}, mariposa.ComputeProcess: {Logs: true, Exec: true}}

// instance adds an instance of a project to the store.
func (h *testServer) instance(id, project, service, node string, state mariposa.State, change func(*mariposa.InstanceSpec)) {
	h.t.Helper()
	spec := &mariposa.InstanceSpec{
		Name: service + ".1-" + id, Slot: 1, Project: project, Service: "id-" + service, ServiceName: service, Number: 1,
		Digest: h.digest(project, 1, service), Compute: mariposa.ComputeDummy, Node: node, Goal: mariposa.GoalRunning, Generation: 1, Managed: true, Created: time.Now(),
	}
	if change != nil {
		change(spec)
	}
	w := store.Write{Kind: mariposa.KindInstance, ID: id, Project: project, Spec: spec, Event: mariposa.Event{Kind: "instance.provisioning", Project: project, Instance: id}}
	if state != "" {
		w.Status = &mariposa.InstanceStatus{State: state, Since: time.Now()}
	}
	h.commit(store.Unit{Writes: []store.Write{w}})
}

// volume adds an existing volume to the store.
func (h *testServer) volume(id string, spec mariposa.VolumeSpec) {
	h.t.Helper()
	spec.Goal, spec.Compute, spec.Created = mariposa.GoalKept, mariposa.ComputeDummy, time.Now()
	h.commit(store.Unit{Writes: []store.Write{{
		Kind: mariposa.KindVolume, ID: id, Project: spec.Project, Spec: &spec, Status: &mariposa.VolumeStatus{State: mariposa.ResourceMade, Path: "/d/" + id},
		Event: mariposa.Event{Kind: "volume.created", Project: spec.Project},
	}}})
}

// network adds a network with an attachment on a node to the store.
func (h *testServer) network(id string, spec mariposa.NetworkSpec) {
	h.t.Helper()
	spec.Created = time.Now()
	part := mariposa.AttachmentID(id, "n1", mariposa.ComputeDummy)
	h.commit(store.Unit{Writes: []store.Write{
		{Kind: mariposa.KindNetwork, ID: id, Project: spec.Project, Spec: &spec, Event: mariposa.Event{Kind: "network.created", Project: spec.Project}},
		{
			Kind: mariposa.KindAttachment, ID: part, Spec: &mariposa.AttachmentSpec{
				Network: id, Name: spec.Name, Project: spec.Project, Organization: spec.Organization, Compute: mariposa.ComputeDummy, Node: "n1", Goal: mariposa.GoalKept,
			}, Status: &mariposa.AttachmentStatus{State: mariposa.ResourceMade, Path: "/d/" + part}, Event: mariposa.Event{Kind: "network.attached", Project: spec.Project},
		},
	}})
}

func (h *testServer) digest(project string, number int, service string) string {
	h.t.Helper()
	v := must(picture.NewVersionCache(h.store, h.vault).Version(h.ctx, project, number))(h.t)
	if def := v.Manifest.ByName[service]; def != nil {
		return def.Digest
	}
	return "of a service that is gone"
}

// join runs a dummy node's agent against the server until the test ends.
func (h *testServer) join(id string) *loggingDriver {
	ctx, cancel := context.WithCancel(h.ctx)
	d, p := dummy.New(dummy.NewWorld(1), steady), &loggingDriver{Driver: dummy.New(dummy.NewWorld(2), steady), ended: make(chan struct{}, 100), speak: make(chan string, 1)}
	ended := make(chan error, 1)
	go func() {
		ended <- agent.Run(ctx, agent.Link{Servers: []string{h.url}, Token: joinToken, Client: h.http}, agent.Options{
			Hello:   wire.Hello{Node: id, Key: "a-secret-of-the-node-" + id, Name: "host-" + id, Dummy: true},
			Drivers: []driver.Driver{d, p}, Clock: steady,
		})
	}()
	p.leave = sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			h.t.Errorf("the agent ended: %v", err)
		}
		_, _ = d.Close(), p.Close()
	})
	h.t.Cleanup(p.leave)
	return p
}

// loggingDriver simulates the process driver: its instances are dummies that write logs.
type loggingDriver struct {
	*dummy.Driver
	ended chan struct{} // one for each log that was let go of
	speak chan string   // what is said next
	leave func()        // ends the agent
	// flooded counts the output of commands that write without end.
	flooded atomic.Int64
}

func (*loggingDriver) Compute() mariposa.ComputeType { return mariposa.ComputeProcess }

func (d *loggingDriver) Capabilities() mariposa.Capabilities {
	can := d.Driver.Capabilities()
	can.Logs, can.Exec, can.Crash = true, true, false
	return can
}

// Start starts a dummy. One with the command quote fails with an error that quotes its
// input.
func (d *loggingDriver) Start(ctx context.Context, i driver.Instance) (driver.Observed, error) {
	if c := i.Workload.Command; len(c) > 0 && c[0] == "quote" {
		return driver.Observed{ID: i.ID}, errors.New("cannot run " + strings.Join(c, " "))
	}
	w := *i.Workload
	w.Dummy = &mariposa.Dummy{NameLen: 8}
	i.Workload = &w
	return d.Driver.Start(ctx, i)
}

// Logs writes one line, or as many as tail, and continues when followed. With a tail of
// 13 it breaks off, with 14 it fails at once, with 15 it is silent, with 16 it writes the
// lines that the test sends, and with 17 it ends after a text that the test sends.
func (d *loggingDriver) Logs(ctx context.Context, id string, o driver.LogOptions) (io.ReadCloser, error) {
	r, w := io.Pipe()
	context.AfterFunc(ctx, func() {
		_ = w.CloseWithError(ctx.Err())
		d.ended <- struct{}{}
	})
	if o.Tail == 14 {
		return nil, errors.New("the disk is gone")
	}
	go func() {
		for i := range max(1, o.Tail) {
			if o.Tail >= 15 {
				break
			}
			fmt.Fprintf(w, "%s says %d\n", id, i)
		}
		switch {
		case o.Tail == 16:
			for {
				select {
				case line := <-d.speak:
					fmt.Fprintln(w, line)
				case <-ctx.Done():
					return
				}
			}
		case o.Tail == 17:
			if o.Timestamps {
				_, _ = w.Write(mariposa.AppendLogTime(nil, time.Now()))
			}
			_, _ = io.WriteString(w, <-d.speak)
			_ = w.Close()
		case o.Tail == 13:
			_ = w.CloseWithError(errors.New("the disk broke"))
		case !o.Follow:
			_ = w.Close()
		}
	}()
	return r, nil
}

// until polls a condition after every change and at intervals: connections, logs and
// audit records change without a change in the store.
func (h *testServer) until(what string, ok func() bool) {
	h.t.Helper()
	ctx, cancel := context.WithTimeout(h.ctx, 2*time.Minute)
	defer cancel()
	for {
		from := h.picture.Revision()
		if ok() {
			return
		}
		select {
		case <-h.picture.Moved(from):
		case <-time.After(20 * time.Millisecond):
		case <-ctx.Done():
			h.t.Fatalf("waited in vain for %s", what)
		}
	}
}

type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

func contains(text, part string) bool { return strings.Contains(text, part) }
