package converge

import (
	"cmp"
	"slices"
	"time"

	"mariposa"
)

// Instances on a node that is being drained are displaced: they move to other nodes. In
// the order start-first, an instance gets a successor in its own slot first, up to one
// batch above the goal, and is removed once the successor has been up for min_healthy
// (dropDoubles). With stop-first it is removed first, and its slot is filled like any
// other. An instance with volumes is bound to its node and stays.
//
// Rollouts go first: they replace instances anyway, and their new ones never get to a
// node that is being drained.

// isDisplaced reports whether an instance is on a node that is being drained and can
// be moved.
func (v *View) isDisplaced(i *Instance) bool {
	n := v.nodes[i.Spec.Node]
	return n.Draining && !n.Unknown && len(i.Spec.Mounts) == 0
}

// countDisplaced adds an instance of a class to the displaced ones, or removes it.
func (v *View) countDisplaced(s *service, i *Instance, c class, by int32) {
	if (!c.runs() && !c.starts()) || !v.isDisplaced(i) {
		return
	}
	if by < 0 {
		s.displaced = slices.DeleteFunc(s.displaced, func(o *Instance) bool { return o.ID == i.ID })
		return
	}
	at, _ := slices.BinarySearchFunc(s.displaced, i, func(a, b *Instance) int {
		switch {
		case victimBefore(a, b):
			return -1
		case victimBefore(b, a):
			return 1
		}
		return 0
	})
	s.displaced = slices.Insert(s.displaced, at, i)
}

// moveDisplaced moves instances off nodes that are being drained.
func (t *turn) moveDisplaced() {
	if len(t.s.displaced) == 0 || t.st.Paused {
		return
	}
	if t.rolling && t.st.Rollout != nil {
		i := t.s.displaced[0]
		t.st.Drain = &mariposa.Reason{Code: mariposa.ReasonDrainRollout, Subject: i.Spec.Name, Node: t.view.nodes[i.Spec.Node].Name, Version: t.st.Number}
		t.wait(time.Time{}, func() *mariposa.Reason { return t.st.Drain })
		return
	}
	t.dropDisplacedStarting()
	switch {
	case t.slotsHeld() > t.goal: // surplus goes first, displaced ones before others
	case t.s.def.Update.StopFirst:
		t.st.Drain = t.stopDisplaced()
	default:
		t.st.Drain = t.addSuccessors()
	}
	if t.keptFor != nil {
		t.st.Drain = t.keptFor
	}
}

// dropDisplacedStarting removes displaced instances that are not up yet, unless they have
// run before: their slots are filled elsewhere.
func (t *turn) dropDisplacedStarting() {
	for _, i := range t.s.displaced {
		if t.isBulkSpent() {
			return
		}
		if t.s.members[i.ID].starts() && neverServed(i) && !t.removing[i.ID] && !slices.Contains(t.yielding, i.ID) && t.mayGo(i) {
			t.moveOut(i)
		}
	}
}

// moveOut removes a displaced instance.
func (t *turn) moveOut(i *Instance) {
	if !t.removing[i.ID] {
		t.remove(i, t.whyMoved(i, ""), false)
		t.plan.Steps[len(t.plan.Steps)-1].Drains = i.Spec.Node
	}
}

// addSuccessors starts up to one batch of instances in the slots of displaced ones. Other
// slots that are empty are filled first, unless they wait for nodes that were lost together
// with others: that may take long, and these slots need no place meanwhile. It returns why
// some displaced instances have to wait; nil: none has to.
func (t *turn) addSuccessors() *mariposa.Reason {
	extra := t.countFilling() + len(t.taken) + t.countHeldByStorm() - t.goal
	n := t.moveBatch() - max(0, extra)
	if !t.hasUnsucceeded() {
		return nil
	}
	switch {
	case extra < 0:
		return t.aboutDrain(mariposa.ReasonDrainMissing).Because(t.waits)
	case n <= 0:
		return t.aboutDrain(mariposa.ReasonDrainTurn)
	case !t.mayCreate():
		return cmp.Or(t.whyDependenciesNotReady(), t.unbound)
	}
	for _, i := range t.s.displaced {
		if !t.lacksSuccessor(i) {
			continue
		}
		if n <= 0 {
			return t.aboutDrain(mariposa.ReasonDrainTurn)
		}
		number, can := t.refillVersion(i)
		if !can {
			continue
		}
		if !t.create(i.Spec.Slot, number, t.whyMoved(i, i.Spec.Name), false) {
			return t.whyNotCreated(number)
		}
		t.plan.Steps[len(t.plan.Steps)-1].Drains = i.Spec.Node
		n--
	}
	return nil
}

// countHeldByStorm counts the empty slots that wait for nodes that were lost together with
// others.
func (t *turn) countHeldByStorm() int {
	held := map[int]bool{}
	for _, i := range t.givenUp {
		if on, _ := t.view.stormHold(t.s, i.Spec.Node, t.now); on && t.slotHolders(i.Spec.Slot) == 0 && !t.taken[i.Spec.Slot] {
			held[i.Spec.Slot] = true
		}
	}
	return len(held)
}

