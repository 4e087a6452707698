// Package clocktest is a clock that stands still until a test moves it. It owns
// virtual time for the tests of actors; what happens when is the test's affair.
package clocktest

import (
	"slices"
	"sync"
	"time"

	"mariposa/clock"
)

var _ clock.Clock = (*Virtual)(nil)

// Virtual is time that a test holds in its hands. Code that waits for it runs as a
// coroutine.
type Virtual struct {
	clock.Coroutines

	mu     sync.Mutex
	now    time.Time
	timers []*timer
	asked  int
}

type timer struct {
	at   time.Time
	do   func()
	dead bool
}

// New makes a clock that shows the beginning of November 2026.
func New() *Virtual { return &Virtual{now: time.Date(2026, 11, 1, 0, 0, 0, 0, time.UTC)} }

// Now shows the time.
func (c *Virtual) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.asked++
	return c.now
}

// Asked says how often the time was asked for.
func (c *Virtual) Asked() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.asked
}

// After notes a wake-up, which comes when Next gets there.
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

// Next moves to the next wake-up due by then and returns what it does; nil once
// there is none left, and then it is that time.
func (c *Virtual) Next(until time.Time) func() {
	c.mu.Lock()
	defer c.mu.Unlock()
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

// Waiting says how many wake-ups are noted, those taken back included.
func (c *Virtual) Waiting() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.timers)
}

// Forget drops every wake-up and ends what waits, as a crash does.
func (c *Virtual) Forget() {
	c.Abandon()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.timers = nil
}

// Pass lets time go by and does everything that is due meanwhile.
func (c *Virtual) Pass(d time.Duration) {
	until := c.Now().Add(d)
	for do := c.Next(until); do != nil; do = c.Next(until) {
		do()
	}
}
