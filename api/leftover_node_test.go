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
	const update = ", deadline: 2}, reschedule: {after: 0"
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
