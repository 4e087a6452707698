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
	"mariposa/converge"
	"mariposa/queue"
	"mariposa/reason"
	"mariposa/store"
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
		if err := e.requireInForce(a.Version); err != nil {
			return "", err
		}
		return e.add(e.setGoal(mariposa.TaskStop, mariposa.GoalStopped, a.Services))
	case "reprovision":
		return e.add(e.reprovision(a))
	case "scale":
		return e.add(e.scale(a.Scale))
	case "freeze", "thaw", "pause", "resume", "converge", "accept":
		return e.add(e.immediateTask(a.Action, a.Services))
	}
	return "", invalid("a project cannot be told to %s", shorten(a.Action))
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
	why := e.req.actor() + " asked for a " + string(kind)
	if len(names) > 0 {
		why += " of " + strings.Join(names, ", ")
	}
	patch := mariposa.Patch{Goal: goal}
	if goal == mariposa.GoalStarted && e.neverBegan() {
		patch.Number = e.spec.Number // the task that would have rolled it out was ended before it began
	}
	return &mariposa.TaskSpec{
		Task: kind, Component: "project", Services: names, Version: e.spec.Version, LiftsFreeze: e.mayLiftFreeze(), Reason: mariposa.Asked(why), Patch: patch,
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

// requireInForce refuses to stop a version other than the one that the caller means.
func (e *edit) requireInForce(ref string) error {
	st := e.record.Status()
	if ref == "" || (st != nil && (IsVersion(ref, st.Version, st.Number) || Tags(e.record)[ref] == st.Number)) {
		return nil
	}
	if st == nil {
		return conflict("no version of %s is in force yet", e.spec.Name)
	}
	return conflict("version %s of %s is in force, not %s: nothing was stopped", versionLabel(st.Version, st.Number), e.spec.Name, shorten(ref))
}

// reprovision replaces the instances of all or some services, or those that match a
// filter. Held rollouts continue instead: if no services are named, it continues those
// and touches nothing else.
func (e *edit) reprovision(a Action) (*mariposa.TaskSpec, error) {
	if err := e.requireVersion(); err != nil {
		return nil, err
	}
	refs, filter, err := e.filter(a)
	if err != nil {
		return nil, err
	}
	names, err := e.scope(refs)
	if err != nil {
		return nil, err
	}
	if a.All && filter != nil {
		return nil, invalid("all: a filter selects what is replaced: leave one of them out")
	}
	t := &mariposa.TaskSpec{
		Task: mariposa.TaskReprovision, Component: "project", Services: names, Version: e.spec.Version, LiftsFreeze: e.mayLiftFreeze(),
		Patch: mariposa.Patch{Reprovision: names, Rolling: a.Rolling, Canary: a.Canary, Filter: filter, All: a.All},
	}
	continues := false
	if len(names) == 0 {
		if held, affected := e.heldServices(); len(held) > 0 && filter == nil && !a.All {
			t.Patch.Reprovision, t.Services, continues = held, affected, true
		} else {
			t.Patch.Reprovision = slices.Sorted(maps.Keys(e.goals()))
		}
	}
	if len(t.Patch.Reprovision) == 0 {
		return nil, nil
	}
	if filter != nil && e.isIdle(names) && !e.matches(t.Patch.Reprovision, filter) {
		e.answer.Reason = "no instance matches the filter"
		if filter.Version > 0 { // lists show these instances at the newer version
			e.answer.Reason += "; what a newer version left as it was counts as made from the older one"
		}
		return nil, nil
	}
	why := e.req.actor() + " asked to make " + strings.Join(t.Patch.Reprovision, ", ") + " anew" + e.filterWords(filter)
	if continues {
		why = e.req.actor() + " asked to continue the held rollout of " + strings.Join(t.Patch.Reprovision, ", ")
	}
	if a.Canary.N > 0 && continues {
		why += " by " + a.Canary.String()
	} else if a.Canary.N > 0 {
		why += ", " + a.Canary.String() + " to begin with"
	}
	t.Reason = mariposa.Asked(why)
	return t, nil
}

// heldServices returns the services whose rollouts are held, and those together with
// the services whose rollouts wait for them; both sorted.
func (e *edit) heldServices() (held, affected []string) {
	st := e.record.Status()
	if st == nil {
		return nil, nil
	}
	for name, ss := range st.Services {
		switch {
		case ss.Removed || ss.Rollout == nil:
		case ss.Rollout.Held && ss.Rollout.Filter == nil:
			held = append(held, name)
		case ss.Status == mariposa.StatusHeld:
			affected = append(affected, name)
		}
	}
	slices.Sort(held)
	return held, union(held, affected)
}

// filter resolves an action's filter to services and instances. A filter by instance
// selects their services too.
func (e *edit) filter(a Action) (services []string, f *mariposa.Filter, err error) {
	in := a.Filter
	if in == nil {
		return a.Services, nil, nil
	}
	filter := &mariposa.Filter{Image: in.Image}
	services = slices.Concat(a.Services, in.Services)
	named := len(services) > 0
	if in.Version != "" {
		found, err := e.c.FindVersion(e.ctx, e.record, in.Version)
		if err != nil {
			return nil, nil, err
		}
		filter.Version = found.Spec().Number
	}
	for _, ref := range in.Instances {
		r, err := e.instance(ref)
		if err != nil {
			return nil, nil, err
		}
		filter.Instances = append(filter.Instances, r.ID)
		if !named {
			services = append(services, r.Spec().ServiceName)
		}
	}
	for _, ref := range in.Nodes {
		node, err := e.node(ref)
		if err != nil {
			return nil, nil, err
		}
		filter.Nodes = append(filter.Nodes, node)
	}
	if filter.Version == 0 && filter.Image == "" && len(filter.Instances) == 0 && len(filter.Nodes) == 0 {
		filter = nil // by service alone
	}
	return services, filter, nil
}

// instance finds a managed instance of the project by id, name or id prefix.
func (e *edit) instance(ref string) (*store.Instance, error) {
	var found []*store.Instance
	for _, r := range e.c.Picture.InstancesOf(e.record.ID) {
		spec := r.Spec()
		if r.ID == ref && spec.Managed {
			return r, nil
		}
		if spec.Managed && (spec.Name == ref || len(ref) >= 4 && strings.HasPrefix(r.ID, ref)) {
			found = append(found, r)
		}
	}
	switch len(found) {
	case 0:
		return nil, notFound("project %s has no managed instance %q", e.spec.Name, shorten(ref))
	case 1:
		return found[0], nil
	}
	return nil, invalid("%q means more than one instance, %s and %s among them: use a whole id", ref, found[0].ID, found[1].ID)
}

// node finds a node that runs an instance of the project, by id or name: only the
// installation's admins know of others.
func (e *edit) node(ref string) (id string, err error) {
	for _, i := range e.c.Picture.InstancesOf(e.record.ID) {
		if id = i.Spec().Node; id == ref || e.c.name(mariposa.KindNode, id) == ref {
			return id, nil
		}
	}
	return "", notFound("there is no node %q that project %s has instances on", shorten(ref), e.spec.Name)
}

// immediateTask returns a task that begins at once, whatever else is in progress.
func (e *edit) immediateTask(action string, refs []string) (*mariposa.TaskSpec, error) {
	names, err := e.scope(refs)
	if err != nil {
		return nil, err
	}
	t := &mariposa.TaskSpec{Component: action, Services: names, Version: e.spec.Version, Immediate: true}
	st := e.record.Status()
	if st == nil && action != "freeze" {
		return nil, conflict("project %s has not been planned yet: there is nothing to %s", e.spec.Name, action)
	}
	switch action {
	case "freeze":
		t.Task, t.Immediate, t.Patch.Mode = mariposa.TaskFreeze, false, mariposa.ModeFreeze
	case "thaw":
		t.Task, t.Patch.Mode = mariposa.TaskFreeze, mariposa.ModeThaw
		if !e.anyService(names, func(ss *mariposa.ServiceStatus) bool { return ss.Frozen != nil }) && !st.Frozen && !e.hasOpenFreeze(names) {
			return nil, nil
		}
	case "pause":
		t.Task, t.Patch.Mode = mariposa.TaskFreeze, mariposa.ModePause
		if !e.anyService(names, func(ss *mariposa.ServiceStatus) bool { return !ss.Paused }) {
			return nil, nil
		}
	case "resume":
		t.Task, t.Patch.Mode = mariposa.TaskFreeze, mariposa.ModeResume
		if !e.anyService(names, func(ss *mariposa.ServiceStatus) bool { return ss.Paused }) && !st.Paused {
			return nil, nil
		}
	case "converge":
		t.Task, t.Patch.Retry = mariposa.TaskScale, true
		if st.Status == mariposa.StatusConverged || st.Goal != mariposa.GoalStarted {
			return nil, nil
		}
		if t.Services, err = e.withoutFrozen(names); err != nil {
			return nil, err
		}
	case "accept":
		t.Task, t.Patch.Accept = mariposa.TaskScale, true
	}
	why := e.req.actor() + " asked for: " + action
	if len(t.Services) > 0 {
		why += " " + strings.Join(t.Services, ", ")
	}
	t.Reason = mariposa.Asked(why)
	return t, nil
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
		return nil, conflict("%s is frozen: nothing is tried there until it is thawed (project thaw)", cmp.Or(strings.Join(names, ", "), e.spec.Name))
	}
	slices.Sort(rest)
	return rest, nil
}

