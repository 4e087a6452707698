package converge

import (
	"math"
	"slices"
	"time"

	"mariposa"
)

// measureRollout brings the rollout's own record up to date: how many are up at
// the new version, when it last got on, whether it holds or must stop by itself.
func (t *turn) measureRollout() {
	t.allow = math.MaxInt
	if t.st.Rollout == nil {
		return
	}
	r := *t.st.Rollout
	t.st.Rollout = &r
	if n := len(t.young); n > 0 {
		t.wakeAt(since(t.young[n-1]).Add(t.s.def.Update.MinHealthy))
	}
	fresh := t.s.countProvenFresh(t.young)
	if fresh > r.Fresh { // a new best: the same ones coming back is no progress
		r.Progress, r.Failures, r.Fresh = t.now, 0, fresh
	}
	t.measureLimit(&r)
	t.heldDep = t.heldBelow()
	waiting := t.waitsFor() != nil || t.unbound != nil || t.outdated > 0 && t.heldBy() != nil || r.Asks || t.lost > len(t.givenUp) ||
		r.Limit > 0 && t.allow <= 0 && t.unboundBefore != nil
	if r.Waiting && !waiting {
		r.Progress = t.now
	}
	r.Waiting = waiting
	t.checkFailure(&r)
	if !t.unfinished() {
		r.Stopped = nil // what stood in its way has gone, and repairs did the rest
	}
	r.Asks = false
	held := r.Held || t.heldDep != ""
	t.rolling = r.Stopped == nil && t.needs == nil && !t.st.Paused && !held
	t.pending = r.Stopped == nil && !t.rolling && !held
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

// reachedLimit reports whether a service's rollout holds: as many as it may bring to
// the target have proved themselves, and there are others left.
func (s *service) reachedLimit(now time.Time) bool {
	if s.status == nil || s.def == nil || s.status.Rollout == nil || s.leftBehind() == 0 {
		return false
	}
	r := s.status.Rollout
	return r.Held || r.Limit > 0 && s.countProvenFresh(s.findYoung(now)) >= r.Limit
}

// nextProvenAt is when the next one proves itself that counts for whether a rollout
// holds; zero: nothing does.
func (s *service) nextProvenAt(now time.Time) time.Time {
	if s.status == nil || s.def == nil || s.status.Rollout == nil || s.status.Rollout.Limit == 0 || s.leftBehind() == 0 {
		return time.Time{}
	}
	young := s.findYoung(now)
	if len(young) == 0 {
		return time.Time{}
	}
	return since(young[len(young)-1]).Add(s.def.Update.MinHealthy)
}

// countProvenFresh is how many serve that were made for the rollout under way and
// are not among the young.
func (s *service) countProvenFresh(young []*Instance) int {
	n := s.fresh[serving]
	for _, i := range young {
		if s.members[i.ID] == serving && s.isFresh(i) {
			n--
		}
	}
	return n
}

// firstHeld finds what a service depends on, near or far, whose rollout is held.
func (p *planner) firstHeld(name string) string {
	if p.view.agenda.held == 0 {
		return ""
	}
	if by, known := p.below[name]; known {
		return by
	}
	if p.below == nil {
		p.below = map[string]string{}
	}
	p.below[name] = "" // definitions of several versions may form a ring
	p.below[name] = p.findFirstHeld(name)
	return p.below[name]
}

func (p *planner) findFirstHeld(name string) string {
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
		if by := p.firstHeld(on); by != "" {
			return by
		}
	}
	return ""
}

