package converge

import (
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/tidwall/btree"

	"mariposa"
)

// A plan visits only the services whose part of it may have changed: those whose inputs
// changed, those that read them, those whose alarm is due, and those that had steps. For
// all others it keeps the result of their last turn. A test compares such plans with
// plans of a fresh view.

// schedule is the result of a service's last turn, what that result depends on,
// and whether the next plan visits the service again.
type schedule struct {
	todo         int
	todoUnpaused int       // todo without paused rollouts
	heldBack     int       // work that its held rollout still has to do
	alarm        time.Time // when the result may change without a change of its inputs; zero: never
	wake         time.Time // when to plan again for it; zero: never
	read         reads     // what it read beyond the service
	rolloutHeld  bool      // its rollout has reached its limit for now
	mustRevisit  bool      // it had steps, or a status that is not yet stored

	readRoom, readFull bool // what it read of the budget
	idle               bool // it had no steps

	touched   bool              // its inputs changed since the last plan
	dirty     bool              // its part of the plan may have changed
	due       bool              // it is on the agenda
	repairs   bool              // whether it needed a repair when it was put there
	rolling   bool              // it had a rollout when held rollouts were last checked
	rollingBy *mariposa.Service // the definition it had then

	readBy        uint64 // the last turn that read this service
	lastFacts     facts  // its facts in the last plan that used them
	lastFactsPlan uint64 // the number of that plan
}

// agenda contains what the next plan must visit.
type agenda struct {
	all          bool       // every service
	last         time.Time  // when the last plan was made
	touched      []*service // services whose inputs changed
	due          *btree.BTreeG[*service]
	alarms       *btree.BTreeG[*service]
	wakes        *btree.BTreeG[*service]
	readers      map[string]map[*service]struct{} // name -> services whose last turn read that service
	graphReaders map[*service]struct{}            // services whose last turn read the edges of all services
	heldReaders  map[*service]struct{}            // services whose last turn read which rollouts are held
	serial       uint64                           // numbers plans and turns
	todo         int                              // of all services
	heldCount    int                              // number of held rollouts
}

func newAgenda() agenda {
	tree := func(less func(a, b *service) bool) *btree.BTreeG[*service] {
		return btree.NewBTreeGOptions(less, btree.Options{NoLocks: true, Degree: 16})
	}
	return agenda{
		all: true, due: tree(turnBefore), readers: map[string]map[*service]struct{}{}, graphReaders: map[*service]struct{}{}, heldReaders: map[*service]struct{}{},
		alarms: tree(func(a, b *service) bool { return isSooner(a.alarm, b.alarm, a, b) }),
		wakes:  tree(func(a, b *service) bool { return isSooner(a.wake, b.wake, a, b) }),
	}
}

// turnBefore is the order in which services may start instances. Services that need a
// repair come first, so that bulk work does not delay repairs.
func turnBefore(a, b *service) bool {
	if a.repairs != b.repairs {
		return a.repairs
	}
	return a.name < b.name
}

func isSooner(x, y time.Time, a, b *service) bool {
	if !x.Equal(y) {
		return x.Before(y)
	}
	return a.name < b.name
}

// needsRepair reports whether a service has something to repair.
func (s *service) needsRepair() bool { return s.count(failed)+s.count(lost) > 0 }

// touch records that the inputs of a service changed.
func (v *View) touch(s *service) {
	if !s.touched {
		s.touched = true
		v.agenda.touched = append(v.agenda.touched, s)
	}
}

// mark makes the next plan visit a service.
func (v *View) mark(s *service) {
	s.dirty = true
	if s.due && s.repairs == s.needsRepair() {
		return
	}
	v.unmark(s)
	s.due, s.repairs = true, s.needsRepair()
	v.agenda.due.Load(s)
}

func (v *View) unmark(s *service) {
	if s.due {
		v.agenda.due.Delete(s)
		s.due = false
	}
}

