// Package feed keeps the newest part of the log in memory and wakes readers when it
// grows, so that a reader that keeps up never reads from disk or from the database.
//
// It owns the bounds of the log at both ends. It does not know where the older part is
// stored.
package feed

import (
	"context"
	"sort"
	"sync"
	"time"

	"mariposa/store"
)

// Feed contains the newest commits, in order. It is safe for concurrent use.
type Feed struct {
	maxCount, maxBytes int

	mu           sync.RWMutex
	closed       bool
	grown        chan struct{} // closed and renewed whenever the log grows, closed for good by Close
	trimmed      int64         // the oldest revision after which the log is complete
	revision     int64         // the newest revision
	chunks       []chunk       // the newest commits, without gaps, up to revision
	count, bytes int
}

type chunk struct {
	changes []store.Change
	bytes   int
}

// New returns a feed that keeps about this many changes, and bytes of them.
func New(maxCount, maxBytes int) *Feed {
	return &Feed{maxCount: maxCount, maxBytes: maxBytes, grown: make(chan struct{})}
}

// Reset sets the bounds of the log and drops all changes in memory.
func (f *Feed) Reset(trimmed, revision int64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.trimmed, f.revision, f.chunks, f.count, f.bytes = trimmed, revision, nil, 0, 0
	f.wake()
}

// Advance notes that the log has grown up to a revision, by changes that are not in
// memory. A revision that is not newer is ignored.
func (f *Feed) Advance(revision int64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if revision > f.revision {
		f.revision, f.chunks, f.count, f.bytes = revision, nil, 0, 0
		f.wake()
	}
}

// Publish adds the changes of one commit, which must follow the newest one.
func (f *Feed) Publish(changes []store.Change, bytes int) {
	if len(changes) == 0 {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.publish(changes, bytes)
}

// Offer adds the changes of one commit if they follow the newest one, and reports
// whether the feed has them now: another reader of the same log may have added them
// before.
func (f *Feed) Offer(changes []store.Change, bytes int) bool {
	if len(changes) == 0 {
		return true
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	first := changes[0].Revision
	if first == f.revision+1 {
		f.publish(changes, bytes)
	}
	return first <= f.revision
}

// publish must be called with the mutex held.
func (f *Feed) publish(changes []store.Change, bytes int) {
	f.chunks = append(f.chunks, chunk{changes, bytes})
	f.count += len(changes)
	f.bytes += bytes
	f.revision = changes[len(changes)-1].Revision
	for len(f.chunks) > 1 && (f.count > f.maxCount || f.bytes > f.maxBytes) {
		f.count -= len(f.chunks[0].changes)
		f.bytes -= f.chunks[0].bytes
		f.chunks[0] = chunk{}
		f.chunks = f.chunks[1:]
	}
	f.wake()
}

// wake must be called with the mutex held.
func (f *Feed) wake() {
	if !f.closed {
		close(f.grown)
		f.grown = make(chan struct{})
	}
}

// Trimmed notes that the log now begins after a revision.
func (f *Feed) Trimmed(point int64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.trimmed = max(f.trimmed, point)
}

// Bounds returns the bounds of the log: it is complete after trimmed, up to revision.
func (f *Feed) Bounds() (trimmed, revision int64) {
	f.mu.RLock()
	defer f.mu.RUnlock()
	return f.trimmed, f.revision
}

// Newest returns the first revision of the newest commit and its time; zero if that is not
// in memory.
func (f *Feed) Newest() (first int64, at time.Time) {
	f.mu.RLock()
	defer f.mu.RUnlock()
	if len(f.chunks) == 0 {
		return 0, at
	}
	c := f.chunks[len(f.chunks)-1].changes[0]
	return c.Revision, c.Time
}

// Recent returns up to limit changes after a revision; false if they are not in memory
// and must be read from the stored log.
func (f *Feed) Recent(after int64, limit int) (changes []store.Change, ok bool, err error) {
	f.mu.RLock()
	defer f.mu.RUnlock()
	switch {
	case f.closed:
		return nil, false, store.ErrClosed
	case after < f.trimmed:
		return nil, false, store.ErrTooOld
	case after >= f.revision:
		return nil, true, nil
	case len(f.chunks) == 0 || after+1 < f.chunks[0].changes[0].Revision:
		return nil, false, nil
	}
	n := f.revision - after
	if limit > 0 {
		n = min(n, int64(limit))
	}
	changes = make([]store.Change, 0, n)
	i := sort.Search(len(f.chunks), func(i int) bool {
		part := f.chunks[i].changes
		return part[len(part)-1].Revision > after
	})
	for ; int64(len(changes)) < n; i++ {
		part := f.chunks[i].changes
		if skip := after + 1 - part[0].Revision; skip > 0 {
			part = part[skip:]
		}
		changes = append(changes, part[:min(n-int64(len(changes)), int64(len(part)))]...)
	}
	return changes, true, nil
}

// Wait returns once there is a change after a revision.
func (f *Feed) Wait(ctx context.Context, after int64) error {
	for {
		f.mu.RLock()
		closed, revision, grown := f.closed, f.revision, f.grown
		f.mu.RUnlock()
		switch {
		case closed:
			return store.ErrClosed
		case revision > after:
			return nil
		}
		select {
		case <-grown:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// Close ends all waits with ErrClosed.
func (f *Feed) Close() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.closed {
		f.closed = true
		close(f.grown)
	}
}

// Closed reports whether Close was called.
func (f *Feed) Closed() bool {
	f.mu.RLock()
	defer f.mu.RUnlock()
	return f.closed
}
