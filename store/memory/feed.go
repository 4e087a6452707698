package memory

import (
	"context"
	"maps"
	"slices"
	"sort"
	"time"

	"mariposa/store"
	"mariposa/store/internal/codec"
)

// log contains the changes that are kept, in order, and the ends of their commits:
// trimming removes whole commits.
type log struct {
	trimmed int64 // the oldest revision after which the log is complete
	changes []store.Change
	ends    []int64
	old     []oldCommit // the remaining parts of commits up to trimmed
}

// oldCommit is the part of a commit that remains after thinning.
type oldCommit struct {
	end     int64
	changes []store.Change
}

func (l *log) add(c store.Change) { l.changes = append(l.changes, c) }

func (l *log) end(revision int64) { l.ends = append(l.ends, revision) }

// after returns the part of the log after a revision, which must not be below trimmed.
func (l *log) after(revision int64) []store.Change {
	return l.changes[min(revision-l.trimmed, int64(len(l.changes))):]
}

// trim deletes commits from the front while old is true for their last change.
func (l *log) trim(old func(end int64, at time.Time) bool) {
	for len(l.old) > 0 && old(l.old[0].end, l.old[0].changes[0].Time) {
		l.old = l.old[1:]
	}
	n := 0
	for n < len(l.ends) && old(l.ends[n], l.changes[l.ends[n]-l.trimmed-1].Time) {
		n++
	}
	l.drop(n)
}

// drop removes the first n commits of the complete part of the log.
func (l *log) drop(n int) {
	if n == 0 {
		return
	}
	point := l.ends[n-1]
	l.changes = append([]store.Change(nil), l.after(point)...)
	l.ends = append([]int64(nil), l.ends[n:]...)
	l.trimmed = point
}

// sizes counts the changes of some projects, or of all if none is given.
func (l *log) sizes(projects ...string) (map[string]store.LogSize, error) {
	sizes := make(map[string]store.LogSize)
	for i := range l.old {
		if err := addSizes(sizes, l.old[i].changes, projects); err != nil {
			return nil, err
		}
	}
	return sizes, addSizes(sizes, l.changes, projects)
}

// addSizes counts the encoded halves of changes.
func addSizes(sizes map[string]store.LogSize, changes []store.Change, projects []string) error {
	for i := range changes {
		if len(projects) > 0 && !slices.Contains(projects, changes[i].Owner()) {
			continue
		}
		n := sizes[changes[i].Owner()]
		n.Changes++
		for _, half := range []any{changes[i].Record.Spec, changes[i].Record.Status} {
			b, err := codec.Half(half)
			if err != nil {
				return err
			}
			n.Bytes += int64(len(b))
		}
		sizes[changes[i].Owner()] = n
	}
	return nil
}

// thin removes a project from the oldest commits that it is in.
func (l *log) thin(project string, keep store.LogSize, upTo int64) error {
	sizes, err := l.sizes(project)
	if err != nil {
		return err
	}
	size, all := sizes[project], slices.Clone(l.old)
	for i, start := 0, int64(0); i < len(l.ends); i++ {
		end := l.ends[i] - l.trimmed
		all = append(all, oldCommit{l.ends[i], l.changes[start:end]})
		start = end
	}
	n := len(l.old)
	for i := 0; i < len(all) && all[i].end <= upTo && !size.Within(keep); i++ {
		var gone []store.Change
		rest := slices.DeleteFunc(slices.Clone(all[i].changes), func(c store.Change) bool {
			if c.Owner() == project {
				gone = append(gone, c)
			}
			return c.Owner() == project
		})
		if len(gone) == 0 {
			continue
		}
		removed := make(map[string]store.LogSize)
		if err := addSizes(removed, gone, nil); err != nil {
			return err
		}
		size, all[i].changes, n = size.Minus(removed[project]), rest, max(n, i+1)
	}
	l.drop(n - len(l.old))
	l.old = slices.DeleteFunc(all[:n], func(c oldCommit) bool { return len(c.changes) == 0 })
	return nil
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
	var found []store.Change
	collect := func(changes []store.Change) {
		for i := len(changes) - 1; i >= 0 && (q.Limit <= 0 || len(found) < q.Limit); i-- {
			if q.Matches(&changes[i]) {
				found = append(found, changes[i])
			}
		}
	}
	top := len(s.log.changes)
	if q.Before > 0 {
		top = sort.Search(top, func(i int) bool { return s.log.changes[i].Revision >= q.Before })
	}
	collect(s.log.changes[:top])
	for i := len(s.log.old) - 1; i >= 0; i-- {
		collect(s.log.old[i].changes)
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
	s.log.trim(func(end int64, at time.Time) bool {
		return maxAge > 0 && at.Before(oldest) || maxChanges > 0 && end <= s.revision-maxChanges
	})
	now := s.clock.Now()
	maps.DeleteFunc(s.leases, func(_ string, l store.Lease) bool { return l.IsForgettable(now) })
	return s.log.trimmed, nil
}

// LogSizes counts the changes that are kept.
func (s *Store) LogSizes(ctx context.Context, projects ...string) (map[string]store.LogSize, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.usable(ctx); err != nil {
		return nil, err
	}
	return s.log.sizes(projects...)
}

// Thin counts each call of Commit as one commit.
func (s *Store) Thin(ctx context.Context, project string, keep store.LogSize, upTo int64) (int64, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.usable(ctx); err != nil {
		return 0, err
	}
	err := s.log.thin(project, keep, upTo)
	return s.log.trimmed, err
}
