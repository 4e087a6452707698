package api

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"mariposa"
	"mariposa/auth"
	"mariposa/contract"
	"mariposa/store"
)

const (
	// foreignTimeout is how long nodes may take to list their foreign containers.
	foreignTimeout = 10 * time.Second
	// maxAskedForeign is how many nodes are asked at once.
	maxAskedForeign = 16
	// maxListedForeign is how many containers a list over all nodes has.
	maxListedForeign = 10_000
)

func (s *server) listForeign(ctx context.Context, _ *struct{}) (*document[contract.ForeignContainers], error) {
	return answer(s.foreignOn(ctx, s.Picture.Nodes.All()))
}

func (s *server) listForeignOn(ctx context.Context, in *ofNode) (*document[contract.ForeignContainers], error) {
	r, err := s.findNode(in.Node)
	if err != nil {
		return nil, err
	}
	doc := s.foreignOn(ctx, []*store.Node{r})
	if len(doc.Containers) == 0 && len(doc.Missing) > 0 {
		return nil, mariposa.Errorf(mariposa.Unavailable, "cannot list the foreign containers of node %s: %s", r.Spec().Name, doc.Missing[0].Reason)
	}
	return answer(doc)
}

// foreignOn lists the foreign containers of nodes, and says which nodes did not answer. Nodes that
// run no containers are left out.
func (s *server) foreignOn(ctx context.Context, nodes []*store.Node) contract.ForeignContainers {
	ctx, cancel := context.WithTimeout(ctx, foreignTimeout)
	defer cancel()
	doc := contract.ForeignContainers{Containers: []contract.ForeignContainer{}, Missing: []contract.MissingForeign{}}
	adopted := s.adoptedContainers()
	var mu sync.Mutex
	var each sync.WaitGroup
	turns := make(chan struct{}, maxAskedForeign)
	for _, r := range nodes {
		if !runsContainers(r) {
			continue
		}
		each.Go(func() {
			turns <- struct{}{}
			defer func() { <-turns }()
			all, total, err := s.Fleet.ForeignContainers(ctx, r.ID)
			mu.Lock()
			defer mu.Unlock()
			name := r.Spec().Name
			for _, c := range all {
				if !adopted[c.ID] { // by another node with the same engine, or a moment ago
					doc.Containers = append(doc.Containers, contract.ForeignContainer{ForeignContainer: c, Node: r.ID, NodeName: name})
				}
			}
			switch {
			case err != nil:
				doc.Missing = append(doc.Missing, contract.MissingForeign{Node: r.ID, NodeName: name, Reason: nodeFailure(err, "it did not answer").Error()})
			case total > len(all):
				doc.Missing = append(doc.Missing, contract.MissingForeign{Node: r.ID, NodeName: name, Reason: fmt.Sprintf("only the newest %d of its %d containers are listed", len(all), total)})
			}
		})
	}
	each.Wait()
	slices.SortFunc(doc.Containers, func(a, b contract.ForeignContainer) int {
		return cmp.Or(compareNaturally(a.NodeName, b.NodeName), compareNaturally(a.Name, b.Name), cmp.Compare(a.ID, b.ID))
	})
	slices.SortFunc(doc.Missing, func(a, b contract.MissingForeign) int {
		return cmp.Or(compareNaturally(a.NodeName, b.NodeName), cmp.Compare(a.Node, b.Node))
	})
	if most := maxListedForeign; len(doc.Containers) > most {
		from := doc.Containers[most]
		doc.Containers = doc.Containers[:most]
		doc.Missing = append(doc.Missing, contract.MissingForeign{Node: from.Node, NodeName: from.NodeName, Reason: fmt.Sprintf("the list ends after %d containers: list the nodes from this one on one by one", most)})
	}
	return doc
}

// runsContainers reports whether a node can have foreign containers: it has a driver for
// containers, whether its engine answers or not.
func runsContainers(r *store.Node) bool {
	st := r.Status()
	if st == nil {
		return false
	}
	_, offers := st.Offers[mariposa.ComputeDocker]
	return offers || slices.Contains(st.Drivers, mariposa.ComputeDocker)
}

// adoptedContainers returns the ids of all adopted containers.
func (s *server) adoptedContainers() map[string]bool {
	all := map[string]bool{}
	for _, r := range s.Picture.Instances.All() {
		if id := r.Spec().Adopts; id != "" {
			all[id] = true
		}
	}
	return all
}

type adoptContainerInput struct {
	Node      string `path:"node" doc:"id or name" maxLength:"255"`
	Container string `path:"container" doc:"id of the container, the beginning of its id, or its name" maxLength:"255"`
	Body      contract.ContainerAdoption
}

func (s *server) adoptContainer(ctx context.Context, in *adoptContainerInput) (*document[contract.Changed], error) {
	node, err := s.findNode(in.Node)
	if err != nil {
		return nil, err
	}
	project, err := s.findProject(ctx, in.Body.Project, in.Body.Organization)
	if err != nil {
		return nil, err
	}
	if err := s.require(ctx, auth.ManageInstances, project.Record()); err != nil {
		return nil, err
	}
	done, err := s.change.AdoptContainer(ctx, request(ctx), project.ID, node.ID, in.Container, in.Body.Name)
	return changed(done, err)
}
