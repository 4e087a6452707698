package converge

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"mariposa"
)

// TestTheRulesHoldWhateverHappens applies random goals, failures and losses to a project
// and checks every plan against the rules. Then the faults end, and the project must
// reach its goal.
func TestTheRulesHoldWhateverHappens(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		f := newRandomProject(t)
		f.turn()
		for range rapid.IntRange(1, 60).Draw(t, "events") {
			f.event()
			f.turn()
		}
		f.faultsEnd()
	})
}

// randomProject is a world with random events.
type randomProject struct {
	*world
	t       *rapid.T
	graph   []string // its services, with any edges; empty: the three with a fixed order
	partial bool     // users requested a partial rollout, so outdated instances may remain
}

func newRandomProject(t *rapid.T) *randomProject {
	f := &randomProject{t: t}
	f.world = newWorld(t, f.manifest()...)
	f.budget = rapid.SampledFrom([]int{1, 2, 5, 1000}).Draw(t, "budget")
	return f
}

// manifest creates a version in which any of three services may be missing. In every
// version, app may depend on db, and web on both, never the reverse.
func (f *randomProject) manifest() []*mariposa.Service {
	if len(f.graph) > 0 {
		return f.drawGraph()
	}
	var defs []*mariposa.Service
	have := map[string]bool{}
	for _, name := range []string{"db", "app", "web"} {
		if rapid.IntRange(0, 9).Draw(f.t, name+" missing") == 0 {
			continue
		}
		d := f.definition(name)
		for _, on := range []string{"db", "app"} {
			if have[on] && rapid.Bool().Draw(f.t, name+" on "+on) {
				f.lean(d, on)
			}
		}
		have[name] = true
		defs = append(defs, d)
	}
	return defs
}

func (f *randomProject) definition(name string) *mariposa.Service {
	t := f.t
	d := def(name, rapid.SampledFrom([]string{"one", "two", "three"}).Draw(t, name+" image"), rapid.IntRange(0, 5).Draw(t, name+" scale"))
	d.Digest += rapid.SampledFrom([]string{"", ".red", ".blue"}).Draw(t, name+" metadata")
	if rapid.Bool().Draw(t, name+" on_metadata") {
		d.Update.OnMetadata = mariposa.OnMetadataReprovision
	}
	if rapid.IntRange(0, 7).Draw(t, name+" needs") == 0 {
		d.Needs = []string{"key"}
	}
	d.Live = rapid.SampledFrom([]string{"", "small", "big"}).Draw(t, name+" live")
	d.Update.Rolling = mariposa.Amount{N: rapid.IntRange(1, 3).Draw(t, name+" rolling")}
	if rapid.IntRange(0, 3).Draw(t, name+" percent") == 0 {
		d.Update.Rolling = mariposa.Amount{N: 40, Percent: true}
	}
	d.Update.StopFirst = rapid.IntRange(0, 2).Draw(t, name+" stop-first") == 0
	d.Update.MinHealthy = time.Duration(rapid.SampledFrom([]int{0, 5, 30}).Draw(t, name+" min_healthy")) * time.Second
	d.Update.Deadline = time.Duration(rapid.SampledFrom([]int{0, 60, 600}).Draw(t, name+" deadline")) * time.Second
	d.Update.OnFailure = rapid.SampledFrom([]mariposa.OnFailure{
		mariposa.OnFailurePause, mariposa.OnFailurePause, mariposa.OnFailureRollback, mariposa.OnFailureContinue,
	}).Draw(t, name+" on_failure")
	if rapid.IntRange(0, 4).Draw(t, name+" canary") == 0 {
		d.Update.Canary = mariposa.Amount{N: rapid.IntRange(1, 3).Draw(t, name+" canaries")}
	}
	d.Stop.PreserveStopped = rapid.SampledFrom([]string{mariposa.PreserveNo, mariposa.PreserveOnFailure, mariposa.PreserveAlways}).Draw(t, name+" preserve")
	if rapid.IntRange(0, 5).Draw(t, name+" never") == 0 {
		d.Reschedule = mariposa.Reschedule{Never: true}
	}
	return d
}

