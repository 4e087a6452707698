package change

import (
	"context"
	"errors"
	"strconv"

	"mariposa"
	"mariposa/store"
)

// FindVersion finds a version of a project by number, tag or hash. Where the
// same manifest was submitted more than once, the newest is meant.
func (c *Changer) FindVersion(ctx context.Context, project *store.Record, ref string) (*store.Record, error) {
	number, tagged := Tags(project)[ref]
	if !tagged {
		number, _ = strconv.Atoi(ref)
	}
	if number > 0 {
		r, err := c.Store.Get(ctx, mariposa.KindVersion, mariposa.VersionID(project.ID, number))
		if err == nil || !errors.Is(err, store.ErrNotFound) {
			return &r, err
		}
	}
	if len(ref) >= 7 && len(ref) <= 40 {
		return c.findHash(ctx, project, ref)
	}
	return nil, noVersion(project, ref)
}

func noVersion(project *store.Record, ref string) error {
	return notFound("project %s has no version %q: use a number, or at least 7 characters of the hash", project.Spec.(*mariposa.ProjectSpec).Name, ref)
}

// findHash looks through the versions a few at a time: manifests may be large.
func (c *Changer) findHash(ctx context.Context, project *store.Record, ref string) (*store.Record, error) {
	var found *store.Record
	q := store.Query{Kind: mariposa.KindVersion, Project: project.ID, Limit: 20}
	for {
		page, err := c.Store.List(ctx, q)
		if err != nil {
			return nil, err
		}
		for i := range page {
			spec := page[i].Spec.(*mariposa.VersionSpec)
			switch {
			case !IsVersion(ref, spec.Version, spec.Number):
			case found == nil:
				found = &page[i]
			case found.Spec.(*mariposa.VersionSpec).Version != spec.Version:
				return nil, invalid("%q means more than one version: use more characters of the hash", ref)
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

// definition is what a version says of a service; nil when it says nothing.
func (e *edit) definition(number int, service string) *mariposa.Service {
	if v, _ := e.readable(number); v != nil { // what cannot be read says nothing
		return v.Services[service]
	}
	return nil
}

func (e *edit) sha(number int) string {
	if v, _ := e.readable(number); v != nil { // likewise
		return v.Spec.Version
	}
	return ""
}
