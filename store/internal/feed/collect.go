package feed

import (
	"math"

	"mariposa/store"
	"mariposa/store/internal/codec"
)

// After collects the changes after a revision from chunks of the log, which are added in
// order, beginning with the one that contains the next revision.
type After struct {
	revision int64
	limit    int
	changes  []store.Change
}

// NewAfter returns a collector of up to limit changes (0: all).
func NewAfter(revision int64, limit int) *After {
	if limit <= 0 {
		limit = math.MaxInt
	}
	return &After{revision: revision, limit: limit}
}

// Add adds the next chunk and reports whether more are needed.
func (a *After) Add(entries []codec.Entry) (more bool, err error) {
	for i := range entries {
		switch revision := entries[i].Head().Revision; {
		case revision <= a.revision:
			continue
		case revision != a.revision+1:
			return false, store.ErrTooOld // trimmed meanwhile
		}
		c, err := entries[i].Change()
		if err != nil {
			return false, err
		}
		a.changes = append(a.changes, c)
		a.revision = c.Revision
		if len(a.changes) == a.limit {
			return false, nil
		}
	}
	return true, nil
}

// Changes returns the collected changes. The caller knows that there are some; none
// means that they were trimmed meanwhile.
func (a *After) Changes() ([]store.Change, error) {
	if len(a.changes) == 0 {
		return nil, store.ErrTooOld
	}
	return a.changes, nil
}

// Matching collects the changes of a history from chunks, newest first, and
// decodes no more of them than it returns.
type Matching struct {
	query   store.HistoryQuery
	limit   int
	Changes []store.Change
}

// NewMatching returns a collector for a query.
func NewMatching(q store.HistoryQuery) *Matching {
	m := &Matching{query: q, limit: q.Limit}
	if m.limit <= 0 {
		m.limit = math.MaxInt
	}
	return m
}

// Add adds the next chunk and reports whether more are needed.
func (m *Matching) Add(entries []codec.Entry) (more bool, err error) {
	for i := len(entries) - 1; i >= 0 && len(m.Changes) < m.limit; i-- {
		if !m.query.Matches(entries[i].Head()) {
			continue
		}
		c, err := entries[i].Change()
		if err != nil {
			return false, err
		}
		m.Changes = append(m.Changes, c)
	}
	return len(m.Changes) < m.limit, nil
}