// lean makes a service depend on another one, and perhaps refer to it.
func (f *randomProject) lean(d *mariposa.Service, on string) {
	d.DependsOn = append(d.DependsOn, on)
	switch field := rapid.SampledFrom([]string{"", "id", "id", "address", "ids"}).Draw(f.t, d.Name+" refers to "+on); {
	case field == "":
	case rapid.IntRange(0, 4).Draw(f.t, d.Name+" live") == 0:
		d.LiveRefs = append(d.LiveRefs, mariposa.Ref{Service: on, Field: field})
	default:
		refersTo(on + "." + field)(d)
	}
}

// event performs one random event.
func (f *randomProject) event() {
	what := rapid.SampledFrom([]string{
		"move", "move", "move", "move", "move", "wake", "wake", "wait", "fail", "stillborn", "restart", "sicken", "sicken", "heal", "unproven", "lose", "return",
		"drain", "undrain", "storm", "give up",
		"scale", "submit", "reprovision", "aim", "mode", "ask", "shape", "shape",
	}).Draw(f.t, "event")
	f.history = append(f.history, fmt.Sprintf("%s %s", stamp(f.now), what))
	switch what {
	case "move":
		f.each(f.moving(), f.move)
	case "wake":
		if p := f.plan(); p.Wake.After(f.now) {
			f.now = p.Wake
		}
	case "wait":
		f.wait(time.Duration(rapid.SampledFrom([]int{1, 10, 70, 700}).Draw(f.t, "seconds")) * time.Second)
	case "fail":
		f.each(f.running(), func(id string) { f.fail(id) })
	case "stillborn":
		f.each(f.moving(), func(id string) {
			if f.instances[id].Spec.Goal == mariposa.GoalRunning {
				f.fail(id)
			}
		})
	case "sicken":
		f.each(f.running(), func(id string) { f.setHealth(id, mariposa.HealthUnhealthy) })
	case "heal":
		f.each(f.running(), func(id string) { f.setHealth(id, mariposa.HealthHealthy) })
	case "unproven": // they run, and their checks have not passed yet
		f.each(f.moving(), func(id string) {
			if f.isNew(id) {
				f.startUnproven(id)
			}
		})
	case "restart": // in place, by its node
		f.each(f.running(), func(id string) { f.setState(id, mariposa.StateProvisioning, "") })
	case "lose":
		if n := f.node(); !f.nodes[n].Unknown {
			f.loseNode(n)
		}
	case "return":
		if n := f.node(); f.nodes[n].Unknown {
			f.comeBack(n)
		}
	case "drain", "undrain":
		f.drain(f.node(), what == "drain")
	case "storm":
		f.setStorm(rapid.Bool().Draw(f.t, "storm"))
	case "give up":
		if rapid.Bool().Draw(f.t, "for a project") {
			f.patch(mariposa.Patch{Retry: true, Reschedule: true}, f.scope()...)
		} else if n := f.node(); f.nodes[n].Unknown {
			is := f.nodes[n]
			is.GivenUp = true
			f.setNode(n, is)
		}
	case "scale":
		f.scale(f.name(), rapid.IntRange(0, 6).Draw(f.t, "to"))
	case "submit":
		f.submit(f.manifest()...)
	case "reprovision":
		f.patch(mariposa.Patch{Reprovision: []string{f.name()}, Canary: mariposa.Amount{N: rapid.IntRange(0, 3).Draw(f.t, "count")}})
	case "mode":
		f.mode(rapid.SampledFrom([]mariposa.Mode{
			mariposa.ModeFreeze, mariposa.ModeThaw, mariposa.ModeThaw, mariposa.ModePause, mariposa.ModeResume,
		}).Draw(f.t, "mode"), f.scope()...)
	case "ask":
		f.ask()
	case "shape":
		f.shape()
	case "aim":
		f.aim(rapid.SampledFrom([]mariposa.ProjectGoal{
			mariposa.GoalStarted, mariposa.GoalStarted, mariposa.GoalStarted, mariposa.GoalStopped, mariposa.GoalDeleted,
		}).Draw(f.t, "goal"))
	}
}

