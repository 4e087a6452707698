package queue

import (
	"errors"
	"strings"
	"testing"

	"mariposa"
)

// goalOf is a goal with services in the given states.
func goalOf(states map[string]mariposa.Status) *mariposa.ProjectStatus {
	st := &mariposa.ProjectStatus{Goal: mariposa.GoalStarted, Number: 1, Services: map[string]*mariposa.ServiceStatus{}}
	for name, status := range states {
		st.Services[name] = &mariposa.ServiceStatus{Status: status}
	}
	return st
}

func TestWhatATaskSeesToThatBringsAVersion(t *testing.T) {
	old := func(t Task) Task { t.Spec.Patch.Number = 1; return t }
	active, queued := mariposa.TaskActive, mariposa.TaskQueued
	lifting := task("t1", mariposa.TaskStart, queued)
	for _, c := range []struct {
		name    string
		open    []Task
		diff    Difference
		inForce map[string]Difference // what differs from the goal without these tasks
		want    string                // kind and services
		goal    mariposa.ProjectGoal
		lifts   bool
	}{
		{name: "what differs", diff: Difference{Services: []string{"b", "a"}, Other: true}, want: "reprovision a b"},
		{name: "scales alone", diff: Difference{Services: []string{"a"}, Scaled: true}, want: "scale a"},
		{name: "nothing at all is the whole", want: "reprovision "},
		{
			name: "what differs from the goal in force too", diff: Difference{Services: []string{"a"}, Scaled: true},
			inForce: map[string]Difference{"": {Services: []string{"b"}, Other: true}}, want: "reprovision a b",
		},
		{
			name: "what a version that it ends has left to do", open: []Task{old(task("t1", mariposa.TaskReprovision, active, "a", "b", "c"))},
			diff: Difference{Services: []string{"a"}, Other: true}, want: "reprovision a b",
		},
		{
			name: "the more it sees to, the more it ends", open: []Task{old(task("t1", mariposa.TaskReprovision, active, "a", "b")), task("t2", mariposa.TaskReprovision, queued, "b")},
			diff:    Difference{Services: []string{"a"}, Other: true},
			inForce: map[string]Difference{"t1 t2": {Services: []string{"c"}, Other: true}}, want: "reprovision a b c",
		},
		{
			name: "all that a start of the whole began", open: []Task{task("t1", mariposa.TaskStart, active)},
			diff: Difference{Services: []string{"a"}, Scaled: true}, want: "reprovision ", goal: mariposa.GoalStarted,
		},
		{
			name: "a start that has not begun, and what it lifts", open: []Task{lifting},
			diff: Difference{Services: []string{"a"}, Other: true}, want: "reprovision ", goal: mariposa.GoalStarted, lifts: true,
		},
		{
			name: "all services of a start that it meets", open: []Task{task("t1", mariposa.TaskStart, active, "a", "d")},
			diff: Difference{Services: []string{"a"}, Scaled: true}, want: "reprovision a d",
		},
		{
			name: "nothing of a start that it does not meet", open: []Task{task("t1", mariposa.TaskStart, active, "d")},
			diff: Difference{Services: []string{"a"}, Other: true}, want: "reprovision a",
		},
		{
			name: "as much as differs where it will be refused", open: []Task{task("t1", mariposa.TaskStop, active)},
			diff: Difference{Services: []string{"a"}, Other: true}, want: "reprovision a",
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			goal := goalOf(map[string]mariposa.Status{"a": mariposa.StatusConverging, "b": mariposa.StatusBackingOff, "c": mariposa.StatusConverged, "d": mariposa.StatusHeld})
			add := mariposa.TaskSpec{Origin: mariposa.OriginUser, Supersedes: true, Patch: mariposa.Patch{Number: 2}}
			got, err := CompleteVersionTask(c.open, goal, add, c.diff, func(ended map[string]bool) (Difference, error) {
				var names []string
				for _, o := range c.open {
					if ended[o.ID] {
						names = append(names, o.ID)
					}
				}
				return c.inForce[strings.Join(names, " ")], nil
			})
			if is := string(got.Task) + " " + strings.Join(got.Services, " "); err != nil || is != c.want {
				t.Fatalf("it is a %s, %v; want %s", is, err, c.want)
			}
			if got.Patch.Goal != c.goal || got.LiftsFreeze != c.lifts || got.Patch.Number != 2 {
				t.Fatalf("its patch is %+v, lifts %v", got.Patch, got.LiftsFreeze)
			}
		})
	}
}

func TestWhatCannotBeComparedIsSaid(t *testing.T) {
	lost := errors.New("the store is away")
	_, err := CompleteVersionTask(nil, nil, mariposa.TaskSpec{}, Difference{}, func(map[string]bool) (Difference, error) { return Difference{}, lost })
	if !errors.Is(err, lost) {
		t.Fatalf("it says %v", err)
	}
}
