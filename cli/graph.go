package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"mariposa"
	"mariposa/client"
	"mariposa/contract"
)

func (a *app) projectGraph() *cobra.Command {
	var dot bool
	cmd := a.inProject(&cobra.Command{
		Use: "graph [PROJECT]", Short: "Show the dependency graph of a project with the status of each resource",
		Long: "Show the services, networks, volumes and load balancers of the version in force and what is\nleft of earlier versions, each with its status, its dependencies and what it is waiting for.\n\n" +
			"Layer 1 has no dependencies. Every other resource is listed below all of its dependencies.\nWith --dot, print the graph for Graphviz, colored by status.",
		Example: "  mariposa -j shop project graph\n  mariposa -j shop project graph --dot | dot -Tsvg > shop.svg",
	}, 0, func(ctx context.Context, c *client.Client, project string, _ []string) error {
		if dot && a.global.json {
			return Usage(errors.New("--dot and --json cannot be combined"))
		}
		g, err := c.Graph(ctx, project)
		return show(a, g, err, func() {
			if dot {
				fmt.Fprint(a.env.Stdout, dotOf(g))
				return
			}
			a.printGraph(g)
		})
	})
	cmd.Flags().BoolVar(&dot, "dot", false, "print the graph for Graphviz")
	return cmd
}

// printGraph prints a line per resource, dependencies first.
func (a *app) printGraph(g *contract.Graph) {
	needs := needsOf(g)
	t := newTable("LAYER", "NAME", "KIND", "STATUS", "RUNNING", "NEEDS?", "WAITS FOR?", "REASON?").ifEmpty("%s has no resources", g.ProjectName)
	for _, n := range g.Nodes {
		kind := strings.ReplaceAll(n.Kind, "_", " ")
		if n.Leftover {
			kind += " (left over)"
		}
		t.add(cell{fmt.Sprint(n.Layer), dim}, cell{n.Name, bold}, text(kind), word(n.Status), text(fmt.Sprintf("%d/%d", n.Running, n.Goal)),
			text(dashIfEmpty(listFew(needs[nodeKey(n.Kind, n.Name)]))), text(dashIfEmpty(listFew(missingDependencies(n, needs[nodeKey(n.Kind, n.Name)])))), text(n.Reason))
	}
	a.printTable(t)
}

// nodeKey distinguishes a service from a network of the same name.
func nodeKey(kind, name string) string { return kind + "/" + name }

// needsOf lists the dependencies of each resource, without duplicates.
func needsOf(g *contract.Graph) map[string][]contract.GraphNode {
	nodes, needs, seen := map[string]contract.GraphNode{}, map[string][]contract.GraphNode{}, map[string]bool{}
	for _, n := range g.Nodes {
		nodes[nodeKey(n.Kind, n.Name)] = n
	}
	for _, e := range g.Edges {
		from, to := nodeKey(e.FromKind, e.From), nodeKey(e.ToKind, e.To)
		if pair := from + " " + to; !seen[pair] {
			seen[pair] = true
			needs[from] = append(needs[from], nodes[to])
		}
	}
	return needs
}

// missingDependencies returns the dependencies that a resource still waits for.
func missingDependencies(n contract.GraphNode, needs []contract.GraphNode) (lacks []contract.GraphNode) {
	if n.Running >= n.Goal || n.Status == mariposa.StatusStopped {
		return nil
	}
	for _, on := range needs {
		none := on.Kind == "service" && on.Running == 0 // for example scaled to zero
		if none || on.Running < on.Goal || on.Status != mariposa.StatusConverged {
			lacks = append(lacks, on)
		}
	}
	return lacks
}

// listFew lists some resources and counts the rest, to fit on one line.
func listFew(all []contract.GraphNode) string {
	const most = 4
	var names []string
	for n, on := range all {
		if n == most && len(all) > most+1 {
			return strings.Join(names, ", ") + fmt.Sprintf(" and %d more", len(all)-most)
		}
		name := on.Name
		if on.Kind != "service" {
			name = strings.ReplaceAll(on.Kind, "_", " ") + " " + on.Name
		}
		names = append(names, name)
	}
	return strings.Join(names, ", ")
}

