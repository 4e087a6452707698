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
	Services map[string]*mariposa.ServiceStatus // the goal and fare after this plan of every service for which it is another than before
	Ended    []string                           // services that are no more, in order
	Todo     int                                // how much is not yet as it should be; View.Todo tells it by service
	Wake     time.Time                          // when to plan again though nothing changes; zero: never
	Empty    bool                               // no instance is left and none is wanted
	Again    bool                               // what it says of services changes what is to be done: plan again once that is stored
	Undo     string                             // a service whose rollout has just failed and whose version is to be taken back
	UndoWhy  string
}

// Onto lays what a plan says of services over what was stored of them. What is
// given is not changed, and given back where there is nothing to say.
func (p *Plan) Onto(services map[string]*mariposa.ServiceStatus) map[string]*mariposa.ServiceStatus {
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

// Step is one thing to do to one instance.
type Step struct {
	Action   Action
	Service  string
	Slot     int    // create
	Number   int    // create, update: the version to make it from
	Instance string // all but create
	Reason   string
	Repair   bool // it answers a failure, so it goes before bulk work
	// Bindings are what a new instance's references resolve to, Bound a digest of
	// those that go into it.
	Bindings *mariposa.Bindings
	Bound    string
}

// Action names what a step does.
type Action string

const (
	Create  Action = "create"  // a new instance in a slot
	Amend   Action = "update"  // change an instance in place
	Remove  Action = "remove"  // an instance's goal becomes gone
	Keep    Action = "keep"    // an instance's goal becomes stopped: what is left of it stays for a while
	Collect Action = "collect" // forget an instance of which nothing is left
)

// Budget bounds a plan: how many instances may be on their way up at once, but
// for those that are slow about it.
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
// reason to touch what lives. What it looked at is remembered, so that the next
// plan need not look again where nothing has changed.
func (v *View) Plan(now time.Time, b Budget) Plan {
	p := &planner{view: v, now: now, room: max(0, b.Starting-v.Starting(now)), limit: b.Steps}
	if !v.told || len(v.Missing()) > 0 {
		v.keepAll()
		p.plan.Todo = v.agenda.todo
		return p.plan
	}
	clear(v.pinned)
	v.refresh(now)
	var looked []*service
	v.agenda.due.Scan(func(s *service) bool {
		if s.dirty || s.asked && (s.room != (p.room > 0) || s.full != p.full()) {
			looked = append(looked, s)
			p.service(s)
		}
		return true
	})
	for _, s := range looked {
		if !s.again && !s.asked {
			v.unmark(s)
		}
	}
	if s, some := v.agenda.wakes.Min(); some {
		p.plan.Wake = s.wake
	}
	if v.starved() {
		p.plan.Wake = earlier(p.plan.Wake, v.relief(now))
	}
	slices.Sort(p.plan.Ended)
	p.plan.Todo, p.plan.Empty = v.agenda.todo, v.empty()
	return p.plan
}

// empty reports whether no instance is left and none is wanted.
func (v *View) empty() bool {
	if len(v.instances) > 0 {
		return false
	}
	for _, s := range v.services {
		if !s.ending(v.goal) && s.status.Scale > 0 {
			return false
		}
	}
	return true
}

// planner is one run of Plan.
type planner struct {
	view  *View
	now   time.Time
	room  int               // how many more may be on their way up
	below map[string]string // what heldBelow has found
	// limit is how many steps that are no repairs one plan may have (0: any
	// number), bulk how many it has. Beyond it the rest waits for the next plan.
	limit, bulk int
	plan        Plan
}

// full reports whether bulk work has had its share of this plan.
func (p *planner) full() bool { return p.limit > 0 && p.bulk >= p.limit }

func (t *turn) full() bool {
	t.asked = true
	return t.planner.full()
}

// keepAll says of every service that it is as it was, and not yet as it should be.
func (v *View) keepAll() {
	v.agenda.all = true
	for _, s := range v.services {
		v.setTodo(s, 1)
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
	barred  bool         // something is not made now because a person keeps what it depends on from serving
	// stillborn: one failed in the very instant it was made. Failures are told
	// apart by their time, so the next try waits for a later one.
	stillborn bool
	rolling   bool              // outdated instances are being replaced
	pending   bool              // they will be, once something outside the plan is done
	allow     int               // how many more may be made at the target before the rollout holds
	dropped   int               // outdated ones that this run removes before they have come up
	heldDep   string            // a dependency whose rollout is held, so that this one is as well
	needs     string            // why nothing of the definition in force can be made
	batch     int               // how many at a time
	settled   int               // up to date and up for long enough
	young     []*Instance       // up to date and not up for long enough, youngest first; only during a rollout
	removing  map[string]bool   // victims of this run
	steps     int               // how many steps it has so far
	kept      []*Instance       // ended ones that are kept; nil: not yet looked for
	halting   int               // running ones that this run stops and keeps
	left      int               // how much is not yet as it should be
	beside    int               // how much of that is not a rollout that is paused
	wake      time.Time         // when to look again though nothing changes; zero: never
	over      bool              // nothing of the service is left
	changed   bool              // something is said of it that is not stored yet
	undoing   bool              // its version is to be taken back
	asked     bool              // it asked whether there is room left in the plan
	looked    bool              // it asked how its dependencies fare
	leaned    bool              // it asked who depends on it
	followed  bool              // it asked who is bound to it
	stray     string            // what it refers to that is gone
	following bool              // it will follow, once that has proved itself
	unbound   string            // what its references wait for
	bound     map[int]Step      // how instances of each version begin
	pins      map[string]string // what others are bound to, by whom; nil: not yet looked for
}

func (p *planner) service(s *service) {
	t := &turn{planner: p, s: s}
	t.st = &mariposa.ServiceStatus{Removed: true}
	if s.status != nil {
		c := *s.status
		t.st = &c
	}
	t.goal = t.st.Scale
	t.ending = s.ending(p.view.goal)
	if t.ending {
		t.goal = 0
	}
	t.run()
	switch {
	case s.status == nil:
	case t.over:
		t.changed = true
		p.plan.Ended = append(p.plan.Ended, s.name)
	case !sameStatus(s.status, t.st):
		t.changed = true
		if p.plan.Services == nil {
			p.plan.Services = map[string]*mariposa.ServiceStatus{}
		}
		p.plan.Services[s.name] = t.st
	}
	p.view.remember(t)
}

func (t *turn) run() {
	t.collect()
	switch {
	case t.s.def == nil && !t.ending && t.st.Frozen == nil:
		t.left = 1
		t.st.Status, t.st.Reason = mariposa.StatusFailed, fmt.Sprintf("version %d, which defines it, is lost; submit the manifest again", t.st.Number)
		return
	case t.st.Frozen != nil:
		t.freeze()
		return
	}
	t.countFailures()
	switch {
	case t.ending:
		t.end()
	case t.bind():
		return
	default:
		t.needs = wanting(t.s.def)
		t.countLost()
		t.measureRollout()
		t.fill()
		t.shrink()
		t.roll()
	}
	t.clearCorpses()
	t.noteStranded()
	t.report()
}

// ending reports whether the service as a whole is to end.
func (s *service) ending(goal mariposa.ProjectGoal) bool {
	return s.status == nil || s.status.Removed || s.status.Stopped || goal != mariposa.GoalStarted
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
	if t.removing == nil {
		t.removing = map[string]bool{}
	}
	t.removing[i.ID] = true
	action := Remove
	if t.preserves(i) {
		action = Keep
	}
	t.step(Step{Action: action, Instance: i.ID, Reason: reason, Repair: repair})
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

func (t *turn) wakeAt(at time.Time) { t.wake = earlier(t.wake, at) }

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

// stopped reports whether the rollout stopped by itself.
func (t *turn) stopped() bool { return t.st.Rollout != nil && t.st.Rollout.Stopped != "" }

// asleep reports whether nothing more is brought to the definition in force for
// now: its rollout stopped, holds or is paused, or has made as many as it may
// before it holds.
func (t *turn) asleep() bool {
	return t.st.Paused || t.st.Rollout != nil && (!t.rolling || t.allow <= 0)
}

func (t *turn) scaled() string { return fmt.Sprintf("scale is %d", t.goal) }

func how(i *Instance) string {
	if i.Status != nil && i.Status.Reason != "" {
		return i.Status.Reason
	}
	return "ended"
}

func stamp(at time.Time) string { return at.UTC().Format("15:04:05") }
