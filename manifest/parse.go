package manifest

import (
	"cmp"
	"slices"
	"strings"

	"mariposa"
)

// Parse reads and checks a manifest. Its error is a *mariposa.Error that lists
// every fault with its line.
func Parse(data []byte) (*Project, error) {
	if len(data) > MaxBytes {
		return nil, mariposa.Errorf(mariposa.TooLarge, "the manifest has %s; the limit is %s", mariposa.SizeUp(int64(len(data))), mariposa.SizeUp(MaxBytes))
	}
	c := &checker{}
	root, faults := read(data)
	c.faults = faults
	if root == nil {
		return nil, c.err()
	}
	p := c.project(rootSpot(root))
	if err := c.err(); err != nil {
		return nil, err
	}
	return p, nil
}

// parts is everything a manifest can contain, while it is being checked.
type parts struct {
	Project
	drafts    []*draft
	balancers []*balancerDraft
	byName    map[string]*draft
}

var topKeys = keys[parts]{
	"services": func(c *checker, at *spot, p *parts) {
		c.named(at, func(at *spot) { p.drafts = append(p.drafts, c.service(at)) })
	},
	"networks": func(c *checker, at *spot, p *parts) {
		c.named(at, func(at *spot) { p.Networks = append(p.Networks, c.network(at)) })
	},
	"volumes": func(c *checker, at *spot, p *parts) {
		c.named(at, func(at *spot) { p.Volumes = append(p.Volumes, c.volume(at)) })
	},
	"load_balancers": func(c *checker, at *spot, p *parts) {
		c.named(at, func(at *spot) { p.balancers = append(p.balancers, c.loadBalancer(at)) })
	},
	"metadata": func(c *checker, at *spot, p *parts) {
		c.named(at, func(at *spot) { p.Metadata = append(p.Metadata, c.metadata(at)) })
	},
}

func (c *checker) project(at *spot) *Project {
	p := &parts{byName: map[string]*draft{}}
	if at.kind() == kindNull {
		c.fault(at, mariposa.FaultMissing, "the document is empty; a manifest must begin with services:")
		return nil
	}
	if !object(c, at, "", topKeys, p) {
		return nil
	}
	if at.child("services") == nil {
		c.fault(at.missing("services"), mariposa.FaultMissing, "is missing; write services: {} for a project without services")
	}
	for _, d := range p.drafts {
		p.byName[d.Name] = d
	}
	c.addBalancers(p)
	c.references(p)
	c.checkCycles(p.drafts)
	if len(c.faults) > 0 {
		return nil
	}
	return p.finish()
}

// named visits the entries of a mapping from names to things.
func (c *checker) named(at *spot, visit func(at *spot)) {
	if c.mapping(at) {
		c.entries(at, visit)
	}
}

// finish sorts everything by name, so that nothing later depends on the order
// of the document.
func (p *parts) finish() *Project {
	p.ByName = make(map[string]*mariposa.Service, len(p.drafts))
	for _, d := range p.drafts {
		d.size(p.Volumes)
		d.share(p.Networks)
		p.ByName[d.Name] = d.finish()
		p.Services = append(p.Services, d.Service)
	}
	slices.SortFunc(p.Services, func(a, b *mariposa.Service) int { return cmp.Compare(a.Name, b.Name) })
	slices.SortFunc(p.Networks, func(a, b Network) int { return cmp.Compare(a.Name, b.Name) })
	slices.SortFunc(p.Volumes, func(a, b Volume) int { return cmp.Compare(a.Name, b.Name) })
	slices.SortFunc(p.LoadBalancers, func(a, b LoadBalancer) int { return cmp.Compare(a.Name, b.Name) })
	slices.SortFunc(p.Metadata, func(a, b Metadata) int { return cmp.Compare(a.Name, b.Name) })
	p.keepPaths()
	whole := p.Project
	return &whole // a pointer into the parts would keep the document alive
}

func (c *checker) network(at *spot) Network {
	n := Network{Name: at.key}
	c.label(at)
	object(c, at, "networks.*.", keys[Network]{
		"shared": func(c *checker, at *spot, n *Network) { n.Shared, _ = c.flag(at) },
	}, &n)
	return n
}

func (c *checker) volume(at *spot) Volume {
	v := Volume{Name: at.key}
	c.label(at)
	object(c, at, "volumes.*.", keys[Volume]{
		"size":   func(c *checker, at *spot, v *Volume) { c.size(at, &v.Size) },
		"shared": func(c *checker, at *spot, v *Volume) { v.Shared, _ = c.flag(at) },
	}, &v)
	return v
}

func (c *checker) label(at *spot) {
	if why := dnsLabel(at.key); why != "" {
		c.invalid(at, "the name %s", why)
	}
}

// template checks an interpolated text and keeps its references for later.
func (c *checker) template(at *spot, d *draft, text string) {
	refs, err := References(text)
	if err != nil {
		c.invalid(at, "%s", strings.TrimSpace(err.Error()))
		return
	}
	for _, ref := range refs {
		d.refs = append(d.refs, usedPath{path: ref.Path, at: at})
	}
}
