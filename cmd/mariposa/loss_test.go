package main_test

import (
	"path/filepath"
	"strings"
	"testing"
	"time"

	"mariposa"
	"mariposa/contract"
)

// isLater waits until a time has passed, to show that something does not happen until then.
func (f *fleetSystem) isLater(at time.Time) {
	f.t.Helper()
	f.await("it is "+at.String(), func() bool { return time.Now().After(at) })
}

// web returns the state of the service web of the project hello.
func (f *fleetSystem) web() contract.ServiceState {
	f.t.Helper()
	for _, s := range f.state("hello").Services {
		if s.Name == "web" {
			return s
		}
	}
	return contract.ServiceState{}
}

// replacements counts, by slot, the instances that were created since a revision because
// another one was lost.
func (f *fleetSystem) replacements(since int64) map[string]int {
	f.t.Helper()
	bySlot := map[string]int{}
	for _, e := range f.eventsSince(since) {
		if i := e.AsInstance(); i != nil && e.Kind == "instance.provisioning" && e.ReasonCode == mariposa.ReasonReplacesLost {
			bySlot[i.Slot]++
		}
	}
	return bySlot
}

// kinds counts events.
func (f *fleetSystem) kinds(since int64) map[string]int {
	f.t.Helper()
	n := map[string]int{}
	for _, e := range f.eventsSince(since) {
		n[e.Kind]++
	}
	return n
}

// When half of the nodes are lost at once, nothing is replaced until they return; a person
// can replace what single nodes had.
func TestAStormOfKilledAgentsStopsRescheduling(t *testing.T) {
	t.Parallel()
	names := []string{"n1", "n2", "n3", "n4", "n5", "n6"}
	f := newFleetSystem(t, names...)
	const after = 15 * time.Second // all of them are noticed before the first is given up
	f.create("hello", "services: {web: {compute_type: process, command: [sleep, '1000'], scale: 6, reschedule: {after: 15}, update: {min_healthy: 0}}}")
	f.converged("hello", "web", 6)
	since, up := f.revision(), f.upByID("hello")
	f.killAgents("n1", "n2", "n3")
	var last time.Time
	for _, name := range names[:3] {
		f.awaitNode(name, mariposa.NodeUnknown)
		last = time.Now()
	}
	f.await("the state says so", func() bool { return f.web().ReasonCode == mariposa.ReasonStorm })
	if s := f.web(); s.Status != mariposa.StatusBlocked || s.Running != 3 || !strings.Contains(s.Reason, "which was lost together with others (3 of 6 nodes with instances have been lost since ") || !strings.Contains(s.Reason, "mariposa project converge hello --reschedule-now") {
		t.Errorf("web: %+v", s)
	}
	f.await("the event is there", func() bool { return f.kinds(since)["nodes.storm_began"] == 1 })
	if out := f.ok("events", "--since", itoa(int(since))); !strings.Contains(out, " rescheduling stopped (3 of 6 nodes with instances have been lost since ") {
		t.Errorf("events say\n%s", out)
	}
	if _, errs, _ := f.mariposa("", "node", "list"); !strings.Contains(errs, "3 of 6 nodes with instances have been lost since ") || !strings.Contains(errs, "; 3 instances on them are not replaced until they return") || !strings.Contains(errs, "reschedule-now") {
		t.Errorf("node list says\n%s", errs)
	}
	f.isLater(last.Add(after + 3*time.Second))
	if n := f.replacements(since); len(n) != 0 {
		t.Fatalf("replaced by slot: %v", n)
	}
	for id, pid := range up {
		if !alive(pid) {
			t.Errorf("%s has died", id)
		}
	}

	f.restartServer() // what is decided is stored
	f.ok("node", "reschedule-now", "n1")
	f.await("the instance of n1 is replaced", func() bool { return f.web().Running == 4 })
	f.cannot("without a running replacement", "node", "rm", "n2")
	f.ok("node", "rm", "n2", "--force")
	f.await("the instance of n2 is replaced", func() bool { return f.web().Running == 5 })
	if s := f.web(); s.ReasonCode != mariposa.ReasonStorm {
		t.Errorf("the instance of n3 still waits: %+v", s)
	}
	if n := f.replacements(since); len(n) != 1 { // that of n2 is gone with it, so its slot is simply free
		t.Errorf("replaced by slot: %v", n)
	}

	f.startAgent("n1")
	f.startAgent("n3")
	f.awaitNode("n1", mariposa.NodeRunning)
	f.awaitNode("n3", mariposa.NodeRunning)
	f.converged("hello", "web", 6)
	f.await("the end is an event", func() bool { return f.kinds(since)["nodes.storm_ended"] == 1 })
	f.await("nothing is doubled", func() bool { return len(f.processes()) == 7 }) // that of n2 still runs
	if n := len(f.on("hello", "n1")); n != 0 {
		t.Errorf("%d are on n1, although they were replaced", n)
	}
	for id := range f.on("hello", "n3") {
		if !alive(up[id]) {
			t.Errorf("%s of n3 was replaced", id)
		}
	}

	f.startAgent("n2", "MARIPOSA_JOIN="+f.joinToken()) // it joins as a new node
	f.await("its instance is in quarantine", func() bool { n := f.nodeNamed("n2"); return n != nil && len(n.Quarantined) == 1 })
	if n := len(f.processes()); n != 7 {
		t.Errorf("%d processes run", n)
	}
	f.ok("node", "purge", "n2")
	f.realityMatches("hello")
	f.await("its events say so", func() bool {
		return strings.Contains(f.ok("events", "--since", itoa(int(since))), " node n2 has nothing in quarantine any more\n")
	})
	if n := f.kinds(since); n["nodes.storm_began"] != 1 || n["nodes.storm_ended"] != 1 || n["node.given_up"] != 1 {
		t.Errorf("events: %v", n)
	}
}

