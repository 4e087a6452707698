// Package queue says which tasks may stand beside each other: what a new task
// does to those already there, and which of the waiting ones may begin. It owns
// the admission table and nothing else; it refuses to know what tasks do.
package queue

import (
	"cmp"
	"slices"

	"mariposa"
)

// Task is a task as the store has it.
type Task struct {
	ID     string
	Spec   *mariposa.TaskSpec
	Status *mariposa.TaskStatus
}

// State is where the task is in its life.
func (t Task) State() mariposa.TaskState { return mariposa.StateOfTask(t.Status) }

// verdict is what one task means for another.
type verdict uint8

const (
	concurrent verdict = iota // both run
	reject                    // the new one is refused
	terminate                 // the old one ends
	fifo                      // the new one waits
)

// table holds the verdicts between tasks of people: row, the one already there;
// column, the one being added. Freezes join with the queue's own commands.
var table = map[mariposa.TaskKind]map[mariposa.TaskKind]verdict{
	mariposa.TaskStart: {
		mariposa.TaskStart: reject, mariposa.TaskStop: terminate,
		mariposa.TaskScale: fifo, mariposa.TaskReprovision: fifo, mariposa.TaskFreeze: terminate,
	},
	mariposa.TaskStop: {
		mariposa.TaskStart: reject, mariposa.TaskStop: reject,
		mariposa.TaskScale: reject, mariposa.TaskReprovision: reject, mariposa.TaskFreeze: terminate,
	},
	mariposa.TaskScale: {
		mariposa.TaskStart: fifo, mariposa.TaskStop: terminate,
		mariposa.TaskScale: reject, mariposa.TaskReprovision: concurrent, mariposa.TaskFreeze: terminate,
	},
	mariposa.TaskReprovision: {
		mariposa.TaskStart: fifo, mariposa.TaskStop: terminate,
		mariposa.TaskScale: concurrent, mariposa.TaskReprovision: terminate, mariposa.TaskFreeze: terminate,
	},
	mariposa.TaskFreeze: {
		mariposa.TaskStart: terminate, mariposa.TaskStop: terminate,
		mariposa.TaskScale: terminate, mariposa.TaskReprovision: terminate, mariposa.TaskFreeze: reject,
	},
}

// Admission is what adding a task does to the open ones.
type Admission struct {
	Terminate []Task // they end, by the new one
}

// Admit decides whether a task may be added beside the open tasks of its
// project. A refusal names the task in the way.
func Admit(open []Task, add *mariposa.TaskSpec) (Admission, error) {
	var a Admission
	for _, t := range open {
		if t.State().Ended() || !Overlap(t.Spec.Services, add.Services) {
			continue
		}
		if t.Spec.Origin == mariposa.OriginMariposa || add.Origin == mariposa.OriginMariposa {
			continue // outside the table; the planner lets a person's task take over
		}
		switch table[t.Spec.Task][add.Task] {
		case reject:
			out := "wait for it to end (mariposa queue show " + t.ID + ")"
			if t.Spec.Task != mariposa.TaskStop {
				out += ", or stop the project"
			}
			return Admission{}, mariposa.Errorf(mariposa.Conflict,
				"a %s cannot be added while task %s (%s, %s) is open: %s", add.Task, t.ID, t.Spec.Task, t.State(), out)
		case terminate:
			a.Terminate = append(a.Terminate, t)
		}
	}
	return a, nil
}

// Ready picks the queued tasks that may become active, in the order they came.
// A task waits for older ones that the table puts before it, as long as those
// get on: stuck says which do not.
func Ready(open []Task, stuck func(Task) bool) []Task {
	open = slices.Clone(open)
	slices.SortFunc(open, older)
	var ready []Task
	for i, t := range open {
		if t.State() == mariposa.TaskQueued && !slices.ContainsFunc(open[:i], func(o Task) bool { return holdsBack(o, t) && !stuck(o) }) {
			ready = append(ready, t)
		}
	}
	return ready
}

func holdsBack(old, t Task) bool {
	return !old.State().Ended() && old.Spec.Origin == mariposa.OriginUser && t.Spec.Origin == mariposa.OriginUser &&
		Overlap(old.Spec.Services, t.Spec.Services) && table[old.Spec.Task][t.Spec.Task] == fifo
}

func older(a, b Task) int {
	return cmp.Or(a.Spec.Created.Compare(b.Spec.Created), cmp.Compare(a.ID, b.ID))
}

// Overlap reports whether two scopes share a service. No services means the
// whole project.
func Overlap(a, b []string) bool {
	return len(a) == 0 || len(b) == 0 || slices.ContainsFunc(a, func(s string) bool { return slices.Contains(b, s) })
}
