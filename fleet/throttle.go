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
}

func newThrottle(burst int, interval time.Duration) *throttle {
	return &throttle{burst: burst, interval: interval, busy: map[string]time.Time{}}
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
}
