package discover

import (
	"cmp"
	"maps"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"

	"mariposa"
	"mariposa/picture"
	"mariposa/store"
	"mariposa/wire"
)

// Book keeps a zone equal to a picture, for the projects that somebody asks for. It also tells what
// has changed in a project since a reader last looked, so that readers need not remember what they
// have seen.
type Book struct {
	Zone *Zone
	pic  *picture.Picture

	mu     sync.Mutex
	pages  map[string]*page
	pruned time.Time
}

// page is a project in the book. Its numbers grow with each change of it.
type page struct {
	number  int64
	header  int64            // when its header changed
	changed map[string]int64 // when each of its instances changed
	log     []logItem        // the changes after floor, the oldest first
	floor   int64
	held    int
	used    time.Time
}

type logItem struct {
	number   int64
	instance string
}

const (
	idlePage = 10 * time.Minute // how long a project stays that nobody asks for
	minLog   = 1024             // changes of a project that are kept at least
)

// NewBook returns a book without projects.
func NewBook(pic *picture.Picture, domain string) *Book {
	b := &Book{Zone: NewZone(domain), pic: pic, pages: map[string]*page{}}
	b.Zone.hasBelow = b.hasNamesBelow
	return b
}

// Fetch adds the project of a name to the zone.
func (b *Book) Fetch(relative string) {
	labels := strings.Split(relative, ".")
	for n := len(labels) - 2; n >= max(0, len(labels)-3); n-- {
		if org := b.pic.OrgNamed(labels[n+1]); org != nil {
			if p := b.pic.ProjectNamed(org.ID, labels[n]); p != nil {
				b.mu.Lock()
				b.open(p.ID).used = time.Now()
				b.mu.Unlock()
			}
		}
	}
}

// hasNamesBelow reports whether a name is an organization or a data center, or both.
func (b *Book) hasNamesBelow(labels []string) bool {
	isDC := func(label string) (is bool) {
		b.pic.Nodes.Each(func(n *store.Node) bool {
			is = dcLabel(n.Spec().DC) == label
			return !is
		})
		return is
	}
	switch len(labels) {
	case 1:
		return b.pic.OrgNamed(labels[0]) != nil || isDC(labels[0])
	case 2:
		return b.pic.OrgNamed(labels[0]) != nil && isDC(labels[1])
	}
	return false
}

// Hold keeps a project in the book until Release.
func (b *Book) Hold(project string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.open(project).held++
}

// Release undoes one Hold.
func (b *Book) Release(project string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if p := b.pages[project]; p != nil {
		p.held--
		p.used = time.Now()
	}
}

// open returns the page of a project, and writes it if there is none. The caller holds the lock.
func (b *Book) open(project string) *page {
	if p := b.pages[project]; p != nil {
		return p
	}
	p := &page{number: 1, header: 1, floor: 1, changed: map[string]int64{}, used: time.Now()}
	b.pages[project] = p
	if h := b.headerOf(project); h != nil {
		n := wire.ProjectNames{ID: project, Header: h, Full: true}
		for _, r := range b.pic.InstancesOf(project) {
			if i := b.instanceOf(r); i != nil {
				n.Instances = append(n.Instances, *i)
				p.changed[i.ID] = 1
			}
		}
		b.Zone.Apply(&wire.Names{Projects: []wire.ProjectNames{n}})
	}
	return p
}

// Apply brings the book up to date with changes that the picture shows already. It returns the
// projects whose names have changed.
func (b *Book) Apply(changes []store.Change) []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.pages) == 0 {
		return nil
	}
	headers, instances := map[string]bool{}, map[string]string{}
	for i := range changes {
		b.collect(&changes[i], headers, instances)
	}
	changed := map[string]bool{}
	for id := range headers {
		if b.pages[id] != nil && b.updateHeader(id) {
			changed[id] = true
		}
	}
	for id, project := range instances {
		if b.pages[project] != nil && b.updateInstance(project, id) {
			changed[project] = true
		}
	}
	b.prune()
	return slices.Sorted(maps.Keys(changed))
}

