package api

import (
	"cmp"
	"context"
	"slices"
	"strings"

	"mariposa"
	"mariposa/contract"
	"mariposa/store"
)

type ofNode struct {
	Node string `path:"node" doc:"its id or name" maxLength:"255"`
}

func (s *server) listNodes(ctx context.Context, _ *struct{}) (*document[contract.Nodes], error) {
	v, all := s.viewer(ctx), contract.Nodes{Nodes: []contract.Node{}}
	for _, r := range s.Picture.All(mariposa.KindNode) {
		all.Nodes = append(all.Nodes, v.node(r))
	}
	slices.SortFunc(all.Nodes, func(a, b contract.Node) int { return cmp.Or(naturally(a.Name, b.Name), cmp.Compare(a.ID, b.ID)) })
	return answer(all)
}

func (s *server) getNode(ctx context.Context, in *ofNode) (*document[contract.Node], error) {
	r, err := s.findNode(in.Node)
	if err != nil {
		return nil, err
	}
	return answer(s.viewer(ctx).node(r))
}

type actOnNodeInput struct {
	Node string `path:"node" doc:"its id or name" maxLength:"255"`
	Body contract.NodeAction
}

func (s *server) actOnNode(ctx context.Context, in *actOnNodeInput) (*document[contract.Changed], error) {
	var act func(r *store.Record, spec *mariposa.NodeSpec) (event string, err error)
	switch in.Body.Action {
	case "lose":
		act = func(_ *store.Record, spec *mariposa.NodeSpec) (string, error) {
			return "node.lost", playDead(spec, true)
		}
	case "restore":
		act = func(_ *store.Record, spec *mariposa.NodeSpec) (string, error) {
			return "node.restored", playDead(spec, false)
		}
	case "purge":
		act = func(r *store.Record, spec *mariposa.NodeSpec) (string, error) {
			return "node.purged", purge(r, spec, in.Body.Instances)
		}
	default:
		return nil, notYet(in.Body.Action + " of a node")
	}
	if len(in.Body.Instances) > 0 && in.Body.Action != "purge" {
		return nil, invalid("instances: %s has no use for them", in.Body.Action)
	}
	return s.changeNode(ctx, in.Node, func(r *store.Record, c *change) error {
		old := r.Spec.(*mariposa.NodeSpec)
		spec := *old
		event, err := act(r, &spec)
		if in.Body.Action == "purge" {
			c.answer.Reason = purging(&spec)
		}
		if err != nil || (spec.Lost == old.Lost && slices.Equal(spec.Purge, old.Purge)) {
			return err
		}
		c.unit.Audit[0].Reason = in.Body.Action
		c.unit.Writes = []store.Write{{Spec: &spec, Event: mariposa.Event{Kind: event, Reason: mariposa.Asked(actor(ctx) + " asked for it")}}}
		return nil
	})
}

func playDead(spec *mariposa.NodeSpec, dead bool) error {
	if !spec.Dummy {
		return conflict("node %s is real: only dummy nodes can be lost and restored", spec.Name)
	}
	spec.Lost = dead
	return nil
}

// purge marks quarantined instances to go. Those marked before are forgotten
// once the node no longer reports them.
func purge(r *store.Record, spec *mariposa.NodeSpec, only []string) error {
	there := map[string]bool{}
	var all []string
	if st := nodeStatus(r); st != nil {
		for _, q := range st.Quarantined {
			there[q.ID] = true
			all = append(all, q.ID)
		}
	}
	marked := slices.DeleteFunc(slices.Clone(spec.Purge), func(id string) bool { return !there[id] })
	if only == nil {
		only = all
	}
	for _, id := range only {
		if !there[id] {
			return notFound("node %s has no instance %q in quarantine", spec.Name, id)
		}
		marked = append(marked, id)
	}
	slices.Sort(marked)
	spec.Purge = slices.Compact(marked)
	return nil
}

// purging says what a purge does.
func purging(spec *mariposa.NodeSpec) string {
	if len(spec.Purge) == 0 {
		return "nothing is in quarantine there"
	}
	return many(len(spec.Purge), "quarantined instance") + " will be removed from it"
}

type deleteNodeInput struct {
	Node  string `path:"node" doc:"its id or name" maxLength:"255"`
	Force bool   `query:"force" doc:"forget the instances assigned to it too"`
}

