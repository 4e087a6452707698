package api

import (
	"context"
	"encoding/json"
	"maps"
	"slices"
	"strings"

	"mariposa"
	"mariposa/auth"
	"mariposa/contract"
	"mariposa/queue"
	"mariposa/reason"
	"mariposa/store"
)

type actOnProjectInput struct {
	OfProject
	Body contract.Action
}

func (s *server) actOnProject(ctx context.Context, in *actOnProjectInput) (*document[contract.Changed], error) {
	return s.act(ctx, in.OfProject, in.Body, "")
}

type actOnServiceInput struct {
	OfService
	Body contract.Action
}

func (s *server) actOnService(ctx context.Context, in *actOnServiceInput) (*document[contract.Changed], error) {
	if len(in.Body.Services) > 0 {
		return nil, invalid("services: the path names the service already")
	}
	return s.act(ctx, in.OfProject, in.Body, in.Service)
}

// act changes the goal of a project, or of the one service that the path names.
func (s *server) act(ctx context.Context, in OfProject, a contract.Action, service string) (*document[contract.Changed], error) {
	if service != "" {
		a.Services = []string{service}
	}
	if err := checkAction(a, service); err != nil {
		return nil, err
	}
	build, err := s.builder(a, service)
	if err != nil {
		return nil, err
	}
	return s.change(ctx, in, func(e *edit) (*change, error) {
		reason, err := build(e)
		if err != nil || reason == "" {
			return &e.change, err
		}
		return e.done(reason)
	})
}

// builder reads an action. What it returns adds it to a change and says why; no
// reason: there is nothing to do.
func (s *server) builder(a contract.Action, service string) (func(*edit) (string, error), error) {
	rolling, err := readAmount("rolling", a.Rolling)
	if err != nil {
		return nil, err
	}
	canary, err := readAmount("canary", firstRaw(a.Canary, a.Count))
	if err != nil {
		return nil, err
	}
	task := func(f func(*edit) (*mariposa.TaskSpec, error)) (func(*edit) (string, error), error) {
		return func(e *edit) (string, error) { return e.add(f(e)) }, nil
	}
	switch a.Action {
	case "revert":
		return func(e *edit) (string, error) { return e.revert(a, rolling, canary) }, nil
	case "start":
		if a.Version != "" {
			return func(e *edit) (string, error) { return e.startAt(a, rolling, canary) }, nil
		}
		return task(func(e *edit) (*mariposa.TaskSpec, error) {
			return e.toGoal(mariposa.TaskStart, mariposa.GoalStarted, a.Services)
		})
	case "stop":
		return task(func(e *edit) (*mariposa.TaskSpec, error) {
			if err := e.inForce(a.Version); err != nil {
				return nil, err
			}
			return e.toGoal(mariposa.TaskStop, mariposa.GoalStopped, a.Services)
		})
	case "reprovision":
		return task(func(e *edit) (*mariposa.TaskSpec, error) { return e.reprovision(a, rolling, canary) })
	case "scale":
		scales, err := readScales(a.Scale, service)
		if err != nil {
			return nil, err
		}
		return task(func(e *edit) (*mariposa.TaskSpec, error) { return e.scale(scales) })
	}
	return task(func(e *edit) (*mariposa.TaskSpec, error) { return e.aside(a.Action, a.Services) })
}

func firstRaw(raws ...json.RawMessage) json.RawMessage {
	for _, r := range raws {
		if len(r) > 0 {
			return r
		}
	}
	return nil
}

// add adds a task, if there is one.
func (e *edit) add(task *mariposa.TaskSpec, err error) (string, error) {
	if err != nil || task == nil {
		return "", err
	}
	return reason.Sentence(task.Reason), e.admit(task)
}

// fieldsOf says which fields an action has a use for, beside its name.
var fieldsOf = map[string]string{
	"start": "services version rolling canary", "stop": "services version", "scale": "scale",
	"reprovision": "services rolling canary filters", "revert": "version rolling canary with_scale message",
	"freeze": "services", "thaw": "services", "pause": "services", "resume": "services", "converge": "services", "accept": "services",
}