// checkFailure stops a rollout that fails or does not get on.
func (t *turn) checkFailure(r *mariposa.Rollout) {
	u := t.s.def.Update
	if r.Stopped != nil || r.Held || t.heldDep != "" || t.st.Paused || t.needs != nil || u.OnFailure == mariposa.OnFailureContinue || !t.unfinished() {
		return
	}
	defer t.noteUndo(r)
	due := t.lastProgress(r).Add(u.Deadline)
	switch {
	case r.Failures >= giveUp:
		stopped := &mariposa.Reason{Code: mariposa.ReasonStoppedFailures, Version: r.Number, Count: r.Failures}
		r.Stopped = stopped.Because(t.s.lastFailure())
	case u.OnFailure == mariposa.OnFailureRollback && t.stuckReferrer() != nil:
		r.Stopped = t.stuckReferrer()
	case r.Waiting: // not its own fault
	case u.Deadline > 0 && !due.After(t.now):
		r.Stopped = &mariposa.Reason{Code: mariposa.ReasonStoppedDeadline, Version: r.Number, For: u.Deadline}
	case u.Deadline > 0:
		t.wakeAt(due)
	}
}

// noteUndo asks for the version to be taken back where the service says so of a
// rollout that has just stopped. What takes something back is not taken back.
func (t *turn) noteUndo(r *mariposa.Rollout) {
	if r.Stopped == nil || t.s.def.Update.OnFailure != mariposa.OnFailureRollback || r.Undo {
		return
	}
	if t.undoing = true; t.plan.Undo == "" {
		t.plan.Undo, t.plan.UndoWhy = t.s.name, r.Stopped
	}
}

// lastProgress is when the rollout last got on. It could not begin before the rollouts
// of its dependencies were through, so theirs getting on counts as well.
func (t *turn) lastProgress(r *mariposa.Rollout) time.Time {
	last := r.Progress
	for _, name := range t.s.def.DependsOn {
		d := t.other(name)
		if d == nil || d.byStart == nil {
			continue
		}
		if i, ok := d.byStart.Min(); ok && since(i).After(last) {
			last = since(i)
		}
	}
	return last
}

// roll replaces outdated instances batch by batch.
func (t *turn) roll() {
	if t.rolling || t.st.Rollout == nil && t.needs == nil {
		t.amendInPlace()
	}
	if !t.rolling {
		return
	}
	t.replaceStaling()
	if t.outdated > 0 {
		t.replaceOutdated()
	}
	if !t.unfinished() && t.leaveLost() {
		t.finishRollout()
	}
}

// replaceOutdated makes successors of outdated instances and removes those that
// are not needed any more, in the order that the service asks for.
func (t *turn) replaceOutdated() {
	held := t.heldBy()
	if held != nil {
		t.wait(time.Time{}, func() *mariposa.Reason { return held })
	}
	switch spare := t.settled + t.outdated - t.goal; {
	case held != nil:
		t.retire(spare) // fewer are wanted: that much needs nobody new
	case t.s.def.Update.StopFirst:
		empty := max(0, t.goal-t.slotsHeld()-len(t.taken)) // they take what may still be made first
		n := spare + max(0, min(t.batch, t.allow-empty))
		if empty > 0 && t.filling() >= t.goal && t.filling() > t.slotsHeld() && t.running() > t.goal-t.batch {
			n = max(n, 1) // two in one slot keep another from being filled
		}
		t.retire(n)
	default:
		t.addReplacements()
		t.retire(spare)
	}
	t.askFollowers()
}

