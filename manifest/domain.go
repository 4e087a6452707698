package manifest

import (
	"cmp"
	"slices"
	"strings"

	"mariposa"
)

// The names of no networks that can be part of a DNS name: where nodes publish ports, and the
// instances' own addresses.
const (
	publicNetwork  = "public"
	privateNetwork = "private"
)

// domainName returns a DNS name: of a service (svc.web), of an instance or a slot (inst.web.2), or of
// the service or the instance itself in a network (svc.backend, inst.public). A name that begins
// with prefix is that of a service without the domain, which resolvers of instances add.
func (s Scope) domainName(svc *mariposa.Service, path string) (string, bool) {
	kind, name, _ := strings.Cut(path, ".")
	if name == "" || (kind != "svc" && kind != "inst" && kind != "prefix") {
		return "", false
	}
	label := cmp.Or(map[string]string{"prefix": "svc"}[kind], kind)
	switch {
	case kind == "inst" && isNetworkOf(svc, name):
		name = s.Instance.Name + "." + name
	case kind != "inst" && s.HasService != nil && !s.HasService(name) && isNetworkOf(svc, name):
		name = s.Service.Name + "." + name
	}
	words := []string{name, label, s.Project.Name, s.Organization, cmp.Or(s.Domain, DefaultDomain)}
	if kind == "prefix" {
		words = words[:4]
	}
	return strings.Join(words, "."), true
}

// isNetworkOf reports whether a name can be that of a network of a service.
func isNetworkOf(svc *mariposa.Service, name string) bool {
	return name == publicNetwork || name == privateNetwork || svc != nil && slices.Contains(svc.Networks, name)
}

// namesOwnInstance reports whether a DNS name contains the name of the instance itself.
func namesOwnInstance(svc *mariposa.Service, path string) bool {
	name, ok := strings.CutPrefix(path, "inst.")
	return ok && isNetworkOf(svc, name)
}

// domainName checks a reference to a DNS name: it must lead to a service of the manifest, alone or
// in one of its networks, or to the service itself in one of its networks.
func (c *checker) domainName(p *parts, d *draft, ref usedPath, path string, known names) {
	kind, name, _ := strings.Cut(path, ".")
	if kind == "inst" {
		return // instances are known only at run time
	}
	if service, network, ok := strings.Cut(name, "."); ok && p.byName[service] != nil {
		if !isNetworkOf(p.byName[service].Service, network) {
			c.fault(ref.at, mariposa.FaultUnknown, "refers to service %s in network %s, but the service does not use such a network", quoteText(service), quoteText(network))
		}
		return
	}
	switch {
	case p.byName[name] != nil:
	case c.single && isNetworkOf(nil, name):
		c.invalid(ref.at, "refers to %s, but a single instance is of no service; write cns.inst.%s, or name a service", quoteText(ref.path), name)
	case d.Service == nil || !isNetworkOf(d.Service, name):
		c.unknown(ref.at, func() []string { return known.services }, name, "refers to service %s, which does not exist", quoteText(name))
	}
}
