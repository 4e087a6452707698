package converge

import (
	"reflect"
	"time"

	"github.com/tidwall/btree"

	"mariposa"
)

// A plan looks only at the services whose part of it may have become another:
// those that were told something new, those that looked at them, those whose
// time has come, and those that had steps. Of the others it remembers what came
// of their last turn. A test holds such plans to those of a view that knows
// nothing of former ones.

// fare is what came of a service's last turn, and what that rests on.
type fare struct {
	todo   int
	beside int       // of that, what is not a rollout that is paused
	alarm  time.Time // when it may become another though nothing changes; zero: never
	wake   time.Time // when the plan is to be made again for it; zero: never
	looked bool      // it asked how the services it depends on fare
	leaned bool      // it asked who depends on it
	// followed: it asked who is bound to it.
	followed bool
	held     bool // its rollout has got as far as it may for now
	again    bool // it had steps, or says something that is not stored yet
	// asked: it found that there was room, or was not, or that the plan was full.
	asked, room, full bool
}

// agenda is what the next plan has to look at.
type agenda struct {
	all     bool       // everything
	last    time.Time  // when the last plan was made
	touched []*service // what was told something new
	due     *btree.BTreeG[*service]
	alarms  *btree.BTreeG[*service]
	wakes   *btree.BTreeG[*service]
	leaned  map[*service]struct{} // those that go after others
	todo    int                   // of all services
	held    int                   // how many rollouts hold
}

func newAgenda() agenda {
	tree := func(less func(a, b *service) bool) *btree.BTreeG[*service] {
		return btree.NewBTreeGOptions(less, btree.Options{NoLocks: true, Degree: 16})
	}
	return agenda{
		all: true, due: tree(turnBefore), leaned: map[*service]struct{}{},
		alarms: tree(func(a, b *service) bool { return sooner(a.alarm, b.alarm, a, b) }),
		wakes:  tree(func(a, b *service) bool { return sooner(a.wake, b.wake, a, b) }),
	}
}

// turnBefore is the order in which services get their share of the room to start
// in: those with something to repair first, so that bulk work elsewhere does not
// keep a failure waiting.
func turnBefore(a, b *service) bool {
	if a.hurts != b.hurts {
		return a.hurts
	}
	return a.name < b.name
}

func sooner(x, y time.Time, a, b *service) bool {
	if !x.Equal(y) {
		return x.Before(y)
	}
	return a.name < b.name
}

// hurt reports whether a service has something to repair.
func (s *service) hurt() bool { return s.count(failed)+s.count(lost) > 0 }

// touch notes that a service was told something new.
func (v *View) touch(s *service) {
	if !s.touched {
		s.touched = true
		v.agenda.touched = append(v.agenda.touched, s)
	}
}

// mark makes the next plan look at a service.
func (v *View) mark(s *service) {
	s.dirty = true
	if s.due && s.hurts == s.hurt() {
		return
	}
	v.unmark(s)
	s.due, s.hurts = true, s.hurt()
	v.agenda.due.Set(s)
}

func (v *View) unmark(s *service) {
	if s.due {
		v.agenda.due.Delete(s)
		s.due = false
	}
}

// refresh finds out what a plan at this time has to look at.
func (v *View) refresh(now time.Time) {
	a := &v.agenda
	every := a.all || now.Before(a.last)
	if every {
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
	before := v.contradictory()
	moved := false
	for _, s := range touched {
		if !s.dropped {
			moved = v.relink(s) || moved
		}
	}
	if moved && (before || v.contradictory()) {
		for s := range a.leaned {
			v.mark(s) // who holds whom is decided along whole paths
		}
	}
	for _, s := range touched {
		s.touched = false
		if !s.dropped {
			v.mark(s)
		}
		if !s.dropped && !every {
			v.spread(s)
		}
	}
	v.refreshHolds(touched, now)
}

// spread marks those whose last turn looked at a service.
func (v *View) spread(s *service) {
	for by := range v.needers[s.name] {
		if by.looked {
			v.mark(by)
		}
	}
	v.letGo(s)
}

// letGo marks those that wait for a service to let go of them.
func (v *View) letGo(s *service) {
	for _, e := range s.edges {
		on := v.services[e.on]
		if on == nil {
			continue
		}
		if on.leaned || on.followed {
			v.mark(on)
		}
		if s.status != nil && s.status.Bindings != nil && on.leftBehind() > 0 {
			v.spreadBound(on)
		}
	}
}

// refreshHolds finds the rollouts that have begun or ceased to hold. Their
// dependents, near and far, are told.
func (v *View) refreshHolds(touched []*service, now time.Time) {
	told := map[*service]bool{}
	for _, s := range touched {
		if s.dropped {
			continue
		}
		was := s.held
		v.setHeld(s, s.holds(now))
		if s.held != was || v.agenda.held > 0 {
			v.spreadFar(s, told)
		}
	}
}

func (v *View) setHeld(s *service, held bool) {
	if s.held != held {
		s.held = held
		if held {
			v.agenda.held++
		} else {
			v.agenda.held--
		}
	}
}

func (v *View) spreadFar(s *service, told map[*service]bool) {
	for by := range v.needers[s.name] {
		if !told[by] && by.status != nil && by.status.Rollout != nil {
			told[by] = true
			v.mark(by)
			v.spreadFar(by, told)
		}
	}
}

// remember keeps what came of a turn.
func (v *View) remember(t *turn) {
	s := t.s
	v.setTodo(s, t.left)
	s.beside = t.beside
	s.looked, s.leaned, s.followed = t.looked, t.leaned, t.followed
	s.asked, s.room, s.full = t.asked && t.steps == 0, t.room > 0, t.planner.full()
	if s.leaned {
		v.agenda.leaned[s] = struct{}{}
	} else {
		delete(v.agenda.leaned, s)
	}
	v.setTimes(s, t.wake, earlier(t.wake, s.ripens(t.now)))
	s.again = t.steps > 0 || t.changed || t.undoing
	s.dirty = s.again
}

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

// earlier is the earlier of two times, of which zero is none.
func earlier(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}

// leave takes a service that is dropped out of everything.
func (v *View) leave(s *service) {
	v.spread(s)
	v.unlink(s)
	v.unmark(s)
	v.setTimes(s, time.Time{}, time.Time{})
	v.setTodo(s, 0)
	v.setHeld(s, false)
	delete(v.agenda.leaned, s)
	s.dropped = true
}

// Todo says how much of a service was not yet as it should be when the last plan
// was made.
func (v *View) Todo(name string) int {
	if s := v.services[name]; s != nil {
		return s.todo
	}
	return 0
}

// TodoBeside says the same without what waits for a rollout that is paused.
func (v *View) TodoBeside(name string) int {
	if s := v.services[name]; s != nil {
		return min(s.todo, s.beside)
	}
	return 0
}

// sameStatus reports whether two statuses say the same.
func sameStatus(a, b *mariposa.ServiceStatus) bool {
	if a == b || *a == *b {
		return true
	}
	c := *a
	c.Frozen, c.Rollout, c.Backoff, c.Bindings = b.Frozen, b.Rollout, b.Backoff, b.Bindings
	return c == *b && reflect.DeepEqual(a.Frozen, b.Frozen) && reflect.DeepEqual(a.Rollout, b.Rollout) && reflect.DeepEqual(a.Backoff, b.Backoff) &&
		reflect.DeepEqual(a.Bindings, b.Bindings)
}
