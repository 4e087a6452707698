package converge

import (
	"time"

	"mariposa"
)

// endService removes all instances of a service that ends, once no live instance depends
// on it or refers to it.
func (t *turn) endService() {
	if t.s.countWanted() == 0 {
		return
	}
	alone := t.st.Stopped && !t.st.Removed && t.view.goal == mariposa.GoalStarted
	if by, n := t.findDependent(alone); n > 0 {
		t.wait(time.Time{}, func() *mariposa.Reason {
			return &mariposa.Reason{Code: mariposa.ReasonGoesAfter, Subject: by, Count: n, Frozen: t.otherFacts(by).isFrozen()}
		})
		return
	}
	reason := &mariposa.Reason{Code: t.whyEnds(alone)}
	for _, c := range wantedClasses {
		t.s.each(c, func(i *Instance) bool {
			by := t.findReferrerAmong(i, func(s *service) bool { return !alone || s.stoppedAlone() })
			if by != "" && (c.runs() || c == unhealthy) {
				t.waitForOne(time.Time{}, func() *mariposa.Reason { return t.whyStays(i, by) })
			} else {
				t.remove(i, reason, false)
			}
			return !t.isBulkSpent()
		})
	}
}

// whyEnds returns the reason why a service ends.
func (t *turn) whyEnds(alone bool) mariposa.ReasonCode {
	switch {
	case alone:
		return mariposa.ReasonServiceStopped
	case t.view.goal == mariposa.GoalDeleted:
		return mariposa.ReasonProjectDeleted
	case t.st.Removed:
		return mariposa.ReasonServiceRemoved
	}
	return mariposa.ReasonProjectStopped
}

// explainStranded reports the removals that can finish only when a node returns.
func (t *turn) explainStranded() {
	if n := t.s.count(leavingLost); n > 0 {
		i, _ := t.s.byClass[leavingLost].Min()
		t.stranded = t.unreachableReason(mariposa.ReasonStranded, i).AndMore(n - 1)
		t.wait(time.Time{}, func() *mariposa.Reason { return t.stranded })
	}
}
