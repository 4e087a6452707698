package main_test

import (
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"mariposa"
	"mariposa/client"
)

// fleetSystem is a server with agents that tests can kill and start again one by one.
type fleetSystem struct {
	*splitSystem
	agents map[string]*exec.Cmd
}

// newFleetSystem starts a server and agents with these names, and waits until they have
// joined.
func newFleetSystem(t *testing.T, names ...string) *fleetSystem {
	t.Helper()
	f := &fleetSystem{newSplitSystem(t), map[string]*exec.Cmd{}}
	f.env = []string{"MARIPOSA_DATA=" + f.data}
	for _, name := range names {
		f.startAgent(name, "MARIPOSA_JOIN="+f.joinToken())
	}
	for _, name := range names {
		f.awaitNode(name, mariposa.NodeRunning)
	}
	return f
}

// startAgent starts an agent, on its own data directory.
func (f *fleetSystem) startAgent(name string, env ...string) {
	f.t.Helper()
	f.agents[name] = f.launch(env, "agent", "--server", f.url, "--data", filepath.Join(f.dir, name), "--name", name)
}

// killAgents kills agents with SIGKILL. Their instances keep running.
func (f *fleetSystem) killAgents(names ...string) {
	for _, name := range names {
		end(f.agents[name])
	}
}

// restartServer kills the server with SIGKILL and starts it again.
func (f *fleetSystem) restartServer() {
	f.t.Helper()
	end(f.server)
	f.serve()
	f.await("the server answers", func() bool {
		_, err := f.Ready(f.t.Context())
		return err == nil
	})
}

// on lists the ids of the instances of a project on a node, or on any, that are not being
// removed.
func (f *fleetSystem) on(project, node string) map[string]bool {
	f.t.Helper()
	list, err := f.AllInstances(f.t.Context(), client.InstanceFilter{Project: project, Node: node})
	must(f.t, err)
	ids := map[string]bool{}
	for _, i := range list.Instances {
		if i.Goal == mariposa.GoalRunning {
			ids[i.ID] = true
		}
	}
	return ids
}

// eventsSince returns all events after a revision.
func (f *fleetSystem) eventsSince(revision int64) (all []client.Event) {
	f.t.Helper()
	for {
		page, err := f.Events(f.t.Context(), client.EventFilter{Since: revision, Limit: 1000})
		must(f.t, err)
		if len(page.Events) == 0 {
			return all
		}
		all = append(all, page.Events...)
		revision = page.Events[len(page.Events)-1].Revision
	}
}

func (f *fleetSystem) revision() int64 {
	f.t.Helper()
	r, err := f.Revision(f.t.Context())
	must(f.t, err)
	return r
}

// neverFewer checks by the feed that at no moment since a revision fewer instances were up
// and wanted than these, of which all were up then.
func (f *fleetSystem) neverFewer(since int64, up map[string]int, least int) {
	f.t.Helper()
	serves := map[string]bool{}
	for id := range up {
		serves[id] = true
	}
	for _, e := range f.eventsSince(since) {
		switch e.Kind {
		case "instance.running":
			serves[e.Instance] = true
		case "instance.stopping", "instance.failed", "instance.stopped":
			delete(serves, e.Instance)
		}
		if len(serves) < least {
			f.t.Fatalf("only %d of %d served after event %d, %s of %s", len(serves), least, e.Revision, e.Kind, e.Instance)
		}
	}
}

// upByID returns the process ids of the running instances of a project by instance id.
func (f *fleetSystem) upByID(project string) map[string]int {
	f.t.Helper()
	out := map[string]int{}
	for _, i := range f.instances(project) {
		if pid := atoi(i.Details["pid"]); pid != 0 && i.State == mariposa.StateRunning {
			out[i.ID] = pid
		}
	}
	return out
}

// progressed waits until a task has done so many of its steps.
func (f *fleetSystem) progressed(task string, done int) {
	f.t.Helper()
	f.await(fmt.Sprintf("%d are moved", done), func() bool {
		t, err := f.Task(f.t.Context(), task)
		return err == nil && t.Progress.Done >= done
	})
}

