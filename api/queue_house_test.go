package api_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"mariposa"
	"mariposa/agent"
	"mariposa/clock"
	"mariposa/contract"
	"mariposa/driver"
	"mariposa/driver/dummy"
	"mariposa/store"
	"mariposa/wire"
)

// gate is a driver of dummies that lets nothing through for the projects it is
// shut for: what is under way there stays so, for as long as a test looks at it.
type gate struct {
	*dummy.Driver
	mu     sync.Mutex
	shut   map[string]chan struct{} // by the project's name; closed when it opens
	whose  map[string]string        // the projects of instances
	spoilt map[string]bool          // projects of which nothing comes up
}

// spoil lets nothing of a project come up any more, or again.
func (g *gate) spoil(project string, yes bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.spoilt[project] = yes
}

// close shuts the gate for a project.
func (g *gate) close(project string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.shut[project] == nil {
		g.shut[project] = make(chan struct{})
	}
}

// open lets through what waits, and all that follows.
func (g *gate) open(project string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if waits := g.shut[project]; waits != nil {
		close(waits)
		delete(g.shut, project)
	}
}

// pass waits until the gate is open for an instance.
func (g *gate) pass(ctx context.Context, id, project string) {
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

// Prompt is what no operation is that may find the gate shut.
func (g *gate) Prompt(string, *mariposa.Workload) bool { return false }

func (g *gate) Start(ctx context.Context, i driver.Instance) (driver.Observed, error) {
	g.mu.Lock()
	spoilt := g.spoilt[i.Project]
	g.mu.Unlock()
	if spoilt {
		return driver.Observed{}, errors.New("there is no room for it")
	}
	g.pass(ctx, i.ID, i.Project)
	return g.Driver.Start(ctx, i)
}

// Stop never ends what has for ever to stop.
func (g *gate) Stop(ctx context.Context, id string, timeout time.Duration) (driver.Observed, error) {
	if timeout >= 0 {
		return g.Driver.Stop(ctx, id, timeout)
	}
	<-ctx.Done()
	return driver.Observed{ID: id}, context.Cause(ctx)
}

func (g *gate) Remove(ctx context.Context, id string) error {
	g.pass(ctx, id, "")
	return g.Driver.Remove(ctx, id)
}

// gated joins a node with a gate.
func (h *house) gated(id string) *gate {
	h.t.Helper()
	ctx, cancel := context.WithCancel(h.ctx)
	g := &gate{Driver: dummy.New(dummy.NewWorld(1), clock.Real{}), shut: map[string]chan struct{}{}, whose: map[string]string{}, spoilt: map[string]bool{}}
	ended := make(chan error, 1)
	go func() {
		ended <- agent.Run(ctx, agent.Link{Servers: []string{h.url}, Token: joinToken, Client: h.http}, agent.Options{
			Hello:   wire.Hello{Node: id, Key: "a-secret-of-the-node-" + id, Name: "host-" + id, Dummy: true},
			Drivers: []driver.Driver{g}, Clock: clock.Real{},
		})
	}()
	h.t.Cleanup(func() {
		for name := range g.shut {
			g.open(name)
		}
		cancel()
		if err := <-ended; err != nil {
			h.t.Errorf("the agent ended: %v", err)
		}
		_ = g.Close()
	})
	h.until("node "+id, func() bool {
		r := h.picture.Nodes.Get(id)
		return r.Status() != nil
	})
	return g
}

// in is the same house seen by a part of a test.
func (h *house) in(t testing.TB) *house {
	other := *h
	other.t = t
	return &other
}

// ask asks for an action on a project.
func (h *house) ask(project, format string, args ...any) reply {
	h.t.Helper()
	return h.call("PUT", "/v1/projects/"+project+"/state", fmt.Appendf(nil, format, args...))
}

// begins asks for an action and returns the task that came of it.
func (h *house) begins(project, format string, args ...any) string {
	h.t.Helper()
	c := want[contract.Changed](h.ask(project, format, args...), 202)
	if c.Task == nil {
		h.t.Fatalf("no task came of "+format, args...)
	}
	return *c.Task
}

// puts submits a manifest and returns the task that came of it.
func (h *house) puts(project, manifest, query string) string {
	h.t.Helper()
	c := want[contract.Changed](h.call("PUT", "/v1/projects/"+project+"/manifest?force=true"+query, manifest), 200)
	if c.Task == nil {
		h.t.Fatalf("no task came of %s", manifest)
	}
	return *c.Task
}

func (h *house) task(id string) contract.Task {
	h.t.Helper()
	return want[contract.Task](h.call("GET", "/v1/queue/"+id+"?limit=1000", nil), 200)
}

// ends waits until a task has ended in a certain way.
func (h *house) ends(id string, state mariposa.TaskState) contract.Task {
	h.t.Helper()
	var task contract.Task
	h.until("task "+id+" to end", func() bool {
		task = h.task(id)
		return task.State.Ended()
	})
	if task.State != state {
		h.t.Fatalf("the %s ended %s, not %s: %s", task.Task, task.State, state, task.Reason)
	}
	return task
}

// becomes waits until a task is in a state.
func (h *house) becomes(id string, state mariposa.TaskState) {
	h.t.Helper()
	h.until(fmt.Sprintf("task %s to be %s", id, state), func() bool { return h.task(id).State == state })
}

// state is how a project fares.
func (h *house) state(project string) contract.ProjectState {
	h.t.Helper()
	return want[contract.State](h.call("GET", "/v1/projects/"+project+"/state", nil), 200).Projects[0]
}

// of is how one service of a project fares.
func (h *house) of(project, service string) contract.ServiceState {
	h.t.Helper()
	all := h.state(project).Services
	at := slices.IndexFunc(all, func(s contract.ServiceState) bool { return s.Name == service })
	if at < 0 {
		h.t.Fatalf("%s has no service %s", project, service)
	}
	return all[at]
}

// instances are those of a service that have not ended, by id; no service: of all.
func (h *house) instances(project, service string) map[string]contract.Instance {
	h.t.Helper()
	all := map[string]contract.Instance{}
	for _, i := range want[contract.Instances](h.call("GET", "/v1/instances?limit=1000&project="+project+"&service="+service, nil), 200).Instances {
		if i.State != mariposa.StateFailed && i.State != mariposa.StateStopped && i.State != mariposa.StateDestroyed { // gone, and about to be forgotten
			all[i.ID] = i
		}
	}
	return all
}

// open are the tasks of a project that have not ended.
func (h *house) openTasks(project string) []contract.Task {
	h.t.Helper()
	return want[contract.Tasks](h.call("GET", "/v1/queue?project="+project, nil), 200).Tasks
}

// rests waits until a project has nothing left to do.
func (h *house) rests(project string) {
	h.t.Helper()
	h.until(project+" to come to rest", func() bool {
		return h.picture.Projects.Get(h.idOf(project)).Status() != nil && len(h.openTasks(project)) == 0
	})
}

// revision is the newest of the store. That of the picture comes after the records
// that it shows.
func (h *house) revision() int64 {
	h.t.Helper()
	rev, err := h.store.Snapshot(h.t.Context(), func(store.Record) error { return nil })
	if err != nil {
		h.t.Fatal(err)
	}
	return rev
}

func (h *house) idOf(project string) string {
	h.t.Helper()
	return want[contract.Project](h.call("GET", "/v1/projects/"+project, nil), 200).ID
}

// crash ends a dummy as if it were killed.
func (h *house) crash(id string) {
	h.t.Helper()
	want[contract.Changed](h.call("PUT", "/v1/instances/"+id, contract.InstanceAction{Action: "crash"}), 202)
}
