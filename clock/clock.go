// Package clock hands out the time and wake-ups, so that actors can run in
// virtual time, and coroutines, which run blocking code there. It owns no policy:
// what to do at which time is decided by who asks.
package clock

import "time"

// Clock tells the time and calls back later.
type Clock interface {
	Now() time.Time
	// After calls f once, d from now, on a goroutine of the clock's. The
	// returned function takes the call back; it is harmless when too late.
	After(d time.Duration, f func()) (cancel func())
}

// Real is the machine's clock.
type Real struct{}

// Now returns the time in UTC, without its monotonic part, as it is stored.
func (Real) Now() time.Time { return time.Now().UTC().Round(0) }

// After uses a runtime timer.
func (Real) After(d time.Duration, f func()) func() {
	t := time.AfterFunc(d, f)
	return func() { t.Stop() }
}
