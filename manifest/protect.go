package manifest

import (
	"crypto/sha256"
	"encoding/hex"
	"slices"
	"strings"
)

// Protects reports whether a declaration protects its secret: only versions that an
// operator has approved may use it.
func (m *Metadata) Protects() bool { return m.Protect != nil && *m.Protect }

// Lifts reports whether a declaration removes the protection of its key.
func (m *Metadata) Lifts() bool { return m.Protect != nil && !*m.Protect }

// RefersTo lists all metadata keys that the manifest refers to, sorted.
func (p *Project) RefersTo() []string {
	if p == nil {
		return nil
	}
	var all []string
	for _, paths := range p.paths {
		all = append(all, paths...)
	}
	return metaKeys(all)
}

// UsesAny lists those of the given keys that the manifest refers to, sorted.
func (p *Project) UsesAny(keys []string) []string {
	if len(keys) == 0 {
		return nil
	}
	return slices.DeleteFunc(p.RefersTo(), func(key string) bool { return !slices.Contains(keys, key) })
}

// Holds reports whether instances of a service get the value of a key: by their own
// reference, or by a reference to the environment of a service that gets it.
func (p *Project) Holds(service, key string) bool {
	if p == nil {
		return false
	}
	return p.holds(service, key, map[string]bool{})
}

// UsersOf lists the services whose instances get the value of any of some keys, sorted.
func (p *Project) UsersOf(keys []string) (names []string) {
	for _, svc := range p.Services {
		if slices.ContainsFunc(keys, func(key string) bool { return p.Holds(svc.Name, key) }) {
			names = append(names, svc.Name)
		}
	}
	slices.Sort(names)
	return names
}

func (p *Project) holds(service, key string, seen map[string]bool) bool {
	if seen[service] {
		return false
	}
	seen[service] = true
	return slices.ContainsFunc(p.paths[service], func(path string) bool {
		if path == "meta."+key {
			return true
		}
		rest, other := strings.CutPrefix(path, "services.")
		name, field, _ := strings.Cut(rest, ".")
		return other && strings.HasPrefix(field, "environment.") && p.holds(name, key, seen)
	})
}

// Content identifies what an operator approves: the manifest byte for byte, which
// protected keys it uses, and every other value that it refers to. The protected values
// themselves are not part of it: only operators can set them, and a new value needs no
// new approval. Mac may be nil while no value is set.
func (p *Project) Content(doc []byte, v *Values, protected []string, mac func(parts ...string) string) string {
	values := []string{"values of an approved version"}
	for _, key := range p.RefersTo() {
		if value, set := v.Get(key); set && !slices.Contains(protected, key) {
			values = append(values, key, value.Text)
		}
	}
	parts := append([]string{string(doc)}, p.UsesAny(protected)...)
	if len(values) > 1 && mac != nil {
		parts = append(parts, "", mac(values...))
	}
	var all strings.Builder
	facet{name: "approval", parts: parts}.encode(&all)
	sum := sha256.Sum256([]byte(all.String())) // not truncated: a submitter could search for another content with the same hash
	return hex.EncodeToString(sum[:])
}

// keepPaths stores the references of every service to metadata and to other services.
func (p *parts) keepPaths() {
	p.paths = map[string][]string{}
	for _, d := range p.drafts {
		name := d.Name
		for _, ref := range d.refs {
			if strings.HasPrefix(ref.path, "meta.") || strings.HasPrefix(ref.path, "services.") {
				p.paths[name] = append(p.paths[name], ref.path)
			}
		}
	}
}
