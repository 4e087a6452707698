package converge

import (
	"slices"

	"mariposa"
)

// Matches reports whether a filter selects an instance. def is the definition that the
// instance was created from, or nil if it is lost; then a filter by image selects
// nothing. A nil filter selects every instance.
func Matches(f *mariposa.Filter, id string, spec *mariposa.InstanceSpec, def *mariposa.Service) bool {
	if f == nil {
		return true
	}
	return (f.Image == "" || def != nil && def.Image == f.Image) &&
		(f.Version == 0 || f.Version == spec.Number) &&
		(len(f.Instances) == 0 || slices.Contains(f.Instances, id)) &&
		(len(f.Nodes) == 0 || slices.Contains(f.Nodes, spec.Node))
}