// A lost node's instances are replaced after reschedule.after, and removed when it returns.
// While it comes and goes, what has left it stays where it is.
func TestALostNodeIsReplacedAndItsSurplusRemoved(t *testing.T) {
	t.Parallel()
	f := newFleetSystem(t, "n1", "n2", "n3")
	f.create("hello", "services: {web: {compute_type: process, command: [sleep, '1000'], scale: 6, reschedule: {after: 2}, update: {min_healthy: 0}}}")
	f.converged("hello", "web", 6)
	since, up, there := f.revision(), f.upByID("hello"), f.on("hello", "n1")
	f.killAgents("n1")
	f.awaitNode("n1", mariposa.NodeUnknown)
	f.await("its instances are replaced", func() bool { return f.web().Running == 6 })
	if n := len(f.processes()); n != 6+len(there) || len(there) != 2 {
		t.Errorf("%d processes run, %d of them on the lost node", n, len(there))
	}
	f.startAgent("n1")
	f.awaitNode("n1", mariposa.NodeRunning)
	f.converged("hello", "web", 6)
	f.realityMatches("hello")
	for id := range there {
		if alive(up[id]) {
			t.Errorf("%s still runs on n1", id)
		}
	}
	for range 3 {
		f.killAgents("n1")
		f.awaitNode("n1", mariposa.NodeUnknown)
		f.startAgent("n1")
		f.awaitNode("n1", mariposa.NodeRunning)
	}
	f.converged("hello", "web", 6)
	f.realityMatches("hello")
	for slot, n := range f.replacements(since) {
		if n != 1 {
			t.Errorf("slot %s was replaced %d times", slot, n)
		}
	}
	if n := f.nodeNamed("n1"); n.ReasonCode != mariposa.ReasonUnstable || !strings.Contains(n.Reason, "it was lost 4 times within an hour") {
		t.Errorf("n1 is %+v", n)
	}
	f.ok("project", "scale", "hello", "web=8", "--wait")
	if n := len(f.on("hello", "n1")); n != 0 {
		t.Errorf("%d of 2 new instances are on the unstable node, though others fit", n)
	}
}

// An agent that is killed and started again and again, always back before the replacements
// are up, costs a few replacements and not one per loss.
func TestAFlappingAgentDoesNotBounceItsSlots(t *testing.T) {
	t.Parallel()
	f := newFleetSystem(t)
	start := func(name string, nodes int, env ...string) {
		f.agents[name] = f.launch(env, "agent", "--server", f.url, "--data", filepath.Join(f.dir, name), "--name", name, "--dummy-nodes", itoa(nodes))
	}
	start("shaky", 1, "MARIPOSA_JOIN="+f.joinToken())
	start("calm", 2, "MARIPOSA_JOIN="+f.joinToken())
	node := ""
	f.await("they have joined", func() bool {
		all, err := f.Nodes(t.Context())
		must(t, err)
		for _, n := range all.Nodes {
			if strings.Contains(n.Name, "shaky") {
				node = n.Name
			}
		}
		return len(all.Nodes) == 3
	})
	// An instance takes longer to start than the agent is away.
	f.create("hello", "services: {web: {compute_type: dummy, scale: 6, dummy: {wait_secs: 20}, reschedule: {after: 0}, update: {min_healthy: 0}}}")
	f.converged("hello", "web", 6)
	since := f.revision()
	const losses = 5
	for range losses {
		f.killAgents("shaky")
		f.awaitNode(node, mariposa.NodeUnknown)
		f.await("its instances are being replaced", func() bool { return len(f.on("hello", "")) == 6+len(f.on("hello", node)) })
		start("shaky", 1)
		f.awaitNode(node, mariposa.NodeRunning)
	}
	for slot, n := range f.replacements(since) {
		if n > 3 {
			t.Errorf("slot %s was replaced %d times for %d losses", slot, n, losses)
		}
	}
	f.converged("hello", "web", 6)
	f.await("the slots have left the node", func() bool { return len(f.on("hello", "")) == 6 && len(f.on("hello", node)) == 0 })
}
