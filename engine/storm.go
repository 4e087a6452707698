package engine

import (
	"maps"
	"slices"

	"mariposa/converge"
	"mariposa/picture"
)

// updateStorm decides anew which lost nodes are not given up yet. It returns the projects
// that have instances on nodes for which that changed.
func (e *Engine) updateStorm() []string {
	next := picture.StormIn(e.Picture.Weather(e.StormBreaker))
	old := e.storm.Swap(next)
	if old == nil {
		return nil
	}
	projects := map[string]bool{}
	for node := range stormNodes(old, next) {
		for _, r := range e.Picture.InstancesOn(node) {
			projects[r.Spec().Project] = true
		}
	}
	return slices.Sorted(maps.Keys(projects))
}

// noteUse notes whether a node has instances, and reports whether that changed: only nodes
// with instances count in a storm.
func (e *Engine) noteUse(node string) bool {
	is := e.Picture.HasInstances(node)
	if is == e.used[node] {
		return false
	}
	if is {
		e.used[node] = true
	} else {
		delete(e.used, node)
	}
	return true
}

// stormNodes returns the nodes that are concerned by either of two storms.
func stormNodes(all ...*converge.Storm) map[string]bool {
	nodes := map[string]bool{}
	for _, s := range all {
		maps.Copy(nodes, s.Held)
		for node := range s.After {
			nodes[node] = true
		}
	}
	return nodes
}

// readStorm passes to the view which lost nodes are not given up yet, and the name of the
// project, which the reason about them needs.
func (a *actor) readStorm() {
	if a.record != nil {
		a.view.SetProject(a.record.Spec().Name)
	}
	if storm := a.e.storm.Load(); storm != a.storm {
		a.storm = storm
		a.view.SetStorm(*storm)
	}
}

// Storm returns how many lost nodes are not given up because many were lost at once.
func (e *Engine) Storm() (held, slowed int) {
	s := e.storm.Load()
	return len(s.Held), len(s.After)
}