// ask performs one of the less frequent requests.
func (f *randomProject) ask() {
	what := rapid.SampledFrom([]string{"filter", "stop", "stop version", "start", "accept", "retry"}).Draw(f.t, "asked")
	f.history = append(f.history, fmt.Sprintf("%s ask for %s", stamp(f.now), what))
	switch what {
	case "filter":
		f.partial = true
		f.patch(mariposa.Patch{Reprovision: []string{f.name()}, Filter: f.filter()})
	case "stop":
		f.lift(mariposa.Patch{Goal: mariposa.GoalStopped}, f.name())
	case "stop version":
		f.partial = true
		f.lift(mariposa.Patch{StopVersion: rapid.IntRange(1, len(f.versions)).Draw(f.t, "version")}, f.scope()...)
	case "start":
		f.lift(mariposa.Patch{Goal: mariposa.GoalStarted}, f.name())
	case "accept":
		f.partial = true
		f.patch(mariposa.Patch{Accept: true}, f.scope()...)
	case "retry":
		f.patch(mariposa.Patch{Retry: true}, f.scope()...)
	}
}

func (f *randomProject) filter() *mariposa.Filter {
	switch rapid.SampledFrom([]string{"version", "image", "instances", "nodes"}).Draw(f.t, "by") {
	case "version":
		return &mariposa.Filter{Version: rapid.IntRange(1, len(f.versions)).Draw(f.t, "version")}
	case "image":
		return &mariposa.Filter{Image: rapid.SampledFrom([]string{"one", "two"}).Draw(f.t, "image")}
	case "nodes":
		return &mariposa.Filter{Nodes: []string{f.node()}}
	}
	ids := slices.Sorted(maps.Keys(f.instances))
	return &mariposa.Filter{Instances: ids[:len(ids)/2]}
}

// scope returns the whole project or one service.
func (f *randomProject) scope() []string {
	if rapid.Bool().Draw(f.t, "whole") {
		return nil
	}
	return []string{f.name()}
}

// each applies a function to one or more of the instances.
func (f *randomProject) each(ids []string, do func(id string)) {
	if len(ids) == 0 {
		return
	}
	at := rapid.IntRange(0, len(ids)-1).Draw(f.t, "which")
	many := rapid.IntRange(1, len(ids)-at).Draw(f.t, "how many")
	for _, id := range ids[at : at+many] {
		do(id)
	}
}

func (f *randomProject) running() []string {
	var ids []string
	for id, i := range f.instances {
		if mariposa.StateOf(i.Spec, i.Status) == mariposa.StateRunning && !f.nodes[i.Spec.Node].Unknown && i.Spec.Goal == mariposa.GoalRunning {
			ids = append(ids, id)
		}
	}
	slices.Sort(ids)
	return ids
}

func (f *randomProject) node() string {
	return rapid.SampledFrom([]string{"n1", "n2", "n3"}).Draw(f.t, "node")
}

func (f *randomProject) name() string {
	if len(f.graph) > 0 {
		return rapid.SampledFrom(f.graph).Draw(f.t, "service")
	}
	return rapid.SampledFrom([]string{"db", "app", "web"}).Draw(f.t, "service")
}

// turn plans, checks the plan and executes some or all of it, like a planner with limited
// commits.
func (f *randomProject) turn() {
	p := f.checked()
	n := len(p.Steps)
	if rapid.IntRange(0, 4).Draw(f.t, "cut") == 0 {
		n = rapid.IntRange(0, n).Draw(f.t, "steps done")
	}
	f.carryOut(p, n)
}

// checked plans and checks the plan against the rules.
func (f *randomProject) checked() whole {
	p := f.plan()
	f.fromScratch(p)
	f.stable(p)
	f.refersRightly(p)
	f.neverSilent(p)
	f.frozenStays(p)
	f.keepsBindings(p)
	for _, name := range serviceNames(f.view) {
		f.withinBounds(name, balanceOf(f.view, name, f.now, p))
	}
	return p
}

