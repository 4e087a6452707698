package engine

import (
	"cmp"
	"context"
	"slices"

	"mariposa"
	"mariposa/converge"
	"mariposa/queue"
)

// activate starts the tasks whose turn it is: their change of the goal takes effect.
// Tasks that waited for a thaw start together with it, and a task that supersedes a start
// begins together with that start. So no step is taken towards a goal that is about to
// change.
func (t *turn) activate(ctx context.Context) error {
	for more := true; more; {
		more = false
		for i := range t.open {
			t.open[i].Frozen, t.open[i].Status = t.hasFrozen(t.open[i].Spec.Services), t.status(t.open[i])
			t.open[i] = t.open[i].ReadFreeze(t.goal)
			unapproved, err := t.needsApproval(ctx, t.open[i])
			if err != nil {
				return err
			}
			t.open[i].Unapproved = unapproved
		}
		for _, task := range queue.Ready(t.open, t.isStuck) {
			was := t.goal
			lost, err := t.applyPatch(ctx, task.Spec.Patch, converge.Change{Scope: task.Spec.Services, LiftsFreeze: task.Spec.LiftsFreeze, Author: task.Spec.Author})
			if err != nil {
				return err
			}
			t.begin(task, lost, was)
			more = more || task.Spec.Patch.Mode == mariposa.ModeThaw || task.Spec.LiftsFreeze || task.Spec.Task == mariposa.TaskStart
		}
	}
	if err := t.adoptValues(ctx); err != nil {
		return err
	}
	return t.updateViewGoal(ctx)
}

// begin makes a task active and records the state that it started from. A task that needs
// no work of its own ends at once.
func (t *turn) begin(task queue.Task, lost *mariposa.Reason, was *mariposa.ProjectStatus) {
	p := task.Spec.Patch
	t.setTask(task.ID, func(st *mariposa.TaskStatus) {
		st.State, st.Started, st.LastProgress = mariposa.TaskActive, t.now, t.now
		if lost == nil && (p.Number != 0 || p.Goal != "" || len(p.Scale)+len(p.ScaleBy)+len(p.Reprovision) > 0) {
			st.Before = converge.FindBefore(was, t.goal)
		}
	})
	t.supersede(task)
	if p.Number != 0 || len(p.Scale)+len(p.ScaleBy)+len(p.Reprovision) > 0 {
		t.resetRemaining(task)
	}
	switch {
	case lost != nil:
		t.endTask(task, mariposa.TaskFailed, lost, "")
	case p.Mode == mariposa.ModePause, p.Mode == mariposa.ModeResume, p.Accept:
		t.endTask(task, mariposa.TaskCompleted, nil, "")
	}
	if p.Mode == mariposa.ModeResume || p.Mode == mariposa.ModeThaw || task.Spec.LiftsFreeze {
		t.resumeTasks(task)
	}
}

// needsApproval reports whether a task that has not started brings a version that uses
// protected secrets without an approval.
func (t *turn) needsApproval(ctx context.Context, task queue.Task) (bool, error) {
	if len(t.spec.Protected) == 0 || task.Spec.Patch.Number == 0 || task.State() != mariposa.TaskQueued {
		return false, nil
	}
	return t.isUnapproved(ctx, task.Spec.Patch.Number)
}

// isUnapproved reports whether a version needs an approval that is still missing.
func (t *turn) isUnapproved(ctx context.Context, number int) (bool, error) {
	v, err := t.version(ctx, number)
	return v != nil && len(v.NeedsApproval(t.spec)) > 0, err
}

// supersede ends the starts that a task supersedes, and the tasks whose changes an accept
// drops.
func (t *turn) supersede(by queue.Task) {
	for _, task := range t.open {
		task.Status = t.status(task)
		if task.State() == mariposa.TaskActive && (queue.Supersedes(task.Spec, by.Spec) || queue.IsDroppedBy(task, by.Spec)) {
			t.endTask(task, mariposa.TaskTerminated, &mariposa.Reason{Code: mariposa.ReasonEndedBy, Subject: by.ID}, by.ID)
		}
	}
}

// resetRemaining makes the tasks in a scope count again how much is left to do, because
// another task has added to it.
func (t *turn) resetRemaining(by queue.Task) {
	for _, task := range t.open {
		if st := t.status(task); st.State == mariposa.TaskActive && st.Remaining > 0 && task.ID != by.ID && queue.Overlap(task.Spec.Services, by.Spec.Services) {
			t.setTask(task.ID, func(st *mariposa.TaskStatus) { st.Remaining = 0 })
		}
	}
}

// resumeTasks restarts the clock of the tasks in a scope that could not
// progress while it was paused or frozen, and ends the freezes that were
// thawed.
func (t *turn) resumeTasks(by queue.Task) {
	for _, task := range t.open {
		if t.status(task).State != mariposa.TaskActive || task.ID == by.ID || !queue.Overlap(task.Spec.Services, by.Spec.Services) {
			continue
		}
		if task.Spec.Patch.Mode == mariposa.ModeFreeze && !t.hasFrozen(task.Spec.Services) {
			t.endTask(task, mariposa.TaskCompleted, &mariposa.Reason{Code: mariposa.ReasonThawed, Subject: by.ID}, by.ID)
			continue
		}
		left := t.whatStaysFrozen(task)
		t.setTask(task.ID, func(st *mariposa.TaskStatus) {
			st.LastProgress = t.now
			st.Reason = cmp.Or(left, st.Reason)
		})
	}
}

