package discover

import (
	"maps"
	"slices"
	"strings"
)

// Described is the name of a service, with the instances that it resolves to.
type Described struct {
	Name    string // without a dot at its end
	Service string
	Targets []DescribedTarget // sorted by name
	// Unreached are the ids of instances that serve, but have no address that the client can use.
	Unreached []string
}

// DescribedTarget is an instance that a name resolves to.
type DescribedTarget struct {
	Target
	Instance string // its id
}

// Describe returns the names of a project's services, sorted, as a process on a node gets them. If the
// node is not known, each instance is seen from its own.
func (z *Zone) Describe(project, node string) []Described {
	z.mu.RLock()
	defer z.mu.RUnlock()
	p := z.projects[project]
	if p == nil {
		return nil
	}
	var all []Described
	for _, service := range slices.Sorted(maps.Keys(p.services)) {
		d := Described{Name: service + "." + kindService + "." + p.key() + "." + z.domain, Service: service}
		found := map[string]bool{}
		add := func(q query, from View) {
			for _, t := range q.targets(z.domain, from) {
				e := p.byName[strings.TrimSuffix(t.Name, "."+kindInstance+"."+p.key()+"."+z.domain+".")]
				found[e.ID] = true
				d.Targets = append(d.Targets, DescribedTarget{t, e.ID})
			}
		}
		entries := slices.Collect(maps.Keys(p.services[service]))
		if node != "" {
			add(query{entries: entries}, View{Node: node, Local: true})
		} else {
			for _, e := range withoutAway(entries) {
				add(query{entries: []*entry{e}}, View{Node: e.Node, Local: true})
			}
		}
		for _, e := range entries {
			if !found[e.ID] {
				d.Unreached = append(d.Unreached, e.ID)
			}
		}
		slices.SortFunc(d.Targets, func(a, b DescribedTarget) int { return strings.Compare(a.Name, b.Name) })
		slices.Sort(d.Unreached)
		all = append(all, d)
	}
	return all
}

// withoutAway leaves out instances on nodes that cannot be reached, unless there are no others that
// have an address.
func withoutAway(all []*entry) []*entry {
	isAway := func(e *entry) bool {
		_, _, rank := e.reach("", View{Node: e.Node, Local: true})
		return e.Away || rank == rankNone
	}
	if near := slices.DeleteFunc(slices.Clone(all), isAway); len(near) > 0 {
		return near
	}
	return all
}
