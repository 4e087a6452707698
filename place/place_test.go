package place

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"mariposa"
	"mariposa/reason"
)

const gib = 1 << 30

func ready(id string, capacity mariposa.Resources) Node {
	return Node{ID: id, Name: id, Ready: true, Capacity: capacity, Drivers: []mariposa.ComputeType{mariposa.ComputeDocker}}
}

func placer(nodes ...Node) *Placer {
	p := NewPlacer()
	for _, n := range nodes {
		p.SetNode(n)
	}
	return p
}

func need(service string) Need {
	return Need{Service: service, Compute: mariposa.ComputeDocker, Take: mariposa.Resources{Instances: 1, MilliCPU: 500, Memory: gib}}
}

func TestNodesThatCannotTakeAnInstanceAreLeftOut(t *testing.T) {
	port := need("web")
	port.Ports = []int{8080}
	roomy := mariposa.Resources{Instances: 10, MilliCPU: 4000, Memory: 16 * gib}
	for _, c := range []struct {
		name string
		node Node
		need Need
		says string // empty: the instance is placed
	}{
		{"one with room is taken", ready("n", roomy), need("web"), ""},
		{"one without limits is taken", ready("n", mariposa.Resources{}), need("web"), ""},
		{"one that cannot be reached", Node{ID: "n", NotReady: "cannot be reached"}, need("web"), "cannot be reached (1 of 1)"},
		{"one that does not say why it is not ready", Node{ID: "n"}, need("web"), "not ready (1 of 1)"},
		{"one without the driver", ready("n", roomy), Need{Compute: mariposa.ComputeKVM}, "no node fits this kvm instance: cannot run kvm (1 of 1)"},
		{
			"one that says why it does not run the kind",
			Node{ID: "n", Ready: true, Unavailable: []Unavailable{{mariposa.ComputeProcess, "instances cannot be isolated there"}}},
			Need{Compute: mariposa.ComputeProcess},
			"no node fits this process instance: cannot run process: instances cannot be isolated there (1 of 1)",
		},
		{"one with too little memory", ready("n", mariposa.Resources{Memory: gib - 1}), need("web"), "less than 1024 MiB of memory free"},
		{"one with too little cpu", ready("n", mariposa.Resources{MilliCPU: 499}), need("web"), "less than 0.5 cpu free"},
		{"one with all places taken", ready("n", mariposa.Resources{Instances: 1}), need("other"), "full"},
		{"one with the port taken", ready("n", roomy), port, "port 8080 taken"},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := placer(c.node)
			if strings.Contains(c.says, "full") || strings.Contains(c.says, "port") {
				p.Claim("there", "n", port)
			}
			n, err := p.Pick("i", c.need)
			switch {
			case c.says == "" && (err != nil || n.ID != "n"):
				t.Fatalf("picked %q: %v", n.ID, err)
			case c.says != "" && !strings.Contains(reason.Sentence(err), c.says):
				t.Fatalf("says %v, want …%s…", err, c.says)
			}
		})
	}
}

func TestTheReasonCountsWhatTheNodesLack(t *testing.T) {
	if _, err := NewPlacer().Pick("i", need("web")); !err.Is(mariposa.ReasonNoNodes) {
		t.Fatalf("says %v", err)
	}
	drained := ready("n1", mariposa.Resources{})
	drained.Ready, drained.NotReady = false, "is drained"
	p := placer(drained, ready("n2", mariposa.Resources{Memory: 1}), ready("n3", mariposa.Resources{Memory: 1}))
	_, err := p.Pick("i", need("web"))
	want := "no node fits this docker instance: less than 1024 MiB of memory free (2 of 3), drained (1 of 3)"
	if reason.Sentence(err) != want {
		t.Fatalf("says %v, want %s", err, want)
	}
}

