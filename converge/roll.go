package converge

import (
	"cmp"
	"fmt"
	"math"
	"time"

	"mariposa"
)

// measureRollout brings the rollout's own record up to date: how many are up at
// the new version, when it last got on, whether it holds or must stop by itself.
func (t *turn) measureRollout() {
	t.settled, t.allow = t.current(), math.MaxInt
	amount := t.s.def.Update.Rolling
	if t.st.Rollout == nil {
		t.batch = max(1, amount.Of(t.goal))
		return
	}
	r := *t.st.Rollout
	t.st.Rollout = &r
	if r.Batch.N != 0 {
		amount = r.Batch
	}
	t.batch = max(1, amount.Of(t.goal))
	t.young = t.s.findYoung(t.now)
	if n := len(t.young); n > 0 {
		t.settled -= n
		t.wakeAt(since(t.young[n-1]).Add(t.s.def.Update.MinHealthy))
	}
	fresh := t.s.provenFresh(t.young)
	if fresh > r.Fresh { // a new best: the same ones coming back is no progress
		r.Progress, r.Failures, r.Fresh = t.now, 0, fresh
	}
	t.measureLimit(&r)
	t.heldDep = t.heldBelow(t.s.name)
	t.followed = t.s.count(stale) > 0
	waiting := t.waitsFor() != "" || t.unbound != "" || t.s.count(stale) > 0 && t.heldBy() != "" || t.view.awaitsFollowers(t.s, t.now)
	if r.Waiting && !waiting {
		r.Progress = t.now
	}
	r.Waiting = waiting
	t.judge(&r)
	if !t.unfinished() {
		r.Stopped = "" // what stood in its way has gone, and repairs did the rest
	}
	held := r.Held || t.heldDep != ""
	t.rolling = r.Stopped == "" && t.needs == "" && !t.st.Paused && !held
	t.pending = r.Stopped == "" && !t.rolling && !held
}

// measureLimit says how many more a rollout with a limit may bring to the
// target, and whether it holds.
func (t *turn) measureLimit(r *mariposa.Rollout) {
	r.Held = t.s.held
	if r.Limit == 0 {
		return
	}
	t.allow = r.Limit - t.s.fresh[serving] - t.s.fresh[updating] - t.s.fresh[starting]
	for _, c := range []class{lost, failed} { // they may come back, or are refilled as they were
		t.s.each(c, func(i *Instance) bool {
			if t.s.isFresh(i) && !t.view.outdated(t.s, i) {
				t.allow--
			}
			return true
		})
	}
}

// holds reports whether a service's rollout holds: as many as it may bring to the
// target have proved themselves, and there are others left.
func (s *service) holds(now time.Time) bool {
	if s.status == nil || s.def == nil || s.status.Rollout == nil || s.leftBehind() == 0 {
		return false
	}
	r := s.status.Rollout
	return r.Held || r.Limit > 0 && s.provenFresh(s.findYoung(now)) >= r.Limit
}

// leftBehind is how many a rollout has not brought to the target.
func (s *service) leftBehind() int { return s.count(stale) + s.count(staling) + s.count(amend) }

// ripens is when the next one proves itself that counts for whether a rollout
// holds; zero: nothing does.
func (s *service) ripens(now time.Time) time.Time {
	if s.status == nil || s.def == nil || s.status.Rollout == nil || s.status.Rollout.Limit == 0 || s.leftBehind() == 0 {
		return time.Time{}
	}
	young := s.findYoung(now)
	if len(young) == 0 {
		return time.Time{}
	}
	return since(young[len(young)-1]).Add(s.def.Update.MinHealthy)
}

// provenFresh is how many serve that were made for the rollout under way and
// are not among the young.
func (s *service) provenFresh(young []*Instance) int {
	n := s.fresh[serving]
	for _, i := range young {
		if s.members[i.ID] == serving && s.isFresh(i) {
			n--
		}
	}
	return n
}

// heldBelow finds what a service depends on, near or far, whose rollout is held.
func (p *planner) heldBelow(name string) string {
	if p.view.agenda.held == 0 {
		return ""
	}
	if by, known := p.below[name]; known {
		return by
	}
	by := p.findHeldBelow(name)
	if p.below == nil {
		p.below = map[string]string{}
	}
	p.below[name] = by
	return by
}

func (p *planner) findHeldBelow(name string) string {
	s := p.view.services[name]
	if s == nil || s.def == nil {
		return ""
	}
	for _, on := range s.def.DependsOn {
		d := p.view.services[on]
		if d == nil || d.status == nil || d.status.Rollout == nil {
			continue
		}
		if d.held {
			return on
		}
		if by := p.heldBelow(on); by != "" {
			return by
		}
	}
	return ""
}