// aboutDrain returns why displaced instances have to wait: for others of the service.
func (t *turn) aboutDrain(code mariposa.ReasonCode) *mariposa.Reason {
	r := &mariposa.Reason{Code: code, Count: t.countRunning(), Of: t.goal}
	if code == mariposa.ReasonDrainTurn {
		r.Count, r.Of = t.moveBatch(), 0
	}
	return r
}

// whyNotStopped returns why no further displaced instance may be stopped. As long as fewer
// are lost than may be down, it is only a matter of time: what was stopped starts again.
func (t *turn) whyNotStopped() *mariposa.Reason {
	at := map[int]int{} // slot -> lost instances in it
	t.s.each(lost, func(i *Instance) bool { at[i.Spec.Slot]++; return true })
	var first *Instance
	down := 0 // slots whose instances are all lost
	t.s.each(lost, func(i *Instance) bool {
		if n := at[i.Spec.Slot]; n > 0 && n == int(t.s.slots[i.Spec.Slot].holders) {
			if down++; first == nil {
				first = i
			}
			delete(at, i.Spec.Slot)
		}
		return true
	})
	if down < t.moveBatch() {
		return t.aboutDrain(mariposa.ReasonDrainTurn)
	}
	r := t.aboutDrain(mariposa.ReasonDrainDown)
	node := t.view.nodes[first.Spec.Node]
	r.Node, r.Since, r.Tally = node.Name, node.Since, map[string]int{mariposa.TallyLimit: t.moveBatch()}
	if !t.s.def.Reschedule.Never { // otherwise nobody can ask to replace them
		r.IDs = []string{node.Name}
	}
	return r
}

// moveBatch returns the number of instances that move at a time: as in a rollout. If a
// rollout has just ended, its own number no longer counts.
func (t *turn) moveBatch() int { return batchOf(t.s.def, t.st.Rollout, t.goal) }

func (t *turn) hasUnsucceeded() bool { return slices.ContainsFunc(t.s.displaced, t.lacksSuccessor) }

// lacksSuccessor reports whether a displaced instance runs alone in its slot.
func (t *turn) lacksSuccessor(i *Instance) bool {
	return t.s.members[i.ID].runs() && !t.removing[i.ID] && !t.taken[i.Spec.Slot] && t.slotHolders(i.Spec.Slot) == 1
}

// countUnproven counts the instances that have not been up for min_healthy, without those
// that have to move anyway.
func (t *turn) countUnproven() (n int) {
	if t.s.def.Update.MinHealthy <= 0 {
		return 0
	}
	for _, c := range upClasses {
		t.s.each(c, func(i *Instance) bool {
			if at := since(i).Add(t.s.def.Update.MinHealthy); at.After(t.now) && !t.view.isDisplaced(i) && !t.removing[i.ID] {
				t.wakeAt(at)
				n++
			}
			return true
		})
	}
	return n
}

// stopDisplaced removes up to one batch of displaced instances. What was moved before must
// have been up for min_healthy. Instances that others refer to are not kept, as in a rollout
// with this order. It returns why some have to wait; nil: none has to.
func (t *turn) stopDisplaced() *mariposa.Reason {
	n := t.moveBatch() - max(0, t.goal-t.countRunning()) - t.countUnproven() - len(t.removing)
	for _, i := range t.s.displaced {
		if !t.s.members[i.ID].runs() || t.removing[i.ID] || t.slotHolders(i.Spec.Slot) != 1 {
			continue
		}
		if n <= 0 || t.isBulkSpent() {
			return t.whyNotStopped()
		}
		t.moveOut(i)
		n--
	}
	return nil
}

// leavesFirst reports whether an instance of another service leaves its node before its
// successor starts. While its rollout waits for followers it stays: its drain comes after the
// rollout, so whoever refers to it must not wait for the drain.
func (t *turn) leavesFirst(d *facts, id string) bool {
	return d.def != nil && d.def.Update.StopFirst && !d.awaitsFollowers() && !d.status.Paused && !d.isFrozen() &&
		slices.ContainsFunc(d.displaced, func(i *Instance) bool { return i.ID == id })
}

// whyMoved returns why an instance is moved off its node.
func (t *turn) whyMoved(i *Instance, subject string) *mariposa.Reason {
	return &mariposa.Reason{Code: mariposa.ReasonDrains, Subject: subject, Node: t.view.nodes[i.Spec.Node].Name}
}

// settledSuccessors returns the slots of instances that give way in which another instance
// has been up for min_healthy.
func (t *turn) settledSuccessors(giving map[int]int) map[int]bool {
	slots := map[int]bool{}
	for slot := range giving {
		if t.slotHolders(slot) > 1 {
			slots[slot] = false
		}
	}
	if len(slots) == 0 {
		return nil
	}
	for _, c := range upClasses {
		t.s.each(c, func(i *Instance) bool {
			if done, asked := slots[i.Spec.Slot]; !asked || done || t.givesWay(i) || t.removing[i.ID] {
				return true
			}
			at := since(i).Add(t.s.def.Update.MinHealthy)
			if slots[i.Spec.Slot] = !at.After(t.now); at.After(t.now) {
				t.wakeAt(at)
			}
			return true
		})
	}
	return slots
}
