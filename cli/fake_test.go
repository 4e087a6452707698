package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"mariposa"
	"mariposa/contract"
	"mariposa/leaktest"
)

var update = flag.Bool("update", false, "write the golden files anew")

func TestMain(m *testing.M) { leaktest.Main(m) }

// must fails the test if there is an error.
func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// The objects of the fake server.
const (
	helloID = "0198c000-0000-7000-8000-000000000001"
	taskOne = "0198c000-0000-7000-8000-0000000000a1"
	webOne  = "0198c000-0000-7000-8000-00000000ab12"
	webTwo  = "0198c000-0000-7000-8000-00000000cd34"
	nodeOne = "0198c000-0000-7000-8000-0000000000e1"
	nodeTwo = "0198c000-0000-7000-8000-0000000000e2"
	hashOne = "1111111aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
	hashTwo = "2222222bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb"
	acmeID  = "0198c000-0000-7000-8000-0000000000f1"
	annID   = "0198c000-0000-7000-8000-0000000000f2"
	tokenID = "0198c000-0000-7000-8000-0000000000f3"
	secret  = "s3cret-token"
)

var noon = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

func after(d time.Duration) *time.Time {
	t := noon.Add(d)
	return &t
}

// fake is a server that returns the answers that a test sets, and records the requests.
type fake struct {
	t   *testing.T
	url string

	mu     sync.Mutex
	routes map[string]http.HandlerFunc // by "METHOD /path"
	asked  []string                    // "METHOD /path?query body"
	tokens map[string]bool
	real   http.Handler // answers all other requests; nil: they are not found
}

func newFake(t *testing.T) *fake {
	t.Helper()
	f := &fake{t: t, routes: map[string]http.HandlerFunc{}, tokens: map[string]bool{}}
	srv := httptest.NewServer(f)
	t.Cleanup(srv.Close)
	f.url = srv.URL
	return f
}

func (f *fake) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	f.mu.Lock()
	f.asked = append(f.asked, strings.TrimSpace(r.Method+" "+r.URL.RequestURI()+" "+string(body)))
	f.tokens[r.Header.Get("Authorization")] = true
	h := f.routes[r.Method+" "+r.URL.Path]
	f.mu.Unlock()
	r.Body = io.NopCloser(bytes.NewReader(body))
	if h == nil && f.real != nil {
		f.real.ServeHTTP(w, r)
		return
	}
	if h == nil {
		refuse(mariposa.ResourceNotFound, "there is no "+r.URL.Path)(w, r)
		return
	}
	h(w, r)
}

func (f *fake) on(route string, h http.HandlerFunc) *fake {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.routes[route] = h
	return f
}

// give sets the document that a route returns.
func (f *fake) give(route string, document any) *fake {
	return f.on(route, func(w http.ResponseWriter, _ *http.Request) { writeJSON(w, document) })
}

func writeJSON(w http.ResponseWriter, document any) {
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(document)
}

func (f *fake) requests() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return aSince.ReplaceAllString(strings.Join(f.asked, "\n"), "since=7$1")
}

var statuses = map[mariposa.Code]int{mariposa.Conflict: 409, mariposa.ResourceNotFound: 404, mariposa.InvalidArgument: 400, mariposa.Unauthorized: 401, mariposa.TooOld: 410, mariposa.Forbidden: 403, mariposa.TooLarge: 413, mariposa.Throttled: 429, mariposa.QuotaExceeded: 409}

func refuse(code mariposa.Code, message string, faults ...mariposa.Fault) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(statuses[code])
		_ = json.NewEncoder(w).Encode(mariposa.Error{Code: code, Message: message, Faults: faults})
	}
}

// stream sends events, then keeps the stream open until the reader closes it.
func (f *fake) stream(events ...contract.Event) *fake {
	return f.feed(func(w http.ResponseWriter, r *http.Request) {
		writeEvents(w, r, events...)
		<-r.Context().Done()
	})
}

// feed answers streams; as a list, the feed is empty and at revision 7.
func (f *fake) feed(stream http.HandlerFunc) *fake {
	return f.on("GET /v1/events", func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Accept") == "text/event-stream" {
			stream(w, r)
			return
		}
		if f.real != nil {
			f.real.ServeHTTP(w, r)
			return
		}
		writeJSON(w, contract.Events{Events: []contract.Event{}, Revision: 7})
	})
}

func writeEvents(w http.ResponseWriter, r *http.Request, events ...contract.Event) {
	w.Header().Set("Content-Type", "text/event-stream")
	var since int64
	_, _ = fmt.Sscan(r.Header.Get("Last-Event-ID"), &since)
	for _, e := range events {
		if e.Revision <= since {
			continue
		}
		text, _ := json.Marshal(e)
		_, _ = fmt.Fprintf(w, "id: %d\ndata: %s\n\n", e.Revision, text)
	}
	w.(http.Flusher).Flush()
}

