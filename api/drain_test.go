package api_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"mariposa"
	"mariposa/contract"
)

func (h *testServer) nodeOf(id string) contract.Node {
	h.t.Helper()
	return want[contract.Node](h.call("GET", "/v1/nodes/"+id, nil), 200)
}

// onNode counts the instances of a project on a node.
func (h *testServer) onNode(project, node string) (n int) {
	h.t.Helper()
	for _, i := range want[contract.Instances](h.call("GET", "/v1/instances?project="+project+"&node="+node, nil), 200).Instances {
		if i.State == mariposa.StateRunning {
			n++
		}
	}
	return n
}

func (h *testServer) actOnNode(node string, ask contract.NodeAction) contract.Changed {
	h.t.Helper()
	return want[contract.Changed](h.call("PUT", "/v1/nodes/"+node, ask), 200)
}

// joinNodes joins nodes n1 to nN and waits for them.
func (h *testServer) joinNodes(n int) {
	h.t.Helper()
	for i := range n {
		h.joinGated(fmt.Sprint("n", i+1))
	}
	h.until("the nodes to join", func() bool {
		all := want[contract.Nodes](h.call("GET", "/v1/nodes", nil), 200).Nodes
		return len(all) == n && !slices.ContainsFunc(all, func(n contract.Node) bool { return n.Status != mariposa.NodeRunning })
	})
}

// The dry run names the nodes that the placer would choose: those with the fewest instances
// of the service, counting what the drain has moved before.
func TestADryRunNamesTheNodesThatADrainMovesTo(t *testing.T) {
	t.Parallel()
	h := newTestServer(t, withPlanner)
	h.joinNodes(2)
	h.create("shop", fleetOf(6, 1, ""))
	h.awaitRest("shop")
	h.joinGated("n3")
	h.joinGated("n4")
	h.until("the nodes to join", func() bool {
		return h.nodeOf("n3").Status == mariposa.NodeRunning && h.nodeOf("n4").Status == mariposa.NodeRunning
	})
	for _, n := range []string{"n1", "n2", "n4"} {
		h.actOnNode(n, contract.NodeAction{Action: "reserve"})
	}
	h.create("bulk", fleetOf(5, 1, ""))
	h.awaitRest("bulk")
	for _, n := range []string{"n1", "n2", "n4"} {
		h.actOnNode(n, contract.NodeAction{Action: "unreserve"})
	}
	if on := [...]int{h.onNode("shop", "n1"), h.onNode("shop", "n2"), h.onNode("bulk", "n3")}; on != [...]int{3, 3, 5} {
		t.Fatalf("on the nodes are %v", on)
	}
	plan := h.actOnNode("n1", contract.NodeAction{Action: "drain", DryRun: true}).Drain
	forecast := map[string]string{} // nodes by slot
	for _, m := range plan.Moves {
		slot, _, _ := strings.Cut(m.Name, "-")
		forecast[slot] = m.ToName
	}
	if len(forecast) != 3 {
		t.Fatalf("the dry run says %+v", plan)
	}
	h.actOnNode("n1", contract.NodeAction{Action: "drain"})
	h.until("the node to be drained", func() bool { return h.nodeOf("n1").Status == mariposa.NodeDrained })
	for _, i := range h.instances("shop", "web") {
		slot, _, _ := strings.Cut(i.Name, "-")
		if to := forecast[slot]; to != "" && to != i.NodeName {
			t.Errorf("%s is on %s, and the dry run said %s; it said %v", slot, i.NodeName, to, forecast)
		}
	}
}

