package store

import "mariposa"

// Exists demands that there is an object, whatever it is by now.
func (u *Unit) Exists(kind mariposa.Kind, id string) {
	u.Require = append(u.Require, Require{Kind: kind, ID: id, SpecRevision: -1, StatusRevision: -1})
}

// Absent demands that there is no such object.
func (u *Unit) Absent(kind mariposa.Kind, id string) {
	u.Require = append(u.Require, Require{Kind: kind, ID: id, Absent: true})
}

// Unchanged demands that the Spec of an object is as it was read.
func (u *Unit) Unchanged(r *Record) {
	u.Require = append(u.Require, Require{Kind: r.Kind, ID: r.ID, SpecRevision: r.SpecRevision, StatusRevision: -1})
}

// Put adds writes.
func (u *Unit) Put(writes ...Write) { u.Writes = append(u.Writes, writes...) }
