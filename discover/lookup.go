package discover

import (
	"cmp"
	"net/netip"
	"slices"
	"strconv"
	"strings"
)

// Scope is the projects whose names a client may ask for.
type Scope struct {
	All     bool   // every project
	Project string // this one, and those that share a network with it
	Network string // those in the network with this id
}

// View is where a client is, which decides at which address it reaches an instance.
type View struct {
	Node string // the node that it is on; empty: not known
	// Local: it is on the machine of the server, so addresses of its loopback are right.
	Local bool
}

// Target is an instance that a name resolves to.
type Target struct {
	Name    string // of the instance, with a dot at its end
	Address netip.Addr
	Ports   []uint16
}

// Result is what a name resolves to.
type Result struct {
	// Known is false if the zone does not know the project of the client yet, so that nothing can be
	// said about a name.
	Known   bool
	Exists  bool
	Targets []Target // in random order
}

// Relative returns the part of a name that is below the domain of the zone, in lower case. It
// reports false if the name is not in the domain.
func (z *Zone) Relative(name string) (string, bool) {
	name = strings.ToLower(strings.TrimSuffix(name, "."))
	domain := z.Domain()
	if name == domain {
		return "", true
	}
	return strings.CutSuffix(name, "."+domain)
}

// Lookup finds a name below the domain of the zone. Names of projects that the client may not ask
// for do not exist.
func (z *Zone) Lookup(relative string, of Scope, from View) Result {
	z.mu.RLock()
	defer z.mu.RUnlock()
	r := Result{Known: of.All || of.Network != "" || z.projects[of.Project] != nil}
	if relative == "" {
		r.Exists = true
		return r
	}
	labels := strings.Split(relative, ".")
	if p, head := z.findProject(labels, of); p != nil {
		if q, ok := p.find(head); ok {
			r.Exists, r.Targets = true, q.targets(z.domain, from)
			return r
		}
	}
	if p, head, dc := z.findProjectIn(labels, of); p != nil {
		if q, ok := p.find(head); ok {
			q.dc = dc
			r.Exists, r.Targets = true, q.targets(z.domain, from)
			return r
		}
	}
	r.Exists = z.hasNamesBelow(labels, of)
	return r
}

// Reverse finds the names of the instances at an address.
func (z *Zone) Reverse(a netip.Addr, of Scope) (names []string) {
	z.mu.RLock()
	defer z.mu.RUnlock()
	for e := range z.reverse[a.Unmap()] {
		if z.allows(of, e.project) {
			names = append(names, e.fullName(z.domain))
		}
	}
	slices.Sort(names)
	return names
}

// NetworkIDs returns the ids of the networks of all projects.
func (z *Zone) NetworkIDs() (all []string) {
	z.mu.RLock()
	defer z.mu.RUnlock()
	for _, p := range z.projects {
		for id := range p.header.Networks {
			all = append(all, id)
		}
	}
	return all
}

// allows reports whether a client may ask for a project. The caller holds the lock.
func (z *Zone) allows(of Scope, p *project) bool {
	switch {
	case of.All, of.Project != "" && of.Project == p.id:
		return true
	case of.Network != "":
		_, in := p.header.Networks[of.Network]
		return in
	}
	own := z.projects[of.Project]
	if own == nil {
		return false
	}
	for id := range own.header.Networks {
		if _, in := p.header.Networks[id]; in {
			return true
		}
	}
	return false
}

// findProject finds the project of a name, and what is before it in the name. The caller holds the
// lock.
func (z *Zone) findProject(labels []string, of Scope) (*project, []string) {
	n := len(labels) - 2
	if n < 0 {
		return nil, nil
	}
	p := z.named[labels[n]+"."+labels[n+1]]
	if p == nil || !z.allows(of, p) {
		return nil, nil
	}
	return p, labels[:n]
}

// findProjectIn is findProject for a name that ends in a data center. The caller holds the lock.
func (z *Zone) findProjectIn(labels []string, of Scope) (*project, []string, string) {
	last := len(labels) - 1
	p, head := z.findProject(labels[:last], of)
	if p == nil || !p.dcs[labels[last]] {
		return nil, nil, ""
	}
	return p, head, labels[last]
}

// hasNamesBelow reports whether a name is an organization or a data center, or both, of a project
// that the client may ask for. The caller holds the lock.
func (z *Zone) hasNamesBelow(labels []string, of Scope) bool {
	if len(labels) > 2 {
		return false
	}
	if of.All && z.hasBelow != nil && z.hasBelow(labels) {
		return true
	}
	for _, p := range z.projects {
		if !z.allows(of, p) {
			continue
		}
		org := p.header.Organization == labels[0]
		if len(labels) == 1 && (org || p.dcs[labels[0]]) || len(labels) == 2 && org && p.dcs[labels[1]] {
			return true
		}
	}
	return false
}

// query is what a name asks for.
type query struct {
	entries []*entry
	network string // public, private or the name of a network; empty: what suits the client
	port    uint16 // only instances with this port, and only this one; 0: all
	dc      string
}

