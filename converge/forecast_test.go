package converge

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"mariposa"
)

// forecast looks ahead with the names that the world will use.
func (w *world) forecast() Forecast {
	made := w.made
	return w.view.Forecast(ForecastOptions{Goal: w.goal, Now: w.now, Starting: w.budget, Name: func(service string, slot int) string {
		made++
		return fmt.Sprintf("%s.%d-%d", service, slot, made)
	}})
}

// TestWhatIsForeseenIsWhatHappens brings a project into a random state, makes a forecast,
// then continues without faults and compares the steps.
func TestWhatIsForeseenIsWhatHappens(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		f := newRandomProject(t)
		f.turn()
		for range rapid.IntRange(0, 25).Draw(t, "events") {
			f.event()
			f.turn()
		}
		for n := range f.nodes {
			f.comeBack(n)
		}
		f.leavesRoom()
		f.budget, f.cause = max(1, f.budget), nil
		if f.plan(); f.goal.Goal == mariposa.GoalStopped && f.goal.RolledBack > 0 {
			return // it was just rolled back, which no plan can predict
		}
		before := dump(f.view)
		seen := f.forecast()
		if after := dump(f.view); after != before {
			t.Fatalf("looking ahead changed the view:\n%s\nto\n%s", before, after)
		}
		f.history = nil
		number := f.goal.Number
		f.settle()
		if f.goal.Number != number || f.goal.RolledBack == number {
			return // a version was rolled back: all steps succeeded, but too late for its deadline
		}
		var want []string
		for _, line := range f.history {
			want = append(want, line[len("15:04:05 "):])
		}
		var got []string
		for _, s := range seen.Steps {
			got = append(got, word(s.Step))
		}
		if seen.Cut || !slices.Equal(got, want) {
			t.Fatalf("foreseen:\n%s\nhappened:\n%s\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"), dump(f.view))
		}
	})
}

func TestLookingAheadTellsTheStepsInOrder(t *testing.T) {
	w := running(t, def("db", "one", 1), def("web", "one", 2, dependsOn("db"), minHealthy(5*time.Second)))
	next := Definitions{"db": def("db", "two", 1), "web": def("web", "two", 2, dependsOn("db"), minHealthy(5*time.Second))}
	c := w.change()
	c.Versions = func(n int) Definitions {
		if n == 2 {
			return next
		}
		return w.versions[n]
	}
	goal := Apply(w.goal, mariposa.Patch{Number: 2}, c)
	seen := w.view.Forecast(ForecastOptions{Goal: goal, Versions: map[int]Definitions{2: next}, Now: w.now})
	var got []string
	for _, s := range seen.Steps {
		if s.Action != Collect {
			got = append(got, fmt.Sprintf("%s after %s", word(s.Step), s.After))
		}
	}
	wantSteps(t, got,
		"create db.1 v2 after 0s", "remove db.1-1 after 0s",
		"create web.1 v2 after 0s", "remove web.1-2 after 5s",
		"create web.2 v2 after 5s", "remove web.2-3 after 10s")
	if seen.Todo["db"]+seen.Todo["web"] > 0 || seen.Services["web"].Status != mariposa.StatusConverged {
		t.Fatalf("in the end: %+v", seen)
	}
	wantSteps(t, w.step()) // nothing has happened
	if few := w.view.Forecast(ForecastOptions{Goal: goal, Versions: map[int]Definitions{2: next}, Now: w.now, Steps: 2}); !few.Cut || len(few.Steps) != 2 {
		t.Fatalf("of two steps %d are told, cut %v", len(few.Steps), few.Cut)
	}
}

func TestLookingAheadSaysWhatStaysUndone(t *testing.T) {
	w := running(t, def("web", "one", 2))
	w.mode(mariposa.ModeFreeze)
	w.fail("web.1-1")
	seen := w.view.Forecast(ForecastOptions{Now: w.now})
	if len(seen.Steps) != 0 || seen.Services["web"].Status != mariposa.StatusFrozen || !strings.Contains(reasonOf(seen.Services["web"]), "after thaw") {
		t.Fatalf("foreseen: %+v", seen.Services["web"])
	}
}
