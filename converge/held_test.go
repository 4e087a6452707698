package converge

import (
	"testing"
	"time"

	"mariposa"
)

// A person stopped the new version, so the rollout is held. While the node of all other
// instances was unreachable, nothing was left to roll out, and the hold ended; when the
// node came back, the new version was started again.
func TestAHeldRolloutStaysHeldWhenANodeComesBack(t *testing.T) {
	t.Parallel()
	w := running(t, def("web", "one", 3))
	w.submit(def("web", "two", 3, canary(1)))
	w.settle()
	wantServing(t, w, "web", map[string]int{"one": 2, "two": 1})
	w.patch(mariposa.Patch{StopVersion: 2})
	w.settle()
	wantServing(t, w, "web", map[string]int{"one": 2})
	for range 3 {
		for id := range w.nodes {
			w.loseNode(id)
		}
		w.wait(time.Second)
		w.step()
		if r := w.status("web").Rollout; r == nil || !r.Held {
			t.Fatalf("while the node is away, the rollout is %+v%s", r, w.formatHistory())
		}
		for id := range w.nodes {
			w.setNode(id, Node{Name: id})
		}
		w.wait(time.Second)
		w.settle()
		if r := w.status("web").Rollout; r == nil || !r.Held {
			t.Fatalf("the rollout is %+v%s", r, w.formatHistory())
		}
		wantServing(t, w, "web", map[string]int{"one": 2})
	}
}
