package api_test

import (
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
