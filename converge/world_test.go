package converge

import (
	"cmp"
	"fmt"
	"maps"
	"os"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"mariposa"
	"mariposa/simulate/scenario"
)

// This file implements a small world for tests: a project, its goal and a fleet that
// executes every step, one event at a time.

// complainer is implemented by *testing.T and *rapid.T.
type complainer interface {
	Helper()
	Fatalf(format string, args ...any)
}

var dawn = time.Date(2026, 3, 1, 6, 0, 0, 0, time.UTC)

// def defines a service whose digest is its image. scale is the scale in the manifest.
func def(name, image string, scale int, more ...func(*mariposa.Service)) *mariposa.Service {
	d := &mariposa.Service{
		Name: name, Image: image, Digest: image, Scale: &scale,
		Reschedule: mariposa.Reschedule{After: time.Minute},
		Update:     mariposa.Update{Rolling: mariposa.Amount{N: 1}, Deadline: 10 * time.Minute, OnFailure: mariposa.OnFailurePause},
	}
	for _, f := range more {
		f(d)
	}
	return d
}

func dependsOn(names ...string) func(*mariposa.Service) {
	return func(d *mariposa.Service) { d.DependsOn = names }
}

// refersTo makes a service refer to fields of others, such as "db.id", and thus depend on
// them. Its references are part of its form.
func refersTo(fields ...string) func(*mariposa.Service) {
	return func(d *mariposa.Service) {
		for _, f := range fields {
			on, field, _ := strings.Cut(f, ".")
			d.Refs = append(d.Refs, mariposa.Ref{Service: on, Field: field})
			d.DependsOn = append(d.DependsOn, on)
		}
		form, values, valued := strings.Cut(d.Digest, ".")
		if d.Digest = form + "+" + strings.ReplaceAll(strings.Join(fields, "+"), ".", ":"); valued {
			d.Digest += "." + values
		}
		slices.Sort(d.DependsOn)
		d.DependsOn = slices.Compact(d.DependsOn)
	}
}

func rolling(amount string) func(*mariposa.Service) {
	a, ok := mariposa.ParseAmount(amount)
	if !ok {
		panic(amount)
	}
	return func(d *mariposa.Service) { d.Update.Rolling = a }
}

func minHealthy(d time.Duration) func(*mariposa.Service) {
	return func(s *mariposa.Service) { s.Update.MinHealthy = d }
}

func deadline(d time.Duration) func(*mariposa.Service) {
	return func(s *mariposa.Service) { s.Update.Deadline = d }
}

func live(text string) func(*mariposa.Service) {
	return func(s *mariposa.Service) { s.Live = text }
}

func stopFirst(d *mariposa.Service)       { d.Update.StopFirst = true }
func neverReschedule(d *mariposa.Service) { d.Reschedule = mariposa.Reschedule{Never: true} }
func carryOn(d *mariposa.Service)         { d.Update.OnFailure = mariposa.OnFailureContinue }

// whole is a plan with the status of every service and the remaining work.
type whole struct {
	Plan
	Todo map[string]int
}

// world is a project on a fleet.
type world struct {
	complainer
	view      *View
	now       time.Time
	goal      *mariposa.ProjectStatus
	versions  map[int]Definitions
	instances map[string]*Instance
	nodes     map[string]Node
	losses    map[string][]time.Time // of nodes
	storm     Storm
	budget    int
	made      int                                // number of instances ever created
	plans     int                                // number of plans ever made
	ever      map[string]bool                    // service and likeness of every instance ever created
	small     map[string]*mariposa.ServiceStatus // by service: the status that was last checked to be small enough to store
	cause     func(string) bool                  // reports, by id, whether a starting instance fails; nil: none does
	history   []string
}

