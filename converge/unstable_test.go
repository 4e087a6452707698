package converge

import (
	"fmt"
	"testing"
	"time"

	"pgregory.net/rapid"

	"mariposa"
)

// flap loses a node for long enough that its instances are replaced, and brings it back
// before the replacements are up.
func (w *world) flap(node string) {
	w.Helper()
	w.loseNode(node)
	w.wait(time.Minute)
	w.step()
	w.comeBack(node)
	w.step()
	for _, id := range w.moving() { // what is removed goes, what starts does not get further
		if w.instances[id].Spec.Goal == mariposa.GoalGone {
			w.move(id)
		}
	}
	w.step()
}

func TestASlotLeavesANodeThatIsLostAgainAndAgain(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name string
		def  *mariposa.Service
	}{
		{"start-first", def("web", "one", 3, minHealthy(5*time.Second))},
		{"stop-first", def("web", "one", 3, stopFirst, minHealthy(5*time.Second))},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			w := running(t, c.def)
			w.wait(time.Minute)
			node := w.instances["web.2-2"].Spec.Node
			for i := range 8 {
				w.flap(node)
				if n := w.made - 3; n != min(i+1, 3) {
					t.Fatalf("after %d losses, %d replacements were made", i+1, n)
				}
			}
			wantSteps(t, w.step()) // the replacement is not up yet: nothing goes
			w.move("web.2-6")
			wantSteps(t, w.step())
			w.wait(5 * time.Second)
			wantSteps(t, w.step(), "remove web.2-2")
			w.settle()
			wantSteps(t, w.of("web"), "web.1-1", "web.3-3", "web.2-6")
			wantStatus(t, w, "web", mariposa.StatusConverged, "")
		})
	}
}

// If the replacement fails, the instance on the unstable node keeps its slot.
func TestAReplacementThatFailsLeavesTheSlotToTheUnstableNode(t *testing.T) {
	t.Parallel()
	w := running(t, def("web", "one", 3))
	node := w.instances["web.2-2"].Spec.Node
	for range 3 {
		w.flap(node)
	}
	w.fail("web.2-6")
	w.settle()
	wantSteps(t, w.of("web"), "web.1-1", "web.2-2", "web.3-3")
}

// After a while, a node is like any other: the instance that runs is kept, and the one that
// starts is removed.
// A drain may have no better place than an unstable node. Its successors there stay, and
// are not removed in favour of what they succeed, again and again.
func TestADrainMovesInstancesToAnUnstableNode(t *testing.T) {
	t.Parallel()
	for _, d := range []*mariposa.Service{
		def("web", "one", 3, minHealthy(5*time.Second)),
		def("web", "one", 3, stopFirst, minHealthy(5*time.Second)),
	} {
		w := running(t, d)
		w.wait(time.Minute)
		from := w.instances["web.2-2"].Spec.Node
		for n := range w.nodes {
			for range 5 {
				if n != from {
					w.losses[n] = mariposa.AddLoss(w.losses[n], w.now)
				}
			}
			w.comeBack(n)
		}
		moved := len(w.view.byNode[from])
		w.drain(from, true)
		made := w.made
		for range 5 { // nothing is up yet
			w.step()
		}
		if n := w.made - made; n > moved {
			t.Fatalf("%d instances were made for %d before any was up", n, moved)
		}
		w.settle()
		if n := w.made - made; n != moved || moved == 0 {
			t.Errorf("%d instances were made for %d that moved", n, moved)
		}
		wantStatus(t, w, "web", mariposa.StatusConverged, "")
	}
}

func TestANodeThatHasBeenStableForAWhileKeepsItsInstances(t *testing.T) {
	t.Parallel()
	w := running(t, def("web", "one", 3))
	node := w.instances["web.2-2"].Spec.Node
	for range 3 {
		w.flap(node)
	}
	until := w.nodes[node].UnstableUntil
	if p := w.plan(); !p.Wake.Equal(until) {
		t.Fatalf("it plans again at %s, want %s", stamp(p.Wake), stamp(until))
	}
	w.now = until
	wantSteps(t, w.step(), "remove web.2-6")
}

// However often and however long nodes come and go, a slot is replaced only a few times
// while one node stays.
func TestSlotsDoNotBounce(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		scale := rapid.IntRange(1, 6).Draw(t, "scale")
		d := def("web", "one", scale, minHealthy(time.Duration(rapid.IntRange(0, 10).Draw(t, "min_healthy"))*time.Second))
		d.Reschedule.After = time.Duration(rapid.IntRange(0, 30).Draw(t, "after")) * time.Second
		d.Update.StopFirst = rapid.Bool().Draw(t, "stop-first")
		d.Update.Rolling = mariposa.Amount{N: rapid.IntRange(1, 3).Draw(t, "rolling")}
		w := newWorld(t, d)
		w.settle()
		flappy := []string{"n1", "n2"}[:rapid.IntRange(1, 2).Draw(t, "flapping nodes")]
		bySlot := map[int]int{}
		count := func(steps []string) {
			for _, s := range steps {
				slot := 0
				if _, err := fmt.Sscanf(s, "create web.%d", &slot); err == nil {
					bySlot[slot]++
				}
			}
		}
		calmed := 0 // losses of nodes that had been stable for long enough since the last one
		for range rapid.IntRange(0, 60).Draw(t, "events") {
			n := rapid.SampledFrom(flappy).Draw(t, "node")
			switch rapid.IntRange(0, 3).Draw(t, "event") {
			case 0, 1:
				switch until := w.nodes[n].UnstableUntil; {
				case w.nodes[n].Unknown:
					w.comeBack(n)
				default:
					if !until.IsZero() && !until.After(w.now) {
						calmed++
					}
					w.loseNode(n)
				}
			case 2:
				for _, id := range w.moving() {
					if rapid.Bool().Draw(t, "moves") {
						w.move(id)
					}
				}
			}
			w.wait(time.Duration(rapid.IntRange(0, 40).Draw(t, "seconds")) * time.Second)
			count(w.step())
		}
		for slot, n := range bySlot {
			// Twice for each node before it counts as unstable, and once to leave it.
			if most := 3*len(flappy) + calmed; n > most {
				t.Fatalf("slot %d was replaced %d times, at most %d are expected%s", slot, n, most, w.formatHistory())
			}
		}
		for _, n := range flappy {
			w.comeBack(n)
		}
		w.settle()
		if n := len(w.of("web")); n != scale {
			t.Fatalf("%d of %d are left%s", n, scale, w.formatHistory())
		}
	})
}
