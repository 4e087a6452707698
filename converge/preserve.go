package converge

import (
	"slices"
	"time"

	"mariposa"
)

const (
	// maxPreserved is the maximum number of ended instances of a service that are kept,
	// at most one per slot.
	maxPreserved = 3
	// preserveFor is how long they are kept.
	preserveFor = 24 * time.Hour
)

// preservePolicy returns which ended instances the service keeps.
func (t *turn) preservePolicy() string {
	if t.s.def == nil || t.st.Removed || t.view.goal == mariposa.GoalDeleted {
		return mariposa.PreserveNo
	}
	return t.s.def.Stop.PreserveStopped
}

// shouldPreserve reports whether an instance that must be removed is kept for a while for
// inspection.
func (t *turn) shouldPreserve(i *Instance) bool {
	switch c := t.s.members[i.ID]; {
	case c == failed && t.preservePolicy() != mariposa.PreserveNo && t.preservePolicy() != "":
		return slices.Contains(t.findPreserved(), i)
	case c.runs() && t.preservePolicy() == mariposa.PreserveAlways:
		t.stopping++
		return t.stopping <= maxPreserved
	}
	return false
}

// findPreserved returns the ended instances to keep: the newest of each slot, up to
// maxPreserved, for preserveFor. It includes failed ones that are not cleared yet.
func (t *turn) findPreserved() []*Instance {
	if t.preserved != nil {
		return t.preserved
	}
	t.preserved = make([]*Instance, 0, maxPreserved+1)
	for _, c := range []class{preserved, failed} {
		t.s.each(c, func(i *Instance) bool {
			if i.Status.State != mariposa.StateDestroyed && since(i).Add(preserveFor).After(t.now) {
				t.addPreserved(i)
			}
			return true
		})
	}
	return t.preserved
}

// addPreserved adds an instance to the preserved ones, youngest first, one per slot.
func (t *turn) addPreserved(i *Instance) {
	if same := slices.IndexFunc(t.preserved, func(k *Instance) bool { return k.Spec.Slot == i.Spec.Slot }); same >= 0 {
		if !youngerFirst(i, t.preserved[same]) {
			return
		}
		t.preserved = slices.Delete(t.preserved, same, same+1)
	}
	at := slices.IndexFunc(t.preserved, func(k *Instance) bool { return youngerFirst(i, k) })
	if at < 0 {
		at = len(t.preserved)
	}
	if t.preserved = slices.Insert(t.preserved, at, i); len(t.preserved) > maxPreserved {
		t.preserved = t.preserved[:maxPreserved]
	}
}

// clearPreserved releases the node resources of instances that have just ended, and
// removes those that were kept long enough or are too many. It does not change an
// instance on an unreachable node.
func (t *turn) clearPreserved() {
	if t.s.count(preserved) == 0 {
		return
	}
	keeps := t.preservePolicy()
	t.s.each(preserved, func(i *Instance) bool {
		switch {
		case keeps != mariposa.PreserveNo && keeps != "" && slices.Contains(t.findPreserved(), i):
			t.wakeAt(since(i).Add(preserveFor))
			if !i.Spec.Kept {
				t.step(Step{Action: Preserve, Instance: i.ID, Reason: &mariposa.Reason{Code: mariposa.ReasonKept}})
			}
		case t.view.nodes[i.Spec.Node].Unknown && t.view.goal != mariposa.GoalDeleted && !t.st.Removed:
		default:
			t.step(Step{Action: Remove, Instance: i.ID, Reason: t.whyCleared(i, keeps)})
		}
		return !t.isBulkSpent()
	})
}

// whyCleared returns why an ended instance is no longer kept.
func (t *turn) whyCleared(i *Instance, keeps string) *mariposa.Reason {
	switch {
	case keeps == mariposa.PreserveNo || keeps == "":
		return &mariposa.Reason{Code: mariposa.ReasonNotKept}
	case since(i).Add(preserveFor).After(t.now):
		return &mariposa.Reason{Code: mariposa.ReasonKeptNewer}
	}
	return &mariposa.Reason{Code: mariposa.ReasonKeptLong}
}
