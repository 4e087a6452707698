package api_test

import (
	"testing"

	"mariposa"
	"mariposa/contract"
)

// A history has a number for each interval that the server saw, and null for the others.
func TestAHistoryHasGapsWhereNothingIsKnown(t *testing.T) {
	t.Parallel()
	h := newTestServer(t)
	h.node("n1", mariposa.NodeSpec{Name: "host-n1", Dummy: true}, mariposa.NodeStatus{State: mariposa.NodeRunning})
	c := h.create("shop", "services: {web: {compute_type: dummy, scale: 2}}\n")
	h.plan(c.ID, &mariposa.ProjectStatus{
		Goal: mariposa.GoalStarted, Version: c.Version, Number: 1, Status: mariposa.StatusConverging,
		Services: map[string]*mariposa.ServiceStatus{"web": {ID: "id-web", Scale: 2, Number: 1, Status: mariposa.StatusConverging}},
	})
	h.instance("i1", c.ID, "web", "n1", mariposa.StateRunning, nil)
	h.instance("i2", c.ID, "web", "n1", mariposa.StateFailed, func(s *mariposa.InstanceSpec) { s.Slot = 2 })
	h.history.Sample()

	got := want[contract.ProjectHistory](h.call("GET", "/v1/projects/shop/history", nil), 200)
	if len(got.Services) != 1 || got.ProjectName != "shop" || got.IntervalSecs != 10 || got.Since.IsZero() {
		t.Fatalf("the history is %+v", got)
	}
	web := got.Services[0]
	known := 0
	for i := range web.Goal {
		if web.Goal[i] == nil || web.Running[i] == nil || web.Starts[i] == nil || web.Failures[i] == nil {
			continue
		}
		known++
		if *web.Goal[i] != 2 || *web.Running[i] != 1 {
			t.Errorf("%d of %d ran", *web.Running[i], *web.Goal[i])
		}
	}
	if web.Name != "web" || len(web.Goal) != 360 || len(web.Running) != 360 || known != 1 {
		t.Errorf("%d of %d intervals are known of %s", known, len(web.Goal), web.Name)
	}
	node := want[contract.NodeHistory](h.call("GET", "/v1/nodes/host-n1/history?minutes=360", nil), 200)
	known = 0
	for _, n := range node.Instances {
		if n != nil && *n == 2 {
			known++
		}
	}
	if node.NodeName != "host-n1" || node.IntervalSecs != 60 || len(node.Instances) != 360 || len(node.Memory) != 360 || known != 1 {
		t.Errorf("the history of the node is %+v, with %d known intervals", node.HistoryWindow, known)
	}
	h.call("GET", "/v1/projects/shop/history?minutes=361", nil).wantError(400, mariposa.InvalidArgument, "minutes")
	h.call("GET", "/v1/projects/nobody/history", nil).wantError(404, mariposa.ResourceNotFound)
}
