package change

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"mariposa"
	"mariposa/auth"
	"mariposa/contract"
	"mariposa/queue"
	"mariposa/reason"
)

// Action is a change of the goal of a project, or of some of its services.
type Action struct {
	Action    string // start, stop, scale, reprovision, revert, freeze, thaw, pause, resume, converge or accept
	Services  []string
	Version   string
	Rolling   mariposa.Amount
	Canary    mariposa.Amount
	Scale     map[string]Scaling // by service; of a revert: scales to set with it
	Filter    *Filter            // for a reprovision; nil selects all
	All       bool               // for a reprovision: replace everything, though rollouts are held
	WithScale bool               // for a revert: restore its scales too
	Message   string             // for a revert

	RescheduleNow bool // for a converge: also replace the instances on lost nodes now
}

// Filter selects the instances that match all given fields, by name or id.
type Filter struct {
	Services, Instances, Nodes []string
	Version, Image             string
}

// Act changes the goal of a project.
func (c *Changer) Act(ctx context.Context, req *Request, project string, a Action) (*contract.Changed, error) {
	return c.change(ctx, req, project, func(e *edit) (*attempt, error) {
		why, err := e.act(a)
		if err != nil || why == "" {
			return &e.attempt, err
		}
		return e.finish(why)
	})
}

// act adds an action to a change and returns the reason; an empty one means there is
// nothing to do.
func (e *edit) act(a Action) (string, error) {
	switch a.Action {
	case "revert":
		return e.revert(a)
	case "start":
		if a.Version != "" {
			return e.startAt(a)
		}
		return e.add(e.setGoal(mariposa.TaskStart, mariposa.GoalStarted, a.Services))
	case "stop":
		if a.Version != "" {
			return e.add(e.stopVersion(a))
		}
		return e.add(e.setGoal(mariposa.TaskStop, mariposa.GoalStopped, a.Services))
	case "reprovision":
		return e.add(e.reprovision(a))
	case "scale":
		return e.add(e.scale(a.Scale))
	case "freeze", "thaw", "pause", "resume", "converge", "accept":
		if a.RescheduleNow { // it overrides what protects the whole installation
			if err := e.c.Directory.Require(e.req.Caller, auth.Operate, e.record.Record()); err != nil {
				return "", err
			}
		}
		return e.add(e.immediateTask(a))
	}
	return "", invalid("unknown action %q for a project", shorten(a.Action))
}

// add adds a task, if there is one.
func (e *edit) add(task *mariposa.TaskSpec, err error) (string, error) {
	if err != nil || task == nil {
		return "", err
	}
	return reason.Sentence(task.Reason), e.admit(task)
}

// scope resolves the services that an action names, sorted; none means the whole
// project.
func (e *edit) scope(refs []string) ([]string, error) {
	goals := e.goals()
	var names []string
	for _, ref := range refs {
		name, err := e.findService(goals, ref)
		if err != nil {
			return nil, err
		}
		names = append(names, name)
	}
	slices.Sort(names)
	return slices.Compact(names), nil
}

// mayLiftFreeze reports whether a task of this caller lifts a freeze, which requires
// an operator.
func (e *edit) mayLiftFreeze() bool {
	return e.c.Directory.May(e.req.Caller, auth.Operate, e.record.Record()) == auth.Allowed
}

// setGoal starts or stops the whole project or some services. It does nothing if that
// is the goal already and no task is open.
func (e *edit) setGoal(kind mariposa.TaskKind, goal mariposa.ProjectGoal, refs []string) (*mariposa.TaskSpec, error) {
	names, err := e.scope(refs)
	if err != nil {
		return nil, err
	}
	if e.isAtGoal(goal, names) && e.isIdle(names) && (goal == mariposa.GoalStopped || !e.hasNoVersion()) {
		return nil, nil
	}
	why := e.req.actor() + " asked to " + string(kind) + " " + cmp.Or(strings.Join(names, ", "), "it")
	patch := mariposa.Patch{Goal: goal}
	if goal == mariposa.GoalStarted && e.neverBegan() {
		patch.Number = e.spec.Number // the task that would have rolled it out was ended before it began
	}
	return &mariposa.TaskSpec{
		Task: kind, Component: "project", Services: names, LiftsFreeze: e.mayLiftFreeze(), Reason: mariposa.Asked(why), Patch: patch,
	}, nil
}

// neverBegan reports whether a start has to roll out the newest version: no version is
// in force or on its way, or the project was stopped before any version completed.
func (e *edit) neverBegan() bool {
	st := e.record.Status()
	return st == nil || st.Number == 0 || st.Completed == 0 && st.Goal != mariposa.GoalStarted && e.isNewestDropped()
}

// requireVersion refuses an action unless a version is in force or on its way.
func (e *edit) requireVersion() error {
	if e.hasNoVersion() {
		return conflict("no version of %s is in force: start it first", e.spec.Name)
	}
	return nil
}

