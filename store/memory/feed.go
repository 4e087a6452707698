package memory

import (
	"context"
	"sort"
	"time"

	"mariposa/store"
)

// log is the kept changes, in order, and the ends of their commits: trimming removes
// whole commits.
type log struct {
	trimmed int64 // the oldest revision after which the log is complete
	changes []store.Change
	ends    []int64
}

func (l *log) add(c store.Change) { l.changes = append(l.changes, c) }

func (l *log) end(revision int64) { l.ends = append(l.ends, revision) }

// after returns the part of the log after a revision, which must not be below trimmed.
func (l *log) after(revision int64) []store.Change {
	return l.changes[min(revision-l.trimmed, int64(len(l.changes))):]
}

// trim deletes commits from the front while old is true for their last change.
func (l *log) trim(old func(*store.Change) bool) {
	n := 0
	for n < len(l.ends) && old(&l.changes[l.ends[n]-l.trimmed-1]) {
		n++
	}
	if n == 0 {
		return
	}
	point := l.ends[n-1]
	l.changes = append([]store.Change(nil), l.after(point)...)
	l.ends = append([]int64(nil), l.ends[n:]...)
	l.trimmed = point
}

// Changes copies a part of the log.
func (s *Store) Changes(ctx context.Context, after int64, limit int) ([]store.Change, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.usable(ctx); err != nil {
		return nil, err
	}
	if after < s.log.trimmed {
		return nil, store.ErrTooOld
	}
	found := s.log.after(after)
	if limit > 0 && len(found) > limit {
		found = found[:limit]
	}
	return append([]store.Change(nil), found...), nil
}

// History walks the log backwards.
func (s *Store) History(ctx context.Context, q store.HistoryQuery) ([]store.Change, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.usable(ctx); err != nil {
		return nil, err
	}
	top := len(s.log.changes)
	if q.Before > 0 {
		top = sort.Search(top, func(i int) bool { return s.log.changes[i].Revision >= q.Before })
	}
	var found []store.Change
	for i := top - 1; i >= 0 && (q.Limit <= 0 || len(found) < q.Limit); i-- {
		if q.Matches(&s.log.changes[i]) {
			found = append(found, s.log.changes[i])
		}
	}
	return found, nil
}

// Wait sleeps until the log grows past a revision.
func (s *Store) Wait(ctx context.Context, after int64) error {
	for {
		s.mu.Lock()
		err, revision, grown := s.usable(ctx), s.revision, s.grown
		s.mu.Unlock()
		if err != nil || revision > after {
			return err
		}
		select {
		case <-grown:
		case <-ctx.Done():
		}
	}
}

// Trim counts each call of Commit as one commit.
func (s *Store) Trim(ctx context.Context, maxAge time.Duration, maxChanges int64) (int64, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.usable(ctx); err != nil {
		return 0, err
	}
	oldest := s.clock.Now().Add(-maxAge)
	s.log.trim(func(c *store.Change) bool {
		return maxAge > 0 && c.Time.Before(oldest) || maxChanges > 0 && c.Revision <= s.revision-maxChanges
	})
	return s.log.trimmed, nil
}