// A drain moves everything to other nodes, start-first: never fewer run than wanted.
func TestADrainMovesEverythingOffItsNode(t *testing.T) {
	t.Parallel()
	h := newTestServer(t, withPlanner)
	h.joinNodes(3)
	h.create("shop", fleetOf(9, 1, ", rolling: 2"))
	h.awaitRest("shop")
	before := h.onNode("shop", "n1")
	if before == 0 {
		t.Fatal("nothing runs on n1")
	}
	plan := h.actOnNode("n1", contract.NodeAction{Action: "drain", DryRun: true}).Drain
	if plan == nil || len(plan.Moves) != before || len(plan.Stays) != 0 || !plan.Complete || plan.Moves[0].ToName == "" || plan.Moves[0].ToName == "host-n1" {
		t.Fatalf("the dry run says %+v", plan)
	}
	if n := h.nodeOf("n1"); n.Drain != nil || !n.Eligible {
		t.Fatalf("the dry run changed the node: %+v", n)
	}
	since := h.picture.Revision()
	done := h.actOnNode("n1", contract.NodeAction{Action: "drain"})
	if done.Task == nil {
		t.Fatal("there is no task")
	}
	fewest := 9
	h.until("the node to be drained", func() bool {
		fewest = min(fewest, h.of("shop", "web").Running)
		return h.nodeOf("n1").Status == mariposa.NodeDrained
	})
	if fewest < 9 {
		t.Errorf("only %d ran at times", fewest)
	}
	task := h.task(*done.Task)
	if task.State != mariposa.TaskCompleted || task.Progress.Done != task.Progress.Total || task.Progress.Total != before || task.Node != "n1" || task.Component != "drain" {
		t.Errorf("task %+v", task)
	}
	if n := h.nodeOf("n1"); n.Instances != 0 || n.Eligible || n.Drain.State != mariposa.DrainDone || n.ReasonCode != mariposa.ReasonDrainDone {
		t.Errorf("node %+v", n)
	}
	h.awaitRest("shop")
	h.ranNeverFewerThan("shop", since, 9)
	parts := want[contract.Tasks](h.call("GET", "/v1/queue?project=shop&all=true", nil), 200).Tasks
	if !slices.ContainsFunc(parts, func(p contract.Task) bool {
		return p.Parent == task.ID && p.Origin == mariposa.OriginMariposa && p.Author == task.Author && p.State == mariposa.TaskCompleted
	}) {
		t.Errorf("no task of the project is part of the drain: %+v", parts)
	}

	h.awaitTask(h.startTask("shop", `{"action":"scale","scale":{"web":12}}`), mariposa.TaskCompleted)
	if n := h.onNode("shop", "n1"); n != 0 {
		t.Errorf("%d new instances are on the drained node", n)
	}
	h.actOnNode("n1", contract.NodeAction{Action: "undrain"})
	if n := h.nodeOf("n1"); n.Status != mariposa.NodeRunning || n.Drain != nil || !n.Eligible || n.Instances != 0 {
		t.Errorf("after undrain: %+v", n)
	}
	h.awaitTask(h.startTask("shop", `{"action":"scale","scale":{"web":15}}`), mariposa.TaskCompleted)
	if h.onNode("shop", "n1") != 3 {
		t.Errorf("%d instances are on the node after undrain", h.onNode("shop", "n1"))
	}
}

// ranNeverFewerThan reads the feed: however often somebody looks, so many instances of a
// project were running and wanted since a revision.
func (h *testServer) ranNeverFewerThan(project string, since int64, least int) {
	h.t.Helper()
	up := map[string]bool{}
	for _, i := range h.instances(project, "web") {
		up[i.ID] = true
	}
	type change struct {
		id     string
		starts bool
	}
	var all []change
	for _, e := range want[contract.Events](h.call("GET", fmt.Sprintf("/v1/events?since=%d&project=%s&limit=1000", since, project), nil), 200).Events {
		switch e.Kind {
		case "instance.running":
			if !slices.ContainsFunc(all, func(c change) bool { return c.id == e.Instance && c.starts }) {
				all = append(all, change{e.Instance, true})
			}
		case "instance.stopping":
			all = append(all, change{e.Instance, false})
		}
	}
	n := len(up)
	for _, c := range slices.Backward(all) { // from the end to the beginning
		if c.starts {
			n--
		} else {
			n++
		}
		if n < least {
			h.t.Fatalf("only %d ran before %+v", n, c)
		}
	}
}