// replaceStaling removes what is outdated before it has come up: it never
// served, so nobody misses it.
func (t *turn) replaceStaling() {
	t.s.each(staling, func(i *Instance) bool {
		if t.dropped < t.allow && t.mayGo(i) {
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
// serve in their place: after the rollout nobody would replace them. It reports
// whether there is none left.
func (t *turn) leaveLost() bool {
	left := false
	t.s.each(lost, func(i *Instance) bool {
		if t.view.outdated(t.s, i) {
			left = true
			if t.mayGo(i) {
				t.remove(i, t.replaced(), false)
			} else {
				t.st.Rollout.Asks = true
			}
		}
		return true
	})
	return !left
}

// heldBy holds a rollout back until those of its dependencies are through, or wait
// for it themselves, so that new dependents meet new dependencies. It says what is
// waited for.
func (t *turn) heldBy() *mariposa.Reason {
	for _, name := range t.s.def.DependsOn {
		d := t.other(name)
		if d == nil || d.status == nil || d.status.Rollout == nil || d.outdated+d.staling == 0 || d.asksFollowers() {
			continue
		}
		r := &mariposa.Reason{Code: mariposa.ReasonWaitsRollout, Subject: name}
		return r.Because(d.standstill())
	}
	return nil
}

// replaced says why an outdated instance goes.
func (t *turn) replaced() *mariposa.Reason {
	if r := t.st.Rollout; r != nil && r.Follows != "" {
		return &mariposa.Reason{Code: mariposa.ReasonFollowReplaces, Other: r.Follows}
	}
	return &mariposa.Reason{Code: mariposa.ReasonVersionReplaces, Version: t.st.Number}
}

// replaces says why a new instance takes the place of an outdated one.
func (t *turn) replaces(i *Instance) *mariposa.Reason {
	r := t.replaced()
	r.Subject = i.Spec.Name
	return r
}

// addReplacements starts up to a batch of new instances beside the outdated
// ones, in the slots of those that will go first.
func (t *turn) addReplacements() {
	made := len(t.taken) // in this run, to fill what was missing
	fresh := t.current + t.rising + made
	extra := t.filling() - t.dropped + made - t.goal
	n := min(t.batch-max(0, extra), t.goal-fresh, t.allow)
	if extra < 0 || n <= 0 || !t.mayCreate() {
		return
	}
	open := func(i *Instance) bool { return !t.taken[i.Spec.Slot] && !t.hasCurrent(i.Spec.Slot) }
	replace := func(i *Instance) {
		if n--; !t.create(i.Spec.Slot, t.st.Number, t.replaces(i), false) {
			n = 0
		}
	}
	var referred []*Instance // they come last, so that who refers to them follows once
	t.s.each(stale, func(i *Instance) bool {
		switch {
		case !open(i):
		case t.referrer(i) != "":
			referred = append(referred, i)
		default:
			replace(i)
		}
		return n > 0
	})
	for _, i := range referred {
		if n > 0 && open(i) {
			replace(i)
		}
	}
}

// hasCurrent reports whether a slot is held by an instance that does not run
// outdated: its successor, or one that is lost.
func (t *turn) hasCurrent(slot int) bool {
	o := t.s.slots[slot]
	return int(o.holders-o.outdated) > t.givenUpAt[slot]
}

// retire removes up to n outdated instances: those whose slot is filled again
// first, then in the order of victims.
func (t *turn) retire(n int) {
	doubles := t.filling() - t.slotsHeld()
	for _, replaced := range []bool{true, false} {
		t.s.each(stale, func(i *Instance) bool {
			if n <= 0 || t.full() || (replaced && doubles <= 0) {
				return false
			}
			if t.removing[i.ID] || slices.Contains(t.yielding, i.ID) || replaced && t.holders(i.Spec.Slot) < 2 {
				return true
			}
			switch first := t.s.def.Update.StopFirst; {
			case !first && t.goal > 0 && t.referrer(i) != "": // askBack sees to it
				return true
			case first || t.mayGo(i):
				t.remove(i, t.replaced(), false)
			}
			n, doubles = n-1, doubles-1
			return true
		})
	}
}

// amendInPlace changes in place, a batch at a time, what can be.
func (t *turn) amendInPlace() {
	n := min(t.batch-t.s.count(updating), t.allow)
	t.s.each(amend, func(i *Instance) bool {
		if n > 0 && !t.removing[i.ID] {
			t.step(Step{Action: Amend, Instance: i.ID, Number: t.st.Number, Reason: &mariposa.Reason{Code: mariposa.ReasonInPlace, Version: t.st.Number}})
			n--
		}
		return n > 0
	})
}