// collect finds out what a change may change in the book: headers of projects, and instances with
// their projects. The caller holds the lock.
func (b *Book) collect(c *store.Change, headers map[string]bool, instances map[string]string) {
	switch spec := c.Record.Spec.(type) {
	case *mariposa.InstanceSpec:
		instances[c.Record.ID] = spec.Project
	case *mariposa.ProjectSpec:
		headers[c.Record.ID] = true
	case *mariposa.ServiceSpec:
		headers[spec.Project] = true
	case *mariposa.OrganizationSpec:
		for _, p := range b.pic.ProjectsOf(c.Record.ID) {
			headers[p.ID] = true
		}
	case *mariposa.NetworkSpec:
		for id := range b.pages { // those that have left it too
			headers[id] = true
		}
	case *mariposa.NodeSpec:
		for _, r := range b.pic.InstancesOn(c.Record.ID) {
			instances[r.ID] = r.Spec().Project
		}
	}
}

// updateHeader reports whether the header of a project has changed. The caller holds the lock.
func (b *Book) updateHeader(project string) bool {
	p, h := b.pages[project], b.headerOf(project)
	known := b.Zone.header(project)
	if reflect.DeepEqual(h, known) {
		return false
	}
	p.number++
	p.header = p.number
	if h == nil {
		b.Zone.Apply(&wire.Names{Gone: []string{project}})
		p.changed, p.log, p.floor = map[string]int64{}, nil, p.number
		return true
	}
	n := wire.ProjectNames{ID: project, Header: h}
	if known == nil { // it was not there before
		p.floor, n.Full = p.number, true
		for _, r := range b.pic.InstancesOf(project) {
			if i := b.instanceOf(r); i != nil {
				n.Instances = append(n.Instances, *i)
			}
		}
	}
	b.Zone.Apply(&wire.Names{Projects: []wire.ProjectNames{n}})
	return true
}

// updateInstance reports whether what names say about an instance has changed. The caller holds
// the lock.
func (b *Book) updateInstance(project, id string) bool {
	p := b.pages[project]
	var now *wire.NamedInstance
	if r := b.pic.Instances.Get(id); r != nil {
		now = b.instanceOf(r)
	}
	if reflect.DeepEqual(now, b.Zone.instance(project, id)) || b.Zone.header(project) == nil {
		return false
	}
	p.number++
	n := wire.ProjectNames{ID: project}
	if now != nil {
		n.Instances = []wire.NamedInstance{*now}
	} else {
		n.Gone = []string{id}
	}
	p.changed[id] = p.number
	p.log = append(p.log, logItem{p.number, id})
	if len(p.log) > max(minLog, 2*len(p.changed)) {
		p.shorten()
	}
	b.Zone.Apply(&wire.Names{Projects: []wire.ProjectNames{n}})
	return true
}

// shorten drops the older half of the log.
func (p *page) shorten() {
	half := len(p.log) / 2
	p.floor = p.log[half-1].number
	p.log = slices.Clone(p.log[half:])
	maps.DeleteFunc(p.changed, func(_ string, at int64) bool { return at <= p.floor })
}

// Since returns what has changed in the names of a project since a number, and the next number. A
// reader begins with 0. It reports false if nothing has changed.
func (b *Book) Since(project string, number int64) (n wire.ProjectNames, next int64, changed bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	p := b.pages[project]
	if p == nil || p.number == number {
		return n, number, false
	}
	n.ID = project
	if n.Header = b.Zone.header(project); n.Header == nil {
		return n, p.number, true // it is gone
	}
	if number < p.floor {
		n.Full, n.Instances = true, b.Zone.instancesOf(project)
		return n, p.number, true
	}
	if p.header <= number {
		n.Header = nil
	}
	seen := map[string]bool{}
	for k := len(p.log) - 1; k >= 0 && p.log[k].number > number; k-- {
		id := p.log[k].instance
		if seen[id] {
			continue
		}
		seen[id] = true
		if i := b.Zone.instance(project, id); i != nil {
			n.Instances = append(n.Instances, *i)
		} else {
			n.Gone = append(n.Gone, id)
		}
	}
	return n, p.number, true
}

