package change

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"

	"mariposa"
	"mariposa/contract"
	"mariposa/manifest"
	"mariposa/picture"
	"mariposa/store"
)

// Stored returns what the store keeps of a project, and its limit.
func (c *Changer) Stored(ctx context.Context, project *store.Project) (*contract.Stored, error) {
	sizes, err := c.Store.Sizes(ctx, project.ID)
	if err != nil {
		return nil, err
	}
	events, err := c.Store.LogSizes(ctx, project.ID)
	if err != nil {
		return nil, err
	}
	doc := &contract.Stored{Versions: sizes[mariposa.KindVersion], Metadata: sizes[mariposa.KindMetadata] + sizes[mariposa.KindPart]}
	doc.Total, doc.Limit = doc.Versions+doc.Metadata, storedLimit(c.Picture, project.Spec().Organization)
	doc.Events, doc.EventsLimit = roundEvents(events[project.ID].Bytes), eventsShare(doc.Limit)
	return doc, nil
}

// roundEvents rounds the bytes of a project's events. They are compressed together with
// those of other projects, so the exact number could reveal something about these.
func roundEvents(n int64) int64 {
	const step = 4 << 10
	return (n + step - 1) / step * step
}

// EventsLimit returns how many bytes of events are kept of a project. A deleted project
// has the default limit.
func EventsLimit(pic *picture.Picture, project string) int64 {
	if r := pic.Projects.Get(project); r != nil {
		return eventsShare(storedLimit(pic, r.Spec().Organization))
	}
	return eventsShare(storedLimitOf(pic, mariposa.Quota{}))
}

// eventsShare returns how many bytes of events are kept in addition to the stored data:
// a quarter of its limit, with a useful minimum.
func eventsShare(limit int64) int64 { return max(limit/4, 1<<20) }

// storedBy returns what the store keeps of all projects of an organization.
func (c *Changer) storedBy(ctx context.Context, org string) (objects, events int64, err error) {
	var ids []string
	for _, p := range c.Picture.ProjectsOf(org) {
		sizes, err := c.Store.Sizes(ctx, p.ID)
		if err != nil {
			return 0, 0, err
		}
		for _, n := range sizes {
			objects += n
		}
		ids = append(ids, p.ID)
	}
	if len(ids) == 0 {
		return 0, 0, nil
	}
	logged, err := c.Store.LogSizes(ctx, ids...)
	for _, size := range logged {
		events += roundEvents(size.Bytes)
	}
	return objects, events, err
}

// storedLimit returns how many bytes may be stored for each project of an organization.
func storedLimit(pic *picture.Picture, org string) int64 {
	if r := pic.Orgs.Get(org); r != nil {
		return storedLimitOf(pic, r.Spec().Quota)
	}
	return storedLimitOf(pic, mariposa.Quota{})
}

func storedLimitOf(pic *picture.Picture, q mariposa.Quota) int64 {
	for _, n := range []*int64{q.StoredPerProject, settingsOf(pic).StoredPerProject} {
		if n != nil {
			return *n
		}
	}
	return mariposa.DefaultStoredPerProject
}

// prune deletes the oldest versions: those beyond the number that is kept, and as many
// more as necessary to stay within the limit of the project. It never deletes versions
// that have a tag, are in force or being rolled out, have running instances, or are the
// target of a revert. If these alone exceed the limit, a change that adds to them is
// refused.
func (e *edit) prune(isSmaller bool) error {
	over := len(e.spec.Versions) - e.keepVersions()
	limit := storedLimit(e.c.Picture, e.spec.Organization)
	stored, err := e.storedAfter()
	if err != nil || over <= 0 && stored.total() <= limit {
		return err
	}
	needed, err := e.neededVersions()
	if err != nil {
		return err
	}
	for i, n := range slices.Clone(e.spec.Versions) {
		if needed[n] || i >= over && stored.total()-e.freed <= limit {
			continue
		}
		e.spec.Versions = slices.DeleteFunc(slices.Clone(e.spec.Versions), func(kept int) bool { return kept == n })
		if err := e.forget(n); err != nil {
			return err
		}
	}
	if stored.total()-e.freed <= limit || isSmaller {
		return nil
	}
	return mariposa.Errorf(mariposa.QuotaExceeded,
		"project %s would store %s (versions %s, metadata %s), and its limit is %s, although unused older versions are already deleted: remove tags, replace instances of old versions, make the manifest or the metadata smaller, or ask an installation admin to raise the limit",
		e.spec.Name, formatBytes(stored.total()-e.freed), formatBytes(stored.versions), formatBytes(stored.metadata), formatBytes(limit))
}

// formatBytes formats a number of bytes.
func formatBytes(n int64) string {
	if n < 1<<20 {
		return fmt.Sprintf("%d KiB", n>>10)
	}
	return formatMegabytes(n)
}

// storedBytes are the bytes of a project.
type storedBytes struct{ versions, metadata int64 }

func (s storedBytes) total() int64 { return s.versions + s.metadata }

// storedAfter is what is stored of the project once this change is made, before anything
// is forgotten.
func (e *edit) storedAfter() (storedBytes, error) {
	sizes, err := e.c.Store.Sizes(e.ctx, e.record.ID)
	if err != nil {
		return storedBytes{}, err
	}
	s := storedBytes{versions: sizes[mariposa.KindVersion], metadata: sizes[mariposa.KindMetadata] + sizes[mariposa.KindPart]}
	for _, w := range e.unit.Writes {
		switch w.Kind {
		case mariposa.KindVersion:
			s.versions += encodedSize(w.Spec)
		case mariposa.KindMetadata, mariposa.KindPart:
			s.metadata += encodedSize(w.Spec)
		}
	}
	return s, nil
}

// encodedSize is about what a half of an object takes up in a store; nothing for none.
func encodedSize(half any) int64 {
	if half == nil {
		return 0
	}
	b, _ := json.Marshal(half) // what cannot be encoded is not stored either
	return int64(len(b))
}

// neededVersions are those that must not be forgotten.
func (e *edit) neededVersions() (map[int]bool, error) {
	needed := e.inUse()
	e.c.Picture.EachInstanceOf(e.record.ID, func(r *store.Instance) bool {
		for _, n := range append(r.Spec().Bindings.Numbers(), r.Spec().Number) {
			needed[n] = true
		}
		return true
	})
	target, err := e.revertTargetAfter()
	needed[target] = true
	return needed, err
}

// revertTargetAfter is the version that a revert would go back to once this change is
// made: the newest that was fully in force and is not the same as the newest. 0: none.
func (e *edit) revertTargetAfter() (int, error) {
	for _, n := range slices.Backward(e.spec.Versions) {
		if n == e.spec.Number {
			continue
		}
		r, err := e.c.Store.Get(e.ctx, mariposa.KindVersion, mariposa.VersionID(e.record.ID, n))
		if err != nil {
			if isLost(err) {
				continue
			}
			return 0, err
		}
		v := (*store.Version)(&r)
		if st := v.Status(); st != nil && !st.Completed.IsZero() && v.Spec().Version != e.spec.Version {
			return n, nil
		}
	}
	return 0, nil
}

// isSmaller reports whether a draft takes less than the version before it: that is let
// through whatever is stored, as it is the way to get below a limit.
func isSmaller(d draft, values *manifest.Values, was *picture.Version) bool {
	if was == nil {
		return false
	}
	size := func(doc []byte, v *manifest.Values) int {
		if v == nil {
			return len(doc)
		}
		return len(doc) + len(v.Document)
	}
	return size(d.bytes, values) < size(was.Spec.Manifest, was.Values)
}
