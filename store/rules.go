package store

import (
	"cmp"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"time"

	"mariposa"
)

// The rules in this file define what units mean, once for all implementations. They are
// pure functions of their arguments.

// halves are the types of Spec and Status for each kind.
var halves = func() map[mariposa.Kind][2]reflect.Type {
	m := make(map[mariposa.Kind][2]reflect.Type, len(mariposa.Kinds))
	for _, k := range mariposa.Kinds {
		m[k] = [2]reflect.Type{reflect.TypeOf(mariposa.NewSpec(k)), reflect.TypeOf(mariposa.NewStatus(k))}
	}
	return m
}()

// Check finds writes that no store could read back: an unknown kind, no id, or a half of
// another kind. Such a unit is dropped before any other check.
func (u *Unit) Check() error {
	for i := range u.Writes {
		w := &u.Writes[i]
		types, known := halves[w.Kind]
		switch {
		case !known:
			return fmt.Errorf("write of %q: unknown kind %q", w.ID, w.Kind)
		case w.ID == "":
			return fmt.Errorf("write of a %s without an id", w.Kind)
		case w.Spec != nil && reflect.TypeOf(w.Spec) != types[0]:
			return fmt.Errorf("write of %s %s: a %T is not the spec of this kind", w.Kind, w.ID, w.Spec)
		case w.Status != nil && reflect.TypeOf(w.Status) != types[1]:
			return fmt.Errorf("write of %s %s: a %T is not the status of this kind", w.Kind, w.ID, w.Status)
		}
	}
	return nil
}

// Normalize puts a query into its canonical form: it names one project, several
// different ones, or none, which means any. False: nothing can match it.
func (q Query) Normalize() (Query, bool) {
	if _, known := halves[q.Kind]; !known || q.State != "" && q.Kind != mariposa.KindTask {
		return q, false
	}
	if q.Projects == nil {
		return q, true
	}
	all := slices.Sorted(slices.Values(q.Projects))
	all = slices.DeleteFunc(slices.Compact(all), func(p string) bool { return p == "" || q.Project != "" && p != q.Project })
	q.Projects = all
	if len(all) == 1 {
		q.Project, q.Projects = all[0], nil
	}
	return q, len(all) > 0
}

// Matches reports whether an object belongs to the projects and the state of a query.
// The reader checks the kind and the bounds of a page.
func (q *Query) Matches(r *Record) bool {
	if q.Project != "" && r.Project != q.Project || q.Projects != nil && !slices.Contains(q.Projects, r.Project) {
		return false
	}
	return q.State == "" || r.ArchivedState() == q.State
}

// ArchivedState returns the state of an archived task; empty for everything else.
func (r *Record) ArchivedState() mariposa.TaskState {
	if st, _ := r.Status.(*mariposa.TaskStatus); st != nil && r.Archived {
		return st.State
	}
	return ""
}

// Apply returns the change that a write makes to an object as it is (nil: there is
// none), and false if it changes nothing. A write with neither a half nor a removal nor
// a first archiving changes nothing. An object takes its project from writes of its Spec
// that name one.
func (w *Write) Apply(old *Record, revision int64, at time.Time) (Change, bool) {
	c := Change{Revision: revision, Time: at, Event: w.Event}
	switch {
	case w.Delete:
		if old == nil {
			return Change{}, false
		}
		c.Record, c.Deleted = *old, true
		return c, true
	case old != nil:
		c.Record = *old
	case w.Spec == nil:
		return Change{}, false
	default:
		c.Record = Record{Kind: w.Kind, ID: w.ID}
	}
	if w.Spec == nil && w.Status == nil && (!w.Archive || c.Record.Archived) {
		return Change{}, false
	}
	r := &c.Record
	r.Revision = revision
	r.Archived = r.Archived || w.Archive
	if w.Spec != nil {
		c.Spec, r.Spec, r.SpecRevision = true, w.Spec, revision
		if w.Project != "" {
			r.Project = w.Project
		}
	}
	if w.Status != nil {
		c.Status, r.Status, r.StatusRevision = true, w.Status, revision
	}
	return c, true
}

// Owner returns the project that a change counts for; empty: none.
func (c *Change) Owner() string { return cmp.Or(c.Record.Project, c.Event.Project) }

// Within reports whether a part of the log is within a limit. Zero fields of the limit
// mean no limit.
func (s LogSize) Within(limit LogSize) bool {
	return (limit.Changes <= 0 || s.Changes <= limit.Changes) && (limit.Bytes <= 0 || s.Bytes <= limit.Bytes)
}

// Minus returns the difference of two parts of the log.
func (s LogSize) Minus(o LogSize) LogSize { return LogSize{s.Changes - o.Changes, s.Bytes - o.Bytes} }