// findYoung finds those that have not been up for min_healthy, youngest first.
func (s *service) findYoung(now time.Time) []*Instance {
	if s.byStart == nil || s.def.Update.MinHealthy <= 0 {
		return nil
	}
	var young []*Instance
	s.byStart.Scan(func(i *Instance) bool {
		if !since(i).Add(s.def.Update.MinHealthy).After(now) {
			return false
		}
		young = append(young, i)
		return true
	})
	return young
}

// judge stops a rollout that fails or does not get on.
func (t *turn) judge(r *mariposa.Rollout) {
	u := t.s.def.Update
	if r.Stopped != "" || r.Held || t.heldDep != "" || t.st.Paused || t.needs != "" || u.OnFailure == mariposa.OnFailureContinue || !t.unfinished() {
		return
	}
	defer t.noteUndo(r)
	due := t.gotOn(r).Add(u.Deadline)
	switch {
	case r.Failures >= giveUp:
		r.Stopped = fmt.Sprintf("the rollout of version %d stopped after %d failures: %s", r.Number, r.Failures, t.lastFailure())
	case u.OnFailure == mariposa.OnFailureRollback && t.notFollowed() != "":
		r.Stopped = fmt.Sprintf("the rollout of version %d stopped: %s", r.Number, t.notFollowed())
	case r.Waiting: // not its own fault
	case u.Deadline > 0 && !due.After(t.now):
		r.Stopped = fmt.Sprintf("the rollout of version %d stopped: no progress for %s", r.Number, u.Deadline)
	case u.Deadline > 0:
		t.wakeAt(due)
	}
}

// noteUndo asks for the version to be taken back where the service says so of a
// rollout that has just stopped. What takes something back is not taken back.
func (t *turn) noteUndo(r *mariposa.Rollout) {
	if r.Stopped == "" || t.s.def.Update.OnFailure != mariposa.OnFailureRollback || r.Undo {
		return
	}
	if t.undoing = true; t.plan.Undo == "" {
		t.plan.Undo, t.plan.UndoWhy = t.s.name, r.Stopped
	}
}

// gotOn is when the rollout last got on. It could not begin before the rollouts
// of its dependencies were through, so theirs getting on counts as well.
func (t *turn) gotOn(r *mariposa.Rollout) time.Time {
	last := r.Progress
	for _, name := range t.s.def.DependsOn {
		d := t.view.services[name]
		if d == nil || d.byStart == nil {
			continue
		}
		if i, ok := d.byStart.Min(); ok && since(i).After(last) {
			last = since(i)
		}
	}
	return last
}

// unfinished reports whether the rollout still has something to do.
func (t *turn) unfinished() bool {
	return t.s.count(stale)+t.s.count(staling)+t.s.count(amend)+t.s.count(updating) > 0 || t.settled < t.goal
}

func (t *turn) lastFailure() string { return t.s.lastFailure() }

// lastFailure says how an instance ended last.
func (s *service) lastFailure() string {
	var last *Instance
	for _, c := range []class{failed, corpse} {
		if last != nil {
			break
		}
		s.each(c, func(i *Instance) bool {
			if i.Status.Reason != "" && (last == nil || since(i).After(since(last))) {
				last = i
			}
			return true
		})
	}
	if last == nil {
		return "its instances do not stay up"
	}
	return last.Spec.Name + " " + how(last)
}

// roll replaces outdated instances batch by batch.
func (t *turn) roll() {
	if t.rolling || t.st.Rollout == nil && t.needs == "" {
		t.amendInPlace()
	}
	if !t.rolling {
		return
	}
	t.replaceStaling()
	if t.s.count(stale) > 0 {
		held := t.heldBy()
		if held != "" {
			t.wait(time.Time{}, func() string { return held })
		}
		switch spare := t.settled + t.s.count(stale) - t.goal; {
		case held != "":
			t.retire(spare) // fewer are wanted: that much needs nobody new
		case t.s.def.Update.StopFirst:
			empty := max(0, t.goal-t.slotsHeld()-len(t.taken)) // they take what may still be made first
			n := spare + max(0, min(t.batch, t.allow-empty))
			if empty > 0 && t.counted() >= t.goal && t.counted() > t.slotsHeld() && t.running() > t.goal-t.batch {
				n = max(n, 1) // two in one slot keep another from being filled
			}
			t.retire(n)
		default:
			t.addReplacements()
			t.retire(spare)
		}
		t.waitForFollowers()
	}
	if !t.unfinished() && t.leaveLost() == 0 {
		t.finishRollout()
	}
}

