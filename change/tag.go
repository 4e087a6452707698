package change

import (
	"context"
	"fmt"
	"maps"
	"regexp"
	"slices"

	"mariposa"
	"mariposa/contract"
	"mariposa/store"
)

// The tags that move by themselves: the version in force, the newest one, and the
// newest that was fully in force.
const (
	TagCurrent   = "current"
	TagLatest    = "latest"
	TagCompleted = "completed"
)

// AutomaticTags are the names of those.
var AutomaticTags = []string{TagLatest, TagCurrent, TagCompleted}

var (
	tagPattern = regexp.MustCompile(`^[A-Za-z]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?$`)
	likeHash   = regexp.MustCompile(`^[0-9a-f]{7,40}$`)
)

// maxTags bounds how many tags people give one project.
const maxTags = 1000

// Tags are the tags of a project with their numbers; automatic ones that have
// nothing to name are left out.
func Tags(r *store.Record) map[string]int {
	spec := r.Spec.(*mariposa.ProjectSpec)
	all := maps.Clone(spec.Tags)
	if all == nil {
		all = map[string]int{}
	}
	all[TagLatest] = spec.Number
	if st := statusOf(r); st != nil && st.Number > 0 {
		all[TagCurrent] = st.Number
		if st.Completed > 0 {
			all[TagCompleted] = st.Completed
		}
	}
	return all
}

// SetTag gives a version of a project a tag, or moves it there.
func (c *Changer) SetTag(ctx context.Context, req *Request, project, tag, version string) (*contract.Changed, error) {
	switch {
	case slices.Contains(AutomaticTags, tag):
		return nil, conflict("the tag %s moves by itself: choose another name", tag)
	case !tagPattern.MatchString(tag) || likeHash.MatchString(tag):
		return nil, invalid("tag must begin with a letter, hold 1 to 63 letters, digits, dots, hyphens and underscores, and not look like a hash")
	}
	return c.change(ctx, req, project, func(e *edit) (*attempt, error) {
		found, err := c.FindVersion(ctx, e.record, version)
		if err != nil {
			return nil, err
		}
		v := found.Spec.(*mariposa.VersionSpec)
		e.answer.Version, e.answer.Number = v.Version, v.Number
		if e.spec.Tags[tag] == v.Number {
			return &e.attempt, nil
		}
		if len(e.spec.Tags) >= maxTags {
			return nil, conflict("project %s has %d tags already: take some away", e.spec.Name, len(e.spec.Tags))
		}
		e.spec.Tags = maps.Clone(e.spec.Tags)
		if e.spec.Tags == nil {
			e.spec.Tags = map[string]int{}
		}
		e.spec.Tags[tag] = v.Number
		e.unit.Exists(mariposa.KindVersion, found.ID)
		e.unit.Audit[0].Reason = "tag " + tag
		if was := Tags(e.record)[tag]; was > 0 {
			e.answer.Reason = fmt.Sprintf("the tag %s was at version %d before", tag, was)
		}
		return e.done("version " + numbered(v.Version, v.Number) + " has the tag " + tag)
	})
}

// DeleteTag takes a tag away.
func (c *Changer) DeleteTag(ctx context.Context, req *Request, project, tag string) (*contract.Changed, error) {
	return c.change(ctx, req, project, func(e *edit) (*attempt, error) {
		if slices.Contains(AutomaticTags, tag) {
			return nil, conflict("the tag %s moves by itself and cannot be deleted", tag)
		}
		if _, known := e.spec.Tags[tag]; !known {
			return nil, notFound("project %s has no tag %q", e.spec.Name, shorten(tag))
		}
		e.spec.Tags = maps.Clone(e.spec.Tags)
		delete(e.spec.Tags, tag)
		e.unit.Audit[0].Reason = "tag " + tag
		return e.done("the tag " + tag + " is gone")
	})
}
