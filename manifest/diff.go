package manifest

import (
	"slices"
	"strings"

	"mariposa"
)

// Difference is how one service differs between two versions.
type Difference struct {
	Service string        `json:"service"`
	Change  Change        `json:"change"`
	Fields  []FieldChange `json:"fields,omitempty"` // sorted by field; none for created and removed services
}

// Change names what happens to a service.
type Change string

const (
	Created   Change = "create"
	Removed   Change = "delete"
	Replaced  Change = "replace" // its instances need a new incarnation
	Updated   Change = "update"  // in place
	Scaled    Change = "scale"   // only the scale
	Unchanged Change = "unchanged"
)

// FieldChange is a field that differs, with both values as text. Interpolations
// are shown unresolved; an empty text means no value.
type FieldChange struct {
	Field string `json:"field"`
	Old   string `json:"old"`
	New   string `json:"new"`
}

// Diff compares two versions of a project, service by service in the order of their
// names. Old is nil for the first version; new is nil for a deleted project.
func Diff(old, new *Project) []Difference {
	if old == nil {
		old = &Project{}
	}
	if new == nil {
		new = &Project{}
	}
	var diffs []Difference
	i, j := 0, 0
	for i < len(old.Services) || j < len(new.Services) {
		switch {
		case j == len(new.Services) || i < len(old.Services) && old.Services[i].Name < new.Services[j].Name:
			diffs = append(diffs, Difference{Service: old.Services[i].Name, Change: Removed})
			i++
		case i == len(old.Services) || new.Services[j].Name < old.Services[i].Name:
			diffs = append(diffs, Difference{Service: new.Services[j].Name, Change: Created})
			j++
		default:
			diffs = append(diffs, diffService(old.Services[i], new.Services[j]))
			i++
			j++
		}
	}
	return diffs
}

// The fields of what an image means. No manifest has them.
const (
	imageDigest   = "image.digest"
	imageVersion  = "image.version"
	imageRevision = "image.revision"
)

// AddImages adds to differences what images mean in both versions, by the bound services.
func AddImages(diffs []Difference, old, new map[string]*mariposa.Service) {
	for i := range diffs {
		d := &diffs[i]
		was, is := old[d.Service], new[d.Service]
		if was == nil || is == nil || imageDigestOf(was) == imageDigestOf(is) {
			continue
		}
		d.Change = Replaced
		d.Fields = append(slices.Clone(d.Fields), FieldChange{Field: imageDigest, Old: imageDigestOf(was), New: imageDigestOf(is)})
		a, b := was.ImageLabels, is.ImageLabels
		for _, c := range []FieldChange{{Field: imageVersion, Old: a.Version, New: b.Version}, {Field: imageRevision, Old: a.Revision, New: b.Revision}} {
			if c.Old != c.New {
				d.Fields = append(d.Fields, c)
			}
		}
		slices.SortFunc(d.Fields, func(a, b FieldChange) int { return strings.Compare(a.Field, b.Field) })
	}
}

// imageDigestOf returns the digest of a bound service's image; empty if it is not known.
func imageDigestOf(s *mariposa.Service) string {
	if HasImage(s) && s.ImageDigest == "" {
		return DigestIn(s.Image)
	}
	return s.ImageDigest
}

// Changed lists the names of the services that differ at all.
func Changed(diffs []Difference) []string {
	var names []string
	for _, d := range diffs {
		if d.Change != Unchanged {
			names = append(names, d.Service)
		}
	}
	return names
}

func diffService(old, new *mariposa.Service) Difference {
	d := Difference{Service: new.Name, Change: Unchanged, Fields: diffFacets(facets(old), facets(new))}
	if new.Scale == nil { // the scale stays as it is
		d.Fields = slices.DeleteFunc(d.Fields, func(f FieldChange) bool { return f.Field == "scale" })
	}
	switch {
	case old.Digest != new.Digest:
		d.Change = Replaced
	case len(d.Fields) == 1 && d.Fields[0].Field == "scale":
		d.Change = Scaled
	case len(d.Fields) > 0:
		d.Change = Updated
	}
	return d
}

// diffFacets merges two sorted lists into the fields that differ.
func diffFacets(old, new []facet) (fields []FieldChange) {
	for len(old) > 0 || len(new) > 0 {
		switch {
		case len(new) == 0 || len(old) > 0 && old[0].name < new[0].name:
			fields = append(fields, FieldChange{Field: old[0].name, Old: old[0].show()})
			old = old[1:]
		case len(old) == 0 || new[0].name < old[0].name:
			fields = append(fields, FieldChange{Field: new[0].name, New: new[0].show()})
			new = new[1:]
		default:
			if !slices.Equal(old[0].parts, new[0].parts) {
				fields = append(fields, FieldChange{Field: new[0].name, Old: old[0].show(), New: new[0].show()})
			}
			old, new = old[1:], new[1:]
		}
	}
	return fields
}
