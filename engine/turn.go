package engine

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"time"

	"mariposa"
	"mariposa/converge"
	"mariposa/queue"
	"mariposa/store"
)

// turn is one planning of one project: tasks start, the plan is made, its steps get
// nodes, and everything becomes one unit of the store.
type turn struct {
	*actor
	now          time.Time
	spec         *mariposa.ProjectSpec
	stored       *mariposa.ProjectStatus // as stored; nil before the first goal
	goal         *mariposa.ProjectStatus // as it will be stored
	open         []queue.Task
	changedTasks map[string]*mariposa.TaskStatus // tasks whose status changes
	newTasks     map[string]*mariposa.TaskSpec   // tasks that Mariposa opens itself
	plan         converge.Plan
	services     map[string]*mariposa.ServiceStatus // goal and status of every service after the plan
	blocked      map[string]*mariposa.Reason        // by service, the first reason why an instance of it cannot be created
	blockedMore  map[string]int                     // how many more instances are blocked
	withoutNode  map[fit]bool                       // services for which no node can run another instance
	unit         store.Unit
	claimed      []string
	touched      int  // instances that this turn writes
	made         int  // those of them that it creates or changes in place
	isTruncated  bool // there were more steps than one commit carries
	// completed: this turn records that the version in force is complete.
	completed   bool
	stallLimits map[string]time.Duration // how long tasks may make no progress, as far as computed
	networks    networks
	placedOn    map[string]bool          // nodes that get instances
	newShared   map[string]*store.Volume // shared volumes that this turn creates, by name
	written     map[string]bool          // existing volumes that this turn writes
	outdated    bool                     // an instance that this turn writes has changed since the view was read
	sized       map[string]int           // services whose volumes have the sizes of these versions, by id
}

func (a *actor) newTurn(ctx context.Context) (*turn, error) {
	t := &turn{
		actor: a, now: a.e.Clock.Now(), spec: a.record.Spec(), open: a.openTasks(),
		changedTasks: map[string]*mariposa.TaskStatus{}, newTasks: map[string]*mariposa.TaskSpec{}, blocked: map[string]*mariposa.Reason{},
		blockedMore: map[string]int{}, withoutNode: map[fit]bool{}, written: map[string]bool{}, newShared: map[string]*store.Volume{},
	}
	t.stored = a.record.Status()
	t.goal = t.stored
	return t, t.activate(ctx)
}

// run plans, turns steps into writes, judges the tasks and commits.
func (t *turn) run(ctx context.Context) error {
	if t.goal == nil {
		return nil // its first task has not arrived yet
	}
	if err := t.makePlan(ctx); err != nil {
		return err
	}
	steps := t.plan.Steps
	slices.SortStableFunc(steps, func(a, b converge.Step) int { return cmp.Compare(rank(a), rank(b)) })
	t.isTruncated = len(steps) >= maxSteps // there may be more
	for _, s := range steps {
		if len(t.unit.Writes) >= maxSteps { // blocked steps do not use up the limit
			break
		}
		t.writeStep(s)
	}
	if !t.spec.Deleting { // else they are given back with the others
		t.growVolumes()
		t.takeVolumes()
	}
	t.explainBlocks()
	t.explainFailedRollouts()
	t.services = t.plan.ApplyTo(t.goal.Services)
	t.judgeTasks()
	t.writeGoal()
	finished := t.isFinished()
	t.releaseNetworks(finished)
	if finished {
		if err := t.removeProject(ctx); err != nil {
			return err
		}
	}
	if err := t.commit(ctx); err != nil {
		return err
	}
	t.networksDirty = t.networksDirty && !t.networks.checkedUnused
	maps.Copy(t.sizedFor, t.sized)
	return nil
}

