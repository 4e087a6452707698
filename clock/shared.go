package clock

import (
	"sync"
	"time"
)

// Shared is a clock that follows the clock of the store. Machines' clocks differ and are
// set; replicas that compare each other's times must agree on the time.
type Shared struct {
	base Clock // its time may be wrong, but must not jump

	mu     sync.Mutex
	synced bool
	offset time.Duration // from the base to the store's clock
	floor  time.Time     // the newest time that was returned
}

// maxStand is how long the time stands still at most after a correction. After a larger
// correction it goes back.
const maxStand = time.Second

// NewShared returns a clock that shows the time of base until the first observation.
func NewShared(base Clock) *Shared { return &Shared{base: base} }

// Now returns the time of the store's clock.
func (s *Shared) Now() time.Time {
	now := s.base.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	now = now.Add(s.offset)
	if late := s.floor.Sub(now); late > 0 && late <= maxStand {
		return s.floor
	}
	s.floor = now
	return now
}

// After calls f once, d from now.
func (s *Shared) After(d time.Duration, f func()) func() { return s.base.After(d, f) }

// Observe corrects the clock. The store's clock showed a time at some moment between two
// times of Now. An observation that does not contradict the clock changes nothing: it may
// have taken long.
func (s *Shared) Observe(before, shown, after time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	least, most := shown.Sub(after), shown.Sub(before) // the correction is between these
	switch {
	case !s.synced:
		s.offset += least + (most-least)/2
		s.floor = time.Time{} // times before the first observation mean nothing
	case least > 0:
		s.offset += least
	case most < 0:
		s.offset += most
	}
	s.synced = true
}

// Steady is the machine's clock without its jumps: it shows the time at which it was
// created and what has passed since then.
type Steady struct {
	Real
	began time.Time // with its monotonic part
}

// NewSteady returns a steady clock.
func NewSteady() *Steady { return &Steady{began: time.Now()} }

// Now returns the time as it is stored.
func (s *Steady) Now() time.Time { return s.began.Add(time.Since(s.began)).UTC().Round(0) }