// anyService reports whether a predicate holds for some service of a scope.
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

// hasOpenFreeze reports whether a freeze of a scope is open, whether or not it has
// begun.
func (e *edit) hasOpenFreeze(names []string) bool {
	return slices.ContainsFunc(e.tasks, func(t queue.Task) bool {
		return isFreeze(t) && queue.Overlap(t.Spec.Services, names)
	})
}

// isFreeze reports whether a task keeps its scope frozen until the thaw.
func isFreeze(t queue.Task) bool { return t.Spec.Task == mariposa.TaskFreeze && !t.Spec.Immediate }

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
	return "", notFound("project %s has no service %q", e.spec.Name, ref)
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
	t := &mariposa.TaskSpec{Task: mariposa.TaskScale, Component: "project", Version: e.spec.Version, LiftsFreeze: e.mayLiftFreeze()}
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
			return nil, invalid("scale: %s would be scaled from %d to %d; it must stay between 0 and %d", name, now, will, MaxScale)
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

// matches reports whether a filter selects any wanted instance of some services.
func (e *edit) matches(services []string, f *mariposa.Filter) bool {
	return slices.ContainsFunc(e.c.Picture.InstancesOf(e.record.ID), func(r *store.Instance) bool {
		spec := r.Spec()
		if !spec.Managed || spec.Goal != mariposa.GoalRunning || !slices.Contains(services, spec.ServiceName) {
			return false
		}
		return converge.Matches(f, r.ID, spec, e.definition(spec.Number, spec.ServiceName))
	})
}

// filterWords describes a filter, as the rest of a sentence.
func (e *edit) filterWords(f *mariposa.Filter) string {
	if f == nil {
		return ""
	}
	var words []string
	if len(f.Instances) > 0 {
		words = append(words, "only "+e.c.listNames(mariposa.KindInstance, f.Instances))
	}
	if f.Version > 0 {
		words = append(words, fmt.Sprintf("only what was made from version %d", f.Version))
	}
	if f.Image != "" {
		words = append(words, "only of image "+shorten(f.Image))
	}
	if len(f.Nodes) > 0 {
		words = append(words, "only on "+e.c.listNames(mariposa.KindNode, f.Nodes))
	}
	return ": " + strings.Join(words, ", ")
}
