package change

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"mariposa"
	"mariposa/contract"
	"mariposa/converge"
	"mariposa/picture"
	"mariposa/queue"
	"mariposa/reason"
	"mariposa/store"
)

// edit is a change of a project: its new Spec, with the task that carries the change
// out.
type edit struct {
	c       *Changer
	req     *Request
	ctx     context.Context //nolint:containedctx // an edit lasts one attempt
	record  *store.Project
	spec    mariposa.ProjectSpec
	tasks   []queue.Task           // the open ones
	seen    map[string]*store.Task // by id, as they were read
	ended   map[string]bool        // those that this change ends
	task    *mariposa.TaskSpec     // that this change adds
	fresh   converge.Definitions   // of the version that this change creates
	parts   []mariposa.PartRef     // of the generation of values that it creates; nil if none
	freed   int64                  // the bytes of versions and values that this change removes
	counter string                 // the metadata key that it increments
	now     time.Time
	attempt
}

// edit begins a change of a project in its current state. Its Spec is rewritten and
// required to be as read, so of two concurrent changes one must retry.
func (c *Changer) edit(ctx context.Context, req *Request, id string) (*edit, error) {
	r, tasks := c.readProject(id)
	if r == nil {
		return nil, notFound("the project no longer exists")
	}
	if err := c.authorize(req, r.Record()); err != nil {
		return nil, err
	}
	e := &edit{c: c, req: req, ctx: ctx, record: r, spec: *r.Spec(), seen: map[string]*store.Task{}, now: c.Clock.Now()}
	if e.spec.Deleting {
		return nil, conflict("project %s is being deleted", e.spec.Name)
	}
	for _, t := range tasks {
		task := queue.Task{ID: t.ID, Spec: t.Spec(), Status: t.Status()}
		e.tasks = append(e.tasks, task.ReadFreeze(r.Status()))
		e.seen[t.ID] = t
	}
	e.answer = contract.Changed{ID: r.ID, Name: e.spec.Name, Version: e.spec.Version, Number: e.spec.Number}
	e.unit.Unchanged(r)
	e.beginAudit()
	return e, nil
}

// change builds and commits a change of a project.
func (c *Changer) change(ctx context.Context, req *Request, project string, build func(*edit) (*attempt, error)) (*contract.Changed, error) {
	return c.commit(ctx, req, project, func() (*attempt, error) {
		e, err := c.edit(ctx, req, project)
		if err != nil {
			return nil, err
		}
		return build(e)
	})
}

// readProject returns a project with its open tasks, both of the same moment: a task
// whose change has just become part of the goal no longer waits.
func (c *Changer) readProject(id string) (*store.Project, []*store.Task) {
	r := c.Picture.Projects.Get(id)
	for r != nil {
		tasks, was := c.Picture.TasksOf(id), r
		if r = c.Picture.Projects.Get(id); r == was {
			return r, tasks
		}
	}
	return nil, nil
}

// beginAudit begins the audit record of an edit.
func (e *edit) beginAudit() {
	e.unit.Audit = []mariposa.Audit{{
		Kind: string(mariposa.KindProject), Object: e.record.ID, ObjectName: e.spec.Name, Project: e.record.ID, ProjectName: e.spec.Name,
		Organization: e.spec.Organization,
	}}
}

// isIdle reports whether a scope has no open task of a user.
func (e *edit) isIdle(services []string) bool {
	return !slices.ContainsFunc(e.tasks, func(t queue.Task) bool {
		return t.Spec.Origin == mariposa.OriginUser && queue.Overlap(t.Spec.Services, services)
	})
}

// write adds a write with an event of the project.
func (e *edit) write(w store.Write, kind string, why *mariposa.Reason) {
	w.Project = e.record.ID
	w.Event = e.req.event(kind, e.record.ID, why)
	if e.answer.Task != nil && !e.answer.Joined {
		w.Event.Task = *e.answer.Task
	}
	e.unit.Put(w)
}

// explainRefusal adds what the task waits for that is in the way of a new one: there may be
// a way to end that.
func (e *edit) explainRefusal(err error) error {
	var refused *mariposa.Error
	if !errors.As(err, &refused) || !refused.Reason.Is(mariposa.ReasonAwaitOrStop) {
		return err
	}
	at := slices.IndexFunc(e.tasks, func(t queue.Task) bool { return t.ID == refused.Reason.Subject })
	if at < 0 || e.tasks[at].State() != mariposa.TaskActive {
		return err
	}
	with := *refused
	with.Reason = with.Reason.Because(picture.AwaitedBy(e.tasks[at].Spec, e.record.Status()))
	return &with
}

