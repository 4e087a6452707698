package converge

import (
	"iter"
	"slices"

	"mariposa"
)

// shrink removes instances above the goal, in the order of victims, except the
// extra ones that a rollout needs for its work.
func (t *turn) shrink() {
	if t.rolling && t.outdated > 0 {
		// The rollout removes outdated ones itself; those that it has started
		// and that are not up yet must not exceed the goal either.
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

// dropDoubles leaves one instance in each slot. The others are removed in the
// order of victims; running ones only as long as enough others run.
func (t *turn) dropDoubles() {
	doubles := t.countFilling() - t.slotsHeld()
	if doubles == 0 {
		return
	}
	spare := t.countRunning() - t.goal
	if t.st.Rollout != nil && !t.rolling && !t.hasRolloutFailed() { // the instances it made must prove themselves first
		spare = t.settled + t.outdated - t.goal
	}
	if t.s.def.Update.StopFirst {
		spare += t.batch
	}
	fewer := map[int]int{}
	for i := range t.victims() {
		slot, runs := i.Spec.Slot, t.s.members[i.ID].runs()
		if t.slotHolders(slot)-fewer[slot] < 2 || (runs && spare <= 0) || t.pending && t.handsOver(slot) {
			continue
		}
		if runs {
			spare--
		}
		fewer[slot]++
		if t.mayGo(i) {
			t.remove(i, t.aboutSlot(mariposa.ReasonSlotHeld, slot), false)
		}
		if doubles--; doubles == 0 {
			return
		}
	}
}

// victims walks the instances that fill the goal in the order in which they are
// removed: not yet running first, then the outdated, then the oldest. After a
// rollout that stopped by itself, instances that it made and that have not
// proved themselves go before healthy ones. Instances that a filter excludes
// from an update count as outdated too.
func (t *turn) victims() iter.Seq[*Instance] {
	return func(yield func(*Instance) bool) {
		on := true
		next := func(i *Instance) bool {
			if !t.isVictim(i) || t.isRetired(i) {
				return true
			}
			on = yield(i)
			return on
		}
		if !t.retired(yield) {
			return
		}
		for _, c := range victimClasses {
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

// retired walks the instances of a version that a person stopped, in the same order.
// It reports whether the walk goes on.
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

// isRetired reports whether an instance is of a version that a person stopped.
func (t *turn) isRetired(i *Instance) bool {
	return t.st.Retired != 0 && t.view.versionOf(t.s, i) == t.st.Retired
}

// filteredLike lists the classes that hold instances which would be in an
// outdated class if the rollout had no filter.
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

// isVictim reports whether an instance fills the goal and is not being removed
// already.
func (t *turn) isVictim(i *Instance) bool {
	c, known := t.s.members[i.ID]
	return known && c.holdsSlot() && !t.removing[i.ID] && !slices.Contains(t.yielding, i.ID) && !t.isGivenUp(i)
}

// referredLast moves instances that other services refer to behind the others:
// as long as there is a choice, nobody has to follow. Of the running ones,
// those that already yield come first, so that the choice does not change.
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

// handsOver reports whether a slot is held by an outdated instance that others
// refer to, in addition to its successor.
func (t *turn) handsOver(slot int) bool {
	found := false
	t.s.each(outdatedRunning, func(i *Instance) bool {
		found = i.Spec.Slot == slot && t.findReferrer(i) != ""
		return !found
	})
	return found
}
