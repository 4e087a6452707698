// Package clock provides the time and timers, so that actors can run in virtual time,
// and coroutines, which run blocking code there. It owns no policy: the callers decide
// what happens when.
package clock

import "time"

// Clock provides the time and calls back later.
type Clock interface {
	Now() time.Time
	// After calls f once, d from now, on a goroutine of the clock. The returned function
	// cancels the call; it has no effect once f has been called.
	After(d time.Duration, f func()) (cancel func())
}

// Real is the machine's clock.
type Real struct{}

// Now returns the time as it is stored: in UTC, without its monotonic part.
func (Real) Now() time.Time { return time.Now().UTC().Round(0) }

// After uses a runtime timer.
func (Real) After(d time.Duration, f func()) func() {
	t := time.AfterFunc(d, f)
	return func() { t.Stop() }
}
