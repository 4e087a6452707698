package engine

import (
	"context"
	"slices"

	"mariposa"
	"mariposa/converge"
	"mariposa/picture"
	"mariposa/queue"
	"mariposa/reason"
	"mariposa/store"
)

// followComponent is the component of a task that updates a service to the services that
// it refers to.
const followComponent = "follow"

// status returns a task's status as it will be after this turn.
func (t *turn) status(task queue.Task) *mariposa.TaskStatus {
	if st := t.changedTasks[task.ID]; st != nil {
		return st
	}
	if task.Status != nil {
		return task.Status
	}
	return &mariposa.TaskStatus{State: mariposa.TaskQueued}
}

// setTask changes a task's status in this turn.
func (t *turn) setTask(id string, f func(*mariposa.TaskStatus)) {
	st := t.changedTasks[id]
	if st == nil {
		st = &mariposa.TaskStatus{State: mariposa.TaskQueued}
		if old := t.tasks[id].Status(); old != nil {
			*st = *old
		}
		t.changedTasks[id] = st
	}
	f(st)
}

// taskOf finds the task that a step belongs to: the newest one of a person in that scope,
// otherwise one of Mariposa, which is opened if there is none.
func (t *turn) taskOf(s converge.Step) string {
	var own string
	for _, task := range slices.Backward(t.open) {
		if t.status(task).State != mariposa.TaskActive || !t.doesWorkFor(task, s.Service) {
			continue
		}
		if task.Spec.Origin == mariposa.OriginUser {
			return task.ID
		}
		own = task.ID
	}
	if own != "" {
		return own
	}
	id, why := t.e.NewID(), s.Reason
	if i := t.view.Instance(s.Instance); s.Action == converge.Collect && i != nil {
		why = &mariposa.Reason{Code: mariposa.ReasonClears, Subject: i.Spec.Name}
	}
	kind, component := mariposa.TaskScale, "repair"
	if ss := t.goal.Services[s.Service]; ss != nil && ss.Rollout != nil && ss.Rollout.Follows != "" {
		kind, component = mariposa.TaskReprovision, followComponent
	} else if t.onlyClears(s.Service) {
		component = "cleanup"
		if service := t.plan.Services[s.Service]; service != nil && service.Status == mariposa.StatusBackingOff { // the next retry is part of it
			component, why = "repair", service.Reason
		}
	}
	spec := &mariposa.TaskSpec{
		Project: t.project, ProjectName: t.spec.Name, Services: []string{s.Service}, Component: component, Task: kind,
		Origin: mariposa.OriginMariposa, Author: "mariposa", Reason: why.About(s.Service), Created: t.now, Version: t.goal.Version, Number: t.goal.Number,
	}
	action := "instance.repair"
	if s.Drains != "" {
		t.drainTask(spec, s.Drains)
		action = "instance.move"
	}
	st := &mariposa.TaskStatus{State: mariposa.TaskActive, Started: t.now, LastProgress: t.now}
	t.newTasks[id], t.changedTasks[id] = spec, st
	t.unit.Audit = append(t.unit.Audit, mariposa.Audit{
		Actor: "mariposa", ActorName: "mariposa", Action: action, Outcome: mariposa.AuditDone,
		Kind: string(mariposa.KindInstance), Object: s.Instance, Organization: t.spec.Organization,
		Project: t.project, ProjectName: t.spec.Name, Version: t.goal.Version, Number: t.goal.Number, Task: id, Reason: reason.Sentence(spec.Reason),
	})
	t.open = append(t.open, queue.Task{ID: id, Spec: spec, Status: st})
	return id
}

// onlyClears reports whether this turn only removes ended instances of a service.
func (t *turn) onlyClears(service string) bool {
	for _, s := range t.plan.Steps {
		if s.Service != service || s.Action == converge.Collect {
			continue
		}
		i := t.view.Instance(s.Instance)
		if s.Action != converge.Remove && s.Action != converge.Preserve || s.Repair || i == nil || !i.Ended() {
			return false
		}
	}
	return true
}

