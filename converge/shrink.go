package converge

import (
	"iter"
	"slices"

	"mariposa"
)

// shrink removes instances above the goal, in the order of removal, except for the
// additional ones that a rollout needs.
func (t *turn) shrink() {
	if t.rolling && t.outdated > 0 {
		// The rollout removes outdated instances itself. Those that it has started and
		// that are not up yet must not exceed the goal either.
		surplus := min(t.current+t.starting, t.slotsHeld()) - t.goal
		t.s.each(starting, func(i *Instance) bool {
			if surplus--; surplus >= 0 && t.mayGo(i) {
				t.remove(i, t.scaleReason(), false)
			}
			return surplus > 0 && !t.isBulkSpent()
		})
		return
	}
	t.dropDoubles()
	surplus := t.slotsHeld() - t.goal
	if surplus <= 0 {
		return
	}
	reason := t.scaleReason()
	for i := range t.referredLast(t.victims()) {
		if t.mayGo(i) {
			t.remove(i, reason, false)
		}
		if surplus--; surplus == 0 || t.isBulkSpent() {
			return
		}
	}
}

// dropDoubles leaves one instance in each slot. It removes the others in the order of
// removal, running ones only as long as enough others run. An instance that gives way goes
// as soon as its successor is settled, however many of other slots are missing: its own slot
// is served, and it would block the drain of its node for as long as another node is lost.
func (t *turn) dropDoubles() {
	doubles := t.countFilling() - t.slotsHeld()
	if doubles == 0 {
		return
	}
	spare := t.countSpare()
	fewer, giving := map[int]int{}, t.countGivingWay()
	moved := t.settledSuccessors(giving)
	for i := range t.victims() {
		slot, runs := i.Spec.Slot, t.s.members[i.ID].runs()
		gives := giving[slot] > 0 && t.givesWay(i)
		if t.slotHolders(slot)-fewer[slot] < 2 || runs && spare <= 0 && !(gives && moved[slot]) || t.pending && t.handsOver(slot) {
			continue
		}
		if n := giving[slot]; n > 0 && n < t.slotHolders(slot) { // the one that gives way goes, after its successor is up
			if gives && !t.s.members[i.ID].starts() && !moved[slot] || !gives && t.slotHolders(slot)-fewer[slot] <= n+1 {
				continue
			}
		}
		if runs {
			spare--
		}
		if !gives {
			delete(moved, slot) // it may have been the settled successor
		}
		fewer[slot]++
		switch {
		case !t.mayGo(i):
		case t.view.isDisplaced(i):
			t.moveOut(i)
		default:
			t.remove(i, t.aboutSlot(mariposa.ReasonSlotHeld, slot), false)
		}
		if doubles--; doubles == 0 {
			return
		}
	}
}

// countSpare returns the number of running instances above the goal.
func (t *turn) countSpare() int {
	spare := t.countRunning() - t.goal
	if t.st.Rollout != nil && !t.rolling && !t.hasRolloutFailed() { // its new instances must be healthy first
		spare = t.settled + t.outdated - t.goal
	}
	switch {
	case t.s.def.Update.StopFirst:
		spare += t.batch
	case !t.st.Paused && t.hasUnsucceeded():
		// Doubles would take the place of the successors that a drain needs, until all lost
		// nodes are back.
		spare += t.lost - len(t.givenUp)
	}
	return spare
}

// victims iterates over the instances that count toward the goal, in the order in which
// they are removed: those not yet running first, then those that must leave their node,
// then the outdated ones, then the oldest.
// After a rollout that stopped by itself, its instances that are not proven healthy come
// before healthy ones. Instances that a filter excludes from an update count as outdated
// too.
func (t *turn) victims() iter.Seq[*Instance] {
	return func(yield func(*Instance) bool) {
		on := true
		next := func(i *Instance) bool {
			if !t.isVictim(i) || t.isRetired(i) || t.s.members[i.ID].runs() && t.view.isDisplaced(i) {
				return true
			}
			on = yield(i)
			return on
		}
		if !t.retired(yield) {
			return
		}
		for _, c := range victimClasses {
			if c == outdatedRunning && !t.displacedVictims(yield) {
				return
			}
			if c == outdatedRunning && t.hasRolloutFailed() {
				for _, i := range t.young {
					if on = on && next(i); !on {
						return
					}
				}
			}
			if t.s.each(c, func(i *Instance) bool { return t.isFilteredOut(i) || next(i) }); !on {
				return
			}
			for _, c := range t.filteredLike(c) {
				if t.s.each(c, func(i *Instance) bool { return !t.isFilteredOut(i) || next(i) }); !on {
					return
				}
			}
		}
	}
}

