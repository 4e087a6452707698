package converge

import (
	"maps"
	"slices"

	"mariposa"
)

// settleFrozen lets a frozen service settle: instances that never served are removed, and
// those that are being removed end and are collected. After that nothing changes,
// whatever happens. The status only says what would be done.
func (t *turn) settleFrozen() {
	t.st.Yields = nil // no other service has to follow
	f := *t.st.Frozen
	t.st.Frozen = &f
	unserved := 0
	if !f.Settled {
		for _, c := range []class{starting, outdatedStarting} {
			t.s.each(c, func(i *Instance) bool {
				if neverServed(i) {
					unserved++
					t.remove(i, &mariposa.Reason{Code: mariposa.ReasonFrozenUnserved}, false)
				}
				return !t.isBulkSpent()
			})
		}
		f.Settled = unserved == 0
		t.st.Frozen = &f
	}
	t.st.Status, t.st.Reason = mariposa.StatusFrozen, t.reasonAfterThaw()
	t.left = max(t.steps, unserved+t.s.count(leaving)+t.s.count(gone))
}

// neverServed reports whether an instance has never run. An instance that is being
// restarted in place has run.
func neverServed(i *Instance) bool { return i.Status == nil || i.Status.Started.IsZero() }

// reasonAfterThaw returns what would be done if the service were not frozen.
func (t *turn) reasonAfterThaw() *mariposa.Reason {
	r := &mariposa.Reason{Code: mariposa.ReasonFrozen, Tally: map[string]int{}}
	tally := func(what string, n int) {
		if n > 0 {
			r.Tally[what] = n
		}
	}
	tally(mariposa.TallyStopping, t.s.count(leaving))
	if t.ending {
		tally(mariposa.TallyRunning, t.s.countWanted())
	} else {
		up := t.countRunning() + t.starting + t.outdatedStarting
		// Of the missing instances, the failed ones have ended; the others were never
		// created.
		sick := t.s.count(unhealthy)
		gone := min(t.failed, max(0, t.goal-up-t.lost-sick))
		tally(mariposa.TallyFailed, gone)
		tally(mariposa.TallySick, sick)
		tally(mariposa.TallyUnknown, t.lost)
		tally(mariposa.TallyMissing, t.goal-up-t.lost-gone-sick)
		tally(mariposa.TallySurplus, up+t.lost+sick-t.goal)
		if ro := t.st.Rollout; ro != nil && ro.FailureReason == nil && !ro.Held {
			tally(mariposa.TallyOutdated, t.outdated+t.outdatedStarting)
		}
		r.Keys = t.wouldFollow()
	}
	return r
}

// wouldFollow lists the services that it would follow if it were not frozen.
func (t *turn) wouldFollow() (names []string) {
	if t.st.Bindings == nil {
		return nil
	}
	for _, on := range slices.Sorted(maps.Keys(t.view.referencesOf(t.s))) {
		if b, ok := t.st.Bindings.Get(on); ok && bindsOneInstance(b) && t.attachmentOf(t.otherFacts(on), b) != attached {
			names = append(names, on)
		}
	}
	return names
}
