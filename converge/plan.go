package converge

import (
	"maps"
	"slices"
	"time"

	"mariposa"
)

// Plan contains the next steps as data: printable, comparable and executed elsewhere.
type Plan struct {
	Steps          []Step
	Services       map[string]*mariposa.ServiceStatus // goal and status of every service that this plan changes
	Ended          []string                           // services that have ended, sorted
	Todo           int                                // number of instances not in their desired state; View.Todo returns it by service
	Wake           time.Time                          // when to plan again even if nothing changes; zero: never
	Empty          bool                               // no instance exists and none is desired
	PlanAgain      bool                               // the new statuses change what to do: plan again once they are stored
	Rollback       string                             // a service whose rollout has just failed and whose version must be rolled back
	RollbackReason *mariposa.Reason
}

// ApplyTo returns the stored services with the changes of a plan. It does not change the
// given map, and returns it if there are no changes.
func (p *Plan) ApplyTo(services map[string]*mariposa.ServiceStatus) map[string]*mariposa.ServiceStatus {
	if len(p.Services)+len(p.Ended) == 0 {
		return services
	}
	out := make(map[string]*mariposa.ServiceStatus, len(services))
	maps.Copy(out, services)
	maps.Copy(out, p.Services)
	for _, name := range p.Ended {
		delete(out, name)
	}
	return out
}

// Step is one operation on one instance.
type Step struct {
	Action   Action
	Service  string
	Slot     int    // create
	Number   int    // create, update: the version
	Instance string // all except create
	Reason   *mariposa.Reason
	Repair   bool   // it repairs a failure, so it comes before bulk work
	Drains   string // the node that it moves an instance off; empty: none
	// Stable: a new instance must not go to a node that was lost several times recently,
	// because it replaces one that is lost. Otherwise both nodes may keep replacing it.
	Stable bool
	// Bindings are the values of a new instance's references. Bound is a digest of those
	// that become part of it.
	Bindings *mariposa.Bindings
	Bound    string
}

// Action is the operation of a step.
type Action string

const (
	Create   Action = "create"  // a new instance in a slot
	Update   Action = "update"  // change an instance in place
	Remove   Action = "remove"  // an instance's goal becomes gone
	Preserve Action = "keep"    // an instance's goal becomes stopped: it is kept for a while
	Collect  Action = "collect" // delete the record of an instance that no longer exists
)

// Budget limits a plan. Starting is the maximum number of starting instances, not
// counting slow ones.
type Budget struct {
	Starting int
	Steps    int // steps other than repairs; 0: no limit
}

const (
	// backoffForgetAfter is how long a service must run without failures before its
	// back-off is reset.
	backoffForgetAfter = 10 * time.Minute
	maxSkew            = 10 * time.Second // clocks that follow the store's differ by less
	// maxRolloutFailures is the number of failures at the new version, without progress,
	// after which a rollout stops.
	maxRolloutFailures = 3
)

// Plan returns the steps from the actual state to the goal. While the goal or definitions
// are missing it does nothing, because missing knowledge must not affect running
// instances. It remembers what it visited, so that the next plan can skip what has not
// changed.
func (v *View) Plan(now time.Time, b Budget) Plan {
	v.agenda.serial++
	p := &planner{view: v, now: now, plans: v.agenda.serial, room: max(0, b.Starting-v.Starting(now)), limit: b.Steps}
	if !v.hasGoal || len(v.MissingVersions()) > 0 {
		v.keepAllAsTheyAre()
		p.plan.Todo = v.agenda.todo
		return p.plan
	}
	v.refresh(now)
	var looked []*service
	v.agenda.due.Scan(func(s *service) bool {
		if s.dirty || s.seesOtherBudget(p) {
			looked = append(looked, s)
			p.service(s)
		}
		return true
	})
	v.unmarkDone(looked)
	if s, some := v.agenda.wakes.Min(); some {
		p.plan.Wake = s.wake
	}
	if v.lacksBudget() {
		p.plan.Wake = earlierOf(p.plan.Wake, v.nextSlowAt(now))
	}
	slices.Sort(p.plan.Ended)
	p.plan.Todo, p.plan.Empty = v.agenda.todo, v.isEmpty()
	return p.plan
}

// isEmpty reports whether no instance exists and none is desired.
func (v *View) isEmpty() bool {
	if len(v.instances) > 0 {
		return false
	}
	for _, s := range v.services {
		if !s.isEnding(v.goal) && s.status.Scale > 0 {
			return false
		}
	}
	return true
}

// planner is one run of Plan.
type planner struct {
	view             *View
	now              time.Time
	plans            uint64            // the number of this plan
	room             int               // how many more instances may start
	heldDependencies map[string]string // results of heldDependencyOf
	// limit is the maximum number of steps other than repairs (0: no limit), and bulk the
	// current number. The rest waits for the next plan.
	limit, bulk int
	plan        Plan

	// Turns run one after another, so they share memory.
	turn   turn
	status mariposa.ServiceStatus
}