// doesWorkFor reports whether a task does the work on a service. A freeze does so only
// while the service is frozen, until it has settled.
func (t *turn) doesWorkFor(task queue.Task, service string) bool {
	if !t.isInScope(task, service) {
		return false
	}
	ss := t.goal.Services[service]
	return task.Spec.Patch.Mode != mariposa.ModeFreeze || ss != nil && ss.Frozen != nil
}

// judgeTasks updates the progress of tasks and ends those that are done or
// failed.
func (t *turn) judgeTasks() {
	for _, task := range t.open {
		if t.status(task).State == mariposa.TaskActive {
			t.judgeTask(task)
		}
	}
	for _, task := range t.open {
		t.writeTask(task)
	}
}

func (t *turn) judgeTask(task queue.Task) {
	todo := t.countTodo(task)
	was, why := t.status(task), t.whyFailed(task)
	p, gotOn := was.Progress, was.Remaining == 0 || todo < was.Remaining // repeated failures are not progress
	if why == nil && was.Fault == nil {                                  // giving up and undoing leave less to do, but are not progress
		p = advance(p, todo+t.countHeldBack(task), gotOn)
	}
	if p != was.Progress || gotOn && todo != was.Remaining {
		t.setTask(task.ID, func(st *mariposa.TaskStatus) {
			if p.Done > st.Progress.Done || gotOn && st.Remaining > 0 {
				st.LastProgress = t.now
			}
			if st.Progress = p; gotOn {
				st.Remaining = todo
			}
		})
	}
	switch by := t.takenOverBy(task); {
	case by != "":
		t.endTask(task, mariposa.TaskCompleted, &mariposa.Reason{Code: mariposa.ReasonTakenOver, Subject: by}, by)
	case task.Spec.Patch.Mode == mariposa.ModeFreeze: // until the thaw
	case why != nil:
		t.endTask(task, mariposa.TaskFailed, why, "")
	case todo == 0 && was.Fault != nil:
		t.endTask(task, mariposa.TaskFailed, was.Fault, "")
	case todo == 0:
		t.endTask(task, mariposa.TaskCompleted, nil, "")
		t.completeVersion(task)
	}
}

// advance updates progress. Neither the work done nor its share of the total ever
// decreases: work that is added later only slows the progress. Work counts as done only if
// less is left than ever before; cleaning up after a failed attempt does not count.
func advance(p mariposa.Progress, todo int, gotOn bool) mariposa.Progress {
	if p.Done == 0 {
		p.Total = max(p.Total, todo)
	}
	if gotOn {
		p.Done = max(p.Done, p.Total-todo)
	}
	return p
}

// countTodo returns how far a task's scope is from the goal, in instances. A
// scale does not take part in a paused rollout.
func (t *turn) countTodo(task queue.Task) int {
	if len(task.Spec.Services) == 0 {
		return t.plan.Todo + t.unmanagedLeft()
	}
	left := t.view.Todo
	if task.Spec.Task == mariposa.TaskScale && task.Spec.Patch.Number == 0 {
		left = t.view.TodoUnpaused
	}
	n := 0
	for _, name := range unique(task.Spec.Services) {
		n += left(name)
	}
	return n
}

// countHeldBack returns how much work a task has left in rollouts that are held.
func (t *turn) countHeldBack(task queue.Task) (n int) {
	if task.Spec.Task == mariposa.TaskReprovision {
		t.eachService(task.Spec.Services, func(name string, _ *mariposa.ServiceStatus) { n += t.view.HeldBack(name) })
	}
	return n
}

// eachService calls f for the services of a scope in no particular order; for all
// services if the scope is empty.
func (t *turn) eachService(services []string, f func(name string, ss *mariposa.ServiceStatus)) {
	if len(services) == 0 {
		for name, ss := range t.services {
			f(name, ss)
		}
		return
	}
	for _, name := range unique(services) {
		if ss := t.services[name]; ss != nil {
			f(name, ss)
		}
	}
}

// unique returns every name once. It does not copy names that are unique
// already: there may be very many.
func unique(names []string) []string {
	for i := 1; i < len(names); i++ {
		if names[i-1] >= names[i] {
			return slices.Compact(slices.Sorted(slices.Values(names)))
		}
	}
	return names
}

