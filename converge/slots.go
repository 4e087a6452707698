package converge

import "iter"

// occupancy is the number of instances in a slot, and how many of them are outdated and
// running.
type occupancy struct{ holders, outdated int32 }

// occupy records that an instance of a class takes or leaves a slot.
func (s *service) occupy(slot int, c class, by int32) {
	o := s.slots[slot]
	o.holders += by
	if c == outdatedRunning {
		o.outdated += by
	}
	if s.slots[slot] = o; o.holders == 0 {
		delete(s.slots, slot)
		s.free = max(1, min(s.free, slot))
	}
}

// freeSlots iterates over the free slots without end, lowest first. This is the order in
// which slots are filled.
func (s *service) freeSlots() iter.Seq[int] {
	return func(yield func(int) bool) {
		for s.slots[s.free].holders > 0 {
			s.free++
		}
		for slot := s.free; ; slot++ {
			if s.slots[slot].holders == 0 && !yield(slot) {
				return
			}
		}
	}
}

// WillFillAny reports whether the current goal fills an empty slot of a service.
func (v *View) WillFillAny(name string) bool {
	s := v.services[name]
	return s != nil && s.status != nil && !s.isEnding(v.goal) && s.status.Scale > len(s.slots)
}

// WillFill reports whether the current goal fills an empty slot of a service: it is among
// the first slots that the plan fills as soon as possible.
func (v *View) WillFill(name string, slot int) bool {
	s := v.services[name]
	if s == nil || s.status == nil || s.isEnding(v.goal) || s.slots[slot].holders > 0 {
		return false
	}
	missing := s.status.Scale - len(s.slots)
	dead := map[int]bool{} // slots of failed instances are filled first
	s.each(failed, func(i *Instance) bool {
		if s.slots[i.Spec.Slot].holders == 0 {
			dead[i.Spec.Slot] = true
		}
		return true
	})
	if dead[slot] {
		return missing > 0
	}
	missing -= len(dead)
	for free := range s.freeSlots() {
		if free > slot || missing <= 0 {
			break
		}
		if free == slot {
			return true
		}
		if !dead[free] {
			missing--
		}
	}
	return false
}
