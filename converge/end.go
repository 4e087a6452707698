package converge

import (
	"time"

	"mariposa"
)

// end removes every instance of a service that is to be no more, once nothing
// that lives depends on it or refers to it.
func (t *turn) end() {
	if t.s.wanted() == 0 {
		return
	}
	alone := t.st.Stopped && !t.st.Removed && t.view.goal == mariposa.GoalStarted
	if by, n := t.dependent(alone); n > 0 {
		t.wait(time.Time{}, func() *mariposa.Reason {
			return &mariposa.Reason{Code: mariposa.ReasonGoesAfter, Subject: by, Count: n, Frozen: t.other(by).frozen()}
		})
		return
	}
	reason := &mariposa.Reason{Code: t.whyEnds(alone)}
	for _, c := range wantedClasses {
		t.s.each(c, func(i *Instance) bool {
			by := t.referrerAmong(i, func(s *service) bool { return !alone || s.stoppedAlone() })
			if by != "" && c.runs() {
				t.wait(time.Time{}, func() *mariposa.Reason { return t.staysFor(i, by) })
			} else {
				t.remove(i, reason, false)
			}
			return !t.full()
		})
	}
}

// whyEnds says why a service is to be no more.
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

// explainStranded says what only the return of a node can finish.
func (t *turn) explainStranded() {
	if t.s.count(stranded) > 0 {
		i, _ := t.s.byClass[stranded].Min()
		t.wait(time.Time{}, func() *mariposa.Reason { return t.away(mariposa.ReasonStranded, i) })
	}
}
