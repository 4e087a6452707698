package converge

import (
	"sort"
	"time"

	"github.com/tidwall/btree"
)

// slowAfter is how long a starting instance counts against the limit of starting
// instances. An instance that takes longer may hang: it keeps its slot, but must not
// block other services forever.
const slowAfter = time.Minute

// newStartingSet returns a set of starting instances, ordered by their start time.
func newStartingSet() *btree.BTreeG[*Instance] {
	return btree.NewBTreeGOptions(func(a, b *Instance) bool {
		if x, y := a.startedAt(), b.startedAt(); x != y {
			return x < y
		}
		return a.ID < b.ID
	}, btree.Options{NoLocks: true, Degree: 16})
}

// startedAt returns when an instance began to start.
func (i *Instance) startedAt() int64 { return max(i.created, i.since) }

// Starting returns the number of starting instances that are not slow.
func (v *View) Starting(now time.Time) int { return v.startingSet.Len() - v.countSlow(now) }

// countSlow returns the number of instances that have been starting for too long.
func (v *View) countSlow(now time.Time) int {
	if first, some := v.startingSet.Min(); !some || first.startedAt() > now.Add(-slowAfter).UnixNano() {
		return 0
	}
	return sort.Search(v.startingSet.Len(), func(n int) bool {
		i, _ := v.startingSet.GetAt(n)
		return i.startedAt() > now.Add(-slowAfter).UnixNano()
	})
}

// nextSlowAt returns when the next starting instance becomes slow; zero: never.
func (v *View) nextSlowAt(now time.Time) time.Time {
	i, some := v.startingSet.GetAt(v.countSlow(now))
	if !some {
		return time.Time{}
	}
	return time.Unix(0, i.startedAt()).Add(slowAfter).In(now.Location())
}

// lacksBudget reports whether a service had no budget to start an instance.
func (v *View) lacksBudget() (some bool) {
	v.agenda.due.Scan(func(s *service) bool {
		some = s.waitsForBudget() && !s.readRoom
		return !some
	})
	return some
}
