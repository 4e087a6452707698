package change

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"mariposa"
	"mariposa/converge"
	"mariposa/store"
)

// matches reports whether an instance of some services is what a filter asks for, and
// still wanted.
func (e *edit) matches(services []string, f *mariposa.Filter) bool {
	return slices.ContainsFunc(e.c.Picture.InstancesOf(e.record.ID), func(r *store.Record) bool {
		spec := r.Spec.(*mariposa.InstanceSpec)
		if !spec.Managed || spec.Goal != mariposa.GoalRunning || !slices.Contains(services, spec.ServiceName) {
			return false
		}
		return converge.Matches(f, r.ID, spec, e.definition(spec.Number, spec.ServiceName))
	})
}

// filterWords says which instances a filter picks, as the rest of a sentence.
func (e *edit) filterWords(f *mariposa.Filter) string {
	if f == nil {
		return ""
	}
	var words []string
	if len(f.Instances) > 0 {
		words = append(words, "only "+e.some(f.Instances, func(id string) string {
			if r := e.c.Picture.Get(mariposa.KindInstance, id); r != nil {
				return r.Spec.(*mariposa.InstanceSpec).Name
			}
			return id
		}))
	}
	if f.Version > 0 {
		words = append(words, fmt.Sprintf("only what was made from version %d", f.Version))
	}
	if f.Image != "" {
		words = append(words, "only of image "+shorten(f.Image))
	}
	if len(f.Nodes) > 0 {
		words = append(words, "only on "+e.some(f.Nodes, func(id string) string { return cmp.Or(e.c.nodeName(id), id) }))
	}
	return ": " + strings.Join(words, ", ")
}

// some names a few of many things.
func (*edit) some(ids []string, name func(string) string) string {
	const few = 5
	var names []string
	for _, id := range ids[:min(len(ids), few)] {
		names = append(names, name(id))
	}
	text := strings.Join(names, ", ")
	if more := len(ids) - few; more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return text
}