// admit adds a task, if the open ones allow it. Those that it ends are ended in the
// same commit.
func (e *edit) admit(t *mariposa.TaskSpec) error {
	open, over := slices.Clone(e.tasks), []queue.Task(nil)
	if t.Patch.Goal == mariposa.GoalDeleted { // a delete includes a stop, so it supersedes one
		over = slices.DeleteFunc(slices.Clone(open), func(o queue.Task) bool { return o.Spec.Task != mariposa.TaskStop })
		open = slices.DeleteFunc(open, func(o queue.Task) bool { return o.Spec.Task == mariposa.TaskStop })
	}
	t.Project, t.ProjectName, t.Origin, t.Author, t.Created = e.record.ID, e.spec.Name, mariposa.OriginUser, e.req.actor(), e.afterTasks()
	t.Version, t.Number = e.spec.Version, e.spec.Number
	admission, err := queue.Admit(open, t)
	if err != nil {
		return e.explainRefusal(err)
	}
	id := e.c.NewID()
	e.answer.Task, e.task = &id, t
	e.unit.Audit[0].Reason = cmp.Or(e.unit.Audit[0].Reason, reason.Sentence(t.Reason))
	for _, old := range append(over, admission.Terminate...) {
		if (queue.Supersedes(old.Spec, t) || t.Patch.Accept) && old.State() == mariposa.TaskActive {
			e.endTask(old) // the planner ends it, as it keeps writing its progress
		} else {
			e.terminate(old, id)
		}
		e.answer.Ended = append(e.answer.Ended, e.noteEnded(old, t))
	}
	if e.isFrozen() && (t.LiftsFreeze || t.Patch.Mode == mariposa.ModeThaw) && !e.spec.Deleting {
		if err := e.requireWaitingAllowed(); err != nil {
			return err
		}
	}
	e.answer.Thawed = e.thawedServices(t)
	e.answer.Reason = joinReasons(e.answer.Reason, e.awaitedThaw(t))
	e.write(store.Write{Kind: mariposa.KindTask, ID: id, Spec: t}, "task.queued", t.Reason)
	if len(t.Services) == 1 {
		e.unit.Writes[len(e.unit.Writes)-1].Event.Service = t.Services[0]
	}
	return nil
}

// afterTasks returns the time of a new task: now, but after all open tasks. Tasks are
// ordered by time, and the clock of the replica that created the others may be ahead.
func (e *edit) afterTasks() time.Time {
	at := e.now
	for i := range e.tasks {
		if created := e.tasks[i].Spec.Created; !created.Before(at) {
			at = created.Add(time.Microsecond)
		}
	}
	return at
}

// awaitedThaw says that a new task waits for a thaw; empty if it does not.
func (e *edit) awaitedThaw(t *mariposa.TaskSpec) string {
	st := e.record.Status()
	if st == nil || !queue.AwaitsThaw(t) {
		return ""
	}
	names := st.FrozenServices(t.Services)
	if len(names) == 0 {
		return ""
	}
	if st.IsFrozen() {
		return fmt.Sprintf("%s is frozen: the change waits until you run %s", e.spec.Name, e.command("project thaw"))
	}
	return fmt.Sprintf("frozen: %s; the change waits until you run %s", strings.Join(names, ", "), e.command("project thaw --service "+strings.Join(names, " --service ")))
}

// thawedServices returns the services whose freeze a new task ends without ending the task of the
// freeze, which goes on for others.
func (e *edit) thawedServices(t *mariposa.TaskSpec) []string {
	st := e.record.Status()
	if st == nil || !t.LiftsFreeze || t.Patch.Mode == mariposa.ModeThaw {
		return nil
	}
	return slices.DeleteFunc(st.FrozenServices(t.Services), func(name string) bool {
		return slices.ContainsFunc(e.answer.Ended, func(old contract.EndedTask) bool {
			return old.Task == mariposa.TaskFreeze && queue.Overlap(old.Services, []string{name})
		})
	})
}

// isFrozen reports whether anything of the project is frozen.
func (e *edit) isFrozen() bool {
	st := e.record.Status()
	return st != nil && (st.Frozen || e.anyService(nil, func(ss *mariposa.ServiceStatus) bool { return ss.Frozen != nil }))
}

// noteEnded describes an older task that ends because of a new one. If it had not begun,
// the answer says how to request it again, unless a newer version or a deletion makes
// that pointless. New values take effect without their task.
func (e *edit) noteEnded(old queue.Task, by *mariposa.TaskSpec) contract.EndedTask {
	doc := contract.EndedTask{ID: old.ID, Task: old.Spec.Task, Services: append([]string{}, old.Spec.Services...), State: mariposa.TaskQueued, Reason: reason.Sentence(old.Spec.Reason)}
	if old.Status != nil {
		doc.State = old.Status.State
	}
	if len(old.Thawed) > 0 {
		doc.Services = append([]string{}, old.Kept...)
	}
	if doc.State == mariposa.TaskQueued && by.Patch.Number == 0 && by.Patch.Goal != mariposa.GoalDeleted && old.Spec.Component != string(mariposa.CauseMetadata) {
		doc.ContinueWith = e.command(continueCommand(old.Spec))
	}
	return doc
}

func (e *edit) terminate(old queue.Task, by string) {
	st := mariposa.TaskStatus{}
	if old.Status != nil {
		st = *old.Status
	}
	st.State, st.Finished, st.EndedBy, st.Reason = mariposa.TaskTerminated, e.now, by, &mariposa.Reason{Code: mariposa.ReasonEndedBy, Subject: by}
	e.endTask(old)
	e.unit.StatusUnchanged(e.seen[old.ID])
	e.write(store.Write{Kind: mariposa.KindTask, ID: old.ID, Status: &st, Archive: true}, "task.terminated", st.Reason)
	e.unit.Writes[len(e.unit.Writes)-1].Event.Task = old.ID
}

// endTask records that a task ends with this change.
func (e *edit) endTask(old queue.Task) {
	if e.ended == nil {
		e.ended = map[string]bool{}
	}
	e.ended[old.ID] = true
}

// finish reserves the quota of the goal, writes the Spec and returns the attempt.
func (e *edit) finish(why string) (*attempt, error) {
	if !e.spec.Deleting { // a deleted project returns its quota at the end
		if err := e.reserve(); err != nil {
			return nil, err
		}
	}
	spec := e.spec
	kind := "project.updated"
	if spec.Deleting {
		kind = "project.deleting"
	}
	e.write(store.Write{Kind: mariposa.KindProject, ID: e.record.ID, Spec: &spec}, kind, mariposa.Asked(why))
	return &e.attempt, nil
}
