package cli

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"mariposa"
	"mariposa/contract"
)

// dotWords splits a DOT text into words. Quoted words keep their first quote, to
// distinguish them from keywords.
func dotWords(s string) (words []string, err error) {
	for s != "" {
		switch c := s[0]; {
		case c == ' ' || c == '\n':
			s = s[1:]
		case strings.HasPrefix(s, "->"):
			words, s = append(words, "->"), s[2:]
		case strings.ContainsRune("{}[]=;,", rune(c)):
			words, s = append(words, s[:1]), s[1:]
		case c == '"':
			end := 1
			for ; end < len(s) && s[end] != '"'; end++ {
				if s[end] == '\n' {
					return nil, errors.New("a line ends within quotes")
				}
				if s[end] == '\\' {
					end++
				}
			}
			if end >= len(s) {
				return nil, errors.New("a quote is not closed")
			}
			words, s = append(words, s[:end]), s[end+1:]
		default:
			end := strings.IndexFunc(s, func(r rune) bool { return !(r == '_' || 'a' <= r && r <= 'z' || 'A' <= r && r <= 'Z') })
			if end <= 0 {
				return nil, fmt.Errorf("%q is no word", s[:1])
			}
			words, s = append(words, s[:end]), s[end:]
		}
	}
	return words, nil
}

// dotGraph is a parsed DOT text: its name, nodes with their attributes, and edges.
type dotGraph struct {
	name  string
	nodes map[string]map[string]string
	edges [][2]string
}

// parseDot parses the part of the DOT language that we write, and rejects everything
// else.
func parseDot(s string) (*dotGraph, error) {
	words, err := dotWords(s)
	if err != nil {
		return nil, err
	}
	at := 0
	next := func() string {
		if at >= len(words) {
			return ""
		}
		at++
		return words[at-1]
	}
	is := func(word string) bool {
		if at < len(words) && words[at] == word {
			at++
			return true
		}
		return false
	}
	g := &dotGraph{nodes: map[string]map[string]string{}}
	if next() != "digraph" {
		return nil, errors.New("it is no digraph")
	}
	g.name = next()
	if !is("{") {
		return nil, errors.New("it does not begin")
	}
	legend := false
	for legend || !is("}") {
		if legend && is("}") {
			legend = false
			continue
		}
		id, to := next(), ""
		if id == "subgraph" {
			if legend = next() == "cluster_legend"; !legend || !is("{") {
				return nil, errors.New("a part that is no legend")
			}
			continue
		}
		switch {
		case id == "" || strings.Contains("{}[]=;,->", id):
			return nil, fmt.Errorf("%q is no node", id)
		case is("="):
			next()
		case is("->"):
			if to = next(); legend {
				break
			}
			g.edges = append(g.edges, [2]string{id, to})
		}
		attributes := map[string]string{}
		if is("[") {
			for !is("]") {
				key := next()
				if !is("=") || key == "" {
					return nil, fmt.Errorf("%q has no value", key)
				}
				attributes[key] = next()
				is(",")
			}
		}
		if to == "" && id[0] == '"' && !legend {
			g.nodes[id] = attributes
		}
		if !is(";") {
			return nil, fmt.Errorf("something of %q does not end", id)
		}
	}
	if at != len(words) {
		return nil, fmt.Errorf("%q follows the end", words[at])
	}
	return g, nil
}

func TestAGraphIsValidGraphviz(t *testing.T) {
	t.Parallel()
	hello := helloGraph()
	g, err := parseDot(dotOf(&hello))
	must(t, err)
	if g.name != `"hello` || len(g.nodes) != 6 || len(g.edges) != 6 {
		t.Errorf("read back: %+v", g)
	}
	if n := g.nodes[`"service/backend`]; n["fillcolor"] != `"#ffcdd2` || n["label"] != `"backend\n0/1 backing-off` {
		t.Errorf("backend: %v", n)
	}
	if n := g.nodes[`"service/old`]; n["label"] != `"old\n2/0 converging\nleft over` {
		t.Errorf("old: %v", n)
	}
	for _, e := range g.edges {
		if g.nodes[e[0]] == nil || g.nodes[e[1]] == nil {
			t.Errorf("an edge %v between what is not there", e)
		}
	}
}