// Connections come and go without a change of the node's record.
func TestWhetherANodeCanBeReachedIsAskedWhenItIsPicked(t *testing.T) {
	p := placer(ready("a", mariposa.Resources{Instances: 9}), ready("b", mariposa.Resources{Instances: 9}))
	connected := map[string]bool{}
	p.Reachable = func(node string) bool { return connected[node] }
	only := need("web")
	only.Node = "a"
	_, why := p.Pick("1", need("web"))
	if says := reason.Sentence(why); !strings.Contains(says, "not connected (2 of 2)") {
		t.Errorf("without connections: %s", says)
	}
	if _, why := p.Pick("1", only); !strings.Contains(reason.Sentence(why), "not connected") {
		t.Errorf("without a connection to the only node: %s", reason.Sentence(why))
	}
	connected["b"] = true
	for _, id := range []string{"1", "2"} { // the second would otherwise go to a, which is emptier
		if n, why := p.Pick(id, need("web")); n.ID != "b" {
			t.Errorf("%s is on %q: %s", id, n.ID, reason.Sentence(why))
		}
	}
	connected["a"] = true
	if n, _ := p.Trial(nil).Pick("3", need("web")); n.ID != "a" {
		t.Errorf("a trial places it on %q", n.ID)
	}
	if n, _ := p.Pick("3", need("web")); n.ID != "a" {
		t.Errorf("it is on %q", n.ID)
	}
	if n, _ := p.Pick("4", only); n.ID != "a" {
		t.Errorf("it is on %q", n.ID)
	}
}

func TestOfTwoNodesTheBetterIsPicked(t *testing.T) {
	capacity := mariposa.Resources{Memory: 16 * gib, MilliCPU: 8000}
	for _, c := range []struct {
		name   string
		claims func(p *Placer)
		nodes  []Node
		want   string
	}{
		{"the one with fewer of the service, though it is fuller", func(p *Placer) {
			p.Claim("a", "n1", need("web"))
			p.Claim("b", "n2", need("db"))
			p.Claim("c", "n2", need("db"))
		}, []Node{ready("n1", capacity), ready("n2", capacity)}, "n2"},
		{"the one that is less filled", func(p *Placer) { p.Claim("a", "n1", need("db")) }, []Node{ready("n1", capacity), ready("n2", capacity)}, "n2"},
		{"the one with more places free", func(p *Placer) {
			p.Claim("a", "n1", need("db"))
			p.Claim("b", "n2", need("db"))
		}, []Node{ready("n1", mariposa.Resources{Instances: 2}), ready("n2", mariposa.Resources{Instances: 20})}, "n2"},
		{"the lower id when there is no difference", func(*Placer) {}, []Node{ready("n2", capacity), ready("n1", capacity)}, "n1"},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := placer(c.nodes...)
			c.claims(p)
			if n, err := p.Pick("i", need("web")); err != nil || n.ID != c.want {
				t.Fatalf("picked %q (%v), want %q", n.ID, err, c.want)
			}
		})
	}
}

func TestClaimsAreIdempotent(t *testing.T) {
	p := placer(ready("n1", mariposa.Resources{}), ready("n2", mariposa.Resources{}))
	one := need("web").Take
	for range 3 {
		p.Claim("i", "n1", need("web"))
	}
	if p.Used("n1") != one {
		t.Fatalf("used are %+v", p.Used("n1"))
	}
	bigger := need("web")
	bigger.Take.Memory = 2 * gib
	if p.Claim("i", "n1", bigger); p.Used("n1") != bigger.Take {
		t.Fatalf("what it takes has changed, but used are %+v", p.Used("n1"))
	}
	if p.Claim("i", "n2", need("web")); p.Used("n1") != (mariposa.Resources{}) || p.Used("n2") != one {
		t.Fatalf("used are %+v and %+v", p.Used("n1"), p.Used("n2"))
	}
	p.Release("i")
	p.Release("i")
	if p.Used("n2") != (mariposa.Resources{}) {
		t.Fatalf("used are %+v", p.Used("n2"))
	}
}

