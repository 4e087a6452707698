package engine

import (
	"context"
	"fmt"

	"mariposa"
	"mariposa/converge"
)

// makePlan plans. Where that finds that a version has to be taken back, it is,
// and the plan is made again.
func (t *turn) makePlan(ctx context.Context) error {
	budget := converge.Budget{Starting: t.e.gate.Share(t.project), Steps: maxSteps}
	t.plan = t.view.Plan(t.now, budget)
	if t.plan.Undo == "" {
		return nil
	}
	why := t.plan.Undo + ": " + t.plan.UndoWhy
	if t.was != nil {
		if was := t.was.Services[t.plan.Undo]; was != nil && was.Status == mariposa.StatusBlocked {
			why += ": " + was.Reason // the plan knows no nodes
		}
	}
	undone, err := t.rollBack(ctx, why)
	if err != nil || !undone {
		return err
	}
	t.plan = t.view.Plan(t.now, budget)
	return nil
}

// rollBack takes the version in force back. The tasks that brought it go on with
// that, and will have failed.
func (t *turn) rollBack(ctx context.Context, why string) (bool, error) {
	known := map[int]converge.Definitions{}
	if err := t.know(ctx, known); err != nil {
		return false, err
	}
	c, back := converge.Change{}, "stopped, as no version has been fully in force before"
	if to := t.goal.Completed; to != 0 {
		d, version, err := t.definitions(ctx, to)
		if err != nil || version == "" {
			return false, err
		}
		known[to], c.Version = d, version
		t.view.SetVersion(to, d)
		back = fmt.Sprintf("rolled back to version %d", to)
	}
	goal, can := converge.RollBack(t.goal, t.informed(c, known))
	if !can {
		return false, nil
	}
	for _, task := range t.open {
		if task.Spec.Patch.Number == t.goal.Number && t.status(task).State == mariposa.TaskActive {
			t.setTask(task.ID, func(st *mariposa.TaskStatus) { st.Fault = why + "; " + back })
		}
	}
	goal.UndoneWhy = why
	t.goal = goal
	return true, t.tellGoal(ctx)
}
