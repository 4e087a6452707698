package fleet_test

import (
	"errors"
	"testing"

	"mariposa"
	"mariposa/store"
	"mariposa/wire"
)

func attachment(node string, goal mariposa.Goal) *mariposa.AttachmentSpec {
	return &mariposa.AttachmentSpec{Network: "net", Name: "backend", Project: "p", Compute: mariposa.ComputeDummy, Node: node, Goal: goal}
}

func TestANodeIsToldOfItsPartOfANetworkAndWhatItSaysIsStored(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.project("p", manifestBody)
	p, q := r.connect("n1"), r.connect("n2")
	i := instance("i1", "n1", "web")
	i.Networks = []mariposa.Join{{Network: "net", Attachment: "a1", Name: "backend"}}
	r.commit(put("i1", i), store.Write{Kind: mariposa.KindAttachment, ID: "a1", Spec: attachment("n1", mariposa.GoalKept)})
	frames := p.heard()
	if notified := frames[len(frames)-2].Provide; notified == nil || len(notified.Items) != 1 || notified.Items[0] != (wire.Provision{
		Kind: mariposa.KindNetwork, ID: "a1", Name: "backend", Compute: mariposa.ComputeDummy, Goal: mariposa.GoalKept,
	}) {
		t.Errorf("the node got %+v", notified)
	}
	if a := frames[len(frames)-1].Assign; a == nil || len(a.Items[0].Networks) != 1 || a.Items[0].Networks[0].Attachment != "a1" {
		t.Errorf("then %+v", a)
	}
	if len(q.provisions()) != 0 {
		t.Errorf("the other node got %+v", q.provisions())
	}
	made := wire.Provided{Kind: mariposa.KindNetwork, ID: "a1", State: mariposa.ResourceMade, Path: "/n/a1"}
	q.provide(made) // the other node may not report it
	volume := made
	volume.Kind = mariposa.KindVolume // nor is it a volume
	p.provide(volume)
	if _, st := r.attachment("a1"); st != nil {
		t.Errorf("it is %+v", st)
	}
	p.provide(made)
	if _, st := r.attachment("a1"); st == nil || st.State != mariposa.ResourceMade || st.Path != "/n/a1" {
		t.Errorf("it is %+v", st)
	}
	gone := made
	gone.State = mariposa.ResourceGone
	p.provide(gone) // not requested: it will be recreated
	if rec, _ := r.attachment("a1"); rec == nil {
		t.Fatal("it was forgotten without a tombstone")
	}
	r.commit(store.Write{Kind: mariposa.KindAttachment, ID: "a1", Spec: attachment("n1", mariposa.GoalGone)})
	if all := p.provisions(); all[len(all)-1].Goal != mariposa.GoalGone {
		t.Errorf("the node got %+v", all)
	}
	p.provide(gone)
	if rec, _ := r.attachment("a1"); rec != nil {
		t.Errorf("gone, it is %+v", rec)
	}
	r.commit(store.Write{Kind: mariposa.KindAttachment, ID: "a2", Spec: attachment("n3", mariposa.GoalGone)})
	if all := r.connect("n3").provisions(); len(all) != 1 || all[0].ID != "a2" || all[0].Goal != mariposa.GoalGone {
		t.Errorf("a node that comes back got %+v", all)
	}
}

func (r *rig) attachment(id string) (*store.Record, *mariposa.AttachmentStatus) {
	r.t.Helper()
	rec, err := r.store.Get(r.t.Context(), mariposa.KindAttachment, id)
	if errors.Is(err, store.ErrNotFound) {
		return nil, nil
	}
	if err != nil {
		r.t.Fatal(err)
	}
	st, _ := rec.Status.(*mariposa.AttachmentStatus)
	return &rec, st
}