// isSpent reports whether bulk work has used its share of this plan.
func (p *planner) isSpent() bool { return p.limit > 0 && p.bulk >= p.limit }

// keepAllAsTheyAre counts every service as unfinished and changes nothing.
func (v *View) keepAllAsTheyAre() {
	v.agenda.all = true
	for _, s := range v.services {
		v.setTodo(s, 1)
	}
}

// turn is the part of a plan for one service: its facts, and what the rules have found
// and decided so far.
type turn struct {
	*planner
	*facts
	s      *service
	serial uint64
	read   reads
	st     *mariposa.ServiceStatus // a copy that the rules change

	// What the rules found.
	leaving         map[int]bool     // slots of displaced instances
	needs           *mariposa.Reason // why the current definition cannot be created
	unbound         *mariposa.Reason // what its references wait for
	formerUnbound   *mariposa.Reason // what references of former versions wait for
	goneReference   *mariposa.Reason // the removed instance that it refers to
	stranded        *mariposa.Reason // unwanted instances on unreachable nodes
	following       bool             // it will follow the successor once that is healthy
	rolling         bool             // outdated instances are being replaced
	pending         bool             // they will be, after something outside of the plan
	updatesLeft     int              // how many more may be brought to the target before the rollout is held
	heldDependency  string           // a dependency with a held rollout, which also holds this one
	backingOff      bool             // something is not created now because of a back-off
	inStorm         bool             // something is not created now because many nodes were lost at once
	blockedByPerson bool             // something is not created now because a user prevents a dependency from running

	// What they decided.
	steps      int              // number of steps so far
	taken      map[int]bool     // slots used by new instances
	ailing     map[int]bool     // slots whose only instance is unhealthy
	recoveries []time.Time      // when the running instances became healthy, sorted; nil: not computed yet
	dropped    int              // outdated instances that are removed before they are up
	removing   map[string]bool  // victims
	yielding   []string         // instances that would be removed if nothing referred to them
	preserved  []*Instance      // ended instances that are kept; nil: not computed yet
	stopping   int              // running instances that are stopped and kept
	keptFor    *mariposa.Reason // why a displaced instance stays: others refer to it
	bound      map[int]Step     // the first step for instances of each version
	waits      *mariposa.Reason
	moreWaits  int // number of more instances that wait

	// The result.
	left         int       // number of instances not in their desired state
	leftUnpaused int       // left without paused rollouts
	wake         time.Time // when to plan again even if nothing changes; zero: never
	isGone       bool      // the service has no instances left
	changed      bool      // its status differs from the stored one
	rollingBack  bool      // its version must be rolled back
}

func (p *planner) service(s *service) {
	p.view.agenda.serial++
	p.status = mariposa.ServiceStatus{Removed: true}
	if s.status != nil {
		p.status = *s.status
	}
	t := &p.turn
	*t = turn{planner: p, facts: p.factsOf(s), s: s, serial: p.view.agenda.serial, st: &p.status}
	if n := len(t.young); n > 0 && t.isRolling { // others may see it differently then
		t.wakeAt(s.provenAt(t.young[n-1]))
	}
	t.run()
	switch {
	case s.status == nil:
	case t.isGone:
		t.changed = true
		p.plan.Ended = append(p.plan.Ended, s.name)
	case !sameStatus(s.status, t.st):
		t.changed = true
		if p.plan.Services == nil {
			p.plan.Services = make(map[string]*mariposa.ServiceStatus, p.view.agenda.due.Len()/2)
		}
		st := p.status
		p.plan.Services[s.name] = &st
	}
	p.view.remember(t)
}

// run applies the rules to one service, in this order.
func (t *turn) run() {
	t.st.Drain = nil
	t.collect()
	switch {
	case t.s.def == nil && !t.ending && !t.isFrozen():
		t.left = 1
		t.st.Status, t.st.Reason = mariposa.StatusFailed, &mariposa.Reason{Code: mariposa.ReasonVersionLost, Version: t.st.Number}
		return
	case t.isFrozen():
		t.settleFrozen()
		return
	}
	t.countFailures()
	switch {
	case t.ending:
		t.endService()
	case t.bindReferences():
		return // running instances became outdated and must be classified again first
	default:
		t.needs = missingMetadata(t.s.def)
		t.explainLost()
		t.measureRollout()
		t.fill()
		t.dropUnhealthy()
		t.shrink()
		t.roll()
		t.moveDisplaced()
	}
	t.clearPreserved()
	t.explainStranded()
	t.storeYields()
	t.reportStatus()
}

func (t *turn) step(s Step) {
	s.Service = t.s.name
	t.steps++
	if !s.Repair {
		t.bulk++
	}
	t.plan.Steps = append(t.plan.Steps, s)
}

