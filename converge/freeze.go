package converge

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"mariposa"
)

// freeze lets a frozen service settle: what never served goes, what was told to
// go ends and is collected. Then nothing is changed any more, whatever happens;
// what would be done is only told.
func (t *turn) freeze() {
	f := *t.st.Frozen
	t.st.Frozen = &f
	unserved := 0
	if !f.Settled {
		for _, c := range []class{starting, staling} {
			t.s.each(c, func(i *Instance) bool {
				if neverServed(i) {
					unserved++
					t.remove(i, "the service is frozen before it has served", false)
				}
				return !t.full()
			})
		}
		f.Settled = unserved == 0
		t.st.Frozen = &f
	}
	t.st.Status, t.st.Reason = mariposa.StatusFrozen, t.afterThaw()
	t.left = max(t.steps, unserved+t.s.count(leaving)+t.s.count(gone))
}

// neverServed reports whether an instance has not run yet: one that is being
// started again in place has.
func neverServed(i *Instance) bool { return i.Status == nil || i.Status.Started.IsZero() }

// afterThaw says what would be done if the service were not frozen.
func (t *turn) afterThaw() string {
	var says []string
	say := func(n int, one, many string) {
		switch {
		case n == 1:
			says = append(says, "1 instance "+one)
		case n > 1:
			says = append(says, fmt.Sprintf("%d instances %s", n, many))
		}
	}
	if t.ending {
		say(t.wanted(), "runs; would go after thaw", "run; would go after thaw")
		say(t.s.count(leaving), "is stopping", "are stopping")
		return strings.Join(says, "; ")
	}
	lostOnes := t.s.count(lost)
	up := t.running() + t.s.count(starting) + t.s.count(staling)
	// Of what is missing, the failed ones are gone; the rest was never made.
	gone := min(t.s.count(failed), max(0, t.goal-up-lostOnes))
	say(gone, "is gone; would be replaced after thaw", "are gone; would be replaced after thaw")
	say(lostOnes, "is on a node that cannot be reached", "are on nodes that cannot be reached")
	say(t.goal-up-lostOnes-gone, "would be made after thaw", "would be made after thaw")
	say(up+lostOnes-t.goal, "would go after thaw", "would go after thaw")
	if r := t.st.Rollout; r != nil && r.Stopped == "" && !r.Held {
		say(t.s.count(stale)+t.s.count(staling), "would be replaced by the rollout after thaw", "would be replaced by the rollout after thaw")
	}
	say(t.s.count(leaving), "is stopping", "are stopping")
	says = append(says, t.wouldFollow()...)
	return strings.Join(says, "; ")
}

// wouldFollow says which services it would follow if it were not frozen.
func (t *turn) wouldFollow() (says []string) {
	if t.st.Bindings == nil {
		return nil
	}
	t.looked = true
	for _, on := range slices.Sorted(maps.Keys(t.view.asks(t.s))) {
		if b, ok := t.st.Bindings.Get(on); ok && toOne(b) && !t.stays(t.view.services[on], b) {
			says = append(says, "would follow "+on+" after thaw")
		}
	}
	return says
}