// newWorld returns a world with three nodes and a current first version of the manifest.
func newWorld(t complainer, defs ...*mariposa.Service) *world {
	w := &world{
		complainer: t, view: NewView(), now: dawn, budget: 1000,
		versions: map[int]Definitions{}, instances: map[string]*Instance{}, nodes: map[string]Node{}, losses: map[string][]time.Time{},
		ever: map[string]bool{}, small: map[string]*mariposa.ServiceStatus{},
	}
	for _, n := range []string{"n1", "n2", "n3"} {
		w.setNode(n, Node{Name: n})
	}
	w.submit(defs...)
	return w
}

// submit makes a new version of the manifest current.
func (w *world) submit(defs ...*mariposa.Service) { w.submitBy(mariposa.Patch{}, defs...) }

// submitBy makes a new version current by a patch.
func (w *world) submitBy(p mariposa.Patch, defs ...*mariposa.Service) {
	number := len(w.versions) + 1
	d := Definitions{}
	for _, s := range defs {
		d[s.Name] = s
	}
	w.versions[number] = d
	w.view.SetVersion(number, d)
	p.Number = number
	w.patch(p)
}

func (w *world) scale(name string, n int) {
	w.patch(mariposa.Patch{Scale: map[string]int{name: n}})
}

func (w *world) aim(goal mariposa.ProjectGoal) { w.patch(mariposa.Patch{Goal: goal}) }

// patch changes the goal like a task of these services; none: of the project.
func (w *world) patch(p mariposa.Patch, services ...string) {
	w.setGoal(Apply(w.goal, p, w.change(services...)))
}

// lift changes the goal like a task that ends the freeze of its services.
func (w *world) lift(p mariposa.Patch, services ...string) {
	c := w.change(services...)
	c.LiftsFreeze = true
	w.setGoal(Apply(w.goal, p, c))
}

func (w *world) change(services ...string) Change {
	ids := map[string]string{}
	for _, d := range w.versions {
		for name := range d {
			ids[name] = "id-of-" + name
		}
	}
	return Change{Now: w.now, IDs: ids, Versions: func(n int) Definitions { return w.versions[n] }, Scope: services, Running: w.view.Running(), Hash: strconv.Itoa}
}

func (w *world) mode(m mariposa.Mode, services ...string) {
	w.patch(mariposa.Patch{Mode: m}, services...)
}

func (w *world) setGoal(st *mariposa.ProjectStatus) {
	w.goal = st
	w.view.SetGoal(st)
}

func (w *world) setNode(id string, n Node) {
	w.nodes[id] = n
	w.view.SetNode(id, n)
}

func (w *world) loseNode(id string) {
	w.losses[id] = mariposa.AddLoss(w.losses[id], w.now)
	w.setNode(id, Node{Name: id, Unknown: true, Since: w.now, Draining: w.nodes[id].Draining, UnstableUntil: w.unstableUntil(id)})
}

func (w *world) comeBack(id string) {
	w.setNode(id, Node{Name: id, Since: w.now, Draining: w.nodes[id].Draining, UnstableUntil: w.unstableUntil(id)})
}

// unstableUntil returns until when a node is avoided that is lost or returns now.
func (w *world) unstableUntil(id string) time.Time {
	st := mariposa.NodeStatus{Losses: w.losses[id], Since: w.now}
	return st.UnstableUntil()
}

// drain moves everything off a node, or lets it have instances again.
func (w *world) drain(id string, on bool) {
	n := w.nodes[id]
	n.Draining = on
	w.setNode(id, n)
}

// setStorm stops the rescheduling of all nodes that are lost now; without any, it
// continues.
func (w *world) setStorm(on bool) {
	w.storm = Storm{}
	if on {
		w.storm = Storm{Count: 2, Of: 3, Since: dawn, Held: map[string]bool{}}
		for id, n := range w.nodes {
			if n.Unknown {
				w.storm.Held[id] = true
			}
		}
	}
	w.view.SetStorm(w.storm)
}

// wait lets time pass.
func (w *world) wait(d time.Duration) { w.now = w.now.Add(d) }

