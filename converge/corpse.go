package converge

import (
	"slices"
	"time"

	"mariposa"
)

const (
	// corpsesKept is how many ended instances of a service are kept, the newest
	// of each slot.
	corpsesKept = 3
	// corpseAge is how long they are.
	corpseAge = 24 * time.Hour
)

// preservePolicy says whose remains the service keeps.
func (t *turn) preservePolicy() string {
	if t.s.def == nil || t.st.Removed || t.view.goal == mariposa.GoalDeleted {
		return mariposa.PreserveNo
	}
	return t.s.def.Stop.PreserveStopped
}

// preserves reports whether an instance that is to go is kept for a while, for
// people to look at.
func (t *turn) preserves(i *Instance) bool {
	switch c := t.s.members[i.ID]; {
	case c == failed && t.preservePolicy() != mariposa.PreserveNo && t.preservePolicy() != "":
		return slices.Contains(t.keepers(), i)
	case c.runs() && t.preservePolicy() == mariposa.PreserveAlways:
		t.halting++
		return t.halting <= corpsesKept
	}
	return false
}

// keepers are the ended instances that are kept: the newest of each slot, so
// many in all, for so long. Those that failed are among them before they are
// cleared away.
func (t *turn) keepers() []*Instance {
	if t.kept != nil {
		return t.kept
	}
	t.kept = make([]*Instance, 0, corpsesKept+1)
	for _, c := range []class{corpse, failed} {
		t.s.each(c, func(i *Instance) bool {
			if i.Status.State != mariposa.StateDestroyed && since(i).Add(corpseAge).After(t.now) {
				t.keep(i)
			}
			return true
		})
	}
	return t.kept
}

// keep puts an instance among the newest, youngest first, one for each slot.
func (t *turn) keep(i *Instance) {
	if same := slices.IndexFunc(t.kept, func(k *Instance) bool { return k.Spec.Slot == i.Spec.Slot }); same >= 0 {
		if !youngerFirst(i, t.kept[same]) {
			return
		}
		t.kept = slices.Delete(t.kept, same, same+1)
	}
	at := slices.IndexFunc(t.kept, func(k *Instance) bool { return youngerFirst(i, k) })
	if at < 0 {
		at = len(t.kept)
	}
	if t.kept = slices.Insert(t.kept, at, i); len(t.kept) > corpsesKept {
		t.kept = t.kept[:corpsesKept]
	}
}

// clearCorpses gives back what those take of their nodes that have just ended,
// and removes those that have been kept for long enough, or are too many. One on
// an absent node is nobody's trouble.
func (t *turn) clearCorpses() {
	if t.s.count(corpse) == 0 {
		return
	}
	keeps := t.preservePolicy()
	t.s.each(corpse, func(i *Instance) bool {
		switch {
		case keeps != mariposa.PreserveNo && keeps != "" && slices.Contains(t.keepers(), i):
			t.wakeAt(since(i).Add(corpseAge))
			if !i.Spec.Kept {
				t.step(Step{Action: Keep, Instance: i.ID, Reason: &mariposa.Reason{Code: mariposa.ReasonKept}})
			}
		case t.view.nodes[i.Spec.Node].Unknown && t.view.goal != mariposa.GoalDeleted && !t.st.Removed:
		default:
			t.step(Step{Action: Remove, Instance: i.ID, Reason: t.whyCleared(i, keeps)})
		}
		return !t.full()
	})
}

// whyCleared says why what is left of an ended instance is not kept any longer.
func (t *turn) whyCleared(i *Instance, keeps string) *mariposa.Reason {
	switch {
	case keeps == mariposa.PreserveNo || keeps == "":
		return &mariposa.Reason{Code: mariposa.ReasonNotKept}
	case since(i).Add(corpseAge).After(t.now):
		return &mariposa.Reason{Code: mariposa.ReasonKeptNewer}
	}
	return &mariposa.Reason{Code: mariposa.ReasonKeptLong}
}