// replaceStaling removes what is outdated before it has come up: it never
// served, so nobody misses it.
func (t *turn) replaceStaling() {
	t.s.each(staling, func(i *Instance) bool {
		if t.dropped < t.allow {
			t.remove(i, t.replaced(), false)
			t.dropped++
		}
		return t.dropped < t.allow
	})
}

// finishRollout ends a rollout. Where only a part of a held one was asked for,
// the whole is held again.
func (t *turn) finishRollout() {
	if r := t.st.Rollout; r.Rest {
		r.Filter, r.Before, r.Rest, r.Limit, r.Held = nil, time.Time{}, false, 0, true
		return
	}
	t.st.Rollout = nil
}

// leaveLost tells the outdated instances on absent nodes to go, now that others
// serve in their place: after the rollout nobody would replace them.
func (t *turn) leaveLost() int {
	n := 0
	t.s.each(lost, func(i *Instance) bool {
		if t.view.outdated(t.s, i) {
			t.remove(i, t.replaced(), false)
			n++
		}
		return true
	})
	return n
}

// heldBy holds a rollout back until those of its dependencies are through, so
// that new dependents meet new dependencies. It says what is waited for.
func (t *turn) heldBy() string {
	for _, name := range t.s.def.DependsOn {
		d := t.view.services[name]
		if d == nil || d.status == nil || d.status.Rollout == nil || d.count(stale)+d.count(staling) == 0 || t.view.awaitsFollowers(d, t.now) {
			continue
		}
		return "waits for " + name + ": " + cmp.Or(d.status.Rollout.Stopped, d.standstill(), "its rollout is under way")
	}
	return ""
}

// standstill says why a person must act before a rollout goes on; empty while it
// goes on by itself.
func (s *service) standstill() string {
	switch {
	case s.status.Frozen != nil:
		return "it is frozen"
	case s.status.Paused:
		return "its rollout is paused"
	case s.def != nil && len(s.def.Needs) > 0:
		return wanting(s.def)
	}
	return ""
}

func (t *turn) replaced() string {
	if r := t.st.Rollout; r != nil && r.Follows != "" {
		return "it follows " + r.Follows + ", which it refers to"
	}
	return fmt.Sprintf("version %d replaces it", t.st.Number)
}

// replaces says why a new instance takes the place of an outdated one.
func (t *turn) replaces(i *Instance) string {
	if r := t.st.Rollout; r != nil && r.Follows != "" {
		return fmt.Sprintf("replaces %s, to follow %s, which it refers to", i.Spec.Name, r.Follows)
	}
	return fmt.Sprintf("version %d replaces %s", t.st.Number, i.Spec.Name)
}

// addReplacements starts up to a batch of new instances beside the outdated
// ones, in the slots of those that will go first.
func (t *turn) addReplacements() {
	made := len(t.taken) // in this run, to fill what was missing
	fresh := t.current() + t.s.count(starting) + made
	extra := t.counted() - t.dropped + made - t.goal
	n := min(t.batch-max(0, extra), t.goal-fresh, t.allow)
	if extra < 0 || n <= 0 || !t.mayCreate() {
		return
	}
	for _, bound := range []bool{false, true} { // what others are bound to comes last, so that they follow once
		t.s.each(stale, func(i *Instance) bool {
			if n <= 0 || t.holders(i.Spec.Slot) > 1 || t.taken[i.Spec.Slot] || t.pinned(i) != bound {
				return n > 0
			}
			if n--; !t.create(i.Spec.Slot, t.st.Number, t.replaces(i), false) {
				n = 0
			}
			return n > 0
		})
	}
}

// retire removes up to n outdated instances: those whose slot is filled again
// first, then in the order of victims.
func (t *turn) retire(n int) {
	doubles := t.counted() - t.slotsHeld()
	for _, replaced := range []bool{true, false} {
		t.s.each(stale, func(i *Instance) bool {
			if n <= 0 || t.full() || (replaced && doubles <= 0) {
				return false
			}
			if !t.removing[i.ID] && !t.pinned(i) && (!replaced || t.holders(i.Spec.Slot) > 1) {
				t.remove(i, t.replaced(), false)
				n, doubles = n-1, doubles-1
			}
			return true
		})
	}
}

// amendInPlace changes in place, a batch at a time, what can be.
func (t *turn) amendInPlace() {
	n := min(t.batch-t.s.count(updating), t.allow)
	t.s.each(amend, func(i *Instance) bool {
		if n > 0 && !t.removing[i.ID] {
			t.step(Step{Action: Amend, Instance: i.ID, Number: t.st.Number, Reason: fmt.Sprintf("version %d changes it in place", t.st.Number)})
			n--
		}
		return n > 0
	})
}
