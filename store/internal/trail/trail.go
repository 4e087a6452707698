// Package trail is what SQL stores have in common in reading the audit log: by
// which index a query goes, what it asks besides, and how the parts of an answer
// come together.
//
// It owns the choice. It refuses to run anything, and to know how a store names
// its indexes.
package trail

import (
	"slices"
	"strings"
	"time"

	"mariposa"
	"mariposa/store"
)

// Arm is a part of an answer that one index has in order: the entries with a
// value in a column. The zero Arm is the whole log.
type Arm struct{ Column, Value string }

// Arms are the parts that together hold every entry of an answer, some perhaps
// more than one of them. What bounds a reader to what is theirs goes first, so
// that nobody's question walks over what belongs to others. The distinct actions
// that begin with a prefix are asked for where they are needed.
func Arms(q *store.AuditQuery, actions func(prefix string) ([]string, error)) ([]Arm, error) {
	switch {
	case q.Organizations != nil && len(q.Organizations) == 0:
		return nil, nil
	case q.Project != "":
		return []Arm{{"project", q.Project}}, nil
	case q.Organizations != nil:
		return each("organization", q.Organizations), nil
	case q.Actor != "":
		return []Arm{{"actor", q.Actor}, {"actor_name", q.Actor}, {"for_id", q.Actor}, {"for_name", q.Actor}}, nil
	case q.Outcome != "" && q.Outcome != string(mariposa.AuditDone):
		return []Arm{{"outcome", q.Outcome}}, nil
	case strings.HasSuffix(q.Action, "."):
		found, err := actions(q.Action)
		return each("action", found), err
	case q.Action != "":
		return []Arm{{"action", q.Action}}, nil
	}
	return []Arm{{}}, nil
}

func each(column string, values []string) []Arm {
	values = slices.Compact(slices.Sorted(slices.Values(values)))
	arms := make([]Arm, len(values))
	for i, v := range values {
		arms[i] = Arm{column, v}
	}
	return arms
}

// partial are the indexes that leave out what most entries have in common. A
// query must repeat the condition to go by one.
var partial = map[string]string{
	"project":  "project <> ''",
	"for_id":   "for_id <> ''",
	"for_name": "for_name <> ''",
	"outcome":  "outcome <> 'done'",
}

// Where is what an arm's entries must fulfil to be in the answer, but for the
// bounds of ids and times: conditions with question marks, and their arguments.
func (arm Arm) Where(q *store.AuditQuery) (terms []string, args []any) {
	add := func(term string, values ...any) {
		terms, args = append(terms, term), append(args, values...)
	}
	if arm.Column != "" {
		add(arm.Column+" = ?", arm.Value)
	}
	if condition := partial[arm.Column]; condition != "" {
		add(condition)
	}
	if q.Project != "" && arm.Column != "project" {
		add("project = ?", q.Project)
	}
	if q.Organizations != nil && arm.Column != "organization" {
		values := make([]any, len(q.Organizations))
		for i, o := range q.Organizations {
			values[i] = o
		}
		add("organization IN ("+strings.TrimSuffix(strings.Repeat("?,", len(values)), ",")+")", values...)
	}
	switch arm.Column {
	case "actor", "actor_name", "for_id", "for_name":
	default:
		if q.Actor != "" {
			add("(actor = ? OR actor_name = ? OR for_id = ? OR for_name = ?)", q.Actor, q.Actor, q.Actor, q.Actor)
		}
	}
	switch {
	case q.Action == "" || arm.Column == "action":
	case strings.HasSuffix(q.Action, "."):
		add("action >= ? AND action < ?", q.Action, After(q.Action))
	default:
		add("action = ?", q.Action)
	}
	if q.Outcome != "" && arm.Column != "outcome" {
		add("outcome = ?", q.Outcome)
	}
	return terms, args
}

// After is the first action behind all that begin with a prefix ending in a dot.
func After(prefix string) string { return strings.TrimSuffix(prefix, ".") + "/" }

// Answer collects the newest entries of the arms.
type Answer struct {
	Entries []mariposa.Audit // newest first
	limit   int
}

// NewAnswer begins an answer of up to limit entries; 0: of any number.
func NewAnswer(limit int) *Answer { return &Answer{limit: limit} }

// Floor is the id above which an entry must be to be in the answer still.
func (a *Answer) Floor() int64 {
	if a.limit > 0 && len(a.Entries) == a.limit {
		return a.Entries[a.limit-1].ID
	}
	return 0
}

// Add puts in the entries of one more arm, newest first.
func (a *Answer) Add(entries []mariposa.Audit) {
	if len(a.Entries) == 0 {
		a.Entries = entries
		return
	}
	a.Entries = append(a.Entries, entries...)
	slices.SortFunc(a.Entries, func(x, y mariposa.Audit) int { return int(min(max(y.ID-x.ID, -1), 1)) })
	a.Entries = slices.CompactFunc(a.Entries, func(x, y mariposa.Audit) bool { return x.ID == y.ID })
	if a.limit > 0 && len(a.Entries) > a.limit {
		a.Entries = a.Entries[:a.limit]
	}
}

// TimeToMicro is the first microsecond not before a time: for clocks that count
// these, being before the one is being before the other.
func TimeToMicro(t time.Time) time.Time {
	if whole := t.Truncate(time.Microsecond); whole.Before(t) {
		return whole.Add(time.Microsecond)
	}
	return t
}
