package converge

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"mariposa"
	"mariposa/reason"
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

// With stop-first, the next instance goes once the one before has been up for min_healthy
// elsewhere: if moved instances do not work, the others stay.
func TestAStopFirstDrainWaitsForMinHealthy(t *testing.T) {
	t.Parallel()
	w := running(t, def("web", "one", 4, stopFirst, minHealthy(10*time.Second))) // two of them on one of three nodes
	w.wait(time.Minute)
	on := map[string][]string{}
	for _, id := range w.of("web") {
		node := w.instances[id].Spec.Node
		on[node] = append(on[node], id)
	}
	for node, ids := range on {
		if len(ids) == 2 {
			w.drain(node, true)
		}
	}
	var removed []string
	settle := func() {
		for range 20 {
			steps := w.step()
			for _, step := range steps {
				if strings.HasPrefix(step, "remove ") {
					removed = append(removed, step)
				}
			}
			moving := w.moving()
			for _, id := range moving {
				w.move(id)
			}
			if len(steps)+len(moving) == 0 {
				return
			}
		}
	}
	settle()
	if len(removed) != 1 {
		t.Fatalf("at once %v are removed", removed)
	}
	w.wait(9 * time.Second)
	if settle(); len(removed) != 1 {
		t.Fatalf("before min_healthy has passed, %v are removed", removed)
	}
	w.wait(2 * time.Second)
	if settle(); len(removed) != 2 {
		t.Fatalf("after min_healthy, %v are removed", removed)
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
	wantStatus(t, w, "web", mariposa.StatusConverging, "web.1-1 is on node "+node+", which has been unknown since "+stamp(w.now)+" UTC; it is replaced at "+stamp(w.now.Add(time.Minute))+" UTC")
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
	wantStatus(t, w, "web", mariposa.StatusBlocked, "web.1-1 is on node "+lost+", which was lost together with others (2 of 3 nodes with instances have been lost since 06:00:00 UTC); "+
		"it is not replaced until they return; to replace it now, run `mariposa project converge NAME --reschedule-now`")
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

// A node is lost before or during a drain, and its instances are not replaced for long. The
// drain goes on: the slot of each instance that moves is served all the time.
func TestADrainGoesOnWhileAnotherNodeIsLost(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name string
		lose func(w *world, lost string)
	}{
		{"for less than reschedule.after", func(w *world, lost string) { w.loseNode(lost) }},
		{"in a storm", func(w *world, lost string) { w.loseNode(lost); w.setStorm(true) }},
		{"in a storm, for longer than reschedule.after", func(w *world, lost string) { w.loseNode(lost); w.setStorm(true); w.wait(2 * time.Hour) }},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			w := runningOn(t, 4, def("web", "one", 8, minHealthy(5*time.Second), rescheduleAfter(time.Hour)))
			c.lose(w, "n1")
			w.wait(time.Minute)
			w.drain("n2", true)
			for range 40 {
				w.step()
				for _, id := range w.moving() {
					w.move(id)
				}
				w.wait(5 * time.Second)
				if n := len(servedSlots(w)); n < 6 {
					t.Fatalf("only %d slots are served%s", n, w.formatHistory())
				}
			}
			if on := w.on("n2"); len(on) > 0 {
				t.Errorf("%v are left on the drained node%s", on, w.formatHistory())
			}
			if n := len(w.of("web")); n != 8 {
				t.Errorf("%d instances, want 8%s", n, w.formatHistory())
			}
			w.setStorm(false)
			w.comeBack("n1")
			w.settle()
			wantStatus(t, w, "web", mariposa.StatusConverged, "")
			if n := len(w.of("web")); n != 8 || len(servedSlots(w)) != 8 {
				t.Errorf("%d instances serve %d slots after the node is back", n, len(servedSlots(w)))
			}
		})
	}
}

// While the successor is lost, the displaced instance is the only one in its slot that is
// known to serve: it stays. Once the successor is given up, there is another one.
func TestADisplacedInstanceStaysIfItsSuccessorIsLost(t *testing.T) {
	t.Parallel()
	w := runningOn(t, 3, def("web", "one", 3, minHealthy(5*time.Second)))
	w.wait(time.Minute)
	from := w.instances["web.1-1"].Spec.Node
	w.drain(from, true)
	wantSteps(t, w.step(), "create web.1 v1")
	w.move("web.1-4")
	w.wait(5 * time.Second)
	lost := w.instances["web.1-4"].Spec.Node
	w.loseNode(lost)
	wantSteps(t, w.step())
	w.wait(time.Minute)
	w.step() // the lost node had another instance, whose slot is filled first
	w.settle()
	if on := w.on(from); len(on) > 0 {
		t.Errorf("%v are left on the drained node%s", on, w.formatHistory())
	}
	w.comeBack(lost)
	w.settle()
	if n := len(w.of("web")); n != 3 || len(servedSlots(w)) != 3 {
		t.Errorf("%d instances serve %d slots%s", n, len(servedSlots(w)), w.formatHistory())
	}
}