// checkAction refuses what would be silently ignored otherwise.
func checkAction(a contract.Action, service string) error {
	given := map[string]bool{
		"services": len(a.Services) > 0, "version": a.Version != "", "rolling": len(a.Rolling) > 0, "canary": len(a.Canary) > 0 || len(a.Count) > 0,
		"filters": a.Filters != nil, "scale": len(a.Scale) > 0, "with_scale": a.WithScale, "message": a.Message != "",
	}
	useful := strings.Fields(fieldsOf[a.Action])
	for _, field := range slices.Sorted(maps.Keys(given)) {
		switch {
		case !given[field] || slices.Contains(useful, field):
		case field == "services" && a.Action == "scale" && service != "":
		case field == "services" && a.Action == "scale":
			return invalid("services: say scale as an object by service instead")
		case field == "services" && a.Action == "revert":
			return invalid("a revert brings a whole version back: services are not reverted one by one")
		default:
			return invalid("%s: a %s has no use for it", field, a.Action)
		}
	}
	if a.Action == "start" && a.Version == "" && (given["rolling"] || given["canary"]) {
		return invalid("rolling, canary: only a start at a version has a use for them")
	}
	if len(a.Canary) > 0 && len(a.Count) > 0 {
		return invalid("count and canary mean the same: give one of them")
	}
	return nil
}

// scope resolves the services that an action names, sorted; none: the whole.
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

// lifts reports whether a task of this caller ends a freeze: that takes an operator.
func (e *edit) lifts() bool {
	return e.s.directory.May(caller(e.ctx), auth.Operate, e.record) == auth.Allowed
}

// toGoal starts or stops the whole, or some services. Where that is the goal already
// and nothing else is under way, there is nothing to do.
func (e *edit) toGoal(kind mariposa.TaskKind, goal mariposa.ProjectGoal, refs []string) (*mariposa.TaskSpec, error) {
	names, err := e.scope(refs)
	if err != nil {
		return nil, err
	}
	if e.isAt(goal, names) && e.idle(names) && (goal == mariposa.GoalStopped || !e.nothing()) {
		return nil, nil
	}
	why := actor(e.ctx) + " asked for a " + string(kind)
	if len(names) > 0 {
		why += " of " + strings.Join(names, ", ")
	}
	patch := mariposa.Patch{Goal: goal}
	if goal == mariposa.GoalStarted && e.neverBegan() {
		patch.Number = e.spec.Number // the task that would have brought it was ended before it began
	}
	return &mariposa.TaskSpec{
		Task: kind, Component: "project", Services: names, Version: e.spec.Version, Lifts: e.lifts(), Reason: mariposa.Asked(why), Patch: patch,
	}, nil
}

// neverBegan reports whether a start is to bring the newest version: none is in force
// and none is on its way, or all that was ever in force was a beginning that is stopped
// now.
func (e *edit) neverBegan() bool {
	st := statusOf(e.record)
	return st == nil || st.Number == 0 || st.Completed == 0 && st.Goal != mariposa.GoalStarted && e.dropped()
}

// something refuses what needs a version in force, or on its way.
func (e *edit) something() error {
	if e.nothing() {
		return conflict("no version of %s is in force: start it first", e.spec.Name)
	}
	return nil
}

// isAt reports whether a goal is in force for a scope already, and nothing of it is
// frozen.
func (e *edit) isAt(goal mariposa.ProjectGoal, names []string) bool {
	st := statusOf(e.record)
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
		if goal == mariposa.GoalStarted && ss.Rollout.HasStopped() {
			return false // a start tries it anew
		}
	}
	return true
}

// inForce refuses to stop another version than the one that the caller means.
func (e *edit) inForce(ref string) error {
	st := statusOf(e.record)
	if ref == "" || (st != nil && (isVersion(ref, st.Version, st.Number) || tags(e.record)[ref] == st.Number)) {
		return nil
	}
	if st == nil {
		return conflict("no version of %s is in force yet", e.spec.Name)
	}
	return conflict("version %s of %s is in force, not %s: nothing was stopped", numbered(st.Version, st.Number), e.spec.Name, shorten(ref))
}

