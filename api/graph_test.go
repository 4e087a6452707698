package api_test

import (
	"fmt"
	"testing"

	"mariposa"
	"mariposa/contract"
)

func (h *testServer) graph(project string) (nodes map[string]contract.GraphNode, edges string) {
	h.t.Helper()
	g := want[contract.Graph](h.call("GET", "/v1/projects/"+project+"/graph", nil), 200)
	nodes = map[string]contract.GraphNode{}
	for _, n := range g.Nodes {
		nodes[n.Name] = n
	}
	for _, e := range g.Edges {
		edges += fmt.Sprintf("%s>%s(%s) ", e.From, e.To, e.Why)
	}
	return nodes, edges
}

func TestAProjectIsShownAsAGraph(t *testing.T) {
	t.Parallel()
	h := newTestServer(t, withPlanner)
	g := h.joinGated("n1")
	h.create("shop", "services:\n  web: {compute_type: dummy, scale: 2, depends_on: [db, cache]}\n  db: {compute_type: dummy}\n  cache: {compute_type: dummy, environment: {DB: '{{ .services.db.id }}'}}\n")
	h.awaitRest("shop")
	nodes, edges := h.graph("shop")
	if edges != "cache>db(reference) web>cache(depends_on) web>db(depends_on) " {
		t.Errorf("edges %s", edges)
	}
	for name, layer := range map[string]int{"db": 1, "cache": 2, "web": 3} {
		n := nodes[name]
		if n.Layer != layer || n.Kind != "service" || n.Status != mariposa.StatusConverged || n.Running != n.Goal || n.ID == "" || n.Leftover {
			t.Errorf("%s: %+v", name, n)
		}
	}
	g.close("shop") // what goes takes its time
	h.putManifest("shop", "services:\n  db: {compute_type: dummy}\n  cache: {compute_type: dummy}\n", "")
	h.until("web to be left over alone", func() bool {
		nodes, edges = h.graph("shop")
		return nodes["web"].Leftover && edges == "web>cache(depends_on) web>db(depends_on) " && nodes["cache"].Layer == 1
	})
	if n := nodes["web"]; n.Goal != 0 || n.Layer != 2 {
		t.Errorf("left over: %+v", n)
	}
	g.open("shop")
	h.until("web to be gone", func() bool { nodes, edges = h.graph("shop"); return len(nodes) == 2 && edges == "" })
}

func TestAGraphIsForThoseWhoSeeTheProject(t *testing.T) {
	t.Parallel()
	w := newTestTeams(t)
	g := want[contract.Graph](w.asUser("vera").call("GET", "/v1/projects/"+w.shop.ID+"/graph", nil), 200)
	if g.ProjectName != "shop" || len(g.Nodes) != 4 || g.Edges == nil || g.Revision == 0 || g.Version == "" || g.Nodes[1].Reason == "" || !g.Nodes[0].Leftover || g.Nodes[0].ID != w.network || g.Nodes[3].Kind != "volume" {
		t.Errorf("before anything is planned: %+v", g)
	}
	w.asUser("sam").call("GET", "/v1/projects/"+w.shop.ID+"/graph", nil).wantError(404, mariposa.ResourceNotFound)
	w.asUser("vera").call("GET", "/v1/projects/"+w.shop.ID+"/graph?colour=red", nil).wantError(400, mariposa.InvalidArgument, "colour")
}
