package api

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"strings"

	"mariposa"
	"mariposa/contract"
	"mariposa/manifest"
	"mariposa/reason"
	"mariposa/store"
)

func (s *server) getGraph(ctx context.Context, in *OfProject) (*document[contract.Graph], error) {
	r, err := s.findProject(ctx, in.Project, in.Organization)
	if err != nil {
		return nil, err
	}
	revision, v := s.Picture.Revision(), s.viewer(ctx)
	st, ok := s.projectState(v, r.ID)
	if !ok {
		return nil, notFound("project %q was just deleted", in.Project)
	}
	doc := v.graph(r, st)
	doc.Revision = revision
	return answer(doc)
}

// The kinds of resources.
const (
	kindService      = "service"
	kindNetwork      = "network"
	kindVolume       = "volume"
	kindLoadBalancer = "load_balancer"
)

// resource identifies a node of a graph: a service and a network can have the same name.
type resource struct{ kind, name string }

// graph is a project's graph under construction.
type graph struct {
	nodes map[resource]*contract.GraphNode
	edges map[contract.GraphEdge]bool
}

func (g *graph) add(n contract.GraphNode) { g.nodes[resource{n.Kind, n.Name}] = &n }

// link adds an edge if both ends exist: leftovers may depend on removed resources.
func (g *graph) link(from, to resource, why string) {
	if g.nodes[from] != nil && g.nodes[to] != nil && from != to {
		g.edges[contract.GraphEdge{From: from.name, FromKind: from.kind, To: to.name, ToKind: to.kind, Why: why}] = true
	}
}

// graph builds the graph of a project from its state.
func (v *viewer) graph(r *store.Project, st contract.ProjectState) contract.Graph {
	g := &graph{nodes: map[resource]*contract.GraphNode{}, edges: map[contract.GraphEdge]bool{}}
	goals, number := v.goals(r), r.Spec().Number
	if status := r.Status(); status != nil {
		number = status.Number
	}
	for _, one := range st.Services {
		ss, kind := goals[one.Name], kindService
		if ss != nil {
			if def := v.definition(r.ID, ss.Number, one.Name); def != nil && def.Balancer != nil {
				kind = kindLoadBalancer
			}
		}
		g.add(contract.GraphNode{
			ID: one.ID, Kind: kind, Name: one.Name, Status: one.Status, Reason: one.Reason, ReasonCode: one.ReasonCode, Goal: one.Goal, Running: one.Running,
			Leftover: ss == nil || ss.Removed,
		})
	}
	if of := v.version(r.ID, number); of != nil {
		g.addOthers(of.Manifest)
	}
	v.addUndeclared(g, r)
	for name, ss := range goals {
		n := g.nodes[resource{kindService, name}]
		if n == nil {
			n = g.nodes[resource{kindLoadBalancer, name}]
		}
		if n != nil && !n.Leftover {
			g.linkService(v.definition(r.ID, ss.Number, name))
		}
	}
	v.linkLeftovers(g, r.ID)
	g.judgeOthers(st.Goal)
	v.judgeNetworksAndVolumes(g, r)
	doc := contract.Graph{Project: st.ID, ProjectName: st.Name, Version: st.Version, Status: st.Status, Reason: st.Reason, ReasonCode: st.ReasonCode}
	doc.Nodes, doc.Edges = g.assignLayers()
	return doc
}

// addOthers adds the resources of a manifest that are not services.
func (g *graph) addOthers(m *manifest.Project) {
	for _, n := range m.Networks {
		g.add(contract.GraphNode{Kind: kindNetwork, Name: n.Name})
	}
	for _, n := range m.Volumes {
		g.add(contract.GraphNode{Kind: kindVolume, Name: n.Name})
	}
}

