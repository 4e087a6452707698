package converge

import (
	"math"
	"slices"
	"time"

	"mariposa"
)

// measureRollout updates the rollout's record: how many instances are up at the new
// version, when it last made progress, and whether it is held or must stop.
func (t *turn) measureRollout() {
	t.updatesLeft = math.MaxInt
	if t.st.Rollout == nil {
		return
	}
	r := *t.st.Rollout
	t.st.Rollout = &r
	if n := len(t.young); n > 0 {
		t.wakeAt(t.s.provenAt(t.young[n-1]))
	}
	fresh := t.s.countProvenFresh(t.young)
	if fresh > r.MostServing { // a new maximum: instances that only come back are no progress
		r.Progress, r.Failures, r.MostServing = t.now, 0, fresh
	}
	t.measureLimit(&r)
	t.heldDependency = t.findHeldDependency()
	waiting := t.whyDependenciesNotReady() != nil || t.unbound != nil || t.outdated > 0 && t.holdForDependencies() != nil || r.AwaitsFollowers || t.lost > len(t.givenUp) || t.inStorm ||
		r.Limit > 0 && t.updatesLeft <= 0 && t.formerUnbound != nil
	if r.Waiting && !waiting {
		r.Progress = t.now
	}
	r.Waiting = waiting
	t.checkFailure(&r)
	if !t.hasRolloutLeft() {
		r.FailureReason = nil // the obstacle is gone, and repairs did the rest
	}
	r.AwaitsFollowers = false
	held := r.Held || t.heldDependency != ""
	t.rolling = r.FailureReason == nil && t.needs == nil && !t.st.Paused && !held
	t.pending = r.FailureReason == nil && !t.rolling && !held
}

// measureLimit computes how many more instances a rollout with a limit may bring to the
// target, and whether it is held.
func (t *turn) measureLimit(r *mariposa.Rollout) {
	r.Held = t.s.rolloutHeld
	if r.Limit == 0 {
		return
	}
	t.updatesLeft = r.Limit - t.s.fresh[serving] - t.s.fresh[updating] - t.s.fresh[starting]
	for _, c := range []class{lost, unhealthy, failed} { // they may come back, or are refilled at the same version
		t.s.each(c, func(i *Instance) bool {
			if t.s.isFresh(i) && !t.view.isOutdated(t.s, i) {
				t.updatesLeft--
			}
			return true
		})
	}
}

// reachedLimit reports whether a service's rollout is held: the maximum number of
// instances is healthy at the target, and there are others left.
func (s *service) reachedLimit(now time.Time) bool {
	if s.status == nil || s.def == nil || s.status.Rollout == nil {
		return false
	}
	r := s.status.Rollout
	if s.countNotRolled() == 0 {
		return r.Held && s.count(lost) > 0 // the others may come back with their node
	}
	return r.Held || r.Limit > 0 && s.countProvenFresh(s.findYoung(now)) >= r.Limit
}

// nextProvenAt returns when the next instance becomes healthy that counts toward the
// limit; zero: none.
func (s *service) nextProvenAt(now time.Time) time.Time {
	if s.status == nil || s.def == nil || s.status.Rollout == nil || s.status.Rollout.Limit == 0 || s.countNotRolled() == 0 {
		return time.Time{}
	}
	young := s.findYoung(now)
	if len(young) == 0 {
		return time.Time{}
	}
	return s.provenAt(young[len(young)-1])
}

// countProvenFresh returns the number of serving instances that were created for the
// current rollout and are not young.
func (s *service) countProvenFresh(young []*Instance) int {
	n := s.fresh[serving]
	for _, i := range young {
		if s.members[i.ID] == serving && s.isFresh(i) {
			n--
		}
	}
	return n
}

// heldDependencyOf finds a direct or indirect dependency of a service whose
// rollout is held.
func (p *planner) heldDependencyOf(name string) string {
	if p.view.agenda.heldCount == 0 {
		return ""
	}
	if by, known := p.heldDependencies[name]; known {
		return by
	}
	if p.heldDependencies == nil {
		p.heldDependencies = map[string]string{}
	}
	p.heldDependencies[name] = "" // definitions of several versions may form a cycle
	p.heldDependencies[name] = p.searchHeldDependency(name)
	return p.heldDependencies[name]
}

func (p *planner) searchHeldDependency(name string) string {
	s := p.view.services[name]
	if s == nil || s.def == nil {
		return ""
	}
	for _, on := range s.def.DependsOn {
		d := p.view.services[on]
		if d == nil || d.status == nil || d.status.Rollout == nil {
			continue
		}
		if d.rolloutHeld {
			return on
		}
		if by := p.heldDependencyOf(on); by != "" {
			return by
		}
	}
	return ""
}

