package manifest

import (
	"cmp"
	"slices"
	"strings"

	"mariposa"
)

// refsOf returns a service's references to others: those that its instances are created
// with, and those used only in its mdata.
func refsOf(svc *mariposa.Service) (fixed, live []mariposa.Ref) {
	fixed = refsIn(pathsOf(svc))
	var paths []string
	for _, v := range svc.Mdata {
		paths = append(paths, pathsIn(v.Value)...)
	}
	live = slices.DeleteFunc(refsIn(paths), func(r mariposa.Ref) bool { return slices.Contains(fixed, r) })
	return fixed, live
}

// refsIn returns the references to other services among paths, sorted.
func refsIn(paths []string) (refs []mariposa.Ref) {
	for _, path := range paths {
		if rest, ok := strings.CutPrefix(path, "services."); ok {
			refs = append(refs, refOf(rest))
		}
	}
	slices.SortFunc(refs, func(a, b mariposa.Ref) int {
		return cmp.Or(cmp.Compare(a.Service, b.Service), cmp.Compare(a.Field, b.Field))
	})
	return slices.Compact(refs)
}

func refOf(rest string) mariposa.Ref {
	name, field, _ := strings.Cut(rest, ".")
	return mariposa.Ref{Service: name, Field: field}
}

// Variable returns a variable of a service's environment, unresolved.
func Variable(svc *mariposa.Service, name string) (string, bool) {
	for _, v := range slices.Backward(svc.Environment) { // the last one counts
		if v.Name == name {
			return v.Value, true
		}
	}
	return "", false
}

// ResolveVariable resolves one variable of a service's environment, as an
// instance of it sees it.
func ResolveVariable(svc *mariposa.Service, name string, scope Scope) (string, bool) {
	text, ok := Variable(svc, name)
	if !ok {
		return "", false
	}
	r := resolver{svc: svc, scope: scope}
	value := r.text("environment."+name, text)
	return value, r.err == nil
}

// Sources lists the kinds of things a text refers to, by the first word of each
// path in it, sorted.
func Sources(text string) (scopes []string) {
	for _, path := range pathsIn(text) {
		scope, _, _ := strings.Cut(path, ".")
		scopes = append(scopes, scope)
	}
	slices.Sort(scopes)
	return slices.Compact(scopes)
}

// Others resolves references by bindings. Variable returns a variable of the
// environment of a bound instance: those are not kept with the binding.
func Others(b *mariposa.Bindings, variable func(service string, to mariposa.Binding, name string) (string, bool)) func(mariposa.Ref) (string, bool) {
	return func(r mariposa.Ref) (string, bool) {
		to, ok := b.Get(r.Service)
		if !ok {
			return "", false
		}
		if name, ok := strings.CutPrefix(r.Field, "environment."); ok {
			return variable(r.Service, to, name)
		}
		value, ok := to.Values[r.Field]
		return value, ok
	}
}
