package manifest

import (
	"cmp"
	"slices"
	"strings"

	"mariposa"
)

// Resolve returns the workload of one instance: the service's definition with every
// interpolation replaced. Parts without interpolations are shared with the service, not
// copied, so callers must not change the workload's slices.
//
// Before an instance is on its node, its port is not known: a placeholder is used
// instead.
func Resolve(svc *mariposa.Service, scope Scope) (*mariposa.Workload, error) {
	if scope.Instance.Port == "" && slices.Contains(pathsOf(svc), portPath) {
		return resolveWithMark(svc, scope)
	}
	return resolve(svc, scope)
}

func resolve(svc *mariposa.Service, scope Scope) (*mariposa.Workload, error) {
	r := resolver{svc: svc, scope: scope}
	w := &mariposa.Workload{
		Compute:     svc.Compute,
		Image:       pinnedImage(svc),
		Command:     r.words("command", svc.Command),
		Entrypoint:  r.words("entrypoint", svc.Entrypoint),
		WorkingDir:  svc.WorkingDir,
		User:        svc.User,
		DNS:         svc.DNS,
		DNSSearch:   svc.DNSSearch,
		Environment: r.variables("environment", svc.Environment),
		Memory:      cmp.Or(svc.Memory, scope.Package.Memory),
		MilliCPU:    cmp.Or(svc.MilliCPU, scope.Package.MilliCPU),
		Ports:       svc.Ports,
		Tags:        r.variables("tags", svc.Tags),
		Files:       r.variables("files", svc.Files),
		StopTimeout: svc.Stop.Timeout,
		Restart:     svc.Restart,
		Dummy:       svc.Dummy,
	}
	if r.err != nil {
		return nil, r.err
	}
	return w, nil
}

// pinnedImage returns the name of a service's image with its digest, as engines accept it.
func pinnedImage(svc *mariposa.Service) string {
	if svc.ImageDigest == "" {
		return svc.Image
	}
	return svc.Image + "@" + svc.ImageDigest
}

// ResolveMdata returns what an instance can read of its metadata at this
// moment. An entry that refers to a key without a value, or to a service that
// is not bound yet, is left out.
func ResolveMdata(svc *mariposa.Service, scope Scope) ([]mariposa.Variable, error) {
	r := resolver{svc: svc, scope: scope}
	entries := make([]mariposa.Variable, 0, len(svc.Mdata))
	for _, entry := range svc.Mdata {
		if !scope.has(svc, entry.Value) {
			continue
		}
		entry.Value = r.text("mdata."+entry.Name, entry.Value)
		entries = append(entries, entry)
	}
	if r.err != nil {
		return nil, r.err
	}
	return entries, nil
}

// has reports whether all metadata and services that a text refers to have values.
func (s Scope) has(svc *mariposa.Service, text string) bool {
	for _, path := range pathsIn(text) {
		if _, ok := s.value(svc, path); !ok && (strings.HasPrefix(path, "meta.") || strings.HasPrefix(path, "services.")) {
			return false
		}
	}
	return true
}

// ResolveChecks returns the health checks of a service's instances, with the interpolations
// in their paths resolved.
func ResolveChecks(svc *mariposa.Service, scope Scope) ([]mariposa.HealthCheck, error) {
	r := resolver{svc: svc, scope: scope}
	all := slices.Clone(svc.Checks())
	for i := range all {
		all[i].Path = r.text("healthchecks", all[i].Path)
	}
	return all, r.err
}

// HasOwnChecks reports whether the health checks of a service's instances differ, because
// their paths name the instance.
func HasOwnChecks(svc *mariposa.Service) bool {
	return slices.ContainsFunc(svc.HealthChecks, func(h mariposa.HealthCheck) bool { return len(pathsIn(h.Path)) > 0 })
}

// PerInstance reports whether any two instances of a service would get
// different workloads; if not, one can serve them all.
func PerInstance(svc *mariposa.Service) bool {
	differs := false
	eachTemplate(svc, func(text string) {
		for _, path := range pathsIn(text) {
			scope, rest, _ := strings.Cut(path, ".")
			differs = differs || scope == "instance" || scope == "placement" || scope == "services" || scope == "cns" && namesOwnInstance(svc, rest)
		}
	})
	return differs
}

// eachTemplate visits every text of a service that becomes part of its workload and may
// contain interpolations.
func eachTemplate(svc *mariposa.Service, visit func(text string)) {
	for _, words := range [][]string{svc.Command, svc.Entrypoint} {
		for _, w := range words {
			visit(w)
		}
	}
	for _, variables := range [][]mariposa.Variable{svc.Environment, svc.Tags, svc.Files} {
		for _, v := range variables {
			visit(v.Value)
		}
	}
}

// resolver remembers the first failure.
type resolver struct {
	svc   *mariposa.Service
	scope Scope
	err   error
}

func (r *resolver) text(field, text string) string {
	out, err := expand(text, func(path string) (string, error) {
		v, ok := r.scope.value(r.svc, path)
		if !ok {
			return "", mariposa.Errorf(mariposa.InvalidArgument, "services.%s.%s refers to %s, which has no value", r.svc.Name, field, path)
		}
		return v, nil
	})
	if err != nil && r.err == nil {
		r.err = err
		if mariposa.CodeOf(err) == mariposa.Internal {
			r.err = mariposa.Errorf(mariposa.InvalidArgument, "services.%s.%s %w", r.svc.Name, field, err)
		}
	}
	return out
}

func (r *resolver) words(field string, words []string) []string {
	resolved := words
	for i, w := range words {
		if !strings.Contains(w, "{{") {
			continue
		}
		if &resolved[0] == &words[0] {
			resolved = append([]string(nil), words...)
		}
		resolved[i] = r.text(field, w)
	}
	return resolved
}

func (r *resolver) variables(field string, variables []mariposa.Variable) []mariposa.Variable {
	resolved := variables
	for i, v := range variables {
		if !strings.Contains(v.Value, "{{") {
			continue
		}
		if &resolved[0] == &variables[0] {
			resolved = append([]mariposa.Variable(nil), variables...)
		}
		resolved[i].Value = r.text(field+"."+v.Name, v.Value)
	}
	return resolved
}
