package converge

import (
	"slices"

	"mariposa"
)

// Matches reports whether a filter picks an instance. Def is the definition
// that the instance was made from, nil if it is lost; a filter by image then
// picks nothing. A nil filter picks every instance.
func Matches(f *mariposa.Filter, id string, spec *mariposa.InstanceSpec, def *mariposa.Service) bool {
	if f == nil {
		return true
	}
	return (f.Image == "" || def != nil && def.Image == f.Image) &&
		(f.Version == 0 || f.Version == spec.Number) &&
		(len(f.Instances) == 0 || slices.Contains(f.Instances, id)) &&
		(len(f.Nodes) == 0 || slices.Contains(f.Nodes, spec.Node))
}
