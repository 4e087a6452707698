package queue

import (
	"maps"
	"slices"

	"mariposa"
)

// Difference is what a version changes.
type Difference struct {
	Services []string // those that differ, or are retried
	Scaled   bool     // the scale of some differs
	Other    bool     // something other than a scale differs
}

// kind returns what a task that makes such a change does.
func (d Difference) kind() mariposa.TaskKind {
	if d.Scaled && !d.Other {
		return mariposa.TaskScale
	}
	return mariposa.TaskReprovision
}

// merge returns what either of two differences changes.
func (d Difference) merge(o Difference) Difference {
	names := slices.Concat(d.Services, o.Services)
	slices.Sort(names)
	return Difference{Services: slices.Compact(names), Scaled: d.Scaled || o.Scaled, Other: d.Other || o.Other}
}

// CompleteVersionTask completes a task that deploys a version: what it does, and to
// which services. It covers everything that differs from the newest version, everything
// that differs from the goal that would be in force without it (the newest version may
// have been rolled back, or never have come into force), and the remaining work of the
// tasks that it ends. The more it covers, the more tasks may end, so this is repeated
// until nothing is added.
//
// The caller sets the patch of the task and whether it lifts freezes and supersedes.
// diff is what differs from the newest version, goal the one in force (nil: none yet),
// and inForce returns what differs from the goal without the given tasks.
func CompleteVersionTask(open []Task, goal *mariposa.ProjectStatus, t mariposa.TaskSpec, diff Difference, inForce func(ended map[string]bool) (Difference, error)) (mariposa.TaskSpec, error) {
	diff, whole := diff.merge(Difference{}), false // sorted, without duplicates
	for {
		t.Task, t.Services = diff.kind(), diff.Services
		if whole {
			t.Services = nil
		}
		for _, o := range open {
			if !o.State().Ended() && Supersedes(o.Spec, &t) {
				diff = takeOverStart(o, &t, diff)
				whole = whole || len(o.Spec.Services) == 0
			}
		}
		ended := map[string]bool{}
		if a, err := Admit(open, &t); err == nil { // otherwise it will be refused
			for _, o := range a.Terminate {
				ended[o.ID] = true
				diff = diff.merge(Difference{Services: unfinishedServices(o, goal)})
			}
		}
		work, err := inForce(ended)
		if err != nil {
			return t, err
		}
		diff = diff.merge(work)
		if t.Task == diff.kind() && (whole && t.Services == nil || !whole && len(t.Services) == len(diff.Services)) {
			return t, nil
		}
	}
}

// takeOverStart gives a task the goal of a start that it supersedes, and
// returns what the task covers then. The goal of a start of some services is in
// force by the time the task begins.
func takeOverStart(start Task, t *mariposa.TaskSpec, diff Difference) Difference {
	if len(start.Spec.Services) == 0 {
		t.Patch.Goal = mariposa.GoalStarted
		t.LiftsFreeze = t.LiftsFreeze || start.Spec.LiftsFreeze && start.State() == mariposa.TaskQueued
	}
	return diff.merge(Difference{Services: start.Spec.Services, Other: true})
}

// unfinishedServices lists the services that a task which deploys a version has not
// finished.
func unfinishedServices(t Task, goal *mariposa.ProjectStatus) []string {
	if goal == nil || t.State() != mariposa.TaskActive || t.Spec.Patch.Number == 0 {
		return nil
	}
	scope := t.Spec.Services
	if len(scope) == 0 {
		scope = slices.Collect(maps.Keys(goal.Services))
	}
	return slices.DeleteFunc(slices.Clone(scope), func(name string) bool {
		ss := goal.Services[name]
		return ss == nil || !isUnfinished(ss.Status)
	})
}

// isUnfinished reports whether a service has work to do and is not held, paused or
// frozen.
func isUnfinished(s mariposa.Status) bool {
	return s == mariposa.StatusConverging || s == mariposa.StatusBackingOff || s == mariposa.StatusBlocked
}