// linkService adds the dependencies of a service's definition, if not nil.
func (g *graph) linkService(def *mariposa.Service) {
	if def == nil {
		return
	}
	from := resource{kindService, def.Name}
	if def.Balancer != nil {
		from.kind = kindLoadBalancer
		for _, route := range def.Balancer.Routes {
			g.link(from, resource{kindService, route.Service}, kindLoadBalancer)
		}
	}
	for _, on := range def.DependsOn { // includes references
		why := "depends_on"
		if refers := func(ref mariposa.Ref) bool { return ref.Service == on }; slices.ContainsFunc(def.Refs, refers) || slices.ContainsFunc(def.LiveRefs, refers) {
			why = "reference"
		}
		g.link(from, resource{kindService, on}, why)
	}
	for _, name := range def.Networks {
		g.link(from, resource{kindNetwork, name}, kindNetwork)
	}
	for _, mount := range def.Volumes {
		g.link(from, resource{kindVolume, mariposa.ParseMount(mount).Name}, kindVolume)
	}
}

// addUndeclared adds the networks and volumes that exist but are no longer in the manifest.
func (v *viewer) addUndeclared(g *graph, project *store.Project) {
	add := func(kind, name string) {
		if g.nodes[resource{kind, name}] == nil {
			g.add(contract.GraphNode{Kind: kind, Name: name, Leftover: true})
		}
	}
	for _, r := range v.s.Picture.NetworksOf(project.ID) {
		add(kindNetwork, r.Spec().Name)
	}
	for _, r := range v.s.Picture.VolumesOf(project.ID) {
		add(kindVolume, r.Spec().Name)
	}
}

// judgeNetworksAndVolumes sets the status of networks and volumes from the reports of their
// nodes: which network attachments and volumes exist.
func (v *viewer) judgeNetworksAndVolumes(g *graph, project *store.Project) {
	visible := v.s.newVisibility(v.ctx, caller(v.ctx))
	for _, r := range v.s.Picture.NetworksOf(project.ID) {
		spec := r.Spec()
		n := g.nodes[resource{kindNetwork, spec.Name}]
		n.Goal, n.Running = 0, 0
		if v.s.seesNetwork(visible, spec.Project, spec.Organization) {
			n.ID = r.ID
		}
		for _, part := range v.s.Picture.AttachmentsOf(r.ID) {
			doc := v.attachment(part)
			countPart(n, doc.State, doc.Reason, doc.ReasonCode)
		}
		judgeResource(n)
	}
	volumes := map[*contract.GraphNode]bool{}
	for _, r := range v.s.Picture.VolumesOf(project.ID) {
		n := g.nodes[resource{kindVolume, r.Spec().Name}]
		if !volumes[n] {
			volumes[n], n.Goal, n.Running, n.Reason, n.ReasonCode = true, 0, 0, "", ""
		}
		doc := v.volume(r)
		countPart(n, doc.State, doc.Reason, doc.ReasonCode)
	}
	for n := range volumes {
		judgeResource(n)
	}
}

// countPart counts the part of a resource on one node, unless it is being deleted.
func countPart(n *contract.GraphNode, state, reason string, code mariposa.ReasonCode) {
	switch mariposa.ResourceState(state) {
	case "deleting":
		return
	case mariposa.ResourceMade:
		n.Running++
	default:
		n.Reason, n.ReasonCode = reason, code
	}
	n.Goal++
}

// judgeResource sets the status of a resource from its parts.
func judgeResource(n *contract.GraphNode) {
	n.Status = mariposa.StatusConverged
	if n.Running < n.Goal {
		n.Status = mariposa.StatusConverging
	} else {
		n.Reason, n.ReasonCode = "", ""
	}
}

// linkLeftovers adds the dependencies of leftover instances, from the definitions that they
// were created from.
func (v *viewer) linkLeftovers(g *graph, project string) {
	type made struct {
		service string
		number  int
	}
	drawn := map[made]bool{}
	v.s.Picture.EachInstanceOf(project, func(r *store.Instance) bool {
		spec := r.Spec()
		if n := g.nodes[resource{kindService, spec.ServiceName}]; n != nil && n.Leftover && spec.Managed {
			drawn[made{spec.ServiceName, spec.Number}] = true
		}
		return true
	})
	for m := range drawn { // not in the callback, which blocks the picture
		g.linkService(v.definition(project, m.number, m.service))
	}
}

