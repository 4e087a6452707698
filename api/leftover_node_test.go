package api_test

import (
	"strings"
	"testing"

	"mariposa"
	"mariposa/contract"
)

// Leftovers on an unreachable node do not fail a rollout or a stop. They are removed
// when the node returns, and the state says so until then.
func TestALeftoverOnAnUnreachableNodeFailsNoTask(t *testing.T) {
	t.Parallel()
	h := newTestServer(t, withPlanner)
	h.joinGated("n1")
	h.joinGated("n2")
	const update = ", deadline: 30}, reschedule: {after: 0"
	h.create("shop", fleetOf(4, 1, update))
	h.awaitRest("shop")
	want[contract.Changed](h.call("PUT", "/v1/nodes/n2", contract.NodeAction{Action: "lose"}), 200)
	h.until("n2 to be lost", func() bool {
		return want[contract.Node](h.call("GET", "/v1/nodes/n2", nil), 200).Status == mariposa.NodeUnknown
	})
	h.awaitTask(h.putManifest("shop", fleetOf(4, 2, update), ""), mariposa.TaskCompleted)
	says := func() {
		t.Helper()
		for _, text := range []string{h.of("shop", "web").Reason, h.state("shop").Reason} {
			if !strings.Contains(text, "n2") || !strings.Contains(text, "it is removed when the node returns") {
				t.Errorf("the reason is %q", text)
			}
		}
	}
	if s := h.of("shop", "web"); s.Status != mariposa.StatusConverged || s.Running != 4 || s.Unknown == 0 {
		t.Errorf("after the rollout: %+v", s)
	}
	says()
	if v := want[contract.Version](h.call("GET", "/v1/projects/shop/versions/2", nil), 200); !v.Completed {
		t.Errorf("the version is not completed: %+v", v)
	}
	h.awaitTask(h.startTask("shop", `{"action":"stop"}`), mariposa.TaskCompleted)
	if s := h.of("shop", "web"); s.Status != mariposa.StatusStopped || s.Running != 0 || s.Unknown == 0 {
		t.Errorf("after the stop: %+v", s)
	}
	says()
}

// A reason about one stopped service is not shown at the others.
func TestAReasonIsShownAtItsServiceOnly(t *testing.T) {
	t.Parallel()
	h := newTestServer(t, withPlanner)
	h.joinGated("n1")
	h.create("shop", "services: {a: {compute_type: dummy}, b: {compute_type: dummy, scale: 0}}\n")
	h.awaitRest("shop")
	for _, i := range h.instances("shop", "a") {
		h.call("DELETE", "/v1/projects/shop", nil).wantError(409, mariposa.Conflict, "still has 1 instance running, "+i.Name+": stop")
	}
	want[contract.Changed](h.call("PUT", "/v1/nodes/n1", contract.NodeAction{Action: "lose"}), 200)
	h.until("n1 to be lost", func() bool {
		return want[contract.Node](h.call("GET", "/v1/nodes/n1", nil), 200).Status == mariposa.NodeUnknown
	})
	h.awaitTask(h.startTask("shop", `{"action":"stop"}`), mariposa.TaskCompleted)
	a, b, project := h.of("shop", "a"), h.of("shop", "b"), h.state("shop")
	if !strings.Contains(project.Reason, "a: a.1-") || !strings.Contains(a.Reason, "n1") || b.Status != mariposa.StatusStopped || b.Reason != "" {
		t.Errorf("the reason of the project is %q, of a %q, of b (%s) %q", project.Reason, a.Reason, b.Status, b.Reason)
	}
}