// isInScope reports whether a service is in a task's scope.
func (a *actor) isInScope(task queue.Task, service string) bool {
	const few = 16
	names := task.Spec.Services
	if len(names) <= few {
		return len(names) == 0 || slices.Contains(names, service)
	}
	scope := a.scopes[task.ID]
	if scope == nil {
		scope = make(map[string]struct{}, len(names))
		for _, name := range names {
			scope[name] = struct{}{}
		}
		if a.scopes == nil {
			a.scopes = map[string]map[string]struct{}{}
		}
		a.scopes[task.ID] = scope
	}
	_, in := scope[service]
	return in
}

// takenOverBy finds the person's task that takes over the work of one of
// Mariposa's.
func (t *turn) takenOverBy(task queue.Task) string {
	if task.Spec.Origin != mariposa.OriginMariposa {
		return ""
	}
	for _, o := range t.open {
		if task.Spec.Component == rollbackComponent && !o.Spec.Created.After(task.Spec.Created) {
			continue // a rollback was not requested by a person: only a later task ends it
		}
		if o.Spec.Origin == mariposa.OriginUser && t.status(o).State == mariposa.TaskActive &&
			slices.ContainsFunc(task.Spec.Services, func(name string) bool { return t.doesWorkFor(o, name) }) {
			return o.ID
		}
	}
	return ""
}

func (t *turn) endTask(task queue.Task, state mariposa.TaskState, why *mariposa.Reason, by string) {
	t.setTask(task.ID, func(st *mariposa.TaskStatus) {
		st.State, st.Finished, st.Reason, st.EndedBy = state, t.now, why, by
		if state == mariposa.TaskCompleted && by == "" && t.countHeldBack(task) == 0 {
			st.Progress.Done = st.Progress.Total
		}
	})
}

// completeVersion records that the version of a task is fully in force.
func (t *turn) completeVersion(task queue.Task) {
	if n := task.Spec.Patch.Number; n != 0 && n == t.goal.Number && t.isAtRest() {
		t.markCompleted(task.ID)
	}
}

// completeGoalVersion records that the version in force is complete, whether a
// task brought it or not.
func (t *turn) completeGoalVersion(st *mariposa.ProjectStatus) {
	if st.Completed == st.Number {
		st.Fallback = nil
	}
	if st.Number == 0 || st.Completed == st.Number || st.Goal != mariposa.GoalStarted || st.Status != mariposa.StatusConverged || !t.isAtRest() {
		return
	}
	st.Completed, st.Fallback = st.Number, nil
	t.markCompleted("")
}

// isAtRest reports whether everything matches the goal, and nothing is held back from it
// or was accepted in another state.
func (t *turn) isAtRest() bool {
	if t.plan.Todo > 0 {
		return false
	}
	for _, ss := range t.services {
		if ss.Status != mariposa.StatusConverged && ss.Status != mariposa.StatusStopped || ss.Accepted {
			return false
		}
	}
	return true
}

// markCompleted records, once in a turn, that the version in force is complete.
func (t *turn) markCompleted(task string) {
	if t.completed {
		return
	}
	t.completed = true
	t.unit.Put(store.Write{
		Kind: mariposa.KindVersion, ID: mariposa.VersionID(t.project, t.goal.Number), Status: &mariposa.VersionStatus{Completed: t.now},
		Event: mariposa.Event{Kind: "version.completed", Project: t.project, Task: task, Actor: "mariposa"},
	})
}

func (t *turn) writeTask(task queue.Task) {
	st := t.changedTasks[task.ID]
	if st == nil {
		return
	}
	w := store.Write{
		Kind: mariposa.KindTask, ID: task.ID, Project: t.project, Status: st, Archive: st.State.Ended(),
		Event: mariposa.Event{Kind: "task." + string(st.State), Project: t.project, Task: task.ID, Actor: "mariposa", Reason: st.Reason},
	}
	if len(task.Spec.Services) == 1 {
		w.Event.Service = task.Spec.Services[0]
	}
	if spec := t.newTasks[task.ID]; spec != nil {
		w.Spec, w.Event.Reason = spec, spec.Reason
	} else {
		old := t.tasks[task.ID]
		if was := old.Status(); was != nil && was.State == st.State {
			w.Event.Kind = "task.progress"
		}
		t.unit.StatusUnchanged(old)
	}
	t.unit.Put(w)
}

