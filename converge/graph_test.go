package converge

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"mariposa"
)

// TestAPlanRemembersNothingWrong applies random events to a graph whose edges change
// their direction from version to version. It compares every plan, which visits only what
// may have changed, with the plan of a fresh view.
func TestAPlanRemembersNothingWrong(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		f := &randomProject{t: t, graph: []string{"a", "b", "c", "d", "e", "f"}}
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

// likeAFreshOne plans, and compares the plan with that of a fresh view.
func (f *randomProject) likeAFreshOne(b Budget) whole {
	p := f.view.Plan(f.now, b)
	if st, can := RollBack(f.goal, f.change()); p.Rollback != "" && can {
		f.setGoal(st)
		p = f.view.Plan(f.now, b)
	}
	v := f.fresh()
	want := v.Plan(f.now, b)
	if !reflect.DeepEqual(p, want) {
		f.Fatalf("the plan is\n%s\nbut from scratch\n%s%s", fmt.Sprintf("%+v", p), fmt.Sprintf("%+v", want), f.formatHistory())
	}
	out := whole{Plan: p, Todo: map[string]int{}}
	for _, name := range serviceNames(v) {
		if out.Todo[name] = f.view.Todo(name); out.Todo[name] != v.Todo(name) {
			f.Fatalf("%s has %d to do, but from scratch %d%s", name, f.view.Todo(name), v.Todo(name), f.formatHistory())
		}
	}
	out.Services = p.ApplyTo(f.goal.Services)
	return out
}

// fresh returns a view that was given everything at once.
func (f *randomProject) fresh() *View {
	v := NewView()
	for n, d := range f.versions {
		v.SetVersion(n, d)
	}
	v.SetGoal(f.goal)
	for id, n := range f.nodes {
		v.SetNode(id, n)
	}
	v.SetStorm(f.storm)
	for id, i := range f.instances {
		v.SetInstance(id, i.Spec, i.Status)
	}
	return v
}

// drawGraph creates a version of a graph: any service may be missing, and any may depend
// on others that come before it in the order of this version.
func (f *randomProject) drawGraph() []*mariposa.Service {
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
				f.lean(d, on)
			}
		}
		slices.Sort(d.DependsOn)
		defs = append(defs, d)
	}
	return defs
}

// TestEdgesAreIndexedAsTheyAre compares the edges in the view with those of its instances
// and definitions.
func TestEdgesAreIndexedAsTheyAre(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		f := &randomProject{t: t, graph: []string{"a", "b", "c", "d"}}
		f.world = newWorld(t, f.manifest()...)
		for range rapid.IntRange(1, 30).Draw(t, "events") {
			f.event()
			f.turnAnyhow()
			f.view.Plan(f.now, Budget{Starting: f.budget})
			if got, want := edgesOf(f.view), edgesOf(f.again()); !reflect.DeepEqual(got, want) {
				t.Fatalf("the edges are %v, from scratch %v%s", got, want, f.formatHistory())
			}
		}
	})
}

func (f *randomProject) turnAnyhow() {
	p := f.whole(f.view)
	f.carryOut(p, len(p.Steps))
}

// again returns a fresh view that has planned.
func (f *randomProject) again() *View {
	v := f.fresh()
	v.Plan(f.now, Budget{Starting: f.budget})
	return v
}

// TestRandomGraphsComeToRest changes a random graph at random times while nodes come and
// go, then lets it settle: there is one instance in each slot, nothing unneeded is left,
// and nothing was removed before its dependents.
func TestRandomGraphsComeToRest(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		f := &randomProject{t: t, graph: []string{"a", "b", "c", "d", "e"}}
		f.world = newWorld(t, f.manifest()...)
		for range rapid.IntRange(0, 20).Draw(t, "events") {
			f.event()
			f.endsInOrder()
		}
		f.cause = nil
		for n := range f.nodes {
			f.comeBack(n)
		}
		f.leavesRoom()
		f.mode(mariposa.ModeThaw)
		f.mode(mariposa.ModeResume)
		f.aim(mariposa.GoalStarted)
		f.submit(f.soundGraph()...)
		for name, ss := range f.goal.Services {
			if ss.Scale == 0 {
				f.scale(name, 1) // others may refer to it
			}
		}
		for f.endsInOrder() > 0 {
			f.each(f.moving(), f.move)
		}
		f.settle()
		for _, name := range serviceNames(f.view) {
			scale, up := f.goal.Services[name].Scale, countOf(f.view, name, serving)
			f.refersToTheLiving(name)
			if instances, slots := sizeOf(f.view, name); slots != scale || up != scale || instances != scale {
				t.Fatalf("%s has %d instances in %d slots, %d serve, and the scale is %d%s", name, instances, slots, up, scale, f.formatHistory())
			}
		}
	})
}

// soundGraph returns a version that is reachable without user action.
func (f *randomProject) soundGraph() []*mariposa.Service {
	defs := f.drawGraph()
	for _, d := range defs {
		d.Needs, d.Update.Canary, d.Update.Deadline = nil, mariposa.Amount{}, 0
		form, values, valued := strings.Cut(d.Digest, ".")
		if d.Digest = form + "-sound"; valued {
			d.Digest += "." + values
		}
	}
	return defs
}

// endsInOrder plans and executes the plan, and checks that services end after their
// dependents. It returns the number of steps.
func (f *randomProject) endsInOrder() int {
	p := f.plan()
	for _, step := range p.Steps {
		if (step.Action == Remove || step.Action == Preserve) && f.instances[step.Instance].Spec.Goal == mariposa.GoalRunning {
			f.leanedOnByNobody(p, step)
		}
	}
	f.carryOut(p, len(p.Steps))
	return len(p.Steps)
}
