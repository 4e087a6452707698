package simulate

import (
	"io"
	"slices"
	"time"

	"mariposa"
	"mariposa/contract"
	"mariposa/store"
	"mariposa/store/memory"
	"mariposa/wire"
)

// A store can go back to an earlier state: a standby takes over that lacks the newest
// changes, a copy of the database takes its place, or a backup is restored. Servers
// notice it by what they have seen, or agents do. This file does what package assembly
// does then.

// process is the process of a server. It survives that the server reads the store again.
type process struct {
	name     string
	known    map[string]bool // the incarnations of the store that it has known
	trusting bool            // it believes a node that has seen a newer store
}

func (w *World) newProcess() *process {
	return &process{name: w.newID(), known: map[string]bool{}, trusting: true}
}

// maxRewinds is how often the store goes back in one history.
const maxRewinds = 2

// rewindChoices lets the store go back in every fifth world.
func (w *World) rewindChoices(add func(int, func())) {
	st := w.rewindable()
	if st == nil || w.rewinds == maxRewinds {
		return
	}
	add(2, func() { w.keepCopy(st) })
	if len(w.copies) > 0 && (w.Graph || w.chance(6)) { // a Graph world has few faults
		add(5, func() {
			w.rewinds++
			w.goBack(w.copies[w.rng.IntN(len(w.copies))].Copy())
		})
	}
}

// rewindable returns the store if it goes back in this world; nil: it does not.
func (w *World) rewindable() *memory.Store {
	if st, ok := w.store.(*memory.Store); ok && w.Seed%5 == 2 {
		return st
	}
	return nil
}

// returnToRest lets people change everything in place, and in half of the worlds more. Then
// it lets the store go back to its state of rest. The machines must return to it by
// themselves.
func (w *World) returnToRest() {
	st := w.rewindable()
	if st == nil {
		return
	}
	rest := st.Copy()
	w.people.asked = w.servers[0]
	w.people.updateInPlace()
	w.faults, w.rewinds = w.chance(2), maxRewinds
	for range 200 {
		w.step()
	}
	w.goBack(rest)
	w.people.open = nil // nobody repeats what is lost
	w.endFaults()
	went := w.now
	for w.now.Sub(went) < time.Hour {
		w.step()
		if w.events%16 == 0 && w.now.Sub(went) > calm && w.caughtUp() && w.isConnected(calm) && w.checker.atRest() == "" {
			w.checker.final()
			w.seen["returned to rest"]++
			return
		}
	}
	w.fail("not at rest an hour after the store went back to a state of rest: %s", w.checker.atRest())
}

// isConnected reports whether every node has had its session for some time, in which it
// could report what it runs.
func (w *World) isConnected(atLeast time.Duration) bool {
	return !slices.ContainsFunc(w.nodes, func(n *node) bool {
		return n.link == nil || n.link.session == nil || w.now.Sub(n.link.opened) < atLeast
	})
}

// keepCopy keeps the present state of the store for later.
func (w *World) keepCopy(st *memory.Store) {
	w.note("the store is copied")
	w.copies = append(w.copies, st.Copy())
	w.copies = w.copies[max(0, len(w.copies)-3):]
}

// goBack replaces the store by an earlier state of it.
func (w *World) goBack(st *memory.Store) {
	newest, at := w.revisionOf(w.store), w.revisionOf(st)
	restored := w.chance(2)
	if restored {
		st = w.restore(st, newest)
		w.seen["backup restored"]++
	} else {
		w.seen["store went back"]++
	}
	w.note("the store goes back from r%d to r%d, with a new incarnation: %t", newest, at, restored)
	w.store = st
	for _, s := range w.servers {
		s.store.Store = st
		s.store.rewound = max(s.picture.Revision(), s.store.newest) > at
	}
	for _, n := range w.nodes {
		n.disturb() // an earlier status says something else about it
	}
	w.checker.goBack()
	w.people.goBack()
}