// What cannot be moved is named, and the drain stops at its deadline, or when somebody
// terminates it.
func TestADrainSaysWhatItCannotMove(t *testing.T) {
	t.Parallel()
	h := newTestServer(t, withPlanner)
	h.joinNodes(1)
	h.create("shop", "services: {web: {compute_type: dummy}, cold: {compute_type: dummy}}\n")
	h.awaitRest("shop")
	want[contract.Changed](h.call("POST", "/v1/instances", `{"project":"shop","name":"alone","compute_type":"dummy"}`), 201)
	h.until("the single instance to run", func() bool { return h.onNode("shop", "n1") == 3 })
	h.startTask("shop", `{"action":"freeze","services":["cold"]}`)
	h.until("cold to be frozen", func() bool { return h.of("shop", "cold").Status == mariposa.StatusFrozen })
	h.call("PUT", "/v1/nodes/n1", contract.NodeAction{Action: "undrain", Force: true}).wantError(400, mariposa.InvalidArgument, "only drain")

	done := h.actOnNode("n1", contract.NodeAction{Action: "drain"})
	var n contract.Node
	h.until("the reasons", func() bool {
		n = h.nodeOf("n1")
		return len(n.Drain.Stays) == 3
	})
	codes := map[mariposa.ReasonCode]bool{}
	for _, s := range n.Drain.Stays {
		codes[s.ReasonCode] = true
	}
	if !codes[mariposa.ReasonDrainUnmanaged] || !codes[mariposa.ReasonDrainFrozen] || !codes[mariposa.ReasonDrainService] || n.Status != mariposa.NodeRunning {
		t.Errorf("it says %+v", n.Drain)
	}
	if s := h.of("shop", "web"); s.Running != 1 || s.Status != mariposa.StatusBlocked || !strings.Contains(s.Reason, "drained (1 of 1)") {
		t.Errorf("web: %+v", s)
	}
	if tasks := want[contract.Tasks](h.call("GET", "/v1/queue", nil), 200).Tasks; !slices.ContainsFunc(tasks, func(t contract.Task) bool { return t.ID == *done.Task }) {
		t.Errorf("the queue does not show the drain: %+v", tasks)
	}
	ended := want[contract.Terminated](h.call("DELETE", "/v1/queue/"+*done.Task, nil), 202)
	if ended.ContinueWith != "mariposa node drain host-n1" || ended.UndoWith == nil || *ended.UndoWith != "mariposa node undrain host-n1" {
		t.Errorf("it says %+v", ended)
	}
	if n = h.nodeOf("n1"); n.Drain.State != mariposa.DrainStopped || n.Eligible || n.ReasonCode != mariposa.ReasonDrainStopped {
		t.Errorf("after it was terminated: %+v", n)
	}
	h.until("web to be at rest", func() bool { return h.of("shop", "web").Status == mariposa.StatusConverged })
	h.call("DELETE", "/v1/queue/"+*done.Task, nil).wantError(409, mariposa.Conflict, "already ended")

	soon := 0.1
	done = h.actOnNode("n1", contract.NodeAction{Action: "drain", Deadline: &soon, Force: true})
	if !strings.Contains(done.Reason, "alone") {
		t.Errorf("it says %q", done.Reason)
	}
	h.until("the deadline", func() bool { return h.task(*done.Task).State == mariposa.TaskFailed })
	if task := h.task(*done.Task); task.ReasonCode != mariposa.ReasonDrainDeadline {
		t.Errorf("task %+v", task)
	}
	h.until("the single instance to go", func() bool { return h.onNode("shop", "n1") == 2 })
}

// Two drains that leave no room move nothing away; once one ends, the other completes.
func TestTwoDrainsThatLeaveNoRoom(t *testing.T) {
	t.Parallel()
	h := newTestServer(t, withPlanner)
	h.joinNodes(2)
	h.create("shop", fleetOf(4, 1, ""))
	h.awaitRest("shop")
	first := h.actOnNode("n1", contract.NodeAction{Action: "drain"})
	second := h.actOnNode("n2", contract.NodeAction{Action: "drain"})
	h.until("it to be blocked", func() bool { return h.of("shop", "web").Status == mariposa.StatusBlocked })
	if s := h.of("shop", "web"); s.Running < 4 {
		t.Errorf("%+v", s)
	}
	h.actOnNode("n2", contract.NodeAction{Action: "undrain"})
	h.until("the first to be drained", func() bool { return h.nodeOf("n1").Status == mariposa.NodeDrained })
	if a, b := h.task(*first.Task), h.task(*second.Task); a.State != mariposa.TaskCompleted || b.State != mariposa.TaskTerminated || b.ReasonCode != mariposa.ReasonDrainUndone {
		t.Errorf("%+v\n%+v", a, b)
	}
	h.until("all to run on n2", func() bool { return h.onNode("shop", "n2") == 4 })
}

