package fleet

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"time"

	"mariposa"
	"mariposa/picture"
	"mariposa/store"
)

// The planners of the projects move instances off a node that is drained. This file
// follows their work: it reports the progress of the drain's task and ends the drain. Any
// replica may do so; every write requires what it was decided from, so only one succeeds.

// watchDrains updates the drains of all nodes.
func (f *Fleet) watchDrains(ctx context.Context) {
	for _, r := range f.Picture.Nodes.All() {
		if d := r.Spec().Drain; d.IsIncomplete() {
			f.watchDrain(ctx, r, d)
		}
	}
}

func (f *Fleet) watchDrain(ctx context.Context, r *store.Node, d *mariposa.Drain) {
	left := f.Picture.StaysOn(r)
	now := f.Clock.Now()
	switch late := !d.Deadline.IsZero() && !d.Deadline.After(now); {
	case len(left) == 0: // also if it stopped before
		why := &mariposa.Reason{Code: mariposa.ReasonDrainDone, Subject: d.By, Node: r.Spec().Name}
		f.endDrain(ctx, r, mariposa.DrainDone, mariposa.TaskCompleted, why, left)
	case d.State == mariposa.DrainStopped: // until it is continued, or what is left goes by itself
	case late:
		why := &mariposa.Reason{Code: mariposa.ReasonDrainDeadline, Count: len(left), Node: r.Spec().Name}
		f.endDrain(ctx, r, mariposa.DrainStopped, mariposa.TaskFailed, why.Because(picture.WhyLeft(left)), left)
	default:
		f.reportDrain(ctx, r, d, left)
	}
}

// endDrain ends a drain and its task, if that has not ended before.
func (f *Fleet) endDrain(ctx context.Context, r *store.Node, state mariposa.DrainState, task mariposa.TaskState, why *mariposa.Reason, left []picture.Staying) {
	spec := *r.Spec()
	drain := *spec.Drain
	drain.State, drain.Reason = state, why
	spec.Drain = &drain
	kind := "node.drained"
	if state == mariposa.DrainStopped {
		kind = "node.drain_stopped"
	}
	var unit store.Unit
	unit.Unchanged(r)
	unit.Put(store.Write{Kind: mariposa.KindNode, ID: r.ID, Spec: &spec, Event: mariposa.Event{Kind: kind, Node: r.ID, Task: drain.Task, Actor: "mariposa", Reason: why}})
	if t := f.Picture.Tasks.Get(drain.Task); t != nil && !mariposa.StateOfTask(t.Status()).Ended() {
		st := drainProgress(t, &drain, len(left), f.Clock.Now())
		st.State, st.Finished, st.Reason = task, f.Clock.Now(), why
		if task == mariposa.TaskCompleted {
			st.Progress.Done = st.Progress.Total
		}
		putDrainTask(&unit, r, t, &st)
	}
	f.commitDrain(ctx, r, unit)
}

// reportDrain updates the progress of a drain's task.
func (f *Fleet) reportDrain(ctx context.Context, r *store.Node, d *mariposa.Drain, left []picture.Staying) {
	t := f.Picture.Tasks.Get(d.Task)
	if t == nil || mariposa.StateOfTask(t.Status()).Ended() {
		return
	}
	st := drainProgress(t, d, len(left), f.Clock.Now())
	st.Reason = (&mariposa.Reason{Code: mariposa.ReasonDrainLeft, Count: len(left), Of: st.Progress.Total, Node: r.Spec().Name}).Because(picture.WhyLeft(left))
	if was := t.Status(); was != nil && was.Progress == st.Progress && (was.Reason.Equal(st.Reason) || isBrief(left, was, f.Clock.Now())) {
		return
	}
	var unit store.Unit
	unit.Unchanged(r)
	putDrainTask(&unit, r, t, &st)
	f.commitDrain(ctx, r, unit)
}

// isBrief reports whether what is left is being moved, and that has not taken long: to say
// how would only make events.
func isBrief(left []picture.Staying, was *mariposa.TaskStatus, now time.Time) bool {
	const long = 2 * time.Second
	return now.Sub(was.LastProgress) < long && !slices.ContainsFunc(left, func(s picture.Staying) bool { return !s.Moves() })
}

// drainProgress returns the status of a drain's task with so many instances left.
func drainProgress(t *store.Task, d *mariposa.Drain, left int, now time.Time) mariposa.TaskStatus {
	st := mariposa.TaskStatus{State: mariposa.TaskActive, Started: now, LastProgress: now}
	if was := t.Status(); was != nil {
		st = *was
	}
	st.Progress.Total = max(st.Progress.Total, d.Total, left)
	if done := st.Progress.Total - left; done > st.Progress.Done {
		st.Progress.Done, st.LastProgress = done, now
	}
	return st
}

func putDrainTask(unit *store.Unit, r *store.Node, t *store.Task, st *mariposa.TaskStatus) {
	kind := "task.progress"
	if st.State.Ended() {
		kind = "task." + string(st.State)
	}
	unit.StatusUnchanged(t)
	unit.Put(store.Write{
		Kind: mariposa.KindTask, ID: t.ID, Status: st, Archive: st.State.Ended(),
		Event: mariposa.Event{Kind: kind, Node: r.ID, Task: t.ID, Actor: "mariposa", Reason: st.Reason},
	})
}

func (f *Fleet) commitDrain(ctx context.Context, r *store.Node, unit store.Unit) {
	if res := f.Store.Commit(ctx, unit)[0]; res.Err != nil && !errors.Is(res.Err, store.ErrConflict) {
		slog.Warn("cannot store the progress of a drain; retrying", "node", r.Spec().Name, "err", res.Err)
	}
}

// noteDrain makes Run look at the drains soon if a change may belong to one.
func (f *Fleet) noteDrain(node string, c *store.Change) {
	r := f.Picture.Nodes.Get(node)
	if r == nil || !r.Spec().Drain.IsIncomplete() || !c.Deleted && c.Record.Kind == mariposa.KindInstance && !c.Spec {
		return
	}
	select {
	case f.drains <- struct{}{}:
	default:
	}
}
