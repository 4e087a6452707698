package store

import (
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"mariposa"
)

// AuditQuery selects entries of the audit log; zero fields select everything.
type AuditQuery struct {
	Organizations []string // any of these; nil: entries with and without an organization; empty but not nil: none
	Project       string
	Actor         string // the id or name of the user who acted, or on whose behalf
	Action        string // like project.update; one that ends in a dot is a prefix
	Outcome       string
	Since         time.Time // at this time or later
	Until         time.Time // before this time
	Before        int64     // ids below this one; 0: from the newest
	Limit         int       // 0: no limit
}

// Matches reports whether the query selects an entry.
func (q *AuditQuery) Matches(a *mariposa.Audit) bool {
	return (q.Before <= 0 || a.ID < q.Before) &&
		(q.Organizations == nil || slices.Contains(q.Organizations, a.Organization)) &&
		(q.Project == "" || a.Project == q.Project) &&
		(q.Actor == "" || a.Actor == q.Actor || a.ActorName == q.Actor || a.For == q.Actor || a.ForName == q.Actor) &&
		(q.Action == "" || a.Action == q.Action || strings.HasSuffix(q.Action, ".") && strings.HasPrefix(a.Action, q.Action)) &&
		(q.Outcome == "" || string(a.Outcome) == q.Outcome) &&
		(q.Since.IsZero() || !a.Time.Before(q.Since)) &&
		(q.Until.IsZero() || a.Time.Before(q.Until))
}

// AuditMark is the end of the audit log.
//
// An entry's id is the microsecond of its creation, or the last id plus one if that is
// higher: after the clock was set back, or within the same microsecond. So ids grow, and
// entries can be found by time through their ids: no entry is dated after its id, and
// none more than Lag before it.
type AuditMark struct {
	Last int64 // the newest id ever given
	Lag  int64 // in microseconds
}

// Next returns the id of the next entry.
func (m *AuditMark) Next(now time.Time) int64 {
	micro := now.UnixMicro()
	m.Last = max(m.Last+1, micro)
	m.Lag = max(m.Lag, m.Last-micro)
	return m.Last
}

// The maximum lengths of an entry's texts, in bytes.
const (
	maxAuditWord   = 500
	maxAuditReason = 4000
)

// CleanAudit returns an entry that every store accepts. Some of its texts come from
// callers whose request was denied; they must never make the entry invalid.
func CleanAudit(a mariposa.Audit) mariposa.Audit {
	for _, word := range [...]*string{
		&a.Actor, &a.ActorName, &a.For, &a.ForName, &a.From, &a.Request, &a.Token, &a.Action, (*string)(&a.Outcome), &a.Kind,
		&a.Object, &a.ObjectName, &a.Organization, &a.Project, &a.ProjectName, &a.Version, &a.Task,
	} {
		*word = clean(*word, maxAuditWord)
	}
	a.Reason = clean(a.Reason, maxAuditReason)
	return a
}

// clean replaces invalid text, and truncates what is too long.
func clean(s string, most int) string {
	if len(s) <= most && utf8.ValidString(s) && strings.IndexByte(s, 0) < 0 {
		return s
	}
	s = strings.ToValidUTF8(strings.ReplaceAll(s, "\x00", "\uFFFD"), "\uFFFD")
	if len(s) > most {
		s = strings.ToValidUTF8(s[:most], "")
	}
	return s
}
