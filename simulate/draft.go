package simulate

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
)

// draft is a manifest that simulated users work on. They write a new one or change parts
// of the previous one: they invert edges, remove services, add them again and fix the
// causes of failures.
type draft struct {
	order    []string // services; each refers only to those before it
	services map[string]*draftService
	fronts   []draftFront
}

// draftFront is a load balancer of a draft.
type draftFront struct {
	port    int // of the node; 0: it is an external one
	drain   int
	canary  int
	targets []string // services
}

type draftService struct {
	scale   int
	nameLen int // part of its form: changing it replaces instances
	prop    int // changed in place
	fails   bool
	slow    bool
	depends string
	refs    map[string]string // service -> field
	live    bool              // references go into mdata
	update  string
	more    string
}

var serviceNames = []string{"a", "b", "c", "d", "e", "f"}

// mostServices limits the services of a draft, so that all projects together fit on two
// nodes.
const mostServices = 4

// write generates a manifest. A sound manifest starts without failures.
func (p *people) write(sound bool) *draft {
	d := &draft{services: map[string]*draftService{}}
	names := slices.Clone(serviceNames)
	p.w.rng.Shuffle(len(names), func(i, j int) { names[i], names[j] = names[j], names[i] })
	for _, name := range names[:1+p.w.rng.IntN(mostServices)] {
		p.addService(d, name, sound)
	}
	if sound {
		for _, name := range d.order[:len(d.order)-1] {
			d.services[name].scale += 7 // others may refer to it, and this scale was not requested before
		}
	}
	p.addFronts(d)
	return d
}

// addFronts adds load balancers to a draft.
func (p *people) addFronts(d *draft) {
	for n := range p.w.rng.IntN(3) {
		f := draftFront{drain: []int{2, 25}[n], canary: p.w.rng.IntN(2) * 10}
		targets := slices.Clone(d.order)
		p.w.rng.Shuffle(len(targets), func(i, j int) { targets[i], targets[j] = targets[j], targets[i] })
		f.targets = targets[:1]
		if p.w.chance(2) { // an external one has a single target
			f.port, f.targets = 8000+p.w.rng.IntN(20_000), targets[:1+p.w.rng.IntN(len(targets))]
		}
		d.fronts = append(d.fronts, f)
	}
}

// addService adds a service after the existing ones.
func (p *people) addService(d *draft, name string, sound bool) {
	rng := p.w.rng
	s := &draftService{
		scale: rng.IntN(5), nameLen: 8 + rng.IntN(3), prop: rng.IntN(3), slow: p.w.chance(3),
		fails: !sound && p.w.chance(8), live: p.w.chance(4), refs: map[string]string{},
	}
	if p.w.chance(2) {
		s.scale = 1 // hand-overs are hardest with a single instance
	}
	if len(d.order) > 0 && p.w.chance(3) {
		s.depends = d.order[rng.IntN(len(d.order))]
	}
	for _, on := range d.order {
		if p.w.chance(2) {
			s.refs[on] = p.field()
		}
	}
	if p.w.chance(3) { // short enough that a flapping node has its instances replaced
		s.more += fmt.Sprintf("    reschedule: {after: %d}\n", rng.IntN(10))
	}
	s.update = fmt.Sprintf("rolling: %d, min_healthy: %d, deadline: 120", 1+rng.IntN(3), max(0, rng.IntN(6)-2))
	if !sound && p.w.chance(6) {
		s.update += fmt.Sprintf(", canary: %d", 1+rng.IntN(2))
	}
	if p.w.chance(4) {
		s.update += ", on_failure: rollback"
	}
	if p.w.chance(8) {
		s.update += ", order: stop-first"
	}
	if p.w.chance(3) {
		s.more += fmt.Sprintf("    stop: {preservestopped: %s}\n", []string{`"no"`, "on-failure", "always"}[rng.IntN(3)])
	}
	if p.w.chance(4) {
		s.more += "    restart: always\n"
	}
	if p.w.chance(3) {
		s.more += fmt.Sprintf("    networks: [%s]\n", []string{"own", "common", "own, common"}[rng.IntN(3)])
	}
	// A service's volumes are created and deleted together: otherwise they could
	// end up on two nodes.
	if at := slices.Index(serviceNames, name); at < 2 && p.w.chance(2) {
		s.more += fmt.Sprintf("    volumes: [%s]\n", []string{"data:/d", "data:/d, logs:/l"}[at])
	} else if p.w.chance(4) {
		s.more += "    volumes: [common:/c]\n"
	}
	s.more += p.checks()
	d.order, d.services[name] = append(d.order, name), s
}