// The successor is lost right after the displaced instance was removed: its slot waits for
// reschedule.after like that of any lost instance, and has one instance in the end.
func TestASuccessorThatIsLostAfterTheMoveIsReplacedOnce(t *testing.T) {
	t.Parallel()
	w := runningOn(t, 4, def("web", "one", 4, minHealthy(5*time.Second)))
	w.wait(time.Minute)
	other := w.instances["web.4-4"].Spec.Node
	w.loseNode(other)
	from := w.instances["web.1-1"].Spec.Node
	w.drain(from, true)
	wantSteps(t, w.step(), "create web.1 v1")
	w.move("web.1-5")
	w.wait(5 * time.Second)
	wantSteps(t, w.step(), "remove web.1-1")
	lost := w.instances["web.1-5"].Spec.Node
	w.loseNode(lost)
	wantSteps(t, w.step())
	w.move("web.1-1")
	wantSteps(t, w.step(), "collect web.1-1")
	w.wait(time.Minute)
	w.settle()
	w.comeBack(lost)
	w.comeBack(other)
	w.settle()
	if n := len(w.of("web")); n != 4 || len(servedSlots(w)) != 4 {
		t.Errorf("%d instances serve %d slots%s", n, len(servedSlots(w)), w.formatHistory())
	}
}

// A slot that has two instances because its node came back must not use up the share of a
// drain for as long as another node is lost.
func TestADrainGoesOnWhileASlotIsDoubledAndANodeIsLost(t *testing.T) {
	t.Parallel()
	w := runningOn(t, 4, def("web", "one", 4))
	first, second := w.instances["web.1-1"].Spec.Node, w.instances["web.2-2"].Spec.Node
	w.loseNode(first)
	w.wait(time.Minute)
	wantSteps(t, w.step(), "create web.1 v1")
	w.move("web.1-5")
	w.loseNode(second)
	w.comeBack(first) // before the next plan: two instances run in slot 1, and one is lost
	w.drain(w.instances["web.3-3"].Spec.Node, true)
	for range 10 {
		w.step()
		for _, id := range w.moving() {
			w.move(id)
		}
	}
	if on := w.on(w.instances["web.4-4"].Spec.Node); len(on) == 0 {
		t.Fatal("web.4 moved, though its node is not drained")
	}
	if w.instances["web.3-3"] != nil {
		t.Errorf("web.3-3 is still there%s", w.formatHistory())
	}
	if n := len(servedSlots(w)); n != 3 {
		t.Errorf("%d slots are served%s", n, w.formatHistory())
	}
}

// While a drain waits, the service says what for, whatever else it waits for.
func TestADrainSaysWhatItWaitsFor(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name string
		defs []*mariposa.Service
		do   func(w *world)
		says string
	}{
		{"the turn of others", []*mariposa.Service{def("web", "one", 8)}, func(*world) {}, "waits for its turn: ? moves 1 instance at a time (update.rolling)"},
		{"a rollout", []*mariposa.Service{def("web", "one", 8)}, func(w *world) { w.submit(def("web", "two", 8)) }, "after the rollout of version 2"},
		{"the limit of starts", []*mariposa.Service{def("web", "one", 8)}, func(w *world) { w.budget = 0 }, "the limit of concurrently starting instances is reached"},
		{"a dependency", []*mariposa.Service{def("web", "one", 8, dependsOn("db")), def("db", "one", 1)}, func(w *world) { w.patch(mariposa.Patch{Goal: mariposa.GoalStopped}, "db") }, "waits for db: it is stopped"},
		{"missing instances", []*mariposa.Service{def("web", "one", 8)}, func(w *world) { w.budget = 0; w.scale("web", 10) }, "8 of 10 instances of ? are running, and the missing ones start first: the limit of concurrently starting instances"},
		{"stop-first instances that are down", []*mariposa.Service{def("web", "one", 8, stopFirst)}, func(w *world) { w.loseNode("n1") }, "6 of 8 instances of ? are running, and at most 1 may be down at once (update.rolling); to replace its instances now, run `mariposa node reschedule-now n1`"},
		{"stop-first instances that are stopped one after another", []*mariposa.Service{def("web", "one", 8, stopFirst)}, func(*world) {}, "waits for its turn: ? moves 1 instance at a time (update.rolling)"},
		{"stop-first instances that nobody may replace", []*mariposa.Service{def("web", "one", 8, stopFirst, func(s *mariposa.Service) { s.Reschedule.Never = true })}, func(w *world) { w.loseNode("n1") }, "at most 1 may be down at once (update.rolling)"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			w := runningOn(t, 4, c.defs...)
			w.wait(time.Minute)
			c.do(w)
			w.drain("n2", true)
			w.step()
			if said := reason.Sentence(w.status("web").Drain); !strings.Contains(said, c.says) {
				t.Errorf("it says %q, want %q", said, c.says)
			}
			w.budget = 1000
			w.drain("n2", false)
			w.step()
			if why := w.status("web").Drain; why != nil {
				t.Errorf("after the drain, it says %q", reason.Sentence(why))
			}
		})
	}
}

