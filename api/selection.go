package api

import (
	"context"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"mariposa"
	"mariposa/store"
)

const (
	// A stream with states leaves out events of instances if there are more than this at a time:
	// nobody reads so many. The states and the instances that it sends are complete.
	maxPassing  = 30  // that say how instances go on
	maxFailures = 100 // that say what is wrong with instances
	// A selection ends early if it has so many instances, events, or changes.
	maxSelectedInstances = 2000
	maxSelectedEvents    = 500 // others than those of instances
	maxSelectedChanges   = 20_000
	maxSelected          = 32 << 20 // bytes that are kept for streams that are late
	selectedBytes        = 300      // that a selected instance takes, about
)

// selection is what a stream with states sends for a part of the feed, as far as it does not
// depend on its reader. Streams that ask for the same share it.
type selection struct {
	from, to int64           // it is about the changes after from, up to to
	events   []*store.Change // that are sent as events
	// changed are the changed instances, until they are encoded.
	changed   []changedInstance
	instances int // their number
	encode    sync.Once
	text      []byte // the changed instances, encoded
}

// changedInstance is an instance of the project whose instances a stream sends.
type changedInstance struct {
	*store.Change      // its last one
	isWhole       bool // its definition is new
}

// interest is what a stream with states asks for.
type interest struct {
	project, services, kinds, detail, instances string
}

// selections keeps what streams have selected in the last seconds.
type selections struct {
	mu  sync.Mutex
	all map[selectionKey]*sharedSelection
}

type selectionKey struct {
	interest
	from, to int64
}

type sharedSelection struct {
	once sync.Once
	*selection
	size atomic.Int64 // about how many bytes it takes
}

func (s *selections) get(key selectionKey) *sharedSelection {
	s.mu.Lock()
	defer s.mu.Unlock()
	one := s.all[key]
	if one == nil {
		if s.all == nil {
			s.all = map[selectionKey]*sharedSelection{}
		}
		one = &sharedSelection{}
		s.all[key] = one
	}
	return one
}

// forgetUpTo makes room for what is selected next. Streams that are later than that select again.
func (s *selections) forgetUpTo(revision int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	size := 0
	for key, one := range s.all {
		if key.to <= revision {
			delete(s.all, key)
		} else {
			size += int(one.size.Load())
		}
	}
	if size > maxSelected {
		clear(s.all)
	}
}

// interest returns what the stream asks for.
func (f *feed) interest() interest {
	return interest{project: f.project.Project, services: strings.Join(f.services, ","), kinds: strings.Join(f.kinds, ","), detail: f.detail, instances: f.instances}
}

// selectUpTo selects what the stream sends next, of the changes up to a revision. It selects from
// those that the picture still has, together with other streams, or else from those of the store.
func (f *feed) selectUpTo(ctx context.Context, to int64) (*selection, error) {
	one := f.s.selections.get(selectionKey{f.interest(), f.after, to})
	one.once.Do(func() {
		defer f.s.published.work()()
		sel := newSelector(f)
		for sel.to < to && !sel.isFull {
			changes, ok := f.s.Picture.Changes(sel.to, scanBatch)
			if !ok || len(changes) == 0 {
				return
			}
			sel.add(changes, to)
		}
		one.selection = sel.end()
		one.size.Store(int64(8*len(sel.events) + selectedBytes*sel.instances))
	})
	if one.selection != nil {
		return one.selection, nil
	}
	changes, err := f.next(ctx)
	if err != nil || len(changes) == 0 {
		return &selection{from: f.after, to: to}, err
	}
	defer f.s.published.work()()
	sel := newSelector(f)
	sel.add(changes, changes[len(changes)-1].Revision)
	f.s.await(ctx, sel.to) // names are looked up in the picture
	return sel.end(), nil
}

// selector selects changes.
type selector struct {
	f *feed
	*selection
	isFull  bool
	scanned int            // changes
	others  int            // selected events that are not about instances
	places  map[string]int // of the changed instances, by id
}

func newSelector(f *feed) *selector {
	return &selector{f: f, selection: &selection{from: f.after, to: f.after}, places: map[string]int{}}
}

// add selects from changes, until there are enough.
func (s *selector) add(changes []store.Change, to int64) {
	for i := range changes {
		c := &changes[i]
		if c.Revision > to {
			s.to = to
			return
		}
		if s.isFull = s.others >= maxSelectedEvents || s.scanned >= maxSelectedChanges || !s.addInstance(c); s.isFull {
			return
		}
		if s.f.isRequested(c) {
			s.events = append(s.events, c)
			if c.Record.Kind != mariposa.KindInstance {
				s.others++
			}
		}
		s.to = c.Revision
		s.scanned++
	}
}

// addInstance notes a change of an instance of the project whose instances are sent; false if
// there are too many.
func (s *selector) addInstance(c *store.Change) bool {
	if s.f.instances == "" || c.Record.Kind != mariposa.KindInstance || c.Record.Project != s.f.instances || c.Event.Kind == "" || !s.f.concerns(c) {
		return true
	}
	at, known := s.places[c.Record.ID]
	if !known {
		if len(s.changed) >= maxSelectedInstances {
			return false
		}
		at = len(s.changed)
		s.places[c.Record.ID] = at
		s.changed = append(s.changed, changedInstance{})
	}
	s.changed[at] = changedInstance{c, c.Spec || s.changed[at].isWhole}
	return true
}

func (s *selector) end() *selection {
	s.events, s.instances = limitInstances(newestOnly(s.events)), len(s.changed)
	return s.selection
}

// newestOnly leaves out progress of tasks and states of instances that later changes supersede:
// their objects show everything. Failures are kept.
func newestOnly(changes []*store.Change) []*store.Change {
	newest := make(map[string]*store.Change, len(changes))
	for _, c := range changes {
		newest[c.Record.ID] = c
	}
	return slices.DeleteFunc(changes, func(c *store.Change) bool {
		isPassing := strings.HasSuffix(c.Event.Kind, ".progress") || (strings.HasPrefix(c.Event.Kind, "instance.") && c.Event.Kind != "instance.failed")
		return isPassing && newest[c.Record.ID] != c
	})
}

// limitInstances leaves out all but the newest events of instances.
func limitInstances(changes []*store.Change) []*store.Change {
	passing, failures := maxPassing, maxFailures
	for i, c := range slices.Backward(changes) {
		left := &passing
		switch {
		case !strings.HasPrefix(c.Event.Kind, "instance."):
			continue
		case c.Event.Kind == "instance.failed", c.Event.Kind == "instance.unhealthy":
			left = &failures
		}
		if *left == 0 {
			changes[i] = nil
			continue
		}
		*left--
	}
	return slices.DeleteFunc(changes, func(c *store.Change) bool { return c == nil })
}