// checkFailure stops a rollout that fails or makes no progress.
func (t *turn) checkFailure(r *mariposa.Rollout) {
	u := t.s.def.Update
	if r.FailureReason != nil || r.Held || t.heldDependency != "" || t.st.Paused || t.needs != nil || u.OnFailure == mariposa.OnFailureContinue || !t.hasRolloutLeft() {
		return
	}
	defer t.requestRollback(r)
	due := t.lastProgress(r).Add(u.Deadline)
	switch {
	case r.Failures >= maxRolloutFailures:
		stopped := &mariposa.Reason{Code: mariposa.ReasonStoppedFailures, Version: r.Number, Count: r.Failures}
		if r.First {
			stopped.Code = mariposa.ReasonStartFailures
		}
		r.FailureReason = stopped.Because(t.s.lastFailure())
	case u.OnFailure == mariposa.OnFailureRollback && t.findStuckReferrer() != nil:
		r.FailureReason = t.findStuckReferrer()
	case r.Waiting: // not its own fault
	case u.Deadline > 0 && !due.After(t.now):
		r.FailureReason = &mariposa.Reason{Code: mariposa.ReasonStoppedDeadline, Version: r.Number, For: u.Deadline}
		if r.First {
			r.FailureReason.Code = mariposa.ReasonStartDeadline
		}
	case u.Deadline > 0:
		t.wakeAt(due)
	}
}

// requestRollback requests a rollback if a rollout has just stopped and the service's
// on_failure says so. A rollback is not rolled back itself.
func (t *turn) requestRollback(r *mariposa.Rollout) {
	if r.FailureReason == nil || t.s.def.Update.OnFailure != mariposa.OnFailureRollback || r.IsRollback {
		return
	}
	if t.rollingBack = true; t.plan.Rollback == "" {
		t.plan.Rollback, t.plan.RollbackReason = t.s.name, r.FailureReason
	}
}

// lastProgress returns when the rollout last made progress. A rollout cannot begin before
// the rollouts of its dependencies end, so their progress also counts. Time in which no
// server planned the project does not count.
func (t *turn) lastProgress(r *mariposa.Rollout) time.Time {
	last := r.Progress
	if last.Before(t.view.plannedSince) {
		last = t.view.plannedSince
	}
	for _, name := range t.s.def.DependsOn {
		d := t.otherFacts(name)
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
		t.updateInPlace()
	}
	if !t.rolling {
		return
	}
	t.removeOutdatedStarting()
	if t.outdated > 0 {
		t.replaceOutdated()
	}
	if !t.hasRolloutLeft() && t.removeLostOutdated() {
		t.finishRollout()
	}
}

// replaceOutdated creates successors of outdated instances and removes those that are no
// longer needed, in the order of the service's update settings.
func (t *turn) replaceOutdated() {
	held := t.holdForDependencies()
	if held != nil {
		t.wait(time.Time{}, func() *mariposa.Reason { return held })
	}
	switch spare := t.settled + t.outdated - t.goal; {
	case held != nil:
		t.removeOutdated(spare) // fewer are desired: these need no successor
	case t.s.def.Update.StopFirst:
		empty := max(0, t.goal-t.slotsHeld()-len(t.taken)) // empty slots use the limit first
		n := spare + max(0, min(t.batch, t.updatesLeft-empty))
		if empty > 0 && t.countFilling() >= t.goal && t.countFilling() > t.slotsHeld() && t.countRunning() > t.goal-t.batch {
			n = max(n, 1) // two instances in one slot prevent another slot from being filled
		}
		t.removeOutdated(n)
	default:
		t.addReplacements()
		t.removeOutdated(spare)
	}
	t.askFollowers()
}

// removeOutdatedStarting removes outdated instances that are not up yet. They never
// served, so their removal does no harm.
func (t *turn) removeOutdatedStarting() {
	t.s.each(outdatedStarting, func(i *Instance) bool {
		if t.dropped < t.updatesLeft && t.mayGo(i) {
			t.remove(i, t.whyReplaced(), false)
			t.dropped++
		}
		return t.dropped < t.updatesLeft
	})
}

// finishRollout ends a rollout. If it was a filtered part of a held rollout, that rollout
// is held again.
func (t *turn) finishRollout() {
	if r := t.st.Rollout; r.HoldsAgain {
		r.Filter, r.Before, r.HoldsAgain, r.Limit, r.Held = nil, time.Time{}, false, 0, true
		return
	}
	t.st.Rollout = nil
}