// hasInstances reports whether resources of a kind have instances, and so a status of their own.
func hasInstances(kind string) bool { return kind == kindService || kind == kindLoadBalancer }

// judgeOthers sets the status of resources other than services: they exist while something
// that uses them runs.
func (g *graph) judgeOthers(goal mariposa.ProjectGoal) {
	for e := range g.edges {
		n, user := g.nodes[resource{e.ToKind, e.To}], g.nodes[resource{e.FromKind, e.From}]
		if hasInstances(n.Kind) {
			continue
		}
		n.Goal, n.Running = max(n.Goal, min(1, user.Goal)), max(n.Running, min(1, user.Running))
	}
	for _, n := range g.nodes {
		switch {
		case hasInstances(n.Kind):
		case goal != mariposa.GoalStarted && n.Running == 0:
			n.Status = mariposa.StatusStopped
		case n.Running < n.Goal:
			why := &mariposa.Reason{Code: mariposa.ReasonUnused}
			n.Status, n.Reason, n.ReasonCode = mariposa.StatusConverging, reason.Sentence(why), why.Code
		default:
			n.Status = mariposa.StatusConverged
		}
	}
}

// assignLayers puts every node into a layer above its dependencies and returns sorted nodes
// and edges. Nodes without dependencies are in layer 1. Edges of leftovers can form a
// cycle, which is broken at its first node by name.
func (g *graph) assignLayers() ([]contract.GraphNode, []contract.GraphEdge) {
	edges := slices.SortedFunc(maps.Keys(g.edges), compareEdges)
	lacks, needers := countDependencies(edges)
	var ready, waiting []resource
	for _, n := range slices.SortedFunc(maps.Keys(g.nodes), resource.compare) {
		g.nodes[n].Layer = 1
		if lacks[n] == 0 {
			ready = append(ready, n)
		} else {
			waiting = append(waiting, n)
		}
	}
	placed := map[resource]bool{}
	for len(placed) < len(g.nodes) {
		if len(ready) == 0 {
			waiting = slices.DeleteFunc(waiting, func(n resource) bool { return placed[n] })
			ready = waiting[:1:1]
		}
		n := ready[len(ready)-1]
		ready = ready[:len(ready)-1]
		placed[n] = true
		for _, from := range needers[n] {
			if placed[from] {
				continue
			}
			g.nodes[from].Layer = max(g.nodes[from].Layer, g.nodes[n].Layer+1)
			if lacks[from]--; lacks[from] == 0 {
				ready = append(ready, from)
			}
		}
	}
	nodes := make([]contract.GraphNode, 0, len(g.nodes))
	for _, n := range g.nodes {
		nodes = append(nodes, *n)
	}
	slices.SortFunc(nodes, func(a, b contract.GraphNode) int {
		return cmp.Or(cmp.Compare(a.Layer, b.Layer), resource{a.Kind, a.Name}.compare(resource{b.Kind, b.Name}))
	})
	return nodes, neverNil(edges)
}

// countDependencies counts the dependencies of each node, and lists its dependents.
func countDependencies(edges []contract.GraphEdge) (lacks map[resource]int, needers map[resource][]resource) {
	type pair struct{ from, to resource }
	lacks, needers = map[resource]int{}, map[resource][]resource{}
	seen := map[pair]bool{} // a node may depend on another for more than one reason
	for _, e := range edges {
		p := pair{resource{e.FromKind, e.From}, resource{e.ToKind, e.To}}
		if !seen[p] {
			seen[p] = true
			lacks[p.from]++
			needers[p.to] = append(needers[p.to], p.from)
		}
	}
	return lacks, needers
}

func (r resource) compare(o resource) int {
	return cmp.Or(strings.Compare(r.kind, o.kind), compareNaturally(r.name, o.name))
}

func compareEdges(a, b contract.GraphEdge) int {
	return cmp.Or(resource{a.FromKind, a.From}.compare(resource{b.FromKind, b.From}),
		resource{a.ToKind, a.To}.compare(resource{b.ToKind, b.To}), strings.Compare(a.Why, b.Why))
}
