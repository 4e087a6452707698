package api_test

import (
	"strings"
	"testing"

	"mariposa"
	"mariposa/contract"
)

// A node is lost, and its instances are not replaced for a long time. The drain of another
// node completes all the same, and no slot is left without an instance.
func TestADrainCompletesWhileAnotherNodeIsLost(t *testing.T) {
	t.Parallel()
	h := newTestServer(t, withPlanner)
	h.joinNodes(8)
	h.create("shop", "services:\n  web: {compute_type: dummy, scale: 16, update: {min_healthy: 0.05}, reschedule: {after: 900}}\n")
	h.awaitRest("shop")
	h.actOnNode("n4", contract.NodeAction{Action: "lose"})
	h.until("the state to count the lost node", func() bool { return h.of("shop", "web").Running == 14 })
	since := h.picture.Revision()
	done := h.actOnNode("n6", contract.NodeAction{Action: "drain"})
	h.until("the node to be drained", func() bool { return h.nodeOf("n6").Status == mariposa.NodeDrained })
	if task := h.task(*done.Task); task.State != mariposa.TaskCompleted {
		t.Errorf("task %+v", task)
	}
	h.ranNeverFewerThan("shop", since, 14)
	h.actOnNode("n4", contract.NodeAction{Action: "restore"})
	h.awaitRest("shop")
	slots := map[string]int{}
	for _, i := range h.instances("shop", "web") {
		slots[i.Slot]++
	}
	if len(slots) != 16 || len(h.instances("shop", "web")) != 16 {
		t.Errorf("instances by slot: %v", slots)
	}
}

// stays returns the sentences of the instances that are left on a node, by code.
func (h *testServer) stays(node string) map[mariposa.ReasonCode]string {
	h.t.Helper()
	said := map[mariposa.ReasonCode]string{}
	for _, s := range h.nodeOf(node).Drain.Stays {
		said[s.ReasonCode] = s.Reason
	}
	return said
}

// While instances stay on a node that is drained, the node and the task say why.
func TestADrainSaysWhyInstancesStay(t *testing.T) {
	t.Parallel()
	h := newTestServer(t, withPlanner)
	h.joinNodes(4)
	h.create("shop", "services:\n  web: {compute_type: dummy, scale: 12, update: {min_healthy: 900}, reschedule: {after: 900}}\n"+
		"  db: {compute_type: dummy, scale: 4, update: {order: stop-first, min_healthy: 0}, reschedule: {after: 900}}\n")
	h.awaitRest("shop")
	h.actOnNode("n1", contract.NodeAction{Action: "lose"})
	h.until("the state to count the lost node", func() bool { return h.of("shop", "db").Running == 3 })
	done := h.actOnNode("n2", contract.NodeAction{Action: "drain"})
	says := func(code mariposa.ReasonCode, texts ...string) {
		t.Helper()
		said := ""
		h.until("the reason "+string(code), func() bool { said = h.stays("n2")[code]; return said != "" })
		for _, text := range texts {
			if !strings.Contains(said, text) {
				t.Errorf("%s says %q, without %q", code, said, text)
			}
		}
	}
	says(mariposa.ReasonDrainDown, "waits, because 3 of 4 instances of db run, and no more may be down at once (update.rolling)")
	says(mariposa.ReasonDrainProves, "is removed once its successor web.", "has been up for min_healthy")
	says(mariposa.ReasonDrainTurn, "waits for its turn: web moves 1 instance at a time (update.rolling) (and 1 more)")
	h.until("the task to say so", func() bool {
		return strings.Contains(h.task(*done.Task).Reason, "4 of 4 instances are left on node host-n2: db.")
	})
	if n := h.nodeOf("n2"); n.ReasonCode != mariposa.ReasonDrainLeft || !strings.Contains(n.Reason, "no more may be down") {
		t.Errorf("the node says %q", n.Reason)
	}
	successor := ""
	for _, i := range h.instances("shop", "web") {
		if strings.Contains(h.stays("n2")[mariposa.ReasonDrainProves], i.Name+",") {
			successor = i.Node
		}
	}
	h.actOnNode(successor, contract.NodeAction{Action: "lose"})
	says(mariposa.ReasonDrainLost, "stays, because its successor web.", "is on node host-"+successor+", which has been ")
}
