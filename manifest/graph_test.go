package manifest

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// graphOf writes a manifest of dummies with the given dependencies.
func graphOf(edges map[string][]string) string {
	var b strings.Builder
	b.WriteString("services:\n")
	for _, name := range sortedKeys(edges) {
		fmt.Fprintf(&b, "  %s: {compute_type: dummy, depends_on: [%s]}\n", name, strings.Join(edges[name], ", "))
	}
	return b.String()
}

func orderOf(p *Project) (names []string) {
	for _, s := range p.Order() {
		names = append(names, s.Name)
	}
	return names
}

func TestOrderPutsDependenciesFirst(t *testing.T) {
	t.Parallel()
	p := mustParse(t, graphOf(map[string][]string{"web": {"api", "cache"}, "api": {"db"}, "cache": nil, "db": nil, "alone": nil}))
	if got := strings.Join(orderOf(p), " "); got != "alone cache db api web" {
		t.Errorf("got %s", got)
	}
	if got := p.Dependents(); !slices.Equal(got["db"], []string{"api"}) || !slices.Equal(got["cache"], []string{"web"}) || got["web"] != nil {
		t.Errorf("dependents %v", got)
	}
}

func TestAnyGraphHasAnOrderOrANamedCycle(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(1, 12).Draw(t, "n")
		edges := map[string][]string{}
		for i := range n {
			from := fmt.Sprintf("s%d", i)
			for _, j := range rapid.SliceOfNDistinct(rapid.IntRange(0, n-1), 0, min(n, 3), rapid.ID[int]).Draw(t, from) {
				if j != i {
					edges[from] = append(edges[from], fmt.Sprintf("s%d", j))
				}
			}
			edges[from] = append([]string{}, edges[from]...)
		}
		p, err := Parse([]byte(graphOf(edges)))
		if err == nil {
			order := orderOf(p)
			if len(order) != n {
				t.Fatalf("order %v misses some of %d", order, n)
			}
			for from, tos := range edges {
				for _, to := range tos {
					if slices.Index(order, to) > slices.Index(order, from) {
						t.Fatalf("%s stands before %s in %v", from, to, order)
					}
				}
			}
			return
		}
		for _, f := range faultsOf(err) {
			_, path, _ := strings.Cut(f.Message, "circular dependency: ")
			path, _, _ = strings.Cut(path, ";")
			steps := strings.Split(path, " -> ")
			if len(steps) < 3 || steps[0] != steps[len(steps)-1] {
				t.Fatalf("no cycle in %q", f.Message)
			}
			for i := range len(steps) - 1 {
				if !slices.Contains(edges[steps[i]], steps[i+1]) {
					t.Fatalf("%s does not depend on %s: %s", steps[i], steps[i+1], f.Message)
				}
			}
		}
	})
}

// bigGraph has 10,000 services with 20,000 edges.
func bigGraph(extra string) string {
	var b strings.Builder
	b.WriteString("services:\n")
	for i := range 10_000 {
		fmt.Fprintf(&b, "  s%d: {compute_type: dummy", i)
		if i > 1 {
			fmt.Fprintf(&b, ", depends_on: [s%d, s%d]", i-1, i/2)
		}
		if i == 2 {
			b.WriteString("}\n")
			continue
		}
		if i == 3 {
			b.WriteString(extra)
		}
		b.WriteString("}\n")
	}
	return strings.Replace(b.String(), "[s1, s1]", "[s1, s0]", 1)
}

func TestTenThousandServicesAreReadQuickly(t *testing.T) { // not parallel: it measures
	text := bigGraph("")
	start := time.Now()
	p := mustParse(t, text)
	if took := time.Since(start); took > 10*time.Second {
		t.Errorf("took %v", took)
	}
	if order := p.Order(); len(order) != 10_000 || order[9999].Name != "s9999" {
		t.Error("the order is wrong")
	}
}

func TestALongCycleIsNamedInShort(t *testing.T) {
	t.Parallel()
	edges := map[string][]string{}
	for i := range 10_000 {
		edges[fmt.Sprintf("s%d", i)] = []string{fmt.Sprintf("s%d", (i+1)%10_000)}
	}
	_, err := Parse([]byte(graphOf(edges)))
	faults := faultsOf(err)
	if len(faults) != 1 || !strings.Contains(faults[0].Message, "s0 -> s1 -> s2 -> s3 -> s4 -> s5 -> s6 -> (9988 more) -> s9995") || len(faults[0].Message) > 300 {
		t.Error(listing(err))
	}
}

func BenchmarkParseTenThousandServices(b *testing.B) {
	text := []byte(bigGraph(""))
	b.ReportAllocs()
	b.SetBytes(int64(len(text)))
	for b.Loop() {
		if _, err := Parse(text); err != nil {
			b.Fatal(err)
		}
	}
}