// fromScratch compares the view with one that was given everything at once, in another
// order.
func (f *randomProject) fromScratch(p whole) {
	v := NewView()
	ids := slices.Sorted(maps.Keys(f.instances))
	half := len(ids) / 2
	tell := func(ids []string) {
		for _, id := range slices.Backward(ids) {
			v.SetInstance(id, f.instances[id].Spec, f.instances[id].Status)
		}
	}
	tell(ids[half:])
	v.SetGoal(f.goal)
	for n, d := range f.versions {
		v.SetVersion(n, d)
	}
	for n, node := range f.nodes {
		v.SetNode(n, node)
	}
	v.SetStorm(f.storm)
	tell(ids[:half])
	if got, want := dump(f.view), dump(v); got != want {
		f.Fatalf("the view is\n%s\nbut from scratch\n%s%s", got, want, f.formatHistory())
	}
	if again := f.whole(v); !reflect.DeepEqual(p, again) {
		f.Fatalf("the plan is\n%s\nbut from scratch\n%s%s", show(p), show(again), f.formatHistory())
	}
}

// refersRightly checks that steps refer to existing instances and free slots.
func (f *randomProject) refersRightly(p whole) {
	done := map[string]bool{}
	creates := 0
	for _, s := range p.Steps {
		key := s.Instance
		if s.Action == Create {
			creates++
			key = fmt.Sprintf("%s.%d", s.Service, s.Slot)
			f.fillsRightly(s)
		} else if f.instances[s.Instance] == nil {
			f.Fatalf("%s: there is no such service%s", word(s), f.formatHistory())
		}
		if done[key] {
			f.Fatalf("%s: twice in one plan:\n%s%s", word(s), show(p), f.formatHistory())
		}
		done[key] = true
		i := f.instances[s.Instance]
		switch {
		case s.Action == Preserve && i.Spec.Kept, s.Action == Preserve && i.Spec.Goal == mariposa.GoalGone:
			f.Fatalf("%s: it is kept already, or told to go%s", word(s), f.formatHistory())
		case s.Action == Remove && i.Spec.Goal == mariposa.GoalGone, s.Action == Remove && i.Spec.Goal == mariposa.GoalHalted && !hasEnded(mariposa.StateOf(i.Spec, i.Status)):
			f.Fatalf("%s: it has been told to go before%s", word(s), f.formatHistory())
		case (s.Action == Remove || s.Action == Preserve) && i.Spec.Goal == mariposa.GoalRunning:
			f.leanedOnByNobody(p, s)
		case s.Action == Update && mariposa.StateOf(i.Spec, i.Status) != mariposa.StateRunning:
			f.Fatalf("%s: it does not run%s", word(s), f.formatHistory())
		case s.Action == Collect && mariposa.StateOf(i.Spec, i.Status) != mariposa.StateDestroyed:
			f.Fatalf("%s: there is something left of it%s", word(s), f.formatHistory())
		}
	}
	if room := max(0, f.budget-f.view.Starting(f.now)); creates > room {
		f.Fatalf("%d are created where %d may be:\n%s%s", creates, room, show(p), f.formatHistory())
	}
}

// fillsRightly checks that a create uses a slot that is free or has outdated instances to
// replace, and that the service may create at this time.
func (f *randomProject) fillsRightly(s Step) {
	ss, def := f.goal.Services[s.Service], defOf(f.view, s.Service)
	if f.versions[s.Number][s.Service] == nil || s.Slot < 1 {
		f.Fatalf("%s: there is no such thing%s", word(s), f.formatHistory())
	}
	if isEnding(f.view, s.Service) {
		f.Fatalf("%s: it is to end%s", word(s), f.formatHistory())
	}
	if len(f.versions[s.Number][s.Service].Needs) > 0 {
		f.Fatalf("%s: values are missing for it%s", word(s), f.formatHistory())
	}
	if b := ss.Backoff; b != nil && b.Until.After(f.now) {
		f.Fatalf("%s: it backs off until %s%s", word(s), stamp(b.Until), f.formatHistory())
	}
	for id, i := range f.instances {
		if i.Spec.ServiceName != s.Service || i.Spec.Slot != s.Slot {
			continue
		}
		c := classOf(f.view, i)
		if isDisplaced(f.view, i) && !def.Update.StopFirst && !ss.Paused {
			continue
		}
		if c.holdsSlot() && c != lost && (c != outdatedRunning && c != outdatedStarting || def.Update.StopFirst || ss.Paused || ss.Rollout.Held) {
			f.Fatalf("%s: %s holds the slot%s", word(s), id, f.formatHistory())
		}
	}
}

