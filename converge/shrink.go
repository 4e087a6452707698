package converge

import (
	"fmt"
	"iter"
)

// shrink takes away what is above the goal, in the order of victims, apart from
// what a rollout has on top for its own work.
func (t *turn) shrink() {
	if t.rolling && t.s.count(stale) > 0 {
		// The rollout takes outdated ones itself; what it has not started
		// yet must not pass the goal either.
		surplus := min(t.current()+t.s.count(starting), t.slotsHeld()) - t.goal
		t.s.each(starting, func(i *Instance) bool {
			if surplus--; surplus >= 0 {
				t.remove(i, t.scaled(), false)
			}
			return surplus > 0 && !t.full()
		})
		return
	}
	t.dropDoubles()
	surplus := t.slotsHeld() - t.goal
	if surplus <= 0 {
		return
	}
	reason := t.scaled()
	for i := range t.boundLast(t.victims()) {
		t.remove(i, reason, false)
		if surplus--; surplus == 0 || t.full() {
			return
		}
	}
}

// dropDoubles leaves one instance in each slot. The others go by the order of
// victims; those that run only as far as enough others do.
func (t *turn) dropDoubles() {
	doubles := t.counted() - t.slotsHeld()
	if doubles == 0 {
		return
	}
	spare := t.running() - t.goal
	if t.st.Rollout != nil && !t.rolling && !t.stopped() { // what it made proves itself first
		spare = t.settled + t.s.count(stale) - t.goal
	}
	if t.s.def.Update.StopFirst {
		spare += t.batch
	}
	fewer := map[int]int{}
	for i := range t.victims() {
		slot, runs := i.Spec.Slot, t.s.members[i.ID].runs()
		if t.holders(slot)-fewer[slot] < 2 || (runs && spare <= 0) || t.pending && t.handedOver(slot) {
			continue
		}
		if runs {
			spare--
		}
		fewer[slot]++
		t.remove(i, fmt.Sprintf("another one holds slot %s.%d", t.s.name, slot), false)
		if doubles--; doubles == 0 {
			return
		}
	}
}

// victims walks the instances that fill the goal in the order in which they go:
// not yet running first, then the oldest. After a rollout that stopped by
// itself, what it made and has not proved itself goes before what was healthy.
func (t *turn) victims() iter.Seq[*Instance] {
	return func(yield func(*Instance) bool) {
		on := true
		next := func(i *Instance) bool {
			if t.removing[i.ID] || t.givenUp(i) {
				return true
			}
			on = yield(i)
			return on
		}
		for _, c := range []class{staling, starting, lost, stale, amend, updating, serving} {
			if c == stale && t.stopped() {
				for _, i := range t.young {
					if on = on && next(i); !on {
						return
					}
				}
			}
			if t.s.each(c, next); !on {
				return
			}
		}
	}
}

// boundLast puts those that other services are bound to behind the others: as
// long as there is a choice, nobody need follow.
func (t *turn) boundLast(victims iter.Seq[*Instance]) iter.Seq[*Instance] {
	return func(yield func(*Instance) bool) {
		var last []*Instance
		for i := range victims {
			if t.s.members[i.ID].runs() && t.pinned(i) {
				last = append(last, i)
			} else if !yield(i) {
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

// handedOver reports whether a slot is held by an outdated instance that others
// are bound to, beside its successor.
func (t *turn) handedOver(slot int) bool {
	found := false
	t.s.each(stale, func(i *Instance) bool {
		found = i.Spec.Slot == slot && t.pinned(i)
		return !found
	})
	return found
}
