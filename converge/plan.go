package converge

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"mariposa"
)

// Plan is what to do next, as data: printable, comparable, executed elsewhere.
type Plan struct {
	Steps    []Step
	Services map[string]*mariposa.ServiceStatus // every service's goal and fare after this plan; gone services are left out
	Todo     map[string]int                     // per service, how much is not yet as it should be
	Wake     time.Time                          // when to plan again though nothing changes; zero: never
	Empty    bool                               // no instance is left and none is wanted
}

// Step is one thing to do to one instance.
type Step struct {
	Action   Action
	Service  string
	Slot     int    // create
	Number   int    // create, update: the version to make it from
	Instance string // all but create
	Reason   string
	Repair   bool // it answers a failure, so it goes before bulk work
}

// Action names what a step does.
type Action string

const (
	Create  Action = "create"  // a new instance in a slot
	Amend   Action = "update"  // change an instance in place
	Remove  Action = "remove"  // an instance's goal becomes gone
	Collect Action = "collect" // forget an instance of which nothing is left
)

// Budget bounds a plan: how many instances may be on their way up at once.
type Budget struct {
	Starting int
}

const (
	// forget is how long a service must be without failures before its
	// back-off starts from nothing.
	forget = 10 * time.Minute
	// giveUp is how many failures at the new version, without getting on,
	// stop a rollout.
	giveUp = 3
)

// Plan says what to do about the difference between goal and reality. While
// definitions are missing it says nothing.
func (v *View) Plan(now time.Time, b Budget) Plan {
	p := &planner{
		view: v, now: now, room: max(0, b.Starting-v.Starting()),
		plan: Plan{Services: map[string]*mariposa.ServiceStatus{}, Todo: map[string]int{}},
	}
	if len(v.Missing()) > 0 {
		return p.plan // absence of knowledge is no reason to do anything
	}
	for _, name := range slices.Sorted(maps.Keys(v.services)) {
		p.service(v.services[name])
	}
	p.plan.Empty = len(v.instances) == 0 && len(p.plan.Steps) == 0
	return p.plan
}

// planner is one run of Plan.
type planner struct {
	view *View
	now  time.Time
	room int // how many more may be on their way up
	plan Plan
}

// turn is one service's part of a run.
type turn struct {
	*planner
	s        *service
	st       *mariposa.ServiceStatus // a copy, changed as the plan goes
	goal     int
	ending   bool            // the service as a whole is to end
	given    []*Instance     // lost for longer than it is ridden out
	waiting  []string        // reasons why something is not done now
	taken    map[int]bool    // slots given out in this run
	rolling  bool            // outdated instances are being replaced
	batch    int             // how many at a time
	settled  int             // up to date and up for long enough
	removing map[string]bool // victims of this run
}

func (p *planner) service(s *service) {
	t := &turn{planner: p, s: s, taken: map[int]bool{}, removing: map[string]bool{}}
	t.st = &mariposa.ServiceStatus{Removed: true}
	if s.status != nil {
		c := *s.status
		t.st = &c
	}
	if s.status != nil && !s.status.Removed && s.def == nil {
		t.st.Status, t.st.Reason = mariposa.StatusFailed, fmt.Sprintf("version %d, which defines it, is lost; submit the manifest again", s.status.Number)
		p.plan.Services[s.name], p.plan.Todo[s.name] = t.st, 1
		return
	}
	t.goal = t.st.Scale
	t.ending = t.st.Removed || s.def == nil || p.view.goal != mariposa.GoalStarted
	if t.ending {
		t.goal = 0
	}
	t.collect()
	t.countFailures()
	t.countLost()
	t.measureRollout()
	switch {
	case t.ending:
		t.end()
	default:
		t.fill()
		t.shrink()
		t.roll()
	}
	t.report()
}

func (t *turn) step(s Step) {
	s.Service = t.s.name
	t.plan.Steps = append(t.plan.Steps, s)
}

func (t *turn) remove(i *Instance, reason string, repair bool) {
	if t.removing[i.ID] {
		return
	}
	t.removing[i.ID] = true
	t.step(Step{Action: Remove, Instance: i.ID, Reason: reason, Repair: repair})
}

