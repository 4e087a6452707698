package clock

import (
	"cmp"
	"context"
	"errors"
	"iter"
	"maps"
	"slices"
	"time"
)

// Sleep waits until d has passed or ctx ends. On a clock that embeds Coroutines it
// suspends the calling coroutine; there, an ended context is noticed only after d has
// passed.
func Sleep(ctx context.Context, c Clock, d time.Duration) error {
	if v, ok := c.(interface {
		sleep(c Clock, d time.Duration) error
	}); ok {
		return cmp.Or(v.sleep(c, d), ctx.Err())
	}
	passed := make(chan struct{})
	defer c.After(d, func() { close(passed) })()
	select {
	case <-passed:
		return ctx.Err()
	case <-ctx.Done():
		return ctx.Err()
	}
}

// ErrAbandoned is returned to a suspended coroutine whose owner has crashed.
var ErrAbandoned = errors.New("abandoned in virtual time")

// Coroutines run blocking code in virtual time: one at a time, and never concurrently
// with their caller, so that the same calls give the same history. The zero value is
// ready to use; it belongs to one goroutine.
type Coroutines struct {
	current   *coroutine
	suspended map[*coroutine]int     // each with the sequence number of its suspension
	asleep    map[time.Time][]func() // wakes the sleepers, by their wake-up time
	count     int
}

type coroutine struct {
	next  func() (struct{}, bool)
	yield func(struct{}) bool
	err   error // the result of its Suspend
}

// Go runs f until it returns or is suspended.
func (c *Coroutines) Go(f func()) {
	r := &coroutine{}
	r.next, _ = iter.Pull(func(yield func(struct{}) bool) {
		r.yield = yield
		f()
	})
	c.run(r)
}

// Suspend suspends the calling coroutine until wake is called from elsewhere; wake
// returns when the coroutine has ended or is suspended again.
func (c *Coroutines) Suspend(arm func(wake func())) error {
	r := c.current
	if r == nil {
		panic("clock: Suspend was called outside a coroutine")
	}
	if c.suspended == nil {
		c.suspended = map[*coroutine]int{}
	}
	c.count++
	at := c.count
	c.suspended[r] = at
	arm(func() {
		if c.suspended[r] == at { // else it was resumed otherwise
			c.run(r)
		}
	})
	r.yield(struct{}{})
	return r.err
}

// sleep suspends a coroutine for d. Sleepers with the same wake-up time wake together.
func (c *Coroutines) sleep(on Clock, d time.Duration) error {
	return c.Suspend(func(wake func()) {
		at := on.Now().Add(d)
		if c.asleep == nil {
			c.asleep = map[time.Time][]func(){}
		}
		if len(c.asleep[at]) == 0 {
			on.After(d, func() {
				all := c.asleep[at]
				delete(c.asleep, at)
				for _, wake := range all {
					wake()
				}
			})
		}
		c.asleep[at] = append(c.asleep[at], wake)
	})
}

// Abandon ends every suspended coroutine with ErrAbandoned, as a crash does.
func (c *Coroutines) Abandon() {
	for len(c.suspended) > 0 {
		all := slices.SortedFunc(maps.Keys(c.suspended), func(a, b *coroutine) int { return c.suspended[a] - c.suspended[b] })
		for _, r := range all {
			r.err = ErrAbandoned
			c.run(r)
		}
	}
	clear(c.asleep)
}

func (c *Coroutines) run(r *coroutine) {
	delete(c.suspended, r)
	was := c.current
	c.current = r
	defer func() { c.current = was }()
	r.next()
}