// prune forgets projects that nobody asks for. The caller holds the lock.
func (b *Book) prune() {
	now := time.Now()
	if now.Sub(b.pruned) < time.Minute {
		return
	}
	b.pruned = now
	for id, p := range b.pages {
		if p.held <= 0 && now.Sub(p.used) > idlePage {
			delete(b.pages, id)
			b.Zone.Apply(&wire.Names{Gone: []string{id}})
		}
	}
}

// headerOf returns the header of a project; nil if there is no such project, or it is being
// deleted, which frees its name.
func (b *Book) headerOf(id string) *wire.ProjectHeader {
	r := b.pic.Projects.Get(id)
	if r == nil || r.Spec().Deleting {
		return nil
	}
	org := b.pic.Orgs.Get(r.Spec().Organization)
	if org == nil {
		return nil
	}
	h := &wire.ProjectHeader{Name: r.Spec().Name, Organization: org.Spec().Name}
	if st := r.Status(); st != nil {
		for name, s := range st.Services {
			if s != nil && !s.Removed {
				h.Services = append(h.Services, name)
			}
		}
		slices.Sort(h.Services)
	}
	for _, n := range b.pic.NetworksOf(id) {
		if h.Networks == nil {
			h.Networks = map[string]string{}
		}
		h.Networks[n.ID] = n.Spec().Name
	}
	return h
}

// instanceOf returns what names say about an instance; nil if they do not resolve to it.
func (b *Book) instanceOf(r *store.Instance) *wire.NamedInstance {
	spec, st := r.Spec(), r.Status()
	if st == nil || spec.Goal != mariposa.GoalRunning || st.State != mariposa.StateRunning || len(st.Addresses) == 0 {
		return nil
	}
	if st.Health != "" && st.Health != mariposa.HealthHealthy {
		return nil
	}
	i := &wire.NamedInstance{ID: r.ID, Name: spec.Name, Service: spec.ServiceName, Slot: spec.Slot, Node: spec.Node, Addresses: st.Addresses}
	if !spec.Managed {
		i.Service = ""
	}
	for _, join := range spec.Networks {
		if a := st.Details[mariposa.NetworkDetail(join.Attachment)]; a != "" {
			if i.Networks == nil {
				i.Networks = map[string]string{}
			}
			i.Networks[join.Name] = a
		}
	}
	node := b.pic.Nodes.Get(spec.Node)
	if node == nil {
		return i
	}
	i.DC = dcLabel(node.Spec().DC)
	if ns := node.Status(); ns != nil {
		i.Away = ns.State == mariposa.NodeUnknown
		host, _ := mariposa.SplitAddress(ns.Address)
		isPublished := spec.Compute == mariposa.ComputeDocker || spec.Compute == mariposa.ComputeBalancer
		if a := readAddress(host); isPublished && len(spec.Ports) > 0 && a.IsValid() && !a.IsLoopback() {
			i.Host, i.Published = a.String(), spec.Ports
		}
	}
	return i
}

// header returns the header of a project; nil if the zone does not know it.
func (z *Zone) header(project string) *wire.ProjectHeader {
	z.mu.RLock()
	defer z.mu.RUnlock()
	if p := z.projects[project]; p != nil {
		h := p.header
		return &h
	}
	return nil
}

// instance returns an instance; nil if names do not resolve to it.
func (z *Zone) instance(project, id string) *wire.NamedInstance {
	z.mu.RLock()
	defer z.mu.RUnlock()
	if p := z.projects[project]; p != nil && p.instances[id] != nil {
		i := p.instances[id].NamedInstance
		return &i
	}
	return nil
}

// instancesOf returns the instances of a project by id.
func (z *Zone) instancesOf(project string) (all []wire.NamedInstance) {
	z.mu.RLock()
	defer z.mu.RUnlock()
	if p := z.projects[project]; p != nil {
		for _, e := range p.instances {
			all = append(all, e.NamedInstance)
		}
	}
	slices.SortFunc(all, func(a, b wire.NamedInstance) int { return cmp.Compare(a.ID, b.ID) })
	return all
}
