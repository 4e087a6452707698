package change

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"

	"mariposa"
	"mariposa/contract"
	"mariposa/store"
)

// FindVersion finds a version of a project by number, tag or hash. If the same
// manifest was submitted more than once, a hash means the newest.
func (c *Changer) FindVersion(ctx context.Context, project *store.Project, ref string) (*store.Version, error) {
	number, tagged := Tags(project)[ref]
	if !tagged {
		number, _ = strconv.Atoi(ref)
	}
	if number > 0 {
		r, err := c.Store.Get(ctx, mariposa.KindVersion, mariposa.VersionID(project.ID, number))
		if err == nil || !errors.Is(err, store.ErrNotFound) {
			return (*store.Version)(&r), err
		}
	}
	if len(ref) >= 7 && len(ref) <= 40 {
		return c.findHash(ctx, project, ref)
	}
	return nil, noVersion(project, ref)
}

func noVersion(project *store.Project, ref string) error {
	return notFound("project %s has no version %q: use a version number, or at least 7 characters of its hash", project.Spec().Name, ref)
}

// findHash looks through the versions a few at a time: manifests may be large.
func (c *Changer) findHash(ctx context.Context, project *store.Project, ref string) (*store.Version, error) {
	var found *store.Version
	q := store.Query{Kind: mariposa.KindVersion, Project: project.ID, Limit: 20}
	for {
		page, err := c.Store.List(ctx, q)
		if err != nil {
			return nil, err
		}
		for i := range page {
			v := (*store.Version)(&page[i])
			spec := v.Spec()
			switch {
			case !IsVersion(ref, spec.Version, spec.Number):
			case found == nil:
				found = v
			case found.Spec().Version != spec.Version:
				return nil, invalid("%q matches more than one version: use more characters of the hash", ref)
			}
		}
		if len(page) < q.Limit {
			break
		}
		q.Before = page[len(page)-1].ID
	}
	if found == nil {
		return nil, noVersion(project, ref)
	}
	return found, nil
}

// definition returns a version's definition of a service; nil if it has none.
func (e *edit) definition(number int, service string) *mariposa.Service {
	if v, _ := e.readVersion(number); v != nil { // an unreadable version defines nothing
		return v.Services[service]
	}
	return nil
}

func (e *edit) sha(number int) string {
	if v, _ := e.readVersion(number); v != nil { // likewise
		return v.Spec.Version
	}
	return ""
}

// The automatic tags: the version in force, the newest one, and the newest that
// completed.
const (
	TagCurrent   = "current"
	TagLatest    = "latest"
	TagCompleted = "completed"
)

// AutomaticTags are the names of the automatic tags.
var AutomaticTags = []string{TagLatest, TagCurrent, TagCompleted}

var (
	tagPattern  = regexp.MustCompile(`^[A-Za-z]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?$`)
	hashPattern = regexp.MustCompile(`^[0-9a-f]{7,40}$`)
)

// maxTags bounds the number of user-defined tags of a project.
const maxTags = 1000

// Tags returns the tags of a project with their version numbers, without automatic
// ones that name nothing yet.
func Tags(r *store.Project) map[string]int {
	spec := r.Spec()
	all := maps.Clone(spec.Tags)
	if all == nil {
		all = map[string]int{}
	}
	all[TagLatest] = spec.Number
	if st := r.Status(); st != nil && st.Number > 0 {
		all[TagCurrent] = st.Number
		if st.Completed > 0 {
			all[TagCompleted] = st.Completed
		}
	}
	return all
}

// SetTag adds a tag to a version of a project, or moves it there.
func (c *Changer) SetTag(ctx context.Context, req *Request, project, tag, version string) (*contract.Changed, error) {
	switch {
	case slices.Contains(AutomaticTags, tag):
		return nil, conflict("tag %s is set automatically: choose another name", tag)
	case !tagPattern.MatchString(tag) || hashPattern.MatchString(tag):
		return nil, invalid("invalid tag: use 1 to 63 letters, digits, dots, hyphens and underscores, beginning with a letter, and nothing that looks like a hash")
	}
	return c.change(ctx, req, project, func(e *edit) (*attempt, error) {
		found, err := c.FindVersion(ctx, e.record, version)
		if err != nil {
			return nil, err
		}
		v := found.Spec()
		e.answer.Version, e.answer.Number = v.Version, v.Number
		if e.spec.Tags[tag] == v.Number {
			return &e.attempt, nil
		}
		if len(e.spec.Tags) >= maxTags {
			return nil, conflict("project %s already has %d tags: delete some first", e.spec.Name, len(e.spec.Tags))
		}
		e.spec.Tags = maps.Clone(e.spec.Tags)
		if e.spec.Tags == nil {
			e.spec.Tags = map[string]int{}
		}
		e.spec.Tags[tag] = v.Number
		e.unit.Exists(mariposa.KindVersion, found.ID)
		e.unit.Audit[0].Reason = "tag " + tag
		if was := Tags(e.record)[tag]; was > 0 {
			e.answer.Reason = fmt.Sprintf("tag %s was on version %d before", tag, was)
		}
		return e.finish("version " + versionLabel(v.Version, v.Number) + " has tag " + tag)
	})
}

// DeleteTag removes a tag.
func (c *Changer) DeleteTag(ctx context.Context, req *Request, project, tag string) (*contract.Changed, error) {
	return c.change(ctx, req, project, func(e *edit) (*attempt, error) {
		if slices.Contains(AutomaticTags, tag) {
			return nil, conflict("tag %s is set automatically and cannot be deleted", tag)
		}
		if _, known := e.spec.Tags[tag]; !known {
			return nil, notFound("project %s has no tag %q", e.spec.Name, shorten(tag))
		}
		e.spec.Tags = maps.Clone(e.spec.Tags)
		delete(e.spec.Tags, tag)
		e.unit.Audit[0].Reason = "tag " + tag
		return e.finish("tag " + tag + " was deleted")
	})
}
