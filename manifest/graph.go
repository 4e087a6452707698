package manifest

import (
	"slices"
	"strconv"
	"strings"

	"mariposa"
)

// references checks all references between parts of the manifest.
func (c *checker) references(p *parts) {
	known := names{services: sortedKeys(p.byName), metadata: map[string]bool{}}
	for _, m := range p.Metadata {
		known.metadata[m.Name] = true
	}
	networks, volumes := map[string]bool{}, map[string]bool{}
	for _, n := range p.Networks {
		networks[n.Name] = true
	}
	for _, v := range p.Volumes {
		volumes[v.Name] = true
	}
	for _, d := range p.drafts {
		d.edges = slices.DeleteFunc(d.edges, func(e edge) bool { return !c.edge(p, d, e, known) })
		for _, ref := range d.refs {
			if e, ok := c.path(p, d, ref, known); ok {
				d.edges = append(d.edges, e)
			}
		}
		c.attachments("networks", d.networks, networks)
		c.attachments("volumes", d.volumes, volumes)
	}
	c.sharedVolumes(p)
}

// sharedVolumes checks that the services that share a volume can do so: each compute type keeps
// its volumes in its own way, and a disk of a virtual machine belongs to one machine.
func (c *checker) sharedVolumes(p *parts) {
	first := map[string]*draft{} // by volume
	for _, v := range p.Volumes {
		if v.Shared {
			first[v.Name] = nil
		}
	}
	for _, d := range p.drafts {
		for _, u := range d.volumes {
			other, shared := first[u.to]
			switch {
			case !shared || !d.computed:
			case d.Compute == mariposa.ComputeKVM:
				c.fault(u.at, mariposa.FaultNotSupported, "virtual machines cannot share a volume; remove shared from volume %s", quoteText(u.to))
			case other == nil:
				first[u.to] = d
			case other.Compute != d.Compute:
				c.invalid(u.at, "shares volume %s with service %s, which has another compute_type; use one compute_type for both, or a volume each", quoteText(u.to), quoteText(other.Name))
			}
		}
	}
}

// names contains what references may point to.
type names struct {
	services []string // sorted
	metadata map[string]bool
}

// edge checks a dependency and reports whether it can be followed.
func (c *checker) edge(p *parts, d *draft, e edge, known names) bool {
	if d.Service != nil && e.to == d.Name {
		c.invalid(e.at, "%s depends on itself; remove this dependency", quoteText(e.to))
		return false
	}
	if p.byName[e.to] == nil {
		c.unknown(e.at, func() []string { return known.services }, e.to, "refers to service %s, which does not exist", quoteText(e.to))
		return false
	}
	return true
}

// path checks an interpolation; a reference to another service makes an edge.
func (c *checker) path(p *parts, d *draft, ref usedPath, known names) (edge, bool) {
	if !knownPath(ref.path) {
		c.unknown(ref.at, allPaths, ref.path, "refers to %s, which does not exist", quoteText(ref.path))
		return edge{}, false
	}
	scope, rest, _ := strings.Cut(ref.path, ".")
	found, ok := edge{}, false
	switch scope {
	case "instance":
		if ref.path == portPath && d.Service != nil {
			c.ownPort(d, ref)
		}
	case "meta":
		if !known.metadata[rest] {
			c.unknown(ref.at, func() []string { return sortedKeys(known.metadata) }, rest, "refers to metadata key %s, which is not declared under metadata:", quoteText(rest))
		}
	case "cns":
		c.domainName(p, d, ref, rest, known)
	case "services":
		name, field, _ := strings.Cut(rest, ".")
		found = edge{to: name, at: ref.at}
		if c.single {
			c.invalid(ref.at, "refers to %s, but a single instance cannot refer to services; write the value itself, or create a service instead", quoteText(ref.path))
			return edge{}, false
		}
		ok = c.edge(p, d, found, known) && c.otherField(p.byName[name], field, ref)
	}
	return found, ok
}

// otherField checks a reference to a field of another service.
func (c *checker) otherField(other *draft, field string, ref usedPath) bool {
	if key, ok := strings.CutPrefix(field, "environment."); ok {
		if !other.setsVariable(key) {
			c.fault(ref.at, mariposa.FaultUnknown, "refers to %s, but %s does not set that variable", quoteText(ref.path), quoteText(other.Name))
		}
		return true
	}
	if !slices.Contains(otherFields, field) {
		c.unknown(ref.at, func() []string { return otherFields }, field,
			"refers to %s; the fields of another service are %s and environment.NAME", quoteText(ref.path), strings.Join(otherFields, ", "))
		return true
	}
	portless := len(other.Ports) == 0 && other.computed
	switch {
	case portless && field == "port":
		c.invalid(ref.at, "refers to %s, but %s has no ports; declare one under its ports:", quoteText(ref.path), quoteText(other.Name))
	case portless && other.Compute == mariposa.ComputeProcess && strings.HasPrefix(field, "address"):
		c.invalid(ref.at, "refers to %s, but %s has no ports, and a process has no address without one; declare one under its ports:", quoteText(ref.path), quoteText(other.Name))
	}
	return true
}

