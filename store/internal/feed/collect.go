package feed

import (
	"math"

	"mariposa/store"
	"mariposa/store/internal/codec"
)

// After collects the changes after a revision from the chunks of the log that
// it is handed: from the one that holds the next revision on, in order.
type After struct {
	revision int64
	limit    int
	changes  []store.Change
}

// NewAfter makes a collector of up to limit changes (0: all).
func NewAfter(revision int64, limit int) *After {
	if limit <= 0 {
		limit = math.MaxInt
	}
	return &After{revision: revision, limit: limit}
}

// Add takes the next chunk and reports whether more are wanted.
func (a *After) Add(entries []codec.Entry) (more bool, err error) {
	for i := range entries {
		switch revision := entries[i].Head().Revision; {
		case revision <= a.revision:
			continue
		case revision != a.revision+1:
			return false, store.ErrTooOld // trimmed since somebody asked
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

// Changes returns what was collected. Whoever asks here knows that there is
// something to find; nothing means that it was trimmed since.
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

// NewMatching makes a collector for a query.
func NewMatching(q store.HistoryQuery) *Matching {
	m := &Matching{query: q, limit: q.Limit}
	if m.limit <= 0 {
		m.limit = math.MaxInt
	}
	return m
}

// Add takes the next chunk and reports whether more are wanted.
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