// unmarkDone removes the visited services from the agenda, except those that the next
// plan must visit again.
func (v *View) unmarkDone(looked []*service) {
	done := func(s *service) bool { return !s.mustRevisit && !s.waitsForBudget() }
	if len(looked) < v.agenda.due.Len() || slices.ContainsFunc(looked, func(s *service) bool { return !done(s) }) {
		for _, s := range looked {
			if done(s) {
				v.unmark(s)
			}
		}
		return
	}
	v.agenda.due.Clear()
	for _, s := range looked {
		s.due = false
	}
}

// refresh finds the services that a plan at this time must visit.
func (v *View) refresh(now time.Time) {
	a := &v.agenda
	every := a.all || now.Before(a.last)
	if every {
		if len(a.readers) == 0 {
			a.readers = make(map[string]map[*service]struct{}, len(v.services))
		}
		for _, s := range v.services {
			v.touch(s)
		}
	}
	a.all, a.last = false, now
	for s, ok := a.alarms.Min(); ok && !s.alarm.After(now); s, ok = a.alarms.Min() {
		a.alarms.Delete(s)
		s.alarm = time.Time{}
		v.touch(s)
	}
	touched := a.touched
	a.touched = nil
	if every { // visit neighbors in memory together; new entries are appended to the agenda
		slices.SortFunc(touched, func(x, y *service) int { return strings.Compare(x.name, y.name) })
	}
	before := v.hasContradictoryEdges()
	for _, s := range touched {
		if !s.dropped {
			v.relink(s)
		}
	}
	if v.blockersChanged && (before || v.hasContradictoryEdges()) {
		for s := range a.graphReaders {
			v.mark(s) // blocking depends on whole paths
		}
	}
	v.blockersChanged = false
	for _, s := range touched {
		s.touched = false
		if !s.dropped {
			v.mark(s)
		}
		if !s.dropped && !every {
			v.markReaders(s)
		}
	}
	v.refreshHeldRollouts(touched, now)
}

// markReaders marks the services whose last turn read a service.
func (v *View) markReaders(s *service) {
	for by := range v.agenda.readers[s.name] {
		v.mark(by)
	}
	v.markTargets(s)
}

// markTargets marks the services that a service depends on or refers to, if
// their last turn read their dependents.
func (v *View) markTargets(s *service) {
	for _, e := range s.edges {
		if on := v.services[e.on]; on != nil && on.read.dependents {
			v.mark(on)
		}
	}
}

// refreshHeldRollouts finds the rollouts whose held state has changed, and marks the
// services that read which rollouts are held.
func (v *View) refreshHeldRollouts(touched []*service, now time.Time) {
	changed := false
	for _, s := range touched {
		if s.dropped {
			continue
		}
		was, rolled, by := s.rolloutHeld, s.rolling, s.rollingBy
		s.rolling, s.rollingBy = s.status != nil && s.status.Rollout != nil, s.def
		v.setRolloutHeld(s, s.reachedLimit(now))
		changed = changed || s.rolloutHeld != was || v.agenda.heldCount > 0 && (s.rolling != rolled || s.rollingBy != by)
	}
	if changed {
		for s := range v.agenda.heldReaders {
			v.mark(s)
		}
	}
}

func (v *View) setRolloutHeld(s *service, held bool) {
	if s.rolloutHeld != held {
		s.rolloutHeld = held
		if held {
			v.agenda.heldCount++
		} else {
			v.agenda.heldCount--
		}
	}
}

// remember stores the result of a turn.
func (v *View) remember(t *turn) {
	s := t.s
	v.setTodo(s, t.left)
	s.todoUnpaused, s.heldBack = t.leftUnpaused, t.countHeldBack()
	v.setRead(s, t.read)
	s.idle, s.readRoom, s.readFull = t.steps == 0, t.room > 0, t.planner.isSpent()
	v.setTimes(s, t.wake, earlierOf(t.wake, s.nextProvenAt(t.now)))
	s.mustRevisit = t.steps > 0 || t.changed || t.rollingBack
	s.dirty = s.mustRevisit
}