// leanedOnByNobody checks that a service ends only after its dependents. If edges can be
// inverted, versions may contradict each other about the dependents.
func (f *randomProject) leanedOnByNobody(p whole, s Step) {
	ss := f.goal.Services[s.Service]
	if !isEnding(f.view, s.Service) || ss != nil && ss.Frozen != nil {
		return
	}
	alone := ss != nil && ss.Stopped && !ss.Removed && f.goal.Goal == mariposa.GoalStarted
	if len(f.graph) > 0 {
		if by, n := dependentOf(f.again(), s.Service, alone); n > 0 {
			f.Fatalf("%s: %s still has %d:\n%s%s", word(s), by, n, show(p), f.formatHistory())
		}
		return
	}
	for id, i := range f.instances {
		other := f.goal.Services[i.Spec.ServiceName]
		if c := classOf(f.view, i); c == gone || c == leavingLost || c == preserved || alone && (other == nil || !other.Stopped) {
			continue
		}
		if d := livesBy(f.view, i); d != nil && slices.Contains(d.DependsOn, s.Service) {
			f.Fatalf("%s: %s depends on it:\n%s%s", word(s), id, show(p), f.formatHistory())
		}
	}
}

// neverSilent checks that a plan names what it waits for, and reports work if there is
// any.
func (f *randomProject) neverSilent(p whole) {
	steps := map[string]int{}
	for _, s := range p.Steps {
		steps[s.Service]++
	}
	for _, name := range serviceNames(f.view) {
		if p.Todo[name] == 0 {
			if steps[name] > 0 {
				f.Fatalf("there is nothing to do for %s but\n%s%s", name, show(p), f.formatHistory())
			}
			continue
		}
		inFlight := countOf(f.view, name, starting, outdatedStarting, leaving, leavingLost, lost, updating)
		reason := p.Services[name] != nil && reasonOf(p.Services[name]) != ""
		if steps[name]+inFlight == 0 && p.Wake.IsZero() && !reason {
			f.Fatalf("%s: %d to do, nothing in flight, and not a word about it:\n%s%s", name, p.Todo[name], show(p), f.formatHistory())
		}
	}
	if !p.Wake.IsZero() && !p.Wake.After(f.now) {
		f.Fatalf("the plan wakes at %s, which has passed:\n%s%s", stamp(p.Wake), show(p), f.formatHistory())
	}
}

// frozenStays checks that a plan does not change frozen services, except to let them
// settle: instances that never served are removed, and records of removed instances are
// deleted.
func (f *randomProject) frozenStays(p whole) {
	for _, s := range p.Steps {
		ss := f.goal.Services[s.Service]
		if ss == nil || ss.Frozen == nil || s.Action == Collect {
			continue
		}
		if i := f.instances[s.Instance]; s.Action != Remove || ss.Frozen.Settled || !neverServed(i) {
			f.Fatalf("%s: it is frozen%s", word(s), f.formatHistory())
		}
	}
}

// keepsBindings checks that bindings stay unchanged while their instances are alive and
// up to date.
func (f *randomProject) keepsBindings(p whole) {
	for name, ss := range f.goal.Services {
		if defOf(f.view, name) == nil || isEnding(f.view, name) || len(f.of(name)) == 0 {
			continue
		}
		for _, on := range referredBy(f.view, name) {
			was, had := ss.Bindings.Get(on)
			x := f.instances[was.Instance]
			if !had || x == nil || x.Spec.ServiceName != on || f.goal.Services[on] == nil || defOf(f.view, on) == nil || !bindsToOne(was) {
				continue
			}
			next, _ := p.Services[name].Bindings.Get(on)
			if classOf(f.view, x).upToDate() && !slices.Contains(f.goal.Services[on].Yields, x.ID) && next.Instance != "" && next.Instance != was.Instance {
				f.Fatalf("%s lets go of %s, which lives:\n%s%s", name, was.Instance, show(p), f.formatHistory())
			}
		}
	}
}

