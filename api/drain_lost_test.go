package api_test

import (
	"encoding/json"
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
	says(mariposa.ReasonDrainDown, "waits for node host-n1, which has been unknown since ", ": 3 of 4 instances of db are running, and at most 1 may be down at once (update.rolling); to replace its instances now, run `mariposa node reschedule-now host-n1`")
	says(mariposa.ReasonDrainProves, "is removed once its successor web.", "has been up for min_healthy")
	says(mariposa.ReasonDrainTurn, "waits for its turn: web moves 1 instance at a time (update.rolling) (and 1 more instance)")
	h.until("the task to say so", func() bool {
		return strings.Contains(h.task(*done.Task).Reason, "4 of 4 instances are left on node host-n2: db.")
	})
	if n := h.nodeOf("n2"); n.ReasonCode != mariposa.ReasonDrainLeft || !strings.Contains(n.Reason, "at most 1 may be down") {
		t.Errorf("the node says %q", n.Reason)
	}
	successor := ""
	for _, i := range h.instances("shop", "web") {
		if strings.Contains(h.stays("n2")[mariposa.ReasonDrainProves], i.Name+",") {
			successor = i.Node
		}
	}
	h.actOnNode(successor, contract.NodeAction{Action: "lose"})
	says(mariposa.ReasonDrainLost, "stays, because its successor web.", "is on node host-"+successor+", which has been ", "; to replace the successor now, run `mariposa node reschedule-now host-"+successor+"`")
}

// The dry run of a drain knows that an instance of a stop-first service has to wait for a
// lost node, and says so in the words of the drain.
func TestADryRunSaysWhatWouldWaitForALostNode(t *testing.T) {
	t.Parallel()
	h := newTestServer(t, withPlanner)
	h.joinNodes(4)
	h.create("shop", "services:\n  web: {compute_type: dummy, scale: 4, update: {min_healthy: 0}, reschedule: {after: 900}}\n"+
		"  db: {compute_type: dummy, scale: 4, update: {order: stop-first, min_healthy: 0}, reschedule: {after: 900}}\n")
	h.awaitRest("shop")
	h.actOnNode("n1", contract.NodeAction{Action: "lose"})
	h.until("the state to count the lost node", func() bool { return h.of("shop", "db").Running == 3 && h.of("shop", "web").Running == 3 })
	plan := h.actOnNode("n2", contract.NodeAction{Action: "drain", DryRun: true}).Drain
	if plan.Complete || len(plan.Stays) != 1 || len(plan.Moves) != 1 || plan.Moves[0].ServiceName != "web" || plan.Stays[0].ReasonCode != mariposa.ReasonDrainDown {
		t.Fatalf("the dry run says %+v", plan)
	}
	h.actOnNode("n2", contract.NodeAction{Action: "drain"})
	said := ""
	h.until("the drain to wait", func() bool { said = h.stays("n2")[mariposa.ReasonDrainDown]; return said != "" })
	if said != plan.Stays[0].Reason {
		t.Errorf("the dry run said %q, and the drain says %q", plan.Stays[0].Reason, said)
	}
	h.actOnNode("n1", contract.NodeAction{Action: "reschedule-now"})
	h.until("the node to be drained", func() bool { return h.nodeOf("n2").Status == mariposa.NodeDrained })
}

// A drain that stopped says what is left now, and is complete once nothing is left, whoever
// removed it.
func TestADrainThatStoppedCompletesOnceTheNodeIsEmpty(t *testing.T) {
	t.Parallel()
	h := newTestServer(t, withPlanner)
	h.joinNodes(1)
	h.create("shop", "services: {web: {compute_type: dummy}, cold: {compute_type: dummy}}\n")
	h.awaitRest("shop")
	h.startTask("shop", `{"action":"freeze","services":["cold"]}`)
	h.until("cold to be frozen", func() bool { return h.of("shop", "cold").Status == mariposa.StatusFrozen })
	soon := 0.1
	done := h.actOnNode("n1", contract.NodeAction{Action: "drain", Deadline: &soon})
	h.until("the deadline", func() bool { return h.task(*done.Task).State == mariposa.TaskFailed })
	h.until("what is left", func() bool {
		n := h.nodeOf("n1")
		return n.ReasonCode == mariposa.ReasonDrainDeadline && strings.Contains(n.Reason, ": 2 instances are left on node host-n1: cold.1-") &&
			strings.HasSuffix(n.Reason, "is frozen; thaw it with `mariposa project thaw shop --service cold`; then continue with `mariposa node drain host-n1`")
	})
	h.startTask("shop", `{"action":"stop","services":["cold"]}`)
	h.until("what is left then", func() bool {
		return strings.HasSuffix(h.nodeOf("n1").Reason, ": 1 instance is left on node host-n1; continue with `mariposa node drain host-n1`")
	})
	h.startTask("shop", `{"action":"stop","services":["web"]}`)
	h.until("the node to be drained", func() bool { return h.nodeOf("n1").Status == mariposa.NodeDrained })
	if n := h.nodeOf("n1"); n.Drain.State != mariposa.DrainDone || n.ReasonCode != mariposa.ReasonDrainDone || n.Drain.Left != 0 {
		t.Errorf("%+v", n)
	}
	if kinds := h.eventKinds(); kinds["node.drain_stopped"] != 1 || kinds["node.drained"] != 1 || h.task(*done.Task).State != mariposa.TaskFailed {
		t.Errorf("events %v, task %+v", kinds, h.task(*done.Task))
	}
}

