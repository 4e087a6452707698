package mariposa

import (
	"testing"
	"time"
)

// A node is avoided for a time that grows with its losses within an hour, from its return
// on.
func TestANodeThatIsLostOftenIsAvoidedForAGrowingTime(t *testing.T) {
	t.Parallel()
	dawn := time.Date(2026, 3, 1, 6, 0, 0, 0, time.UTC)
	st := NodeStatus{State: NodeRunning, Since: dawn}
	at := dawn
	for i, want := range []time.Duration{0, 0, 2, 4, 8, 16, 30, 30, 30, 30, 30, 30} {
		at = at.Add(4 * time.Minute)
		st.Losses = AddLoss(st.Losses, at)
		at = at.Add(time.Minute)
		st.Since = at // it returns
		var until time.Time
		if want > 0 {
			until = at.Add(want * time.Minute)
		}
		if got := st.UnstableUntil(); !got.Equal(until) {
			t.Errorf("after loss %d, returned at %s: avoided until %s, want %s", i+1, at, got, until)
		}
		if len(st.Losses) > MaxLosses || st.RecentLosses() != min(i+1, MaxLosses) {
			t.Errorf("after loss %d: %d losses, %d recent", i+1, len(st.Losses), st.RecentLosses())
		}
	}
	st.Since = at.Add(2 * time.Hour) // after a reboot that was announced
	if got := st.UnstableUntil(); !got.IsZero() || st.RecentLosses() != 0 {
		t.Errorf("losses of more than an hour ago count: avoided until %s", got)
	}
}