// reprovision makes the instances of some services anew, or of all, or those that
// match a filter. A rollout that is held goes on instead.
func (e *edit) reprovision(a contract.Action, rolling, canary mariposa.Amount) (*mariposa.TaskSpec, error) {
	if err := e.something(); err != nil {
		return nil, err
	}
	refs, filter, err := e.readFilters(a)
	if err != nil {
		return nil, err
	}
	names, err := e.scope(refs)
	if err != nil {
		return nil, err
	}
	t := &mariposa.TaskSpec{
		Task: mariposa.TaskReprovision, Component: "project", Services: names, Version: e.spec.Version, Lifts: e.lifts(),
		Patch: mariposa.Patch{Reprovision: names, Rolling: rolling, Canary: canary, Filter: filter},
	}
	if len(names) == 0 {
		t.Patch.Reprovision = slices.Sorted(maps.Keys(e.goals()))
	}
	if len(t.Patch.Reprovision) == 0 {
		return nil, nil
	}
	if filter != nil && e.idle(names) && !e.matches(t.Patch.Reprovision, filter) {
		e.answer.Reason = "no instance matches the filter"
		if filter.Version > 0 { // lists show such as being at the newer one
			e.answer.Reason += "; what a newer version left as it was counts as made from the older one"
		}
		return nil, nil
	}
	why := actor(e.ctx) + " asked to make " + strings.Join(t.Patch.Reprovision, ", ") + " anew" + e.filterWords(filter)
	if canary.N > 0 {
		why += ", " + canary.String() + " to begin with"
	}
	t.Reason = mariposa.Asked(why)
	return t, nil
}

