package engine_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"mariposa"
	"mariposa/store"
)

// meddler is a store in which something happens right before a planner's commit that
// places instances.
type meddler struct {
	store.Store
	before func(store.Unit)
	lost   int // commits that failed because of it
}

func (m *meddler) Commit(ctx context.Context, units ...store.Unit) []store.Result {
	for _, u := range units {
		if m.before != nil && slices.ContainsFunc(u.Writes, func(w store.Write) bool { return w.Event.Kind == "instance.provisioning" }) {
			m.before(u)
		}
	}
	all := m.Store.Commit(ctx, units...)
	for _, res := range all {
		if errors.Is(res.Err, store.ErrConflict) {
			m.lost++
		}
	}
	return all
}

// A person drains or reserves the node that a plan has just picked. The commit must fail,
// and the instance gets another node.
func TestADrainBeatsAPlacementAtTheSameMoment(t *testing.T) {
	t.Parallel()
	for name, takes := range map[string]func(*mariposa.NodeSpec){
		"drain":   func(s *mariposa.NodeSpec) { s.Drained, s.Drain = true, &mariposa.Drain{State: mariposa.DrainActive} },
		"reserve": func(s *mariposa.NodeSpec) { s.Reserved = "ann" },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			r.node("n1", mariposa.Resources{})
			r.node("n2", mariposa.Resources{})
			m := &meddler{Store: r.store}
			picked := ""
			m.before = func(u store.Unit) {
				for _, w := range u.Writes {
					if spec, ok := w.Spec.(*mariposa.InstanceSpec); ok && picked == "" {
						picked = spec.Node
					}
				}
				m.before = nil
				spec := mariposa.NodeSpec{Name: picked}
				takes(&spec)
				r.write(store.Write{Kind: mariposa.KindNode, ID: picked, Spec: &spec})
			}
			r.replicaOn("r1", m)
			p, _ := r.create("shop", web(3))
			r.settle()
			r.pass(5 * time.Second) // it plans again after a moment
			if picked == "" || m.lost == 0 {
				t.Fatalf("the commit was not disturbed: picked %q, %d lost", picked, m.lost)
			}
			for _, rec := range r.wantInstances(3) {
				if on := rec.Spec.(*mariposa.InstanceSpec).Node; on == picked || on == "" {
					t.Errorf("%s is on %s", rec.ID, on)
				}
			}
			if st := r.project(p); st.Status != mariposa.StatusConverged {
				t.Errorf("the project is %+v", st)
			}
			for _, c := range r.feed() {
				if spec, ok := c.Record.Spec.(*mariposa.InstanceSpec); ok && spec.Node == picked {
					t.Errorf("%s was on %s at times", spec.Name, picked)
				}
			}
		})
	}
}

// shake makes a node count as lost several times.
func (r *rig) shake(id string, times int) {
	r.t.Helper()
	rec, err := r.store.Get(r.t.Context(), mariposa.KindNode, id)
	if err != nil {
		r.t.Fatal(err)
	}
	st := *rec.Status.(*mariposa.NodeStatus)
	for range times {
		st.Losses = mariposa.AddLoss(st.Losses, r.clk.Now())
	}
	st.Since = r.clk.Now()
	r.write(store.Write{Kind: mariposa.KindNode, ID: id, Status: &st})
}

// What a node lost is not replaced on another that was lost several times itself, until it
// has been back for a while; everything else may go there if there is no better place.
func TestLostInstancesDoNotGoToAnUnstableNode(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.replica("r1")
	r.node("n1", mariposa.Resources{Instances: 2})
	p, _ := r.create("shop", web(2))
	r.settle()
	r.node("n2", mariposa.Resources{Instances: 9})
	r.shake("n2", 4) // unstable for four minutes, and not even the last choice for two
	r.leave("n1")
	r.pass(90 * time.Second)
	r.wantInstances(2)
	ss := r.project(p).Services["web"]
	if ss.Status != mariposa.StatusBlocked || !strings.Contains(said(ss.Reason), "was lost several times within an hour (1 of 2)") {
		t.Errorf("%s: %s", ss.Status, said(ss.Reason))
	}
	r.ask(p, mariposa.TaskScale, mariposa.Patch{Scale: map[string]int{"web": 3}}, "web")
	r.pass(20 * time.Second)
	r.wantInstances(3)
	r.pass(30 * time.Second)
	r.wantInstances(5)
	if n := r.up(p, "web"); n < 3 {
		t.Errorf("%d run", n)
	}
}

// A node that comes and goes again and again, always back before the replacements are up,
// costs a few replacements and not one per loss; then its slots are elsewhere.
func TestAFlappingNodeLosesItsSlotsInsteadOfBouncingThem(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.replica("r1")
	for _, n := range []string{"n1", "n2", "n3"} {
		r.node(n, mariposa.Resources{})
	}
	p, _ := r.create("shop", web(6, "reschedule: {after: 1}"))
	r.settle()
	r.pass(time.Minute)
	r.hang["web"] = true // new instances are slow to start
	for range 12 {
		r.leave("n1")
		r.shake("n1", 1)
		r.pass(5 * time.Second)
		r.comeBack("n1")
		r.pass(5 * time.Second)
	}
	created := 0
	for _, c := range r.feed() {
		if spec, ok := c.Record.Spec.(*mariposa.InstanceSpec); ok && c.Event.Kind == "instance.provisioning" && spec.Reason.Is(mariposa.ReasonReplacesLost) {
			created++
		}
	}
	if created > 2*3 { // two instances, three losses until the node counts as unstable
		t.Errorf("%d replacements were made", created)
	}
	r.hang["web"] = false
	r.pass(time.Minute)
	if n := r.up(p, "web"); n != 6 {
		t.Errorf("%d run", n)
	}
	for _, rec := range r.wantInstances(6) {
		if rec.Spec.(*mariposa.InstanceSpec).Node == "n1" {
			t.Errorf("%s is still on the flapping node", rec.ID)
		}
	}
}

// feed returns all changes.
func (r *rig) feed() []store.Change {
	r.t.Helper()
	all, err := r.store.Changes(r.t.Context(), 0, 10_000)
	if err != nil {
		r.t.Fatal(err)
	}
	return all
}