// A run is one command line and its result.
type run struct {
	t     *testing.T
	f     *fake
	home  string // directory of the profile and the data directory
	env   map[string]string
	tty   bool // all three streams are terminals
	stdin string
	types []string        // lines typed without echo
	ctx   context.Context //nolint:containedctx // a run is one call
	out   io.Writer

	args           []string
	code           int
	stdout, stderr string
}

func (r *run) do(t *testing.T, args ...string) *run {
	t.Helper()
	var stdout, stderr bytes.Buffer
	r.t, r.args = t, args
	if r.home == "" {
		r.home = t.TempDir()
	}
	if r.ctx == nil {
		r.ctx = context.Background()
	}
	env := Env{
		Stdin: strings.NewReader(r.stdin), Stdout: &stdout, Stderr: &stderr, Version: "1.2.3",
		Now:      func() time.Time { return noon.Add(10 * time.Minute) },
		Terminal: func(any) bool { return r.tty },
		Size:     func(any) (int, int) { return 100, 30 },
		Secret: func(any) (string, error) {
			if len(r.types) == 0 {
				return "", io.EOF
			}
			line := r.types[0]
			r.types = r.types[1:]
			return line, nil
		},
		Getenv: func(name string) string {
			switch {
			case r.env[name] != "":
				return r.env[name]
			case name == "HOME":
				return r.home
			case name == "MARIPOSA_URL" && r.f != nil:
				return r.f.url
			case name == "MARIPOSA_TOKEN" && r.f != nil:
				return secret
			}
			return ""
		},
	}
	if r.out != nil {
		env.Stdout = r.out
	}
	r.code = Main(r.ctx, args, env)
	r.stdout, r.stderr = r.tidy(stdout.String()), r.tidy(stderr.String())
	return r
}

// expect fails the test unless a run has ended with a code and all conditions are true.
func (r *run) expect(code int, as ...bool) {
	r.t.Helper()
	if r.code == code && !slices.Contains(as, false) {
		return
	}
	asked := ""
	if r.f != nil {
		asked = "== asked\n" + r.f.requests()
	}
	r.t.Errorf("exit %d was expected, and something of %v:\n%s%s", code, as, r.story(), asked)
}

// Revisions differ from run to run.
var (
	aRevision = regexp.MustCompile(`("(?:revision|as_of)": ?)\d+`)
	aSince    = regexp.MustCompile(`\bsince=\d+([&\s]|$)`)
)

// tidy removes what differs from run to run.
func (r *run) tidy(s string) string {
	if r.f != nil {
		s = strings.ReplaceAll(s, r.f.url, "http://SERVER")
	}
	return aRevision.ReplaceAllString(strings.ReplaceAll(s, r.home, "HOME"), "${1}7")
}

// story formats a run for a golden file.
func (r *run) story() string {
	return fmt.Sprintf("$ mariposa %s\n== exit %d\n== stdout\n%s== stderr\n%s", r.tidy(strings.Join(r.args, " ")), r.code, visible(r.stdout), visible(r.stderr))
}

// golden compares a run with its golden file.
func (r *run) golden(name string) *run {
	r.t.Helper()
	golden(r.t, name, r.story())
	return r
}

// visible makes control sequences readable in a diff.
func visible(s string) string {
	return strings.NewReplacer("\x1b", "␛", "\r", "␍").Replace(s)
}

// golden compares a text with a golden file.
func golden(t *testing.T, name, got string) {
	t.Helper()
	got = numberInOrder(got)
	path := filepath.Join("testdata", name+".golden")
	if *update {
		must(t, os.MkdirAll("testdata", 0o755))
		must(t, os.WriteFile(path, []byte(got), 0o644))
		return
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatalf("%v (go test ./cli -update writes it)", err)
	}
	if got != string(want) {
		t.Errorf("%s is not as it was:\n%s", name, strings.Join(unifiedDiff(path, "now", string(want), got), "\n"))
	}
}

