// Package queue decides which tasks may be open together: what a new task does to the
// open ones, and which waiting tasks may begin. It owns the admission table and nothing
// else; it does not know what tasks do.
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
	Frozen bool // part of its scope is frozen
	// Of the scope of a freeze: the services that are no longer frozen, and those that still
	// are or will be. ReadFreeze sets both.
	Thawed, Kept []string
	// Unapproved: the version that it deploys needs the approval of an operator.
	Unapproved bool
}

// State returns the state of the task.
func (t Task) State() mariposa.TaskState { return mariposa.StateOfTask(t.Status) }

// IsFreeze reports whether the task keeps its scope frozen until the thaw.
func (t Task) IsFreeze() bool { return t.Spec.Task == mariposa.TaskFreeze && !t.Spec.Immediate }

// ReadFreeze returns the task with the services that it keeps frozen, if it is a freeze.
// It stays open as long as it keeps any.
func (t Task) ReadFreeze(st *mariposa.ProjectStatus) Task {
	if t.Thawed, t.Kept = nil, nil; st == nil || !t.IsFreeze() || t.State().Ended() {
		return t
	}
	for name, ss := range st.Services {
		switch {
		case !Overlap(t.Spec.Services, []string{name}):
		case ss.Frozen != nil || t.State() == mariposa.TaskQueued && !ss.Removed:
			t.Kept = append(t.Kept, name)
		case !ss.Removed:
			t.Thawed = append(t.Thawed, name)
		}
	}
	return t
}

// keeps reports whether a freeze keeps any service of a scope.
func (t Task) keeps(services []string) bool {
	if len(services) == 0 || len(t.Thawed) == 0 {
		return Overlap(t.Spec.Services, services)
	}
	return slices.ContainsFunc(services, func(name string) bool {
		return Overlap(t.Spec.Services, []string{name}) && !slices.Contains(t.Thawed, name)
	})
}

// isLiftedBy reports whether nothing of a freeze is left after its services in a scope
// are thawed.
func (t Task) isLiftedBy(services []string) bool {
	if len(t.Kept) > 0 {
		return includes(services, t.Kept)
	}
	return includes(services, t.Spec.Services)
}

// verdict is the effect of an open task on a new one.
type verdict uint8

const (
	concurrent verdict = iota // both run
	reject                    // the new one is refused
	terminate                 // the old one ends
	fifo                      // the new one waits
)

// table contains the verdicts between tasks of users: the row is the open task, the
// column the one being added. A freeze ends only for a task that may lift all that it
// still keeps frozen; those that may not lift it wait for the thaw.
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
	Terminate []Task // ended by the new one
	Thaw      []Task // freezes that the new one waits for
}

// Admit decides whether a task may be added to the open tasks of its project. A refusal
// names the blocking task.
func Admit(open []Task, add *mariposa.TaskSpec) (Admission, error) {
	var a Admission
	waits := slices.ContainsFunc(open, func(t Task) bool { return interact(t, add) && freezeBlocks(t, add) })
	for _, t := range open {
		if IsDroppedBy(t, add) {
			a.Terminate = append(a.Terminate, t)
			continue
		}
		if !interact(t, add) {
			continue
		}
		switch verdict := table[t.Spec.Task][add.Task]; {
		case add.Task == mariposa.TaskFreeze && t.Spec.Task == mariposa.TaskFreeze && !isKeptBy(t, add.Services):
			if includes(add.Services, t.Spec.Services) { // otherwise it still keeps the rest of its scope
				a.Terminate = append(a.Terminate, t)
			}
		case endsStart(t, add, waits):
			a.Terminate = append(a.Terminate, t)
		case verdict == reject:
			err := mariposa.Errorf(mariposa.Conflict, "cannot add a %s while task %s (%s, %s) is open", add.Word(), t.ID, t.Spec.Word(), t.State())
			err.Reason = &mariposa.Reason{Code: mariposa.ReasonAwaitOrStop, Subject: t.ID, Frozen: t.State() == mariposa.TaskActive}
			switch t.Spec.Task {
			case mariposa.TaskFreeze:
				err.Reason.Code = mariposa.ReasonThawFirst
			case mariposa.TaskStop:
				err.Reason.Code = mariposa.ReasonAwaitTask
			}
			return Admission{}, err
		case freezeBlocks(t, add):
			a.Thaw = append(a.Thaw, t)
		case t.IsFreeze() && (AwaitsThaw(add) || !t.isLiftedBy(add.Services)): // it keeps other services
		case verdict == terminate:
			a.Terminate = append(a.Terminate, t)
		}
	}
	return a, nil
}