// field returns the field of a reference, nearly always one of a single instance.
func (p *people) field() string {
	return []string{"id", "id", "id", "address", "ids"}[p.w.rng.IntN(5)]
}

func (d *draft) clone() *draft {
	c := &draft{order: slices.Clone(d.order), services: map[string]*draftService{}, fronts: slices.Clone(d.fronts)}
	for name, s := range d.services {
		t := *s
		t.refs = maps.Clone(s.refs)
		c.services[name] = &t
	}
	return c
}

// edit changes a few parts of a draft.
func (p *people) edit(old *draft) *draft {
	d := old.clone()
	switch p.w.rng.IntN(6) {
	case 0:
		p.invertAll(d)
	case 1:
		p.dropReferences(d)
	default:
		for range 1 + p.w.rng.IntN(3) {
			p.editOnce(d)
		}
	}
	return d
}

// invertAll inverts the edges, replaces all services and makes one service with
// references fail.
func (p *people) invertAll(d *draft) {
	p.invert(d)
	d.reform()
	for _, at := range p.w.rng.Perm(len(d.order)) {
		if s := d.services[d.order[at]]; len(s.refs) > 0 {
			s.fails = true
			return
		}
	}
}

// dropReferences drops the failing services, removes all references between the others
// and replaces them.
func (p *people) dropReferences(d *draft) {
	for at := len(d.order) - 1; at >= 0; at-- {
		if d.services[d.order[at]].fails {
			p.dropService(d, at)
		}
	}
	for _, s := range d.services {
		s.fails, s.depends = false, ""
		clear(s.refs)
	}
	d.reform()
}

// reform changes the form of every service.
func (d *draft) reform() {
	for _, s := range d.services {
		s.reform()
	}
}

func (s *draftService) reform() { s.nameLen = 8 + (s.nameLen-7)%5 }

func (p *people) editOnce(d *draft) {
	rng := p.w.rng
	at := rng.IntN(len(d.order))
	s := d.services[d.order[at]]
	switch rng.IntN(12) {
	case 0, 1:
		p.invert(d)
	case 2: // drop all references
		clear(s.refs)
		s.depends = ""
	case 3:
		if at > 0 {
			s.refs[d.order[rng.IntN(at)]] = p.field()
		}
	case 4: // even if the referenced service has not changed
		s.fails = !s.fails
	case 5:
		s.reform()
	case 6:
		p.dropService(d, at)
	case 7:
		p.addOneAgain(d)
	case 8:
		s.prop++
	case 9, 10, 11:
		d.fronts = nil
		p.addFronts(d)
	}
}

// invert reverses the order, and with it the existing edges.
func (p *people) invert(d *draft) {
	edges := map[string]map[string]string{}
	for name, s := range d.services {
		for on, field := range s.refs {
			if edges[on] == nil {
				edges[on] = map[string]string{}
			}
			edges[on][name] = field
		}
		s.depends, s.refs = "", map[string]string{}
	}
	for name, refs := range edges {
		d.services[name].refs = refs
	}
	if slices.Reverse(d.order); p.w.chance(2) {
		d.reform()
	}
	p.w.seen["edges inverted"]++
}

