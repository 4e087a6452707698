package clock_test

import (
	"testing"
	"time"

	"pgregory.net/rapid"

	"mariposa/clock"
	"mariposa/clock/clocktest"
)

// A machine's clock is wrong by any amount and drifts. After each observation of the
// store's clock, the shared clock is right within the time that the observation took, and
// it does not go back for a small correction.
func TestTheSharedClockFollowsTheStore(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		machine := clocktest.New()
		c := clock.NewShared(machine)
		ahead := time.Duration(rapid.Int64Range(-int64(48*time.Hour), int64(48*time.Hour)).Draw(t, "store is ahead by"))
		real := func() time.Time { return machine.Now().Add(ahead) }
		within := time.Duration(0) // how wrong the clock may be
		synced := false
		for range rapid.IntRange(1, 20).Draw(t, "observations") {
			there := time.Duration(rapid.Int64Range(0, int64(5*time.Second)).Draw(t, "there"))
			back := time.Duration(rapid.Int64Range(0, int64(5*time.Second)).Draw(t, "back"))
			drift := time.Duration(rapid.Int64Range(-int64(10*time.Millisecond), int64(10*time.Millisecond)).Draw(t, "drift"))
			before := c.Now()
			machine.Pass(there)
			shown := real()
			machine.Pass(back)
			last := c.Now()
			c.Observe(before, shown, last)
			stand := min(within, time.Second) // after a correction, it may stand still for as long as it was ahead
			if !synced {
				within = there + back
			}
			within = min(within, there+back)
			now := c.Now()
			if off := now.Sub(real()).Abs(); off > within+stand {
				t.Fatalf("the clock is wrong by %s after an observation that took %s", off, there+back)
			}
			if back := last.Sub(now); synced && back > 0 && back <= time.Second {
				t.Fatalf("the clock went back from %s to %s", last, now)
			}
			synced = true
			ahead += drift
			within += drift.Abs()
			machine.Pass(time.Second)
		}
	})
}

// A store's clock that is set back by an hour is followed at once; standing still for an
// hour would be worse.
func TestTheSharedClockGoesBackOnlyALongWay(t *testing.T) {
	machine := clocktest.New()
	c := clock.NewShared(machine)
	began := c.Now()
	c.Observe(began, began, began)
	if now := c.Now(); !now.Equal(began) {
		t.Fatalf("observed %s, and it shows %s", began, now)
	}
	half := began.Add(-500 * time.Millisecond)
	c.Observe(began, half, began)
	if now := c.Now(); !now.Equal(began) {
		t.Errorf("half a second back: %s, not %s", now, began)
	}
	machine.Pass(time.Second)
	if now, want := c.Now(), began.Add(500*time.Millisecond); !now.Equal(want) {
		t.Errorf("a second later: %s, not %s", now, want)
	}
	now := c.Now()
	c.Observe(now, now.Add(-time.Hour), now)
	if got, want := c.Now(), now.Add(-time.Hour); !got.Equal(want) {
		t.Errorf("an hour back: %s, not %s", got, want)
	}
}

// The steady clock shows the machine's time and does not depend on later changes of it.
func TestTheSteadyClockShowsTheTime(t *testing.T) {
	c := clock.NewSteady()
	if off := time.Since(c.Now()).Abs(); off > time.Minute {
		t.Errorf("it is wrong by %s", off)
	}
	if first := c.Now(); c.Now().Before(first) || first.Location() != time.UTC {
		t.Errorf("it shows %s after %s", c.Now(), first)
	}
}
