package converge

import (
	"testing"
	"time"

	"mariposa"
)

func TestADrainMovesInstancesWithinTheLimitsOfTheirService(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name   string
		def    *mariposa.Service
		rounds [][]string
	}{
		{
			"start-first, one at a time, after min_healthy", def("web", "one", 3, minHealthy(5*time.Second)),
			[][]string{{"create web.1 v1"}, nil, {"remove web.1-1"}, {"collect web.1-1"}, nil},
		},
		{
			"stop-first", def("web", "one", 3, stopFirst),
			[][]string{{"remove web.1-1"}, {"collect web.1-1", "create web.1 v1"}, nil},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			w := running(t, c.def) // one instance on each of three nodes
			w.wait(time.Minute)
			w.drain(w.instances["web.1-1"].Spec.Node, true)
			for _, want := range c.rounds {
				wantSteps(t, w.step(), want...)
				for _, id := range w.moving() {
					w.move(id)
				}
				if len(want) == 0 {
					w.wait(5 * time.Second)
				}
			}
			for _, id := range w.of("web") {
				if w.nodes[w.instances[id].Spec.Node].Draining {
					t.Errorf("%s is still on the drained node", id)
				}
			}
			if n := len(w.of("web")); n != 3 {
				t.Errorf("%d instances, want 3", n)
			}
		})
	}
}

func TestADrainLeavesWhatItMustNotMove(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name  string
		do    func(w *world)
		says  string
		state mariposa.Status
	}{
		{"a frozen service", func(w *world) { w.mode(mariposa.ModeFreeze) }, "nothing would change after thaw", mariposa.StatusFrozen},
		{"a paused service", func(w *world) { w.mode(mariposa.ModePause) }, "", mariposa.StatusPaused},
		{"an instance with volumes", func(w *world) {
			spec := *w.instances["web.1-1"].Spec
			spec.Mounts = []mariposa.Mount{{Name: "data"}}
			w.set("web.1-1", &spec, w.instances["web.1-1"].Status)
		}, "", mariposa.StatusConverged},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			w := running(t, def("web", "one", 2))
			c.do(w)
			w.step()
			w.drain(w.instances["web.1-1"].Spec.Node, true)
			wantSteps(t, w.step())
			wantStatus(t, w, "web", c.state, c.says)
		})
	}
}

func TestADrainWaitsForARollout(t *testing.T) {
	t.Parallel()
	w := running(t, def("web", "one", 3))
	w.submit(def("web", "two", 3))
	w.step()
	w.drain("n1", true)
	w.drain("n2", true)
	w.settle()
	if n := w.serving("web"); n["two"] != 3 {
		t.Fatalf("%v", n)
	}
	for _, id := range w.of("web") {
		if w.instances[id].Spec.Node != "n3" {
			t.Errorf("%s is on %s", id, w.instances[id].Spec.Node)
		}
	}
}

func TestADrainThatIsStoppedKeepsWhatRuns(t *testing.T) {
	t.Parallel()
	w := running(t, def("web", "one", 1))
	node := w.instances["web.1-1"].Spec.Node
	w.drain(node, true)
	wantSteps(t, w.step(), "create web.1 v1")
	w.drain(node, false)
	wantSteps(t, w.step(), "remove web.1-2")
	w.settle()
	if w.instances["web.1-1"] == nil || len(w.instances) != 1 {
		t.Fatalf("%v", w.of("web"))
	}
}

// A node that is lost while it is drained is treated like any lost node; when it returns,
// its instances are surplus.
func TestANodeThatIsLostWhileItIsDrained(t *testing.T) {
	t.Parallel()
	w := running(t, def("web", "one", 3))
	node := w.instances["web.1-1"].Spec.Node
	w.drain(node, true)
	w.loseNode(node)
	wantSteps(t, w.step())
	wantStatus(t, w, "web", mariposa.StatusConverging, "web.1-1 is on node "+node+", which has been unreachable since "+stamp(w.now)+" UTC; it is replaced at "+stamp(w.now.Add(time.Minute))+" UTC")
	w.wait(time.Minute)
	wantSteps(t, w.step(), "create web.1 v1")
	w.settle()
	w.comeBack(node)
	wantSteps(t, w.step(), "remove web.1-1")
}

func TestAStormStopsReschedulingUntilItIsOver(t *testing.T) {
	t.Parallel()
	w := running(t, def("web", "one", 3))
	lost := w.instances["web.1-1"].Spec.Node
	w.loseNode(lost)
	w.setStorm(true)
	w.wait(time.Hour)
	wantSteps(t, w.step())
	wantStatus(t, w, "web", mariposa.StatusBlocked, "web.1-1 is on node "+lost+", which was lost together with others (2 of 3 nodes have been lost since 06:00:00 UTC); "+
		"it is not replaced until they return; to replace it now, run mariposa node reschedule-now "+lost)
	w.fail("web.2-2")
	wantSteps(t, w.step(), "create web.2 v1", "remove web.2-2") // repairs go on
	w.setStorm(false)
	wantSteps(t, w.step(), "create web.1 v1")
}

func TestAUserGivesUpANodeInAStorm(t *testing.T) {
	t.Parallel()
	w := running(t, def("web", "one", 3))
	lost := w.instances["web.1-1"].Spec.Node
	w.loseNode(lost)
	w.setStorm(true)
	wantSteps(t, w.step())
	n := w.nodes[lost]
	n.GivenUp = true
	w.setNode(lost, n)
	wantSteps(t, w.step(), "create web.1 v1")
}

func TestASlowStormDelaysNodesOneAfterAnother(t *testing.T) {
	t.Parallel()
	w := running(t, def("web", "one", 3))
	lost := w.instances["web.1-1"].Spec.Node
	w.loseNode(lost)
	at := w.now.Add(90 * time.Second)
	w.storm = Storm{After: map[string]time.Time{lost: at}}
	w.view.SetStorm(w.storm)
	w.wait(time.Minute)
	wantSteps(t, w.step())
	if p := w.plan(); !p.Wake.Equal(at) {
		t.Fatalf("wakes at %s", stamp(p.Wake))
	}
	w.wait(30 * time.Second)
	wantSteps(t, w.step(), "create web.1 v1")
}

// An operator of the project asks not to wait: for what is lost now, and for nothing that is
// lost later.
func TestAUserDoesNotWaitForLostNodes(t *testing.T) {
	t.Parallel()
	w := running(t, def("web", "one", 3), def("db", "one", 1))
	lost, later := w.instances["web.1-2"].Spec.Node, w.instances["web.2-3"].Spec.Node
	w.loseNode(lost)
	w.setStorm(true)
	w.wait(time.Second)
	before := w.step()
	w.patch(mariposa.Patch{Retry: true, Reschedule: true}, "web")
	if len(before) != 0 {
		t.Fatalf("%v", before)
	}
	p := w.plan()
	wantSteps(t, words(p.Steps), "create web.1 v1")
	if p.Steps[0].Stable {
		t.Error("it waits for a stable node, although a user does not want to wait")
	}
	w.settle()
	w.wait(time.Second)
	w.loseNode(later)
	wantSteps(t, w.step())
}
