package api

import (
	"cmp"
	"context"
	"slices"

	"mariposa"
	"mariposa/contract"
	"mariposa/store"
)

type ofNode struct {
	Node string `path:"node" doc:"id or name" maxLength:"255"`
}

func (s *server) listNodes(ctx context.Context, _ *struct{}) (*document[contract.Nodes], error) {
	s.Fleet.AskHeartbeats(ctx)
	v := s.viewer(ctx)
	all := contract.Nodes{Nodes: []contract.Node{}, Storm: v.storm()}
	for _, r := range s.Picture.Nodes.All() {
		all.Nodes = append(all.Nodes, sampleQuarantine(v.node(r), maxListedQuarantined))
	}
	slices.SortFunc(all.Nodes, func(a, b contract.Node) int { return cmp.Or(compareNaturally(a.Name, b.Name), cmp.Compare(a.ID, b.ID)) })
	return answer(all)
}

// maxShownQuarantined is how many quarantined instances of one node are shown, and
// maxListedQuarantined how many in lists and events, which contain many nodes.
const (
	maxShownQuarantined  = 100
	maxListedQuarantined = 20
)

// withoutProofs returns quarantined instances without the signatures of their origins.
func withoutProofs(all []mariposa.Quarantined) []mariposa.Quarantined {
	out := append([]mariposa.Quarantined{}, all...)
	for i := range out {
		if o := out[i].Origin; o != nil && o.Proof != "" {
			bare := *o
			bare.Proof = ""
			out[i].Origin = &bare
		}
	}
	return out
}

// sampleQuarantine leaves at most a number of quarantined instances in a document.
func sampleQuarantine(doc contract.Node, most int) contract.Node {
	doc.Quarantined = doc.Quarantined[:min(len(doc.Quarantined), most)]
	return doc
}

func (s *server) getNode(ctx context.Context, in *ofNode) (*document[contract.Node], error) {
	r, err := s.findNode(in.Node)
	if err != nil {
		return nil, err
	}
	s.Fleet.AskHeartbeats(ctx)
	doc := sampleQuarantine(s.viewer(ctx).node(r), maxShownQuarantined)
	if st := r.Status(); st != nil {
		doc.Machine = st.Machine
	}
	return answer(doc)
}

type actOnNodeInput struct {
	Node string `path:"node" doc:"id or name" maxLength:"255"`
	Body contract.NodeAction
}

func (s *server) actOnNode(ctx context.Context, in *actOnNodeInput) (*document[contract.Changed], error) {
	find := s.findNode
	if in.Body.Action == "accept" || in.Body.Action == "approve" || in.Body.Action == "reject" {
		find = func(ref string) (*store.Node, error) { return s.findWaiting(ref, in.Body.Fingerprint) }
	}
	r, err := find(in.Node)
	if err == nil && (in.Body.Action == "accept" || in.Body.Action == "approve") {
		err = s.requireProof(ctx) // the machine gets instances with their secrets, as with a join token
	}
	if err != nil {
		return nil, err
	}
	return changed(s.change.ActOnNode(ctx, request(ctx), r.ID, in.Body))
}

type deleteNodeInput struct {
	Node  string `path:"node" doc:"id or name" maxLength:"255"`
	Force bool   `query:"force" doc:"also remove the instances assigned to the node and its volumes"`
}

func (s *server) deleteNode(ctx context.Context, in *deleteNodeInput) (*document[contract.Changed], error) {
	r, err := s.findNode(in.Node)
	if err != nil {
		return nil, err
	}
	return changed(s.change.DeleteNode(ctx, request(ctx), r.ID, in.Force))
}
