package converge

import (
	"testing"
	"time"

	"pgregory.net/rapid"

	"mariposa"
)

// A hanging start counts against the limit for a minute, not forever.
func TestAServiceThatHangsDoesNotKeepItsSiblingFromStartingForEver(t *testing.T) {
	t.Parallel()
	w := newWorld(t, def("hangs", "one", 2), def("web", "one", 2))
	w.budget = 2
	wantSteps(t, w.step(), "create hangs.1 v1", "create hangs.2 v1")
	w.wait(10 * time.Second)
	w.setState("hangs.1-1", mariposa.StateProvisioning, "") // it starts only now
	w.wait(49 * time.Second)
	p := w.plan()
	if wake := dawn.Add(time.Minute); len(p.Steps) > 0 || !p.Wake.Equal(wake) {
		t.Fatalf("after 59 s: want nothing until %s\n%s", stamp(wake), show(p))
	}
	wantStatus(t, w, "web", mariposa.StatusConverging, "the limit of concurrently starting instances is reached")
	w.now = p.Wake
	wantSteps(t, w.step(), "create web.1 v1")
	if p = w.plan(); len(p.Steps) > 0 || !p.Wake.Equal(dawn.Add(70*time.Second)) {
		t.Fatalf("after a minute: want nothing for ten seconds\n%s", show(p))
	}
	w.now = p.Wake
	wantSteps(t, w.step(), "create web.2 v1")
	w.setState("web.1-3", mariposa.StateRunning, "")
	w.setState("web.2-4", mariposa.StateRunning, "")
	w.step()
	wantStatus(t, w, "web", mariposa.StatusConverged, "")
	wantStatus(t, w, "hangs", mariposa.StatusConverging, "")
}

// However instances change, those that count are the ones that have been starting for
// less than a minute. Room becomes available when the first of them becomes slow.
func TestWhoIsOnTheWayUpIsCountedByWhenTheySetOut(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		k := newKnowledge()
		for range rapid.IntRange(1, 40).Draw(rt, "changes") {
			k.change(rt)
		}
		now := dawn.Add(slowAfter + time.Duration(rapid.IntRange(-1, 4).Draw(rt, "now"))*time.Second)
		count, relief := 0, time.Time{}
		for _, s := range k.view.services {
			for id, c := range s.members {
				i := k.view.instances[id]
				at := time.Unix(0, i.startedAt())
				if c.starts() && at.Add(slowAfter).After(now) {
					count++
					relief = earlierOf(relief, at.Add(slowAfter))
				}
			}
		}
		if got := k.view.Starting(now); got != count {
			rt.Fatalf("%d are on their way up, want %d\n%s", got, count, dump(k.view))
		}
		if got := k.view.nextSlowAt(now); !got.Equal(relief) {
			rt.Fatalf("relief comes at %s, want %s", got, relief)
		}
	})
}
