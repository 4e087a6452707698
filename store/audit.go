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
	Organizations []string // of any of these; nil: of all and of none. Empty, but not nil, selects nothing
	Project       string
	Actor         string // a user, by id or by name, who acted or was acted for
	Action        string // like project.update, or all that begin with project. when it ends in a dot
	Outcome       string
	Since         time.Time // then or later
	Until         time.Time // before then
	Before        int64     // ids below this one; 0: from the newest
	Limit         int       // 0: no limit
}

// Matches reports whether an entry belongs to an answer.
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

// AuditMark is how far the audit log has come.
//
// An entry's id is the microsecond it was made in, or one more than the last id
// where that is not above it: after a clock was set back, or within the same
// microsecond. So ids grow, and entries of a time are found by their ids: none is
// dated after its id, and none more than Lag before it.
type AuditMark struct {
	Last int64 // the newest id ever given
	Lag  int64 // in microseconds
}

// Next gives the next entry its id.
func (m *AuditMark) Next(now time.Time) int64 {
	micro := now.UnixMicro()
	m.Last = max(m.Last+1, micro)
	m.Lag = max(m.Lag, m.Last-micro)
	return m.Last
}

// How long the words of an entry may be, in bytes.
const (
	maxAuditWord   = 500
	maxAuditReason = 4000
)

// CleanAudit is an entry as every store can keep it: some of its words come
// from whoever was denied something, and an entry is never refused for them.
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

// clean replaces what is no text, and cuts what is too long.
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
