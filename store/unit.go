package store

import "mariposa"

// Exists requires that an object exists, at any revision.
func (u *Unit) Exists(kind mariposa.Kind, id string) {
	u.Require = append(u.Require, Require{Kind: kind, ID: id, SpecRevision: -1, StatusRevision: -1})
}

// Absent requires that there is no such object.
func (u *Unit) Absent(kind mariposa.Kind, id string) {
	u.Require = append(u.Require, Require{Kind: kind, ID: id, Absent: true})
}

// Unchanged requires that the Spec of an object is as it was read.
func (u *Unit) Unchanged(read Any) {
	r := read.Record()
	u.Require = append(u.Require, Require{Kind: r.Kind, ID: r.ID, SpecRevision: r.SpecRevision, StatusRevision: -1})
}

// StatusUnchanged requires that the Status of an object is as it was read.
func (u *Unit) StatusUnchanged(read Any) {
	r := read.Record()
	u.Require = append(u.Require, Require{Kind: r.Kind, ID: r.ID, SpecRevision: -1, StatusRevision: r.StatusRevision})
}

// Put adds writes.
func (u *Unit) Put(writes ...Write) { u.Writes = append(u.Writes, writes...) }

// Delete adds the removal of an object.
func (u *Unit) Delete(kind mariposa.Kind, id string, event mariposa.Event) {
	u.Put(Write{Kind: kind, ID: id, Delete: true, Event: event})
}

// Take adds a claim. Zero fields of the limit: no limit.
func (u *Unit) Take(node string, take, limit mariposa.Resources) {
	u.Claims = append(u.Claims, Claim{Node: node, Take: take, Limit: limit})
}

// GiveBack adds a claim that returns an earlier one.
func (u *Unit) GiveBack(node string, taken mariposa.Resources) {
	u.Take(node, mariposa.Resources{}.Minus(taken), mariposa.Resources{})
}
