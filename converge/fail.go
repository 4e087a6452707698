package converge

import (
	"hash/fnv"
	"strconv"
	"time"

	"mariposa"
)

// countFailures notes the failures that are new since the last time. One is
// repaired at once; repeated ones push the next try back, twice as far each
// time. A failure is repeated when it strikes what was made after the first one:
// of a thousand instances, one now and then may die without holding the others up.
func (t *turn) countFailures() {
	b := t.st.Backoff
	seen := t.now.Add(-forget) // what failed longer ago has been forgotten
	if b != nil && b.Last.After(seen) {
		seen = b.Last
	}
	if b != nil && !healedAt(b).After(t.now) {
		b, t.st.Backoff = nil, nil
	}
	last, atTarget, repeated := seen, 0, b == nil
	t.s.each(failed, func(i *Instance) bool {
		t.stillborn = t.stillborn || (since(i).Equal(t.now) && i.Spec.Created.Equal(t.now))
		if since(i).After(seen) {
			if since(i).After(last) {
				last = since(i)
			}
			if !t.view.outdated(t.s, i) {
				atTarget++
			}
			repeated = repeated || !i.Spec.Created.Before(b.First)
		}
		return true
	})
	if last.Equal(seen) || t.ending {
		t.rememberUntil(b)
		return
	}
	next := mariposa.Backoff{First: last, Last: last}
	if b != nil {
		next.Failures, next.Until, next.First = b.Failures, b.Until, b.First
	}
	if repeated && !next.Until.After(t.now) {
		next.Failures++
		next.Until = t.now.Add(delay(t.st.ID, next.Failures))
	}
	t.st.Backoff = &next
	t.rememberUntil(&next)
	if r := t.st.Rollout; r != nil && atTarget > 0 {
		c := *r
		c.Failures++
		t.st.Rollout = &c
	}
}

func (t *turn) rememberUntil(b *mariposa.Backoff) {
	if b != nil {
		t.wakeAt(healedAt(b))
	}
}

// healedAt is when a service will have been healthy for long enough to forget
// its failures. It cannot be healthy while the next try is being waited for.
func healedAt(b *mariposa.Backoff) time.Time {
	if b.Until.After(b.Last) {
		return b.Until.Add(forget)
	}
	return b.Last.Add(forget)
}

// delay is how long to wait after the nth failure in a row: nothing after the
// first, then 1 s doubling to 5 min, give or take a fifth. The jitter is a hash,
// so that the same failure always waits for the same time.
func delay(id string, failures int) time.Duration {
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
