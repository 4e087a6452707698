package api_test

import (
	"fmt"
	"strings"
	"testing"

	"mariposa"
	"mariposa/contract"
)

// joinIdle joins nodes that offer no driver, so that they never have instances. Hand-written
// agents keep them connected.
func (h *testServer) joinIdle(n int) (names []string) {
	h.t.Helper()
	for i := range n {
		name := fmt.Sprint("idle", i+1)
		hello := helloOf(name)
		hello.Drivers = nil
		h.connectAgent(hello)
		names = append(names, name)
	}
	return names
}

func (h *testServer) lose(nodes ...string) {
	h.t.Helper()
	for _, n := range nodes {
		h.actOnNode(n, contract.NodeAction{Action: "lose"})
	}
	h.until("the nodes to be lost", func() bool {
		for _, n := range nodes {
			if h.nodeOf(n).Status != mariposa.NodeUnknown {
				return false
			}
		}
		return true
	})
}

func (h *testServer) stormNow() *contract.Storm {
	h.t.Helper()
	return want[contract.Nodes](h.call("GET", "/v1/nodes", nil), 200).Storm
}

// Whoever has a join token can let nodes join and leave. As long as nothing is placed on
// them, that does not keep the instances of a lost node from being replaced.
func TestLostNodesWithoutInstancesAreNoStorm(t *testing.T) {
	t.Parallel()
	h := newTestServer(t, withPlanner)
	h.joinNodes(4)
	h.create("shop", "services:\n  web: {compute_type: dummy, scale: 4, update: {min_healthy: 0}, reschedule: {after: 1}}\n")
	h.awaitRest("shop")
	idle := h.joinIdle(7)
	h.lose(append(idle, "n1")...)
	h.until("the lost instance to be replaced", func() bool {
		if storm := h.stormNow(); storm != nil {
			t.Fatalf("there is a storm: %s", storm.Text)
		}
		return h.of("shop", "web").Running == 4
	})
	if n := h.eventKinds()["nodes.storm_began"]; n != 0 {
		t.Errorf("%d storms began", n)
	}
}

// Idle nodes do not make a loss of many nodes look small either.
func TestNodesWithoutInstancesDoNotHideAStorm(t *testing.T) {
	t.Parallel()
	h := newTestServer(t, withPlanner)
	h.joinNodes(4)
	h.create("shop", "services:\n  web: {compute_type: dummy, scale: 4, update: {min_healthy: 0}, reschedule: {after: 3600}}\n")
	h.awaitRest("shop")
	h.joinIdle(9)
	h.lose("n1", "n2")
	const text = "2 of 4 nodes with instances have been lost since "
	h.until("the state to say so", func() bool { return strings.Contains(h.of("shop", "web").Reason, text) })
	if storm := h.stormNow(); storm == nil || storm.Count != 2 || storm.Of != 4 || storm.Waiting != 2 || !strings.HasPrefix(storm.Text, text) {
		t.Errorf("the list of nodes shows %+v", storm)
	}
	h.until("the storm to be an event", func() bool { return h.eventKinds()["nodes.storm_began"] == 1 })
}

// A storm whose lost nodes are removed is over: what is still lost is replaced.
func TestAStormEndsWhenItsNodesAreRemoved(t *testing.T) {
	t.Parallel()
	h := newTestServer(t, withPlanner)
	_, leave := h.joinGatedUntil("n1", newGatedDriver())
	for _, id := range []string{"n2", "n3", "n4"} {
		h.joinGated(id)
	}
	h.create("shop", "services:\n  web: {compute_type: dummy, scale: 4, update: {min_healthy: 0}, reschedule: {after: 1}}\n")
	h.awaitRest("shop")
	h.lose("n1", "n2")
	h.until("the storm to be stored", func() bool { return h.stormNow() != nil && h.eventKinds()["nodes.storm_began"] == 1 })
	leave() // else it joins again, and one lost node of four keeps the storm
	want[contract.Changed](h.call("DELETE", "/v1/nodes/n1?force=true", nil), 200)
	if storm := h.stormNow(); storm != nil {
		t.Errorf("one lost node is left, and there is still a storm: %s", storm.Text)
	}
	h.until("the instances of both to be replaced", func() bool { return h.of("shop", "web").Running == 4 })
	h.awaitEvent("nodes.storm_ended")
}