// setRead records what a turn read, so that the service is visited again if any of it
// changes.
func (v *View) setRead(s *service, r reads) {
	if !slices.Equal(s.read.services, r.services) {
		for _, name := range s.read.services {
			if delete(v.agenda.readers[name], s); len(v.agenda.readers[name]) == 0 {
				delete(v.agenda.readers, name)
			}
		}
		for _, name := range r.services {
			if v.agenda.readers[name] == nil {
				v.agenda.readers[name] = map[*service]struct{}{}
			}
			v.agenda.readers[name][s] = struct{}{}
		}
	}
	note := func(all map[*service]struct{}, is bool) {
		if is {
			all[s] = struct{}{}
		} else {
			delete(all, s)
		}
	}
	note(v.agenda.graphReaders, r.graph)
	note(v.agenda.heldReaders, r.heldRollouts)
	s.read = r
}

// seesOtherBudget reports whether a service must be planned again because the
// plan's budget differs from the one it read.
func (s *service) seesOtherBudget(p *planner) bool {
	return s.waitsForBudget() && (s.readRoom != (p.room > 0) || s.readFull != p.isSpent())
}

// waitsForBudget reports whether a service read the budget and had no steps, possibly
// because the budget was too small.
func (s *service) waitsForBudget() bool { return s.read.budget && s.idle }

func (v *View) setTodo(s *service, n int) {
	v.agenda.todo += n - s.todo
	s.todo = n
}

func (v *View) setTimes(s *service, wake, alarm time.Time) {
	if !s.wake.IsZero() {
		v.agenda.wakes.Delete(s)
	}
	if !s.alarm.IsZero() {
		v.agenda.alarms.Delete(s)
	}
	if s.wake, s.alarm = wake, alarm; !wake.IsZero() {
		v.agenda.wakes.Set(s)
	}
	if !alarm.IsZero() {
		v.agenda.alarms.Set(s)
	}
}

// earlierOf returns the earlier of two times; zero counts as none.
func earlierOf(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}

// removeFromAgenda removes a dropped service from the agenda and the graph.
func (v *View) removeFromAgenda(s *service) {
	v.markReaders(s)
	v.setEdges(s, nil)
	v.unmark(s)
	v.setRead(s, reads{})
	v.setTimes(s, time.Time{}, time.Time{})
	v.setTodo(s, 0)
	v.setRolloutHeld(s, false)
	s.dropped = true
}

// Todo returns how many instances of a service were not in their desired state at the
// last plan.
func (v *View) Todo(name string) int {
	if s := v.services[name]; s != nil {
		return s.todo
	}
	return 0
}

// TodoUnpaused is Todo without the instances that wait for a paused rollout.
func (v *View) TodoUnpaused(name string) int {
	if s := v.services[name]; s != nil {
		return min(s.todo, s.todoUnpaused)
	}
	return 0
}

// HeldBack returns how much the held rollout of a service leaves to do, in the unit of
// Todo.
func (v *View) HeldBack(name string) int {
	if s := v.services[name]; s != nil {
		return s.heldBack
	}
	return 0
}

// sameStatus reports whether two statuses are equal.
func sameStatus(a, b *mariposa.ServiceStatus) bool {
	if a == b {
		return true
	}
	return a.ID == b.ID && a.Scale == b.Scale && a.Number == b.Number && a.Removed == b.Removed && a.Stopped == b.Stopped && a.Retired == b.Retired && a.Paused == b.Paused && a.Accepted == b.Accepted && a.RescheduleNow.Equal(b.RescheduleNow) &&
		a.Status == b.Status && slices.Equal(a.Yields, b.Yields) && sameValue(a.Frozen, b.Frozen) && sameValue(a.Rollout, b.Rollout) &&
		sameValue(a.Backoff, b.Backoff) && sameValue(a.Bindings, b.Bindings) && a.Reason.Equal(b.Reason) && a.Drain.Equal(b.Drain)
}

// sameValue compares the values of two pointers, which are usually the same or
// nil.
func sameValue[T any](a, b *T) bool { return a == b || a != nil && b != nil && reflect.DeepEqual(a, b) }