// fills are the colors of a node by the style of its status.
var fills = map[style]string{good: "#c8e6c9", busy: "#fff3c4", bad: "#ffcdd2", quiet: "#b2ebf2", dim: "#eeeeee"}

// shapes distinguish the kinds of resources.
var shapes = map[string]string{"service": "box", "network": "hexagon", "volume": "cylinder", "load_balancer": "house"}

// dotLegend explains lines and colors in a separate box.
func dotLegend() string {
	var b strings.Builder
	b.WriteString("  subgraph cluster_legend {\n    label=\"Legend\"; fontname=\"sans-serif\"; color=\"#999999\";\n    edge [fontname=\"sans-serif\"];\n")
	for _, c := range []struct {
		style
		text string
	}{{good, "converged"}, {busy, "converging"}, {bad, "failed, blocked, backing off"}, {quiet, "held, frozen, paused"}, {dim, "stopped"}} {
		fmt.Fprintf(&b, "    %s [label=%s, shape=\"box\", fillcolor=%s];\n", dotQuote("legend "+c.text), dotQuote(c.text), dotQuote(fills[c.style]))
	}
	for _, line := range []struct{ style, text string }{{"solid", "A depends on B, or uses it"}, {"dashed", "A refers to a value of B"}} {
		a, to := dotQuote("legend A "+line.style), dotQuote("legend B "+line.style)
		fmt.Fprintf(&b, "    %s [label=\"A\", fillcolor=\"#ffffff\"]; %s [label=\"B\", fillcolor=\"#ffffff\"];\n", a, to)
		fmt.Fprintf(&b, "    %s -> %s [style=%s, label=%s];\n", a, to, line.style, dotQuote(line.text))
	}
	b.WriteString("  }\n")
	return b.String()
}

// dotOf writes a graph in Graphviz's DOT language. Edges point to dependencies.
func dotOf(g *contract.Graph) string {
	var b strings.Builder
	fmt.Fprintf(&b, "digraph %s {\n  rankdir=BT;\n  node [style=filled, fontname=\"sans-serif\"];\n", dotQuote(g.ProjectName))
	for _, n := range g.Nodes {
		label := fmt.Sprintf("%s\n%d/%d %s", n.Name, n.Running, n.Goal, n.Status)
		if n.Leftover {
			label += "\nleft over"
		}
		fmt.Fprintf(&b, "  %s [label=%s, shape=%s, fillcolor=%s, tooltip=%s];\n", dotQuote(nodeKey(n.Kind, n.Name)), dotQuote(label),
			dotQuote(cmp.Or(shapes[n.Kind], "ellipse")), dotQuote(cmp.Or(fills[styles[string(n.Status)]], "#ffffff")), dotQuote(cmp.Or(n.Reason, string(n.Status))))
	}
	for _, e := range g.Edges {
		line := "solid"
		if e.Why == "reference" {
			line = "dashed"
		}
		fmt.Fprintf(&b, "  %s -> %s [style=%s, tooltip=%s];\n", dotQuote(nodeKey(e.FromKind, e.From)), dotQuote(nodeKey(e.ToKind, e.To)), line, dotQuote(e.Why))
	}
	b.WriteString(dotLegend())
	b.WriteString("}\n")
	return b.String()
}

// dotQuote quotes a text for Graphviz, where only the quote needs an escape. Backslashes
// are doubled, because a backslash would start one of Graphviz's own escapes. A line ends
// with \n.
func dotQuote(s string) string {
	lines := strings.Split(s, "\n")
	for n, line := range lines {
		lines[n] = strings.ReplaceAll(strings.ReplaceAll(plain(line), `\`, `\\`), `"`, `\"`)
	}
	return `"` + strings.Join(lines, `\n`) + `"`
}
