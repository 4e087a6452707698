package api

import (
	"cmp"
	"strconv"
	"time"

	"mariposa"
	"mariposa/contract"
	"mariposa/reason"
	"mariposa/store"
)

// The steps of a task that need more than their name. Collecting and keeping need nothing
// from a node, so they are done at once.
const (
	stepCreate  = "create"
	stepUpdate  = "update"
	stepRemove  = "remove"
	stepKeep    = "keep"
	stepCollect = "collect"
)

// The results of a step besides the states that nodes report.
const (
	resultAsked   = "asked"
	resultDone    = "done"
	resultNotDone = "not done"
)

// requestedSteps are the steps that the planner requests, by event.
var requestedSteps = map[string]string{
	"instance.provisioning": stepCreate, "instance.updating": stepUpdate, "instance.stopping": stepRemove, "instance.debt": stepRemove,
}

// steps lists a page of a task's steps, newest first. The marker of the next page is
// empty if there are no older steps.
func (v *viewer) steps(task *store.Task, before int64, limit int) (page []contract.TaskStep, marker string, err error) {
	page = []contract.TaskStep{}
	results, over, err := v.resultsAfter(task, before)
	if err != nil {
		return nil, "", err
	}
	q := store.HistoryQuery{Project: task.Project, Task: task.ID, Before: before, Limit: limit}
	for {
		changes, err := v.s.Store.History(v.ctx, q)
		if err != nil {
			return nil, "", err
		}
		for i := range changes {
			q.Before = changes[i].Revision
			if step, ok := v.step(&changes[i]); ok && (over.IsZero() || !step.At.After(over)) {
				results.settle(&step)
				page = append(page, step)
			}
			if len(page) == limit {
				return page, strconv.FormatInt(q.Before, 10), nil
			}
		}
		if len(changes) < q.Limit {
			return page, "", nil
		}
	}
}

// resultsAfter returns how the steps on the pages before a marker ended, and when the end
// of the task was stored. For an open task there are neither results nor a time.
func (v *viewer) resultsAfter(task *store.Task, marker int64) (stepResults, time.Time, error) {
	over, err := v.endOf(task)
	if err != nil || !mariposa.StateOfTask(task.Status()).Ended() {
		return nil, over, err
	}
	results := stepResults{}
	if marker == 0 {
		return results, over, nil
	}
	q := store.HistoryQuery{Project: task.Project, Task: task.ID, Limit: scanBatch}
	for {
		changes, err := v.s.Store.History(v.ctx, q)
		if err != nil {
			return nil, over, err
		}
		for i := range changes {
			if q.Before = changes[i].Revision; q.Before < marker {
				return results, over, nil
			}
			if step, ok := v.step(&changes[i]); ok && (over.IsZero() || !step.At.After(over)) {
				results.settle(&step)
			}
		}
		if len(changes) < q.Limit {
			return results, over, nil
		}
	}
}

// endOf returns when the end of a task was stored; zero: it is open. Later changes of its
// instances are not steps of the task.
func (v *viewer) endOf(r *store.Task) (time.Time, error) {
	if !mariposa.StateOfTask(r.Status()).Ended() {
		return time.Time{}, nil
	}
	last, err := v.s.Store.History(v.ctx, store.HistoryQuery{Project: r.Project, Task: r.ID, Before: r.Revision + 1, Limit: 1})
	if err != nil || len(last) == 0 {
		return time.Time{}, err
	}
	return last[0].Time, nil
}

// step shows a change of an instance as a step of a task: a request of the planner, or
// the node's result.
func (v *viewer) step(c *store.Change) (contract.TaskStep, bool) {
	spec, ok := c.Record.Spec.(*mariposa.InstanceSpec)
	if !ok {
		return contract.TaskStep{}, false
	}
	step := contract.TaskStep{
		Revision: c.Revision, At: c.Time, Instance: c.Record.ID, InstanceName: spec.Name,
		Node: spec.Node, NodeName: v.nodeName(spec.Node), Reason: reason.At(c.Event.Reason, c.Time), ReasonCode: codeOf(c.Event.Reason),
	}
	switch {
	case c.Deleted:
		step.Step, step.Result = stepCollect, resultDone
	case c.Event.Kind == "instance.kept": // it has ended, and its node has nothing to do
		step.Step, step.Result = stepKeep, resultDone
	case c.Spec:
		step.Step, step.Result = cmp.Or(requestedSteps[c.Event.Kind], stepUpdate), resultAsked
	default:
		step.Step, step.Result = stepCreate, string(mariposa.StateOf(spec, (*store.Instance)(&c.Record).Status()))
		if spec.Goal != mariposa.GoalRunning {
			step.Step = stepRemove
		} else if spec.Generation > 1 {
			step.Step = stepUpdate
		}
	}
	return step, true
}

// stepResults gives every step of a task that has ended a final result: steps end with
// their task. It sees the steps from the newest to the oldest and remembers the last one
// of each instance. It is nil for an open task, whose steps stay as they are.
type stepResults map[string]contract.TaskStep

// settle ends a step that was still open when it was recorded. Later steps on the same
// instance decide: it is done if they reached its effect, it ended like them if they went
// on with it, and it is not done if they did the opposite or if there are none.
func (r stepResults) settle(step *contract.TaskStep) {
	if r == nil {
		return
	}
	later, known := r[step.Instance]
	switch {
	case !isOpenResult(step.Result):
	case !known || isRemoval(later.Step) != isRemoval(step.Step):
		step.Result = resultNotDone
	case isReached(&later):
		step.Result = resultDone
	default:
		step.Result = later.Result
	}
	r[step.Instance] = *step
}

// isOpenResult reports whether a result is not final.
func isOpenResult(result string) bool {
	switch mariposa.State(result) {
	case resultAsked, mariposa.StatePending, mariposa.StateProvisioning, mariposa.StateDraining, mariposa.StateStopping:
		return true
	}
	return false
}

// isRemoval reports whether a step brings an instance to its end.
func isRemoval(step string) bool { return step != stepCreate && step != stepUpdate }

// isReached reports whether a step with a final result had its effect.
func isReached(step *contract.TaskStep) bool {
	if step.Result == resultDone {
		return true
	}
	state := mariposa.State(step.Result)
	if isRemoval(step.Step) {
		return state == mariposa.StateStopped || state == mariposa.StateDestroyed
	}
	return state == mariposa.StateRunning
}
