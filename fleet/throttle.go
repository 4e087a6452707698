package fleet

import (
	"sync"
	"time"
)

// throttle limits how often each node can make this replica write something: a few times
// at once, then once per interval.
type throttle struct {
	burst    int
	interval time.Duration

	mu   sync.Mutex
	busy map[string]time.Time // until when what a node did before counts, by node
	told map[string]time.Time // when it was last logged that a node must wait
}

func newThrottle(burst int, interval time.Duration) *throttle {
	return &throttle{burst: burst, interval: interval, busy: map[string]time.Time{}, told: map[string]time.Time{}}
}

// take counts one more time, and returns zero; or how long the node must wait first.
func (t *throttle) take(node string, now time.Time) (wait time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	busy := laterOf(t.busy[node], now)
	if wait = busy.Add(t.interval).Sub(now) - time.Duration(t.burst)*t.interval; wait > 0 {
		return wait
	}
	t.busy[node] = busy.Add(t.interval)
	return 0
}

// isNews reports whether to log that a node must wait, once a minute.
func (t *throttle) isNews(node string, now time.Time) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if at, told := t.told[node]; told && now.Sub(at) < time.Minute {
		return false
	}
	t.told[node] = now
	return true
}

// giveBack undoes a take: nothing was written.
func (t *throttle) giveBack(node string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.busy[node] = t.busy[node].Add(-t.interval)
}

// forget forgets a node that was removed.
func (t *throttle) forget(node string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.busy, node)
	delete(t.told, node)
}
