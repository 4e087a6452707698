package converge

import (
	"slices"

	"mariposa"
)

// edge records that a definition of a service's instances depends on another service.
type edge struct {
	on string
	as int // the version with that definition
}

// links contains the edges between services and the references between instances, indexed
// from both ends.
type links struct {
	dependents      map[string]map[*service]int // name -> services whose instances depend on it, and the number of edges
	inUse           map[int]int                 // version -> number of its edges in use by instances
	ring            map[string]int              // name -> the cycle of edges that it is part of; nil: not computed since the edges changed
	referrers       map[string]map[*service]int // instance -> services with instances that refer to it, and their number
	targets         map[string][]target         // instance -> what it refers to
	bound           map[string]map[*service]int // instance -> services that are bound to it
	blockersChanged bool                        // blocking has changed since the last plan
}

// target is an instance that another one refers to.
type target struct{ service, instance string }

func newLinks() links {
	return links{
		dependents: map[string]map[*service]int{}, inUse: map[int]int{},
		referrers: map[string]map[*service]int{}, targets: map[string][]target{}, bound: map[string]map[*service]int{},
	}
}

// relink updates the edges of a service.
func (v *View) relink(s *service) {
	edges := v.edgesOf(s)
	if slices.Equal(s.edges, edges) {
		return
	}
	v.markTargets(s) // its former dependencies may be removed now
	v.setEdges(s, edges)
	v.blockersChanged = true
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
	by := v.dependents[e.on]
	if by == nil {
		by = map[*service]int{}
		v.dependents[e.on] = by
	}
	if by[s] += n; by[s] > 0 {
		return
	}
	if delete(by, s); len(by) == 0 {
		delete(v.dependents, e.on)
	}
}

// edgesOf finds the edges of a service's instances.
func (v *View) edgesOf(s *service) []edge {
	if s.def != nil && len(s.numbers) == 1 && s.numbers[s.status.Number] > 0 { // the common case
		return s.appendEdges(nil, s.def, s.status.Number)
	}
	numbers := make([]int, 0, 4)
	for n := range s.numbers {
		numbers = append(numbers, n)
	}
	slices.Sort(numbers)
	var out []edge
	var visited []int // definitions, because several versions may share one
	for _, number := range numbers {
		d, as := v.definitionOf(s, number)
		if d == nil || slices.Contains(visited, as) {
			continue
		}
		visited = append(visited, as)
		out = s.appendEdges(out, d, as)
	}
	return out
}

// appendEdges adds the edges of one definition of a service.
func (s *service) appendEdges(out []edge, d *mariposa.Service, as int) []edge {
	out = slices.Grow(out, len(d.DependsOn))
	for i, on := range d.DependsOn { // sorted
		if on != s.name && (i == 0 || d.DependsOn[i-1] != on) {
			out = append(out, edge{on, as})
		}
	}
	return out
}

// definitionOf returns the definition that applies to a service's instances of a version,
// and its number. It is the current definition if the difference does not require a
// replacement. Thus an edge that is removed stops blocking immediately, and an edge that
// is added counts immediately.
func (v *View) definitionOf(s *service, number int) (*mariposa.Service, int) {
	d := v.Definition(number, s.name)
	if d != nil && s.def != nil && sameForm(d.Digest, s.def.Digest) {
		return s.def, s.status.Number
	}
	return d, number
}

// hasContradictoryEdges reports whether instances use edges of several versions, which
// may contradict each other. Edges of one version never do.
func (v *View) hasContradictoryEdges() bool { return len(v.inUse) > 1 }

// firstDependent finds a service with instances that depend on the named one, by the
// definitions of those instances. An instance that only remains because its node is
// unreachable blocks nothing. If versions contradict each other, the newer one counts. A
// service that is stopped alone waits only for dependents that are stopped alone as well.
func (v *View) firstDependent(name string, alone bool) (string, int) {
	var first *service
	for s := range v.dependents[name] {
		if first != nil && s.name > first.name || alone && !s.stoppedAlone() || !v.dependsNow(s, name) {
			continue
		}
		first = s
	}
	if first == nil {
		return "", 0
	}
	return first.name, len(first.members) - first.count(gone) - first.count(leavingLost) - first.count(preserved)
}

func (s *service) stoppedAlone() bool { return s.status != nil && s.status.Stopped }

// dependsNow reports whether a service depends on another one by an edge that no newer
// edge contradicts.
//
// The edges that count never form a cycle, so no two services wait for each other's
// removal: in a cycle, the edge of the oldest version is contradicted by the others.
// References between instances always count, and never form a cycle either, because an
// instance refers only to older instances.
func (v *View) dependsNow(s *service, on string) bool {
	return slices.ContainsFunc(s.edges, func(e edge) bool { return e.on == on && !v.reaches(on, s.name, e.as) })
}

