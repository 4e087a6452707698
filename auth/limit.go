package auth

import (
	"sync"
	"time"

	"golang.org/x/time/rate"
)

// Limiter counts failed attempts by where they come from. Each source may fail a
// number of times at once and then once per interval.
type Limiter struct {
	burst    int
	interval time.Duration

	mu      sync.Mutex
	sources map[string]*tries
}

type tries struct {
	*rate.Limiter
	unsaid int // failures that nobody was told of
}

// maxSources bounds what is remembered; beyond it those that have recovered are
// forgotten, and if none has, all.
const maxSources = 10_000

// NewLimiter makes a limiter.
func NewLimiter(burst int, interval time.Duration) *Limiter {
	return &Limiter{burst: burst, interval: interval, sources: map[string]*tries{}}
}

// Fail counts a failure. Ok reports whether it was within bounds; if not, retry
// says after how long the next one is. Unsaid is how many were out of bounds
// since the last that was within.
func (l *Limiter) Fail(source string, now time.Time) (ok bool, unsaid int, retry time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	t := l.sources[source]
	if t == nil {
		l.makeRoom(now)
		t = &tries{Limiter: rate.NewLimiter(rate.Every(l.interval), l.burst)}
		l.sources[source] = t
	}
	if !t.AllowN(now, 1) {
		t.unsaid++
		return false, 0, time.Duration((1 - t.TokensAt(now)) * float64(l.interval))
	}
	unsaid, t.unsaid = t.unsaid, 0
	return true, unsaid, 0
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
