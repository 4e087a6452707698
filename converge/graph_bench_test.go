package converge

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"mariposa"
)

const wide = 10_000

// mesh returns the definitions of a graph of n services with two edges each, in about a
// hundred layers.
func mesh(n int) Definitions {
	rng := rand.New(rand.NewPCG(1, 2))
	d := Definitions{}
	for i := range n {
		name := meshName(i)
		s := def(name, "one", 1)
		if layer := i / (n / 100); layer > 0 {
			below := (layer - 1) * (n / 100)
			x, y := below+rng.IntN(n/100), below+rng.IntN(n/100)
			for x == y {
				y = below + rng.IntN(n/100)
			}
			s.DependsOn = []string{meshName(min(x, y)), meshName(max(x, y))}
		}
		d[name] = s
	}
	return d
}

func meshName(i int) string { return fmt.Sprintf("s%05d", i) }

func meshSpec(i int) *mariposa.InstanceSpec {
	return &mariposa.InstanceSpec{
		Name: meshName(i), Slot: 1, ServiceName: meshName(i), Number: 1, Digest: "one", Node: node(i),
		Goal: mariposa.GoalRunning, Generation: 1, Created: dawn.Add(-time.Second), Managed: true,
	}
}

// meshView returns a fresh view of the graph, with or without its instances, and the
// goal.
func meshView(d Definitions, running bool) (*View, *mariposa.ProjectStatus) {
	v := NewView()
	st := &mariposa.ProjectStatus{Goal: mariposa.GoalStarted, Number: 1, Services: map[string]*mariposa.ServiceStatus{}}
	for name := range d {
		st.Services[name] = &mariposa.ServiceStatus{ID: name, Scale: 1, Number: 1, Status: mariposa.StatusConverged}
	}
	v.SetVersion(1, d)
	v.SetGoal(st)
	for i := range 100 {
		v.SetNode(node(i), Node{Name: node(i)})
	}
	if running {
		for i := range len(d) {
			v.SetInstance(meshName(i), meshSpec(i), up)
		}
	}
	return v, st
}