// whatStaysFrozen names the services that a freeze still keeps; nil if it keeps all of its
// scope.
func (t *turn) whatStaysFrozen(task queue.Task) *mariposa.Reason {
	task.Status = t.status(task)
	task = task.ReadFreeze(t.goal)
	if len(task.Kept) == 0 || len(task.Thawed) == 0 {
		return nil
	}
	const few = 4
	slices.Sort(task.Kept)
	shown := task.Kept[:min(few, len(task.Kept))]
	return (&mariposa.Reason{Code: mariposa.ReasonStillFrozen, Keys: shown}).AndMoreServices(len(task.Kept) - len(shown))
}

// hasFrozen reports whether any service of a scope is frozen by the goal.
func (t *turn) hasFrozen(services []string) bool {
	if t.goal == nil {
		return false
	}
	if len(services) == 0 && t.goal.Frozen {
		return true
	}
	for name, ss := range t.goal.Services {
		if ss.Frozen != nil && queue.Overlap(services, []string{name}) {
			return true
		}
	}
	return t.goal.Frozen && slices.ContainsFunc(services, func(name string) bool { return t.goal.Services[name] == nil })
}

// updateViewGoal passes a goal that changed in this turn to the view.
func (t *turn) updateViewGoal(ctx context.Context) error {
	if t.goal == nil || t.goal == t.stored {
		return nil
	}
	t.view.SetGoal(t.goal)
	return t.loadVersions(ctx)
}

// isStuck reports whether an active task makes no progress for a reason that
// others should not wait for.
func (t *turn) isStuck(task queue.Task) bool {
	if task.Unapproved { // the version in force can be worked on meanwhile; before the first one there is none
		return t.stored != nil && t.stored.Number > 0
	}
	if task.State() != mariposa.TaskActive || t.stored == nil || t.changedTasks[task.ID] != nil { // or it has just begun, or may continue
		return false
	}
	for name, ss := range t.stored.Services {
		if !t.isInScope(task, name) {
			continue
		}
		switch ss.Status {
		case mariposa.StatusBlocked, mariposa.StatusBackingOff, mariposa.StatusHeld, mariposa.StatusFailed, mariposa.StatusPaused, mariposa.StatusFrozen:
			return true
		}
	}
	return false
}

// applyPatch changes the goal in force. A version that cannot be read is not brought into
// force; lost is the reason.
func (t *turn) applyPatch(ctx context.Context, p mariposa.Patch, c converge.Change) (lost *mariposa.Reason, err error) {
	known := map[int]converge.Definitions{}
	if err := t.loadDefinitions(ctx, known); err != nil {
		return nil, err
	}
	if p.Number != 0 {
		d, version, err := t.definitions(ctx, p.Number)
		if err != nil {
			return nil, err
		}
		if version == "" {
			return &mariposa.Reason{Code: mariposa.ReasonTargetLost, Version: p.Number}, nil
		}
		known[p.Number], c.Version = d, version
		t.view.SetVersion(p.Number, d)
	}
	if p.Mode == mariposa.ModeFreeze {
		if c.Values, err = t.liveVersion(ctx); err != nil {
			return nil, err
		}
	}
	if p.Accept || p.StopVersion > 0 {
		c.Running = t.view.Running()
	}
	if p.Accept {
		hashes, err := t.loadAcceptable(ctx, known, c.Running)
		if err != nil {
			return nil, err
		}
		c.Hash = func(n int) string { return hashes[n] }
	}
	if p.Number != 0 && t.goal != nil {
		var err error
		if c.OnlyValues, err = t.onlyValuesDiffer(ctx, t.goal.Number, p.Number); err != nil {
			return nil, err
		}
	}
	t.goal = converge.Apply(t.goal, p, t.completeChange(c, known))
	return nil, nil
}

// loadDefinitions reads the definitions that are in force.
func (t *turn) loadDefinitions(ctx context.Context, known map[int]converge.Definitions) error {
	if t.goal == nil {
		return nil
	}
	for _, ss := range t.goal.Services {
		if known[ss.Number] != nil {
			continue
		}
		d, _, err := t.definitions(ctx, ss.Number)
		if err != nil {
			return err
		}
		known[ss.Number] = d
		t.view.SetVersion(ss.Number, d)
	}
	return nil
}

// loadAcceptable reads the definitions of the versions that an accept may make current,
// and returns their hashes.
func (t *turn) loadAcceptable(ctx context.Context, known map[int]converge.Definitions, running map[string]converge.Running) (map[int]string, error) {
	hashes, numbers := map[int]string{}, []int{t.goal.Completed}
	for _, r := range running {
		numbers = append(numbers, r.Number)
	}
	for _, ss := range t.goal.Services {
		numbers = append(numbers, ss.Number)
	}
	for _, n := range numbers {
		if n == 0 || hashes[n] != "" {
			continue
		}
		d, hash, err := t.definitions(ctx, n)
		if err != nil {
			return nil, err
		}
		known[n], hashes[n] = d, hash
		t.view.SetVersion(n, d)
	}
	return hashes, nil
}

// completeChange adds what a change of the goal needs.
func (t *turn) completeChange(c converge.Change, known map[int]converge.Definitions) converge.Change {
	c.Now, c.IDs = t.now, t.spec.Services
	c.Versions = func(n int) converge.Definitions { return known[n] }
	return c
}