// world is a server with one project, two nodes and a task.
func world(t *testing.T) *fake {
	t.Helper()
	f := newFake(t)
	p := contract.Project{
		ID: helloID, Name: "hello", Organization: acmeID, OrganizationName: "acme", Role: mariposa.RoleAdmin, Version: hashTwo, Number: 2, Goal: mariposa.GoalStarted, Status: mariposa.StatusConverging,
		Reason: "web: 1 of 2 running", Created: noon, Author: "ann", Services: []string{"backend", "web"},
	}
	versions := []contract.Version{
		{Version: hashTwo, Number: 2, Created: noon.Add(5 * time.Minute), Author: "ann", Message: "greet louder", Tags: []string{"latest", "loud"}, ServicesChanged: []string{"web"}, MetadataChanged: []string{"mode"}, Cause: mariposa.CauseManifest, Outdated: 1},
		{Version: hashOne, Number: 1, Created: noon, Author: "ann", Tags: []string{}, ServicesChanged: []string{"backend", "web"}, MetadataChanged: []string{}, Cause: mariposa.CauseManifest, Completed: true},
	}
	two := versions[0]
	two.Manifest = "services:\n  web: {scale: 2}\n"
	f.give("GET /v1/projects", contract.Projects{Projects: []contract.Project{p}})
	f.give("GET /v1/projects/hello", p)
	f.give("GET /v1/projects/hello/versions", contract.Versions{Versions: versions})
	f.give("GET /v1/projects/hello/versions/2", two)
	f.give("GET /v1/projects/hello/versions/"+hashTwo, two)
	one := versions[1]
	one.Manifest = "services:\n  web: {scale: 1}\n"
	f.give("GET /v1/projects/hello/versions/"+hashOne, one)
	f.give("GET /v1/projects/hello/graph", helloGraph())
	f.give("GET /v1/state", helloState())
	f.give("GET /v1/queue", contract.Tasks{Tasks: []contract.Task{task(mariposa.TaskActive, 1, 2)}})
	first := task(mariposa.TaskActive, 1, 2)
	first.Steps = []contract.TaskStep{{Revision: 8, At: noon.Add(6 * time.Minute), Instance: webTwo, InstanceName: "web.2-00cd34", Node: nodeTwo, NodeName: "node2", Step: "create", Result: "provisioning", Reason: "scale is 2"}}
	f.give("GET /v1/queue/"+taskOne, first)
	instances := helloInstances()
	f.give("GET /v1/instances", contract.Instances{Instances: instances})
	full := instances[0]
	full.Command, full.Environment, full.Details = []string{"hello", "web"}, []string{"GREETING=hello", "PORT=34567"}, map[string]string{"pid": "4711"}
	full.Usage = mariposa.Usage{At: noon, CPU: new(1.5), Memory: new(int64(12 << 20)), DiskRead: new(int64(0)), DiskWritten: new(int64(4096))}
	f.give("GET /v1/instances/"+webOne, full)
	f.give("PUT /v1/instances/"+webOne, contract.Changed{ID: webOne, Name: "web.1-00ab12"})
	f.on("GET /v1/instances/web.1-00ab12/logs", func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "listening\nserved /\n") })
	nodes := helloNodes()
	f.give("GET /v1/nodes", contract.Nodes{Nodes: nodes})
	f.give("GET /v1/nodes/node2", nodes[1])
	f.give("PUT /v1/nodes/node2", contract.Changed{ID: nodeTwo, Name: "node2"})
	f.give("DELETE /v1/nodes/node2", contract.Changed{ID: nodeTwo, Name: "node2"})
	f.settle()
	f.furnish()
	f.store()
	f.connect()
	f.roll()
	return f
}

func helloState() contract.State {
	return contract.State{Revision: 7, Projects: []contract.ProjectState{{
		ID: helloID, Name: "hello", Organization: acmeID, OrganizationName: "acme", Version: hashTwo, Goal: mariposa.GoalStarted, Status: mariposa.StatusConverging, Reason: "web: 1 of 2 running",
		Services: []contract.ServiceState{
			{Name: "backend", Goal: 1, Running: 1, Healthy: 1, Status: mariposa.StatusConverged},
			{Name: "web", Goal: 2, Running: 1, Starting: 1, Failed: 1, Outdated: 1, Unknown: 1, Status: mariposa.StatusBackingOff, Reason: "web.2-00aaaa failed 3 times; next retry at 12:11:00"},
		},
	}}}
}