// isFinished reports whether a project that is being deleted has no reachable
// instance left.
func (t *turn) isFinished() bool {
	return t.spec.Deleting && t.goal.Goal == mariposa.GoalDeleted && len(t.unreachableInstances()) == t.view.Len() && !t.isTruncated && t.unmanagedLeft() == 0
}

// unmanagedLeft counts the unmanaged instances of a project that is being deleted that reachable
// nodes have yet to remove. They are not in the view.
func (t *turn) unmanagedLeft() (n int) {
	if !t.spec.Deleting {
		return 0
	}
	on := map[string]int{}
	t.e.Picture.EachInstanceOf(t.project, func(i *store.Instance) bool {
		if !i.Spec().Managed {
			on[i.Spec().Node]++
		}
		return true
	})
	for node, count := range on {
		if r := t.e.Picture.Nodes.Get(node); r != nil && !picture.NodeOf(r).Unknown {
			n += count
		}
	}
	return n
}

// unreachableInstances lists the unwanted instances on unreachable nodes.
func (t *turn) unreachableInstances() []*converge.Instance {
	return t.view.UnwantedOn(func(n converge.Node) bool { return n.Unknown })
}

// removeProject removes the project. Instances on unreachable nodes become orphaned
// instances, which are removed when the nodes return.
func (t *turn) removeProject(ctx context.Context) error {
	for _, i := range t.unreachableInstances() {
		spec := *i.Spec
		spec.Orphaned = true
		if spec.Goal != mariposa.GoalGone { // its goal was to be stopped and kept
			spec.Goal, spec.Generation = mariposa.GoalGone, spec.Generation+1
		}
		t.putInstance(converge.Step{Instance: i.ID, Service: spec.ServiceName, Reason: &mariposa.Reason{Code: mariposa.ReasonOrphaned}}, &spec, false, "instance.debt", spec.Task)
	}
	for _, task := range t.open {
		if !t.status(task).State.Ended() {
			t.endTask(task, mariposa.TaskCompleted, nil, "")
			t.replaceTask(task)
		}
	}
	t.unit.Writes = slices.DeleteFunc(t.unit.Writes, func(w store.Write) bool {
		return w.Kind == mariposa.KindProject || w.Kind == mariposa.KindService
	})
	for _, kind := range []mariposa.Kind{mariposa.KindService, mariposa.KindVersion, mariposa.KindMetadata, mariposa.KindPart} {
		if err := t.deleteAll(ctx, kind); err != nil {
			return err
		}
	}
	t.unit.Delete(mariposa.KindKey, t.project, mariposa.OwnEvent("key.deleted", t.project, nil))
	t.releaseVolumes()
	t.releaseQuota()
	t.unit.Delete(mariposa.KindProject, t.project, mariposa.OwnEvent("project.deleted", t.project, &mariposa.Reason{Code: mariposa.ReasonNothingLeft}))
	return nil
}

// deleteAll removes every object of a kind that belongs to the project.
func (t *turn) deleteAll(ctx context.Context, kind mariposa.Kind) error {
	all, err := t.e.Store.List(ctx, store.Query{Kind: kind, Project: t.project})
	if err != nil {
		return err
	}
	for _, r := range all {
		t.unit.Delete(kind, r.ID, mariposa.OwnEvent(string(kind)+".deleted", t.project, nil))
	}
	return nil
}

// releaseQuota returns the project's share of its organization's quota.
func (t *turn) releaseQuota() {
	resources, projects := mariposa.LedgerOf(t.spec.Organization)
	t.unit.GiveBack(resources, t.spec.Demand)
	t.unit.GiveBack(projects, mariposa.Resources{Instances: 1})
}

// replaceTask replaces an earlier write of a task in this turn.
func (t *turn) replaceTask(task queue.Task) {
	mine := func(w store.Write) bool { return w.Kind == mariposa.KindTask && w.ID == task.ID }
	t.unit.Writes = slices.DeleteFunc(t.unit.Writes, mine)
	t.unit.Require = slices.DeleteFunc(t.unit.Require, func(r store.Require) bool { return r.ID == task.ID })
	t.writeTask(task)
}
