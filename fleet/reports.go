package fleet

import (
	"sync"
	"time"
)

// How many changes of its instances a node can have stored. Each start, stop and rollout of
// an instance takes a few, so a node has room for many of them at once; a crash loop or a
// failing health check takes far less than one every ten seconds. Beyond that, a hostile or
// broken agent would fill the database: then only the newest state of each instance is
// stored, a little later.
const (
	reportBurst       = 200 // and for each instance
	reportBurstEach   = 20
	reportPerSecond   = 1.0 // and for each instance
	reportEachSeconds = 10
)

// reportLimiter limits how many changes of instances are stored for each node. It stays
// when a session ends: connecting again does not help.
type reportLimiter struct {
	mu     sync.Mutex
	byNode map[string]*reportBucket
}

type reportBucket struct {
	used      float64 // changes that count now
	at        time.Time
	instances int // the most that the node has had: those that are removed are reported, too
}

// take returns how many of some changes can be stored now, and counts them.
func (l *reportLimiter) take(node string, changes, instances int, now time.Time) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	b := l.byNode[node]
	if b == nil {
		if l.byNode == nil {
			l.byNode = map[string]*reportBucket{}
		}
		b = &reportBucket{at: now}
		l.byNode[node] = b
	}
	b.instances = max(b.instances, instances)
	rate := reportPerSecond + float64(b.instances)/reportEachSeconds
	b.used = max(0, b.used-rate*max(0, now.Sub(b.at).Seconds()))
	b.at = now
	n := max(0, min(changes, reportBurst+reportBurstEach*b.instances-int(b.used)))
	b.used += float64(n)
	return n
}

// giveBack undoes a take: the changes were not stored.
func (l *reportLimiter) giveBack(node string, changes int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if b := l.byNode[node]; b != nil {
		b.used = max(0, b.used-float64(changes))
	}
}

// forget forgets a node that was removed.
func (l *reportLimiter) forget(node string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.byNode, node)
}
