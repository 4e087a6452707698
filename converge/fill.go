package converge

import (
	"fmt"
	"slices"
	"time"

	"mariposa"
)

// fill refills the slots of what failed or was lost, then opens new slots,
// until as many slots are held as the goal says.
func (t *turn) fill() {
	missing := t.missing()
	dead := t.dead(missing)
	if missing <= 0 || !t.mayCreate() {
		return
	}
	for _, i := range dead {
		number, can := t.refillAt(i)
		if missing--; !can {
			continue
		}
		if !t.create(i.Spec.Slot, number, fmt.Sprintf("replaces %s (%s)", i.Spec.Name, how(i)), true) {
			return
		}
		t.remove(i, how(i), true)
	}
	for _, i := range t.given {
		if missing == 0 {
			return
		}
		if t.holders(i.Spec.Slot) > 0 || t.taken[i.Spec.Slot] {
			continue // refilled before
		}
		node := t.view.nodes[i.Spec.Node]
		number, can := t.refillAt(i)
		if missing--; !can {
			continue
		}
		if !t.create(i.Spec.Slot, number, fmt.Sprintf("replaces %s, whose node %s cannot be reached since %s", i.Spec.Name, node.Name, stamp(node.Since)), true) {
			return
		}
	}
	if t.needs == "" {
		t.openSlots(missing)
	}
}

// missing is how many slots are to be filled. Where two instances hold the same
// slot, a slot may be missing though there are enough instances: it is filled
// beside them up to a batch over the goal, or, where the order is stop-first,
// once one of the two has gone.
func (t *turn) missing() int {
	most := t.goal + t.batch
	if t.s.def.Update.StopFirst {
		most = t.goal
	}
	return min(t.goal-t.slotsHeld(), most-t.counted())
}

// dead finds the failed instances whose slots are to be refilled, at most n,
// and removes the others: their place is taken, or nobody needs it.
func (t *turn) dead(n int) []*Instance {
	if t.s.count(failed) == 0 {
		return nil
	}
	var dead []*Instance
	bySlot := map[int]int{} // slot -> failed ones in it
	t.s.each(failed, func(i *Instance) bool { bySlot[i.Spec.Slot]++; return true })
	t.s.each(failed, func(i *Instance) bool {
		slot := i.Spec.Slot
		bySlot[slot]--
		if t.holders(slot) > 0 || bySlot[slot] > 0 {
			t.remove(i, "its place is taken", false)
		} else {
			dead = append(dead, i)
		}
		return true
	})
	for len(dead) > max(0, n) {
		t.remove(dead[0], "its place is taken", false)
		dead = dead[1:]
	}
	return dead
}

func (t *turn) openSlots(missing int) {
	busy := t.stillLeft()
	slot := t.s.free
	for ; t.s.slots[slot] > 0; slot++ {
		t.s.free = slot + 1
	}
	reason := t.scaled()
	for ; missing > 0; slot++ {
		if t.s.slots[slot] > 0 || t.taken[slot] {
			continue
		}
		if busy[slot] {
			missing--
			t.wait(time.Time{}, func() string { return fmt.Sprintf("slot %s.%d is still being left", t.s.name, slot) })
			continue
		}
		if !t.create(slot, t.openAt(), reason, false) {
			return
		}
		missing--
	}
}

// stillLeft finds the slots that, where the order is stop-first, must be left
// before they are filled again. An absent node is ridden out first.
func (t *turn) stillLeft() map[int]bool {
	if !t.s.def.Update.StopFirst {
		return nil
	}
	busy := map[int]bool{}
	t.s.each(leaving, func(i *Instance) bool { busy[i.Spec.Slot] = true; return true })
	t.s.each(stranded, func(i *Instance) bool {
		until, never := t.rideOut(i)
		busy[i.Spec.Slot] = never || until.After(t.now)
		if !never && busy[i.Spec.Slot] {
			t.wakeAt(until)
		}
		return true
	})
	return busy
}