// drain starts the drain of a node and returns its task.
func (f *fleetSystem) drain(node string, flags ...string) string {
	f.t.Helper()
	out := f.ok(append([]string{"node", "drain", node, "--json"}, flags...)...)
	_, id, ok := strings.Cut(out, `"task": "`)
	if !ok {
		f.t.Fatalf("there is no task:\n%s", out)
	}
	id, _, _ = strings.Cut(id, `"`)
	return id
}

// A drain moves real processes start-first: at no moment are fewer up than wanted. It can be
// terminated, and goes on after the server is killed.
func TestADrainOfRealProcessesNeverServesFewer(t *testing.T) {
	t.Parallel()
	f := newFleetSystem(t, "n1", "n2", "n3")
	const scale = 12
	f.create("hello", fmt.Sprintf("services: {web: {compute_type: process, command: [sleep, '1000'], scale: %d, update: {min_healthy: 2}}}", scale))
	f.converged("hello", "web", scale)
	since, up := f.revision(), f.upByID("hello")
	if n := len(f.on("hello", "n1")); n != 4 || len(up) != scale {
		t.Fatalf("%d are on n1, %d run", n, len(up))
	}
	if out := f.ok("node", "drain", "n1", "--dry-run"); strings.Count(out, "web.") != 4 || strings.Contains(out, "stays") || !strings.Contains(out, "n2") || !strings.Contains(out, "n3") {
		t.Errorf("the dry run says\n%s", out)
	}
	if n := len(f.on("hello", "n1")); n != 4 || f.nodeNamed("n1").Drain != nil {
		t.Fatal("the dry run changed something")
	}

	task := f.drain("n1", "--deadline", "none")
	f.progressed(task, 1)
	if out := f.ok("queue", "terminate", task, "--yes"); !strings.Contains(out, "drain n1 is terminated") || !strings.Contains(out, "mariposa node undrain n1") {
		t.Errorf("terminate says\n%s", out)
	}
	f.converged("hello", "web", scale)
	f.realityMatches("hello")
	left := f.on("hello", "n1")
	if n := f.nodeNamed("n1"); len(left) == 0 || len(left) > 3 || n.Drain == nil || n.Drain.State != mariposa.DrainStopped || n.Eligible {
		t.Fatalf("%d are left on n1, which is %+v", len(left), n)
	}
	for id := range left {
		if pid := up[id]; pid == 0 || !alive(pid) {
			t.Errorf("%s was replaced on its own node", id)
		}
	}

	task = f.drain("n1")
	f.progressed(task, 1)
	f.restartServer()
	f.await("the node is drained", func() bool { n := f.nodeNamed("n1"); return n != nil && n.Status == mariposa.NodeDrained })
	if done, err := f.Task(t.Context(), task); err != nil || done.State != mariposa.TaskCompleted || done.Progress.Done != done.Progress.Total {
		t.Errorf("the task is %+v, %v", done, err)
	}
	f.converged("hello", "web", scale)
	f.realityMatches("hello")
	f.neverFewer(since, up, scale)
	if n := len(f.on("hello", "n1")); n != 0 {
		t.Errorf("%d are on the drained node", n)
	}
	for id, pid := range up { // what was elsewhere is as it was
		if i, err := f.Instance(t.Context(), id); err == nil && (i.NodeName == "n1" || !alive(pid)) {
			t.Errorf("%s is on %s, alive: %v", id, i.NodeName, alive(pid))
		}
	}

	f.ok("node", "undrain", "n1")
	f.ok("project", "scale", "hello", "web="+itoa(scale+3), "--wait")
	if n := len(f.on("hello", "n1")); n != 3 {
		t.Errorf("after undrain, %d of 3 new instances are on the emptiest node", n)
	}
	f.converged("hello", "web", scale+3)
	f.realityMatches("hello")
}
