package converge

import (
	"testing"
	"time"

	"mariposa"
)

func preserve(what string) func(*mariposa.Service) {
	return func(d *mariposa.Service) { d.Stop.PreserveStopped = what }
}

// kept lists the instances that are kept, oldest first.
func (w *world) kept(service string) (ids []string) {
	for n := range w.made {
		for id, i := range w.instances {
			if birth(id) == n+1 && i.Spec.ServiceName == service && i.Spec.Kept && i.Spec.Goal == mariposa.GoalHalted {
				ids = append(ids, id)
			}
		}
	}
	return ids
}

func TestWhatFailedIsKeptForADay(t *testing.T) {
	w := running(t, def("web", "one", 2, preserve(mariposa.PreserveOnFailure)))
	w.fail("web.1-1")
	wantSteps(t, w.step(), "create web.1 v1", "keep web.1-1")
	w.settle()
	wantStatus(t, w, "web", mariposa.StatusConverged, "")
	wantServing(t, w, "web", map[string]int{"one": 2})
	if p := w.plan(); p.Todo["web"] != 0 || len(w.view.services["web"].slots) != 2 {
		t.Fatalf("it counts for something:\n%s", show(p))
	}
	w.scale("web", 1)
	w.settle() // an instance that was requested to stop is not kept
	wantSteps(t, w.kept("web"), "web.1-1")
	w.wait(24 * time.Hour)
	wantSteps(t, w.step(), "remove web.1-1")
	w.settle()
	if w.view.Len() != 1 {
		t.Fatalf("left are\n%s", dump(w.view))
	}
}

func TestOfEachSlotTheNewestIsKeptAndNoMoreThanThree(t *testing.T) {
	w := running(t, def("web", "one", 5, preserve(mariposa.PreserveOnFailure)))
	for range 3 {
		w.wait(time.Hour)
		w.fail(w.of("web")[4]) // always the newest, in the same slot
		w.settle()
	}
	if kept := w.kept("web"); len(kept) != 1 || w.instances[kept[0]].Spec.Slot != 5 {
		t.Fatalf("kept are %v", kept)
	}
	w.wait(time.Hour)
	w.fail(w.of("web")...)
	w.settle()
	if kept := w.kept("web"); len(kept) != 3 {
		t.Fatalf("kept are %v", kept)
	}
	wantServing(t, w, "web", map[string]int{"one": 5})
}

func TestWhatWasToldToStopIsKeptWhereTheServiceSaysAlways(t *testing.T) {
	w := running(t, def("web", "one", 5, preserve(mariposa.PreserveAlways)))
	w.aim(mariposa.GoalStopped)
	w.step()
	wantStatus(t, w, "web", mariposa.StatusConverging, "")
	w.settle()
	wantStatus(t, w, "web", mariposa.StatusStopped, "")
	if kept := w.kept("web"); len(kept) != 3 || w.view.Len() != 3 {
		t.Fatalf("kept are %v of %d", kept, w.view.Len())
	}
	w.aim(mariposa.GoalStarted)
	w.settle()
	wantServing(t, w, "web", map[string]int{"one": 5}) // new instances: the ended ones stay ended
	w.aim(mariposa.GoalDeleted)
	w.settle()
	if w.view.Len() != 0 {
		t.Fatalf("left of the deleted project are\n%s", dump(w.view))
	}
}

func TestWhatIsKeptOnAnAbsentNodeIsNobodysTrouble(t *testing.T) {
	w := running(t, def("web", "one", 3, preserve(mariposa.PreserveOnFailure)))
	w.fail("web.1-1")
	w.settle()
	w.loseNode(w.instances["web.1-1"].Spec.Node)
	w.settle()
	w.wait(48 * time.Hour)
	w.settle()
	wantStatus(t, w, "web", mariposa.StatusConverged, "")
	for n := range w.nodes {
		w.comeBack(n)
	}
	w.settle()
	if w.view.Len() != 3 {
		t.Fatalf("left are\n%s", dump(w.view))
	}
}
