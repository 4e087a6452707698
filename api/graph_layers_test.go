package api

import (
	"fmt"
	"maps"
	"reflect"
	"testing"

	"pgregory.net/rapid"

	"mariposa"
	"mariposa/contract"
	"mariposa/manifest"
)

func emptyGraph() *graph {
	return &graph{nodes: map[resource]*contract.GraphNode{}, edges: map[contract.GraphEdge]bool{}}
}

// For any edges, every node has a layer above its dependencies unless they form a
// cycle, no layer is empty, and the result is deterministic.
func TestEveryNodeStandsAboveAllThatItNeeds(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		count := rapid.IntRange(1, 12).Draw(rt, "nodes")
		circles := rapid.Bool().Draw(rt, "circles")
		name := func(n int) resource {
			return resource{[]string{kindService, kindNetwork}[n%2], fmt.Sprint("n", n/2)}
		}
		g := emptyGraph()
		for n := range count {
			g.add(contract.GraphNode{Kind: name(n).kind, Name: name(n).name})
		}
		for range rapid.IntRange(0, 30).Draw(rt, "edges") {
			from, to := rapid.IntRange(0, count).Draw(rt, "from"), rapid.IntRange(0, count).Draw(rt, "to")
			if circles || from > to {
				g.link(name(from), name(to), rapid.SampledFrom([]string{"depends_on", "reference"}).Draw(rt, "why"))
			}
		}
		again := emptyGraph()
		for _, n := range g.nodes {
			again.add(*n)
		}
		again.edges = maps.Clone(g.edges)
		nodes, edges := g.assignLayers()
		sameNodes, sameEdges := again.assignLayers()
		if len(nodes) != count || !reflect.DeepEqual(edges, sameEdges) || !reflect.DeepEqual(nodes, sameNodes) {
			rt.Fatalf("%d of %d nodes, and the same graph drawn twice is\n%v\n%v", len(nodes), count, nodes, sameNodes)
		}
		taken, top := map[int]bool{}, 0
		for _, n := range nodes {
			taken[n.Layer], top = true, max(top, n.Layer)
		}
		for _, e := range edges {
			from, to := g.nodes[resource{e.FromKind, e.From}], g.nodes[resource{e.ToKind, e.To}]
			if !circles && from.Layer <= to.Layer {
				rt.Fatalf("%v needs %v, and is not above it", from, to)
			}
		}
		if !circles && len(taken) != top {
			rt.Fatalf("a layer is empty: %v", nodes)
		}
	})
}

func TestAGraphHasEverythingThatAManifestHas(t *testing.T) {
	t.Parallel()
	m := &manifest.Project{
		Networks: []manifest.Network{{Name: "web"}, {Name: "idle"}},
		Volumes:  []manifest.Volume{{Name: "data"}},
	}
	g := emptyGraph()
	g.add(contract.GraphNode{Kind: kindService, Name: "web", Goal: 2})
	g.add(contract.GraphNode{Kind: kindService, Name: "db", Goal: 1, Running: 1})
	g.add(contract.GraphNode{Kind: kindLoadBalancer, Name: "front", Goal: 1})
	g.addOthers(m)
	g.linkService(&mariposa.Service{Name: "web", DependsOn: []string{"db"}, Networks: []string{"web"}})
	g.linkService(&mariposa.Service{Name: "db", Networks: []string{"web"}, Volumes: []string{"data:/var/lib"}})
	g.linkService(&mariposa.Service{Name: "front", Balancer: &mariposa.Balancer{Routes: []mariposa.Route{{Service: "web"}, {Service: "gone"}}}})
	g.linkService(&mariposa.Service{Name: "gone", DependsOn: []string{"db"}})
	g.judgeOthers(mariposa.GoalStarted)
	nodes, edges := g.assignLayers()
	var got []string
	for _, n := range nodes {
		got = append(got, fmt.Sprint(n.Layer, " ", n.Kind, " ", n.Name, " ", n.Status, " ", n.Running, "/", n.Goal))
	}
	for _, e := range edges {
		got = append(got, e.FromKind+" "+e.From+" > "+e.ToKind+" "+e.To+" "+e.Why)
	}
	want := []string{
		"1 network idle converged 0/0", "1 network web converged 1/1", "1 volume data converged 1/1", "2 service db  1/1", "3 service web  0/2",
		"4 load_balancer front  0/1",
		"load_balancer front > service web load_balancer", "service db > network web network", "service db > volume data volume",
		"service web > network web network", "service web > service db depends_on",
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got\n%q\nwant\n%q", got, want)
	}
	g.judgeOthers(mariposa.GoalStopped)
	if n := g.nodes[resource{kindNetwork, "idle"}]; n.Status != mariposa.StatusStopped {
		t.Errorf("stopped, it is %+v", n)
	}
}