func (s *server) deleteNode(ctx context.Context, in *deleteNodeInput) (*document[contract.Changed], error) {
	return s.changeNode(ctx, in.Node, func(r *store.Record, c *change) error {
		name, there := r.Spec.(*mariposa.NodeSpec).Name, s.Picture.InstancesOn(r.ID)
		if st := nodeStatus(r); st != nil && st.State != mariposa.NodeUnknown {
			return conflict("node %s is %s: stop its agent first, and wait until the node is unknown", name, st.State)
		}
		if n := len(there); n > 0 && !in.Force {
			return conflict("node %s still has %s: bring it back or wait until they are replaced elsewhere; or, if it will never come back, "+
				"forget it together with them (mariposa node rm %s --force, ?force=true)", name, many(n, "instance"), name)
		}
		if n := len(s.keptOn(r.ID)); n > 0 && !in.Force {
			return conflict("node %s still has %s, and what is in them is nowhere else: bring it back; or, if it will never come back, "+
				"give them up together with it (mariposa node rm %s --force, ?force=true)", name, many(n, "volume"), name)
		}
		why := actor(ctx) + " asked for it"
		for _, i := range there {
			forget(c, i, "its node "+name+" was given up: "+why)
		}
		s.giveBack(c, there)
		s.detach(c, r.ID, "its node "+name+" was given up: "+why)
		lost := s.forgetVolumes(c, r.ID, "its node "+name+" was given up: "+why)
		if n := len(there); n > 0 {
			c.answer.Reason = many(n, "instance") + " on it went with it"
		}
		if n := len(lost); n > 0 {
			c.answer.Reason = strings.TrimPrefix(c.answer.Reason+"; "+many(n, "volume")+" on it given up: "+some(lost), "; ")
		}
		if c.answer.Reason != "" {
			why += "; " + c.answer.Reason
		}
		c.unit.Writes = append(c.unit.Writes, store.Write{Delete: true, Event: mariposa.Event{Kind: "node.deleted", Reason: mariposa.Asked(why)}})
		return nil
	})
}

// keptOn lists the volumes on a node that are to be kept.
func (s *server) keptOn(node string) []*store.Record {
	return slices.DeleteFunc(s.Picture.VolumesOn(node), func(r *store.Record) bool { return r.Spec.(*mariposa.VolumeSpec).Goal != mariposa.GoalKept })
}

// forget takes an instance off the books and gives back what it claimed of its
// node. It must be as it was seen, so that a claim is given back once.
func forget(c *change, i *store.Record, why string) {
	spec := i.Spec.(*mariposa.InstanceSpec)
	c.unit.Require = append(c.unit.Require, store.Require{Kind: mariposa.KindInstance, ID: i.ID, SpecRevision: i.SpecRevision, StatusRevision: -1})
	c.unit.Claims = append(c.unit.Claims, store.Claim{Node: spec.Node, Take: mariposa.Resources{}.Minus(spec.Take())})
	c.unit.Writes = append(c.unit.Writes, store.Write{
		Kind: mariposa.KindInstance, ID: i.ID, Project: spec.Project, Delete: true,
		Event: mariposa.Event{Kind: "instance.forgotten", Project: spec.Project, Service: spec.ServiceName, Instance: i.ID, Reason: mariposa.Asked(why)},
	})
}

// changeNode changes a node as it stands. A change without writes is none.
func (s *server) changeNode(ctx context.Context, ref string, build func(*store.Record, *change) error) (*document[contract.Changed], error) {
	found, err := s.findNode(ref)
	if err != nil {
		return nil, err
	}
	changed, err := s.commit(ctx, found.ID, func() (*change, error) {
		r := s.Picture.Get(mariposa.KindNode, found.ID)
		if r == nil {
			return nil, notFound("there is no node %q", ref)
		}
		c := &change{answer: contract.Changed{ID: r.ID, Name: r.Spec.(*mariposa.NodeSpec).Name}}
		c.unit.Require = []store.Require{{Kind: mariposa.KindNode, ID: r.ID, SpecRevision: r.SpecRevision, StatusRevision: r.StatusRevision}}
		c.unit.Audit = []mariposa.Audit{{Kind: string(mariposa.KindNode)}}
		if err := build(r, c); err != nil {
			return nil, err
		}
		for i := range c.unit.Writes {
			w := &c.unit.Writes[i]
			w.Event.Node, w.Event.Actor = r.ID, actor(ctx)
			if w.Kind == "" {
				w.Kind, w.ID = mariposa.KindNode, r.ID
			}
		}
		return c, nil
	})
	if err != nil {
		return nil, err
	}
	return answer(*changed)
}