// Logged returns a change as the feed contains it: for Unlogged kinds, only that it
// happened and to which object.
func (c Change) Logged() Change {
	if c.Record.Kind.Unlogged() {
		c.Record.Halves = Halves{}
	}
	return c
}

// Check compares a requirement with an object as it is (nil: there is none).
func (q *Require) Check(r *Record) error {
	held := false
	switch {
	case q.Absent:
		held = r == nil
	case r != nil:
		held = (q.SpecRevision < 0 || q.SpecRevision == r.SpecRevision) &&
			(q.StatusRevision < 0 || q.StatusRevision == r.StatusRevision)
	}
	if held {
		return nil
	}
	return fmt.Errorf("%s %s: %w", q.Kind, q.ID, ErrConflict)
}

// Check compares a fence with its lease as it is.
func (f *Fence) Check(l Lease, now time.Time) error {
	if l.Epoch == f.Epoch && l.Live(now) {
		return nil
	}
	return fmt.Errorf("%s at epoch %d: %w", f.Lease, f.Epoch, ErrFenced)
}

// Apply adds a claim to what is already claimed. Only resources that the claim takes are
// checked against the limit, so resources can always be given back, even on an overfull
// node.
func (c *Claim) Apply(have mariposa.Resources) (mariposa.Resources, error) {
	sum := have.Plus(c.Take)
	over := func(take, sum, limit int64) bool { return take > 0 && limit != 0 && sum > limit }
	if over(int64(c.Take.Instances), int64(sum.Instances), int64(c.Limit.Instances)) ||
		over(c.Take.MilliCPU, sum.MilliCPU, c.Limit.MilliCPU) ||
		over(c.Take.Memory, sum.Memory, c.Limit.Memory) {
		return have, fmt.Errorf("node %s: %w", c.Node, ErrNoCapacity)
	}
	return mariposa.Resources{
		Instances: max(0, sum.Instances),
		MilliCPU:  max(0, sum.MilliCPU),
		Memory:    max(0, sum.Memory),
	}, nil
}

// ErrNoHolder: a lease was requested without a holder.
var ErrNoHolder = errors.New("a lease needs a holder")

// Live reports whether a lease is held and has not expired.
func (l Lease) Live(now time.Time) bool {
	return l.Holder != "" && (l.Until.IsZero() || now.Before(l.Until))
}

// LiveLeases returns the live leases under a prefix, by name.
func LiveLeases(leases map[string]Lease, prefix string, now time.Time) []Lease {
	var held []Lease
	for name, l := range leases {
		if strings.HasPrefix(name, prefix) && l.Live(now) {
			held = append(held, l)
		}
	}
	slices.SortFunc(held, func(a, b Lease) int { return strings.Compare(a.Name, b.Name) })
	return held
}

// Held returns the lease after holder requested it until a time; false if another holder
// has it.
func (l Lease) Held(holder string, now, until time.Time) (Lease, bool) {
	live := l.Live(now)
	if live && l.Holder != holder {
		return l, false
	}
	if !live {
		l.Epoch++
	}
	if l.Holder != holder {
		l.Note = ""
	}
	l.Holder, l.Until = holder, until
	return l, true
}

// Seized returns the lease after holder took it by force.
func (l Lease) Seized(holder string) Lease {
	return Lease{Name: l.Name, Holder: holder, Epoch: l.Epoch + 1}
}

// Announced returns the lease with a note of its holder.
func (l Lease) Announced(holder, note string, now time.Time) (Lease, error) {
	if l.Holder != holder || !l.Live(now) {
		return l, fmt.Errorf("announce %s: %w", l.Name, ErrFenced)
	}
	l.Note = note
	return l, nil
}

// IsForgettable reports whether a lease belongs to a replica that is gone for so long that
// nobody asks for it. Its epoch fences nothing.
func (l Lease) IsForgettable(now time.Time) bool {
	return strings.HasPrefix(l.Name, ReplicaPrefix) && (l.Holder == "" || (!l.Until.IsZero() && l.Until.Before(now.Add(-ReplicaMemory))))
}

// Released returns the lease after its holder released it. The epoch stays, so that the
// next one is higher.
func (l Lease) Released() Lease {
	return Lease{Name: l.Name, Epoch: l.Epoch}
}

// Matches reports whether a change belongs to a history: by the project of its object or
// its event, and by the task of its event.
func (q *HistoryQuery) Matches(c *Change) bool {
	return (q.Before == 0 || c.Revision < q.Before) &&
		(q.Project == "" || c.Record.Project == q.Project || c.Event.Project == q.Project) &&
		(q.Task == "" || c.Event.Task == q.Task)
}

// FailAll returns the same error for every unit of a Commit.
func FailAll(units []Unit, err error) []Result {
	results := make([]Result, len(units))
	for i := range results {
		results[i].Err = err
	}
	return results
}
