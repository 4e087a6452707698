package converge

import (
	"cmp"
	"slices"
	"strconv"
	"time"

	"mariposa"
)

// fill refills the slots of failed and lost instances, then fills new slots until the
// goal is reached.
func (t *turn) fill() {
	missing := t.countMissing()
	dead := t.findFailedToRefill(missing)
	if missing <= 0 || !t.mayCreate() {
		t.explainUnhealthy()
		return
	}
	for _, i := range dead {
		number, can := t.refillVersion(i)
		if missing--; !can {
			continue
		}
		if t.s.def.Update.StopFirst && isUnhealthy(i) { // it still runs: its successor starts once it is gone
			t.remove(i, mariposa.Reported(howItEnded(i)), true)
			continue
		}
		if !t.create(i.Spec.Slot, number, &mariposa.Reason{Code: mariposa.ReasonReplacesFailed, Subject: i.Spec.Name, Detail: howItEnded(i)}, true) {
			return
		}
		t.remove(i, mariposa.Reported(howItEnded(i)), true)
	}
	for _, i := range t.givenUp {
		if missing == 0 {
			return
		}
		if t.slotHolders(i.Spec.Slot) > 0 || t.taken[i.Spec.Slot] {
			continue // already refilled
		}
		if held, _ := t.view.stormHold(t.s, i.Spec.Node, t.now); held { // explainLost has said so
			missing--
			continue
		}
		number, can := t.refillVersion(i)
		if missing--; !can {
			continue
		}
		if !t.create(i.Spec.Slot, number, t.unreachableReason(mariposa.ReasonReplacesLost, i), true) {
			return
		}
		t.plan.Steps[len(t.plan.Steps)-1].Stable = !t.view.skipsWaiting(t.s, i.Spec.Node)
	}
	if missing = t.refillUnhealthy(missing); t.needs == nil {
		t.openSlots(missing)
	}
}

// countMissing returns the number of slots to fill. If two instances have the same slot,
// a slot may be missing although there are enough instances. It is filled in addition, up
// to one batch above the goal, or with order stop-first once one of the two is removed.
func (t *turn) countMissing() int {
	most := t.goal + t.batch
	if t.s.def.Update.StopFirst {
		most = t.goal
	}
	return min(t.goal-t.slotsHeld(), most-t.countFilling())
}

// findFailedToRefill returns up to n failed instances whose slots must be refilled. It
// removes the others, because their slots are taken or not needed.
func (t *turn) findFailedToRefill(n int) []*Instance {
	if t.s.count(failed) == 0 {
		return nil
	}
	var dead []*Instance
	bySlot := map[int]int{} // slot -> failed ones in it
	t.s.each(failed, func(i *Instance) bool { bySlot[i.Spec.Slot]++; return true })
	t.s.each(failed, func(i *Instance) bool {
		slot := i.Spec.Slot
		bySlot[slot]--
		if t.slotHolders(slot) > 0 || bySlot[slot] > 0 {
			t.remove(i, placeTaken, false)
		} else {
			dead = append(dead, i)
		}
		return true
	})
	for len(dead) > max(0, n) {
		t.remove(dead[0], placeTaken, false)
		dead = dead[1:]
	}
	return dead
}

var placeTaken = &mariposa.Reason{Code: mariposa.ReasonPlaceTaken}

// openSlots fills the lowest free slots.
func (t *turn) openSlots(missing int) {
	busy := t.busySlots()
	reason := t.scaleReason()
	for slot := range t.s.freeSlots() {
		if missing <= 0 {
			return
		}
		if t.taken[slot] || t.ailing[slot] {
			continue
		}
		if busy[slot] {
			missing--
			t.waitForOne(time.Time{}, func() *mariposa.Reason { return t.aboutSlot(mariposa.ReasonSlotBusy, slot) })
			continue
		}
		if !t.create(slot, t.newSlotVersion(), reason, false) {
			return
		}
		missing--
	}
}

// busySlots finds the slots that, with order stop-first, must be empty before they are
// filled again. It waits for unreachable nodes to return.
func (t *turn) busySlots() map[int]bool {
	if !t.s.def.Update.StopFirst {
		return nil
	}
	busy := map[int]bool{}
	t.s.each(leaving, func(i *Instance) bool { busy[i.Spec.Slot] = true; return true })
	t.s.each(leavingLost, func(i *Instance) bool {
		until, never := t.view.rescheduleTime(t.s, i)
		held, at := t.view.stormHold(t.s, i.Spec.Node, t.now)
		if at.After(until) {
			until = at
		}
		busy[i.Spec.Slot] = busy[i.Spec.Slot] || never || held || until.After(t.now)
		if !never && until.After(t.now) {
			t.wakeAt(until)
		}
		return true
	})
	return busy
}

// refillVersion returns the version for refilling the slot of a dead instance. This is
// the current version, because the rollout would replace any other version immediately.
// It is the dead instance's version while the rollout is on hold, or if the current
// version cannot be created. If its own version cannot be created either, the slot is
// filled like a new one. It reports whether anything can be created.
func (t *turn) refillVersion(i *Instance) (int, bool) {
	own := t.view.Definition(i.Spec.Number, t.s.name)
	current := !t.view.isOutdated(t.s, i) && i.Spec.Live == t.s.def.Live
	switch {
	case own == nil || t.needs == nil && (current || !t.isOnHold()):
		return t.st.Number, t.needs == nil
	case t.needs == nil && t.isOrphaned(own):
		return t.newSlotVersion(), true
	}
	return i.Spec.Number, len(own.Needs) == 0
}

// isOrphaned reports whether a definition refers to a service that is no longer in the
// manifest, so that nothing can be created from it.
func (t *turn) isOrphaned(def *mariposa.Service) bool {
	return slices.ContainsFunc(def.Refs, func(r mariposa.Ref) bool {
		d := t.otherFacts(r.Service)
		return d == nil || d.status == nil || d.status.Removed
	})
}

