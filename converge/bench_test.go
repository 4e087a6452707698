package converge

import (
	"fmt"
	"testing"
	"time"

	"mariposa"
)

const many = 100_000

// crowd returns a view of one service with n serving instances.
func crowd(n int, more ...func(*mariposa.Service)) *View {
	v := NewView()
	v.SetVersion(1, Definitions{"web": def("web", "one", n, more...)})
	v.SetGoal(&mariposa.ProjectStatus{
		Goal: mariposa.GoalStarted, Number: 1,
		Services: map[string]*mariposa.ServiceStatus{"web": {ID: "web", Scale: n, Number: 1}},
	})
	for i := range 100 {
		v.SetNode(node(i), Node{Name: node(i)})
	}
	for slot := 1; slot <= n; slot++ {
		v.SetInstance(crowdID(slot), crowdSpec(slot), up)
	}
	return v
}

var (
	up   = &mariposa.InstanceStatus{State: mariposa.StateRunning, Since: dawn, Generation: 1}
	down = &mariposa.InstanceStatus{State: mariposa.StateFailed, Since: dawn, Generation: 1, Reason: "exited with 1"}
)

func node(i int) string       { return fmt.Sprintf("n%d", i%100) }
func crowdID(slot int) string { return fmt.Sprintf("%032x", slot) }

func crowdSpec(slot int) *mariposa.InstanceSpec {
	return &mariposa.InstanceSpec{
		Name: "web", Slot: slot, ServiceName: "web", Number: 1, Digest: "one", Node: node(slot),
		Goal: mariposa.GoalRunning, Generation: 1, Created: dawn.Add(-time.Duration(1+slot/1000) * time.Second), Managed: true,
	}
}

// oneChange lets one of many instances fail and come back, and plans after each change.
func oneChange(v *View) func() {
	id, spec := crowdID(many/2), crowdSpec(many/2)
	return func() {
		v.SetInstance(id, spec, down)
		if p := v.Plan(dawn, Budget{Starting: 100}); len(p.Steps) != 2 {
			panic(show(whole{Plan: p}))
		}
		v.SetInstance(id, spec, up)
		if p := v.Plan(dawn, Budget{Starting: 100}); len(p.Steps) != 0 {
			panic(show(whole{Plan: p}))
		}
	}
}

func TestOneChangeCostsTheSameHoweverManyThereAre(t *testing.T) {
	v := crowd(many)
	if n := testing.AllocsPerRun(100, oneChange(v)); n > 100 {
		t.Errorf("two changes and two plans of %d instances make %.0f allocations", many, n)
	}
	id, spec := crowdID(7), crowdSpec(7)
	if n := testing.AllocsPerRun(100, func() { v.SetInstance(id, spec, up) }); n > 10 {
		t.Errorf("telling an instance makes %.0f allocations", n)
	}
}

func BenchmarkPlanOneChangeOf100k(b *testing.B) {
	change := oneChange(crowd(many))
	b.ReportAllocs()
	for b.Loop() {
		change()
	}
}

func BenchmarkPlanAtRest100k(b *testing.B) {
	v := crowd(many)
	b.ReportAllocs()
	for b.Loop() {
		v.Plan(dawn, Budget{Starting: 100})
	}
}

func BenchmarkPlanCreating5kOf100k(b *testing.B) {
	v := crowd(many - 5000)
	v.SetGoal(&mariposa.ProjectStatus{
		Goal: mariposa.GoalStarted, Number: 1,
		Services: map[string]*mariposa.ServiceStatus{"web": {ID: "web", Scale: many, Number: 1}},
	})
	b.ReportAllocs()
	for b.Loop() {
		if p := v.Plan(dawn, Budget{Starting: 5000}); len(p.Steps) != 5000 {
			b.Fatal(len(p.Steps))
		}
	}
}

// benchmarkRollout plans in the middle of a rollout: half is done, and a batch is
// starting.
func benchmarkRollout(b *testing.B, more ...func(*mariposa.Service)) {
	v := crowd(many, more...)
	v.SetVersion(2, Definitions{"web": def("web", "two", many, append(more, rolling("100"))...)})
	v.SetGoal(&mariposa.ProjectStatus{
		Goal: mariposa.GoalStarted, Number: 2,
		Services: map[string]*mariposa.ServiceStatus{"web": {
			ID: "web", Scale: many, Number: 2, Rollout: &mariposa.Rollout{Number: 2, From: 1, Progress: dawn},
		}},
	})
	for slot := 1; slot <= many/2; slot++ {
		spec := crowdSpec(slot)
		spec.Number, spec.Digest = 2, "two"
		v.SetInstance(crowdID(slot), spec, up)
	}
	b.ReportAllocs()
	for b.Loop() {
		v.Plan(dawn, Budget{Starting: 1000})
	}
}

func BenchmarkPlanStartFirstRolloutOf100k(b *testing.B) { benchmarkRollout(b) }
func BenchmarkPlanStopFirstRolloutOf100k(b *testing.B)  { benchmarkRollout(b, stopFirst) }

func BenchmarkPlanWithALostNodeOf1000(b *testing.B) {
	v := crowd(many)
	v.SetNode(node(1), Node{Name: node(1), Unknown: true, Since: dawn})
	b.ReportAllocs()
	for b.Loop() {
		v.Plan(dawn, Budget{Starting: 1000})
	}
}

func BenchmarkSetInstance(b *testing.B) {
	v := crowd(many)
	ids, specs := make([]string, 1000), make([]*mariposa.InstanceSpec, 1000)
	for i := range ids {
		ids[i], specs[i] = crowdID(1+i*97), crowdSpec(1+i*97)
	}
	b.Run("nothing new", func(b *testing.B) {
		b.ReportAllocs()
		for i := 0; b.Loop(); i++ {
			v.SetInstance(ids[i%1000], specs[i%1000], up)
		}
	})
	b.Run("another class", func(b *testing.B) {
		b.ReportAllocs()
		for i := 0; b.Loop(); i++ {
			st := up
			if i/1000%2 == 0 {
				st = down
			}
			v.SetInstance(ids[i%1000], specs[i%1000], st)
		}
	})
}

func BenchmarkSetNodeOf1000Instances(b *testing.B) {
	v := crowd(many)
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		v.SetNode(node(1), Node{Name: node(1), Unknown: i%2 == 0, Since: dawn})
	}
}
