package engine

import (
	"time"

	"mariposa"
	"mariposa/queue"
)

// defaultStallLimit is how long a task may make no progress if its services do
// not set a deadline.
const defaultStallLimit = 10 * time.Minute

// whyFailed returns why a task has failed; nil if it has not. The goal stays: whatever
// can still be repaired is repaired. Of Mariposa's own tasks, only those with a rollout
// fail; repairs are retried.
func (t *turn) whyFailed(task queue.Task) *mariposa.Reason {
	if task.Spec.Origin != mariposa.OriginUser && task.Spec.Component != followComponent && task.Spec.Component != rollbackComponent {
		return nil
	}
	first := ""
	t.eachService(task.Spec.Services, func(name string, ss *mariposa.ServiceStatus) {
		if ss.Rollout.HasFailed() && t.tookPart(task, ss.Rollout) && (first == "" || name < first) {
			first = name
		}
	})
	if first != "" {
		return t.failureAfterFault(task, t.services[first].Rollout.FailureReason.About(first))
	}
	if due := t.stallsAt(task); !due.IsZero() && !due.After(t.now) {
		_, why := projectStatus(&mariposa.ProjectStatus{Services: t.services}, t.plan.Todo)
		if why == nil {
			why = &mariposa.Reason{Code: mariposa.ReasonNotUp}
		}
		still := &mariposa.Reason{Code: mariposa.ReasonNoProgress, Since: t.status(task).LastProgress}
		return t.failureAfterFault(task, still.Because(why.Root()))
	}
	return nil
}

// tookPart reports whether a rollout in a task's scope is work of the task. Of
// the rollouts in its scope, a scale is only responsible for starts that it
// caused.
func (t *turn) tookPart(task queue.Task, r *mariposa.Rollout) bool {
	switch {
	case task.Spec.Task == mariposa.TaskReprovision || task.Spec.Task == mariposa.TaskStart || task.Spec.Patch.Retry:
		return true
	case task.Spec.Task == mariposa.TaskScale:
		return r.First && !r.Progress.Before(t.status(task).Started)
	}
	return false
}

// failureAfterFault returns, for a task that rolls back, that the rollback failed too.
func (t *turn) failureAfterFault(task queue.Task, why *mariposa.Reason) *mariposa.Reason {
	fault := t.status(task).Fault
	if fault == nil {
		return why
	}
	failed := &mariposa.Reason{Code: mariposa.ReasonRollbackFailed, Version: t.goal.RolledBack, RolledBackTo: fault.RolledBackTo}
	return failed.Because(why)
}

// stallsAt returns when a task will have made no progress for too long.
func (t *turn) stallsAt(task queue.Task) time.Time {
	st := t.status(task)
	if st.State != mariposa.TaskActive || task.Spec.Origin != mariposa.OriginUser || task.Spec.Patch.Mode == mariposa.ModeFreeze {
		return time.Time{}
	}
	may := t.stallLimit(task)
	if may == 0 {
		return time.Time{}
	}
	if st.LastProgress.Before(t.since) { // this project was not planned before
		return t.since.Add(may)
	}
	return st.LastProgress.Add(may)
}

// stallLimit returns how long a task may make no progress; zero means no limit, while a
// person keeps part of it frozen or paused. It is cached, because it is needed more than
// once in a turn and there may be very many services.
func (t *turn) stallLimit(task queue.Task) time.Duration {
	if may, known := t.stallLimits[task.ID]; known {
		return may
	}
	longest, byPeople := time.Duration(0), false
	t.eachService(task.Spec.Services, func(name string, ss *mariposa.ServiceStatus) {
		byPeople = byPeople || ss.Frozen != nil || ss.Status == mariposa.StatusPaused
		if def := t.view.Definition(ss.Number, name); def != nil {
			longest = max(longest, def.Update.Deadline)
		}
	})
	switch {
	case byPeople:
		longest = 0
	case longest == 0:
		longest = defaultStallLimit
	}
	if t.stallLimits == nil {
		t.stallLimits = map[string]time.Duration{}
	}
	t.stallLimits[task.ID] = longest
	return longest
}

// nextStall returns when the first task will have made no progress for too
// long.
func (t *turn) nextStall() time.Time {
	var first time.Time
	for _, task := range t.open {
		if due := t.stallsAt(task); !due.IsZero() && (first.IsZero() || due.Before(first)) {
			first = due
		}
	}
	return first
}