// newSlotVersion returns the version for filling a new slot: not one whose rollout is on
// hold, as long as there are instances of another version. Except for a canary, it does
// not return to a version without instances.
func (t *turn) newSlotVersion() int {
	r := t.st.Rollout
	if r == nil || !t.isOnHold() {
		return t.st.Number
	}
	number := r.From
	if t.s.numbers[number] == 0 && r.Limit == 0 {
		number = t.newestOutdated()
	}
	if d := t.view.Definition(number, t.s.name); d != nil && len(d.Needs) == 0 && !t.isOrphaned(d) {
		return number
	}
	return t.st.Number
}

// newestOutdated returns the newest version among outdated instances; 0: there are none.
func (t *turn) newestOutdated() int {
	for _, c := range []class{outdatedRunning, outdatedStarting} {
		if t.s.count(c) > 0 {
			i, _ := t.s.byClass[c].Max()
			return i.Spec.Number
		}
	}
	return 0
}

// aboutSlot returns a reason about a slot.
func (t *turn) aboutSlot(code mariposa.ReasonCode, slot int) *mariposa.Reason {
	return &mariposa.Reason{Code: code, Subject: t.s.name + "." + strconv.Itoa(slot)}
}

// create adds an instance unless too many are already starting.
func (t *turn) create(slot, number int, reason *mariposa.Reason, repair bool) bool {
	if t.isBulkSpent() && !repair {
		return false
	}
	s, ok := t.boundStep(number)
	if !ok {
		return false
	}
	if !t.hasRoom() {
		t.wait(time.Time{}, func() *mariposa.Reason { return &mariposa.Reason{Code: mariposa.ReasonStartLimit} })
		return false
	}
	t.room--
	if t.taken == nil {
		t.taken = map[int]bool{}
	}
	t.taken[slot] = true
	if number == t.st.Number {
		t.updatesLeft--
	}
	s.Slot, s.Number, s.Reason, s.Repair = slot, number, reason, repair
	t.step(s)
	return true
}

// whyNotCreated returns why create refused an instance of a version; nil: the plan is full,
// and the next one continues.
func (t *turn) whyNotCreated(number int) *mariposa.Reason {
	switch _, bound := t.boundStep(number); {
	case !bound:
		return cmp.Or(t.unbound, t.formerUnbound, &mariposa.Reason{Code: mariposa.ReasonFollowsOther})
	case !t.hasRoom():
		return &mariposa.Reason{Code: mariposa.ReasonStartLimit}
	}
	return nil
}

// mayCreate reports whether new instances may be created now: not during a back-off, and
// not before all dependencies are up.
func (t *turn) mayCreate() bool {
	if b := t.st.Backoff; b != nil && b.Until.After(t.now) {
		t.wakeAt(b.Until)
		t.backingOff = true
		return false
	}
	if why := t.whyDependenciesNotReady(); why != nil {
		t.wait(time.Time{}, func() *mariposa.Reason { return why })
		t.blockedByPerson = slices.ContainsFunc(t.s.def.DependsOn, t.isKeptDownByPerson)
		return false
	}
	if t.unbound != nil {
		t.wait(time.Time{}, func() *mariposa.Reason { return t.unbound })
		t.blockedByPerson = slices.ContainsFunc(t.s.def.Refs, func(r mariposa.Ref) bool { return t.isScaledToZero(r.Service) })
		return false
	}
	return true
}

// isKeptDownByPerson reports whether a user prevents another service from running.
func (t *turn) isKeptDownByPerson(name string) bool {
	d := t.otherFacts(name)
	return d != nil && d.status != nil && (d.status.Stopped || d.isFrozen())
}

// whyDependenciesNotReady returns which dependency is not up yet; nil: all are.
func (t *turn) whyDependenciesNotReady() *mariposa.Reason {
	for _, name := range t.s.def.DependsOn {
		if why := t.whyNotReady(name, t.countRunning() > 0); why != nil {
			return why
		}
	}
	return nil
}

// whyNotReady returns why a service is not up for its dependents; nil: it is. If
// dependents already serve, one instance is enough: a repair should not wait for another
// repair.
func (t *turn) whyNotReady(name string, degraded bool) *mariposa.Reason {
	d := t.otherFacts(name)
	if d == nil || d.status == nil || d.def == nil {
		return &mariposa.Reason{Code: mariposa.ReasonWaitsMissing, Subject: name}
	}
	if d.ending {
		return &mariposa.Reason{Code: mariposa.ReasonWaitsStopped, Subject: name}
	}
	want := d.goal
	if degraded {
		want = min(want, 1)
	}
	if d.countRunning() >= want {
		return nil
	}
	r := &mariposa.Reason{Code: mariposa.ReasonWaitsInstances, Subject: name, Count: d.countRunning(), Of: d.goal, Frozen: d.isFrozen()}
	if d.def.ChecksDigest != "" {
		r.Detail = "healthy"
	}
	return r.Because(d.whyStuck())
}

// whyStuck returns why a service makes no progress by itself, for the services that wait
// for it; nil: it does. What it waits for itself is not included.
func (s *service) whyStuck() *mariposa.Reason {
	switch r := s.status.Rollout; {
	case r.HasFailed() && !r.First: // a start continues, with a back-off
		return r.FailureReason
	case len(s.def.Needs) > 0:
		return missingMetadata(s.def)
	case s.status.Backoff != nil && s.status.Backoff.Failures > 1:
		return s.lastFailure()
	case s.status.Status == mariposa.StatusBlocked && s.status.Reason != nil:
		return s.status.Reason
	}
	return nil
}