// readFilters reads which instances are meant. A filter by instance names their
// services too.
func (e *edit) readFilters(a contract.Action) (services []string, f *mariposa.Filter, err error) {
	services = a.Services
	if a.Filters == nil {
		return services, nil, nil
	}
	in, filter := a.Filters, &mariposa.Filter{Image: a.Filters.Image}
	named, instances, nodes, err := readNames(in)
	if err != nil {
		return nil, nil, err
	}
	services = append(slices.Clone(services), named...)
	if in.Version != "" {
		found, err := e.s.findVersion(e.ctx, e.record, in.Version)
		if err != nil {
			return nil, nil, err
		}
		filter.Version = found.Spec.(*mariposa.VersionSpec).Number
	}
	for _, ref := range instances {
		r, err := e.s.findInstance(e.ctx, ref)
		if err != nil {
			return nil, nil, err
		}
		spec := r.Spec.(*mariposa.InstanceSpec)
		if spec.Project != e.record.ID || !spec.Managed {
			return nil, nil, notFound("project %s has no managed instance %q", e.spec.Name, shorten(ref))
		}
		filter.Instances = append(filter.Instances, r.ID)
		if len(named) == 0 && len(a.Services) == 0 {
			services = append(services, spec.ServiceName)
		}
	}
	for _, ref := range nodes {
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

// readNames reads the filters that are one name, or a list of them.
func readNames(f *contract.Filters) (services, instances, nodes []string, err error) {
	read := func(field string, raw json.RawMessage) (names []string) {
		var one string
		if len(raw) == 0 || err != nil {
			return nil
		}
		if json.Unmarshal(raw, &one) == nil {
			return []string{one}
		}
		if json.Unmarshal(raw, &names) != nil {
			err = invalid("filters.%s must be a text or a list of texts, not %s", field, shorten(string(raw)))
		}
		return names
	}
	services, instances, nodes = read("service", f.Service), read("instance", f.Instance), read("node", f.Node)
	return services, instances, nodes, err
}

// node finds a node that the project has an instance on: of others only who runs the
// installation knows.
func (e *edit) node(ref string) (string, error) {
	r, err := e.s.findNode(ref)
	if err != nil {
		return "", err
	}
	found := false
	e.s.Picture.EachInstanceOf(e.record.ID, func(i *store.Record) bool {
		found = i.Spec.(*mariposa.InstanceSpec).Node == r.ID
		return !found
	})
	if !found {
		return "", notFound("there is no node %q that project %s has instances on", shorten(ref), e.spec.Name)
	}
	return r.ID, nil
}

// aside is a task that begins at once, whatever else is under way.
func (e *edit) aside(action string, refs []string) (*mariposa.TaskSpec, error) {
	names, err := e.scope(refs)
	if err != nil {
		return nil, err
	}
	t := &mariposa.TaskSpec{Component: action, Services: names, Version: e.spec.Version, Aside: true}
	st := statusOf(e.record)
	if st == nil && action != "freeze" {
		return nil, conflict("project %s has not been planned yet: there is nothing to %s", e.spec.Name, action)
	}
	switch action {
	case "freeze":
		t.Task, t.Aside, t.Patch.Mode = mariposa.TaskFreeze, false, mariposa.ModeFreeze
	case "thaw":
		t.Task, t.Patch.Mode = mariposa.TaskFreeze, mariposa.ModeThaw
		if !e.any(names, func(ss *mariposa.ServiceStatus) bool { return ss.Frozen != nil }) && !st.Frozen && !e.freezing(names) {
			return nil, nil
		}
	case "pause":
		t.Task, t.Patch.Mode = mariposa.TaskFreeze, mariposa.ModePause
		if !e.any(names, func(ss *mariposa.ServiceStatus) bool { return !ss.Paused }) {
			return nil, nil
		}
	case "resume":
		t.Task, t.Patch.Mode = mariposa.TaskFreeze, mariposa.ModeResume
		if !e.any(names, func(ss *mariposa.ServiceStatus) bool { return ss.Paused }) && !st.Paused {
			return nil, nil
		}
	case "converge":
		t.Task, t.Patch.Retry = mariposa.TaskScale, true
		if st.Status == mariposa.StatusConverged || st.Goal != mariposa.GoalStarted {
			return nil, nil
		}
		if t.Services, err = e.thawed(names); err != nil {
			return nil, err
		}
	case "accept":
		t.Task, t.Patch.Accept = mariposa.TaskScale, true
	}
	why := actor(e.ctx) + " asked for: " + action
	if len(t.Services) > 0 {
		why += " " + strings.Join(t.Services, ", ")
	}
	t.Reason = mariposa.Asked(why)
	return t, nil
}

// thawed is the part of a scope that is not frozen: nothing is tried in the rest.
func (e *edit) thawed(names []string) ([]string, error) {
	if !e.any(names, func(ss *mariposa.ServiceStatus) bool { return ss.Frozen != nil }) {
		return names, nil
	}
	var rest []string
	for name, ss := range statusOf(e.record).Services {
		if ss.Frozen == nil && (len(names) == 0 || slices.Contains(names, name)) {
			rest = append(rest, name)
		}
	}
	if len(rest) == 0 {
		return nil, conflict("%s is frozen: nothing is tried there until it is thawed (project thaw)", firstOf(strings.Join(names, ", "), e.spec.Name))
	}
	slices.Sort(rest)
	return rest, nil
}

// any reports whether some service of a scope is so.
func (e *edit) any(names []string, is func(*mariposa.ServiceStatus) bool) bool {
	st := statusOf(e.record)
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

// freezing reports whether a freeze of a scope is open, perhaps not begun yet.
func (e *edit) freezing(names []string) bool {
	return slices.ContainsFunc(e.tasks, func(t queue.Task) bool {
		return t.Spec.Task == mariposa.TaskFreeze && !t.Spec.Aside && queue.Overlap(t.Spec.Services, names)
	})
}

// goals are the services that can be acted on: those in force and not on their
// way out, and those of the newest manifest, whose task may still be waiting.
func (e *edit) goals() map[string]*mariposa.ServiceStatus {
	v := e.s.viewer(e.ctx)
	goals := v.goals(e.record)
	maps.DeleteFunc(goals, func(_ string, ss *mariposa.ServiceStatus) bool { return ss.Removed })
	for name, ss := range v.submitted(e.record) {
		if goals[name] == nil {
			goals[name] = ss
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

// readAmount reads 2, "2" or "25%".
func readAmount(field string, raw json.RawMessage) (mariposa.Amount, error) {
	text := string(raw)
	var quoted string
	if json.Unmarshal(raw, &quoted) == nil {
		text = quoted
	}
	return parseAmount(field, text)
}

func shorten(text string) string {
	if len(text) > 40 {
		return text[:40] + "…"
	}
	return text
}
