package manifest

import (
	"slices"
	"strings"

	"mariposa"
)

// Bind applies a project's values and the sizes of packages to every service. It sets
// memory and cores from the package if the service sets none, a digest that changes
// whenever new instances would differ, and the metadata keys that are missing. A service
// that needs no change is shared, not copied. The package with an empty name applies to
// services that name none.
//
// Mac returns a keyed hash of texts: with a plain hash, everybody who sees a digest could
// guess secrets. Mac and v may be nil while no value is set.
func Bind(p *Project, v *Values, packages map[string]mariposa.PackageSpec, images map[string]mariposa.ImagePin, mac func(parts ...string) string) map[string]*mariposa.Service {
	missing := p.Missing(v)
	bound := make(map[string]*mariposa.Service, len(p.Services))
	for _, svc := range p.Services {
		bound[svc.Name] = p.bind(svc, v, missing, packages, images, mac)
	}
	return bound
}

// BindService is like Bind, but for one service, which need not be in the project.
func BindService(p *Project, svc *mariposa.Service, v *Values, packages map[string]mariposa.PackageSpec, images map[string]mariposa.ImagePin, mac func(parts ...string) string) *mariposa.Service {
	return p.bind(svc, v, p.Missing(v), packages, images, mac)
}

func (p *Project) bind(svc *mariposa.Service, v *Values, missing []string, packages map[string]mariposa.PackageSpec, images map[string]mariposa.ImagePin, mac func(parts ...string) string) *mariposa.Service {
	size, sized := packages[svc.Package]
	sized = sized && (svc.Package != "" || svc.Memory == 0 || svc.MilliCPU == 0)
	uses := usesOf(svc)
	needs := p.needs(v, uses, missing)
	pin := pinned(svc, images)
	if !sized && pin == (mariposa.ImagePin{}) && len(uses) == 0 && len(needs) == 0 {
		return svc
	}
	b := *svc
	if b.ImageDigest, b.ImageLabels = pin.Digest, pin.ImageLabels; pin.Digest != "" {
		b.Digest, b.Live = digests(&b)
	}
	if sized {
		bindSize(&b, size)
	}
	if len(uses) > 0 {
		b.Digest += "." + p.digestOf(v, uses, mac)
	}
	b.Needs, b.Secrets = needs, p.secrets(needs)
	return &b
}

// pinned returns what a service's image means; without a digest if that is not known, or if the
// name says it: then only the labels are new.
func pinned(svc *mariposa.Service, images map[string]mariposa.ImagePin) mariposa.ImagePin {
	pin := images[svc.Image]
	switch {
	case !HasImage(svc):
		return mariposa.ImagePin{}
	case IsPinnable(svc):
		return mariposa.ImagePin{Digest: pin.Digest, ImageLabels: pin.ImageLabels}
	case pin.Digest == DigestIn(svc.Image):
		return mariposa.ImagePin{ImageLabels: pin.ImageLabels}
	}
	return mariposa.ImagePin{}
}

// HasImage reports whether a service has an image that engines of containers fetch.
func HasImage(svc *mariposa.Service) bool {
	return svc.Compute == mariposa.ComputeDocker && svc.Image != ""
}

// IsPinnable reports whether the name of a service's image can mean another image later. A
// name that has a digest cannot.
func IsPinnable(svc *mariposa.Service) bool { return HasImage(svc) && DigestIn(svc.Image) == "" }

// DigestIn returns the digest in the name of an image; empty if there is none.
func DigestIn(image string) string {
	_, digest, _ := strings.Cut(image, "@")
	return digest
}

// bindSize sets the size of a service from its package. The size is part of the digest:
// another size needs new instances.
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

// needs lists the keys without which no instance of a service can be created.
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

// secrets returns those keys that are declared secret.
func (p *Project) secrets(keys []string) (secret []string) {
	for _, key := range keys {
		if p.IsSecret(key) {
			secret = append(secret, key)
		}
	}
	return secret
}

// digestOf hashes the values of some keys, which are sorted. If all values are defaults
// of the manifest, it uses a plain hash. So the first value of a project, with which its
// key is created, does not change the digests of other services. A secret is never
// compared with a default: the digest would confirm a guess.
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

// UsesLive lists the metadata keys that a service's mdata contains, sorted, whether or
// not it also uses them elsewhere: instances see a change of these at once.
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
	refs, _ := References(text) // invalid texts are reported when they are resolved
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