// Many nodes that are lost at once are not replaced until they return, unless a person
// says so.
func TestAStormOfLostNodesStopsRescheduling(t *testing.T) {
	t.Parallel()
	h := newTestServer(t, withPlanner)
	h.joinNodes(6)
	h.create("shop", "services:\n  web: {compute_type: dummy, scale: 6, update: {min_healthy: 0}, reschedule: {after: 30}}\n")
	h.awaitRest("shop")
	lost := []string{"n1", "n2", "n3"}
	for _, n := range lost {
		h.actOnNode(n, contract.NodeAction{Action: "lose"})
	}
	h.until("the state to say so", func() bool { return h.of("shop", "web").ReasonCode == mariposa.ReasonStorm })
	if s := h.of("shop", "web"); s.Status != mariposa.StatusBlocked || s.Running != 3 || !strings.HasSuffix(s.Reason, " (and 2 more instances); to replace them now, run `mariposa project converge shop --reschedule-now`") {
		t.Errorf("%+v", s)
	}
	h.until("the storm to be an event", func() bool { return h.eventKinds()["nodes.storm_began"] == 1 })
	h.actOnNode("n1", contract.NodeAction{Action: "reschedule-now"})
	h.until("the given-up node to be replaced, and no other", func() bool {
		s := h.of("shop", "web")
		return s.Running == 4 && s.ReasonCode == mariposa.ReasonStorm
	})
	h.call("PUT", "/v1/nodes/n5", contract.NodeAction{Action: "reschedule-now"}).wantError(409, mariposa.Conflict, "node drain host-n5")
	for _, n := range lost {
		h.actOnNode(n, contract.NodeAction{Action: "restore"})
	}
	h.until("the end of the storm", func() bool {
		s := h.of("shop", "web")
		return want[contract.Nodes](h.call("GET", "/v1/nodes", nil), 200).Storm == nil && s.Status == mariposa.StatusConverged && s.Running == 6
	})
	// The state counts the lost nodes of the moment; the event follows at the next look at the fleet.
	h.awaitEvent("nodes.storm_ended")
	if kinds := h.eventKinds(); kinds["nodes.storm_began"] != 1 || kinds["node.given_up"] != 1 {
		t.Errorf("events %v", kinds)
	}
}

// eventKinds counts all events.
func (h *testServer) eventKinds() map[string]int {
	h.t.Helper()
	kinds := map[string]int{}
	const most = 1000
	for since := int64(0); ; {
		page := want[contract.Events](h.call("GET", fmt.Sprintf("/v1/events?since=%d&limit=%d", since, most), nil), 200).Events
		for _, e := range page {
			kinds[e.Kind]++
			since = max(since, e.Revision)
		}
		if len(page) < most {
			return kinds
		}
	}
}

// awaitEvent waits for an event.
func (h *testServer) awaitEvent(kind string) {
	h.t.Helper()
	h.until("the event "+kind, func() bool { return h.eventKinds()[kind] > 0 })
}

// Nodes that are lost at once are noticed one after another. What people read counts all of
// them, without a further event, and says what still waits for them.
func TestTheReasonOfAStormCountsAllLostNodes(t *testing.T) {
	t.Parallel()
	h := newTestServer(t, withPlanner)
	h.joinNodes(5)
	h.create("shop", "services:\n  web: {compute_type: dummy, scale: 5, update: {min_healthy: 0}, reschedule: {after: 3600}}\n")
	h.awaitRest("shop")
	counts := func(text string) func() bool {
		return func() bool {
			all := want[contract.Nodes](h.call("GET", "/v1/nodes", nil), 200)
			return all.Storm != nil && strings.HasPrefix(all.Storm.Text, text) && strings.Contains(h.of("shop", "web").Reason, text)
		}
	}
	h.actOnNode("n1", contract.NodeAction{Action: "lose"})
	h.actOnNode("n2", contract.NodeAction{Action: "lose"})
	h.until("two lost nodes to be counted", counts("2 of 5 nodes with instances have been lost since "))
	h.until("the project to be blocked", func() bool { return h.eventKinds()["project.blocked"] == 1 })
	h.actOnNode("n3", contract.NodeAction{Action: "lose"})
	h.until("the third lost node to be counted", counts("3 of 5 nodes with instances have been lost since "))
	h.until("the storm to be stored", func() bool { return h.eventKinds()["nodes.storm_began"] == 1 })
	storm := want[contract.Nodes](h.call("GET", "/v1/nodes", nil), 200).Storm
	if storm.Count != 3 || storm.Of != 5 || storm.Waiting != 3 || !strings.HasSuffix(storm.Text, "; 3 instances on them are not replaced until they return") {
		t.Errorf("%+v", storm)
	}
	if s := h.of("shop", "web"); !strings.Contains(s.Reason, "3 of 5 nodes with instances have been lost") {
		t.Errorf("once it is stored, %s", s.Reason)
	}

	h.startTask("shop", `{"action":"converge","reschedule_now":true}`)
	h.until("all to be replaced", func() bool { return h.of("shop", "web").Running == 5 })
	storm = want[contract.Nodes](h.call("GET", "/v1/nodes", nil), 200).Storm
	if storm.Count != 3 || storm.Waiting != 0 || !strings.HasSuffix(storm.Text, "; no instance waits for them") {
		t.Errorf("all are replaced, but %+v", storm)
	}
	if kinds := h.eventKinds(); kinds["project.blocked"] != 1 || kinds["service.blocked"] != 1 {
		t.Errorf("events %v", kinds)
	}
}