func helloGraph() contract.Graph {
	node := func(layer int, kind, name string, status mariposa.Status, running, goal int, reason string) contract.GraphNode {
		return contract.GraphNode{Kind: kind, Name: name, Layer: layer, Status: status, Running: running, Goal: goal, Reason: reason}
	}
	g := contract.Graph{Revision: 7, Project: helloID, ProjectName: "hello", Version: hashTwo, Status: mariposa.StatusConverging, Nodes: []contract.GraphNode{
		node(1, "network", "web", mariposa.StatusConverged, 1, 1, ""),
		node(1, "volume", "data", mariposa.StatusConverged, 1, 1, ""),
		node(2, "service", "backend", mariposa.StatusBackingOff, 0, 1, "backend.1-00aaaa failed 3 times; next retry at 12:11:00"),
		node(3, "service", "old", mariposa.StatusConverging, 2, 0, "0 wanted"),
		node(3, "service", "web", mariposa.StatusConverging, 0, 2, "waits for backend: it failed"),
		node(4, "load_balancer", "front", mariposa.StatusConverging, 0, 1, "nothing that uses it runs yet"),
	}}
	g.Nodes[3].Leftover = true
	edge := func(from, fromKind, to, toKind, why string) {
		g.Edges = append(g.Edges, contract.GraphEdge{From: from, FromKind: fromKind, To: to, ToKind: toKind, Why: why})
	}
	edge("front", "load_balancer", "web", "service", "load_balancer")
	edge("old", "service", "backend", "service", "depends_on")
	edge("web", "service", "web", "network", "network")
	edge("web", "service", "backend", "service", "depends_on")
	edge("web", "service", "backend", "service", "reference")
	edge("backend", "service", "data", "volume", "volume")
	return g
}

func helloInstances() []contract.Instance {
	return []contract.Instance{
		{
			ID: webOne, Name: "web.1-00ab12", Slot: "web.1", Project: helloID, ProjectName: "hello", ServiceName: "web", Version: hashTwo, Number: 2, ComputeType: mariposa.ComputeProcess,
			Node: nodeOne, NodeName: "node1", State: mariposa.StateRunning, Health: mariposa.HealthHealthy, Goal: mariposa.GoalRunning, PhysicalID: "4711",
			Addresses: []string{"127.0.0.1:34567"}, Created: noon, Started: after(time.Second), Reason: "scale is 2", ReasonCode: mariposa.ReasonScale, Managed: true,
		},
		{
			ID: webTwo, Name: "web.2-00cd34", Slot: "web.2", Project: helloID, ProjectName: "hello", ServiceName: "web", Version: hashOne, Number: 1, ComputeType: mariposa.ComputeProcess,
			Node: nodeTwo, NodeName: "node2", State: mariposa.StateFailed, Health: mariposa.HealthUnknown, Goal: mariposa.GoalRunning,
			Created: noon.Add(5 * time.Minute), Restarts: 3, Reason: "exited with code 137\x1b[2J", Managed: true,
		},
	}
}

func helloNodes() []contract.Node {
	return []contract.Node{
		{ID: nodeOne, Name: "node1", Rack: "r1", DC: "d1", Status: mariposa.NodeRunning, Instances: 1, Capacity: mariposa.Resources{MilliCPU: 2000, Memory: 8 << 30}, LastHeartbeat: noon.Add(9*time.Minute + 58*time.Second), Drivers: []mariposa.ComputeType{"process", "dummy"}},
		{
			ID: nodeTwo, Name: "node2", Status: mariposa.NodeUnknown, Reason: "it was lost on request", Instances: 1, Dummy: true, LastHeartbeat: noon, Drivers: []mariposa.ComputeType{"dummy"},
			Quarantined: []mariposa.Quarantined{{ID: "x1", Name: "web.3-0000f1", Project: "shop", Compute: "dummy", State: mariposa.StateRunning, Reason: "not of this store"}},
		},
	}
}

func task(state mariposa.TaskState, done, total int) contract.Task {
	t := contract.Task{
		ID: taskOne, Project: helloID, ProjectName: "hello", Services: []string{"web"}, Component: "project", Task: mariposa.TaskScale, State: state, Origin: mariposa.OriginUser,
		Author: "ann", Reason: "ann scaled web to 2", Created: noon, Progress: mariposa.Progress{Done: done, Total: total}, Version: hashTwo, Number: 2,
	}
	if state != mariposa.TaskQueued {
		t.Started = after(time.Second)
	}
	if state.Ended() {
		t.Finished = after(6 * time.Second)
	}
	return t
}

// taskEvent is the event of a task's change.
func taskEvent(rev int64, verb string, t contract.Task) contract.Event {
	return contract.Event{Revision: rev, Time: noon.Add(time.Duration(rev) * time.Second), Kind: "task." + verb, Project: helloID, ProjectName: "hello", Task: t.ID, Object: t}
}

func instanceEvent(rev int64, verb string, i contract.Instance, reason string) contract.Event {
	return contract.Event{
		Revision: rev, Time: noon.Add(time.Duration(rev) * time.Second), Kind: "instance." + verb, Project: helloID, ProjectName: "hello", ServiceName: i.ServiceName,
		Instance: i.ID, Node: i.Node, Reason: reason, Object: i,
	}
}