// bindsToOne reports whether a binding is about a single instance.
func bindsToOne(b mariposa.Binding) bool {
	for field := range b.Values {
		if isAboutOne(mariposa.Ref{Field: field}) {
			return true
		}
	}
	return false
}

// balance contains the changes that a plan makes to the numbers of one service.
type balance struct {
	ending       bool
	stopFirst    bool
	goal, batch  int
	running      int // before the plan
	settled      int // of these, outdated ones or those up for min_healthy
	away         int // instances on unreachable nodes that count toward the goal, because a drain waits
	retired      int // running instances that the plan removes, except those that hand their slot over
	outdated     int // of these, those that a rollout replaces
	moved        int // of these, those that leave a node that is drained and have no successor
	filling, add int // instances that count toward the goal, and those that the plan adds
	limit        int // maximum number at the target of a held rollout; 0: no limit
	target       int // actual number at the target
	beyond       int // number that the plan creates there, except refills
}

// withinBounds checks a plan against the service's minimum and maximum.
func (f *randomProject) withinBounds(name string, b balance) {
	if b.ending {
		return
	}
	fewest, most := b.goal, b.goal+max(1, b.batch)
	if b.stopFirst {
		fewest, most = b.goal-max(1, b.batch), b.goal
	}
	if b.retired > 0 && b.running+b.away-b.retired < fewest {
		f.Fatalf("%s: %d of %d running ones go, where %d must stay: %+v%s", name, b.retired, b.running, fewest, b, f.formatHistory())
	}
	if b.outdated > 0 && !b.stopFirst && b.settled-b.outdated < b.goal {
		f.Fatalf("%s: %d outdated ones go before enough others have proved themselves: %+v%s", name, b.outdated, b, f.formatHistory())
	}
	if b.moved > 0 && !b.stopFirst {
		f.Fatalf("%s: %d leave their node before their successors have proved themselves: %+v%s", name, b.moved, b, f.formatHistory())
	}
	if b.limit > 0 && b.beyond > 0 && b.target+b.beyond > b.limit {
		f.Fatalf("%s: %d are brought to the target, where it holds at %d: %+v%s", name, b.beyond, b.limit, b, f.formatHistory())
	}
	if b.add > 0 && b.filling+b.add > most {
		f.Fatalf("%s: %d are added to %d, where %d may be: %+v%s", name, b.add, b.filling, most, b, f.formatHistory())
	}
}

// faultsEnd lets everything succeed from now on, first without the unreachable nodes,
// then with them, and checks the world against its goal. The last version retries every
// rollout that stopped.
func (f *randomProject) faultsEnd() {
	f.cause = nil
	f.budget = max(1, f.budget)
	f.mode(mariposa.ModeThaw)
	f.mode(mariposa.ModeResume)
	f.setStorm(false)
	f.leavesRoom()
	away := slices.ContainsFunc(slices.Collect(maps.Values(f.nodes)), func(n Node) bool { return n.Unknown })
	f.giveValues()
	f.finishHolds()
	if slices.ContainsFunc(slices.Collect(maps.Values(f.nodes)), func(n Node) bool { return !n.Unknown }) {
		f.settle()
		f.servesWithoutTheLost()
	}
	for n := range f.nodes {
		f.comeBack(n)
	}
	if away {
		f.giveValues() // for rollouts that stopped because a node was unreachable
	}
	f.settle()
	f.finishHolds()
	f.settle()
	f.stable(f.plan())
	f.isAsTheGoalSays()
	f.wait(preserveFor)
	f.settle()
	for _, name := range serviceNames(f.view) {
		if n := countOf(f.view, name, preserved); n > 0 {
			f.Fatalf("%s: %d are kept for longer than a day%s", name, n, f.formatHistory())
		}
	}
}

// leavesRoom ends drains until a node is left that takes instances.
func (f *randomProject) leavesRoom() {
	for _, n := range slices.Sorted(maps.Keys(f.nodes)) {
		if !f.nodes[n].Draining {
			f.comeBack(n) // the others may have no place otherwise
			return
		}
	}
	f.drain("n1", false)
	f.comeBack("n1")
}

