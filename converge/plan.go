package converge

import (
	"cmp"
	"fmt"
	"iter"
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
	Steps    int // that are no repairs; 0: any number
}

const (
	// forget is how long a service must be without failures before its
	// back-off starts from nothing.
	forget = 10 * time.Minute
	// giveUp is how many failures at the new version, without getting on,
	// stop a rollout.
	giveUp = 3
)

// Plan says what to do about the difference between goal and reality. While a
// goal or definitions are missing it does nothing: absence of knowledge is no
// reason to touch what lives.
func (v *View) Plan(now time.Time, b Budget) Plan {
	p := &planner{
		view: v, now: now, room: max(0, b.Starting-v.Starting()), limit: b.Steps,
		plan: Plan{Services: map[string]*mariposa.ServiceStatus{}, Todo: map[string]int{}},
	}
	if !v.told || len(v.Missing()) > 0 {
		p.keepAll()
		return p.plan
	}
	p.plan.Empty = len(v.instances) == 0
	for _, name := range v.turns() {
		p.service(v.services[name])
	}
	return p.plan
}

// turns is the order in which services get their share of the room to start in:
// those with something to repair first, so that bulk work elsewhere does not
// keep a failure waiting.
func (v *View) turns() []string {
	names := slices.Sorted(maps.Keys(v.services))
	slices.SortStableFunc(names, func(a, b string) int {
		return cmp.Compare(v.services[b].hurt(), v.services[a].hurt())
	})
	return names
}

// hurt is 1 for a service with something to repair.
func (s *service) hurt() int { return min(1, s.count(failed)+s.count(lost)) }

// planner is one run of Plan.
type planner struct {
	view *View
	now  time.Time
	room int // how many more may be on their way up
	// limit is how many steps that are no repairs one plan may have (0: any
	// number), bulk how many it has. Beyond it the rest waits for the next plan.
	limit, bulk int
	plan        Plan
}

// full reports whether bulk work has had its share of this plan.
func (p *planner) full() bool { return p.limit > 0 && p.bulk >= p.limit }

// keepAll says of every service that it is as it was, and not yet as it should be.
func (p *planner) keepAll() {
	for name, s := range p.view.services {
		p.plan.Todo[name] = 1
		if s.status != nil {
			c := *s.status
			p.plan.Services[name] = &c
		}
	}
}

// turn is one service's part of a run.
type turn struct {
	*planner
	s       *service
	st      *mariposa.ServiceStatus // a copy, changed as the plan goes
	goal    int
	ending  bool         // the service as a whole is to end
	given   []*Instance  // lost for longer than it is ridden out
	givenAt map[int]int  // slot -> how many of its holders are given up
	waits   string       // the first reason why something is not done now
	more    int          // how many reasons there are beside it
	taken   map[int]bool // slots given out in this run
	backing bool         // something is not made now because others failed
	// stillborn: one failed in the very instant it was made. Failures are told
	// apart by their time, so the next try waits for a later one.
	stillborn bool
	rolling   bool            // outdated instances are being replaced
	batch     int             // how many at a time
	settled   int             // up to date and up for long enough
	young     []*Instance     // up to date and not up for long enough, youngest first; only during a rollout
	removing  map[string]bool // victims of this run
	steps     int             // how many steps it has so far
}

func (p *planner) service(s *service) {
	t := &turn{planner: p, s: s, taken: map[int]bool{}, removing: map[string]bool{}}
	t.st = &mariposa.ServiceStatus{Removed: true}
	if s.status != nil {
		c := *s.status
		t.st = &c
	}
	t.goal = t.st.Scale
	t.ending = t.st.Removed || p.view.goal != mariposa.GoalStarted
	if t.ending {
		t.goal = 0
	}
	t.plan.Empty = t.plan.Empty && t.goal == 0
	t.collect()
	if s.def == nil && !t.ending {
		t.st.Status, t.st.Reason = mariposa.StatusFailed, fmt.Sprintf("version %d, which defines it, is lost; submit the manifest again", s.status.Number)
		p.plan.Services[s.name], p.plan.Todo[s.name] = t.st, 1
		return
	}
	t.countFailures()
	if t.ending {
		t.end()
	} else {
		t.countLost()
		t.measureRollout()
		t.fill()
		t.shrink()
		t.roll()
	}
	t.noteStranded()
	t.report()
}

func (t *turn) step(s Step) {
	s.Service = t.s.name
	t.steps++
	if !s.Repair {
		t.bulk++
	}
	t.plan.Steps = append(t.plan.Steps, s)
}

func (t *turn) remove(i *Instance, reason string, repair bool) {
	if t.removing[i.ID] {
		return
	}
	t.removing[i.ID] = true
	t.step(Step{Action: Remove, Instance: i.ID, Reason: reason, Repair: repair})
}

