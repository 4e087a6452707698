package converge

import (
	"testing"
	"time"

	"mariposa"
)

func TestWhichEmptySlotsAreToBeFilled(t *testing.T) {
	w := running(t, def("web", "one", 3))
	will := func() (slots []int) {
		for slot := 1; slot <= 6; slot++ {
			if w.view.WillFill("web", slot) {
				slots = append(slots, slot)
			}
		}
		return slots
	}
	check := func(what string, want ...int) {
		t.Helper()
		got := will()
		if len(got) != len(want) {
			t.Fatalf("%s: %v are to be filled, not %v", what, got, want)
		}
		for n := range got {
			if got[n] != want[n] {
				t.Fatalf("%s: %v are to be filled, not %v", what, got, want)
			}
		}
	}
	check("all are held")
	w.patch(mariposa.Patch{Scale: map[string]int{"web": 5}})
	check("two more", 4, 5)
	w.fail(w.inSlot("web", 2))
	check("and one that failed", 2, 4, 5)
	w.patch(mariposa.Patch{Scale: map[string]int{"web": 3}})
	check("the one that failed alone", 2)
	w.patch(mariposa.Patch{Scale: map[string]int{"web": 2}})
	check("none is missing")
	w.patch(mariposa.Patch{Scale: map[string]int{"web": 5}, Goal: mariposa.GoalStopped})
	check("it is stopped")
	if w.view.WillFill("nobody", 1) {
		t.Error("a service that is not there has a slot to fill")
	}
}

// WillFill reports exactly the slots that the plan fills.
func TestThePlanFillsTheSlotsThatAreToBeFilled(t *testing.T) {
	w := running(t, def("web", "one", 4))
	w.patch(mariposa.Patch{Scale: map[string]int{"web": 2}})
	w.settle()
	w.patch(mariposa.Patch{Scale: map[string]int{"web": 5}})
	for _, s := range w.plan().Steps {
		if s.Action == Create && !w.view.WillFill("web", s.Slot) {
			t.Errorf("%s.%d is filled, and was not to be", s.Service, s.Slot)
		}
	}
	n := 0
	for slot := range 10 {
		if w.view.WillFill("web", slot) {
			n++
		}
	}
	if n != 3 {
		t.Errorf("%d slots are to be filled", n)
	}
}

// inSlot returns the instance in a slot of a service.
func (w *world) inSlot(service string, slot int) string {
	w.Helper()
	for _, id := range w.of(service) {
		if w.instances[id].Spec.Slot == slot {
			return id
		}
	}
	w.Fatalf("nothing is in slot %s.%d", service, slot)
	return ""
}

// A slot whose own definition refers to a removed service is refilled like a new slot: at
// the version that the canary is compared with, not as a second canary.
func TestARefillOfWhatCannotBeMadeAgainIsNoCanary(t *testing.T) {
	t.Parallel()
	w := running(t, def("a", "one", 3), def("d", "one", 1))
	w.submit(def("a", "two", 3, refersTo("d.id"), canary(1)), def("d", "one", 1))
	w.settle()
	w.submit(def("a", "three", 3, canary(1)))
	w.settle()
	second := ""
	for _, id := range w.of("a") {
		if w.instances[id].Spec.Number == 2 {
			second = id
		}
	}
	if second == "" || w.serving("a")["three"] != 1 {
		t.Fatalf("a is %v%s", w.serving("a"), w.formatHistory())
	}
	w.fail(second)
	w.settle()
	if got := w.serving("a"); got["three"] != 1 || got["one"] != 2 {
		t.Errorf("a is %v, want one of image three and two of image one%s", got, w.formatHistory())
	}
}

// While a canary may still bring instances to the new version, a lost instance is
// replaced at that version. One of the old version would be replaced immediately, again
// and again.
func TestALostInstanceIsReplacedAtTheVersionOfTheCanary(t *testing.T) {
	t.Parallel()
	w := running(t, def("web", "one", 3))
	lost := w.instances[w.of("web")[1]].Spec.Node
	w.loseNode(lost)
	w.wait(2 * time.Minute)
	w.submit(def("web", "two", 3, canary(2)))
	for range 10 { // nothing starts meanwhile
		w.step()
	}
	w.settle()
	if w.made > 6 {
		t.Errorf("%d instances were made%s", w.made, w.formatHistory())
	}
	if n := w.serving("web")["two"]; n != 2 {
		t.Errorf("%d serve at the new version%s", n, w.formatHistory())
	}
}
