package converge

import (
	"maps"
	"slices"

	"mariposa"
)

// edge says that instances of a service live by a definition that depends on
// another one.
type edge struct {
	on string
	as int // the version of that definition
}

// links are the edges between services, to be followed from either end.
type links struct {
	needers map[string]map[*service]struct{} // name -> those that depend on it by the definition in force
	leaners map[string]map[*service]int      // name -> those that do by a definition that instances live by, and how many edges that is
	inUse   map[int]int                      // version -> edges of it that instances live by
	ring    map[string]int                   // name -> which ring of edges it is on; nil: not looked for since they changed
}

func newLinks() links {
	return links{needers: map[string]map[*service]struct{}{}, leaners: map[string]map[*service]int{}, inUse: map[int]int{}}
}

// relink brings the edges of a service up to date. It reports whether those that
// instances live by have changed.
func (v *View) relink(s *service) bool {
	var needs []string
	if s.def != nil {
		needs = s.def.DependsOn
	}
	if asks := v.asks(s); len(asks) > 0 { // older definitions may refer to others
		depends := needs
		for _, on := range slices.Sorted(maps.Keys(asks)) {
			if _, known := slices.BinarySearch(depends, on); !known {
				needs = append(slices.Clip(needs), on)
			}
		}
	}
	if !slices.Equal(s.needs, needs) {
		v.setNeeds(s, needs)
	}
	edges := v.edgesOf(s)
	if slices.Equal(s.edges, edges) {
		return false
	}
	v.letGo(s) // what it leant on may go now
	v.setEdges(s, edges)
	return true
}

func (v *View) unlink(s *service) {
	v.setNeeds(s, nil)
	v.setEdges(s, nil)
}

func (v *View) setNeeds(s *service, needs []string) {
	for _, on := range s.needs {
		if d := v.services[on]; d != nil && (d.leaned || d.followed) {
			v.mark(d)
		}
		if delete(v.needers[on], s); len(v.needers[on]) == 0 {
			delete(v.needers, on)
		}
	}
	s.needs = needs
	for _, on := range needs {
		if v.needers[on] == nil {
			v.needers[on] = map[*service]struct{}{}
		}
		v.needers[on][s] = struct{}{}
	}
}

func (v *View) setEdges(s *service, edges []edge) {
	for _, e := range s.edges {
		v.countEdge(s, e, -1)
	}
	s.edges = edges
	for _, e := range edges {
		v.countEdge(s, e, 1)
	}
	v.ring = nil
}

func (v *View) countEdge(s *service, e edge, n int) {
	if v.inUse[e.as] += n; v.inUse[e.as] == 0 {
		delete(v.inUse, e.as)
	}
	by := v.leaners[e.on]
	if by == nil {
		by = map[*service]int{}
		v.leaners[e.on] = by
	}
	if by[s] += n; by[s] > 0 {
		return
	}
	if delete(by, s); len(by) == 0 {
		delete(v.leaners, e.on)
	}
}

// edgesOf finds the edges that a service's instances live by.
func (v *View) edgesOf(s *service) []edge {
	var out []edge
	numbers := make([]int, 0, 4)
	for n := range s.numbers {
		numbers = append(numbers, n)
	}
	slices.Sort(numbers)
	var told []int // the definitions that were looked at: several versions may share one
	for _, number := range numbers {
		d, as := v.madeFrom(s, number)
		if d == nil || slices.Contains(told, as) {
			continue
		}
		told = append(told, as)
		for i, on := range d.DependsOn { // sorted
			if on != s.name && (i == 0 || d.DependsOn[i-1] != on) {
				out = append(out, edge{on, as})
			}
		}
	}
	return out
}

// madeFrom is the definition by which a service's instances of a version live,
// and its number: the one in force where the difference needs no new incarnation.
// So an edge that alone was taken away holds nobody any more, and one that alone
// was added counts from then on.
func (v *View) madeFrom(s *service, number int) (*mariposa.Service, int) {
	d := v.Definition(number, s.name)
	if d != nil && s.def != nil && sameForm(d.Digest, s.def.Digest) {
		return s.def, s.status.Number
	}
	return d, number
}

// contradictory reports whether instances live by edges of several versions, so
// that they may contradict each other. Those of one version never do.
func (v *View) contradictory() bool { return len(v.inUse) > 1 }

// leanedOn finds a service with instances that depend on the named one, by the
// definitions those instances were made from. One that only its absent node
// keeps from going holds nobody back. Where versions contradict each
// other about who depends on whom, the newer one counts. A service that is
// stopped alone waits only for dependents that are stopped alone as well.
func (v *View) leanedOn(name string, alone bool) (string, int) {
	var first *service
	for s := range v.leaners[name] {
		if first != nil && s.name > first.name || alone && (s.status == nil || !s.status.Stopped) || !v.leans(s, name) {
			continue
		}
		first = s
	}
	if first == nil {
		return "", 0
	}
	return first.name, len(first.members) - first.count(gone) - first.count(stranded) - first.count(corpse)
}

// leans reports whether a service holds another one that no newer version holds
// the other way round.
func (v *View) leans(s *service, on string) bool {
	return slices.ContainsFunc(s.edges, func(e edge) bool { return e.on == on && !v.reaches(on, s.name, e.as) })
}

// reaches reports whether, by some definition not older than the given version
// that still has instances, from depends on to.
func (v *View) reaches(from, to string, oldest int) bool {
	if !v.contradictory() || !v.sameRing(from, to) {
		return false
	}
	seen := map[string]bool{}
	var walk func(string) bool
	walk = func(at string) bool {
		if at == to {
			return true
		}
		if seen[at] || v.services[at] == nil {
			return false
		}
		seen[at] = true
		return slices.ContainsFunc(v.services[at].edges, func(e edge) bool { return e.as >= oldest && walk(e.on) })
	}
	return walk(from)
}

// sameRing reports whether two services depend on each other by edges of
// whatever version: only those can contradict each other.
func (v *View) sameRing(a, b string) bool {
	if v.ring == nil {
		v.findRings()
	}
	x, y := v.ring[a], v.ring[b]
	return x != 0 && x == y
}

// findRings numbers the strongly connected parts of the graph (Tarjan's way).
func (v *View) findRings() {
	v.ring = make(map[string]int, len(v.services))
	index, low := map[string]int{}, map[string]int{}
	var stack []string
	var visit func(string)
	visit = func(name string) {
		at := len(index) + 1
		index[name], low[name] = at, at
		stack = append(stack, name)
		for _, e := range v.services[name].edges {
			switch {
			case v.services[e.on] == nil:
			case index[e.on] == 0:
				visit(e.on)
				low[name] = min(low[name], low[e.on])
			case v.ring[e.on] == 0:
				low[name] = min(low[name], index[e.on])
			}
		}
		if low[name] != at {
			return
		}
		for {
			top := stack[len(stack)-1]
			stack = stack[:len(stack)-1]
			v.ring[top] = at
			if top == name {
				return
			}
		}
	}
	for name := range v.services {
		if index[name] == 0 {
			visit(name)
		}
	}
}
