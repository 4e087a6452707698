package api

import (
	"maps"
	"slices"
	"strings"

	"mariposa"
	"mariposa/converge"
	"mariposa/manifest"
	"mariposa/picture"
	"mariposa/queue"
)

// difference is what a version has that is other than it was.
type difference struct {
	diffs   []manifest.Difference
	changed []string // services that differ, in definition or values
	moved   []string // services that differ in values alone, and are to take them up
}

// services are what a version is compared with: as its manifest has them, and
// with the values in them.
type services struct {
	manifest *manifest.Project
	bound    converge.Definitions
}

// asIn are the services of a version; of none there are none.
func asIn(v *picture.Version) services {
	if v == nil {
		return services{}
	}
	return services{v.Manifest, v.Services}
}

// differ finds what differs from services that there were.
func differ(was services, is *manifest.Project, bound converge.Definitions) difference {
	d := difference{diffs: manifest.Diff(was.manifest, is)}
	d.changed = manifest.Changed(d.diffs)
	for name, def := range bound {
		old := was.bound[name]
		if old == nil || old.Digest == def.Digest || mariposa.FormOf(old.Digest) != mariposa.FormOf(def.Digest) {
			continue
		}
		if def.Update.OnMetadata == mariposa.OnMetadataReprovision {
			d.moved = append(d.moved, name)
		}
		if !slices.Contains(d.changed, name) {
			d.changed = append(d.changed, name)
		}
	}
	slices.Sort(d.changed)
	slices.Sort(d.moved)
	return d
}

// fromForce finds what a version in the making differs in from a goal, service by
// service: each may be at another version.
func (e *edit) fromForce(m *made, goal *mariposa.ProjectStatus) (difference, error) {
	was := services{&manifest.Project{}, converge.Definitions{}}
	if goal == nil {
		return differ(was, m.manifest, e.fresh), nil
	}
	versions := map[int]*picture.Version{}
	for _, name := range slices.Sorted(maps.Keys(goal.Services)) {
		ss := goal.Services[name]
		if ss.Removed {
			continue
		}
		v, known := versions[ss.Number]
		if !known {
			var err error
			if v, err = e.readable(ss.Number); err != nil {
				return difference{}, err
			}
			versions[ss.Number] = v
		}
		if v == nil { // it is lost: whatever there is differs
			continue
		}
		at, there := slices.BinarySearchFunc(v.Manifest.Services, name, func(s *mariposa.Service, name string) int { return strings.Compare(s.Name, name) })
		if there {
			was.manifest.Services = append(was.manifest.Services, v.Manifest.Services[at])
			was.bound[name] = v.Services[name]
		}
	}
	return differ(was, m.manifest, e.fresh), nil
}

// seesTo is what the task that brings a version into force does, and to which
// services. It sees to all that differs from the newest version, to all that differs
// from what is in force without it (the newest may have been taken back, or may
// never have come), and to what the tasks that it ends had not finished. The more
// it sees to, the more of those may end.
func (e *edit) seesTo(m *made) (mariposa.TaskKind, []string, error) {
	diffs, scope := slices.Clone(m.diffs), slices.Clone(m.changed)
	for {
		kind := kindOf(diffs)
		ends, left := e.wouldEnd(kind, scope)
		goal, err := e.without(ends, nil)
		if err != nil {
			return "", nil, err
		}
		work, err := e.fromForce(m, goal)
		if err != nil {
			return "", nil, err
		}
		more := union(scope, work.changed, left)
		diffs = append(diffs, work.diffs...)
		if len(more) == len(scope) && kindOf(diffs) == kind {
			return kind, scope, nil
		}
		scope = more
	}
}

// brings are the services of a task for those that take other values up: where the
// manifest that it brings with them is not in force, all that differs.
func (e *edit) brings(m *made) ([]string, error) {
	st := statusOf(e.record)
	if st == nil { // the first task, which goes before it, sees to the rest
		return m.moved, nil
	}
	work, err := e.fromForce(m, st)
	if err != nil {
		return nil, err
	}
	return union(m.moved, work.moved, manifest.Changed(work.diffs)), nil
}

// wouldEnd are the tasks that one in a scope would end, and what those that are at
// work have left to do.
func (e *edit) wouldEnd(kind mariposa.TaskKind, scope []string) (ends map[string]bool, left []string) {
	admission, err := queue.Admit(e.tasks, &mariposa.TaskSpec{Task: kind, Services: scope, Origin: mariposa.OriginUser})
	if err != nil {
		return nil, nil // it will be refused
	}
	ends = map[string]bool{}
	st := statusOf(e.record)
	for _, t := range admission.Terminate {
		ends[t.ID] = true
		if st == nil || t.State() != mariposa.TaskActive || t.Spec.Patch.Number == 0 {
			continue
		}
		for _, name := range t.Spec.Services {
			if ss := st.Services[name]; ss != nil && unfinished(ss.Status) {
				left = append(left, name)
			}
		}
	}
	return ends, left
}

// unfinished reports whether there is something to do for a service that nobody
// holds back.
func unfinished(s mariposa.Status) bool {
	return s == mariposa.StatusConverging || s == mariposa.StatusBackingOff || s == mariposa.StatusBlocked
}

// union is every name once, in order; nil where there is none.
func union(lists ...[]string) []string {
	all := slices.Concat(lists...)
	slices.Sort(all)
	return slices.Compact(all)
}

// kindOf is what a task does that brings a version into force: where nothing but
// scales changed, it scales.
func kindOf(diffs []manifest.Difference) mariposa.TaskKind {
	scaled := false
	for _, d := range diffs {
		switch d.Change {
		case manifest.Unchanged:
		case manifest.Scaled:
			scaled = true
		default:
			return mariposa.TaskReprovision
		}
	}
	if scaled {
		return mariposa.TaskScale
	}
	return mariposa.TaskReprovision
}
