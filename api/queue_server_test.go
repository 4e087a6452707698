package api_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"mariposa"
	"mariposa/agent"
	"mariposa/contract"
	"mariposa/driver"
	"mariposa/driver/dummy"
	"mariposa/store"
	"mariposa/wire"
)

// gatedDriver is a dummy driver that blocks operations of closed projects, so that they
// stay in progress as long as a test needs.
type gatedDriver struct {
	*dummy.Driver
	mu     sync.Mutex
	shut   map[string]chan struct{} // by the project's name; closed when it opens
	whose  map[string]string        // the projects of instances
	spoilt map[string]bool          // projects of which nothing comes up
	given  map[string]string        // the environment that instances are started with
}

// spoil sets whether instances of a project fail to start.
func (g *gatedDriver) spoil(project string, yes bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.spoilt[project] = yes
}

// close blocks the operations of a project.
func (g *gatedDriver) close(project string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.shut[project] == nil {
		g.shut[project] = make(chan struct{})
	}
}

// open unblocks the waiting operations of a project, and all later ones.
func (g *gatedDriver) open(project string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if waits := g.shut[project]; waits != nil {
		close(waits)
		delete(g.shut, project)
	}
}

// pass waits until the project of an instance is open.
func (g *gatedDriver) pass(ctx context.Context, id, project string) {
	g.mu.Lock()
	if project != "" {
		g.whose[id] = project
	}
	waits := g.shut[g.whose[id]]
	g.mu.Unlock()
	if waits == nil {
		return
	}
	select {
	case <-waits:
	case <-ctx.Done():
	}
}

// IsNonBlocking returns false: any operation may block.
func (g *gatedDriver) IsNonBlocking(string, *mariposa.Workload) bool { return false }

func (g *gatedDriver) Start(ctx context.Context, i driver.Instance) (driver.Observed, error) {
	g.mu.Lock()
	spoilt := g.spoilt[i.Project]
	g.given[i.ID] = fmt.Sprint(i.Workload.Environment)
	g.mu.Unlock()
	if spoilt {
		return driver.Observed{}, errors.New("there is no room for it")
	}
	g.pass(ctx, i.ID, i.Project)
	return g.Driver.Start(ctx, i)
}

// Stop blocks for instances without a stop timeout.
func (g *gatedDriver) Stop(ctx context.Context, id string, timeout time.Duration) (driver.Observed, error) {
	if timeout >= 0 {
		return g.Driver.Stop(ctx, id, timeout)
	}
	<-ctx.Done()
	return driver.Observed{ID: id}, context.Cause(ctx)
}

func (g *gatedDriver) Remove(ctx context.Context, id string) error {
	g.pass(ctx, id, "")
	return g.Driver.Remove(ctx, id)
}

// joinGated joins a node with a gated driver.
func (h *testServer) joinGated(id string) *gatedDriver {
	h.t.Helper()
	g, _ := h.joinGatedUntil(id, newGatedDriver())
	return g
}

func newGatedDriver() *gatedDriver {
	return &gatedDriver{Driver: dummy.New(dummy.NewWorld(1), steady), shut: map[string]chan struct{}{}, whose: map[string]string{}, spoilt: map[string]bool{}, given: map[string]string{}}
}

// joinGatedUntil joins a node with a gated driver until leave is called or the test ends.
func (h *testServer) joinGatedUntil(id string, g *gatedDriver) (_ *gatedDriver, leave func()) {
	h.t.Helper()
	ctx, cancel := context.WithCancel(h.ctx)
	ended := make(chan error, 1)
	go func() {
		ended <- agent.Run(ctx, agent.Link{Servers: []string{h.url}, Token: joinToken, Client: h.http}, agent.Options{
			Hello:   wire.Hello{Node: id, Key: "a-secret-of-the-node-" + id, Name: "host-" + id, Dummy: true},
			Drivers: []driver.Driver{g}, Clock: steady,
		})
	}()
	leave = sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			h.t.Errorf("the agent ended: %v", err)
		}
	})
	h.t.Cleanup(func() {
		for name := range g.shut {
			g.open(name)
		}
		leave()
		_ = g.Close()
	})
	h.until("node "+id, func() bool {
		r := h.picture.Nodes.Get(id)
		return r.Status() != nil
	})
	return g, leave
}

// in returns the same server for a subtest.
func (h *testServer) in(t testing.TB) *testServer {
	other := *h
	other.t = t
	return &other
}

// putAction requests an action on a project.
func (h *testServer) putAction(project, format string, args ...any) reply {
	h.t.Helper()
	return h.call("PUT", "/v1/projects/"+project+"/state", fmt.Appendf(nil, format, args...))
}

// startTask requests an action and returns its task.
func (h *testServer) startTask(project, format string, args ...any) string {
	h.t.Helper()
	c := want[contract.Changed](h.putAction(project, format, args...), 202)
	if c.Task == nil {
		h.t.Fatalf("no task was created for "+format, args...)
	}
	return *c.Task
}

// putManifest submits a manifest and returns its task.
func (h *testServer) putManifest(project, manifest, query string) string {
	h.t.Helper()
	c := want[contract.Changed](h.call("PUT", "/v1/projects/"+project+"/manifest?force=true"+query, manifest), 200)
	if c.Task == nil {
		h.t.Fatalf("no task was created for %s", manifest)
	}
	return *c.Task
}

