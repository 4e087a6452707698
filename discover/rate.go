package discover

import (
	"sync"
	"time"
)

const (
	rateBurst   = 2000 // queries of one client at once
	ratePerSec  = 500  // and afterwards
	maxRateKeys = 16384
)

// rates bounds the queries of each client. One that asks too much gets no answers, so that it
// cannot use the server against others.
type rates struct {
	mu      sync.Mutex
	keys    map[string]*bucket
	cleared time.Time // when idle clients were last forgotten
}

type bucket struct {
	left float64
	at   time.Time
}

// take reports whether a client may ask now. If there are more clients than can be remembered,
// because somebody invents them, new ones share the rate of their group.
func (r *rates) take(key, group string, now time.Time) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	b := r.keys[key]
	if b == nil {
		if len(r.keys) >= maxRateKeys && now.Sub(r.cleared) >= time.Second {
			r.cleared = now
			r.forgetIdle(now)
		}
		if len(r.keys) >= maxRateKeys {
			key = group
			b = r.keys[key]
		}
	}
	if b == nil {
		if r.keys == nil {
			r.keys = map[string]*bucket{}
		}
		b = &bucket{left: rateBurst, at: now}
		r.keys[key] = b
	}
	if passed := now.Sub(b.at).Seconds(); passed > 0 {
		b.left, b.at = min(rateBurst, b.left+passed*ratePerSec), now
	}
	if b.left < 1 {
		return false
	}
	b.left--
	return true
}

// forgetIdle forgets clients that have not asked for so long that they may ask as new ones do. The
// caller holds the lock.
func (r *rates) forgetIdle(now time.Time) {
	for key, b := range r.keys {
		if now.Sub(b.at).Seconds()*ratePerSec+b.left >= rateBurst {
			delete(r.keys, key)
		}
	}
}