// explainBlocks records why no node can run instances of the blocked services.
func (t *turn) explainBlocks() {
	for name, why := range t.blocked {
		ss := *t.goal.Services[name]
		if said := t.plan.Services[name]; said != nil {
			ss = *said
		}
		switch why := why.AndMore(t.blockedMore[name]); {
		case !ss.Rollout.HasFailed():
			ss.Status, ss.Reason = mariposa.StatusBlocked, why
		case t.movesOff(name):
			ss.Drain = why
		default:
			continue // that is why no more instances of it are created
		}
		if t.plan.Services == nil {
			t.plan.Services = map[string]*mariposa.ServiceStatus{}
		}
		t.plan.Services[name] = &ss
	}
}

// explainFailedRollouts adds the reason why a service was blocked as the cause of a
// rollout that has just stopped: the plan does not know nodes.
func (t *turn) explainFailedRollouts() {
	if t.stored == nil {
		return
	}
	for name, ss := range t.plan.Services {
		was := t.stored.Services[name]
		if ss.Rollout == nil || ss.Rollout.FailureReason == nil || was == nil || was.Status != mariposa.StatusBlocked ||
			was.Rollout == nil || was.Rollout.FailureReason != nil {
			continue
		}
		ss.Rollout.FailureReason = ss.Rollout.FailureReason.Because(was.Reason) // the plan's own copy
		ss.Reason = ss.Rollout.FailureReason
	}
}

// fit is what an instance of a service needs of a node: perhaps a stable one.
type fit struct {
	service string
	stable  bool
}

func rank(s converge.Step) int {
	if s.Repair {
		return 0
	}
	return 1
}

// writeStep turns a step into writes. An instance that no node can run becomes a reason
// instead.
func (t *turn) writeStep(s converge.Step) {
	switch s.Action {
	case converge.Create:
		t.createInstance(s)
	case converge.Collect:
		i := t.view.Instance(s.Instance)
		t.putInstance(s, i.Spec, true, "instance.collected", t.taskOf(s))
		t.releaseClaim(i.Spec)
	case converge.Preserve:
		if t.mayLeave(s) {
			t.preserveInstance(s)
		}
	case converge.Remove:
		if !t.mayLeave(s) {
			return
		}
		spec := *t.view.Instance(s.Instance).Spec
		spec.Goal, spec.Generation, spec.Reason, spec.Task = mariposa.GoalGone, spec.Generation+1, s.Reason, t.taskOf(s)
		t.putInstance(s, &spec, false, "instance.stopping", spec.Task)
	case converge.Update:
		spec := *t.view.Instance(s.Instance).Spec
		spec.Number, spec.Live = s.Number, t.view.Definition(s.Number, s.Service).Live
		spec.Generation, spec.Reason, spec.Task = spec.Generation+1, s.Reason, t.taskOf(s)
		t.putInstance(s, &spec, false, "instance.updating", spec.Task)
	}
}

// preserveInstance stops an instance and keeps it for inspection. Once it has ended, it
// no longer uses its node's resources.
func (t *turn) preserveInstance(s converge.Step) {
	i := t.view.Instance(s.Instance)
	spec, kind := *i.Spec, "instance.stopping"
	if spec.Goal != mariposa.GoalHalted {
		spec.Goal, spec.Generation, spec.Reason, spec.Task = mariposa.GoalHalted, spec.Generation+1, s.Reason, t.taskOf(s)
	}
	if i.Ended() && !spec.Kept {
		t.releaseClaim(&spec)
		spec.Kept, kind = true, "instance.kept"
	}
	t.putInstance(s, &spec, false, kind, t.taskOf(s))
}

// releaseClaim releases the resources that an instance uses on its node.
func (t *turn) releaseClaim(spec *mariposa.InstanceSpec) {
	if take := spec.Resources(); take != (mariposa.Resources{}) {
		t.unit.GiveBack(spec.Node, take)
	}
}

