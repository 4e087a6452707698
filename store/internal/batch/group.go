// Package batch contains what the group commits of all durable stores share: a queue in
// which callers wait until their units are taken, and the computation of a group's
// result.
//
// It owns the order of units within a group and their atomicity. It does not know how a
// group is made durable: a store reads what the group will touch, applies the units here,
// and writes the result in one transaction.
package batch

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"time"

	"mariposa"
	"mariposa/store"
	"mariposa/store/internal/codec"
)

// Key names an object.
type Key struct {
	Kind mariposa.Kind
	ID   string
}

// Base is the durable state on which a group builds.
type Base interface {
	Object(Key) *codec.Object // nil: there is none
	Lease(name string) store.Lease
	Claimed(node string) mariposa.Resources
	Audited() store.AuditMark
}

// Group applies units, one after the other, on top of a base that it does not change.
// The result is in the fields; dropping the group undoes all of it.
type Group struct {
	Now      time.Time
	Revision int64 // of the newest change

	Changes []store.Change
	After   []*codec.Object // the record of each change, with its encodings

	Objects map[Key]*codec.Object // written by the group; nil: removed
	Leases  map[string]store.Lease
	Ledger  map[string]mariposa.Resources

	Audit []Entry         // in order
	Mark  store.AuditMark // after them

	// ExtraActions are additional steps of actions in the group's transaction.
	ExtraActions []func(context.Context) error

	base Base
}

// NewGroup begins a group on a base whose newest change has the given revision.
func NewGroup(base Base, revision int64, now time.Time) *Group {
	return &Group{
		Now:      now,
		Revision: revision,
		Objects:  make(map[Key]*codec.Object),
		Leases:   make(map[string]store.Lease),
		Ledger:   make(map[string]mariposa.Resources),
		Mark:     base.Audited(),
		base:     base,
	}
}

// Dirty reports whether there is anything to write.
func (g *Group) Dirty() bool {
	return len(g.Changes) > 0 || len(g.Leases) > 0 || len(g.Ledger) > 0 || len(g.Audit) > 0 || len(g.ExtraActions) > 0
}

// Written returns the keys of the objects that the group wrote, sorted: an object that
// changed several times costs as much as one that changed once.
func (g *Group) Written() []Key {
	keys := slices.Collect(maps.Keys(g.Objects))
	slices.SortFunc(keys, func(a, b Key) int {
		return cmp.Or(cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.ID, b.ID))
	})
	return keys
}

// Tag is codec.Tag.
type Tag = codec.Tag

// Tags returns the projects and tasks of the group's changes, by which histories are
// looked up, and divides the bytes of their chunk among the projects.
func (g *Group) Tags(chunk codec.Chunk) (projects []Tag, tasks []string) {
	tags := codec.NewTags()
	for i := range g.Changes {
		tags.Add(&g.Changes[i], chunk.Sizes[i])
	}
	return tags.Divide(len(chunk.Body), chunk.Size)
}

// Apply adds a unit completely or not at all: all its requirements are checked before its
// first write.
func (g *Group) Apply(u *Unit) store.Result {
	if u.Err != nil {
		return store.Result{Err: u.Err}
	}
	claimed, err := g.check(u.Unit)
	if err != nil {
		return store.Result{Err: err}
	}
	for node, r := range claimed {
		g.Ledger[node] = r
	}
	var result store.Result
	for i := range u.Writes {
		if !g.write(&u.Writes[i], &u.Halves[i]) {
			continue
		}
		result.Last = g.Revision
		if result.First == 0 {
			result.First = g.Revision
		}
	}
	for _, e := range u.Entries {
		e.ID, e.Time = g.Mark.Next(g.Now), g.Now
		g.Audit = append(g.Audit, e)
	}
	return result
}

func (g *Group) check(u *store.Unit) (map[string]mariposa.Resources, error) {
	for i := range u.Fences {
		if err := u.Fences[i].Check(g.lease(u.Fences[i].Lease), g.Now); err != nil {
			return nil, err
		}
	}
	for i := range u.Require {
		if err := u.Require[i].Check(record(g.object(Key{u.Require[i].Kind, u.Require[i].ID}))); err != nil {
			return nil, err
		}
	}
	if len(u.Claims) == 0 {
		return nil, nil
	}
	claimed := make(map[string]mariposa.Resources, len(u.Claims))
	for i := range u.Claims {
		c := &u.Claims[i]
		have, seen := claimed[c.Node]
		if !seen {
			have = g.claimed(c.Node)
		}
		sum, err := c.Apply(have)
		if err != nil {
			return nil, err
		}
		claimed[c.Node] = sum
	}
	return claimed, nil
}

func (g *Group) write(w *store.Write, h *Halves) bool {
	key := Key{w.Kind, w.ID}
	old := g.object(key)
	change, changed := w.Apply(record(old), g.Revision+1, g.Now)
	if !changed {
		return false
	}
	g.Revision++
	g.Changes = append(g.Changes, change.Logged())
	if change.Deleted {
		g.After = append(g.After, old)
		g.Objects[key] = nil
		return true
	}
	o := &codec.Object{Record: change.Record, SpecJSON: h.Spec, StatusJSON: h.Status}
	if old != nil && !change.Spec {
		o.SpecJSON = old.SpecJSON
	}
	if old != nil && !change.Status {
		o.StatusJSON = old.StatusJSON
	}
	g.After = append(g.After, o)
	g.Objects[key] = o
	return true
}

func record(o *codec.Object) *store.Record {
	if o == nil {
		return nil
	}
	return &o.Record
}

func (g *Group) object(k Key) *codec.Object {
	if o, written := g.Objects[k]; written {
		return o
	}
	return g.base.Object(k)
}

func (g *Group) lease(name string) store.Lease {
	if l, written := g.Leases[name]; written {
		return l
	}
	return g.base.Lease(name)
}

func (g *Group) claimed(node string) mariposa.Resources {
	if r, written := g.Ledger[node]; written {
		return r
	}
	return g.base.Claimed(node)
}

// Hold takes those of the named leases that are free.
func (g *Group) Hold(holder string, ttl time.Duration, names ...string) []store.Lease {
	var held []store.Lease
	for _, name := range names {
		if l, ok := g.lease(name).Held(holder, g.Now, g.Now.Add(ttl)); ok {
			g.Leases[name] = l
			held = append(held, l)
		}
	}
	return held
}

// Seize takes a lease by force.
func (g *Group) Seize(holder, name string) store.Lease {
	l := g.lease(name).Seized(holder)
	g.Leases[name] = l
	return l
}

// Announce sets the note of a lease that the holder has.
func (g *Group) Announce(holder, name, note string) error {
	l, err := g.lease(name).Announced(holder, note, g.Now)
	if err == nil {
		g.Leases[name] = l
	}
	return err
}

// Release releases those of the named leases that the holder has.
func (g *Group) Release(holder string, names ...string) {
	for _, name := range names {
		if l := g.lease(name); l.Holder == holder {
			g.Leases[name] = l.Released()
		}
	}
}