// wait notes why something is not done now, and when to look again.
func (t *turn) wait(until time.Time, format string, args ...any) {
	t.waiting = append(t.waiting, fmt.Sprintf(format, args...))
	t.wakeAt(until)
}

func (p *planner) wakeAt(at time.Time) {
	if !at.IsZero() && (p.plan.Wake.IsZero() || at.Before(p.plan.Wake)) {
		p.plan.Wake = at
	}
}

// collect forgets what has left nothing behind.
func (t *turn) collect() {
	t.s.each(gone, func(i *Instance) bool {
		t.step(Step{Action: Collect, Instance: i.ID, Reason: "nothing of it is left"})
		return true
	})
}

// counted is how many instances fill the goal, or will.
func (t *turn) counted() int {
	return t.running() + t.s.count(starting) + t.s.count(staling) + t.s.count(lost) - len(t.given)
}

// running is how many run, of whatever definition.
func (t *turn) running() int {
	return t.current() + t.s.count(stale)
}

// current is how many run as the definition in force says, or nearly.
func (t *turn) current() int {
	return t.s.count(serving) + t.s.count(amend) + t.s.count(updating)
}

// countLost finds the instances whose node has been away for too long.
func (t *turn) countLost() {
	t.s.each(lost, func(i *Instance) bool {
		node := t.view.nodes[i.Spec.Node]
		r := t.reschedule(i)
		switch until := node.Since.Add(r.After); {
		case r.Never:
			t.wait(time.Time{}, "%s is on node %s, which cannot be reached since %s, and reschedule says never", i.Spec.Name, node.Name, stamp(node.Since))
		case until.After(t.now):
			t.wait(until, "%s is on node %s, which cannot be reached since %s; it is replaced at %s", i.Spec.Name, node.Name, stamp(node.Since), stamp(until))
		default:
			t.given = append(t.given, i)
		}
		return true
	})
}

func (t *turn) reschedule(i *Instance) mariposa.Reschedule {
	if t.s.def != nil {
		return t.s.def.Reschedule
	}
	if d := t.view.Definition(i.Spec.Number, t.s.name); d != nil {
		return d.Reschedule
	}
	return mariposa.Reschedule{After: time.Minute}
}

// fill refills the slots of what failed or was lost, then opens new slots,
// until there are as many instances as the goal says.
func (t *turn) fill() {
	missing := t.goal - t.counted()
	var dead []*Instance
	t.s.each(failed, func(i *Instance) bool { dead = append(dead, i); return true })
	for len(dead) > max(0, missing) { // others took their place already
		t.remove(dead[0], "its place is taken", false)
		dead = dead[1:]
	}
	if missing <= 0 {
		return
	}
	if !t.mayCreate() {
		return
	}
	for _, i := range dead {
		if !t.create(i.Spec.Slot, t.refillAt(i), fmt.Sprintf("replaces %s, which %s", i.Spec.Name, how(i)), true) {
			return
		}
		t.remove(i, "it "+how(i), true)
		missing--
	}
	for _, i := range t.given {
		if missing == 0 {
			return
		}
		if t.s.slots[i.Spec.Slot] > 1 || t.taken[i.Spec.Slot] {
			continue // refilled before
		}
		node := t.view.nodes[i.Spec.Node]
		if !t.create(i.Spec.Slot, t.refillAt(i), fmt.Sprintf("replaces %s, whose node %s cannot be reached since %s", i.Spec.Name, node.Name, stamp(node.Since)), true) {
			return
		}
		missing--
	}
	t.openSlots(missing)
}