// restore makes a new incarnation from a backup.
func (w *World) restore(st *memory.Store, replaced int64) *memory.Store {
	d := &dump{}
	if _, err := st.Trim(w.ctx, 0, 1); err != nil { // a backup of a long log takes long
		w.fail("trim the store: %v", err)
	}
	err := st.Dump(w.ctx, store.Dump{
		Head: func(h store.DumpHead) error { d.head = h; return nil },
		Item: func(it *store.DumpItem) error { d.items = append(d.items, it); return nil },
	})
	if err != nil {
		w.fail("back the store up: %v", err)
	}
	next, err := memory.Restore(w.ctx, w.Clock(), d, replaced, memory.WithIncarnations(func(string) string { return w.newID() }))
	if err != nil {
		w.fail("restore the store: %v", err)
	}
	return next
}

// dump is a backup.
type dump struct {
	head  store.DumpHead
	items []*store.DumpItem
}

func (d *dump) Head() store.DumpHead { return d.head }

func (d *dump) Next() (*store.DumpItem, error) {
	if len(d.items) == 0 {
		return nil, io.EOF
	}
	it := d.items[0]
	d.items = d.items[1:]
	return it, nil
}

func (w *World) revisionOf(st store.Store) int64 {
	revision, err := st.Revision(w.ctx)
	if err != nil {
		w.fail("read the revision: %v", err)
	}
	return revision
}

func (w *World) incarnation() string {
	id, err := w.store.Identity(w.ctx)
	if err != nil {
		w.fail("read the identity of the store: %v", err)
	}
	return id.Incarnation
}

// checkRewound notices, by the first call after it, that the store has gone back or has a
// new incarnation. The server then reads it again.
func (h *storeHandle) checkRewound() error {
	if !h.rewound && h.incarnation == h.w.incarnation() {
		return nil
	}
	h.rewound = true
	h.s.readAgain(false)
	return store.ErrRewound
}

// noteOutdated handles a node that has seen a newer state of the store.
func (s *server) noteOutdated(int64) {
	s.w.seen["node has seen more"]++
	s.w.note("a node has seen a newer state of the store")
	s.readAgain(true)
}

// readAgain makes the server read everything from the store again. If a node told it that
// the store has gone back, the store gets a new incarnation, and nodes are not believed
// again.
func (s *server) readAgain(told bool) {
	w, p := s.w, s.process
	w.later = append(w.later, func() {
		if s.life.over {
			return
		}
		w.note("a server reads the store again")
		w.seen["store read again"]++
		if told {
			w.reincarnate(s.store.incarnation)
		}
		s.end()
		s.leave("the server reads the store again")
		p.trusting = p.trusting && !told
		worldClock{w, &lifetime{}}.After(w.pause(2*time.Second), func() {
			if len(w.servers) == max(1, w.Replicas) {
				return
			}
			if is := w.incarnation(); p.known[is] { // nodes know it from the time that is lost
				w.reincarnate(is)
			}
			w.startServer(p)
		})
	})
}

func (w *World) reincarnate(old string) {
	if err := w.store.Reincarnate(w.ctx, old); err != nil {
		w.fail("give the store a new incarnation: %v", err)
	}
}

// seenFile is what a node remembers of the store when its agent crashes. Like the file of
// a real agent, it may be a second behind.
type seenFile struct {
	stored wire.Seen
	at     time.Time
}

func (f *seenFile) write(w *World) func(wire.Seen) {
	return func(seen wire.Seen) {
		if seen.Incarnation != f.stored.Incarnation || w.now.Sub(f.at) >= time.Second {
			f.stored, f.at = seen, w.now
		}
	}
}

// goBack makes people forget what is lost. Requests without an answer are repeated.
func (p *people) goBack() {
	for name := range p.drafts {
		p.left[name] = true
	}
	clear(p.drafts)
	r, err := p.w.store.Get(p.w.ctx, mariposa.KindOrg, organization)
	if err != nil {
		p.w.fail("read the organization: %v", err)
	}
	spec := (*store.Organization)(&r).Spec()
	p.limited = spec.Quota.Instances != nil
}

// purgeChoices removes the quarantined instances of a node.
func (p *people) purgeChoices(add func(int, func())) {
	for _, r := range p.asked.picture.Nodes.All() {
		if st := r.Status(); st != nil && len(st.Quarantined) > 0 {
			add(1, func() { p.actOnNode(r.ID, contract.NodeAction{Action: "purge"}) })
		}
	}
}
