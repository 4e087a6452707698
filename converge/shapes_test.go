package converge

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"mariposa"
)

// This file generates histories that failed before. Random single events would produce
// them once in a few thousand cases.

// TestTheRulesHoldInAnyGraph is TestTheRulesHoldWhateverHappens with edges that may be
// inverted from version to version.
func TestTheRulesHoldInAnyGraph(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		f := &randomProject{t: t, graph: []string{"a", "b", "c", "d"}}
		f.world = newWorld(t, f.manifest()...)
		f.budget = rapid.SampledFrom([]int{1, 2, 5, 1000}).Draw(t, "budget")
		f.turn()
		for range rapid.IntRange(1, 40).Draw(t, "events") {
			f.event()
			f.turn()
		}
		f.faultsEnd()
	})
}

// shape performs the start of a difficult history, at its own pace.
func (f *randomProject) shape() {
	shapes := []string{"frozen follower", "removed and back", "mended cause", "volume", "scaled down"}
	if len(f.graph) > 0 {
		shapes = append(shapes, "inverted", "inverted")
	}
	what := rapid.SampledFrom(shapes).Draw(f.t, "shape")
	target, follower := f.pair()
	f.history = append(f.history, fmt.Sprintf("%s %s: %s refers to %s", stamp(f.now), what, follower, target))
	f.goOn(8)
	switch what {
	case "frozen follower":
		f.mode(mariposa.ModeFreeze, follower)
		for range rapid.IntRange(2, 3).Draw(f.t, "updates") {
			f.submit(f.changed(target)...)
			f.goOn(6)
		}
		f.mode(mariposa.ModeThaw, follower)
	case "removed and back":
		f.removedAndBack(rapid.SampledFrom([]string{target, follower}).Draw(f.t, "removed"))
	case "mended cause":
		f.mendedCause(target, follower)
	case "volume":
		defs := f.changed(target, follower)
		defs[f.at(defs, target)].Update.StopFirst = true
		f.submit(defs...)
	case "scaled down":
		f.submit(f.changed(target, follower)...)
		f.goOn(4)
		f.scale(target, 1)
	case "inverted":
		f.inverted(target, follower)
	}
	f.goOn(6)
}

// removedAndBack removes a service and everything that refers to it from the manifest,
// and adds a different one with the same name while that is in progress.
func (f *randomProject) removedAndBack(name string) {
	before := f.inForce()
	without := slices.DeleteFunc(f.inForce(), func(d *mariposa.Service) bool { return d.Name == name })
	for _, d := range without {
		dropEdges(d, func(on string) bool { return on == name })
	}
	f.submit(without...)
	f.goOn(4)
	if at := f.at(before, name); at >= 0 && rapid.Bool().Draw(f.t, "as another") {
		f.setImage(before[at])
	}
	f.submit(before...)
}

// mendedCause lets a service fail because of the definition of another one, and then
// changes the other one.
func (f *randomProject) mendedCause(target, follower string) {
	defs := f.changed(target, follower)
	bad := defs[f.at(defs, target)].Image
	f.cause = func(id string) bool {
		if f.instances[id].Spec.ServiceName != follower {
			return false
		}
		return slices.ContainsFunc(slices.Collect(maps.Values(f.instances)), func(i *Instance) bool {
			d := f.versions[i.Spec.Number][target]
			return i.Spec.ServiceName == target && d != nil && d.Image == bad && f.isAlive(i)
		})
	}
	f.submit(defs...)
	f.goOn(12)
	f.submit(f.changed(target)...)
}

// inverted inverts the reference between two services, and may change it back before that
// is complete.
func (f *randomProject) inverted(target, follower string) {
	defs := f.changed(rapid.SampledFrom([]string{target, follower}).Draw(f.t, "changed too"))
	for _, d := range defs {
		dropEdges(d, func(string) bool { return true })
	}
	refersTo(follower + ".id")(defs[f.at(defs, target)])
	f.submit(defs...)
	f.goOn(6)
	switch rapid.SampledFrom([]string{"neither", "scale down", "leave"}).Draw(f.t, "then") {
	case "neither":
		defs := f.changed(target, follower)
		for _, d := range defs {
			dropEdges(d, func(string) bool { return true })
		}
		f.submit(defs...)
	case "scale down":
		f.scale(target, 1)
	}
}

