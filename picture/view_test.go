package picture

import (
	"errors"
	"testing"
	"time"

	"mariposa"
	"mariposa/clock/clocktest"
	"mariposa/converge"
	"mariposa/store"
	"mariposa/store/memory"
)

// A view contains the input of a plan: the goal, managed instances and their nodes.
func TestAViewHoldsWhatAPlanIsAbout(t *testing.T) {
	t.Parallel()
	clk := clocktest.New()
	st := memory.New(clk)
	away := clk.Now().Add(-time.Minute)
	instance := func(id string, change func(*mariposa.InstanceSpec)) store.Write {
		spec := &mariposa.InstanceSpec{Name: id, Slot: 1, Project: "p", ServiceName: "web", Number: 1, Node: "n1", Goal: mariposa.GoalRunning, Generation: 1, Managed: true}
		change(spec)
		return store.Write{Kind: mariposa.KindInstance, ID: id, Project: "p", Spec: spec, Status: &mariposa.InstanceStatus{State: mariposa.StateRunning, Generation: 1}}
	}
	goal := &mariposa.ProjectStatus{Goal: mariposa.GoalStarted, Number: 1, Services: map[string]*mariposa.ServiceStatus{"web": {Scale: 2, Number: 1}}}
	res := st.Commit(t.Context(), store.Unit{Writes: []store.Write{
		{Kind: mariposa.KindProject, ID: "p", Project: "p", Spec: &mariposa.ProjectSpec{Name: "shop"}, Status: goal},
		{Kind: mariposa.KindNode, ID: "n1", Spec: &mariposa.NodeSpec{Name: "one"}, Status: &mariposa.NodeStatus{State: mariposa.NodeRunning}},
		{Kind: mariposa.KindNode, ID: "n2", Spec: &mariposa.NodeSpec{Name: "two"}, Status: &mariposa.NodeStatus{State: mariposa.NodeUnknown, Since: away}},
		instance("up", func(*mariposa.InstanceSpec) {}),
		instance("lost", func(s *mariposa.InstanceSpec) { s.Slot, s.Node = 2, "n2" }),
		instance("single", func(s *mariposa.InstanceSpec) { s.Managed = false }),
		instance("debt", func(s *mariposa.InstanceSpec) { s.Orphaned = true }),
	}})[0]
	if res.Err != nil {
		t.Fatal(res.Err)
	}
	p, err := Open(t.Context(), st)
	if err != nil {
		t.Fatal(err)
	}
	view := p.View(p.Project("p"), goal)
	asked := 0
	err = LoadDefinitions(view, func(n int) (converge.Definitions, error) {
		asked++
		return converge.Definitions{"web": {Name: "web"}}, nil
	})
	if err != nil || asked != 1 || !view.HasVersion(1) {
		t.Fatalf("asked %d times for versions: %v", asked, err)
	}
	if view.Len() != 2 || view.Instance("up") == nil || view.Instance("lost") == nil {
		t.Errorf("it holds %d instances", view.Len())
	}
	if got := view.Running()["web"]; got.Scale != 1 || got.Number != 1 || got.Lost[1] != 1 {
		t.Errorf("running are %+v, though a node is away", got)
	}
	if got := NodeOf(p.Nodes.Get("n2")); got != (converge.Node{Name: "two", Unknown: true, Since: away}) {
		t.Errorf("the node is %+v", got)
	}
	lost := errors.New("the store is away")
	if err := LoadDefinitions(p.View(p.Project("p"), goal), func(int) (converge.Definitions, error) { return nil, lost }); !errors.Is(err, lost) {
		t.Errorf("it says %v", err)
	}
	if empty := p.View(p.Project("nobody"), nil); empty.Len() != 0 || len(empty.MissingVersions()) != 0 {
		t.Error("a project that is not there has something")
	}
}