func (t *turn) putInstance(s converge.Step, spec *mariposa.InstanceSpec, remove bool, kind, task string) {
	if s.Action != converge.Create {
		t.requireAsPlanned(s.Instance)
	}
	w := store.Write{Kind: mariposa.KindInstance, ID: s.Instance, Project: t.project, Delete: remove, Event: spec.Event(kind, s.Instance, "mariposa", s.Reason)}
	if w.Event.Task = task; !remove {
		w.Spec = spec
	}
	t.unit.Put(w)
	t.touched++
	if s.Action == converge.Create || s.Action == converge.Update {
		t.made++
	}
	t.unit.Urgent = t.unit.Urgent || s.Repair
}

// requireAsPlanned requires that an instance is still as this turn knows it: a person may
// have restarted, killed or replaced it meanwhile, or removed its node.
func (t *turn) requireAsPlanned(id string) {
	r := t.e.Picture.Instances.Get(id)
	if known := t.view.Instance(id).Spec; r == nil || r.Spec() != known && !reflect.DeepEqual(r.Spec(), known) {
		t.outdated = true
		return
	}
	t.unit.Unchanged(r)
}

// createInstance creates an instance. One that has volumes is placed on their node. If
// that is not possible, its slot waits; the other slots of its service do not.
func (t *turn) createInstance(s converge.Step) {
	def := t.view.Definition(s.Number, s.Service)
	service := t.goal.Services[s.Service].ID
	st, why := t.storageOf(s, def, service)
	switch {
	case why != nil:
		t.block(s.Service, why)
		return
	case st.node == "" && st.near == "" && (t.withoutNode[fit{s.Service, s.Stable}] || t.withoutNode[fit{s.Service, false}]):
		return // the next one of the same service does not fit either
	}
	s.Instance = t.e.NewID()
	spec := &mariposa.InstanceSpec{
		Name: fmt.Sprintf("%s.%d-%s", s.Service, s.Slot, s.Instance[len(s.Instance)-6:]), Slot: s.Slot,
		Project: t.project, Service: service, ServiceName: s.Service,
		Number: s.Number, Digest: def.Digest, Live: def.Live, Compute: def.Compute,
		Goal: mariposa.GoalRunning, Generation: 1, Reason: s.Reason, Created: t.now, Managed: true,
		Memory: def.Memory, MilliCPU: def.MilliCPU, Ports: def.FixedPorts(), Mounts: st.mounts,
		Bindings: s.Bindings, Bound: s.Bound,
	}
	node, ok := t.pickNode(s, spec, def, st)
	if !ok {
		return
	}
	t.claimed = append(t.claimed, s.Instance)
	spec.Node, spec.Task = node.ID, t.taskOf(s)
	t.useVolumes(s, spec, def, st)
	t.useNetworks(s, spec, def)
	t.putInstance(s, spec, false, "instance.provisioning", spec.Task)
	t.unit.Take(node.ID, spec.Resources(), node.Capacity)
}

// writeGoal stores the project's goal and the status of its services, as far as
// they have changed.
func (t *turn) writeGoal() {
	st := *t.goal
	st.Services = t.services
	st.Status, st.Reason = projectStatus(&st, t.plan.Todo)
	st.Reason = t.guard.explain(st.Reason)
	t.completeGoalVersion(&st)
	before := len(t.unit.Writes)
	if t.inline || t.stored == nil || !sameExceptServices(t.stored, &st) {
		alone := st
		alone.Services = nil // they have their own records
		w := store.Write{Kind: mariposa.KindProject, ID: t.project, Project: t.project, Status: &alone}
		if t.stored == nil || !differInStorm(t.stored, &st) {
			w.Event = mariposa.OwnEvent("project."+string(st.Status), t.project, st.Reason)
		}
		t.unit.Put(w)
	}
	t.writeServices(st.Services)
	if len(t.unit.Writes) > before {
		t.goal = &st
	}
}

// differInStorm reports whether two statuses of a project differ only in what they say
// about nodes that were lost at once: how many there are by now. That is no event.
func differInStorm(a, b *mariposa.ProjectStatus) bool {
	if !a.Reason.Is(mariposa.ReasonStorm) || !b.Reason.Is(mariposa.ReasonStorm) {
		return false
	}
	x, y := *a, *b
	x.Reason, y.Reason = nil, nil
	return sameExceptServices(&x, &y)
}

