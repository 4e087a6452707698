package change

import (
	"maps"
	"slices"
	"strconv"

	"mariposa"
	"mariposa/contract"
	"mariposa/manifest"
)

// networksAndVolumes describes the change of each network and volume from the manifest
// in force to that of a goal.
func (e *edit) networksAndVolumes(m *draftResult, goal *mariposa.ProjectStatus) ([]contract.PlanResource, error) {
	before, err := e.manifestOf(e.record.Status())
	if err != nil {
		return nil, err
	}
	var after *manifest.Project
	if m != nil {
		after = m.manifest
	} else if after, err = e.manifestOf(goal); err != nil {
		return nil, err
	}
	networks := diffResources("network", networkFields(before), networkFields(after), manifest.Replaced, manifest.Removed)
	volumes := diffResources("volume", volumeFields(before), volumeFields(after), manifest.Updated, kept)
	return append(networks, volumes...), nil
}

// kept is the change of a volume that the manifest no longer names: its data stays.
const kept manifest.Change = "keep"

// manifestOf returns the manifest that a goal brings into force; an empty one if there
// is none or it is lost.
func (e *edit) manifestOf(goal *mariposa.ProjectStatus) (*manifest.Project, error) {
	if goal == nil || goal.Number == 0 {
		return &manifest.Project{}, nil
	}
	v, err := e.readVersion(goal.Number)
	if err != nil || v == nil {
		return &manifest.Project{}, err
	}
	return v.Manifest, nil
}

func networkFields(p *manifest.Project) map[string][]contract.FieldDiff {
	all := map[string][]contract.FieldDiff{}
	for _, n := range p.Networks {
		all[n.Name] = []contract.FieldDiff{{Field: "shared", After: strconv.FormatBool(n.Shared)}}
	}
	return all
}

func volumeFields(p *manifest.Project) map[string][]contract.FieldDiff {
	all := map[string][]contract.FieldDiff{}
	for _, v := range p.Volumes {
		size := ""
		if v.Size > 0 {
			size = strconv.FormatInt(v.Size, 10) // as the memory of services
		}
		all[v.Name] = []contract.FieldDiff{{Field: "shared", After: strconv.FormatBool(v.Shared)}, {Field: "size", After: size}}
	}
	return all
}

// diffResources compares resources that have the same fields. Differs is the change of
// one whose fields differ, dropped that of one that is no longer there.
func diffResources(kind string, before, after map[string][]contract.FieldDiff, differs, dropped manifest.Change) []contract.PlanResource {
	names := maps.Clone(before)
	maps.Copy(names, after)
	var docs []contract.PlanResource
	for _, name := range slices.Sorted(maps.Keys(names)) {
		doc := contract.PlanResource{Kind: kind, Name: name, Change: string(manifest.Unchanged), Fields: []contract.FieldDiff{}}
		was, had := before[name]
		is, has := after[name]
		switch {
		case !had:
			doc.Change = string(manifest.Created)
		case !has:
			doc.Change = string(dropped)
		case !slices.Equal(was, is):
			doc.Change = string(differs)
			for n := range is {
				if was[n] != is[n] {
					doc.Fields = append(doc.Fields, contract.FieldDiff{Field: is[n].Field, Before: was[n].After, After: is[n].After})
				}
			}
		}
		docs = append(docs, doc)
	}
	return docs
}
