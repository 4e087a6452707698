package manifest

import (
	"slices"
	"strings"

	"mariposa"
)

// Bind gives every service as it is with a project's values and with the sizes
// that packages have: memory and cores from its package where it says none of its
// own, a digest that differs whenever what would be provisioned differs, and the
// keys that are missing. A service that needs no change is shared, not copied. The
// package without a name is that of services which name none.
//
// Mac makes a keyed hash of texts: with a plain one, everybody who sees a
// digest could try out secrets. It and v may be nil while nothing is set.
func Bind(p *Project, v *Values, packages map[string]mariposa.PackageSpec, mac func(parts ...string) string) map[string]*mariposa.Service {
	missing := p.Missing(v)
	bound := make(map[string]*mariposa.Service, len(p.Services))
	for _, svc := range p.Services {
		bound[svc.Name] = p.bind(svc, v, missing, packages, mac)
	}
	return bound
}

// BindService does for one service what Bind does for all; it need not be a
// service of the project.
func BindService(p *Project, svc *mariposa.Service, v *Values, packages map[string]mariposa.PackageSpec, mac func(parts ...string) string) *mariposa.Service {
	return p.bind(svc, v, p.Missing(v), packages, mac)
}

func (p *Project) bind(svc *mariposa.Service, v *Values, missing []string, packages map[string]mariposa.PackageSpec, mac func(parts ...string) string) *mariposa.Service {
	size, sized := packages[svc.Package]
	sized = sized && (svc.Package != "" || svc.Memory == 0 || svc.MilliCPU == 0)
	uses := usesOf(svc)
	needs := p.needs(v, uses, missing)
	if !sized && len(uses) == 0 && len(needs) == 0 {
		return svc
	}
	b := *svc
	if sized {
		bindSize(&b, size)
	}
	if len(uses) > 0 {
		b.Digest += "." + p.digestOf(v, uses, mac)
	}
	b.Needs, b.Secrets = needs, p.secrets(needs)
	return &b
}

// bindSize gives a service the size of its package. The size is part of the
// form: another size is another form.
func bindSize(s *mariposa.Service, size mariposa.PackageSpec) {
	if s.Memory == 0 {
		s.Memory = size.Memory
	}
	if s.MilliCPU == 0 {
		s.MilliCPU = size.MilliCPU
	}
	var more []facet
	if size.Disk != 0 {
		more = append(more, facet{name: "package.disk", parts: []string{number(size.Disk)}, effect: replaces})
	}
	if size.Family != "" && slices.Contains(pathsOf(s), "package.family") {
		more = append(more, facet{name: "package.family", parts: []string{size.Family}, effect: replaces})
	}
	s.Digest, s.Live = digests(s, more...)
}

// needs lists the keys without which nothing of a service can be made.
func (p *Project) needs(v *Values, uses, missing []string) []string {
	needs := slices.Clone(missing)
	for _, key := range uses {
		if _, ok := p.Value(v, key); !ok {
			needs = append(needs, key)
		}
	}
	slices.Sort(needs)
	return slices.Compact(needs)
}

// secrets picks the keys that are declared secret.
func (p *Project) secrets(keys []string) (secret []string) {
	for _, key := range keys {
		if p.IsSecret(key) {
			secret = append(secret, key)
		}
	}
	return secret
}

// digestOf hashes the values of some keys, which are sorted. As long as they
// are all defaults of the manifest, the hash need not be secret, and the first
// value of a project, which brings its key, changes nothing else.
// A secret is never compared with a default: the digest would confirm a guess.
func (p *Project) digestOf(v *Values, keys []string, mac func(parts ...string) string) string {
	var parts []string
	public := true
	for _, key := range keys {
		text, ok := p.Value(v, key)
		state := "unset"
		if ok {
			state = "set"
		}
		parts = append(parts, key, state, text)
		m, _ := p.Declared(key)
		value, _ := v.Get(key)
		public = public && (!ok || !value.Secret && m.Default != nil && *m.Default == text)
	}
	if !public {
		return mac(parts...)
	}
	var all strings.Builder
	facet{name: "meta", parts: parts}.encode(&all)
	return hash(all.String())
}

// Uses lists the metadata keys that a service's instances are provisioned with,
// sorted: a change of one makes them outdated.
func (p *Project) Uses(service string) []string {
	if p == nil || p.ByName[service] == nil {
		return nil
	}
	return usesOf(p.ByName[service])
}

// UsesLive lists the metadata keys that a service's mdata holds, sorted,
// whether or not it also uses them otherwise: instances see a change at once.
func (p *Project) UsesLive(service string) []string {
	if p == nil || p.ByName[service] == nil {
		return nil
	}
	var paths []string
	for _, v := range p.ByName[service].Mdata {
		paths = append(paths, pathsIn(v.Value)...)
	}
	return metaKeys(paths)
}

func usesOf(svc *mariposa.Service) []string { return metaKeys(pathsOf(svc)) }

// pathsOf lists the interpolations that become part of a workload.
func pathsOf(svc *mariposa.Service) (paths []string) {
	eachTemplate(svc, func(text string) { paths = append(paths, pathsIn(text)...) })
	return paths
}

func pathsIn(text string) (paths []string) {
	refs, _ := References(text) // unreadable texts are refused where they are resolved
	for _, ref := range refs {
		paths = append(paths, ref.Path)
	}
	return paths
}

// metaKeys returns the metadata keys among paths.
func metaKeys(paths []string) (keys []string) {
	for _, path := range paths {
		if key, ok := strings.CutPrefix(path, "meta."); ok {
			keys = append(keys, key)
		}
	}
	slices.Sort(keys)
	return slices.Compact(keys)
}
