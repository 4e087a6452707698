package converge

import "time"

// A node that is lost again and again must not make its slots bounce. Each loss starts
// replacements elsewhere, and each return would remove those that are not up yet. So the
// instances of an unstable node give way to replacements that have been started, as those
// of a node that is being drained do: they go once the replacement has been up for
// min_healthy. Right after its return, the node gets no replacements of lost instances
// (Step.Stable).

// isUnstable reports whether an instance is on a node that was lost several times
// recently, and perhaps is again. An instance with volumes is bound to its node.
func (t *turn) isUnstable(i *Instance) bool {
	return t.view.nodes[i.Spec.Node].isUnstable(t.now) && len(i.Spec.Mounts) == 0
}

func (n Node) isUnstable(now time.Time) bool {
	return n.UnstableUntil.After(now) || n.Unknown && !n.UnstableUntil.IsZero()
}

// givesWay reports whether an instance goes once another one in its slot is up. If one of
// them is displaced, that one goes: the drain has no better place than the unstable node.
func (t *turn) givesWay(i *Instance) bool {
	return t.view.isDisplaced(i) || t.isUnstable(i) && !t.leaving[i.Spec.Slot]
}

// countGivingWay returns the number of instances that give way, by slot, for slots with
// several instances.
func (t *turn) countGivingWay() map[int]int {
	slots := map[int]int{}
	t.leaving = map[int]bool{}
	for _, i := range t.s.displaced {
		slots[i.Spec.Slot]++
		t.leaving[i.Spec.Slot] = true
	}
	for node, n := range t.view.nodes {
		if !n.isUnstable(t.now) {
			continue
		}
		for id := range t.view.byNode[node] {
			i := t.view.instances[id]
			c, mine := t.s.members[id]
			if !mine || !c.holdsSlot() || !t.givesWay(i) || t.view.isDisplaced(i) || t.isGivenUp(i) || t.slotHolders(i.Spec.Slot) < 2 {
				continue
			}
			slots[i.Spec.Slot]++
			if !n.Unknown {
				t.wakeAt(n.UnstableUntil)
			}
		}
	}
	return slots
}
