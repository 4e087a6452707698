package memory

import (
	"context"
	"slices"
	"sort"
	"time"

	"mariposa"
	"mariposa/store"
)

// audit is the audit log, in order.
type audit struct {
	mark    store.AuditMark
	entries []mariposa.Audit
}

func (l *audit) add(a mariposa.Audit, now time.Time) {
	a = store.CleanAudit(a)
	a.ID, a.Time = l.mark.Next(now), now
	l.entries = append(l.entries, a)
}

// Audit walks the log backwards.
func (s *Store) Audit(ctx context.Context, q store.AuditQuery) ([]mariposa.Audit, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.usable(ctx); err != nil {
		return nil, err
	}
	all := s.audit.entries
	top := len(all)
	if q.Before > 0 {
		top = sort.Search(top, func(i int) bool { return all[i].ID >= q.Before })
	}
	var found []mariposa.Audit
	for i := top - 1; i >= 0 && (q.Limit <= 0 || len(found) < q.Limit); i-- {
		if q.Matches(&all[i]) {
			found = append(found, all[i])
		}
	}
	return found, nil
}

// TrimAudit looks at every entry.
func (s *Store) TrimAudit(ctx context.Context, maxAge time.Duration) (int64, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.usable(ctx); err != nil || maxAge <= 0 {
		return 0, err
	}
	oldest, before := s.clock.Now().Add(-maxAge), len(s.audit.entries)
	s.audit.entries = slices.DeleteFunc(s.audit.entries, func(a mariposa.Audit) bool { return a.Time.Before(oldest) })
	return int64(before - len(s.audit.entries)), nil
}