func TestANodeThatOnlyClaimsSpeakOfIsNotPicked(t *testing.T) {
	p := placer(ready("n1", mariposa.Resources{}))
	p.Claim("i", "n0", need("web"))
	if n, err := p.Pick("j", need("web")); err != nil || n.ID != "n1" {
		t.Fatalf("picked %q: %v", n.ID, err)
	}
	if p.SetNode(ready("n0", mariposa.Resources{})); p.Used("n0") != need("web").Take {
		t.Fatal("what was claimed before the node was told of counts")
	}
}

func TestClaimsOutliveTheAbsenceOfANode(t *testing.T) {
	p := placer(ready("n1", mariposa.Resources{Instances: 1}))
	p.Claim("i", "n1", need("web"))
	p.RemoveNode("n1")
	p.RemoveNode("n2")
	if _, err := p.Pick("j", need("web")); err == nil {
		t.Fatal("picked a node that is no more")
	}
	p.SetNode(ready("n1", mariposa.Resources{Instances: 1}))
	if _, err := p.Pick("j", need("web")); err == nil {
		t.Fatal("the node is full, as it was before")
	}
	p.RemoveNode("n1")
	p.Release("i")
	if len(p.byID)+len(p.nodes)+len(p.claims) > 0 {
		t.Fatal("something is left of what nobody speaks of")
	}
}

// TestPlacingHoldsItsPromises places, releases and changes instances at random. No node
// is ever overcommitted, every claim is counted, and a single service is spread evenly
// over equal nodes.
func TestPlacingHoldsItsPromises(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		limit := mariposa.Resources{
			Instances: rapid.IntRange(0, 6).Draw(t, "places"),
			MilliCPU:  int64(rapid.IntRange(0, 4).Draw(t, "cpu")) * 1000,
			Memory:    int64(rapid.IntRange(0, 8).Draw(t, "memory")) * gib,
		}
		p := NewPlacer()
		nodes := rapid.IntRange(1, 5).Draw(t, "nodes")
		for i := range nodes {
			p.SetNode(ready(fmt.Sprintf("n%d", i), limit))
		}
		placed := map[string]string{}
		takes := map[string]Need{}
		for i := range rapid.IntRange(0, 60).Draw(t, "changes") {
			if len(placed) > 0 && rapid.IntRange(0, 3).Draw(t, "release") == 0 {
				id := rapid.SampledFrom(slices.Sorted(maps.Keys(placed))).Draw(t, "which")
				p.Release(id)
				delete(placed, id)
				continue
			}
			id, n := fmt.Sprintf("i%02d", i), need(rapid.SampledFrom([]string{"web", "db"}).Draw(t, "service"))
			if rapid.IntRange(0, 2).Draw(t, "port") == 0 {
				n.Ports = []int{rapid.IntRange(80, 82).Draw(t, "number")}
			}
			if node, err := p.Pick(id, n); err == nil {
				placed[id], takes[id] = node.ID, n
			}
		}
		used, ports := map[string]mariposa.Resources{}, map[string]bool{}
		for id, node := range placed {
			used[node] = used[node].Plus(takes[id].Take)
			for _, port := range takes[id].Ports {
				key := fmt.Sprint(node, port)
				if ports[key] {
					t.Fatalf("port %d is given twice on %s", port, node)
				}
				ports[key] = true
			}
		}
		for i := range nodes {
			id := fmt.Sprintf("n%d", i)
			if !used[id].Within(limit) || p.Used(id) != used[id] {
				t.Fatalf("%s: %+v are placed, %+v accounted for, of %+v", id, used[id], p.Used(id), limit)
			}
		}
	})
}