// finishHolds requests the completion of what is held or was left out.
func (f *randomProject) finishHolds() {
	for name, ss := range f.goal.Services {
		if r := ss.Rollout; f.partial || r != nil && (r.Held || r.Limit > 0) {
			f.patch(mariposa.Patch{Reprovision: []string{name}})
		}
	}
}

// giveValues makes a version current that is like the newest one and has all values.
func (f *randomProject) giveValues() {
	var defs []*mariposa.Service
	for _, name := range slices.Sorted(maps.Keys(f.versions[f.goal.Number])) {
		d := *f.versions[f.goal.Number][name]
		d.Needs = nil
		defs = append(defs, &d)
	}
	f.submit(defs...)
}

// servesWithoutTheLost checks that the reachable nodes serve.
func (f *randomProject) servesWithoutTheLost() {
	for name, ss := range f.goal.Services {
		if ss.Removed || ss.Stopped || f.goal.Goal != mariposa.GoalStarted || f.waitsForTheLost(name) || f.lacksValues(name) {
			continue
		}
		if up := countOf(f.view, name, serving, needsUpdate, outdatedRunning); up < ss.Scale {
			f.Fatalf("%s: %d of %d run, and nothing more will come:\n%s%s", name, up, ss.Scale, show(f.plan()), f.formatHistory())
		}
	}
}

// lacksValues reports whether the current version has missing values: an older one that
// was restored because the newest could not start without the lost nodes.
func (f *randomProject) lacksValues(name string) bool {
	d := f.versions[f.goal.Services[name].Number][name]
	return d != nil && len(d.Needs) > 0
}

// waitsForTheLost reports whether a service may wait for a node: its own if it is never
// rescheduled, or a dependency's.
func (f *randomProject) waitsForTheLost(name string) bool {
	d := f.versions[f.goal.Services[name].Number][name]
	return d.Reschedule.Never || slices.ContainsFunc(d.DependsOn, func(on string) bool {
		return f.goal.Services[on].Stopped || f.waitsForTheLost(on)
	}) || f.refersToNothing(name)
}

// refersToNothing reports whether a service may wait because it, or a dependency, refers
// to a service that should have no instances.
func (f *randomProject) refersToNothing(name string) bool {
	d := f.versions[f.goal.Services[name].Number][name]
	return d != nil && (slices.ContainsFunc(d.Refs, func(r mariposa.Ref) bool {
		ss := f.goal.Services[r.Service]
		return ss != nil && ss.Scale == 0
	}) || slices.ContainsFunc(d.DependsOn, f.refersToNothing))
}

// isAsTheGoalSays checks a world at rest against its goal: one instance in each slot, as
// many as the scale, all up to date. No rollout has stopped, because nothing has failed
// since the last version retried all of them.
func (f *randomProject) isAsTheGoalSays() {
	p := f.plan()
	for _, name := range serviceNames(f.view) {
		ss := f.goal.Services[name]
		if f.waitsForPeople(name) {
			if len(p.Steps) > 0 || p.Todo[name] > 0 && reasonOf(p.Services[name]) == "" {
				f.Fatalf("%s: it does not say what it waits for:\n%s%s", name, show(p), f.formatHistory())
			}
			continue
		}
		if ss != nil && isStopped(ss.Rollout) {
			f.Fatalf("%s: its rollout is stopped, and nothing has failed since it was tried again:\n%s%s", name, show(p), f.formatHistory())
		}
		scale := 0
		if !isEnding(f.view, name) {
			scale = ss.Scale
		}
		f.keepsFew(name)
		instances, slots := sizeOf(f.view, name)
		if p.Todo[name] > 0 || instances != scale || slots != scale {
			f.Fatalf("%s: %d instances in %d slots, where the scale is %d:\n%s%s", name, instances, slots, scale, show(p), f.formatHistory())
		}
		if scale == 0 {
			continue
		}
		f.refersToTheLiving(name)
		f.leavesDrainedNodes(name)
		if n := countOf(f.view, name, serving); n != scale || ss.Rollout != nil {
			f.Fatalf("%s: %d of %d are up to date:\n%s%s", name, n, scale, show(p), f.formatHistory())
		}
	}
	if f.goal.Goal == mariposa.GoalDeleted && !p.Empty {
		f.Fatalf("something is left of the deleted project:\n%s%s", show(p), f.formatHistory())
	}
}

