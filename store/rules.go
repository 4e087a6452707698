package store

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"time"

	"mariposa"
)

// The rules in this file say what units mean, once for every implementation:
// they are pure and touch nothing but what they are handed.

// halves are the types that Spec and Status of each kind must have.
var halves = func() map[mariposa.Kind][2]reflect.Type {
	m := make(map[mariposa.Kind][2]reflect.Type, len(mariposa.Kinds))
	for _, k := range mariposa.Kinds {
		m[k] = [2]reflect.Type{reflect.TypeOf(mariposa.NewSpec(k)), reflect.TypeOf(mariposa.NewStatus(k))}
	}
	return m
}()

// Check finds writes that no store could ever read back: an unknown kind, no
// id, or a half of another kind. Such a unit is dropped before anything else
// is looked at.
func (u *Unit) Check() error {
	for i := range u.Writes {
		w := &u.Writes[i]
		types, known := halves[w.Kind]
		switch {
		case !known:
			return fmt.Errorf("write of %q: %q is no kind of object", w.ID, w.Kind)
		case w.ID == "":
			return fmt.Errorf("write of a %s without an id", w.Kind)
		case w.Spec != nil && reflect.TypeOf(w.Spec) != types[0]:
			return fmt.Errorf("write of %s %s: a %T is not its spec", w.Kind, w.ID, w.Spec)
		case w.Status != nil && reflect.TypeOf(w.Status) != types[1]:
			return fmt.Errorf("write of %s %s: a %T is not its status", w.Kind, w.ID, w.Status)
		}
	}
	return nil
}

// Normalize puts a query into the form that is answered: it names one project, or
// several different ones, or none, which means any. False: nothing can match it.
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

// Matches reports whether an object is of the projects and in the state that a
// query asks for. The kind, and where a page begins and ends, is the reader's to know.
func (q *Query) Matches(r *Record) bool {
	if q.Project != "" && r.Project != q.Project || q.Projects != nil && !slices.Contains(q.Projects, r.Project) {
		return false
	}
	return q.State == "" || r.ArchivedState() == q.State
}

// ArchivedState is the state of a task that is archived; empty for everything else.
func (r *Record) ArchivedState() mariposa.TaskState {
	if st, _ := r.Status.(*mariposa.TaskStatus); st != nil && r.Archived {
		return st.State
	}
	return ""
}

// Apply says what a write makes of an object as it stands (nil: there is none)
// and whether that is a change at all. A write without a half, a removal or a
// first archiving changes nothing. The project of an object is taken from the
// writes of its Spec that name one.
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

// Check compares a requirement with an object as it stands (nil: there is none).
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

// Check compares a fence with the lease it names as it stands.
func (f *Fence) Check(l Lease, now time.Time) error {
	if l.Epoch == f.Epoch && l.Live(now) {
		return nil
	}
	return fmt.Errorf("%s at epoch %d: %w", f.Lease, f.Epoch, ErrFenced)
}

// Apply adds a claim to what is claimed already. Only what is taken is held
// against the limit, so that giving back always works, on an overfull node too.
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

// ErrNoHolder: a lease was asked for in nobody's name.
var ErrNoHolder = errors.New("a lease needs a holder")

// Live reports whether somebody holds a lease that has not lapsed.
func (l Lease) Live(now time.Time) bool {
	return l.Holder != "" && (l.Until.IsZero() || now.Before(l.Until))
}

// Holding picks the leases under a prefix that somebody holds now, by name.
func Holding(leases map[string]Lease, prefix string, now time.Time) []Lease {
	var held []Lease
	for name, l := range leases {
		if strings.HasPrefix(name, prefix) && l.Live(now) {
			held = append(held, l)
		}
	}
	slices.SortFunc(held, func(a, b Lease) int { return strings.Compare(a.Name, b.Name) })
	return held
}

// Held is the lease after holder asked for it until a time; false when somebody
// else has it.
func (l Lease) Held(holder string, now, until time.Time) (Lease, bool) {
	live := l.Live(now)
	if live && l.Holder != holder {
		return l, false
	}
	if !live {
		l.Epoch++
	}
	l.Holder, l.Until = holder, until
	return l, true
}

// Seized is the lease after holder took it by force.
func (l Lease) Seized(holder string) Lease {
	return Lease{Name: l.Name, Holder: holder, Epoch: l.Epoch + 1}
}

// Released is the lease after its holder let go. The epoch stays, so that the
// next one is above it.
func (l Lease) Released() Lease {
	return Lease{Name: l.Name, Epoch: l.Epoch}
}

// Matches reports whether a change belongs to a history: by the project of its
// object or of its event, and by the task its event is tagged with.
func (q *HistoryQuery) Matches(c *Change) bool {
	return (q.Before == 0 || c.Revision < q.Before) &&
		(q.Project == "" || c.Record.Project == q.Project || c.Event.Project == q.Project) &&
		(q.Task == "" || c.Event.Task == q.Task)
}

// FailAll gives every unit of a Commit the same error.
func FailAll(units []Unit, err error) []Result {
	results := make([]Result, len(units))
	for i := range results {
		results[i].Err = err
	}
	return results
}