// setState reports the state of an instance.
func (w *world) setState(id string, state mariposa.State, reason string) {
	w.Helper()
	i := w.instances[id]
	if i == nil {
		w.Fatalf("there is no instance %s", id)
	}
	st := mariposa.InstanceStatus{
		State: state, Since: w.now, Generation: i.Spec.Generation, Reason: reason,
		PhysicalID: "physical-" + id, Addresses: []string{"address-of-" + id},
	}
	if i.Status != nil {
		st.Started = i.Status.Started
		if i.Status.State == state {
			st.Since, st.Health, st.Served, st.Checks = i.Status.Since, i.Status.Health, i.Status.Served, i.Status.Checks
			st.Reason = cmp.Or(st.Reason, i.Status.Reason)
		}
	}
	if state == mariposa.StateRunning && st.Started.IsZero() {
		st.Started = w.now
	}
	w.set(id, i.Spec, &st)
}

func (w *world) fail(ids ...string) {
	w.Helper()
	for _, id := range ids {
		w.setState(id, mariposa.StateFailed, "exited with 1")
	}
}

func (w *world) set(id string, spec *mariposa.InstanceSpec, status *mariposa.InstanceStatus) {
	w.instances[id] = &Instance{ID: id, Spec: spec, Status: status}
	w.view.SetInstance(id, spec, status)
}

// plan plans, and checks every plan against the rules.
func (w *world) plan() whole {
	w.Helper()
	before := ""
	if w.plans++; w.plans%8 == 0 { // formatting a view takes longer than planning
		before = dump(w.view)
	}
	p := w.whole(w.view)
	if p.Rollback != "" {
		if st, can := RollBack(w.goal, w.change()); can {
			w.history = append(w.history, fmt.Sprintf("%s version %d is taken back: %s: %s", stamp(w.now), w.goal.Number, p.Rollback, undoReason(p.Plan)))
			w.setGoal(st)
			return w.plan()
		}
	}
	again := w.whole(w.view)
	if !reflect.DeepEqual(p, again) {
		w.Fatalf("planned twice:\n%s\nthen\n%s%s", show(p), show(again), w.formatHistory())
	}
	if before != "" && dump(w.view) != before {
		after := dump(w.view)
		w.Fatalf("planning changed the view:\n%s\nto\n%s%s", before, after, w.formatHistory())
	}
	w.holdToRules(p)
	return p
}

// whole plans, and completes the plan with the status of every service.
func (w *world) whole(v *View) whole {
	p := whole{Plan: v.Plan(w.now, Budget{Starting: w.budget}), Todo: map[string]int{}}
	p.Services = p.ApplyTo(w.goal.Services)
	for _, name := range serviceNames(v) {
		p.Todo[name] = v.Todo(name)
	}
	return p
}

// complete records, like the planner, which version was last rolled out completely.
func (w *world) complete(p whole) {
	if w.busy(p) || w.goal.Goal != mariposa.GoalStarted {
		return
	}
	for _, ss := range p.Services {
		if ss.Status != mariposa.StatusConverged {
			return
		}
	}
	w.goal.Completed = w.goal.Number
}

// step plans once and executes the plan. It returns the steps as text.
func (w *world) step() []string {
	w.Helper()
	p := w.plan()
	w.carryOut(p, len(p.Steps))
	return words(p.Steps)
}

// carryOut stores the service statuses of the plan and executes its first n steps. It
// returns how many could be executed.
func (w *world) carryOut(p whole, n int) (done int) {
	w.Helper()
	st := *w.goal
	st.Services = p.Services
	w.setGoal(&st)
	w.complete(p)
	if os.Getenv("NEWS") != "" { // print the whole history
		w.history = append(w.history, newsOf(p.Plan))
	}
	blocked := map[string]bool{}
	for _, s := range p.Steps[:n] {
		w.history = append(w.history, fmt.Sprintf("%s %s", stamp(w.now), word(s)))
		if w.do(s, blocked) {
			done++
		}
	}
	return done
}