// leavesDrainedNodes checks that a service at rest has no instance on a node that is
// drained.
func (f *randomProject) leavesDrainedNodes(name string) {
	for _, id := range f.of(name) {
		if n := f.instances[id].Spec.Node; f.nodes[n].Draining {
			f.Fatalf("%s is on %s, which is drained%s", id, n, f.formatHistory())
		}
	}
}

// refersToTheLiving checks that a service at rest is bound to live and desired instances,
// and that its instances were created with these bindings.
func (f *randomProject) refersToTheLiving(name string) {
	def, ss := defOf(f.view, name), f.goal.Services[name]
	if isEnding(f.view, name) || def == nil || ss.Scale == 0 {
		return
	}
	for _, r := range def.Refs {
		b, ok := ss.Bindings.Get(r.Service)
		x := f.instances[b.Instance]
		if !ok || x == nil || x.Spec.ServiceName != r.Service || !classOf(f.view, x).runs() {
			f.Fatalf("%s is bound to %q of %s, which does not live%s", name, b.Instance, r.Service, f.formatHistory())
		}
		if r.Field == "ids" {
			continue
		}
		for _, id := range f.of(name) {
			i := f.instances[id]
			if made := i.Spec.Bindings.To[r.Service]; classOf(f.view, i) == serving && made.Values[r.Field] != b.Values[r.Field] {
				f.Fatalf("%s was made with %v, and %s resolves to %v%s", i.ID, made.Values, r, b.Values, f.formatHistory())
			}
		}
	}
}

// keepsFew checks the ended instances that a service at rest keeps: the newest of each
// slot, up to a maximum, and none if the policy says so.
func (f *randomProject) keepsFew(name string) {
	slots := map[int]bool{}
	for id, i := range f.instances {
		if i.Spec.ServiceName != name || classOf(f.view, i) != preserved {
			continue
		}
		if slots[i.Spec.Slot] || !i.Spec.Kept {
			f.Fatalf("%s is kept beside a newer one, or takes something of its node%s", id, f.formatHistory())
		}
		slots[i.Spec.Slot] = true
	}
	ss := f.goal.Services[name]
	if n := len(slots); n > maxPreserved || n > 0 && (ss == nil || ss.Removed || defOf(f.view, name).Stop.PreserveStopped == mariposa.PreserveNo) {
		f.Fatalf("%s keeps %d%s", name, n, f.formatHistory())
	}
}

// waitsForPeople reports whether a service may wait for something that only users can
// change: another service that they stopped or scaled to zero, which it depends on or
// whose instances need it.
func (f *randomProject) waitsForPeople(name string) bool { return f.waits(name, map[string]bool{}) }

// yields reports whether an instance should be removed but stays for those that refer to
// it.
func (f *randomProject) yields(i *Instance) bool {
	ss := f.goal.Services[i.Spec.ServiceName]
	return ss != nil && slices.Contains(ss.Yields, i.ID)
}

func (f *randomProject) waits(name string, seen map[string]bool) bool {
	if f.goal.Goal != mariposa.GoalStarted || seen[name] {
		return false
	}
	seen[name] = true
	standsStill := func(other string) bool {
		ss := f.goal.Services[other]
		return ss != nil && (ss.Stopped || f.waits(other, seen))
	}
	for _, i := range f.instances { // those that refer to it and cannot follow
		if i.Spec.ServiceName != name || !isOutdated(f.view, i) && !isEnding(f.view, name) && !f.yields(i) {
			continue
		}
		for _, by := range f.referrers(i) {
			if standsStill(f.instances[by].Spec.ServiceName) {
				return true
			}
		}
	}
	ss := f.goal.Services[name]
	if ss == nil || ss.Removed {
		by, n := dependentOf(f.again(), name, false)
		return n > 0 && standsStill(by)
	}
	return f.refersToNothing(name) || slices.ContainsFunc(f.versions[ss.Number][name].DependsOn, func(on string) bool {
		o := f.goal.Services[on]
		return o != nil && o.Stopped || f.waits(on, seen)
	})
}
