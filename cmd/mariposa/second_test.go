package main_test

import (
	"slices"
	"strings"
	"testing"

	"mariposa"
)

// A second agent on a data directory refuses, and says why. It has changed nothing: what the first
// one starts afterwards is found again by the next.
func TestASecondAgentOnADataDirectoryRefuses(t *testing.T) {
	t.Parallel()
	a := newSplitSystem(t)
	agent := a.agentWith(a.joinToken())
	a.awaitNode("node-a", mariposa.NodeRunning)
	for range 2 {
		_, said, code := finish(t, program(t.Context(), a.dir, nil, "agent", "--server", a.url, "--data", a.dir, "--name", "node-b"), "")
		if code != 1 || !strings.Contains(said, "another agent uses the data directory "+a.dir+": stop it first, or name another directory with --data") {
			t.Errorf("exit %d: %s", code, said)
		}
	}
	a.create("shop", "services: {d: {compute_type: dummy, scale: 2}}")
	a.converged("shop", "d", 2)
	names := func() (all []string) {
		for _, i := range a.instances("shop") {
			all = append(all, i.Name)
		}
		slices.Sort(all)
		return all
	}
	before := names()
	_ = agent.Process.Kill()
	_ = agent.Wait()
	connected := strings.Count(a.out.String(), "node connected")
	a.agentWith("")
	a.await("the next agent is connected", func() bool { return strings.Count(a.out.String(), "node connected") > connected })
	a.create("later", "services: {d: {compute_type: dummy, scale: 1}}") // the node does what it is told again
	a.converged("later", "d", 1)
	a.converged("shop", "d", 2)
	if after := names(); strings.Join(after, " ") != strings.Join(before, " ") {
		t.Errorf("the instances were %v and are %v", before, after)
	}
}
