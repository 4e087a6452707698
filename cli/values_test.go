package cli

import (
	"time"

	"mariposa"
	"mariposa/contract"
)

// Documents for tests of single functions. Tests of commands use a real server.
const (
	helloID = "0198c000-0000-7000-8000-0000000000aa"
	taskOne = "0198c000-0000-7000-8000-0000000000a1"
	nodeOne = "0198c000-0000-7000-8000-0000000000e1"
	nodeTwo = "0198c000-0000-7000-8000-0000000000e2"
	hashTwo = "2222222bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb"
)

func helloGraph() contract.Graph {
	node := func(layer int, kind, name string, status mariposa.Status, running, goal int, reason string) contract.GraphNode {
		return contract.GraphNode{Kind: kind, Name: name, Layer: layer, Status: status, Running: running, Goal: goal, Reason: reason}
	}
	g := contract.Graph{Revision: 7, Project: helloID, ProjectName: "hello", Version: hashTwo, Status: mariposa.StatusConverging, Nodes: []contract.GraphNode{
		node(1, "network", "web", mariposa.StatusConverged, 1, 1, ""),
		node(1, "volume", "data", mariposa.StatusConverged, 1, 1, ""),
		node(2, "service", "backend", mariposa.StatusBackingOff, 0, 1, "backend.1-00aaaa failed 3 times; next retry at 12:11:00"),
		node(3, "service", "old", mariposa.StatusConverging, 2, 0, "0 wanted"),
		node(3, "service", "web", mariposa.StatusConverging, 0, 2, "waits for backend: it failed"),
		node(4, "load_balancer", "front", mariposa.StatusConverging, 0, 1, "nothing that uses it runs yet"),
	}}
	g.Nodes[3].Leftover = true
	edge := func(from, fromKind, to, toKind, why string) {
		g.Edges = append(g.Edges, contract.GraphEdge{From: from, FromKind: fromKind, To: to, ToKind: toKind, Why: why})
	}
	edge("front", "load_balancer", "web", "service", "load_balancer")
	edge("old", "service", "backend", "service", "depends_on")
	edge("web", "service", "web", "network", "network")
	edge("web", "service", "backend", "service", "depends_on")
	edge("web", "service", "backend", "service", "reference")
	edge("backend", "service", "data", "volume", "volume")
	return g
}

func helloNodes() []contract.Node {
	return []contract.Node{
		{ID: nodeOne, Name: "node1", Rack: "r1", DC: "d1", Status: mariposa.NodeRunning, Instances: 1, Capacity: mariposa.Resources{MilliCPU: 2000, Memory: 8 << 30}, LastHeartbeat: new(noon.Add(9*time.Minute + 58*time.Second)), Drivers: []mariposa.ComputeType{"process", "dummy"}},
		{
			ID: nodeTwo, Name: "node2", Status: mariposa.NodeUnknown, Reason: "it was made unreachable on request", Instances: 1, Dummy: true, LastHeartbeat: &noon, Drivers: []mariposa.ComputeType{"dummy"},
			Quarantined: []mariposa.Quarantined{{ID: "x1", Name: "web.3-0000f1", Project: "shop", Compute: "dummy", State: mariposa.StateRunning, Reason: "not of this store"}},
		},
	}
}

func task(state mariposa.TaskState, done, total int) contract.Task {
	t := contract.Task{
		ID: taskOne, Project: helloID, ProjectName: "hello", Services: []string{"web"}, Component: "project", Task: mariposa.TaskScale, State: state, Origin: mariposa.OriginUser,
		Author: "ann", Reason: "ann scaled web to 2", Created: noon, Progress: mariposa.Progress{Done: done, Total: total}, Version: hashTwo, Number: 2,
	}
	if state != mariposa.TaskQueued {
		t.Started = after(time.Second)
	}
	if state.Ended() {
		t.Finished = after(6 * time.Second)
	}
	return t
}

func projectEvent(rev int64, verb, reason string) contract.Event {
	return contract.Event{Revision: rev, Time: noon.Add(time.Duration(rev) * time.Second), Kind: "project." + verb, Project: helloID, ProjectName: "hello", Reason: reason}
}