// The names of no networks: where nodes publish ports, and the instances' own addresses.
const (
	publicNetwork  = "public"
	privateNetwork = "private"
)

// find finds what a name in the project asks for. It reports false if there is no such name.
func (p *project) find(head []string) (query, bool) {
	if len(head) == 0 {
		return query{}, true
	}
	kind, name := head[len(head)-1], head[:len(head)-1]
	if kind != kindService && kind != kindInstance {
		return query{}, false
	}
	if len(name) == 0 {
		return query{}, true
	}
	var q query
	isBare := name[0] == "_tcp" // _tcp.NAME, which has names below
	switch {
	case len(name) > 1 && isBare:
		name = name[1:]
	case len(name) > 2 && name[1] == "_tcp" && name[0][:1] == "_": // _PORT._tcp.NAME
		if n, err := strconv.ParseUint(name[0][1:], 10, 16); err == nil {
			q.port = uint16(n)
		}
		name = name[2:]
	}
	entries, ok := p.named(kind, name)
	if last := len(name) - 1; !ok && last > 0 && p.hasNetwork(name[last]) {
		q.network = name[last]
		entries, ok = p.named(kind, name[:last])
	}
	if !isBare {
		q.entries = entries
	}
	return q, ok
}

// named returns the instances of a service, a slot or an instance by its name.
func (p *project) named(kind string, name []string) (all []*entry, ok bool) {
	if kind == kindService {
		of, ok := p.services[name[0]]
		if !ok || len(name) > 1 {
			return nil, false
		}
		for e := range of {
			all = append(all, e)
		}
		return all, true
	}
	if e := p.byName[strings.Join(name, ".")]; e != nil {
		return []*entry{e}, true
	}
	of, ok := p.services[name[0]]
	if !ok || len(name) > 2 {
		return nil, false
	}
	if len(name) == 1 {
		return nil, true // names of its instances are below
	}
	slot, err := strconv.Atoi(name[1])
	if err != nil || strconv.Itoa(slot) != name[1] || slot < 1 {
		return nil, false
	}
	for e := range of {
		if e.Slot == slot {
			all = append(all, e)
		}
	}
	return all, true
}

// hasNetwork reports whether names can end in a network.
func (p *project) hasNetwork(name string) bool {
	if name == publicNetwork || name == privateNetwork {
		return true
	}
	for _, known := range p.header.Networks {
		if known == name {
			return true
		}
	}
	return false
}

// targets returns where the instances are that a query finds. Those on nodes that cannot be
// reached, and those that the client can hardly reach, are left out unless there are no others.
func (q *query) targets(domain string, from View) []Target {
	type found struct {
		target Target
		rank   int
	}
	var all []found
	best := rankNone
	for _, e := range q.entries {
		if q.dc != "" && e.DC != q.dc {
			continue
		}
		address, ports, rank := e.reach(q.network, from)
		if rank == rankNone {
			continue
		}
		if e.Away {
			rank += rankAway
		}
		if q.port != 0 {
			if !slices.Contains(ports, q.port) {
				continue
			}
			ports = []uint16{q.port}
		}
		best = min(best, rank)
		all = append(all, found{Target{e.fullName(domain), address, ports}, rank})
	}
	var list []Target
	slices.SortFunc(all, func(a, b found) int { return cmp.Compare(a.target.Name, b.target.Name) })
	for _, f := range all {
		if f.rank == best {
			list = append(list, f.target)
		}
	}
	shuffle(list)
	return list
}

// How well a client reaches an instance.
const (
	rankNear = 0 // it does
	rankFar  = 1 // its address is on another node, and the networks of nodes are apart by default
	rankAway = 2 // to add: its node cannot be reached
	rankNone = 9 // not at all
)

// reach returns the address and the ports at which a client reaches the instance.
func (e *entry) reach(network string, from View) (netip.Addr, []uint16, int) {
	here := from.Node == e.Node || from.Node == "" && from.Local
	// The loopback of a node is not that of the containers and machines there.
	hasOwn := e.address.IsValid() && (!e.address.IsLoopback() || here && from.Local)
	own := func(rank int) (netip.Addr, []uint16, int) {
		if !hasOwn {
			return netip.Addr{}, nil, rankNone
		}
		return e.address, e.ports, rank
	}
	published := func() (netip.Addr, []uint16, int) {
		ports := make([]uint16, 0, len(e.Published))
		for _, p := range e.Published {
			ports = append(ports, uint16(p)) //nolint:gosec // a port
		}
		return e.host, ports, rankNear
	}
	switch {
	case network == publicNetwork && e.host.IsValid():
		return published()
	case network == publicNetwork || network == privateNetwork:
		return own(rankNear)
	case network != "":
		if a, ok := e.networks[network]; ok {
			return a, e.ports, rankNear
		}
		return netip.Addr{}, nil, rankNone
	case here && hasOwn:
		return own(rankNear)
	case e.host.IsValid():
		return published()
	}
	return own(rankFar)
}