// pair finds two services of which the second refers to an instance of the first in the
// current version. If there are none, it submits some.
func (f *randomProject) pair() (target, follower string) {
	for _, d := range f.inForce() {
		for _, r := range d.Refs {
			if on := f.goal.Services[r.Service]; isAboutOne(r) && on != nil && on.Scale > 0 && f.goal.Services[d.Name].Scale > 0 {
				return r.Service, d.Name
			}
		}
	}
	names := []string{"db", "app", "web"}
	if len(f.graph) > 0 {
		names = rapid.Permutation(f.graph).Draw(f.t, "pair")
	}
	target, follower = names[0], names[1]
	var defs []*mariposa.Service
	for _, d := range f.inForce() {
		if d.Name != target && d.Name != follower {
			dropEdges(d, func(string) bool { return true })
			defs = append(defs, d)
		}
	}
	for _, name := range []string{target, follower} {
		d := f.definition(name)
		scale := rapid.IntRange(1, 3).Draw(f.t, name+" at least")
		d.Scale, d.Needs, d.Update.Canary = &scale, nil, mariposa.Amount{}
		defs = append(defs, d)
	}
	refersTo(target + ".id")(defs[len(defs)-1])
	f.submit(defs...)
	return target, follower
}

// goOn continues without faults for some rounds.
func (f *randomProject) goOn(most int) {
	for range rapid.IntRange(0, most).Draw(f.t, "rounds") {
		f.turn()
		moving := f.moving()
		for _, id := range moving {
			f.move(id)
		}
		if p := f.plan(); len(moving) == 0 && len(p.Steps) == 0 && p.Wake.After(f.now) {
			f.now = p.Wake
		}
	}
}

// inForce returns copies of the current definitions, by name.
func (f *randomProject) inForce() []*mariposa.Service {
	var defs []*mariposa.Service
	for _, name := range slices.Sorted(maps.Keys(f.versions[f.goal.Number])) {
		d := *f.versions[f.goal.Number][name]
		d.DependsOn, d.Refs, d.LiveRefs = slices.Clone(d.DependsOn), slices.Clone(d.Refs), slices.Clone(d.LiveRefs)
		defs = append(defs, &d)
	}
	return defs
}

func (f *randomProject) at(defs []*mariposa.Service, name string) int {
	return slices.IndexFunc(defs, func(d *mariposa.Service) bool { return d.Name == name })
}

// changed returns the current definitions with new images for some services. A missing
// one is added again.
func (f *randomProject) changed(names ...string) []*mariposa.Service {
	defs := f.inForce()
	for _, name := range names {
		at := f.at(defs, name)
		if at < 0 {
			defs, at = append(defs, def(name, "one", 1)), len(defs)
		}
		f.setImage(defs[at])
	}
	return defs
}

// setImage sets an image that was never used before.
func (f *randomProject) setImage(d *mariposa.Service) {
	d.Image = fmt.Sprintf("image%d", len(f.versions)+1)
	form, values, valued := strings.Cut(d.Digest, ".")
	_, refs, refer := strings.Cut(form, "+")
	if d.Digest = d.Image; refer {
		d.Digest += "+" + refs
	}
	if valued {
		d.Digest += "." + values
	}
}

// dropEdges removes edges from a definition. Its references are part of its form.
func dropEdges(d *mariposa.Service, which func(on string) bool) {
	to := func(r mariposa.Ref) bool { return which(r.Service) }
	d.DependsOn = slices.DeleteFunc(d.DependsOn, which)
	d.LiveRefs = slices.DeleteFunc(d.LiveRefs, to)
	if !slices.ContainsFunc(d.Refs, to) {
		return
	}
	left := slices.DeleteFunc(d.Refs, to)
	form, values, valued := strings.Cut(d.Digest, ".")
	d.Digest, _, _ = strings.Cut(form, "+")
	d.Refs = nil
	for _, r := range left {
		refersTo(r.Service + "." + r.Field)(d)
	}
	if valued {
		d.Digest += "." + values
	}
}