func (h *testServer) task(id string) contract.Task {
	h.t.Helper()
	return want[contract.Task](h.call("GET", "/v1/queue/"+id+"?limit=1000", nil), 200)
}

// awaitTask waits until a task has ended in a state.
func (h *testServer) awaitTask(id string, state mariposa.TaskState) contract.Task {
	h.t.Helper()
	var task contract.Task
	h.until("task "+id+" to end", func() bool {
		task = h.task(id)
		return task.State.Ended()
	})
	if task.State != state {
		h.t.Fatalf("the %s ended %s, not %s: %s", task.Task, task.State, state, task.Reason)
	}
	h.wantEndedSteps(task)
	return task
}

// wantEndedSteps checks that no step of an ended task is still open.
func (h *testServer) wantEndedSteps(task contract.Task) {
	h.t.Helper()
	ends := []string{"done", "not done", "running", "stopped", "failed", "destroyed"}
	for _, step := range task.Steps {
		if !slices.Contains(ends, step.Result) {
			h.t.Errorf("the %s %s (%s) has the open step %s %s: %s", task.Task, task.ID, task.State, step.Step, step.InstanceName, step.Result)
		}
	}
}

// awaitState waits until a task is in a state.
func (h *testServer) awaitState(id string, state mariposa.TaskState) {
	h.t.Helper()
	h.until(fmt.Sprintf("task %s to be %s", id, state), func() bool { return h.task(id).State == state })
}

// state returns the state of a project.
func (h *testServer) state(project string) contract.ProjectState {
	h.t.Helper()
	return want[contract.State](h.call("GET", "/v1/projects/"+project+"/state", nil), 200).Projects[0]
}

// of returns the state of one service of a project.
func (h *testServer) of(project, service string) contract.ServiceState {
	h.t.Helper()
	all := h.state(project).Services
	at := slices.IndexFunc(all, func(s contract.ServiceState) bool { return s.Name == service })
	if at < 0 {
		h.t.Fatalf("%s has no service %s", project, service)
	}
	return all[at]
}

// instances returns the instances of a service that have not ended, by id; no service:
// of all services.
func (h *testServer) instances(project, service string) map[string]contract.Instance {
	h.t.Helper()
	all := map[string]contract.Instance{}
	for _, i := range want[contract.Instances](h.call("GET", "/v1/instances?limit=1000&project="+project+"&service="+service, nil), 200).Instances {
		if i.State != mariposa.StateFailed && i.State != mariposa.StateStopped && i.State != mariposa.StateDestroyed { // gone, and about to be forgotten
			all[i.ID] = i
		}
	}
	return all
}

// openTasks returns the open tasks of a project.
func (h *testServer) openTasks(project string) []contract.Task {
	h.t.Helper()
	return want[contract.Tasks](h.call("GET", "/v1/queue?project="+project, nil), 200).Tasks
}

// events lists what happened in a project, for the message of a failed test.
func (h *testServer) events(project string) string {
	h.t.Helper()
	var all strings.Builder
	for _, e := range want[contract.Events](h.call("GET", "/v1/events?since=0&limit=1000&project="+project, nil), 200).Events {
		fmt.Fprintf(&all, "%s %d %s %s%s %s\n", e.Time.Format("15:04:05.000000"), e.Revision, e.Kind, e.InstanceName, e.Task, e.Reason)
	}
	return all.String()
}

// awaitRest waits until a project was planned and has no open tasks.
func (h *testServer) awaitRest(project string) {
	h.t.Helper()
	var open []contract.Task
	defer func() {
		if h.t.Failed() {
			h.t.Logf("the open tasks are %+v", open)
		}
	}()
	h.until(project+" to come to rest", func() bool {
		open = h.openTasks(project)
		return h.picture.Projects.Get(h.idOf(project)).Status() != nil && len(open) == 0
	})
}

// revision returns the newest revision of the store. That of the picture is updated
// after its records.
func (h *testServer) revision() int64 {
	h.t.Helper()
	rev, err := h.store.Snapshot(h.t.Context(), func(store.Record) error { return nil })
	if err != nil {
		h.t.Fatal(err)
	}
	return rev
}

// recorded returns the revision of each record. Those of tokens and nodes are missing: when
// they were last used or heard from is stored a moment later.
func (h *testServer) recorded() map[string]int64 {
	h.t.Helper()
	all := map[string]int64{}
	_, err := h.store.Snapshot(h.t.Context(), func(r store.Record) error {
		if r.Kind != mariposa.KindToken && r.Kind != mariposa.KindNode {
			all[string(r.Kind)+" "+r.ID] = r.Revision
		}
		return nil
	})
	if err != nil {
		h.t.Fatal(err)
	}
	return all
}

func (h *testServer) idOf(project string) string {
	h.t.Helper()
	return want[contract.Project](h.call("GET", "/v1/projects/"+project, nil), 200).ID
}

// crash kills a dummy instance.
func (h *testServer) crash(id string) {
	h.t.Helper()
	want[contract.Changed](h.call("PUT", "/v1/instances/"+id, contract.InstanceAction{Action: "crash"}), 202)
}