// displacedVictims iterates over the running instances that must leave their node. It
// reports whether the iteration continues.
func (t *turn) displacedVictims(yield func(*Instance) bool) bool {
	for _, i := range t.s.displaced {
		if t.s.members[i.ID].runs() && t.isVictim(i) && !t.isRetired(i) && !yield(i) {
			return false
		}
	}
	return true
}

// retired iterates over the instances of a version that a user stopped, in the same
// order. It reports whether the iteration continues.
func (t *turn) retired(yield func(*Instance) bool) bool {
	if t.st.Retired == 0 {
		return true
	}
	on := true
	for _, c := range victimClasses {
		t.s.each(c, func(i *Instance) bool {
			if t.isVictim(i) && t.isRetired(i) {
				on = yield(i)
			}
			return on
		})
		if !on {
			return false
		}
	}
	return true
}

// isRetired reports whether an instance has a version that a user stopped.
func (t *turn) isRetired(i *Instance) bool {
	return t.st.Retired != 0 && t.view.versionOf(t.s, i) == t.st.Retired
}

// filteredLike lists the classes that contain instances which would be in an outdated
// class if the rollout had no filter.
func (t *turn) filteredLike(c class) []class {
	switch {
	case filterOf(t.s.status) == nil:
		return nil
	case c == outdatedStarting:
		return []class{starting}
	case c == outdatedRunning:
		return currentClasses
	}
	return nil
}

// isFilteredOut reports whether an instance counts as up to date only because
// the rollout's filter excludes it.
func (t *turn) isFilteredOut(i *Instance) bool {
	c := t.s.members[i.ID]
	if filterOf(t.s.status) == nil || t.view.matches(t.s, i) || c != starting && !c.upToDate() {
		return false
	}
	return !sameForm(i.Spec.Digest, t.s.def.Digest) || !t.s.unresolved && i.Spec.Bound != t.s.bound
}

// isVictim reports whether an instance counts toward the goal and is not being removed
// yet.
func (t *turn) isVictim(i *Instance) bool {
	c, known := t.s.members[i.ID]
	return known && c.holdsSlot() && !t.removing[i.ID] && !slices.Contains(t.yielding, i.ID) && !t.isGivenUp(i)
}

// referredLast moves instances that other services refer to behind the others, so that no
// service has to follow as long as there is a choice. Of the running ones, those that
// already yield come first, so that the choice does not change.
func (t *turn) referredLast(victims iter.Seq[*Instance]) iter.Seq[*Instance] {
	if t.goal == 0 || t.st.Retired != 0 { // there is no choice
		return victims
	}
	return func(yield func(*Instance) bool) {
		var last []*Instance
		running := false
		for i := range victims {
			if !running && t.s.members[i.ID].runs() {
				running = true
				for _, id := range t.s.status.Yields {
					if y := t.view.instances[id]; y != nil && t.s.members[id].runs() && t.isVictim(y) && !yield(y) {
						return
					}
				}
			}
			switch {
			case running && t.s.isYielding(i.ID):
			case running && (t.findReferrer(i) != "" || t.findBoundService(i) != ""):
				last = append(last, i)
			case !yield(i):
				return
			}
		}
		for _, i := range last {
			if !yield(i) {
				return
			}
		}
	}
}

// handsOver reports whether a slot has an outdated instance that others refer to, in
// addition to its successor.
func (t *turn) handsOver(slot int) bool {
	found := false
	t.s.each(outdatedRunning, func(i *Instance) bool {
		found = i.Spec.Slot == slot && t.findReferrer(i) != ""
		return !found
	})
	return found
}
