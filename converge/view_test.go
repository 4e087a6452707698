package converge

import (
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"mariposa"
)

// TestAViewIsWhatItWasToldInWhateverOrder applies random updates in random order,
// sensible or not, and compares the view with one that gets only the final state.
func TestAViewIsWhatItWasToldInWhateverOrder(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		k := newKnowledge()
		for range rapid.IntRange(0, 80).Draw(t, "changes") {
			k.change(t)
			if rapid.IntRange(0, 3).Draw(t, "plan") == 0 {
				k.view.Plan(dawn.Add(time.Minute), Budget{Starting: 3}) // it may move the hint for free slots
			}
			if got, want := dump(k.view), dump(k.again()); got != want {
				t.Fatalf("the view is\n%s\n\nbut from scratch\n%s", got, want)
			}
		}
	})
}

// knowledge is a view and everything that was set in it and not removed.
type knowledge struct {
	view      *View
	goal      *mariposa.ProjectStatus
	versions  map[int]Definitions
	nodes     map[string]Node
	instances map[string]*Instance
}

func newKnowledge() *knowledge {
	return &knowledge{view: NewView(), versions: map[int]Definitions{}, nodes: map[string]Node{}, instances: map[string]*Instance{}}
}

// again returns a view that gets everything at once.
func (k *knowledge) again() *View {
	v := NewView()
	for n, d := range k.versions {
		v.SetVersion(n, d)
	}
	if k.goal != nil {
		v.SetGoal(k.goal)
	}
	for id, n := range k.nodes {
		v.SetNode(id, n)
	}
	for id, i := range k.instances {
		v.SetInstance(id, i.Spec, i.Status)
	}
	return v
}

func (k *knowledge) change(t *rapid.T) {
	switch rapid.SampledFrom([]string{"instance", "instance", "instance", "instance", "gone", "node", "no node", "goal", "version", "forget"}).Draw(t, "change") {
	case "instance":
		i := drawInstance(t)
		k.instances[i.ID] = i
		k.view.SetInstance(i.ID, i.Spec, i.Status)
	case "gone":
		id := drawID(t)
		delete(k.instances, id)
		k.view.RemoveInstance(id)
	case "node":
		id := drawNode(t)
		n := Node{Name: id, Unknown: rapid.Bool().Draw(t, "unknown"), Since: drawTime(t, "since")}
		k.nodes[id] = n
		k.view.SetNode(id, n)
	case "no node":
		id := drawNode(t)
		delete(k.nodes, id)
		k.view.RemoveNode(id)
	case "goal":
		k.goal = drawGoal(t)
		k.view.SetGoal(k.goal)
	case "version":
		n, d := rapid.IntRange(1, 3).Draw(t, "version"), drawDefinitions(t)
		k.versions[n] = d
		k.view.SetVersion(n, d)
	case "forget":
		k.view.ForgetVersions()
		for _, n := range slices.Sorted(maps.Keys(k.versions)) {
			if _, kept := k.view.versions[n]; !kept {
				delete(k.versions, n)
			}
		}
		if slices.ContainsFunc(k.view.MissingVersions(), func(n int) bool { return k.versions[n] != nil }) {
			t.Fatalf("what is needed was forgotten: %v", k.view.MissingVersions())
		}
	}
}

func drawTime(t *rapid.T, label string) time.Time {
	return dawn.Add(time.Duration(rapid.IntRange(0, 3).Draw(t, label)) * time.Second)
}

func drawID(t *rapid.T) string { return fmt.Sprintf("i%d", rapid.IntRange(1, 12).Draw(t, "id")) }

func drawNode(t *rapid.T) string {
	return rapid.SampledFrom([]string{"", "n1", "n2"}).Draw(t, "node")
}

func drawName(t *rapid.T) string { return rapid.SampledFrom([]string{"db", "web"}).Draw(t, "service") }

func drawInstance(t *rapid.T) *Instance {
	i := &Instance{ID: drawID(t), Spec: &mariposa.InstanceSpec{
		Slot: rapid.IntRange(0, 5).Draw(t, "slot"), ServiceName: drawName(t), Number: rapid.IntRange(1, 3).Draw(t, "number"),
		Digest: rapid.SampledFrom([]string{"one", "two"}).Draw(t, "digest"), Live: rapid.SampledFrom([]string{"", "big"}).Draw(t, "live"),
		Node: drawNode(t), Goal: rapid.SampledFrom([]mariposa.Goal{mariposa.GoalRunning, mariposa.GoalRunning, mariposa.GoalGone, mariposa.GoalHalted}).Draw(t, "goal"),
		Generation: int64(rapid.IntRange(1, 2).Draw(t, "generation")), Created: drawTime(t, "created"),
	}}
	if rapid.Bool().Draw(t, "reported") {
		i.Status = &mariposa.InstanceStatus{
			State: rapid.SampledFrom([]mariposa.State{
				mariposa.StateProvisioning, mariposa.StateRunning, mariposa.StateRunning, mariposa.StateStopping,
				mariposa.StateStopped, mariposa.StateFailed, mariposa.StateDestroyed,
			}).Draw(t, "state"),
			Since: drawTime(t, "since"), Generation: int64(rapid.IntRange(1, 2).Draw(t, "made true")),
		}
	}
	return i
}

func drawGoal(t *rapid.T) *mariposa.ProjectStatus {
	st := &mariposa.ProjectStatus{
		Goal:   rapid.SampledFrom([]mariposa.ProjectGoal{"", mariposa.GoalStarted, mariposa.GoalStopped, mariposa.GoalDeleted}).Draw(t, "goal"),
		Number: rapid.IntRange(1, 3).Draw(t, "number"), Services: map[string]*mariposa.ServiceStatus{},
	}
	for _, name := range []string{"db", "web"} {
		if rapid.IntRange(0, 3).Draw(t, name+" missing") == 0 {
			continue
		}
		ss := &mariposa.ServiceStatus{Scale: rapid.IntRange(0, 4).Draw(t, "scale"), Number: rapid.IntRange(1, 3).Draw(t, "number"), Removed: rapid.IntRange(0, 3).Draw(t, "removed") == 0}
		if rapid.Bool().Draw(t, "rollout") {
			ss.Rollout = &mariposa.Rollout{Number: ss.Number, From: rapid.IntRange(0, 3).Draw(t, "from"), Before: drawTime(t, "before"), Progress: dawn}
		}
		st.Services[name] = ss
	}
	return st
}

func drawDefinitions(t *rapid.T) Definitions {
	d := Definitions{}
	for _, name := range []string{"db", "web"} {
		if rapid.IntRange(0, 3).Draw(t, name+" missing") > 0 {
			d[name] = def(name, rapid.SampledFrom([]string{"one", "two"}).Draw(t, "image"), 1, live(rapid.SampledFrom([]string{"", "big"}).Draw(t, "live")))
		}
	}
	return d
}
