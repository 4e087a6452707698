package main_test

import (
	"encoding/json"
	"strings"
	"testing"

	"mariposa/contract"
)

func TestAProjectIsPrintedAsAGraph(t *testing.T) {
	t.Parallel()
	h := newDevServer(t, "--dummy-nodes", "1")
	h.create("chain", "services:\n  a: {compute_type: dummy, scale: 2}\n  b: {compute_type: dummy, depends_on: [a], dummy: {fail_prop: \"yes\"}}\n  c: {compute_type: dummy, depends_on: [b]}\n")
	line := func(name string) string {
		for _, l := range strings.Split(h.ok("-j", "chain", "project", "graph"), "\n") {
			if f := strings.Fields(l); len(f) > 4 && f[1] == name {
				return strings.Join(f[:5], " ")
			}
		}
		return ""
	}
	h.await("the chain to be stuck at b", func() bool {
		return line("a") == "1 a service converged 2/2" && line("b") == "2 b service backing-off 0/1" && strings.HasSuffix(line("c"), "0/1")
	})
	if out := h.ok("-j", "chain", "project", "graph", "--dot"); !strings.HasPrefix(out, `digraph "chain" {`) || !strings.Contains(out, `"service/c" -> "service/b"`) {
		t.Errorf("for Graphviz:\n%s", out)
	}
	var g contract.Graph
	if err := json.Unmarshal([]byte(h.ok("-j", "chain", "project", "graph", "--json")), &g); err != nil || len(g.Nodes) != 3 || len(g.Edges) != 2 || g.Edges[0].Why != "depends_on" {
		t.Errorf("as JSON: %v, %+v", err, g)
	}
	h.cannot("none", "-j", "none", "project", "graph")
}
