package health

import (
	"context"
	"runtime"
	"sync"
	"time"
)

// Regular expressions and the bodies that they are matched with come from projects. A project gets
// a share of one core for them, so that its checks cannot take the processor from others.

const (
	matchShare  = 4                      // one project gets one core divided by this
	matchBurst  = 500 * time.Millisecond // processor time that it may use at once
	maxAccounts = 1000                   // projects that are remembered
)

// matching is what projects have used.
var matching = &budget{burst: matchBurst, share: matchShare, used: processorTime}

// budget bounds the processor time of projects.
type budget struct {
	burst time.Duration
	share int
	used  func() time.Duration // processor time of this thread

	mu       sync.Mutex
	accounts map[string]*account
}

// account is what one project may use.
type account struct {
	turn chan struct{} // held while it uses the processor
	left time.Duration // what it may use at once; negative: it has to wait
	at   time.Time     // when that was so
}

var errTooExpensive = &Inconclusive{Reason: "the regular expressions of the project's checks need too much processor time: use simpler ones, smaller answers or a longer poll"}

// spend does some work for a project once it has processor time left for it. It returns an error if
// it has none before ctx ends.
func (b *budget) spend(ctx context.Context, project string, work func()) error {
	a := b.account(project)
	select {
	case a.turn <- struct{}{}:
	case <-ctx.Done():
		return errTooExpensive
	}
	defer func() { <-a.turn }()
	if pause := a.refill(time.Now(), b.burst, b.share); pause > 0 {
		if until, ok := ctx.Deadline(); ok && time.Until(until) < pause {
			return errTooExpensive
		}
		timer := time.NewTimer(pause)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-ctx.Done():
			return errTooExpensive
		}
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	before := b.used()
	work()
	a.left -= b.used() - before
	return nil
}

// refill adds what a project has got since it was last asked, and returns how long it has to wait
// until something is left.
func (a *account) refill(now time.Time, burst time.Duration, share int) time.Duration {
	a.left = min(burst, a.left+now.Sub(a.at)/time.Duration(share))
	a.at = now
	return max(0, -a.left) * time.Duration(share)
}

func (b *budget) account(project string) *account {
	b.mu.Lock()
	defer b.mu.Unlock()
	a := b.accounts[project]
	if a == nil {
		if len(b.accounts) >= maxAccounts || b.accounts == nil { // at worst, each gets its burst again
			b.accounts = map[string]*account{}
		}
		a = &account{turn: make(chan struct{}, 1), left: b.burst, at: time.Now()}
		b.accounts[project] = a
	}
	return a
}
