package api

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"mariposa"
	"mariposa/contract"
	"mariposa/picture"
	"mariposa/queue"
	"mariposa/reason"
	"mariposa/store"
)

func (v *viewer) task(r *store.Task) contract.Task {
	spec := r.Spec()
	if _, known := v.gone[spec.Project]; !known && spec.ProjectName != "" {
		v.gone[spec.Project] = spec.ProjectName // for a deleted project; the first task is the newest
	}
	doc := contract.Task{
		ID: r.ID, Project: spec.Project, ProjectName: v.projectName(spec.Project), Services: neverNil(spec.Services),
		Component: spec.Component, Task: spec.Task, State: mariposa.TaskQueued, Origin: spec.Origin, Author: spec.Author,
		Created: spec.Created, Version: spec.Version, Number: v.taskNumber(spec),
		Node: spec.Node, NodeName: spec.NodeName, Parent: spec.Parent,
	}
	why, at := spec.Reason, v.now()
	if st := r.Status(); st != nil {
		doc.State, doc.EndedBy, doc.Progress = mariposa.StateOfTask(st), st.EndedBy, st.Progress
		why = cmp.Or(st.Reason, why)
		doc.Started, doc.Finished = optionalTime(st.Started), optionalTime(st.Finished)
		if doc.State.Ended() && !st.Finished.IsZero() {
			at = st.Finished // it says what was so then
		}
	}
	doc.Reason, doc.ReasonCode = reason.At(why, at), codeOf(why)
	if doc.State == mariposa.TaskQueued && (v.live || !v.isPast()) {
		v.showQueueWaits(&doc, r)
	} else if doc.State == mariposa.TaskActive && v.isCurrent(r) && !v.isPast() {
		why := v.awaited(r)
		if doc.Waits, _ = v.sentenceIn(r.Project, why); why != nil {
			doc.WaitsUntil = v.optionalFuture(why.Root().Until)
		}
	}
	if doc.Waits == "" && !v.isStuckDrain(r) {
		doc.ETA = v.estimateEnd(r.Status())
	}
	return doc
}

// taskNumber returns the number of a task's version. Tasks of earlier releases may have
// only its hash, which several versions can share: they show the number of the newest
// version if that has the hash and existed when the task was created.
func (v *viewer) taskNumber(spec *mariposa.TaskSpec) int {
	if number := cmp.Or(spec.Number, spec.Patch.Number); number > 0 {
		return number
	}
	p := v.projectRecord(spec.Project)
	if p == nil || spec.Version == "" || p.Spec().Version != spec.Version {
		return 0
	}
	newest := v.version(p.ID, p.Spec().Number)
	if newest == nil || newest.Spec.Created.After(spec.Created) {
		return 0
	}
	return newest.Spec.Number
}

// awaitedThaw describes the thaw that a queued task waits for; empty: none.
func (v *viewer) awaitedThaw(task *mariposa.TaskSpec) string {
	p := v.projectRecord(task.Project)
	if p == nil || p.Status() == nil || !queue.AwaitsThaw(task) {
		return ""
	}
	names := p.Status().FrozenServices(task.Services)
	switch {
	case len(names) == 0:
		return ""
	case p.Status().IsFrozen():
		return "waits for the thaw of " + p.Spec().Name
	}
	return "waits for the thaw of " + strings.Join(names, ", ")
}

// showQueueWaits adds what a queued task waits for: an approval, a thaw, other tasks.
func (v *viewer) showQueueWaits(doc *contract.Task, r *store.Task) {
	var all []string
	if awaits := v.awaitedApproval(v.projectRecord(r.Project), r.Spec().Patch.Number); awaits != nil {
		text, code := v.sentence(awaits)
		all, doc.ReasonCode = append(all, text), code
	}
	thaw := v.awaitedThaw(r.Spec())
	if thaw != "" {
		all = append(all, thaw)
	}
	for _, o := range v.blockingTasks(r) {
		if doc.WaitsFor = append(doc.WaitsFor, o.ID); o.Spec.Task == mariposa.TaskFreeze && thaw != "" {
			continue
		}
		all = append(all, fmt.Sprintf("waits for task %s (%s, %s)", o.ID, o.Spec.Word(), o.State()))
	}
	doc.Waits = strings.Join(all, "; ")
	if doc.Waits != "" {
		doc.Reason = strings.TrimPrefix(doc.Reason+"; "+doc.Waits, "; ")
	}
}

// isCurrent reports whether the current state of a task is shown.
func (v *viewer) isCurrent(r *store.Task) bool {
	now := v.s.Picture.Tasks.Get(r.ID)
	return now != nil && now.Revision == r.Revision
}

// awaited returns what an active task waits for; nil: nothing.
func (v *viewer) awaited(r *store.Task) *mariposa.Reason {
	if p := v.projectRecord(r.Project); p != nil {
		return picture.AwaitedBy(r.Spec(), p.Status())
	}
	return nil
}

// optionalFuture returns a time unless it is unknown or over.
func (v *viewer) optionalFuture(at time.Time) *time.Time {
	if !at.After(v.now()) {
		return nil
	}
	return &at
}

// isStuckDrain reports whether a task drains a node on which instances are left that cannot
// be moved now: nobody knows when it ends.
func (v *viewer) isStuckDrain(r *store.Task) bool {
	n := v.s.Picture.Nodes.Get(r.Spec().Node)
	return r.Spec().Component == mariposa.DrainComponent && r.Project == "" && n != nil &&
		slices.ContainsFunc(v.s.Picture.StaysOn(n), func(s picture.Staying) bool { return !s.Moves() })
}

// pace is the number of steps from which the speed of a task is estimated.
const pace = 3

// estimateEnd estimates when an active task will end; nil if it has made too few steps,
// or has fallen behind its earlier speed.
func (v *viewer) estimateEnd(st *mariposa.TaskStatus) *time.Time {
	if st == nil || st.State != mariposa.TaskActive || st.Progress.Done < pace || st.Progress.Done >= st.Progress.Total {
		return nil
	}
	each := st.LastProgress.Sub(st.Started) / time.Duration(st.Progress.Done)
	now, at := v.now(), st.LastProgress.Add(each*time.Duration(st.Progress.Total-st.Progress.Done))
	if now.Sub(st.LastProgress) > pace*each+time.Second {
		return nil
	}
	if at.Before(now) {
		at = now
	}
	return &at
}

// blockingTasks lists the open tasks that a queued task waits for, if its current state is
// shown.
func (v *viewer) blockingTasks(r *store.Task) []queue.Task {
	if !v.isCurrent(r) {
		return nil
	}
	open := func(r *store.Task) queue.Task {
		task := queue.Task{ID: r.ID, Spec: r.Spec(), Status: r.Status()}
		if p := v.projectRecord(r.Project); p != nil {
			task = task.ReadFreeze(p.Status())
		}
		return task
	}
	var before []queue.Task
	for _, o := range v.s.Picture.TasksOf(r.Spec().Project) {
		pair := []queue.Task{open(o), open(r)}
		ready := queue.Ready(pair, func(queue.Task) bool { return false })
		if o.ID != r.ID && !slices.ContainsFunc(ready, func(t queue.Task) bool { return t.ID == r.ID }) {
			before = append(before, pair[0])
		}
	}
	return before
}