// isAtGoal reports whether a scope already has a goal and no part of it is frozen.
func (e *edit) isAtGoal(goal mariposa.ProjectGoal, names []string) bool {
	st := e.record.Status()
	if st == nil || st.Frozen || (st.Goal != goal && !(len(names) > 0 && goal == mariposa.GoalStopped)) {
		return false
	}
	for name, ss := range st.Services {
		if len(names) > 0 && !slices.Contains(names, name) {
			continue
		}
		rests := ss.Stopped || st.Goal != mariposa.GoalStarted
		if ss.Frozen != nil || rests != (goal == mariposa.GoalStopped) {
			return false
		}
		if goal == mariposa.GoalStarted && ss.Rollout.HasFailed() {
			return false // a start retries it
		}
	}
	return true
}

// immediateTask returns a task that begins at once, whatever else is in progress.
func (e *edit) immediateTask(a Action) (*mariposa.TaskSpec, error) {
	action := a.Action
	names, err := e.scope(a.Services)
	if err != nil {
		return nil, err
	}
	t := &mariposa.TaskSpec{Component: action, Services: names, Immediate: true}
	st := e.record.Status()
	if st == nil && action != "freeze" {
		return nil, e.refuseUnplanned(action)
	}
	switch action {
	case "freeze":
		t.Task, t.Immediate, t.Patch.Mode = mariposa.TaskFreeze, false, mariposa.ModeFreeze
	case "thaw":
		t.Task, t.Patch.Mode = mariposa.TaskFreeze, mariposa.ModeThaw
		frozen := e.anyService(names, func(ss *mariposa.ServiceStatus) bool { return ss.Frozen != nil }) || len(names) == 0 && st.Frozen
		if !frozen && !e.hasQueuedFreeze(names) {
			return nil, nil
		}
	case "pause":
		t.Task, t.Patch.Mode = mariposa.TaskFreeze, mariposa.ModePause
		if !e.anyService(names, func(ss *mariposa.ServiceStatus) bool { return !ss.Paused }) && !e.hasQueuedMode(names, mariposa.ModeResume) {
			return nil, nil
		}
	case "resume":
		t.Task, t.Patch.Mode = mariposa.TaskFreeze, mariposa.ModeResume
		if !e.anyService(names, func(ss *mariposa.ServiceStatus) bool { return ss.Paused }) && !st.Paused && !e.hasQueuedMode(names, mariposa.ModePause) {
			return nil, nil
		}
	case "converge":
		t.Task, t.Patch.Retry, t.Patch.Reschedule = mariposa.TaskScale, true, a.RescheduleNow
		if st.Status == mariposa.StatusConverged || st.Goal != mariposa.GoalStarted {
			return nil, nil
		}
		if t.Services, err = e.withoutFrozen(names); err != nil {
			return nil, err
		}
		if a.RescheduleNow {
			err = e.requireReplaceable(t.Services)
		}
		if err != nil {
			return nil, err
		}
	case "accept":
		t.Task, t.Patch.Accept = mariposa.TaskScale, true
	}
	why := e.req.actor() + " asked to " + action + " " + cmp.Or(strings.Join(t.Services, ", "), "it")
	if a.RescheduleNow {
		why += ", and to replace its instances on lost nodes now"
	}
	t.Reason = mariposa.Asked(why)
	return t, nil
}

// refuseUnplanned says why nothing can be done with a project without a status: it was not
// planned yet, or its start was terminated before it began.
func (e *edit) refuseUnplanned(action string) error {
	switch {
	case len(e.tasks) > 0:
		return conflict("project %s has not been planned yet, so there is nothing to %s: try again shortly", e.spec.Name, action)
	case action == "thaw" || action == "resume":
		return nil
	}
	return conflict("project %s was never started, so there is nothing to %s: start it first with %s", e.spec.Name, action, e.command("project start"))
}

// requireReplaceable refuses to replace instances on lost nodes if that is all that is missing,
// and the manifest says that they are never replaced.
func (e *edit) requireReplaceable(names []string) error {
	var never []string
	var node string
	for name, ss := range e.record.Status().Services {
		if len(names) > 0 && !slices.Contains(names, name) || ss.Status == mariposa.StatusConverged || ss.Status == mariposa.StatusStopped {
			continue
		}
		if !ss.Reason.Is(mariposa.ReasonNodeAwayNever) {
			return nil
		}
		never, node = append(never, name), ss.Reason.Node
	}
	if len(never) == 0 {
		return nil
	}
	slices.Sort(never)
	return conflict("instances of %s on lost nodes are never replaced, because reschedule.never is set: update the manifest, wait for node %s to return, or ask an admin of the installation to remove it with `mariposa node rm %s --force`",
		strings.Join(never, ", "), node, node)
}