// wait notes why something is not done now, and when to look again. Only the
// first reason is put into words: there may be very many.
func (t *turn) wait(until time.Time, why func() string) {
	if t.waits == "" {
		t.waits = why()
	} else {
		t.more++
	}
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
		return !t.full()
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

// slotsHeld is how many slots are held by instances that fill the goal. It is
// less than counted where two hold the same slot: during a rollout, or when a
// node comes back after its instances were replaced.
func (t *turn) slotsHeld() int {
	n := len(t.s.slots)
	for slot, given := range t.givenAt {
		if t.s.slots[slot] == given {
			n--
		}
	}
	return n
}

// holders is how many instances that fill the goal hold a slot.
func (t *turn) holders(slot int) int { return t.s.slots[slot] - t.givenAt[slot] }

// countLost finds the instances whose node has been away for too long.
func (t *turn) countLost() {
	t.s.each(lost, func(i *Instance) bool {
		until, never := t.rideOut(i)
		switch node := t.view.nodes[i.Spec.Node]; {
		case never:
			t.wait(time.Time{}, func() string {
				return fmt.Sprintf("%s is on node %s, which cannot be reached since %s, and reschedule says never", i.Spec.Name, node.Name, stamp(node.Since))
			})
		case until.After(t.now):
			t.wait(until, func() string {
				return fmt.Sprintf("%s is on node %s, which cannot be reached since %s; it is replaced at %s", i.Spec.Name, node.Name, stamp(node.Since), stamp(until))
			})
		default:
			t.given = append(t.given, i)
			if t.givenAt == nil {
				t.givenAt = map[int]int{}
			}
			t.givenAt[i.Spec.Slot]++
		}
		return true
	})
}

// givenUp reports whether an instance is among the given.
func (t *turn) givenUp(i *Instance) bool {
	if t.givenAt[i.Spec.Slot] == 0 || t.s.members[i.ID] != lost {
		return false
	}
	until, never := t.rideOut(i)
	return !never && !until.After(t.now)
}

// rideOut says until when the absence of an instance's node is ridden out.
func (t *turn) rideOut(i *Instance) (until time.Time, never bool) {
	r := t.s.def.Reschedule
	return t.view.nodes[i.Spec.Node].Since.Add(r.After), r.Never
}

// fill refills the slots of what failed or was lost, then opens new slots,
// until as many slots are held as the goal says.
func (t *turn) fill() {
	missing := t.missing()
	dead := t.dead(missing)
	if missing <= 0 || !t.mayCreate() {
		return
	}
	for _, i := range dead {
		if !t.create(i.Spec.Slot, t.refillAt(i), fmt.Sprintf("replaces %s (%s)", i.Spec.Name, how(i)), true) {
			return
		}
		t.remove(i, how(i), true)
		missing--
	}
	for _, i := range t.given {
		if missing == 0 {
			return
		}
		if t.holders(i.Spec.Slot) > 0 || t.taken[i.Spec.Slot] {
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

// missing is how many slots are to be filled. Where two instances hold the same
// slot, a slot may be missing though there are enough instances: it is filled
// beside them up to a batch over the goal, or, where the order is stop-first,
// once one of the two has gone.
func (t *turn) missing() int {
	most := t.goal + t.batch
	if t.s.def.Update.StopFirst {
		most = t.goal
	}
	return min(t.goal-t.slotsHeld(), most-t.counted())
}

// dead finds the failed instances whose slots are to be refilled, at most n,
// and removes the others: their place is taken, or nobody needs it.
func (t *turn) dead(n int) []*Instance {
	if t.s.count(failed) == 0 {
		return nil
	}
	var dead []*Instance
	bySlot := map[int]int{} // slot -> failed ones in it
	t.s.each(failed, func(i *Instance) bool { bySlot[i.Spec.Slot]++; return true })
	t.s.each(failed, func(i *Instance) bool {
		slot := i.Spec.Slot
		bySlot[slot]--
		if t.holders(slot) > 0 || bySlot[slot] > 0 {
			t.remove(i, "its place is taken", false)
		} else {
			dead = append(dead, i)
		}
		return true
	})
	for len(dead) > max(0, n) {
		t.remove(dead[0], "its place is taken", false)
		dead = dead[1:]
	}
	return dead
}

func (t *turn) openSlots(missing int) {
	busy := t.stillLeft()
	slot := t.s.free
	for ; t.s.slots[slot] > 0; slot++ {
		t.s.free = slot + 1
	}
	number, reason := t.openAt(), t.scaled()
	for ; missing > 0; slot++ {
		if t.s.slots[slot] > 0 || t.taken[slot] {
			continue
		}
		if busy[slot] {
			missing--
			t.wait(time.Time{}, func() string { return fmt.Sprintf("slot %s.%d is still being left", t.s.name, slot) })
			continue
		}
		if !t.create(slot, number, reason, false) {
			return
		}
		missing--
	}
}

// stillLeft finds the slots that, where the order is stop-first, must be left
// before they are filled again. An absent node is ridden out first.
func (t *turn) stillLeft() map[int]bool {
	if !t.s.def.Update.StopFirst {
		return nil
	}
	busy := map[int]bool{}
	t.s.each(leaving, func(i *Instance) bool { busy[i.Spec.Slot] = true; return true })
	t.s.each(stranded, func(i *Instance) bool {
		until, never := t.rideOut(i)
		busy[i.Spec.Slot] = never || until.After(t.now)
		if !never && busy[i.Spec.Slot] {
			t.wakeAt(until)
		}
		return true
	})
	return busy
}

// refillAt is the version at which the slot of a dead instance is refilled: its
// own after a rollout that stopped, the one in force otherwise.
func (t *turn) refillAt(i *Instance) int {
	if !t.stopped() || !outdated(t.s, i) || t.view.Definition(i.Spec.Number, t.s.name) == nil {
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
	if !repair && t.full() {
		return false
	}
	if t.room <= 0 {
		t.wait(time.Time{}, func() string { return "as many instances are starting as may at once" })
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
		t.backing = true
		return false
	}
	if t.stillborn {
		t.wait(t.now.Add(time.Millisecond), func() string { return "what was just made failed at once: " + t.lastFailure() })
		return false
	}
	for _, name := range t.s.def.DependsOn {
		if why := t.view.unready(name, t.running() > 0); why != "" {
			t.wait(time.Time{}, func() string { return "waits for " + name + ": " + why })
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
	if t.rolling && t.s.count(stale) > 0 {
		// The rollout takes outdated ones itself; what it has not started
		// yet must not pass the goal either.
		surplus := min(t.current()+t.s.count(starting), t.slotsHeld()) - t.goal
		t.s.each(starting, func(i *Instance) bool {
			if surplus--; surplus >= 0 {
				t.remove(i, t.scaled(), false)
			}
			return surplus > 0 && !t.full()
		})
		return
	}
	t.dropDoubles()
	surplus := t.slotsHeld() - t.goal
	if surplus <= 0 {
		return
	}
	reason := t.scaled()
	for i := range t.victims() {
		t.remove(i, reason, false)
		if surplus--; surplus == 0 || t.full() {
			return
		}
	}
}

// dropDoubles leaves one instance in each slot. The others go by the order of
// victims; those that run only as far as enough others do.
func (t *turn) dropDoubles() {
	doubles := t.counted() - t.slotsHeld()
	if doubles == 0 {
		return
	}
	spare := t.running() - t.goal
	if t.s.def.Update.StopFirst {
		spare += t.batch
	}
	fewer := map[int]int{}
	for i := range t.victims() {
		slot, runs := i.Spec.Slot, t.s.members[i.ID].runs()
		if t.holders(slot)-fewer[slot] < 2 || (runs && spare <= 0) {
			continue
		}
		if runs {
			spare--
		}
		fewer[slot]++
		t.remove(i, fmt.Sprintf("another one holds slot %s.%d", t.s.name, slot), false)
		if doubles--; doubles == 0 {
			return
		}
	}
}

// victims walks the instances that fill the goal in the order in which they go:
// not yet running first, then the oldest. After a rollout that stopped by
// itself, what it made and has not proved itself goes before what was healthy.
func (t *turn) victims() iter.Seq[*Instance] {
	return func(yield func(*Instance) bool) {
		on := true
		next := func(i *Instance) bool {
			if t.removing[i.ID] || t.givenUp(i) {
				return true
			}
			on = yield(i)
			return on
		}
		for _, c := range []class{staling, starting, lost, stale, amend, updating, serving} {
			if c == stale && t.stopped() {
				for _, i := range t.young {
					if on = on && next(i); !on {
						return
					}
				}
			}
			if t.s.each(c, next); !on {
				return
			}
		}
	}
}

// stopped reports whether the rollout stopped by itself.
func (t *turn) stopped() bool { return t.st.Rollout != nil && t.st.Rollout.Stopped != "" }

func (t *turn) scaled() string { return fmt.Sprintf("scale is %d", t.goal) }

func how(i *Instance) string {
	if i.Status != nil && i.Status.Reason != "" {
		return i.Status.Reason
	}
	return "ended"
}

func stamp(at time.Time) string { return at.UTC().Format("15:04:05") }