// attachments checks that the networks and volumes a service uses exist.
func (c *checker) attachments(key string, used []edge, known map[string]bool) {
	for _, u := range used {
		if !known[u.to] {
			c.unknown(u.at, func() []string { return sortedKeys(known) }, u.to, "refers to %s, which is not declared under %s:", quoteText(u.to), key)
		}
	}
}

// checkCycles reports one cycle for each set of services that depend on each other.
func (c *checker) checkCycles(drafts []*draft) {
	byName := make(map[string]*draft, len(drafts))
	for _, d := range drafts {
		byName[d.Name] = d
	}
	for _, knot := range stronglyConnected(drafts, byName) {
		path := shortestCycle(knot, byName)
		c.fault(path[0].at, mariposa.FaultInvalid, "circular dependency: %s; remove one of these dependencies", showCycle(path))
	}
}

// stronglyConnected finds the sets of services that all reach each other, with
// Tarjan's algorithm and its own stack: a chain of services may be as long as a
// manifest allows.
func stronglyConnected(drafts []*draft, byName map[string]*draft) (found [][]string) {
	type frame struct {
		d    *draft
		next int
	}
	index, low, place, onStack := map[string]int{}, map[string]int{}, map[string]int{}, map[string]bool{}
	var stack []string
	for _, start := range drafts {
		if index[start.Name] > 0 {
			continue
		}
		calls := []frame{{d: start}}
		for len(calls) > 0 {
			f := &calls[len(calls)-1]
			name := f.d.Name
			if f.next == 0 && index[name] == 0 {
				index[name] = len(index) + 1
				low[name] = index[name]
				place[name] = len(stack)
				stack, onStack[name] = append(stack, name), true
			}
			if f.next < len(f.d.edges) {
				to := f.d.edges[f.next].to
				f.next++
				if index[to] == 0 {
					calls = append(calls, frame{d: byName[to]})
				} else if onStack[to] {
					low[name] = min(low[name], index[to])
				}
				continue
			}
			if low[name] == index[name] {
				cut := place[name]
				knot := slices.Clone(stack[cut:])
				for _, n := range knot {
					onStack[n] = false
				}
				stack = stack[:cut]
				if len(knot) > 1 {
					slices.Sort(knot)
					found = append(found, knot)
				}
			}
			if calls = calls[:len(calls)-1]; len(calls) > 0 {
				up := calls[len(calls)-1].d.Name
				low[up] = min(low[up], low[name])
			}
		}
	}
	return found
}

// shortestCycle finds a shortest path from the first service of a strongly
// connected set back to itself, as edges in order.
func shortestCycle(knot []string, byName map[string]*draft) []edge {
	type step struct {
		edge
		from string
	}
	start := knot[0]
	inside := make(map[string]bool, len(knot))
	for _, name := range knot {
		inside[name] = true
	}
	came := map[string]step{}
	for queue := []string{start}; came[start].to == ""; queue = queue[1:] {
		for _, e := range byName[queue[0]].edges {
			if _, seen := came[e.to]; inside[e.to] && !seen {
				came[e.to] = step{edge: e, from: queue[0]}
				queue = append(queue, e.to)
			}
		}
	}
	var path []edge
	for name := start; len(path) == 0 || name != start; {
		s := came[name]
		path = append(path, s.edge)
		name = s.from
	}
	slices.Reverse(path)
	return path
}

// showCycle formats "web -> db -> web", without the middle of a long one.
func showCycle(path []edge) string {
	const most = 12
	names := []string{path[len(path)-1].to}
	for i, e := range path {
		if len(path) > most && i == most/2 {
			names = append(names, "("+strconv.Itoa(len(path)-most)+" more)")
		}
		if len(path) <= most || i < most/2 || i >= len(path)-most/2 {
			names = append(names, e.to)
		}
	}
	return strings.Join(names, " -> ")
}

// Order lists the services so that each comes after everything it depends on;
// by name where that leaves a choice.
func (p *Project) Order() []*mariposa.Service {
	order := make([]*mariposa.Service, 0, len(p.Services))
	waits := make(map[string]int, len(p.Services))
	dependents := p.dependents()
	var ready []string
	for _, s := range p.Services {
		if waits[s.Name] = len(s.DependsOn); waits[s.Name] == 0 {
			ready = append(ready, s.Name)
		}
	}
	for len(ready) > 0 {
		var next []string
		for _, name := range ready {
			order = append(order, p.ByName[name])
			for _, d := range dependents[name] {
				if waits[d]--; waits[d] == 0 {
					next = append(next, d)
				}
			}
		}
		slices.Sort(next)
		ready = next
	}
	return order
}

// Dependents lists the services that depend directly on each, by name.
func (p *Project) Dependents() map[string][]string { return p.dependents() }

func (p *Project) dependents() map[string][]string {
	dependents := make(map[string][]string, len(p.Services))
	for _, s := range p.Services { // sorted, so each list is too
		for _, to := range s.DependsOn {
			dependents[to] = append(dependents[to], s.Name)
		}
	}
	return dependents
}