// do executes a step. It returns false if no node has room.
func (w *world) do(s Step, blocked map[string]bool) bool {
	w.Helper()
	if s.Action == Create {
		node := w.emptiest()
		if w.versions[s.Number][s.Service].Memory > scenario.NodeMemory {
			node = ""
		}
		if blocked[s.Service] = blocked[s.Service] || node == ""; !blocked[s.Service] {
			id := w.create(s.Service, s.Slot, s.Number, node)
			spec := *w.instances[id].Spec
			spec.Bindings, spec.Bound = s.Bindings, s.Bound
			w.set(id, &spec, nil)
		}
		return !blocked[s.Service]
	}
	i := w.instances[s.Instance]
	if i == nil {
		w.Fatalf("%s speaks of an instance that is not there%s", word(s), w.formatHistory())
	}
	spec := *i.Spec
	spec.Generation++
	switch s.Action {
	case Remove:
		spec.Goal = mariposa.GoalGone
		w.set(i.ID, &spec, i.Status)
	case Update:
		spec.Number, spec.Live = s.Number, w.versions[s.Number][s.Service].Live
		w.ever[s.Service+"/"+likeness(spec.Digest, spec.Live)] = true
		w.set(i.ID, &spec, i.Status)
	case Preserve:
		spec.Goal, spec.Kept = mariposa.GoalHalted, hasEnded(mariposa.StateOf(i.Spec, i.Status))
		w.set(i.ID, &spec, i.Status)
	case Collect:
		delete(w.instances, i.ID)
		w.view.RemoveInstance(i.ID)
	}
	return true
}

// create creates an instance. Its id consists of its service, its slot and a serial
// number.
func (w *world) create(service string, slot, number int, node string) string {
	w.made++
	d := w.versions[number][service]
	id := fmt.Sprintf("%s.%d-%d", service, slot, w.made)
	w.ever[service+"/"+likeness(d.Digest, d.Live)] = true
	w.set(id, &mariposa.InstanceSpec{
		Name: id, Slot: slot, ServiceName: service, Number: number, Digest: d.Digest, Live: d.Live,
		Node: node, Goal: mariposa.GoalRunning, Generation: 1, Created: w.now, Managed: true,
	}, nil)
	return id
}

// emptiest returns the reachable node with the fewest instances, one that was lost several
// times only if there is no other; "": there is none.
func (w *world) emptiest() string {
	on := map[string]int{}
	for _, i := range w.instances {
		on[i.Spec.Node]++
	}
	best := ""
	for _, n := range slices.Sorted(maps.Keys(w.nodes)) {
		if w.nodes[n].Unknown || w.nodes[n].Draining {
			continue
		}
		unstable, other := w.nodes[n].UnstableUntil.After(w.now), w.nodes[best].UnstableUntil.After(w.now)
		if best == "" || !unstable && other || unstable == other && on[n] < on[best] {
			best = n
		}
	}
	return best
}

// moving lists the instances with pending work on their node.
func (w *world) moving() []string {
	var ids []string
	for id, i := range w.instances {
		if w.nodes[i.Spec.Node].Unknown {
			continue
		}
		state := mariposa.StateOf(i.Spec, i.Status)
		switch {
		case i.Spec.Goal == mariposa.GoalGone && state != mariposa.StateDestroyed,
			i.Spec.Goal == mariposa.GoalHalted && !hasEnded(state),
			i.Spec.Goal == mariposa.GoalRunning && state == mariposa.StateProvisioning,
			state == mariposa.StateRunning && i.Status.Generation < i.Spec.Generation,
			i.Spec.Goal == mariposa.GoalRunning && state == mariposa.StateRunning && isUnproven(i):
			ids = append(ids, id)
		}
	}
	slices.Sort(ids)
	return ids
}

// move lets a node bring an instance to its desired state. A starting instance fails if
// there is a cause.
func (w *world) move(id string) {
	w.Helper()
	switch w.instances[id].Spec.Goal {
	case mariposa.GoalGone:
		w.setState(id, mariposa.StateDestroyed, "")
	case mariposa.GoalHalted:
		w.setState(id, mariposa.StateStopped, "")
	default:
		if w.isNew(id) && w.cause != nil && w.cause(id) {
			w.now = w.now.Add(time.Millisecond)
			w.fail(id)
			return
		}
		if w.setState(id, mariposa.StateRunning, ""); isUnproven(w.instances[id]) {
			w.setHealth(id, mariposa.HealthHealthy)
		}
	}
}

