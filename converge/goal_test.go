package converge

import (
	"reflect"
	"testing"

	"mariposa"
)

func TestWhatAPatchDoesToAGoal(t *testing.T) {
	scaled := func(n int) *mariposa.Service { return def("web", "one", n) }
	silent := func(image string) *mariposa.Service {
		d := def("web", image, 0)
		d.Scale = nil
		return d
	}
	versions := map[int]Definitions{
		1: {"web": scaled(3)},
		2: {"web": scaled(3), "db": def("db", "one", 2)},
		3: {"web": scaled(5)},
		4: {"web": silent("one")},
		5: {"web": silent("two")},
		6: {},
	}
	first := &mariposa.ProjectStatus{
		Goal: mariposa.GoalStarted, Number: 1,
		Services: map[string]*mariposa.ServiceStatus{"web": {ID: "id-of-web", Scale: 7, Number: 1}},
	}
	for _, c := range []struct {
		name    string
		old     *mariposa.ProjectStatus
		patch   mariposa.Patch
		scale   int
		removed bool
		rollout bool
	}{
		{"a first version brings its scale", nil, mariposa.Patch{Number: 1}, 3, false, false},
		{"a first version that does not say has one", nil, mariposa.Patch{Number: 4}, 1, false, false},
		{"a scale that a person set stays while the manifest says the same as before", first, mariposa.Patch{Number: 2}, 7, false, false},
		{"a scale that the manifest changes is applied", first, mariposa.Patch{Number: 3}, 5, false, false},
		{"a scale that the manifest no longer says stays", first, mariposa.Patch{Number: 4}, 7, false, false},
		{"a new definition gets a rollout", first, mariposa.Patch{Number: 5}, 7, false, true},
		{"what is no longer in the manifest is to go", first, mariposa.Patch{Number: 6}, 7, true, false},
		{"a scale is set", first, mariposa.Patch{Scale: map[string]int{"web": 2, "nobody": 1}}, 2, false, false},
		{"a scale is changed by so many", first, mariposa.Patch{ScaleBy: map[string]int{"web": -2}}, 5, false, false},
		{"a scale never goes below nothing", first, mariposa.Patch{ScaleBy: map[string]int{"web": -20}}, 0, false, false},
		{"making anew is a rollout at the same version", first, mariposa.Patch{Reprovision: []string{"web", "nobody"}}, 7, false, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			var before mariposa.ProjectStatus
			if c.old != nil {
				before = *c.old
				web := *c.old.Services["web"]
				before.Services = map[string]*mariposa.ServiceStatus{"web": &web}
			}
			got := Apply(c.old, c.patch, Change{
				Now: dawn, IDs: map[string]string{"web": "id-of-web"},
				Versions: func(n int) Definitions { return versions[n] },
			})
			web := got.Services["web"]
			if web.ID != "id-of-web" || web.Scale != c.scale || web.Removed != c.removed || (web.Rollout != nil) != c.rollout {
				t.Fatalf("web is %+v", web)
			}
			if got.Goal != mariposa.GoalStarted {
				t.Fatalf("goal is %q", got.Goal)
			}
			if c.old != nil && !reflect.DeepEqual(&before, c.old) {
				t.Fatalf("the old goal was touched: %+v", c.old)
			}
		})
	}
}

func TestAServiceThatComesBackIsNoLongerToGo(t *testing.T) {
	w := running(t, def("db", "one", 1), def("web", "one", 2))
	w.submit(def("db", "one", 1))
	w.step()
	w.submit(def("db", "one", 1), def("web", "one", 3))
	w.settle()
	wantServing(t, w, "web", map[string]int{"one": 3})
}

func TestTheSameDefinitionUnderANewNumberLetsTheRolloutGoOn(t *testing.T) {
	w := running(t, def("web", "one", 3))
	w.submit(def("web", "two", 3))
	w.step()
	w.submit(def("web", "two", 3))
	if r := w.status("web").Rollout; r == nil || r.Number != 3 || r.From != 1 {
		t.Fatalf("rollout is %+v", r)
	}
	w.settle()
	wantServing(t, w, "web", map[string]int{"two": 3})
	if w.made != 6 {
		t.Fatalf("%d made, though what was on its way would do", w.made)
	}
}