func TestAServiceIsSpreadEvenlyOverEqualNodes(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := NewPlacer()
		nodes := rapid.IntRange(1, 9).Draw(t, "nodes")
		for i := range nodes {
			p.SetNode(ready(fmt.Sprintf("n%d", i), mariposa.Resources{Memory: 1000 * gib}))
		}
		on := map[string]map[string]int{}
		for i := range rapid.IntRange(1, 60).Draw(t, "instances") {
			service := rapid.SampledFrom([]string{"web", "db", "app"}).Draw(t, "service")
			n, err := p.Pick(fmt.Sprint(i), need(service))
			if err != nil {
				t.Fatal(err)
			}
			if on[service] == nil {
				on[service] = map[string]int{}
				for j := range nodes {
					on[service][fmt.Sprintf("n%d", j)] = 0
				}
			}
			on[service][n.ID]++
			counts := slices.Collect(maps.Values(on[service]))
			if slices.Max(counts)-slices.Min(counts) > 1 {
				t.Fatalf("%s is on %v", service, on[service])
			}
		}
	})
}

func TestPickingANodeCostsNextToNothing(t *testing.T) {
	p := NewPlacer()
	for i := range 100 {
		p.SetNode(ready(fmt.Sprintf("n%02d", i), mariposa.Resources{Memory: 1 << 50}))
	}
	n := testing.AllocsPerRun(100, func() {
		if _, err := p.Pick("one", need("web")); err != nil {
			t.Error(err)
		}
		p.Release("one")
	})
	if n > 4 {
		t.Errorf("one pick among 100 nodes allocates %.0f times", n)
	}
}

func BenchmarkPickAmong100Nodes(b *testing.B) {
	p := NewPlacer()
	for i := range 100 {
		p.SetNode(ready(fmt.Sprintf("n%02d", i), mariposa.Resources{Memory: 1 << 50, MilliCPU: 1 << 40}))
	}
	for i := range 10_000 {
		if _, err := p.Pick(fmt.Sprint(i), need("web")); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportAllocs()
	for b.Loop() {
		if _, err := p.Pick("one", need("web")); err != nil {
			b.Fatal(err)
		}
		p.Release("one")
	}
}

func BenchmarkPickWhere99Of100NodesAreFull(b *testing.B) {
	p := NewPlacer()
	for i := range 100 {
		p.SetNode(ready(fmt.Sprintf("n%02d", i), mariposa.Resources{Memory: 1}))
	}
	p.SetNode(ready("n50", mariposa.Resources{}))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := p.Pick("one", need("web")); err != nil {
			b.Fatal(err)
		}
		p.Release("one")
	}
}

// A trial gives the same answers as the placer and does not change it.
func TestATrialTakesNothing(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := placer(ready("n1", mariposa.Resources{Memory: 3 * gib}), ready("n2", mariposa.Resources{Memory: 2 * gib}))
		var here []string
		for i := range rapid.IntRange(0, 5).Draw(t, "claimed") {
			id := fmt.Sprint("old-", i)
			if _, err := p.Pick(id, need("web")); err == nil {
				here = append(here, id)
			}
		}
		before := []mariposa.Resources{p.Used("n1"), p.Used("n2")}
		trial, twin := p.Trial(here), placer(ready("n1", mariposa.Resources{Memory: 3 * gib}), ready("n2", mariposa.Resources{Memory: 2 * gib}))
		for i := range len(here) {
			twin.Claim(here[i], p.claims[here[i]].node, need("web"))
		}
		for i := range rapid.IntRange(1, 8).Draw(t, "tried") {
			if len(here) > 0 && rapid.Bool().Draw(t, "releases") {
				trial.Release(here[0])
				twin.Release(here[0])
				here = here[1:]
				continue
			}
			got, err := trial.Pick(fmt.Sprint("new-", i), need("web"))
			want, no := twin.Pick(fmt.Sprint("new-", i), need("web"))
			if got.ID != want.ID || (err == nil) != (no == nil) {
				t.Fatalf("it found %q (%v), another finds %q (%v)", got.ID, err, want.ID, no)
			}
		}
		if after := []mariposa.Resources{p.Used("n1"), p.Used("n2")}; !slices.Equal(before, after) {
			t.Fatalf("the placer has %v by now, %v before", after, before)
		}
	})
}
