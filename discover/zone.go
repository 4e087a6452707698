// Package discover answers DNS queries: for the names of services and instances, from what it is
// told about them, and for all other names, from the name servers of the machine. The package
// owns the names, who may ask for which, and the limits of a server that hostile clients may
// query. It does not know where instances come from, or who configures their resolvers.
package discover

import (
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync"

	"mariposa"
	"mariposa/manifest"
	"mariposa/wire"
)

// The labels that tell names of services and of instances apart.
const (
	kindService  = "svc"
	kindInstance = "inst"
)

// Zone is the names under one domain. Its methods may be called from any goroutine.
type Zone struct {
	// hasBelow reports whether there are names below a name of one or two labels that the zone does
	// not have yet, for clients that may ask for everything; nil: there are none.
	hasBelow func(labels []string) bool

	domain string // in lower case, without a dot at either end

	mu       sync.RWMutex
	projects map[string]*project
	named    map[string]*project            // by NAME.ORGANIZATION
	reverse  map[netip.Addr]map[*entry]bool // the instances at an address that is not loopback
	listed   map[string]bool                // projects in the snapshot being received; nil between snapshots
}

// project is the names of one project.
type project struct {
	id        string
	header    wire.ProjectHeader
	instances map[string]*entry
	services  map[string]map[*entry]bool // of services that exist, perhaps without instances
	byName    map[string]*entry
	dcs       map[string]bool // data centers that its instances are or were in
}

// entry is an instance, with its addresses read.
type entry struct {
	wire.NamedInstance
	project  *project
	address  netip.Addr
	ports    []uint16
	networks map[string]netip.Addr
	host     netip.Addr
}

// maxDCs is how many data centers of a project are remembered.
const maxDCs = 256

// NewZone returns a zone without names. The domain is mariposa.internal if empty.
func NewZone(domain string) *Zone {
	domain = strings.ToLower(strings.Trim(domain, "."))
	if domain == "" {
		domain = manifest.DefaultDomain
	}
	return &Zone{domain: domain, projects: map[string]*project{}, named: map[string]*project{}, reverse: map[netip.Addr]map[*entry]bool{}}
}

// Domain returns the domain that all names are under.
func (z *Zone) Domain() string {
	z.mu.RLock()
	defer z.mu.RUnlock()
	return z.domain
}

// Apply adds what a control plane says about names.
func (z *Zone) Apply(n *wire.Names) {
	z.mu.Lock()
	defer z.mu.Unlock()
	if d := strings.ToLower(strings.Trim(n.Domain, ".")); d != "" {
		z.domain = d
	}
	if n.Snapshot && z.listed == nil {
		z.listed = map[string]bool{}
	}
	for i := range n.Projects {
		if z.listed != nil {
			z.listed[n.Projects[i].ID] = true
		}
		z.applyProject(&n.Projects[i])
	}
	for _, id := range n.Gone {
		z.removeProject(id)
	}
	if n.Snapshot && n.Last {
		for id := range z.projects {
			if !z.listed[id] {
				z.removeProject(id)
			}
		}
		z.listed = nil
	}
}

// ForgetSnapshot ends a snapshot that was not received completely.
func (z *Zone) ForgetSnapshot() {
	z.mu.Lock()
	defer z.mu.Unlock()
	z.listed = nil
}

// Names returns everything that the zone knows, as one snapshot.
func (z *Zone) Names() *wire.Names {
	z.mu.RLock()
	defer z.mu.RUnlock()
	n := &wire.Names{Snapshot: true, Last: true, Domain: z.domain}
	for _, id := range slices.Sorted(maps.Keys(z.projects)) {
		p := z.projects[id]
		header := p.header
		all := wire.ProjectNames{ID: id, Header: &header, Full: true}
		for _, key := range slices.Sorted(maps.Keys(p.instances)) {
			all.Instances = append(all.Instances, p.instances[key].NamedInstance)
		}
		n.Projects = append(n.Projects, all)
	}
	return n
}

// SearchDomains returns the domains in which instances of a project look for short names: db and
// db.svc are names of its own service, and db.svc.PROJECT.ORGANIZATION of any. Nil if the zone
// does not know the project.
func (z *Zone) SearchDomains(id string) []string {
	z.mu.RLock()
	defer z.mu.RUnlock()
	p := z.projects[id]
	if p == nil {
		return nil
	}
	own := p.key() + "." + z.domain
	return []string{kindService + "." + own, own, z.domain}
}

// key returns what a project is found by.
func (p *project) key() string { return p.header.Name + "." + p.header.Organization }

// applyProject adds the names of a project. The caller holds the lock.
func (z *Zone) applyProject(n *wire.ProjectNames) {
	p := z.projects[n.ID]
	if p == nil {
		if n.Header == nil {
			return // it is not known what it is called
		}
		p = &project{id: n.ID, instances: map[string]*entry{}, services: map[string]map[*entry]bool{}, byName: map[string]*entry{}, dcs: map[string]bool{}}
		z.projects[n.ID] = p
	}
	if n.Header != nil {
		z.setHeader(p, *n.Header)
	}
	if n.Full {
		for _, e := range p.instances {
			z.removeEntry(e)
		}
	}
	for _, i := range n.Instances {
		z.setEntry(p, i)
	}
	for _, id := range n.Gone {
		if e := p.instances[id]; e != nil {
			z.removeEntry(e)
		}
	}
}

