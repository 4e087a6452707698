// Package roster keeps the entries of a driver, one for each instance. It lets one operation at a
// time work on an instance, and reports what no operation has changed. It does not know what an
// instance is.
package roster

import (
	"context"
	"slices"
	"strings"
	"sync"

	"mariposa/driver"
	"mariposa/driver/gate"
)

// Slot is what a roster knows of an instance. A driver embeds it in its entries. What the driver
// adds belongs to the operation that holds the entry, or is guarded by the roster's mutex.
type Slot struct {
	ID string
	// Observed is what others see of the instance; the zero value if it does not exist yet. The
	// roster's mutex guards it.
	Observed driver.Observed

	op chan struct{} // contains one token while an operation is in progress
}

// NewSlot returns the slot of an instance.
func NewSlot(id string) Slot { return Slot{ID: id, op: make(chan struct{}, 1)} }

func (s *Slot) slot() *Slot { return s }

// Hold reserves a new entry, which no operation can have yet.
func (s *Slot) Hold() { s.op <- struct{}{} }

// Release lets the next operation work on the instance.
func (s *Slot) Release() { <-s.op }

// Acquire waits until no operation works on the instance.
func (s *Slot) Acquire(ctx context.Context) error {
	select {
	case s.op <- struct{}{}:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// Entry is an entry of a driver: a pointer to a struct that embeds a Slot.
type Entry interface{ slot() *Slot }

// Roster has the entries of a driver.
type Roster[E interface {
	comparable
	Entry
}] struct {
	sync.Mutex // guards what others than operations use of entries

	gate    *gate.Gate
	create  func(id string) E
	entries map[string]E

	report     func(driver.Event)
	unreported []driver.Event // from before Watch was called
}

// New returns an empty roster. Operations end with the gate.
func New[E interface {
	comparable
	Entry
}](g *gate.Gate, create func(id string) E) *Roster[E] {
	return &Roster[E]{gate: g, create: create, entries: map[string]E{}}
}

// Watch sets the function that receives changes, and sends it those from before.
func (r *Roster[E]) Watch(report func(driver.Event)) {
	r.Lock()
	r.report = report
	early := r.unreported
	r.unreported = nil
	r.Unlock()
	for _, e := range early {
		report(e)
	}
}

// Tell reports an event.
func (r *Roster[E]) Tell(e driver.Event) {
	r.Lock()
	report := r.report
	if report == nil {
		r.unreported = append(r.unreported, e)
	}
	r.Unlock()
	if report != nil {
		report(e)
	}
}

// TellChange reports an instance that has changed without an operation.
func (r *Roster[E]) TellChange(e E) {
	r.Lock()
	o := e.slot().Observed
	r.Unlock()
	r.Tell(driver.Event{Kind: driver.InstanceChanged, Instance: o})
}

// List returns every instance that exists, sorted by id.
func (r *Roster[E]) List(ctx context.Context) ([]driver.Observed, error) {
	_, leave, err := r.gate.Enter(ctx)
	if err != nil {
		return nil, err
	}
	defer leave()
	r.Lock()
	defer r.Unlock()
	list := make([]driver.Observed, 0, len(r.entries))
	for _, e := range r.entries {
		if o := e.slot().Observed; o.ID != "" {
			list = append(list, o)
		}
	}
	slices.SortFunc(list, func(a, b driver.Observed) int { return strings.Compare(a.ID, b.ID) })
	return list, nil
}

// Add adds the entry of an instance that an earlier agent has left.
func (r *Roster[E]) Add(e E) {
	r.Lock()
	defer r.Unlock()
	r.entries[e.slot().ID] = e
}

// Has reports whether there is an entry, even if its instance does not exist yet.
func (r *Roster[E]) Has(id string) bool {
	r.Lock()
	defer r.Unlock()
	_, ok := r.entries[id]
	return ok
}

// Each calls a function for each entry. The caller holds the mutex, and the function must not
// take it.
func (r *Roster[E]) Each(f func(e E)) {
	for _, e := range r.entries {
		f(e)
	}
}

// Find returns the entry of an instance that exists.
func (r *Roster[E]) Find(ctx context.Context, id string) (e E, err error) {
	_, leave, err := r.gate.Enter(ctx)
	if err != nil {
		return e, err
	}
	defer leave()
	r.Lock()
	defer r.Unlock()
	found, ok := r.entries[id]
	if !ok || found.slot().Observed.ID == "" {
		return e, driver.ErrNotFound
	}
	return found, nil
}

// Operate runs one operation on an instance, after any other operation on it, and returns the
// resulting state.
func (r *Roster[E]) Operate(ctx context.Context, id string, work func(context.Context, E) error) (driver.Observed, error) {
	ctx, leave, err := r.gate.Enter(ctx)
	if err != nil {
		return driver.Observed{ID: id}, err
	}
	defer leave()
	e, err := r.acquire(ctx, id)
	if err != nil {
		return driver.Observed{ID: id}, err
	}
	defer e.slot().Release()
	if err = work(ctx, e); err != nil && ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	r.Lock()
	defer r.Unlock()
	o := e.slot().Observed
	if o.ID == "" && r.entries[id] == e {
		delete(r.entries, id)
	}
	o.ID = id
	return o, err
}

// acquire reserves an instance for one operation, and creates its entry if there is none.
func (r *Roster[E]) acquire(ctx context.Context, id string) (E, error) {
	for {
		r.Lock()
		e, ok := r.entries[id]
		if !ok {
			e = r.create(id)
			r.entries[id] = e
		}
		r.Unlock()
		if err := e.slot().Acquire(ctx); err != nil {
			return e, err
		}
		r.Lock()
		current, ok := r.entries[id]
		r.Unlock()
		if ok && current == e {
			return e, nil
		}
		e.slot().Release() // it was removed while we waited
	}
}
