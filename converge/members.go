package converge

import (
	"maps"
	"slices"
	"time"

	"github.com/tidwall/btree"
)

// This file classifies and counts the instances of a service.

func (v *View) reclassify(s *service) {
	all := slices.Sorted(maps.Keys(s.members))
	for _, id := range all {
		v.remove(v.instances[id])
	}
	s.bound, s.unresolved = bindingDigest(s)
	s.fresh, s.misbound = [classes]int{}, 0 // both may have changed with the goal
	for _, id := range all {
		v.add(s, v.instances[id])
	}
}

func (v *View) add(s *service, i *Instance) {
	c := v.classify(s, i)
	s.members[i.ID] = c
	if s.byClass[c] == nil {
		s.byClass[c] = btree.NewBTreeGOptions(victimBefore, btree.Options{NoLocks: true, Degree: 16})
	}
	s.byClass[c].Set(i)
	if c.upToDate() && s.byStart == nil {
		s.byStart = btree.NewBTreeGOptions(youngerFirst, btree.Options{NoLocks: true, Degree: 16})
	}
	if c.upToDate() {
		s.byStart.Set(i)
	}
	v.countMember(s, i, c, 1)
}

func (v *View) remove(i *Instance) {
	s := v.services[i.Spec.ServiceName]
	c := s.members[i.ID]
	delete(s.members, i.ID)
	s.byClass[c].Delete(i)
	if c.upToDate() {
		s.byStart.Delete(i)
	}
	v.countMember(s, i, c, -1)
}

// countMember adds an instance to the counts of its service, or removes it.
func (v *View) countMember(s *service, i *Instance, c class, by int) {
	if s.isFresh(i) {
		s.fresh[c] += by
	}
	if by < 0 {
		v.countDisplaced(s, i, c, -1)
	}
	if c.holdsSlot() {
		s.occupy(i.Spec.Slot, c, int32(by))
	}
	if by > 0 {
		v.countDisplaced(s, i, c, 1)
	}
	switch {
	case c.starts() && by > 0:
		v.startingSet.Set(i)
	case c.starts():
		v.startingSet.Delete(i)
	}
	if c.lives() {
		before := s.numbers[i.Spec.Number]
		if addCount(s.numbers, i.Spec.Number, by); (before == 0) != (s.numbers[i.Spec.Number] == 0) {
			addCount(v.needed, i.Spec.Number, by)
		}
	}
	v.countReferences(s, i, c, by)
}

// isFresh reports whether an instance was created after the current rollout requested new
// ones.
func (s *service) isFresh(i *Instance) bool {
	return s.status != nil && !i.Spec.Created.Before(outdatedBefore(s.status))
}

// count returns the number of instances in a class.
func (s *service) count(c class) int {
	if s.byClass[c] == nil {
		return 0
	}
	return s.byClass[c].Len()
}

// each calls f for the instances of a class, in the order in which they are removed,
// until f returns false.
func (s *service) each(c class, f func(*Instance) bool) {
	if s.byClass[c] != nil {
		s.byClass[c].Scan(f)
	}
}

// victimBefore is the order of removal within a class: oldest version, then oldest
// instance, then id.
func victimBefore(a, b *Instance) bool {
	switch {
	case a.number != b.number:
		return a.number < b.number
	case a.created != b.created:
		return a.created < b.created
	}
	return a.ID < b.ID
}

func youngerFirst(a, b *Instance) bool {
	if a.since != b.since {
		return a.since > b.since
	}
	return a.ID < b.ID
}

// since returns when an instance entered its state. That was not before its creation,
// even if the clock of the server that its node reported to was behind.
func since(i *Instance) time.Time {
	if i.Status == nil || i.Status.Since.Before(i.Spec.Created) {
		return i.Spec.Created
	}
	return i.Status.Since
}
