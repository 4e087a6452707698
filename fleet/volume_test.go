package fleet_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"mariposa"
	"mariposa/store"
	"mariposa/wire"
)

func volume(node string) *mariposa.VolumeSpec {
	return &mariposa.VolumeSpec{
		Name: "data", Project: "p", Service: "s-web", ServiceName: "web", Slot: 1, Compute: mariposa.ComputeDummy, Node: node,
		Size: 1 << 30, Goal: mariposa.GoalKept,
	}
}

func putVolume(id string, spec *mariposa.VolumeSpec) store.Write {
	return store.Write{Kind: mariposa.KindVolume, ID: id, Project: spec.Project, Spec: spec}
}

// provisions returns all resources that the agent received, in order.
func (p *peer) provisions() (out []wire.Provision) {
	for _, f := range p.heard() {
		if f.Provide != nil {
			out = append(out, f.Provide.Items...)
		}
	}
	return out
}

func (p *peer) provide(all ...wire.Provided) {
	p.say(wire.Frame{Report: &wire.Report{Provided: all}})
	p.r.run()
}

func of(id string, state mariposa.ResourceState, path string) wire.Provided {
	return wire.Provided{Kind: mariposa.KindVolume, ID: id, State: state, Path: path}
}

func (r *rig) volume(id string) (*store.Record, *mariposa.VolumeStatus) {
	r.t.Helper()
	rec, err := r.store.Get(r.t.Context(), mariposa.KindVolume, id)
	if errors.Is(err, store.ErrNotFound) {
		return nil, nil
	}
	if err != nil {
		r.t.Fatal(err)
	}
	st, _ := rec.Status.(*mariposa.VolumeStatus)
	return &rec, st
}

func TestAVolumeIsToldBeforeTheInstanceThatNeedsIt(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.project("p", manifestBody)
	p, q := r.connect("n1"), r.connect("n2")
	i := instance("i1", "n1", "web")
	i.Mounts = []mariposa.Mount{{Volume: "v1", Name: "data", Path: "/d"}}
	r.commit(put("i1", i), putVolume("v1", volume("n1"))) // whatever the order of the writes
	frames := p.heard()
	notified := frames[len(frames)-2].Provide
	if notified == nil || notified.Snapshot || len(notified.Items) != 1 || notified.Items[0] != (wire.Provision{
		Kind: mariposa.KindVolume, ID: "v1", Name: "data", Compute: mariposa.ComputeDummy, Goal: mariposa.GoalKept, Size: 1 << 30,
	}) {
		t.Errorf("the node got %+v", notified)
	}
	if a := frames[len(frames)-1].Assign; a == nil || len(a.Items[0].Mounts) != 1 || a.Items[0].Mounts[0].Volume != "v1" {
		t.Errorf("then %+v", a)
	}
	if len(q.provisions()) != 0 {
		t.Errorf("the other node got %+v", q.provisions())
	}
}

func TestASnapshotNamesAllVolumesOfTheNodeEvenWhenThereAreNone(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.project("p", manifestBody)
	var writes []store.Write
	for n := range wire.Batch + 1 {
		writes = append(writes, putVolume(fmt.Sprintf("v%04d", n), volume("n1")))
	}
	r.commit(writes...)
	for node, want := range map[string]int{"n1": wire.Batch + 1, "n2": 0} {
		p := r.connect(node)
		lasts := 0
		for _, f := range p.heard() {
			if f.Provide != nil && f.Provide.Last {
				lasts++
			}
			if f.Provide != nil && (!f.Provide.Snapshot || len(f.Provide.Items) > wire.Batch) {
				t.Errorf("%s: %d items", node, len(f.Provide.Items))
			}
		}
		if len(p.provisions()) != want || lasts != 1 {
			t.Errorf("%s heard of %d, and %d times that this is all", node, len(p.provisions()), lasts)
		}
	}
}

func TestWhatANodeSaysOfAVolumeIsStoredOnce(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.project("p", manifestBody)
	p, q := r.connect("n1"), r.connect("n2")
	r.commit(putVolume("v1", volume("n1")))
	q.provide(of("v1", mariposa.ResourceMade, "/elsewhere"))
	p.provide(of("v1", mariposa.ResourcePending, ""))
	if _, st := r.volume("v1"); st != nil {
		t.Errorf("another node's word, or no news: %+v", st)
	}
	p.provide(of("v1", mariposa.ResourceMade, "/d/v1"), of("v9", mariposa.ResourceMade, "/d/v9"))
	first, st := r.volume("v1")
	if st == nil || st.State != mariposa.ResourceMade || st.Path != "/d/v1" || st.Since.IsZero() {
		t.Fatalf("stored %+v", st)
	}
	p.provide(of("v1", mariposa.ResourceMade, "/d/v1"))
	if again, _ := r.volume("v1"); again.Revision != first.Revision {
		t.Error("the same word was written again")
	}
	p.provide(of("v1", mariposa.ResourceGone, ""))
	if _, st := r.volume("v1"); st == nil || st.State != mariposa.ResourceMade {
		t.Errorf("its goal is not gone: %+v", st)
	}
}

func TestATombstoneIsToldUntilTheNodeSaysThatTheVolumeIsGone(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.project("p", manifestBody)
	r.commit(putVolume("v1", volume("n1")))
	spec := volume("n1")
	spec.Goal = mariposa.GoalGone
	r.commit(putVolume("v1", spec))
	for range 2 { // a session may end before the node has answered
		p := r.connect("n1")
		if notified := p.provisions(); len(notified) != 1 || notified[0].Goal != mariposa.GoalGone {
			t.Fatalf("the node got %+v", notified)
		}
	}
	p := r.connect("n1")
	p.provide(of("v1", mariposa.ResourceGone, ""))
	if rec, _ := r.volume("v1"); rec != nil {
		t.Errorf("still there: %+v", rec.Spec)
	}
	p.provide(of("v1", mariposa.ResourceGone, ""))
}

func TestAStoreThatFailsForgetsNoWordOfAVolume(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.project("p", manifestBody)
	p := r.connect("n1")
	r.commit(putVolume("v1", volume("n1")))
	r.store.setFault(store.ErrUnavailable, nil)
	p.provide(of("v1", mariposa.ResourceMade, "/d/v1"))
	if _, st := r.volume("v1"); st != nil {
		t.Fatalf("stored %+v", st)
	}
	r.store.setFault(nil, nil)
	r.clk.Pass(2 * time.Second)
	r.run()
	if _, st := r.volume("v1"); st == nil || st.Path != "/d/v1" {
		t.Errorf("stored %+v", st)
	}
}
