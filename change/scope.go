package change

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

// difference describes how a version differs from an earlier state.
type difference struct {
	diffs         []manifest.Difference
	changed       []string // services that differ, in definition or values
	toReprovision []string // services that differ in values alone, and are reprovisioned for them
}

// services are the services that a version is compared with: as in the manifest, and
// with values filled in.
type services struct {
	manifest *manifest.Project
	bound    converge.Definitions
}

// servicesOf returns the services of a version; none for nil.
func servicesOf(v *picture.Version) services {
	if v == nil {
		return services{}
	}
	return services{v.Manifest, v.Services}
}

// differ compares a version with former services.
func differ(was services, is *manifest.Project, bound converge.Definitions) difference {
	d := difference{diffs: manifest.Diff(was.manifest, is)}
	manifest.AddImages(d.diffs, was.bound, bound)
	d.changed = manifest.Changed(d.diffs)
	for name, def := range bound {
		old := was.bound[name]
		if old == nil || old.Digest == def.Digest || mariposa.FormOf(old.Digest) != mariposa.FormOf(def.Digest) {
			continue
		}
		if def.Update.OnMetadata == mariposa.OnMetadataReprovision {
			d.toReprovision = append(d.toReprovision, name)
		}
		if !slices.Contains(d.changed, name) {
			d.changed = append(d.changed, name)
		}
	}
	slices.Sort(d.changed)
	slices.Sort(d.toReprovision)
	return d
}

// diffFromGoal compares the version being created with a goal, service by service: each
// may be at another version.
func (e *edit) diffFromGoal(m *draftResult, goal *mariposa.ProjectStatus) (difference, error) {
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
			if v, err = e.readVersion(ss.Number); err != nil {
				return difference{}, err
			}
			versions[ss.Number] = v
		}
		if v == nil { // it is lost: everything differs
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

// completeTask completes the task that brings a version into force: its kind and its
// services. The task also retries rollouts that have stopped by themselves.
func (e *edit) completeTask(m *draftResult, t mariposa.TaskSpec) (mariposa.TaskSpec, error) {
	goal := e.record.Status()
	diff := m.toQueue()
	if again := converge.RetriedServices(goal); len(again) > 0 {
		diff.Services, diff.Other = union(diff.Services, again), true
	}
	return queue.CompleteVersionTask(e.tasks, goal, t, diff, func(ended map[string]bool) (queue.Difference, error) {
		goal, err := e.goalWithout(ended, nil)
		if err != nil {
			return queue.Difference{}, err
		}
		d, err := e.diffFromGoal(m, goal)
		return d.toQueue(), err
	})
}

// toQueue summarizes a difference for the queue.
func (d difference) toQueue() queue.Difference {
	w := queue.Difference{Services: d.changed}
	for _, one := range d.diffs {
		switch one.Change {
		case manifest.Unchanged:
		case manifest.Scaled:
			w.Scaled = true
		default:
			w.Other = true
		}
	}
	return w
}

// servicesToUpdate returns the services of a task that applies new values. If the
// manifest of the version is not in force either, these are all services that differ.
func (e *edit) servicesToUpdate(m *draftResult) ([]string, error) {
	st := e.record.Status()
	if st == nil { // the first task, which comes before it, updates the rest
		return m.toReprovision, nil
	}
	work, err := e.diffFromGoal(m, st)
	if err != nil {
		return nil, err
	}
	return union(m.toReprovision, work.toReprovision, manifest.Changed(work.diffs), converge.RetriedServices(st)), nil
}

// union returns every name once, sorted; nil if there are none.
func union(lists ...[]string) []string {
	all := slices.Concat(lists...)
	slices.Sort(all)
	return slices.Compact(all)
}
