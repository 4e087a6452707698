package api_test

import (
	"fmt"
	"testing"

	"mariposa"
	"mariposa/store"
)

// Reading the state of a large system must stay cheap while it changes: each iteration
// begins with a change, so that cached counts cannot be used.
func BenchmarkLookingAtAHundredThousandInstances(b *testing.B) {
	h := newTestServer(b)
	c := h.create("shop", hello)
	h.plan(c.ID, settled(c))
	h.node("n1", mariposa.NodeSpec{Name: "n1"}, mariposa.NodeStatus{State: mariposa.NodeRunning})
	digest := h.digest(c.ID, 1, "web")
	const many = 100_000
	for i := 0; i < many; i += 1000 {
		u := store.Unit{}
		for j := range 1000 {
			id := newID()
			u.Writes = append(u.Writes, store.Write{
				Kind: mariposa.KindInstance, ID: id, Project: c.ID,
				Spec: &mariposa.InstanceSpec{
					Name: fmt.Sprintf("web.%d", i+j), Slot: i + j, Project: c.ID, ServiceName: "web", Number: 1, Digest: digest,
					Node: "n1", Goal: mariposa.GoalRunning, Compute: mariposa.ComputeDummy, Managed: true,
				},
				Status: &mariposa.InstanceStatus{State: mariposa.StateRunning},
			})
		}
		h.commit(u)
	}
	for _, path := range []string{"/v1/state", "/v1/instances?limit=1000", "/v1/instances?limit=1000&marker=z", "/v1/instances/web.77"} {
		b.Run(path, func(b *testing.B) {
			for b.Loop() {
				h.node("n2", mariposa.NodeSpec{Name: "n2"}, mariposa.NodeStatus{State: mariposa.NodeRunning})
				if r := h.call("GET", path, nil); r.status != 200 {
					b.Fatalf("%d %s", r.status, r.body)
				}
			}
		})
	}
}