func (t *turn) openSlots(missing int) {
	busy := map[int]bool{}
	if t.s.def.Update.StopFirst {
		t.s.each(leaving, func(i *Instance) bool { busy[i.Spec.Slot] = true; return true })
	}
	for _, i := range t.given {
		busy[i.Spec.Slot] = busy[i.Spec.Slot] || t.s.slots[i.Spec.Slot] > 0
	}
	slot := t.s.free
	for ; t.s.slots[slot] > 0; slot++ {
		t.s.free = slot + 1
	}
	number, reason := t.openAt(), fmt.Sprintf("scale is %d", t.goal)
	for ; missing > 0; slot++ {
		if t.s.slots[slot] > 0 || t.taken[slot] {
			continue
		}
		if busy[slot] {
			missing--
			t.wait(time.Time{}, "slot %s.%d is still being left", t.s.name, slot)
			continue
		}
		if !t.create(slot, number, reason, false) {
			return
		}
		missing--
	}
}

// refillAt is the version at which the slot of a dead instance is refilled: the
// new one while a rollout gets on, its own otherwise.
func (t *turn) refillAt(i *Instance) int {
	if t.rolling || !outdated(t.s, i) || t.view.Definition(i.Spec.Number, t.s.name) == nil {
		return t.st.Number
	}
	return i.Spec.Number
}

// openAt is the version at which a new slot is filled: not one that has just
// failed to roll out, as long as there is another.
func (t *turn) openAt() int {
	r := t.st.Rollout
	if r != nil && r.Stopped != "" && t.view.Definition(r.From, t.s.name) != nil {
		return r.From
	}
	return t.st.Number
}

// create adds an instance unless too many are on their way up already.
func (t *turn) create(slot, number int, reason string, repair bool) bool {
	if t.room <= 0 {
		t.waiting = append(t.waiting, "as many instances are starting as may at once")
		return false
	}
	t.room--
	t.taken[slot] = true
	t.step(Step{Action: Create, Slot: slot, Number: number, Reason: reason, Repair: repair})
	return true
}

// mayCreate reports whether new instances may be made now: not while backing
// off, and not before everything the service depends on serves.
func (t *turn) mayCreate() bool {
	if b := t.st.Backoff; b != nil && b.Until.After(t.now) {
		t.wakeAt(b.Until)
		return false
	}
	for _, name := range t.s.def.DependsOn {
		if why := t.view.unready(name, t.current() > 0); why != "" {
			t.wait(time.Time{}, "waits for %s: %s", name, why)
			return false
		}
	}
	return true
}

// unready says why a service does not serve its dependents yet; empty when it
// does. For dependents that already serve, one instance is enough: a repair
// should not wait for a repair.
func (v *View) unready(name string, degraded bool) string {
	s := v.services[name]
	if s == nil || s.status == nil || s.def == nil {
		return "it is not there"
	}
	up := s.count(serving) + s.count(amend) + s.count(updating) + s.count(stale)
	want := s.status.Scale
	if degraded {
		want = min(want, 1)
	}
	if up < want {
		return fmt.Sprintf("%d of %d running", up, s.status.Scale)
	}
	return ""
}

// shrink takes away what is above the goal, in the order of victims, apart from
// what a rollout has on top for its own work.
func (t *turn) shrink() {
	surplus := t.counted() - t.goal
	if t.rolling && t.s.count(stale) > 0 {
		// The rollout takes outdated ones itself; what it has not started
		// yet must not pass the goal either.
		surplus = t.current() + t.s.count(starting) - t.goal
		if surplus > 0 {
			t.take(min(surplus, t.s.count(starting)), starting)
		}
		return
	}
	if surplus > 0 {
		t.take(surplus, staling, starting, lost, stale, amend, updating, serving)
	}
}

// take removes n instances, class by class.
func (t *turn) take(n int, order ...class) {
	reason := fmt.Sprintf("scale is %d", t.goal)
	given := map[string]bool{}
	for _, i := range t.given {
		given[i.ID] = true
	}
	for _, c := range order {
		t.s.each(c, func(i *Instance) bool {
			if n > 0 && !given[i.ID] && !t.removing[i.ID] {
				t.remove(i, reason, false)
				n--
			}
			return n > 0
		})
	}
}

func how(i *Instance) string {
	if i.Status != nil && i.Status.Reason != "" {
		return i.Status.Reason
	}
	return "ended"
}

func stamp(at time.Time) string { return at.UTC().Format("15:04:05") }
