package engine

import (
	"context"
	"slices"

	"mariposa"
	"mariposa/converge"
	"mariposa/queue"
	"mariposa/reason"
)

// rollbackComponent is the component of Mariposa's own tasks that roll a version back.
const rollbackComponent = "rollback"

// makePlan plans. If the plan requests a rollback, the version is rolled back and the
// plan is made again.
func (t *turn) makePlan(ctx context.Context) error {
	budget := converge.Budget{Starting: t.e.gate.Share(t.project), Steps: maxSteps}
	t.plan = t.view.Plan(t.now, budget)
	if t.plan.Rollback == "" {
		return nil
	}
	why := t.plan.RollbackReason.About(t.plan.Rollback)
	if t.stored != nil {
		if was := t.stored.Services[t.plan.Rollback]; was != nil && was.Status == mariposa.StatusBlocked {
			why = why.Because(was.Reason) // the plan does not know nodes
		}
	}
	undone, err := t.rollBack(ctx, why)
	if err != nil || !undone {
		return err
	}
	t.plan = t.view.Plan(t.now, budget)
	return nil
}

// rollBack rolls back the version in force. The tasks that brought it carry out the
// rollback, and then end as failed.
func (t *turn) rollBack(ctx context.Context, why *mariposa.Reason) (bool, error) {
	known := map[int]converge.Definitions{}
	if err := t.loadDefinitions(ctx, known); err != nil {
		return false, err
	}
	c, fault := converge.Change{}, *why
	fault.RolledBackTo = mariposa.NoVersion
	if to := t.goal.Completed; to != 0 {
		d, version, err := t.definitions(ctx, to)
		if err != nil || version == "" {
			return false, err
		}
		known[to], c.Version = d, version
		t.view.SetVersion(to, d)
		fault.RolledBackTo = to
	}
	goal, can := converge.RollBack(t.goal, t.completeChange(c, known))
	if !can {
		return false, nil
	}
	if !t.noteFault(&fault) {
		t.openRollback(goal, &fault)
	}
	goal.RollbackReason = why
	t.goal = goal
	return true, t.updateViewGoal(ctx)
}

// noteFault records the failure in the tasks that carry out the rollback: those that
// brought the version, and those that reprovision the failing service. It reports whether
// there are any.
func (t *turn) noteFault(fault *mariposa.Reason) bool {
	found := false
	for _, task := range t.open {
		reprovisions := task.Spec.Task == mariposa.TaskReprovision && task.Spec.Origin == mariposa.OriginUser && t.isInScope(task, t.plan.Rollback)
		if t.status(task).State == mariposa.TaskActive && (reprovisions || task.Spec.Patch.Number == t.goal.Number) {
			t.setTask(task.ID, func(st *mariposa.TaskStatus) {
				st.Fault, st.Remaining, st.LastProgress = fault, 0, t.now // it has other work now
			})
			found = true
		}
	}
	return found
}

// openRollback opens a task for the rollback of a version that no open task brought, for
// example because a person terminated it. So no rollback goes unseen.
func (t *turn) openRollback(goal *mariposa.ProjectStatus, why *mariposa.Reason) {
	spec := &mariposa.TaskSpec{
		Project: t.project, ProjectName: t.spec.Name, Component: rollbackComponent, Task: mariposa.TaskReprovision, Origin: mariposa.OriginMariposa,
		Author: "mariposa", Reason: why, Created: t.now, Version: goal.Version, Number: goal.Number,
	}
	if goal.Goal != mariposa.GoalStarted {
		spec.Task = mariposa.TaskStop
	}
	for name, ss := range goal.Services {
		was := t.goal.Services[name]
		if was == nil || goal.Goal != t.goal.Goal || ss.Removed != was.Removed || ss.Scale != was.Scale || ss.Rollout != nil && ss.Rollout.IsRollback {
			spec.Services = append(spec.Services, name)
		}
	}
	slices.Sort(spec.Services)
	id, st := t.e.NewID(), &mariposa.TaskStatus{State: mariposa.TaskActive, Started: t.now, LastProgress: t.now}
	t.newTasks[id], t.changedTasks[id] = spec, st
	t.unit.Audit = append(t.unit.Audit, mariposa.Audit{
		Actor: "mariposa", ActorName: "mariposa", Action: "project.rollback", Outcome: mariposa.AuditDone,
		Kind: string(mariposa.KindProject), Object: t.project, ObjectName: t.spec.Name, Organization: t.spec.Organization,
		Project: t.project, ProjectName: t.spec.Name, Version: goal.Version, Number: goal.Number, Task: id, Reason: reason.Sentence(why),
	})
	t.open = append(t.open, queue.Task{ID: id, Spec: spec, Status: st})
}
