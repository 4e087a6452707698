package api_test

import (
	"testing"

	"mariposa"
	"mariposa/contract"
)

// A node that has lost its connection was last seen then, even before it counts as
// unknown.
func TestALostNodeWasSeenUntilItWasLost(t *testing.T) {
	t.Parallel()
	h := newTestServer(t, withPlanner)
	h.joinGated("n1")
	node := func() contract.Node {
		t.Helper()
		return want[contract.Node](h.call("GET", "/v1/nodes/n1", nil), 200)
	}
	joined := *node().LastHeartbeat
	h.create("shop", pair(1, 1))
	h.awaitRest("shop")
	h.until("the node to be heard again", func() bool { return node().LastHeartbeat.After(joined) })
	seen := *node().LastHeartbeat
	want[contract.Changed](h.call("PUT", "/v1/nodes/n1", contract.NodeAction{Action: "lose"}), 200)
	h.until("the node to be lost", func() bool {
		n := node()
		if n.LastHeartbeat.Before(seen) {
			t.Fatalf("the node (%s) was seen at %s, and later only at %s", n.Status, seen, n.LastHeartbeat)
		}
		return n.Status == mariposa.NodeUnknown
	})
}