// dropService removes a service, and every reference to it.
func (p *people) dropService(d *draft, at int) {
	if len(d.order) == 1 {
		return
	}
	name := d.order[at]
	d.order = slices.Delete(d.order, at, at+1)
	delete(d.services, name)
	for _, s := range d.services {
		if delete(s.refs, name); s.depends == name {
			s.depends = ""
		}
	}
	isIt := func(target string) bool { return target == name }
	for i := range d.fronts {
		d.fronts[i].targets = slices.DeleteFunc(slices.Clone(d.fronts[i].targets), isIt)
	}
	d.fronts = slices.DeleteFunc(d.fronts, func(f draftFront) bool { return len(f.targets) == 0 })
	p.w.seen["service dropped"]++
}

// addOneAgain adds a service that does not exist, possibly a former one.
func (p *people) addOneAgain(d *draft) {
	name := serviceNames[p.w.rng.IntN(len(serviceNames))]
	if d.services[name] == nil && len(d.order) < mostServices {
		p.addService(d, name, false)
		p.w.seen["service added"]++
	}
}

// mendDraft returns a reachable draft with minimal changes. Without it, services that
// wait for others would wait forever.
func (p *people) mendDraft(old *draft, scales map[string]int) *draft {
	d := old.clone()
	for _, name := range d.order {
		s := d.services[name]
		s.fails = false
		s.update = canary.ReplaceAllString(s.update, "")
		if s.scale == 0 || scales[name] == 0 {
			s.scale = 7 // others may refer to it, and this scale was not requested before
		}
	}
	return d
}

// updateInPlace submits a version of every project that changes its instances in place.
func (p *people) updateInPlace() {
	for _, name := range projectNames {
		r, old := p.project(name), p.drafts[name]
		if r == nil || old == nil {
			continue
		}
		d := old.clone()
		for _, s := range d.services {
			s.prop += 3
		}
		p.update(r, d.String(), "live values")
	}
}

var canary = regexp.MustCompile(", canary: [0-9]+")

func (d *draft) String() string {
	var b strings.Builder
	b.WriteString("services:\n")
	for _, name := range d.order {
		s := d.services[name]
		fmt.Fprintf(&b, "  %s:\n    compute_type: dummy\n    scale: %d\n", name, s.scale)
		fmt.Fprintf(&b, "    dummy: {name_len: %d, update_in_place_prop: v%d", s.nameLen, s.prop)
		if s.fails {
			b.WriteString(`, fail_prop: "yes"`)
		}
		if s.slow {
			b.WriteString(", max_wait_secs: 4")
		}
		b.WriteString("}\n")
		if s.depends != "" {
			fmt.Fprintf(&b, "    depends_on: [%s]\n", s.depends)
		}
		if len(s.refs) > 0 {
			fmt.Fprintf(&b, "    %s:\n", map[bool]string{false: "environment", true: "mdata"}[s.live])
			for _, on := range slices.Sorted(maps.Keys(s.refs)) {
				fmt.Fprintf(&b, "      %s: \"{{ .services.%s.%s }}\"\n", strings.ToUpper(on), on, s.refs[on])
			}
		}
		fmt.Fprintf(&b, "    update: {%s}\n%s", s.update, s.more)
	}
	if len(d.fronts) > 0 {
		b.WriteString("load_balancers:\n")
	}
	for _, f := range d.fronts {
		b.WriteString(f.String())
	}
	b.WriteString("networks: {own: {}, common: {shared: true}}\n")
	b.WriteString("volumes: {data: {size: 1g}, logs: , common: {shared: true}}\n")
	return b.String()
}

// String returns the lines of a load balancer. Its name tells its drain time, so that this never
// changes.
func (f draftFront) String() string {
	if f.port == 0 {
		return fmt.Sprintf("  drain%d: {address: /run/front.sock, service: %s, port: 80, drain: %d, canary_weight: %d}\n", f.drain, f.targets[0], f.drain, f.canary)
	}
	var b strings.Builder
	fmt.Fprintf(&b, "  drain%d: {listen: %d, drain: %d, canary_weight: %d, routes: [", f.drain, f.port, f.drain, f.canary)
	for i, name := range f.targets {
		fmt.Fprintf(&b, "{path: /%d, service: %s, port: 80},", i, name)
	}
	return b.String() + "]}\n"
}
