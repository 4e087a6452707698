package fleet

import (
	"sync"
	"time"
)

// reminders are what was logged about nodes, and when. A hostile node must not fill the log
// by causing the same message again and again.
type reminders struct {
	mu   sync.Mutex
	last map[string]time.Time
}

const (
	reminderInterval = time.Minute
	maxReminders     = 10_000
)

// mayLog reports whether a message about a node may be logged: it was not within the last
// minute.
func (f *Fleet) mayLog(node, message string) bool {
	now, key := f.Clock.Now(), node+" "+message
	f.logged.mu.Lock()
	defer f.logged.mu.Unlock()
	if at, ok := f.logged.last[key]; ok && now.Sub(at) < reminderInterval {
		return false
	}
	if f.logged.last == nil || len(f.logged.last) >= maxReminders {
		f.logged.last = map[string]time.Time{}
	}
	f.logged.last[key] = now
	return true
}