// isNew reports whether an instance is desired and does not run yet.
func (w *world) isNew(id string) bool {
	i := w.instances[id]
	return i.Spec.Goal == mariposa.GoalRunning && mariposa.StateOf(i.Spec, i.Status) == mariposa.StateProvisioning
}

// settle plans, lets everything succeed and follows the wake-ups until neither time nor
// the fleet can change anything.
func (w *world) settle() {
	w.Helper()
	for range 10_000 {
		p := w.plan()
		w.carryOut(p, len(p.Steps))
		ids := w.moving()
		for _, id := range ids {
			w.move(id)
		}
		if len(ids)+len(p.Steps) > 0 || p.PlanAgain {
			continue
		}
		if !w.busy(p) || p.Wake.IsZero() {
			return
		}
		if !p.Wake.After(w.now) {
			w.Fatalf("the plan wakes at %s, which has passed%s", stamp(p.Wake), w.formatHistory())
		}
		w.now = p.Wake
	}
	w.Fatalf("no end in sight:\n%s%s", show(w.plan()), w.formatHistory())
}

func (w *world) busy(p whole) bool {
	for _, n := range p.Todo {
		if n > 0 {
			return true
		}
	}
	return false
}

// of lists the desired instances of a service by id, oldest first.
func (w *world) of(service string) []string {
	var ids []string
	for id, i := range w.instances {
		if i.Spec.ServiceName == service && i.Spec.Goal == mariposa.GoalRunning {
			ids = append(ids, id)
		}
	}
	slices.SortFunc(ids, func(a, b string) int { return cmp.Compare(birth(a), birth(b)) })
	return ids
}

func birth(id string) int {
	var n int
	fmt.Sscanf(id[strings.LastIndexByte(id, '-')+1:], "%d", &n)
	return n
}

// serving counts the desired instances of a service that run on reachable nodes, by
// image.
func (w *world) serving(service string) map[string]int {
	n := map[string]int{}
	for _, id := range w.of(service) {
		i := w.instances[id]
		if mariposa.StateOf(i.Spec, i.Status) == mariposa.StateRunning && !w.nodes[i.Spec.Node].Unknown {
			n[i.Spec.Digest]++
		}
	}
	return n
}

func (w *world) status(service string) *mariposa.ServiceStatus { return w.goal.Services[service] }

// formatHistory formats the history of the world.
func (w *world) formatHistory() string {
	last := w.history[max(0, len(w.history)-150):]
	return "\n\nthe story so far:\n" + strings.Join(last, "\n") + "\n\n" + dump(w.view)
}

// word formats a step as text.
func word(s Step) string {
	switch s.Action {
	case Create:
		return fmt.Sprintf("create %s.%d v%d", s.Service, s.Slot, s.Number)
	case Update:
		return fmt.Sprintf("update %s v%d", s.Instance, s.Number)
	}
	return fmt.Sprintf("%s %s", s.Action, s.Instance)
}

func words(steps []Step) []string {
	var out []string
	for _, s := range steps {
		out = append(out, word(s))
	}
	return out
}

func show(p whole) string {
	var b strings.Builder
	for _, s := range p.Steps {
		fmt.Fprintf(&b, "%s (%s)\n", word(s), stepReason(s))
	}
	for _, name := range slices.Sorted(maps.Keys(p.Services)) {
		s := p.Services[name]
		fmt.Fprintf(&b, "%s: %s %q todo %d rollout %+v backoff %+v\n", name, s.Status, reasonOf(s), p.Todo[name], s.Rollout, s.Backoff)
	}
	fmt.Fprintf(&b, "wake %s empty %v", stamp(p.Wake), p.Empty)
	return b.String()
}
