package auth

import (
	"sync"
	"time"

	"golang.org/x/time/rate"
)

// Limiter counts failed attempts by source. Each source has a burst of allowed
// failures, and then one per interval.
type Limiter struct {
	burst    int
	interval time.Duration

	mu      sync.Mutex
	sources map[string]*attempts
}

type attempts struct {
	*rate.Limiter
	suppressed int // failures over the limit since the last one within it
}

// maxSources limits the number of sources. Beyond it, sources that have recovered are
// dropped, or all if there are none.
const maxSources = 10_000

// NewLimiter returns a limiter.
func NewLimiter(burst int, interval time.Duration) *Limiter {
	return &Limiter{burst: burst, interval: interval, sources: map[string]*attempts{}}
}

// Fail counts a failure. Ok reports whether it is within the limit; if not, retry is
// the time until the next failure is allowed. Suppressed is the number of failures over
// the limit since the last one within it.
func (l *Limiter) Fail(source string, now time.Time) (ok bool, suppressed int, retry time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	t := l.sources[source]
	if t == nil {
		l.makeRoom(now)
		t = &attempts{Limiter: rate.NewLimiter(rate.Every(l.interval), l.burst)}
		l.sources[source] = t
	}
	t.SetLimitAt(now, t.Limit()) // continues from here if the clock was set back
	if !t.AllowN(now, 1) {
		t.suppressed++
		return false, 0, time.Duration((1 - t.TokensAt(now)) * float64(l.interval))
	}
	suppressed, t.suppressed = t.suppressed, 0
	return true, suppressed, 0
}

// Forgive takes a counted attempt back, because it was no failure.
func (l *Limiter) Forgive(source string, now time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if t := l.sources[source]; t != nil {
		t.AllowN(now, -1) // adds one; the burst stays the limit
	}
}

func (l *Limiter) makeRoom(now time.Time) {
	if len(l.sources) < maxSources {
		return
	}
	for source, t := range l.sources {
		if t.TokensAt(now) >= float64(l.burst) {
			delete(l.sources, source)
		}
	}
	if len(l.sources) >= maxSources {
		clear(l.sources)
	}
}
