package simulate

import (
	"slices"
	"time"

	"mariposa"
	"mariposa/auth"
	"mariposa/change"
	"mariposa/contract"
	"mariposa/store"
)

// drainChoices adds what operators do with nodes: drain one, stop that, let it take
// instances again.
func (p *people) drainChoices(add func(int, func())) {
	for _, r := range p.asked.picture.Nodes.All() {
		spec := r.Spec()
		switch {
		case !p.w.chance(8):
		case spec.Drained:
			add(2, func() { p.actOnNode(r.ID, contract.NodeAction{Action: "undrain"}) })
			if d := spec.Drain; d.State == mariposa.DrainActive && p.w.chance(3) {
				add(1, func() { p.stopDrain(d.Task) })
			}
		default:
			deadline := float64(p.w.rng.IntN(600))
			add(1, func() { p.actOnNode(r.ID, contract.NodeAction{Action: "drain", Deadline: &deadline}) })
			if st := r.Status(); st != nil && st.State == mariposa.NodeUnknown {
				add(1, func() { p.actOnNode(r.ID, contract.NodeAction{Action: "reschedule-now"}) })
			}
		}
	}
}

func (p *people) actOnNode(id string, ask contract.NodeAction) bool {
	return p.send(&request{
		what: ask.Action + " " + id, permission: auth.RunInstallation, global: true,
		ask: func(c *change.Changer, req *change.Request) (*contract.Changed, error) {
			return c.ActOnNode(p.w.ctx, req, id, ask)
		},
	})
}

func (p *people) stopDrain(id string) {
	r := p.asked.picture.Tasks.Get(id)
	if r == nil {
		return
	}
	p.send(&request{
		what: "stop a drain", permission: auth.RunInstallation, global: true,
		ask: func(c *change.Changer, req *change.Request) (*contract.Changed, error) {
			_, err := c.Terminate(p.w.ctx, req, r)
			return nil, err
		},
	})
}

// hasDrained reports whether a node is drained.
func (p *people) hasDrained() bool {
	return slices.ContainsFunc(p.asked.picture.Nodes.All(), func(r *store.Node) bool { return r.Spec().Drained })
}

// undrainAll lets all nodes take instances again.
func (p *people) undrainAll() {
	for _, r := range p.asked.picture.Nodes.All() {
		if r.Spec().Drained && p.open == nil {
			p.actOnNode(r.ID, contract.NodeAction{Action: "undrain"})
		}
	}
}

// storm cuts most of the nodes off at the same moment.
func (w *World) storm() {
	w.seen["storm"]++
	spared := w.rng.IntN(len(w.nodes))
	for i, n := range w.nodes {
		if i != spared && !n.away {
			n.leave()
		}
	}
}

// flap cuts a node off for some seconds, again and again.
func (n *node) flap(times int) {
	if times == 0 || n.away || !n.w.faults {
		return
	}
	n.away = true
	n.w.seen["node flaps"]++
	n.w.note("%s is cut off for a moment", n.name)
	n.link.cut("the node is cut off")
	clk := worldClock{n.w, &lifetime{}}
	clk.After(time.Duration(12+n.w.rng.IntN(20))*time.Second, func() {
		n.comeBack()
		clk.After(time.Duration(1+n.w.rng.IntN(10))*time.Second, func() { n.flap(times - 1) })
	})
}
