package converge

import "mariposa"

// reportStatus writes the status of the service.
func (t *turn) reportStatus() {
	left := len(t.s.members)
	if (t.st.Removed || t.s.status == nil) && left == 0 {
		t.isGone = true
		return // it has ended, so its status is not needed
	}
	t.left = t.measureTodo()
	t.leftUnpaused = t.left
	if t.pending && t.st.Paused {
		t.pending = false
		t.leftUnpaused = t.measureTodo()
		t.pending = true
	}
	t.st.Status, t.st.Reason = t.statusAndReason()
	if t.st.Status == mariposa.StatusConverged && t.isFullyAtVersion() {
		t.st.Accepted = false
	}
}

// isFullyAtVersion reports whether the service has instances and all of them
// are at the project's version. What a person accepted in another state is no
// longer there then.
func (t *turn) isFullyAtVersion() bool {
	return t.st.Number == t.view.number && t.st.Rollout == nil && t.goal > 0 && t.outdated == 0
}

// measureTodo returns the number of instances not in their desired state. It is 0 only if
// nothing is to be done or in progress. Removals that can finish only when a node returns
// do not count, because nothing should wait for them.
func (t *turn) measureTodo() int {
	n := t.failed + t.s.count(unhealthy) + t.s.count(leaving) + t.s.count(gone) + t.s.count(updating)
	up, filling := t.current, t.countFilling()
	if t.rolling || t.pending || t.st.Rollout == nil {
		n += t.s.count(needsUpdate)
	}
	if t.rolling || t.pending {
		n += t.outdated + t.outdatedStarting
		filling -= t.outdated + t.outdatedStarting
	} else {
		up += t.outdated // they are kept, so they count
	}
	n += max(0, t.goal-up) + max(0, filling-t.goal)
	if !t.st.Paused && !t.ending {
		n += len(t.s.displaced)
	}
	if n = max(n, t.steps, len(t.yielding)); n > 0 || t.ending {
		return n
	}
	if t.following {
		return 1
	}
	if n = max(0, t.goal-t.slotsHeld()); n == 0 && t.rolling && t.st.Rollout != nil {
		n = max(0, t.goal-t.settled)
	}
	return n
}

// countHeldBack counts what is left to do because the rollout is held: each outdated
// instance would be replaced, which is two steps, or updated.
func (t *turn) countHeldBack() int {
	if t.st.Rollout == nil || !t.st.Rollout.Held || t.ending {
		return 0
	}
	outdated := min(t.outdated+t.outdatedStarting, max(0, t.goal-t.current)) // more are surplus, and removed now
	return 2*outdated + t.s.count(needsUpdate)
}

// allWaits returns why something is not done now, with the number of more instances that wait.
func (t *turn) allWaits() *mariposa.Reason {
	if t.waits == nil {
		return nil
	}
	return t.waits.AndMore(t.waits.More + t.moreWaits)
}

// statusAndReason returns the status of the service and the reason for it.
func (t *turn) statusAndReason() (mariposa.Status, *mariposa.Reason) {
	waits := t.allWaits()
	todo := t.measureTodo()
	r, b := t.st.Rollout, t.st.Backoff
	switch {
	case r != nil && r.FailureReason != nil && !t.ending && !(r.First && t.backingOff):
		return mariposa.StatusFailed, r.FailureReason
	case t.needs != nil:
		return mariposa.StatusBlocked, t.needs
	case t.backingOff:
		why := &mariposa.Reason{Code: mariposa.ReasonBackingOff, Count: b.Failures, Until: b.Until}
		return mariposa.StatusBackingOff, why.Because(t.s.lastFailure())
	case t.isBlocked(todo):
		return mariposa.StatusBlocked, waits
	case t.st.Paused && !t.ending && (t.pending && t.goal > 0 || todo == 0): // scaled to 0, it has nothing to roll out
		return mariposa.StatusPaused, t.pausedReason(waits)
	case todo > 0:
		return mariposa.StatusConverging, waits
	case t.ending && (t.view.goal == mariposa.GoalStopped || t.st.Stopped) && !t.st.Removed:
		return mariposa.StatusStopped, t.stranded
	case r != nil && r.Held:
		return mariposa.StatusHeld, &mariposa.Reason{Code: mariposa.ReasonHeld, Version: r.Number, Count: t.s.fresh[serving], Of: t.goal}
	case t.heldDependency != "":
		return mariposa.StatusHeld, &mariposa.Reason{Code: mariposa.ReasonWaitsHeld, Subject: t.heldDependency}
	}
	switch {
	case t.goneReference == nil:
		return mariposa.StatusConverged, t.stranded
	case t.isKeptDownByPerson(t.goneReference.Subject) || t.isScaledToZero(t.goneReference.Subject):
		return mariposa.StatusBlocked, t.goneReference
	}
	return mariposa.StatusConverging, t.goneReference
}

// isBlocked reports whether nothing is created until a person or lost nodes return.
func (t *turn) isBlocked(todo int) bool { return t.blockedByPerson || t.inStorm && todo > 0 }

func (t *turn) pausedReason(waits *mariposa.Reason) *mariposa.Reason {
	if r := t.st.Rollout; r != nil && t.goal > 0 && t.hasRolloutLeft() {
		return &mariposa.Reason{Code: mariposa.ReasonPaused, Version: r.Number, Count: min(t.current, t.goal), Of: t.goal}
	}
	return waits
}
