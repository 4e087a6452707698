// Package clocktest provides a clock that only advances when a test advances it. It owns
// virtual time for the tests of actors; the tests decide what happens when.
package clocktest

import (
	"slices"
	"sync"
	"time"

	"mariposa/clock"
)

var _ clock.Clock = (*Virtual)(nil)

// Virtual is a clock that a test controls. Code that waits for it runs as a coroutine.
type Virtual struct {
	clock.Coroutines

	mu     sync.Mutex
	now    time.Time
	setBy  time.Duration
	timers []*timer
	asked  int
}

type timer struct {
	at   time.Time
	do   func()
	dead bool
}

// New returns a clock that starts at the beginning of November 2026.
func New() *Virtual { return &Virtual{now: time.Date(2026, 11, 1, 0, 0, 0, 0, time.UTC)} }

// Now returns the virtual time and counts the call.
func (c *Virtual) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.asked++
	return c.now.Add(c.setBy)
}

// Set sets the clock, as an operator of the machine may. Timers are not affected.
func (c *Virtual) Set(by time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.setBy += by
}

// Asked returns how often Now was called.
func (c *Virtual) Asked() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.asked
}

// After adds a timer, which fires when Next reaches it.
func (c *Virtual) After(d time.Duration, f func()) func() {
	c.mu.Lock()
	defer c.mu.Unlock()
	t := &timer{at: c.now.Add(max(d, 0)), do: f}
	c.timers = append(c.timers, t)
	return func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		t.dead = true
	}
}

// Next advances to the first timer due by then and returns its function; nil if none is
// left, and then the time is until.
func (c *Virtual) Next(until time.Time) func() {
	c.mu.Lock()
	defer c.mu.Unlock()
	until = until.Add(-c.setBy)
	c.timers = slices.DeleteFunc(c.timers, func(t *timer) bool { return t.dead })
	slices.SortStableFunc(c.timers, func(a, b *timer) int { return a.at.Compare(b.at) })
	if len(c.timers) == 0 || c.timers[0].at.After(until) {
		c.now = until
		return nil
	}
	t := c.timers[0]
	c.timers = c.timers[1:]
	if t.at.After(c.now) {
		c.now = t.at
	}
	return t.do
}

// Waiting returns the number of timers, canceled ones included.
func (c *Virtual) Waiting() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.timers)
}

// Forget drops all timers and abandons suspended coroutines, as a crash does.
func (c *Virtual) Forget() {
	c.Abandon()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.timers = nil
}

// Pass advances the time and runs everything due meanwhile.
func (c *Virtual) Pass(d time.Duration) {
	until := c.Now().Add(d)
	for do := c.Next(until); do != nil; do = c.Next(until) {
		do()
	}
}