// IsDroppedBy reports whether an open task ends because a person accepts what runs in all
// of its scope. Freezes stay: they change nothing.
func IsDroppedBy(t Task, add *mariposa.TaskSpec) bool {
	return add.Patch.Accept && !t.State().Ended() && t.Spec.Task != mariposa.TaskFreeze && t.Spec.Patch.Goal != mariposa.GoalDeleted &&
		!isExempt(t.Spec) && includes(add.Services, t.Spec.Services)
}

// isKeptBy reports whether an open freeze already keeps all of a scope.
func isKeptBy(freeze Task, services []string) bool {
	if !includes(freeze.Spec.Services, services) {
		return false
	}
	return len(freeze.Thawed) == 0 || len(services) > 0 && !Overlap(freeze.Thawed, services)
}

// includes reports whether a scope includes all of another.
func includes(scope, other []string) bool {
	if len(scope) == 0 || len(other) == 0 {
		return len(scope) == 0
	}
	return !slices.ContainsFunc(other, func(name string) bool { return !slices.Contains(scope, name) })
}

// isExempt reports whether the table does not apply to a task: Mariposa's own, which a
// user's task may take over, and immediate ones.
func isExempt(t *mariposa.TaskSpec) bool { return t.Origin == mariposa.OriginMariposa || t.Immediate }

// interact reports whether the table applies to an open task and one that is
// added.
func interact(t Task, add *mariposa.TaskSpec) bool {
	return !t.State().Ended() && !isExempt(t.Spec) && !isExempt(add) && Overlap(t.Spec.Services, add.Services)
}

// Supersedes reports whether a task replaces an older one: a new version replaces a
// start, instead of waiting until everything that it changes has been created.
func Supersedes(old, t *mariposa.TaskSpec) bool {
	return t.Supersedes && old.Task == mariposa.TaskStart && !isExempt(old) && !isExempt(t) && Overlap(old.Services, t.Services)
}

// endsStart reports whether a task ends a start the moment it is added. A task that
// waits for a thaw does so when it begins: the start continues until then. A start that
// has not begun can be taken over only if it covers the whole project; the start of some
// services begins first.
func endsStart(start Task, add *mariposa.TaskSpec, waits bool) bool {
	if !Supersedes(start.Spec, add) {
		return false
	}
	if start.State() == mariposa.TaskQueued {
		return len(start.Spec.Services) == 0
	}
	return !waits
}

// freezeBlocks reports whether a freeze makes a task wait for its thaw.
func freezeBlocks(old Task, t *mariposa.TaskSpec) bool {
	return old.Spec.Task == mariposa.TaskFreeze && AwaitsThaw(t) && old.keeps(t.Services)
}

// AwaitsThaw reports whether a task does not begin while its scope is frozen.
func AwaitsThaw(t *mariposa.TaskSpec) bool {
	return t.Task != mariposa.TaskFreeze && !t.LiftsFreeze && !isExempt(t)
}

