package manifest

import (
	"cmp"
	"slices"
	"strconv"
	"strings"

	"mariposa"
)

// scopes lists every path that an interpolation may take. A * matches the rest: a name
// that is checked elsewhere, or one that is known only at run time.
var scopes = map[string][]string{
	"meta":      {"*"},
	"project":   {"name", "uuid", "version"},
	"service":   {"name", "uuid", "version"},
	"package":   {"ram", "disk", "cpu", "name", "family"},
	"scale":     {""},
	"instance":  {"name", "uuid", "port"},
	"placement": {"instance.name", "instance.uuid", "cn.uuid", "rack.uuid", "dc.name"},
	"cns":       {"svc.*", "inst.*", "prefix.*"},
	"services":  {"*"},
}

// otherFields are the fields of another service, in addition to
// environment.<KEY>.
var otherFields = []string{"id", "address", "port", "ids", "addresses"}

// knownPath reports whether a path names something that can exist.
func knownPath(path string) bool {
	scope, rest, _ := strings.Cut(path, ".")
	for _, p := range scopes[scope] {
		if prefix, open := strings.CutSuffix(p, "*"); p == rest || (open && len(rest) > len(prefix) && strings.HasPrefix(rest, prefix)) {
			return true
		}
	}
	return false
}

// allPaths lists the known paths for suggestions.
func allPaths() []string {
	var paths []string
	for scope, rests := range scopes {
		for _, rest := range rests {
			paths = append(paths, strings.TrimSuffix(scope+"."+rest, "."))
		}
	}
	slices.Sort(paths)
	return paths
}

// Scope contains the values that interpolations of one instance resolve to.
type Scope struct {
	Project      Identity
	Service      Identity
	Scale        int
	Instance     Instance
	Placement    Placement
	Package      mariposa.PackageSpec            // zero: none
	Organization string                          // its name
	Domain       string                          // empty: DefaultDomain
	Meta         func(key string) (string, bool) // nil: nothing is set
	// HasService reports whether the manifest has a service; nil: it has all.
	HasService func(name string) bool
	// Other resolves a reference to another service; nil: no other service is known.
	Other func(ref mariposa.Ref) (string, bool)
}

// DefaultDomain is the domain that all names of services and instances are under
// unless an operator chose another.
const DefaultDomain = "mariposa.internal"

// Identity contains the names of a project or service.
type Identity struct {
	Name, UUID, Version string
}

// Instance contains the names of an instance, and its first port on its node; empty: not
// known yet.
type Instance struct {
	Name, UUID, Port string
}

// Placement is where an instance runs: the UUIDs of its node and rack, and the
// name of its data centre.
type Placement struct {
	CN, Rack, DC string
}

// value resolves a path for an instance of a service.
func (s Scope) value(svc *mariposa.Service, path string) (string, bool) {
	switch path {
	case "project.name":
		return s.Project.Name, true
	case "project.uuid":
		return s.Project.UUID, true
	case "project.version":
		return s.Project.Version, true
	case "service.name":
		return s.Service.Name, true
	case "service.uuid":
		return s.Service.UUID, true
	case "service.version":
		return s.Service.Version, true
	case "scale":
		return strconv.Itoa(s.Scale), true
	}
	scope, rest, _ := strings.Cut(path, ".")
	switch {
	case scope == "package":
		return s.packageValue(svc, rest)
	case scope == "meta" && s.Meta != nil:
		return s.Meta(rest)
	case scope == "cns":
		return s.domainName(svc, rest)
	case scope == "services" && s.Other != nil:
		return s.Other(refOf(rest))
	}
	return s.instanceValue(path)
}

// packageValue resolves a field of a service's size. Memory and disk are in
// MiB, as packages are named.
func (s Scope) packageValue(svc *mariposa.Service, field string) (string, bool) {
	switch field {
	case "ram":
		return strconv.FormatInt(cmp.Or(svc.Memory, s.Package.Memory)>>20, 10), true
	case "cpu":
		return milli(cmp.Or(svc.MilliCPU, s.Package.MilliCPU)), true
	case "disk":
		return strconv.FormatInt(s.Package.Disk>>20, 10), true
	case "name":
		return svc.Package, true
	case "family":
		return s.Package.Family, true
	}
	return "", false
}

func (s Scope) instanceValue(path string) (string, bool) {
	switch path {
	case "instance.name", "placement.instance.name":
		return s.Instance.Name, true
	case "instance.uuid", "placement.instance.uuid":
		return s.Instance.UUID, true
	case portPath:
		return s.Instance.Port, s.Instance.Port != ""
	case "placement.cn.uuid":
		return s.Placement.CN, true
	case "placement.rack.uuid":
		return s.Placement.Rack, true
	case "placement.dc.name":
		return s.Placement.DC, true
	}
	return "", false
}

// milli formats thousandths as a decimal number.
func milli(n int64) string {
	return strconv.FormatFloat(float64(n)/1000, 'f', -1, 64)
}