func (t *turn) remove(i *Instance, reason *mariposa.Reason, repair bool) {
	if t.removing[i.ID] {
		return
	}
	if t.removing == nil {
		t.removing = map[string]bool{}
	}
	t.removing[i.ID] = true
	action := Remove
	if t.shouldPreserve(i) {
		action = Preserve
	}
	t.step(Step{Action: action, Instance: i.ID, Reason: reason, Repair: repair})
}

// wait records why something is not done now, and when to check again. It keeps only the
// first reason.
func (t *turn) wait(until time.Time, why func() *mariposa.Reason) {
	if t.waits == nil {
		t.waits = why()
	}
	t.wakeAt(until)
}

// waitForOne records why something is not done now about one instance, or one slot. It keeps
// only the first reason and counts the others, because there may be many.
func (t *turn) waitForOne(until time.Time, why func() *mariposa.Reason) {
	if t.waits != nil {
		t.moreWaits++
	}
	t.wait(until, why)
}

func (t *turn) wakeAt(at time.Time) { t.wake = earlierOf(t.wake, at) }

// collect deletes the records of instances that no longer exist.
func (t *turn) collect() {
	t.s.each(gone, func(i *Instance) bool {
		t.step(Step{Action: Collect, Instance: i.ID, Reason: nothingLeft})
		return !t.isBulkSpent()
	})
}

var nothingLeft = &mariposa.Reason{Code: mariposa.ReasonNothingLeft}

// explainLost reports when instances on unreachable nodes are rescheduled.
func (t *turn) explainLost() {
	var bound []*Instance // to their nodes, by volumes
	t.s.each(lost, func(i *Instance) bool {
		until, never := t.view.rescheduleTime(t.s, i)
		held, at := t.view.stormHold(t.s, i.Spec.Node, t.now)
		if !never && until.After(t.now) {
			t.wakeAt(until) // from then on its slot counts as empty, even if it is not filled yet
		}
		switch {
		case t.isRefilled(i):
		case never:
			t.waitForOne(time.Time{}, func() *mariposa.Reason { return t.unreachableReason(mariposa.ReasonNodeAwayNever, i) })
		case len(i.Spec.Mounts) > 0 && (held || until.After(t.now)):
			bound = append(bound, i)
		case held && at.IsZero():
			t.inStorm = true
			t.waitForOne(time.Time{}, func() *mariposa.Reason { return t.stormReason(i) })
		case held && at.After(until):
			t.waitForOne(at, func() *mariposa.Reason { return t.replacedAt(mariposa.ReasonStormSlow, i, at) })
		case until.After(t.now):
			t.waitForOne(until, func() *mariposa.Reason { return t.replacedAt(mariposa.ReasonNodeAway, i, until) })
		}
		return true
	})
	for _, i := range bound {
		t.waitForOne(time.Time{}, func() *mariposa.Reason {
			r := t.unreachableReason(mariposa.ReasonNodeAwayVolumes, i)
			for _, m := range i.Spec.Mounts {
				r.Keys = append(r.Keys, m.Name)
			}
			return r
		})
	}
}

// replacedAt returns a reason about an instance on an unreachable node that is replaced at
// a time.
func (t *turn) replacedAt(code mariposa.ReasonCode, i *Instance, at time.Time) *mariposa.Reason {
	r := t.unreachableReason(code, i)
	r.Until, r.Other = at, t.view.project
	return r
}

// isRefilled reports whether the slot of a lost instance that is given up has another one.
func (t *turn) isRefilled(i *Instance) bool { return t.isGivenUp(i) && t.slotHolders(i.Spec.Slot) > 0 }

// unreachableReason returns a reason about an instance on an unreachable node.
func (t *turn) unreachableReason(code mariposa.ReasonCode, i *Instance) *mariposa.Reason {
	node := t.view.nodes[i.Spec.Node]
	return &mariposa.Reason{Code: code, Subject: i.Spec.Name, Node: node.Name, Since: node.Since}
}

// hasRolloutFailed reports whether the rollout stopped by itself.
func (t *turn) hasRolloutFailed() bool { return t.st.Rollout.HasFailed() }

// isOnHold reports whether no more instances are brought to the current definition for
// now: the rollout has stopped, is held or paused, or has reached its limit.
func (t *turn) isOnHold() bool {
	return t.st.Paused || t.st.Rollout != nil && (!t.rolling || t.updatesLeft <= 0)
}

func (t *turn) scaleReason() *mariposa.Reason {
	return &mariposa.Reason{Code: mariposa.ReasonScale, Count: t.goal}
}

// howItEnded returns how an instance ended, as reported by its node.
func howItEnded(i *Instance) string {
	if i.Status != nil && i.Status.Reason != "" {
		return i.Status.Reason
	}
	return "ended"
}
