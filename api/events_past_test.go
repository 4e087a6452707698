package api_test

import (
	"testing"

	"mariposa"
	"mariposa/contract"
)

// An event shows the state when it happened, whatever has changed since.
func TestAnEventSaysWhatWasSoThen(t *testing.T) {
	t.Parallel()
	h := newTestServer(t, withPlanner)
	g := h.joinGated("n1")
	h.create("shop", pair(1, 1))
	h.awaitRest("shop")
	first := want[contract.Version](h.call("GET", "/v1/projects/shop/versions/1", nil), 200).Version
	g.close("shop")
	rollout := h.putManifest("shop", pair(1, 2), "") // a is defined as before
	h.until("a successor of b", func() bool { return h.of("shop", "b").Starting > 0 })
	g.open("shop")
	h.awaitTask(rollout, mariposa.TaskCompleted)
	h.awaitRest("shop")
	want[contract.Changed](h.call("PUT", "/v1/nodes/n1", contract.NodeAction{Action: "lose"}), 200)
	h.until("the node to be lost", func() bool {
		return want[contract.Node](h.call("GET", "/v1/nodes/n1", nil), 200).Status == mariposa.NodeUnknown
	})
	instances, versions := 0, 0
	for _, e := range want[contract.Events](h.call("GET", "/v1/events?project=shop&limit=1000", nil), 200).Events {
		o, _ := e.Object.(map[string]any) // some have none
		switch {
		case e.Kind == "instance.running" && e.ServiceName == "a":
			instances++
			if o["version"] != first || o["state"] != "running" {
				t.Errorf("%s of a: version %v, state %v", e.Kind, o["version"], o["state"])
			}
		case e.Kind == "version.created":
			versions++
			if len(o["tags"].([]any)) > 0 {
				t.Errorf("version %v was made with the tags %v", o["number"], o["tags"])
			}
		case e.Task != "" && o["eta"] != nil && o["eta"].(string) < e.Time.Format("2006-01-02T15:04:05"):
			t.Errorf("%s: the task would end at %v", e.Time, o["eta"])
		}
	}
	if instances != 2 || versions != 2 {
		t.Errorf("%d events of instances, %d of versions", instances, versions)
	}
	for _, e := range want[contract.Events](h.call("GET", "/v1/events?limit=1000", nil), 200).Events {
		if o, _ := e.Object.(map[string]any); e.Kind == "node.running" && o["status"] != "running" || o != nil && e.Node != "" && e.Instance == "" && o["instances"] != nil {
			t.Errorf("%s: %v", e.Kind, o)
		}
	}
}