// Terminate returns the effects of a user's request to end a task: the tasks that end,
// and a freeze to add that keeps the scope of an active task as it is. A queued task
// only ends.
func Terminate(open []Task, id string) (Admission, *mariposa.TaskSpec, error) {
	at := slices.IndexFunc(open, func(t Task) bool { return t.ID == id })
	if at < 0 || open[at].State().Ended() {
		return Admission{}, nil, mariposa.Errorf(mariposa.Conflict, "task %s has already ended", id)
	}
	t := open[at]
	alone := Admission{Terminate: []Task{t}}
	switch {
	case t.State() == mariposa.TaskQueued:
		return alone, nil, nil
	case t.Spec.Task == mariposa.TaskFreeze && !t.Spec.Immediate:
		err := mariposa.Errorf(mariposa.Conflict, "task %s is a freeze", id)
		err.Reason = &mariposa.Reason{Code: mariposa.ReasonThawEnds, Keys: t.Spec.Services}
		return Admission{}, nil, err
	}
	freeze := &mariposa.TaskSpec{
		Project: t.Spec.Project, ProjectName: t.Spec.ProjectName, Services: t.Spec.Services, Component: "terminate",
		Task: mariposa.TaskFreeze, Origin: mariposa.OriginUser, Reason: &mariposa.Reason{Code: mariposa.ReasonTerminated, Subject: id}, Version: t.Spec.Version, Number: t.Spec.Number,
		Patch: mariposa.Patch{Mode: mariposa.ModeFreeze},
	}
	a, err := Admit(open, freeze)
	if err != nil { // all of its scope is frozen already
		return alone, nil, nil //nolint:nilerr // nothing needs to be added
	}
	if !slices.ContainsFunc(a.Terminate, func(o Task) bool { return o.ID == id }) {
		a.Terminate = append(a.Terminate, t)
	}
	return a, freeze, nil
}

// Ready returns the queued tasks that may become active, in the order of arrival. A task
// waits for older ones that come first according to the table, as long as those make
// progress: stuck reports which do not. On a frozen scope it waits for the thaw, and a
// task that deploys an unapproved version waits for the approval.
func Ready(open []Task, stuck func(Task) bool) []Task {
	open = slices.Clone(open)
	slices.SortFunc(open, CompareAge)
	var ready []Task
	waiting := map[string]bool{} // tasks that wait for a thaw: others do not wait for them, as for stuck ones
	for i, t := range open {
		if t.State() != mariposa.TaskQueued || t.Unapproved {
			continue
		}
		kept := slices.ContainsFunc(open[:i], func(o Task) bool {
			return !o.State().Ended() && !isExempt(o.Spec) && freezeBlocks(o, t.Spec)
		})
		if kept || t.Frozen && AwaitsThaw(t.Spec) {
			waiting[t.ID] = true
			continue
		}
		if !slices.ContainsFunc(open[:i], func(o Task) bool { return blocks(o, t) && !waiting[o.ID] && !stuck(o) }) {
			ready = append(ready, t)
		}
	}
	return ready
}

func blocks(old, t Task) bool {
	if Supersedes(old.Spec, t.Spec) && old.State() == mariposa.TaskActive {
		return false
	}
	return interact(old, t.Spec) && table[old.Spec.Task][t.Spec.Task] == fifo
}

// CompareAge orders tasks by age, the oldest first.
func CompareAge(a, b Task) int {
	return cmp.Or(a.Spec.Created.Compare(b.Spec.Created), cmp.Compare(a.ID, b.ID))
}

// Overlap reports whether two scopes share a service. No services means the
// whole project.
func Overlap(a, b []string) bool {
	const few = 256 // beyond this many comparisons a set is cheaper
	if len(a) == 0 || len(b) == 0 {
		return true
	}
	if len(a)*len(b) <= few {
		return slices.ContainsFunc(a, func(s string) bool { return slices.Contains(b, s) })
	}
	if len(a) == 1 || len(b) == 1 {
		return slices.Contains(a, b[0]) || slices.Contains(b, a[0])
	}
	in := make(map[string]struct{}, len(a))
	for _, s := range a {
		in[s] = struct{}{}
	}
	return slices.ContainsFunc(b, func(s string) bool { _, both := in[s]; return both })
}