// withoutFrozen returns the part of a scope that is not frozen: frozen services are
// not retried.
func (e *edit) withoutFrozen(names []string) ([]string, error) {
	if !e.anyService(names, func(ss *mariposa.ServiceStatus) bool { return ss.Frozen != nil }) {
		return names, nil
	}
	var rest []string
	for name, ss := range e.record.Status().Services {
		if ss.Frozen == nil && (len(names) == 0 || slices.Contains(names, name)) {
			rest = append(rest, name)
		}
	}
	if len(rest) == 0 {
		return nil, conflict("%s is frozen: nothing is retried until it is thawed (project thaw)", cmp.Or(strings.Join(names, ", "), e.spec.Name))
	}
	slices.Sort(rest)
	return rest, nil
}

// anyService reports whether a predicate is true for some service of a scope.
func (e *edit) anyService(names []string, is func(*mariposa.ServiceStatus) bool) bool {
	st := e.record.Status()
	if st == nil {
		return false
	}
	for name, ss := range st.Services {
		if (len(names) == 0 || slices.Contains(names, name)) && is(ss) {
			return true
		}
	}
	return false
}

// hasQueuedFreeze reports whether a freeze of a scope is about to begin. What an active
// one still keeps frozen is in the status of the services: it may have been thawed in part.
func (e *edit) hasQueuedFreeze(names []string) bool {
	return slices.ContainsFunc(e.tasks, func(t queue.Task) bool {
		return t.IsFreeze() && t.State() == mariposa.TaskQueued && queue.Overlap(t.Spec.Services, names)
	})
}

// hasQueuedMode reports whether a pause or resume of a scope is about to begin.
func (e *edit) hasQueuedMode(names []string, mode mariposa.Mode) bool {
	return slices.ContainsFunc(e.tasks, func(t queue.Task) bool {
		return t.Spec.Patch.Mode == mode && t.State() == mariposa.TaskQueued && queue.Overlap(t.Spec.Services, names)
	})
}

// goals returns the services that can be acted on: those in force and not being
// removed, and those of the newest manifest, whose task may still be waiting.
func (e *edit) goals() map[string]*mariposa.ServiceStatus {
	goals := map[string]*mariposa.ServiceStatus{}
	if newest, _ := e.newest(); newest != nil { // a lost version has no services
		goals = newest.InitialGoals(e.spec.Services)
	}
	if st := e.record.Status(); st != nil {
		for name, ss := range st.Services {
			if !ss.Removed {
				goals[name] = ss
			}
		}
	}
	return goals
}

func (e *edit) findService(goals map[string]*mariposa.ServiceStatus, ref string) (string, error) {
	if goals[ref] != nil {
		return ref, nil
	}
	for name, ss := range goals {
		if ss.ID == ref {
			return name, nil
		}
	}
	return "", mariposa.UnknownService(e.spec.Name, ref, slices.Collect(maps.Keys(goals)))
}

func shorten(text string) string {
	if len(text) > 40 {
		return text[:40] + "…"
	}
	return text
}

// MaxScale bounds a service's scale, to catch typing errors.
const MaxScale = 1_000_000

// Scaling is a requested scale of one service: a number, or a difference.
type Scaling struct {
	N  int
	By bool
}

func (c Scaling) String() string {
	if c.By {
		return fmt.Sprintf("by %+d", c.N)
	}
	return fmt.Sprintf("to %d", c.N)
}

// scale changes the scales of services in one task.
func (e *edit) scale(scales map[string]Scaling) (*mariposa.TaskSpec, error) {
	if err := e.requireVersion(); err != nil {
		return nil, err
	}
	goals := e.goals()
	t := &mariposa.TaskSpec{Task: mariposa.TaskScale, Component: "project", LiftsFreeze: e.mayLiftFreeze()}
	same, said := true, []string(nil)
	for _, ref := range slices.Sorted(maps.Keys(scales)) {
		name, err := e.findService(goals, ref)
		if err != nil {
			return nil, err
		}
		if slices.Contains(t.Services, name) {
			return nil, invalid("scale: %s is named twice", name)
		}
		ask, now := scales[ref], goals[name].Scale
		will := ask.N
		if ask.By {
			will += now
		}
		if will < 0 || will > MaxScale {
			return nil, invalid("scale: %s would be scaled from %d to %d; the scale must be between 0 and %d", name, now, will, MaxScale)
		}
		ask.into(&t.Patch, name)
		t.Services, said, same = append(t.Services, name), append(said, name+" "+ask.String()), same && will == now
	}
	if same && e.isIdle(t.Services) && !e.anyService(t.Services, func(ss *mariposa.ServiceStatus) bool { return ss.Frozen != nil }) {
		return nil, nil
	}
	t.Reason = mariposa.Asked(e.req.actor() + " scaled " + strings.Join(said, ", "))
	return t, nil
}

func (c Scaling) into(p *mariposa.Patch, service string) {
	at := &p.Scale
	if c.By {
		at = &p.ScaleBy
	}
	if *at == nil {
		*at = map[string]int{}
	}
	(*at)[service] = c.N
}
