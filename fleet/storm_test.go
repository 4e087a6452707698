package fleet_test

import (
	"slices"
	"testing"
	"time"

	"mariposa"
	"mariposa/reason"
	"mariposa/wire"
)

// stormEvents returns what the events about storms say.
func (r *rig) stormEvents() (all []string) {
	r.t.Helper()
	changes, err := r.store.Changes(r.t.Context(), 0, 0)
	must(r.t, err)
	for _, c := range changes {
		if c.Record.Kind == mariposa.KindSettings && c.Event.Kind != "" {
			all = append(all, c.Event.Kind+": "+reason.Sentence(c.Event.Reason))
		}
	}
	return all
}

// Nodes that vanish at the same moment are noticed one after another. One event says how
// many there are, and one that they are back.
func TestAStormIsOneEventThatCountsAllLostNodes(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.project("p", manifestBody)
	names := []string{"n1", "n2", "n3", "n4", "n5"}
	peers := map[string]*peer{}
	for _, name := range names {
		peers[name] = r.connect(name)
		r.commit(put("i-"+name, instance("i-"+name, name, "web")))
		r.pass(time.Second)
	}
	beat := func(d time.Duration, living ...string) {
		for ; d > 0; d -= time.Second {
			for _, name := range living {
				peers[name].say(wire.Frame{Heartbeat: &wire.Heartbeat{}})
			}
			r.pass(time.Second)
		}
	}
	beat(8*time.Second, "n4", "n5") // n1 to n3 are silent since 0, 1 and 2 s: they vanished at 2 s
	r.wantNode("n2", mariposa.NodeUnknown)
	r.wantNode("n3", mariposa.NodeRunning)
	if w := r.pic.Weather(0); w.Storm == nil || w.Storm.Count != 2 {
		t.Fatalf("rescheduling does not stop at once: %+v", w)
	}
	beat(10*time.Second, "n4", "n5")
	r.wantNode("n3", mariposa.NodeUnknown)
	began := "nodes.storm_began: 3 of 5 nodes with instances have been lost since 00:00:12 UTC; their instances are not replaced until they return"
	if got := r.stormEvents(); !slices.Equal(got, []string{began}) {
		t.Fatalf("%q", got)
	}
	peers["n1"] = r.connect("n1")
	beat(2*time.Second, "n1", "n4", "n5")
	if got := r.stormEvents(); len(got) != 1 {
		t.Errorf("%q", got)
	}
	peers["n2"], peers["n3"] = r.connect("n2"), r.connect("n3")
	beat(2*time.Second, names...)
	if got := r.stormEvents(); !slices.Equal(got, []string{began, "nodes.storm_ended: the lost nodes are back or were removed"}) {
		t.Errorf("%q", got)
	}
}
