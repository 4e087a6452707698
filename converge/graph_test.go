package converge

import (
	"maps"
	"reflect"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"mariposa"
)

// TestAPlanRemembersNothingWrong lets anything happen to a graph whose edges
// change their direction from version to version, and holds every plan, which
// looks only at what may have changed, to that of a view that has never planned.
func TestAPlanRemembersNothingWrong(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		f := &fleet{t: t, graph: []string{"a", "b", "c", "d", "e", "f"}}
		f.world = newWorld(t, f.manifest()...)
		f.budget = rapid.SampledFrom([]int{1, 2, 5, 1000}).Draw(t, "budget")
		b := Budget{Starting: f.budget, Steps: rapid.SampledFrom([]int{0, 1, 3, 100}).Draw(t, "steps")}
		for range rapid.IntRange(1, 40).Draw(t, "events") {
			for range rapid.IntRange(1, 3).Draw(t, "at once") {
				f.event()
			}
			p := f.likeAFreshOne(b)
			if rapid.IntRange(0, 5).Draw(t, "lost") == 0 {
				continue // the commit failed
			}
			f.carryOut(p, len(p.Steps))
		}
	})
}

// likeAFreshOne plans, and holds the plan to that of a fresh view.
func (f *fleet) likeAFreshOne(b Budget) whole {
	p := f.view.Plan(f.now, b)
	if st, can := RollBack(f.goal, f.change()); p.Undo != "" && can {
		f.setGoal(st)
		p = f.view.Plan(f.now, b)
	}
	v := f.fresh()
	want := v.Plan(f.now, b)
	if !reflect.DeepEqual(p, want) {
		f.Fatalf("the plan is\n%s\nbut from scratch\n%s%s", show(whole{Plan: p}), show(whole{Plan: want}), f.story())
	}
	out := whole{Plan: p, Todo: map[string]int{}}
	for name := range v.services {
		if out.Todo[name] = f.view.Todo(name); out.Todo[name] != v.Todo(name) {
			f.Fatalf("%s has %d to do, but from scratch %d%s", name, f.view.Todo(name), v.Todo(name), f.story())
		}
	}
	out.Services = p.Onto(f.goal.Services)
	return out
}

// fresh is a view that is told everything at once.
func (f *fleet) fresh() *View {
	v := NewView()
	for n, d := range f.versions {
		v.SetVersion(n, d)
	}
	v.SetGoal(f.goal)
	for id, n := range f.nodes {
		v.SetNode(id, n)
	}
	for id, i := range f.instances {
		v.SetInstance(id, i.Spec, i.Status)
	}
	return v
}

// drawGraph makes a version of a graph: any service may be missing, and any may
// depend on others that come before it in an order of this version alone.
func (f *fleet) drawGraph() []*mariposa.Service {
	order := rapid.Permutation(f.graph).Draw(f.t, "order")
	var defs []*mariposa.Service
	for i, name := range order {
		if rapid.IntRange(0, 9).Draw(f.t, name+" missing") == 0 {
			order[i] = ""
			continue
		}
		d := f.definition(name)
		for _, on := range order[:i] {
			if on != "" && rapid.IntRange(0, 2).Draw(f.t, name+" on "+on) == 0 {
				d.DependsOn = append(d.DependsOn, on)
			}
		}
		slices.Sort(d.DependsOn)
		defs = append(defs, d)
	}
	return defs
}

// TestEdgesAreIndexedAsTheyAre holds the edges that the view keeps to those that
// its instances and definitions tell.
func TestEdgesAreIndexedAsTheyAre(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		f := &fleet{t: t, graph: []string{"a", "b", "c", "d"}}
		f.world = newWorld(t, f.manifest()...)
		for range rapid.IntRange(1, 30).Draw(t, "events") {
			f.event()
			f.turnAnyhow()
			f.view.Plan(f.now, Budget{Starting: f.budget})
			got, want := f.view.links, f.again().links
			if !reflect.DeepEqual(got.inUse, want.inUse) || !reflect.DeepEqual(byNames(got), byNames(want)) {
				t.Fatalf("the edges are %v %v, from scratch %v %v%s", got.inUse, byNames(got), want.inUse, byNames(want), f.story())
			}
		}
	})
}

func (f *fleet) turnAnyhow() {
	p := f.whole(f.view)
	f.carryOut(p, len(p.Steps))
}

// again is a fresh view that has planned.
func (f *fleet) again() *View {
	v := f.fresh()
	v.Plan(f.now, Budget{Starting: f.budget})
	return v
}

// byNames tells edges from both ends.
func byNames(l links) map[string][]string {
	out := map[string][]string{}
	for on, by := range l.needers {
		for s := range by {
			out["needs "+on] = append(out["needs "+on], s.name)
		}
		slices.Sort(out["needs "+on])
	}
	for _, on := range slices.Sorted(maps.Keys(l.leaners)) {
		out["leans on "+on] = l.leaners[on].Keys()
	}
	return out
}