// refillAt is the version at which the slot of a dead instance is refilled: its
// own while the rollout does not go on or is about so many alone, or where
// nothing can be made of the one in force; that one otherwise. It reports
// whether anything can be made of it.
func (t *turn) refillAt(i *Instance) (int, bool) {
	own := t.view.Definition(i.Spec.Number, t.s.name)
	limited := t.st.Rollout != nil && t.st.Rollout.Limit > 0
	current := !t.view.outdated(t.s, i) && i.Spec.Live == t.s.def.Live
	if own == nil || t.needs == "" && (current || !t.asleep() && !limited) {
		return t.st.Number, t.needs == ""
	}
	return i.Spec.Number, len(own.Needs) == 0
}

// openAt is the version at which a new slot is filled: not one whose rollout
// does not go on, as long as there is another.
func (t *turn) openAt() int {
	if r := t.st.Rollout; r != nil && t.asleep() {
		if d := t.view.Definition(r.From, t.s.name); d != nil && len(d.Needs) == 0 {
			return r.From
		}
	}
	return t.st.Number
}

// create adds an instance unless too many are on their way up already.
func (t *turn) create(slot, number int, reason string, repair bool) bool {
	t.asked = true
	if !repair && t.full() {
		return false
	}
	s, ok := t.boundStep(number)
	if !ok {
		return false
	}
	if t.room <= 0 {
		t.wait(time.Time{}, func() string { return "as many instances are starting as may at once" })
		return false
	}
	t.room--
	if t.taken == nil {
		t.taken = map[int]bool{}
	}
	t.taken[slot] = true
	if number == t.st.Number {
		t.allow--
	}
	s.Slot, s.Number, s.Reason, s.Repair = slot, number, reason, repair
	t.step(s)
	return true
}

// mayCreate reports whether new instances may be made now: not while backing
// off, and not before everything the service depends on serves.
func (t *turn) mayCreate() bool {
	if b := t.st.Backoff; b != nil && b.Until.After(t.now) {
		t.wakeAt(b.Until)
		t.backing = true
		return false
	}
	if t.stillborn {
		t.wait(t.now.Add(time.Millisecond), func() string { return "what was just made failed at once: " + t.lastFailure() })
		return false
	}
	if why := t.waitsFor(); why != "" {
		t.wait(time.Time{}, func() string { return why })
		t.barred = slices.ContainsFunc(t.s.def.DependsOn, t.view.atStandstill)
		return false
	}
	if t.unbound != "" {
		t.wait(time.Time{}, func() string { return t.unbound })
		t.barred = slices.ContainsFunc(t.s.def.Refs, func(r mariposa.Ref) bool { return t.view.scaledAway(r.Service) })
		return false
	}
	return true
}

// atStandstill reports whether a person keeps a service from serving.
func (v *View) atStandstill(name string) bool {
	s := v.services[name]
	return s != nil && s.status != nil && (s.status.Stopped || s.status.Frozen != nil)
}

// waitsFor says which dependency does not serve yet; empty when all do.
func (t *turn) waitsFor() string {
	t.looked = true
	for _, name := range t.s.def.DependsOn {
		if why := t.view.unready(name, t.running() > 0); why != "" {
			return "waits for " + name + ": " + why
		}
	}
	return ""
}

// unready says why a service does not serve its dependents yet; empty when it
// does. For dependents that already serve, one instance is enough: a repair
// should not wait for a repair.
func (v *View) unready(name string, degraded bool) string {
	s := v.services[name]
	if s == nil || s.status == nil || s.def == nil {
		return "it is not there"
	}
	if s.ending(v.goal) {
		return "it is stopped"
	}
	frozen := ""
	if s.frozen() {
		frozen = ", and it is frozen"
	}
	up := s.count(serving) + s.count(amend) + s.count(updating) + s.count(stale)
	want := s.status.Scale
	if degraded {
		want = min(want, 1)
	}
	if up < want {
		return fmt.Sprintf("%d of %d running", up, s.status.Scale) + frozen + s.trouble()
	}
	return ""
}

// trouble says why a service does not get on by itself, for those that wait for
// it; empty while it does.
func (s *service) trouble() string {
	switch r := s.status.Rollout; {
	case r != nil && r.Stopped != "":
		return "; " + r.Stopped
	case len(s.def.Needs) > 0:
		return "; it " + wanting(s.def)
	case s.status.Backoff != nil && s.status.Backoff.Failures > 1:
		return "; " + s.lastFailure()
	case s.status.Status == mariposa.StatusBlocked && s.status.Reason != "":
		return "; " + s.status.Reason
	}
	return ""
}