// Whatever names and reasons contain, it stays within its quotes.
func TestNothingBreaksOutOfItsQuotes(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		odd := rapid.StringOf(rapid.SampledFrom([]rune("a\"\\\n\t;]}{->=\x00\x1b é")))
		from, to := odd.Draw(rt, "from"), odd.Draw(rt, "to")
		g := contract.Graph{
			ProjectName: odd.Draw(rt, "project"),
			Nodes:       []contract.GraphNode{{Kind: "service", Name: from, Status: mariposa.Status(odd.Draw(rt, "status")), Reason: odd.Draw(rt, "reason")}, {Kind: "network", Name: to}},
			Edges:       []contract.GraphEdge{{From: from, FromKind: "service", To: to, ToKind: "network", Why: odd.Draw(rt, "why")}},
		}
		text := dotOf(&g)
		read, err := parseDot(text)
		if err != nil {
			rt.Fatalf("%v in\n%s", err, text)
		}
		if len(read.nodes) != 2 || len(read.edges) != 1 {
			rt.Fatalf("%+v in\n%s", read, text)
		}
	})
}

func TestALargeGraphStaysALinePerNode(t *testing.T) {
	t.Parallel()
	var manifest strings.Builder
	manifest.WriteString("services:\n")
	var all []string
	for n := range 499 {
		all = append(all, fmt.Sprint("s", n))
		_, _ = fmt.Fprintf(&manifest, "  s%d: {compute_type: dummy, scale: 0}\n", n)
	}
	_, _ = fmt.Fprintf(&manifest, "  s499: {compute_type: dummy, depends_on: [%s]}\n", strings.Join(all, ", "))
	s := newTeamServer(t)
	_, err := s.CreateProject(t.Context(), "big", []byte(manifest.String()), "")
	must(t, err)
	s.awaitDocument("/v1/projects/big/graph", `"layer": ?2`)
	r := (&run{f: s.proxy(t)}).do(t, "project", "graph", "big")
	lines := strings.Split(strings.TrimSpace(r.stdout), "\n")
	if r.code != exitOK || len(lines) != 501 || !strings.Contains(lines[500], "s0, s1, s2, s3 and 495 more") {
		t.Fatalf("exit %d, %d lines, the last %s", r.code, len(lines), lines[len(lines)-1])
	}
	for _, line := range lines {
		if len(line) > 200 {
			t.Errorf("a long line: %s", line)
		}
	}
	_, err = s.CreateProject(t.Context(), "none", []byte("services: {}\n"), "")
	must(t, err)
	empty := (&run{f: s.proxy(t)}).do(t, "project", "graph", "none")
	if empty.stdout != "" || !strings.Contains(empty.stderr, "none has no resources") {
		t.Errorf("of nothing it says %q", empty.stderr)
	}
}

// A resource waits for the dependencies that it does not have yet. A stopped resource
// waits for nothing.
func TestWhatWaitsForWhomIsAsTheReasonsSay(t *testing.T) {
	t.Parallel()
	none := contract.GraphNode{Kind: "service", Name: "zero", Status: mariposa.StatusConverged}
	there := contract.GraphNode{Kind: "service", Name: "db", Status: mariposa.StatusConverged, Running: 1, Goal: 1}
	idle := contract.GraphNode{Kind: "network", Name: "net", Status: mariposa.StatusConverged}
	for _, c := range []struct {
		name string
		n    contract.GraphNode
		want string
	}{
		{"what is not up waits for what is scaled to nothing", contract.GraphNode{Status: mariposa.StatusConverging, Goal: 1}, "zero"},
		{"what is up waits for nothing", contract.GraphNode{Status: mariposa.StatusConverged, Goal: 1, Running: 1}, ""},
		{"what is stopped waits for nothing", contract.GraphNode{Status: mariposa.StatusStopped, Goal: 1}, ""},
	} {
		if got := listFew(missingDependencies(c.n, []contract.GraphNode{none, there, idle})); got != c.want {
			t.Errorf("%s: %q", c.name, got)
		}
	}
}