// oneChangeInAMesh lets one of ten thousand services fail and come back.
func oneChangeInAMesh(v *View) func() {
	id, spec := meshName(wide/2), meshSpec(wide/2)
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

func TestOneChangeCostsTheSameHoweverManyServicesThereAre(t *testing.T) {
	v, _ := meshView(mesh(wide), true)
	v.Plan(dawn, Budget{Starting: 100})
	if n := testing.AllocsPerRun(100, oneChangeInAMesh(v)); n > 60 {
		t.Errorf("two changes and two plans of %d services make %.0f allocations", wide, n)
	}
	if n := testing.AllocsPerRun(100, func() { v.Plan(dawn, Budget{Starting: 100}) }); n > 2 {
		t.Errorf("a plan of %d services at rest makes %.0f allocations", wide, n)
	}
}

func TestAFirstPlanOfManyServicesMakesFewAllocations(t *testing.T) {
	d := mesh(wide)
	n := testing.AllocsPerRun(1, func() {
		v, _ := meshView(d, true)
		v.Plan(dawn, Budget{Starting: 100})
	})
	if per := n / wide; per > 40 {
		t.Errorf("a view and its first plan make %.0f allocations a service", per)
	}
}

func benchmarkFirstPlan(b *testing.B, running bool) {
	d := mesh(wide)
	b.ReportAllocs()
	for b.Loop() {
		b.StopTimer()
		v, _ := meshView(d, running)
		b.StartTimer()
		v.Plan(dawn, Budget{Starting: 1000, Steps: 500})
	}
}

func BenchmarkFirstPlanAtRest10kServices(b *testing.B)   { benchmarkFirstPlan(b, true) }
func BenchmarkFirstPlanCreating10kServices(b *testing.B) { benchmarkFirstPlan(b, false) }

func BenchmarkPlanOneChangeOf10kServices(b *testing.B) {
	v, _ := meshView(mesh(wide), true)
	v.Plan(dawn, Budget{Starting: 100})
	change := oneChangeInAMesh(v)
	b.ReportAllocs()
	for b.Loop() {
		change()
	}
}

// BenchmarkPlanWhileCreating10kServices plans for one report while all except the lowest
// layers wait for others.
func BenchmarkPlanWhileCreating10kServices(b *testing.B) {
	v, st := meshView(mesh(wide), false)
	for i := range wide / 10 {
		v.SetInstance(meshName(i), meshSpec(i), up)
	}
	p := v.Plan(dawn, Budget{Starting: 1000})
	stored := *st
	stored.Services = p.ApplyTo(st.Services)
	v.SetGoal(&stored)
	v.Plan(dawn, Budget{Starting: 1000})
	id, spec := meshName(0), meshSpec(0)
	b.ReportAllocs()
	for b.Loop() {
		v.SetInstance(id, spec, up)
		v.Plan(dawn, Budget{Starting: 1000})
	}
}

// BenchmarkSetGoalOf10kServices sets a goal that was read from the store again.
func BenchmarkSetGoalOf10kServices(b *testing.B) {
	v, st := meshView(mesh(wide), true)
	v.Plan(dawn, Budget{Starting: 100})
	b.ReportAllocs()
	for b.Loop() {
		b.StopTimer()
		again := *st
		again.Services = make(map[string]*mariposa.ServiceStatus, len(st.Services))
		for name, ss := range st.Services {
			c := *ss
			again.Services[name] = &c
		}
		b.StartTimer()
		v.SetGoal(&again)
	}
}

func BenchmarkForecast10kServices(b *testing.B) {
	v, st := meshView(mesh(wide), false)
	b.ReportAllocs()
	for b.Loop() {
		if seen := v.Forecast(ForecastOptions{Goal: st, Now: dawn}); len(seen.Steps) != wide {
			b.Fatal(len(seen.Steps))
		}
	}
}

// chain returns a graph of n services in one line. fan returns a root, n-2 services that
// depend on it, and a sink that depends on all of them.
func chain(n int) Definitions {
	d := Definitions{}
	for i := range n {
		s := def(meshName(i), "one", 1)
		if i > 0 {
			s.DependsOn = []string{meshName(i - 1)}
		}
		d[s.Name] = s
	}
	return d
}

func fan(n int) Definitions {
	d := Definitions{}
	for i := range n {
		s := def(meshName(i), "one", 1)
		if i > 0 {
			s.DependsOn = []string{meshName(0)}
		}
		d[s.Name] = s
	}
	sink := d[meshName(n-1)]
	sink.DependsOn = nil
	for i := 1; i < n-1; i++ {
		sink.DependsOn = append(sink.DependsOn, meshName(i))
	}
	return d
}

// forecastReplaced makes a forecast in which every service of a graph is replaced.
func forecastReplaced(d Definitions) func() {
	v, st := meshView(d, true)
	next := Definitions{}
	for name, s := range d {
		c := *s
		c.Digest = "two"
		next[name] = &c
	}
	versions := map[int]Definitions{1: d, 2: next}
	v.SetVersion(2, next)
	goal := Apply(st, mariposa.Patch{Number: 2}, Change{Now: dawn, Versions: func(n int) Definitions { return versions[n] }})
	return func() {
		seen := v.Forecast(ForecastOptions{Goal: goal, Now: dawn, Steps: 10 * len(d)})
		if want := 3 * len(d); seen.Cut || len(seen.Steps) != want { // create, remove, collect
			panic(fmt.Sprintf("%d steps are foreseen instead of %d", len(seen.Steps), want))
		}
	}
}

// TestLookingAheadCostsAsMuchAsThereIsToDo checks that the cost per step of a forecast
// does not grow with the graph, however deep or wide it is.
func TestLookingAheadCostsAsMuchAsThereIsToDo(t *testing.T) {
	for name, graph := range map[string]func(int) Definitions{"a chain": chain, "a fan": fan, "a mesh": mesh} {
		few, many := testing.AllocsPerRun(1, forecastReplaced(graph(400)))/400, testing.AllocsPerRun(1, forecastReplaced(graph(4000)))/4000
		if many > 1.5*few {
			t.Errorf("%s: %.0f allocations a service where there are 400, %.0f where there are 4,000", name, few, many)
		}
	}
}

func BenchmarkForecastReplacing10kServices(b *testing.B) {
	for name, graph := range map[string]func(int) Definitions{"chain": chain, "fan": fan, "mesh": mesh} {
		b.Run(name, func(b *testing.B) {
			look := forecastReplaced(graph(wide))
			b.ReportAllocs()
			for b.Loop() {
				look()
			}
		})
	}
}