// setHeader sets the name, the services and the networks of a project. The caller holds the lock.
func (z *Zone) setHeader(p *project, h wire.ProjectHeader) {
	if z.named[p.key()] == p {
		delete(z.named, p.key())
	}
	p.header = h
	z.named[p.key()] = p
	was := p.services
	p.services = make(map[string]map[*entry]bool, len(h.Services))
	for _, name := range h.Services {
		p.services[name] = was[name]
		if was[name] == nil {
			p.services[name] = map[*entry]bool{}
		}
		delete(was, name)
	}
	for name, left := range was { // a service that was removed has its name until its last instance is gone
		if len(left) > 0 {
			p.services[name] = left
		}
	}
}

// removeProject removes a project. The caller holds the lock.
func (z *Zone) removeProject(id string) {
	p := z.projects[id]
	if p == nil {
		return
	}
	for _, e := range p.instances {
		z.removeEntry(e)
	}
	if z.named[p.key()] == p {
		delete(z.named, p.key())
	}
	delete(z.projects, id)
}

// setEntry adds or replaces an instance. The caller holds the lock.
func (z *Zone) setEntry(p *project, i wire.NamedInstance) {
	if old := p.instances[i.ID]; old != nil {
		z.removeEntry(old)
	}
	e := newEntry(p, i)
	p.instances[i.ID], p.byName[e.Name] = e, e
	if e.Service != "" {
		if p.services[e.Service] == nil {
			p.services[e.Service] = map[*entry]bool{}
		}
		p.services[e.Service][e] = true
	}
	if e.DC != "" && len(p.dcs) < maxDCs {
		p.dcs[e.DC] = true
	}
	for _, a := range e.reversible() {
		if z.reverse[a] == nil {
			z.reverse[a] = map[*entry]bool{}
		}
		z.reverse[a][e] = true
	}
}

// removeEntry removes an instance. The caller holds the lock.
func (z *Zone) removeEntry(e *entry) {
	p := e.project
	delete(p.instances, e.ID)
	if p.byName[e.Name] == e {
		delete(p.byName, e.Name)
	}
	delete(p.services[e.Service], e)
	if len(p.services[e.Service]) == 0 && !slices.Contains(p.header.Services, e.Service) {
		delete(p.services, e.Service)
	}
	for _, a := range e.reversible() {
		if delete(z.reverse[a], e); len(z.reverse[a]) == 0 {
			delete(z.reverse, a)
		}
	}
}

func newEntry(p *project, i wire.NamedInstance) *entry {
	e := &entry{NamedInstance: i, project: p}
	e.Name, e.Service, e.DC = strings.ToLower(i.Name), strings.ToLower(i.Service), dcLabel(i.DC)
	for _, text := range i.Addresses {
		host, port := mariposa.SplitAddress(text)
		if !e.address.IsValid() {
			e.address = readAddress(host)
		}
		if n, err := strconv.ParseUint(port, 10, 16); err == nil && n > 0 && !slices.Contains(e.ports, uint16(n)) {
			e.ports = append(e.ports, uint16(n))
		}
	}
	for name, text := range i.Networks {
		if a := readAddress(text); a.IsValid() {
			if e.networks == nil {
				e.networks = map[string]netip.Addr{}
			}
			e.networks[strings.ToLower(name)] = a
		}
	}
	if len(i.Published) > 0 {
		e.host = readAddress(i.Host)
	}
	return e
}

// readAddress returns an address that a name can resolve to; the zero one if the text is none.
func readAddress(text string) netip.Addr {
	a, err := netip.ParseAddr(text)
	if err != nil || a.IsUnspecified() || a.IsMulticast() {
		return netip.Addr{}
	}
	return a.Unmap().WithZone("")
}

// dcLabel returns the name of a data center as it is part of names; empty if it cannot be.
func dcLabel(name string) string {
	name = strings.ToLower(name)
	if mariposa.CheckName("data center", name) != nil {
		return ""
	}
	return name
}

// reversible returns the addresses that resolve to the name of the instance.
func (e *entry) reversible() (all []netip.Addr) {
	for _, a := range append(slices.Collect(maps.Values(e.networks)), e.address) {
		if a.IsValid() && !a.IsLoopback() && !slices.Contains(all, a) {
			all = append(all, a)
		}
	}
	return all
}

// fullName returns the name of the instance.
func (e *entry) fullName(domain string) string {
	return e.Name + "." + kindInstance + "." + e.project.key() + "." + domain + "."
}

// shuffle puts answers into a random order, so that clients that use the first one spread over all.
func shuffle[T any](list []T) {
	rand.Shuffle(len(list), func(i, k int) { list[i], list[k] = list[k], list[i] })
}
