package api

import (
	"context"
	"net/http"
	"slices"

	"mariposa"
	"mariposa/contract"
	"mariposa/store"
)

func (s *server) nodeRoutes() {
	serve(s, route(http.MethodGet, "/v1/nodes", "nodes", "list-nodes", "List nodes"), s.listNodes)
	serve(s, route(http.MethodGet, "/v1/nodes/{node}", "nodes", "get-node", "Show a node"), s.getNode)
	act := route(http.MethodPut, "/v1/nodes/{node}", "nodes", "act-on-node", "Do something to a node")
	act.Description = "Purge lets quarantined instances go. A dummy node can be lost and restored, for tests and demonstrations."
	serve(s, act, s.actOnNode)
	remove := route(http.MethodDelete, "/v1/nodes/{node}", "nodes", "delete-node", "Forget a node")
	remove.Description = "Only one that is unknown and has no instances."
	serve(s, remove, s.deleteNode)
}

type ofNode struct {
	Node string `path:"node" doc:"its id or name" maxLength:"255"`
}

func (s *server) listNodes(ctx context.Context, _ *struct{}) (*document[contract.Nodes], error) {
	v, all := s.viewer(ctx), contract.Nodes{Nodes: []contract.Node{}}
	for _, r := range s.Picture.All(mariposa.KindNode) {
		all.Nodes = append(all.Nodes, v.node(r))
	}
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
	return s.changeNode(ctx, in.Node, func(r *store.Record) (store.Write, error) {
		old := r.Spec.(*mariposa.NodeSpec)
		spec := *old
		event, err := act(r, &spec)
		if err != nil || (spec.Lost == old.Lost && slices.Equal(spec.Purge, old.Purge)) {
			return store.Write{}, err
		}
		return store.Write{Spec: &spec, Event: mariposa.Event{Kind: event, Reason: actor(ctx) + " asked for it"}}, nil
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

func (s *server) deleteNode(ctx context.Context, in *ofNode) (*document[contract.Changed], error) {
	return s.changeNode(ctx, in.Node, func(r *store.Record) (store.Write, error) {
		name := r.Spec.(*mariposa.NodeSpec).Name
		if st := nodeStatus(r); st != nil && st.State != mariposa.NodeUnknown {
			return store.Write{}, conflict("node %s is %s: end its agent first", name, st.State)
		}
		if n := s.Picture.CountOn(r.ID); n > 0 {
			return store.Write{}, conflict("node %s still has %d instances: wait until they are elsewhere, or bring the node back", name, n)
		}
		return store.Write{Delete: true, Event: mariposa.Event{Kind: "node.deleted", Reason: actor(ctx) + " asked for it"}}, nil
	})
}

// changeNode changes a node as it stands. A write without effect is none.
func (s *server) changeNode(ctx context.Context, ref string, build func(*store.Record) (store.Write, error)) (*document[contract.Changed], error) {
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
		w, err := build(r)
		if err != nil || (w.Spec == nil && !w.Delete) {
			return c, err
		}
		w.Kind, w.ID, w.Event.Node, w.Event.Actor = mariposa.KindNode, r.ID, r.ID, actor(ctx)
		c.unit.Require = []store.Require{{Kind: mariposa.KindNode, ID: r.ID, SpecRevision: r.SpecRevision, StatusRevision: r.StatusRevision}}
		c.unit.Writes = []store.Write{w}
		return c, nil
	})
	if err != nil {
		return nil, err
	}
	return answer(*changed)
}
