package fleet

import (
	"context"
	"log/slog"
	"sync"
	"time"
)

// How much is read from a node: frames, and what it costs to decode them, in bytes and a
// little for each value (wire.Pipe.LimitAgent). Starts and stops of its instances take a few
// small frames each, and a node that connects reports all of them. An agent that sends more is
// hostile or broken: its connection is read more slowly, so that it takes little time from
// the others. Nothing is lost, because the agent waits.
const (
	readBurst          = 32 << 20 // and for each instance
	readBurstEach      = 16 << 10
	readPerSecond      = 2 << 20 // and for each instance
	readPerSecondEach  = 1 << 10
	frameBurst         = 2000 // and for each instance
	frameBurstEach     = 20
	framePerSecond     = 200 // and for each instance
	framePerSecondEach = 1
)

// readLimiter has the budget of each node. A budget stays when a session ends: connecting
// again does not help.
type readLimiter struct {
	mu     sync.Mutex
	byNode map[string]*readBudget
}

// of returns the budget of a node.
func (l *readLimiter) of(node string) *readBudget {
	l.mu.Lock()
	defer l.mu.Unlock()
	b := l.byNode[node]
	if b == nil {
		if l.byNode == nil {
			l.byNode = map[string]*readBudget{}
		}
		b = &readBudget{}
		l.byNode[node] = b
	}
	return b
}

// forget forgets a node that was removed.
func (l *readLimiter) forget(node string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.byNode, node)
}

// readBudget is how much may be read from a node.
type readBudget struct {
	mu        sync.Mutex
	at        time.Time
	weight    float64 // what was read and counts now, as the next
	frames    float64
	instances float64 // the most that the node has had: those that are removed are reported, too
}

// take counts what is to be read, and returns how long to wait before. The wait of one
// message is short: heartbeats are behind it.
func (b *readBudget) take(frames, weight int, now time.Time, instances func() int) (wait time.Duration) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.refill(now)
	if b.frames > frameBurst/2 || b.weight > readBurst/2 { // until then, nothing depends on it
		b.instances = max(b.instances, float64(instances()))
	}
	wait = b.debt()
	b.frames += float64(frames)
	b.weight += float64(weight)
	return wait
}

// refill lets what was read before count less.
func (b *readBudget) refill(now time.Time) {
	passed := max(0, now.Sub(b.at).Seconds())
	b.at = now
	b.weight = max(0, b.weight-passed*(readPerSecond+readPerSecondEach*b.instances))
	b.frames = max(0, b.frames-passed*(framePerSecond+framePerSecondEach*b.instances))
}

// debt returns how long it takes until what was read is within the budget.
func (b *readBudget) debt() time.Duration {
	seconds := max(
		(b.weight-readBurst-readBurstEach*b.instances)/(readPerSecond+readPerSecondEach*b.instances),
		(b.frames-frameBurst-frameBurstEach*b.instances)/(framePerSecond+framePerSecondEach*b.instances),
	)
	return time.Duration(max(0, seconds) * float64(time.Second))
}

// payReading waits until more may be read from the session's agent.
func (s *Session) payReading(ctx context.Context, frames, weight int) error {
	wait := s.reading.take(frames, weight, time.Now(), func() int { return s.f.Picture.CountOn(s.node) })
	if wait <= 0 {
		return nil
	}
	if s.f.mayLog(s.node, "read slowly") {
		slog.Warn("a node sends more than any honest one, and is read more slowly: its agent may be faulty or hostile", "node", s.hello.Name, "id", s.node)
	}
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