// An operator of a project does not wait for lost nodes, whatever the number of them.
func TestAProjectDoesNotWaitForLostNodes(t *testing.T) {
	t.Parallel()
	h := newTestServer(t, withPlanner)
	h.joinNodes(6)
	h.create("shop", "services:\n  web: {compute_type: dummy, scale: 6, update: {min_healthy: 0}, reschedule: {after: 3600}}\n  db: {compute_type: dummy, scale: 6, reschedule: {never: true}}\n")
	h.awaitRest("shop")
	for _, n := range []string{"n1", "n2", "n3"} {
		h.actOnNode(n, contract.NodeAction{Action: "lose"})
	}
	h.until("the state to say so", func() bool { return h.of("shop", "web").ReasonCode == mariposa.ReasonStorm })
	h.call("PUT", "/v1/projects/shop/state", contract.Action{Action: "start", RescheduleNow: true}).wantError(400, mariposa.InvalidArgument, "reschedule_now: not used by start")
	robot := h.bearing(contract.NewToken{Name: "robot", Role: mariposa.RoleDeployer})
	robot.call("PUT", "/v1/projects/shop/state", contract.Action{Action: "converge", RescheduleNow: true}).wantError(403, mariposa.Forbidden, "requires the operator role")
	reader := h.bearing(contract.NewToken{Name: "reader", Role: mariposa.RoleViewer})
	reader.call("PUT", "/v1/projects/shop/state", contract.Action{Action: "converge", RescheduleNow: true}).wantError(403, mariposa.Forbidden, "requires the operator role")
	reader.call("PUT", "/v1/projects/shop/state", contract.Action{Action: "converge"}).wantError(403, mariposa.Forbidden, "requires the deployer role")
	want[contract.Changed](robot.call("PUT", "/v1/projects/shop/state", contract.Action{Action: "converge"}), 202)
	task := h.startTask("shop", `{"action":"converge","services":["web"],"reschedule_now":true}`)
	h.until("web to be replaced", func() bool { return h.of("shop", "web").Running == 6 })
	if s := h.of("shop", "db"); s.Running != 3 {
		t.Errorf("db: %+v", s)
	}
	if doc := h.task(task); !strings.Contains(doc.Reason, "replace its instances on lost nodes now") {
		t.Errorf("task %+v", doc)
	}
	h.awaitTask(task, mariposa.TaskCompleted)
	h.call("PUT", "/v1/projects/shop/state", contract.Action{Action: "converge", RescheduleNow: true}).wantError(409, mariposa.Conflict, "instances of db on lost nodes are never replaced, because reschedule.never is set", "mariposa node rm host-n")
	h.actOnNode("n4", contract.NodeAction{Action: "lose"})
	h.until("the next loss to be waited for", func() bool {
		return want[contract.Node](h.call("GET", "/v1/nodes/n4", nil), 200).Status == mariposa.NodeUnknown && h.of("shop", "web").Running < 6
	})
	if s := h.of("shop", "db"); s.Running > 3 {
		t.Errorf("db is never rescheduled: %+v", s)
	}
}

func TestAReservedNodeKeepsWhatItHas(t *testing.T) {
	t.Parallel()
	h := newTestServer(t, withPlanner)
	h.joinNodes(2)
	h.create("shop", fleetOf(2, 1, ""))
	h.awaitRest("shop")
	h.actOnNode("n1", contract.NodeAction{Action: "reserve"})
	h.awaitTask(h.startTask("shop", `{"action":"scale","scale":{"web":4}}`), mariposa.TaskCompleted)
	if a, b := h.onNode("shop", "n1"), h.onNode("shop", "n2"); a != 1 || b != 3 {
		t.Errorf("%d and %d", a, b)
	}
	if n := h.nodeOf("n1"); n.Eligible || n.ReasonCode != mariposa.ReasonReserved || n.Status != mariposa.NodeRunning {
		t.Errorf("%+v", n)
	}
	h.actOnNode("n1", contract.NodeAction{Action: "unreserve"})
	if !h.nodeOf("n1").Eligible {
		t.Error("it is still reserved")
	}
}
