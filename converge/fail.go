package converge

import (
	"hash/fnv"
	"strconv"
	"time"

	"mariposa"
)

// countFailures records the failures since the last plan. A single failure is repaired
// immediately. Repeated failures delay the next attempt, twice as long each time. A
// failure is repeated if it affects an instance that was created after the first failure.
// Thus an occasional failure among a thousand instances does not delay the others.
func (t *turn) countFailures() {
	b := afterJump(t.st.Backoff, t.now)
	seen := t.now.Add(-backoffForgetAfter) // older failures are forgotten
	if b != nil && b.Last.After(seen) {
		seen = b.Last
	}
	if b != nil && !healedAt(b).After(t.now) {
		b, t.st.Backoff = nil, nil
	}
	fresh := t.newFailures(b, seen)
	switch {
	case t.ending:
	case fresh.any:
		b = t.nextBackoff(b, fresh)
		if r := t.st.Rollout; r != nil && fresh.atTarget {
			c := *r
			c.Failures++
			t.st.Rollout = &c
		}
	case fresh.atOnce:
		c := *b
		b = &c
	}
	if soon := t.now.Add(time.Millisecond); fresh.atOnce && !t.ending && b.Until.Before(soon) {
		b.Until = soon // failures are distinguished by their time, so the next attempt must be later
	}
	if t.st.Backoff = b; b != nil {
		t.wakeAt(healedAt(b))
	}
}

// afterJump returns a back-off whose last failure is not in the future. After the clock
// was set back, a service must not wait longer than it was meant to.
func afterJump(b *mariposa.Backoff, now time.Time) *mariposa.Backoff {
	if b == nil || !b.Last.After(now.Add(maxSkew)) {
		return b
	}
	c, by := *b, now.Sub(b.Last)
	c.First, c.Last, c.Until = c.First.Add(by), now, c.Until.Add(by)
	return &c
}

// failures summarizes the failures since the last plan.
type failures struct {
	any      bool
	last     time.Time // when the last of them happened
	atTarget bool      // one affected an instance that is up to date
	repeated bool      // one affected an instance created after the first failure
	atOnce   bool      // one happened at the same time as the creation of its instance, new or not
}

func (t *turn) newFailures(b *mariposa.Backoff, seen time.Time) failures {
	f := failures{last: seen}
	note := func(i *Instance) bool {
		f.atOnce = f.atOnce || since(i).Equal(t.now) && i.Spec.Created.Equal(t.now)
		if !since(i).After(seen) || since(i).After(t.now.Add(maxSkew)) { // counted before, or before the clock was set back
			return true
		}
		if f.any = true; since(i).After(f.last) {
			f.last = since(i)
		}
		f.atTarget = f.atTarget || !t.view.isOutdated(t.s, i)
		f.repeated = f.repeated || b == nil || !i.Spec.Created.Before(b.First)
		return true
	}
	t.s.each(failed, note)
	t.s.each(unhealthy, note)
	return f
}

// nextBackoff returns the back-off after new failures.
func (t *turn) nextBackoff(b *mariposa.Backoff, f failures) *mariposa.Backoff {
	next := &mariposa.Backoff{First: f.last, Last: f.last}
	if b != nil {
		next.Failures, next.Until, next.First = b.Failures, b.Until, b.First
	}
	if f.repeated && !next.Until.After(t.now) {
		next.Failures++
		next.Until = t.now.Add(backoffDelay(t.st.ID, next.Failures))
	}
	return next
}

// healedAt returns when a service will have been healthy long enough to reset its
// failures. The time until the next attempt does not count as healthy.
func healedAt(b *mariposa.Backoff) time.Time {
	if b.Until.After(b.Last) {
		return b.Until.Add(backoffForgetAfter)
	}
	return b.Last.Add(backoffForgetAfter)
}

// backoffDelay returns how long to wait after the nth consecutive failure: zero after the
// first one, then 1 s doubling to 5 min, with a jitter of up to 20%. The jitter is a
// hash, so that the same failure always gets the same delay.
func backoffDelay(id string, failures int) time.Duration {
	if failures < 2 {
		return 0
	}
	d := 5 * time.Minute
	if failures < 11 {
		d = min(d, time.Second<<(failures-2))
	}
	h := fnv.New32a()
	h.Write([]byte(id + "/" + strconv.Itoa(failures)))
	return d*4/5 + time.Duration(int64(d)*2/5*int64(h.Sum32()%1000)/1000)
}