// A forecast names the instances on a drained node that have to wait, with the status that
// says what for: of a stop-first service, until what a lost node had is replaced.
func TestAForecastSaysWhatADrainWaitsFor(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name string
		def  *mariposa.Service
		want mariposa.ReasonCode
	}{
		{"stop-first", def("web", "one", 8, stopFirst, rescheduleAfter(time.Hour)), mariposa.ReasonDrainDown},
		{"start-first", def("web", "one", 8, minHealthy(5*time.Second), rescheduleAfter(time.Hour)), ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			w := runningOn(t, 4, c.def)
			w.wait(time.Minute)
			w.loseNode("n1")
			w.drain("n2", true)
			stuck := map[string]mariposa.ReasonCode{}
			seen := w.view.Forecast(ForecastOptions{Now: w.now, Stuck: func(i *Instance, ss *mariposa.ServiceStatus) {
				if ss.Drain != nil && !ss.Drain.Is(mariposa.ReasonDrainTurn) {
					stuck[i.ID] = ss.Drain.Code
				}
			}})
			on := w.on("n2")
			if c.want == "" && len(stuck) > 0 || c.want != "" && len(stuck) != len(on) {
				t.Errorf("of %v, %v wait", on, stuck)
			}
			for id, code := range stuck {
				if !slices.Contains(on, id) || code != c.want {
					t.Errorf("%s waits: %s", id, code)
				}
			}
			for _, id := range on { // all of them leave in the end
				if !slices.ContainsFunc(seen.Steps, func(s ForecastStep) bool { return s.Action == Remove && s.Instance == id }) {
					t.Errorf("%s stays", id)
				}
			}
		})
	}
}

// runningOn returns a world with so many nodes in which all services run.
func runningOn(t *testing.T, nodes int, defs ...*mariposa.Service) *world {
	t.Helper()
	w := newWorld(t, defs...)
	for n := len(w.nodes) + 1; n <= nodes; n++ {
		name := fmt.Sprint("n", n)
		w.setNode(name, Node{Name: name})
	}
	w.settle()
	return w
}

func rescheduleAfter(d time.Duration) func(*mariposa.Service) {
	return func(s *mariposa.Service) { s.Reschedule.After = d }
}

// on lists the wanted instances on a node.
func (w *world) on(node string) []string {
	return slices.DeleteFunc(w.of("web"), func(id string) bool { return w.instances[id].Spec.Node != node })
}

// servedSlots returns the slots of web with an instance that is up.
func servedSlots(w *world) map[int]bool {
	slots := map[int]bool{}
	for _, id := range w.of("web") {
		if i := w.instances[id]; w.isUp(i) {
			slots[i.Spec.Slot] = true
		}
	}
	return slots
}

// The only instance of db that serves is on a node that is drained, and its rollout waits until
// web follows. web does not wait for the drain, which comes after the rollout.
func TestADrainDoesNotHoldUpWhoARolloutWaitsFor(t *testing.T) {
	t.Parallel()
	w := runningOn(t, 3, def("db", "one", 1, stopFirst), def("web", "one", 1, refersTo("db.id")))
	lost := w.instances[w.of("db")[0]].Spec.Node
	w.loseNode(lost)
	w.wait(2 * time.Minute)
	w.submit(def("db", "two", 1, stopFirst), def("web", "one", 1, refersTo("db.id")))
	drained := ""
	for range 40 {
		w.step()
		for _, id := range w.moving() {
			w.move(id)
		}
		if all := w.of("db"); drained == "" && len(all) == 2 {
			drained = w.instances[all[1]].Spec.Node
			w.drain(drained, true)
		}
		w.wait(5 * time.Second)
	}
	if drained == "" || drained == lost {
		t.Fatalf("drained %q, lost %q%s", drained, lost, w.formatHistory())
	}
	if on := w.on(drained); len(on) > 0 {
		t.Errorf("%v are left on the drained node%s", on, w.formatHistory())
	}
	for _, name := range []string{"db", "web"} {
		wantStatus(t, w, name, mariposa.StatusConverged, "")
	}
}