// removeLostOutdated removes the outdated instances on unreachable nodes once others
// serve in their place, because nothing would replace them after the rollout. It reports
// whether none is left.
func (t *turn) removeLostOutdated() bool {
	left := false
	t.s.each(lost, func(i *Instance) bool {
		if t.view.isOutdated(t.s, i) {
			left = true
			if t.mayGo(i) {
				t.remove(i, t.whyReplaced(), false)
			} else {
				t.st.Rollout.AwaitsFollowers = true
			}
		}
		return true
	})
	return !left
}

// holdForDependencies delays a rollout until the rollouts of its dependencies end or wait
// for it, so that new dependents use new dependencies. It returns the reason.
func (t *turn) holdForDependencies() *mariposa.Reason {
	for _, name := range t.s.def.DependsOn {
		d := t.otherFacts(name)
		if d == nil || d.status == nil || d.status.Rollout == nil || d.outdated+d.outdatedStarting == 0 || d.awaitsFollowers() {
			continue
		}
		r := &mariposa.Reason{Code: mariposa.ReasonWaitsRollout, Subject: name}
		return r.Because(d.whyPersonNeeded())
	}
	return nil
}

// whyReplaced returns why an outdated instance is removed.
func (t *turn) whyReplaced() *mariposa.Reason {
	if r := t.st.Rollout; r != nil && r.Follows != "" {
		return &mariposa.Reason{Code: mariposa.ReasonFollowReplaces, Other: r.Follows}
	}
	return &mariposa.Reason{Code: mariposa.ReasonVersionReplaces, Version: t.st.Number}
}

// whyReplaces returns why a new instance replaces an outdated one.
func (t *turn) whyReplaces(i *Instance) *mariposa.Reason {
	r := t.whyReplaced()
	r.Subject = i.Spec.Name
	return r
}

// addReplacements starts up to one batch of new instances in addition to the outdated
// ones, in the slots of those that will be removed first.
func (t *turn) addReplacements() {
	made := len(t.taken) // created in this turn to fill missing slots
	fresh := t.current + t.starting + made
	extra := t.countFilling() - t.dropped + made - t.goal
	n := min(t.batch-max(0, extra), t.goal-fresh, t.updatesLeft)
	if extra < 0 || n <= 0 || !t.mayCreate() {
		return
	}
	open := func(i *Instance) bool { return !t.taken[i.Spec.Slot] && !t.hasCurrent(i.Spec.Slot) }
	replace := func(i *Instance) {
		if n--; !t.create(i.Spec.Slot, t.st.Number, t.whyReplaces(i), false) {
			n = 0
		}
	}
	var referred []*Instance // they come last, so that services that refer to them follow only once
	t.s.each(outdatedRunning, func(i *Instance) bool {
		switch {
		case !open(i):
		case t.findReferrer(i) != "":
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

// hasCurrent reports whether a slot has an instance other than an outdated running one:
// its successor, or a lost one.
func (t *turn) hasCurrent(slot int) bool {
	o := t.s.slots[slot]
	return int(o.holders-o.outdated) > t.givenUpAt[slot]
}

// removeOutdated removes up to n outdated instances: first those whose slot has a
// successor, then in the order of removal.
func (t *turn) removeOutdated(n int) {
	doubles := t.countFilling() - t.slotsHeld()
	for _, replaced := range []bool{true, false} {
		t.s.each(outdatedRunning, func(i *Instance) bool {
			if n <= 0 || t.isBulkSpent() || (replaced && doubles <= 0) {
				return false
			}
			if t.removing[i.ID] || slices.Contains(t.yielding, i.ID) || replaced && t.slotHolders(i.Spec.Slot) < 2 {
				return true
			}
			switch first := t.s.def.Update.StopFirst; {
			case !first && t.goal > 0 && t.findReferrer(i) != "": // askFollowers handles it
				return true
			case first || t.mayGo(i):
				t.remove(i, t.whyReplaced(), false)
			}
			n, doubles = n-1, doubles-1
			return true
		})
	}
}

// updateInPlace updates instances in place where possible, one batch at a time.
func (t *turn) updateInPlace() {
	n := min(t.batch-t.s.count(updating), t.updatesLeft)
	t.s.each(needsUpdate, func(i *Instance) bool {
		if n > 0 && !t.removing[i.ID] {
			t.step(Step{Action: Update, Instance: i.ID, Number: t.st.Number, Reason: &mariposa.Reason{Code: mariposa.ReasonInPlace, Version: t.st.Number}})
			n--
		}
		return n > 0
	})
}
