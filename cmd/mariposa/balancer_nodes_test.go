package main_test

import (
	"fmt"
	"strings"
	"testing"

	"mariposa/listener/porttest"

	"mariposa"
)

// TestABalancerFollowsItsNodes runs two nodes on one machine: a drained node and restarts lose no
// request, and the members of a lost node go.
func TestABalancerFollowsItsNodes(t *testing.T) {
	t.Parallel()
	f := newFleetSystem(t, "one", "two")
	port := porttest.Reserve(t)
	text := strings.Replace(balanced(4, port, "1", "", ""), "    grace: 60\n", "    grace: 60\n    reschedule: {never: true}\n", 1)
	f.ok("project", "create", "shop", "-m", fileOf(t, text), "--wait")
	f.membersUp("shop", "front", 4)
	at := f.balancer("shop", "front").Instances[0].NodeName
	other := map[string]string{"one": "two", "two": "one"}[at]
	count := func(node string) (n int) {
		for _, i := range f.instances("shop") {
			if i.NodeName == node && i.ServiceName == "web" && i.State == mariposa.StateRunning {
				n++
			}
		}
		return n
	}
	if count(other) == 0 {
		t.Fatalf("all members are on the node of the balancer: %s", f.describe("shop"))
	}
	// The agent of the other node is gone: its members go, although their processes still run.
	lost := count(other)
	f.killAgents(other)
	f.awaitNode(other, mariposa.NodeUnknown)
	f.membersUp("shop", "front", 4-lost)
	f.startAgent(other)
	f.membersUp("shop", "front", 4)
	f.awaitNode(other, mariposa.NodeRunning)

	l := startLoad(t, fmt.Sprintf("http://127.0.0.1:%d/", port))
	f.ok("node", "drain", other)
	f.await("the node is empty", func() bool { return count(other) == 0 && count(at) == 4 })
	f.ok("node", "undrain", other)
	f.membersUp("shop", "front", 4)
	f.restartServer()
	f.killAgents("one", "two")
	for name := range f.agents {
		f.startAgent(name)
		f.awaitNode(name, mariposa.NodeRunning)
	}
	f.ok("-j", "shop", "project", "scale", "web=6", "--wait")
	f.membersUp("shop", "front", 6)
	l.ends(t)
	for _, m := range f.balancer("shop", "front").Members {
		if !strings.HasPrefix(m.Address, "127.0.0.1:") {
			t.Errorf("%+v", m)
		}
	}
}
