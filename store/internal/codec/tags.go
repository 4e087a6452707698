package codec

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"mariposa"
	"mariposa/store"
)

// Tag records that a chunk contains changes of a project, and how much of the chunk
// belongs to it.
type Tag struct {
	Project string
	store.LogSize
}

// Tags collects the projects and tasks of a chunk's changes.
type Tags struct {
	projects map[string]store.LogSize
	tasks    map[string]struct{}
}

// NewTags returns tags of no changes.
func NewTags() *Tags {
	return &Tags{projects: make(map[string]store.LogSize), tasks: make(map[string]struct{})}
}

// Add adds a change with its size before compression.
func (t *Tags) Add(c *store.Change, size int) {
	if _, known := t.projects[c.Event.Project]; !known && c.Event.Project != "" { // it may differ from the record's project
		t.projects[c.Event.Project] = store.LogSize{}
	}
	n := t.projects[c.Owner()]
	t.projects[c.Owner()] = store.LogSize{Changes: n.Changes + 1, Bytes: n.Bytes + int64(size)}
	t.tasks[c.Event.Task] = struct{}{}
}

// Divide returns the tags, and divides the bytes of the chunk among the projects.
func (t *Tags) Divide(compressed, plain int) (projects []Tag, tasks []string) {
	delete(t.tasks, "")
	for _, name := range slices.Sorted(maps.Keys(t.projects)) {
		n := t.projects[name]
		n.Bytes = n.Bytes * int64(compressed) / int64(max(1, plain))
		projects = append(projects, Tag{name, n})
	}
	return projects, slices.Sorted(maps.Keys(t.tasks))
}

// TagsOf returns the tags of a stored chunk, and checks that it can be read.
func (c *Codec) TagsOf(chunk *store.EncodedChunk) (projects []Tag, tasks []string, err error) {
	tags, plain, end := NewTags(), 1, int64(0)
	err = c.eachEntry(chunk.First, chunk.Body, func(e Entry, encoded []byte) {
		tags.Add(e.Head(), len(encoded))
		plain, end = plain+len(encoded), e.Head().Revision
	})
	if err == nil && (end == 0 || end > chunk.Last) {
		err = fmt.Errorf("%w at revision %d: it ends at revision %d instead of %d", errDamaged, chunk.First, end, chunk.Last)
	}
	if err != nil {
		return nil, nil, err
	}
	projects, tasks = tags.Divide(len(chunk.Body), plain)
	return projects, tasks, nil
}

// ArchivedState returns what the store keeps in a column of its own: the state of an
// archived task; empty for everything else. It checks that the halves of the object can
// be read.
func ArchivedState(o *store.EncodedObject) (mariposa.TaskState, error) {
	r := store.Record{Kind: o.Kind, ID: o.ID, Archived: o.Archived}
	var err error
	if len(o.Spec) == 0 || mariposa.NewSpec(o.Kind) == nil {
		return "", fmt.Errorf("%s %s: it has no spec, or its kind is unknown", o.Kind, o.ID)
	}
	if r.Spec, r.Status, err = decode(o.Kind, o.Spec, o.Status); err != nil {
		return "", fmt.Errorf("%s %s: %w", o.Kind, o.ID, err)
	}
	return r.ArchivedState(), nil
}

// DecodeObject returns the record of an encoded object.
func DecodeObject(o *store.EncodedObject) (store.Record, error) {
	r := store.Record{
		Kind: o.Kind, ID: o.ID, Project: o.Project, Archived: o.Archived,
		Revision: o.Revision, SpecRevision: o.SpecRevision, StatusRevision: o.StatusRevision,
	}
	var err error
	r.Spec, r.Status, err = decode(o.Kind, o.Spec, o.Status)
	return r, err
}

// AuditOf decodes an entry of the audit log in the form that every store accepts.
func AuditOf(e *store.EncodedAudit) (mariposa.Audit, error) {
	a, err := DecodeAudit(e.ID, e.At, e.Body)
	return store.CleanAudit(a), err
}

// EncodeAudit encodes an entry of the audit log.
func EncodeAudit(a *mariposa.Audit) (*store.EncodedAudit, error) {
	body, err := Audit(a)
	return &store.EncodedAudit{ID: a.ID, At: a.Time, Body: body}, err
}

// ChunkOf encodes changes that follow each other, except for those that were removed in
// between.
func (c *Codec) ChunkOf(first, last int64, at time.Time, changes []store.Change) (*store.EncodedChunk, error) {
	objects := make([]*Object, len(changes))
	for i := range changes {
		objects[i] = &Object{Record: changes[i].Record}
	}
	chunk, err := c.Chunk(changes, objects)
	return &store.EncodedChunk{First: first, Last: last, At: at, Body: chunk.Body}, err
}