// Who waits for a lost node learns for how long, and how to go on now: also when a second
// change is refused, and also if somebody else has to do it.
func TestATaskThatWaitsForALostNodeSaysHowToGoOn(t *testing.T) {
	t.Parallel()
	h := newTestServer(t, withPlanner)
	h.joinNodes(3)
	h.create("shop", "services:\n  web: {compute_type: dummy, scale: 3, update: {min_healthy: 0}, reschedule: {after: 900}}\n")
	h.awaitRest("shop")
	h.actOnNode("n3", contract.NodeAction{Action: "lose"})
	h.until("the state to count the lost node", func() bool { return h.of("shop", "web").Running == 2 })
	id := h.startTask("shop", `{"action":"scale","scale":{"web":4}}`)
	const command = "`mariposa project converge shop --reschedule-now`"
	var task contract.Task
	h.until("the task to wait", func() bool { task = h.task(id); return task.Waits != "" && h.of("shop", "web").Running == 3 })
	if !strings.Contains(task.Waits, "is on node host-n3, which has been unknown since ") || !strings.HasSuffix(task.Waits, "; to replace it now, run "+command) || task.WaitsUntil == nil || task.ETA != nil {
		t.Errorf("the task says %+v", task)
	}
	h.call("PUT", "/v1/projects/shop/state", json.RawMessage(`{"action":"scale","scale":{"web":5}}`)).wantError(409, mariposa.Conflict,
		"wait for it to end (`mariposa queue show "+id+"`), end it with `mariposa queue terminate "+id+"`, which freezes its services until you thaw them, or stop the project; it waits: web: web.")
	h.call("PUT", "/v1/projects/shop/state", json.RawMessage(`{"action":"scale","scale":{"web":5}}`)).wantError(409, mariposa.Conflict, "; to replace it now, run "+command)

	reader := h.bearing(contract.NewToken{Name: "reader", Role: mariposa.RoleViewer})
	state := want[contract.State](reader.call("GET", "/v1/state?project=shop", nil), 200).Projects[0]
	for _, said := range []string{state.Reason, strings.TrimSuffix(state.Services[0].Reason, "; 1 unknown"), want[contract.Task](reader.call("GET", "/v1/queue/"+id, nil), 200).Waits} {
		if !strings.HasSuffix(said, "to replace it now, ask an operator to run "+command) {
			t.Errorf("a viewer reads %q", said)
		}
	}
	h.startTask("shop", `{"action":"converge","reschedule_now":true}`)
	h.until("the task to end", func() bool { return h.task(id).State.Ended() })
}

// A thaw waits as other tasks do, and says for what.
func TestAThawSaysWhatItWaitsFor(t *testing.T) {
	t.Parallel()
	h := newTestServer(t, withPlanner)
	h.joinNodes(3)
	h.create("shop", "services:\n  web: {compute_type: dummy, scale: 3, update: {min_healthy: 0}, reschedule: {after: 900}}\n")
	h.awaitRest("shop")
	freeze := h.startTask("shop", `{"action":"freeze"}`)
	h.until("the freeze", func() bool { return h.of("shop", "web").Frozen })
	h.actOnNode("n3", contract.NodeAction{Action: "lose"})
	h.until("the state to count the lost node", func() bool { return h.of("shop", "web").Running == 2 })
	if task := h.task(freeze); task.Waits != "" {
		t.Errorf("the freeze waits: %s", task.Waits)
	}
	id := h.startTask("shop", `{"action":"thaw"}`)
	h.until("the thaw to wait", func() bool {
		task := h.task(id)
		return strings.Contains(task.Waits, "is on node host-n3, which has been unknown since ") && task.WaitsUntil != nil
	})
	h.startTask("shop", `{"action":"converge","reschedule_now":true}`)
	h.until("the thaw to end", func() bool { return h.task(id).State == mariposa.TaskCompleted })
}

// An instance with volumes on a lost node cannot be replaced: nobody is told that it will be,
// or how.
func TestAnInstanceWithVolumesOnALostNodeStartsWhenTheNodeReturns(t *testing.T) {
	t.Parallel()
	h := newTestServer(t, withPlanner)
	h.joinNodes(3)
	h.create("shop", "services:\n  db: {compute_type: dummy, scale: 3, volumes: [\"data:/data\"], update: {min_healthy: 0}, reschedule: {after: 900}}\nvolumes: {data: {}}\n")
	h.awaitRest("shop")
	h.actOnNode("n3", contract.NodeAction{Action: "lose"})
	var s contract.ServiceState
	h.until("the planner to see the lost node", func() bool { s = h.of("shop", "db"); return s.Running == 2 && s.ReasonCode != "" })
	if s.ReasonCode != mariposa.ReasonNodeAwayVolumes || !strings.Contains(s.Reason, ", and has volumes there: data; it starts when the node returns; if the node will not return, ") || strings.Contains(s.Reason, "reschedule-now") {
		t.Errorf("db: %+v", s)
	}
	h.actOnNode("n3", contract.NodeAction{Action: "reschedule-now"})
	h.until("the planner to know that", func() bool { return h.of("shop", "db").Status == mariposa.StatusBlocked })
	h.call("DELETE", "/v1/nodes/n3", nil).wantError(409, mariposa.Conflict, "still has 1 volume with the only copy of its data")
}