// projectStatus returns the status of the project as a whole: that of its worst
// service. Its reason names one of those and counts the others with that
// status.
func projectStatus(st *mariposa.ProjectStatus, todo int) (mariposa.Status, *mariposa.Reason) {
	worst, most, others, stranded := "", 0, 0, ""
	for name, ss := range st.Services {
		if ss.Reason.Is(mariposa.ReasonStranded) && (stranded == "" || name < stranded) {
			stranded = name
		}
		switch bad := severity[ss.Status]; {
		case bad == 0 || bad < most:
		case bad > most:
			worst, most, others = name, bad, 0
		default:
			worst, others = min(worst, name), others+1
		}
	}
	switch ss := st.Services[worst]; {
	case ss != nil:
		return ss.Status, ss.Reason.About(worst).AndMoreServices(others)
	case todo > 0:
		return mariposa.StatusConverging, &mariposa.Reason{Code: mariposa.ReasonLeftovers}
	case st.Goal == mariposa.GoalStopped && st.RollbackReason != nil:
		return mariposa.StatusStopped, (&mariposa.Reason{Code: mariposa.ReasonNoFallback, Version: st.RolledBack}).Because(st.RollbackReason.Root())
	}
	var left *mariposa.Reason
	if stranded != "" {
		left = st.Services[stranded].Reason.About(stranded)
	}
	if st.Goal == mariposa.GoalStopped {
		return mariposa.StatusStopped, left
	}
	return mariposa.StatusConverged, left
}

// severity ranks the statuses of services: the highest determines the status of the
// project. A freeze or a pause of some services does not hide what the others do.
var severity = map[mariposa.Status]int{
	mariposa.StatusFailed: 7, mariposa.StatusBlocked: 6, mariposa.StatusBackingOff: 5, mariposa.StatusHeld: 4,
	mariposa.StatusConverging: 3, mariposa.StatusPaused: 2, mariposa.StatusFrozen: 1,
}

func rankOf(w store.Write) int {
	if w.Kind == mariposa.KindTask {
		return 0
	}
	return 1
}

// commit stores the turn and sets the next wake-up.
func (t *turn) commit(ctx context.Context) error {
	t.e.gate.Set(t.project, t.view.Starting(t.now)+len(t.claimed))
	var res store.Result
	if len(t.unit.Writes) > 0 {
		// Tasks come first in the feed, so that no reader sees a step before its task.
		slices.SortStableFunc(t.unit.Writes, func(a, b store.Write) int { return cmp.Compare(rankOf(a), rankOf(b)) })
		t.unit.Fences = []store.Fence{{Lease: leaseName(t.shard), Epoch: t.epoch}}
		if res.Err = store.ErrConflict; !t.outdated {
			res = t.e.Store.Commit(ctx, t.unit)[0]
		}
		if res.Err != nil {
			for _, id := range t.claimed {
				t.e.placer.Release(id)
			}
			return res.Err
		}
		t.ownRevision = res.Last
	}
	t.inline = false
	t.countCommit(res)
	t.sleep()
	t.view.ForgetVersions()
	wake := t.plan.Wake
	if len(t.blocked) > 0 {
		t.e.mu.Lock()
		t.e.blocked[t.project] = true
		t.e.mu.Unlock()
		if again := t.now.Add(10 * time.Second); wake.IsZero() || again.Before(wake) {
			wake = again // in case the notification of free capacity was missed
		}
	}
	if at := t.nextStall(); !at.IsZero() && (wake.IsZero() || at.Before(wake)) {
		wake = at
	}
	if wake = t.guard.delayWake(wake); !wake.IsZero() {
		t.wakeIn(wake.Sub(t.now))
	}
	return nil
}