// reaches reports whether one service depends on another, by references or by definitions
// with instances that are not older than the given version.
func (v *View) reaches(from, to string, oldest int) bool {
	if !v.hasContradictoryEdges() || !v.sameRing(from, to) {
		return false
	}
	seen := map[string]bool{}
	var walk func(string) bool
	walk = func(at string) bool {
		if at == to {
			return true
		}
		s := v.services[at]
		if seen[at] || s == nil {
			return false
		}
		seen[at] = true
		return slices.ContainsFunc(s.edges, func(e edge) bool { return (e.as >= oldest || s.referenceCounts[e.on] > 0) && walk(e.on) })
	}
	return walk(from)
}

// countReferences adds or removes the references of an instance.
func (v *View) countReferences(s *service, i *Instance, c class, by int) {
	if i.Spec.Bindings == nil {
		return
	}
	s.binding += by
	to := v.targets[i.ID]
	if by > 0 {
		to = v.findTargets(s, i)
	}
	if (c.runs() || c.starts()) && v.isMisbound(s, i, to) {
		s.misbound += by
	}
	if !c.refers() || len(to) == 0 {
		return
	}
	if v.targets[i.ID] = to; by < 0 {
		delete(v.targets, i.ID)
	}
	for _, t := range to {
		v.countReferrer(s, t, by)
	}
}

func (v *View) countReferrer(s *service, t target, by int) {
	countBy(v.referrers, t.instance, s, by)
	if s.referenceCounts == nil {
		s.referenceCounts = map[string]int{}
	}
	if s.referenceCounts[t.service] += by; s.referenceCounts[t.service] == 0 {
		delete(s.referenceCounts, t.service)
	}
	v.blockersChanged = true
	v.markReferred(t.service)
}

// countBindings adds or removes the bindings of a service, which its next instances refer
// to.
func (v *View) countBindings(s *service, b *mariposa.Bindings, by int) {
	if b == nil {
		return
	}
	for on, to := range b.To {
		if bindsOneInstance(to) {
			countBy(v.bound, to.Instance, s, by)
			v.markReferred(on)
		}
	}
}

func countBy(all map[string]map[*service]int, instance string, s *service, by int) {
	if all[instance] == nil {
		all[instance] = map[*service]int{}
	}
	if all[instance][s] += by; all[instance][s] == 0 {
		if delete(all[instance], s); len(all[instance]) == 0 {
			delete(all, instance)
		}
	}
}

// markReferred marks a service if its last turn read which services refer to its
// instances.
func (v *View) markReferred(name string) {
	if d := v.services[name]; d != nil && d.read.dependents {
		v.mark(d)
	}
}

// findTargets lists the instances that an instance refers to. Live values and values
// about all instances are not included, because they are updated without a replacement.
// The same applies to values that are equal at another instance: if the instance was
// created with the same values as the current binding, it refers to the targets of the
// binding.
func (v *View) findTargets(s *service, i *Instance) []target {
	def, from := v.Definition(i.Spec.Number, s.name), i.Spec.Bindings
	if s.status != nil && s.def != nil && !s.unresolved && !differs(s, i) && i.Spec.Bound == s.bound {
		from = s.status.Bindings
	}
	if def == nil || from == nil {
		return nil
	}
	var out []target
	for on, b := range from.To {
		if slices.ContainsFunc(def.Refs, func(r mariposa.Ref) bool { return r.Service == on && !isSetField(r.Field) }) {
			out = append(out, target{on, b.Instance})
		}
	}
	return out
}

// isMisbound reports whether an instance refers to something other than its service's
// current binding.
func (v *View) isMisbound(s *service, i *Instance, to []target) bool {
	if s.status == nil || s.def == nil || s.unresolved {
		return false
	}
	if !differs(s, i) {
		return i.Spec.Bound != s.bound
	}
	return slices.ContainsFunc(to, func(t target) bool {
		b, bound := s.status.Bindings.Get(t.service)
		return bound && b.Instance != t.instance
	})
}

// sameRing reports whether two services depend on each other by edges of any version.
// Only those can contradict each other.
func (v *View) sameRing(a, b string) bool {
	if v.ring == nil {
		v.findRings()
	}
	x, y := v.ring[a], v.ring[b]
	return x != 0 && x == y
}

// findRings numbers the strongly connected components of the graph (Tarjan's
// algorithm).
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
