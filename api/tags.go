package api

import (
	"context"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"mariposa"
	"mariposa/contract"
	"mariposa/manifest"
	"mariposa/store"
)

// The tags that move by themselves: the version in force, the newest one, and the
// newest that was fully in force.
const (
	tagCurrent   = "current"
	tagLatest    = "latest"
	tagCompleted = "completed"
)

var (
	automaticTags = []string{tagLatest, tagCurrent, tagCompleted}
	tagPattern    = regexp.MustCompile(`^[A-Za-z]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?$`)
	likeHash      = regexp.MustCompile(`^[0-9a-f]{7,40}$`)
)

// maxTags bounds how many tags people give one project.
const maxTags = 1000

// tags are the tags of a project with their numbers; automatic ones that have
// nothing to name are left out.
func tags(r *store.Record) map[string]int {
	spec := r.Spec.(*mariposa.ProjectSpec)
	all := maps.Clone(spec.Tags)
	if all == nil {
		all = map[string]int{}
	}
	all[tagLatest] = spec.Number
	if st := statusOf(r); st != nil && st.Number > 0 {
		all[tagCurrent] = st.Number
		if st.Completed > 0 {
			all[tagCompleted] = st.Completed
		}
	}
	return all
}

func (v *viewer) tag(r *store.Record, name string, number int) contract.Tag {
	return contract.Tag{Tag: name, Version: v.sha(r.ID, number), Number: number, Automatic: slices.Contains(automaticTags, name)}
}

func (s *server) listTags(ctx context.Context, in *OfProject) (*document[contract.Tags], error) {
	r, err := s.findProject(ctx, in.Project, in.Organization)
	if err != nil {
		return nil, err
	}
	v, all := s.viewer(ctx), contract.Tags{Tags: []contract.Tag{}}
	for name, number := range tags(r) {
		all.Tags = append(all.Tags, v.tag(r, name, number))
	}
	slices.SortFunc(all.Tags, func(a, b contract.Tag) int { return strings.Compare(a.Tag, b.Tag) })
	return answer(all)
}

type ofTag struct {
	OfProject
	Tag string `path:"tag" maxLength:"255"`
}

func (s *server) getTag(ctx context.Context, in *ofTag) (*document[contract.Tag], error) {
	r, err := s.findProject(ctx, in.Project, in.Organization)
	if err != nil {
		return nil, err
	}
	number, known := tags(r)[in.Tag]
	if !known {
		return nil, notFound("project %s has no tag %q", r.Spec.(*mariposa.ProjectSpec).Name, shorten(in.Tag))
	}
	return answer(s.viewer(ctx).tag(r, in.Tag, number))
}

type createTagInput struct {
	OfProject
	Body contract.NewTag
}

func (s *server) createTag(ctx context.Context, in *createTagInput) (*document[contract.Changed], error) {
	tag := in.Body.Tag
	switch {
	case slices.Contains(automaticTags, tag):
		return nil, conflict("the tag %s moves by itself: choose another name", tag)
	case !tagPattern.MatchString(tag) || likeHash.MatchString(tag):
		return nil, invalid("tag must begin with a letter, hold 1 to 63 letters, digits, dots, hyphens and underscores, and not look like a hash")
	}
	return s.change(ctx, in.OfProject, func(e *edit) (*change, error) {
		found, err := s.findVersion(ctx, e.record, in.Body.Version)
		if err != nil {
			return nil, err
		}
		v := found.Spec.(*mariposa.VersionSpec)
		e.answer.Version, e.answer.Number = v.Version, v.Number
		if e.spec.Tags[tag] == v.Number {
			return &e.change, nil
		}
		if len(e.spec.Tags) >= maxTags {
			return nil, conflict("project %s has %d tags already: take some away", e.spec.Name, len(e.spec.Tags))
		}
		e.spec.Tags = maps.Clone(e.spec.Tags)
		if e.spec.Tags == nil {
			e.spec.Tags = map[string]int{}
		}
		e.spec.Tags[tag] = v.Number
		e.unit.Require = append(e.unit.Require, store.Require{Kind: mariposa.KindVersion, ID: found.ID, SpecRevision: -1, StatusRevision: -1})
		e.unit.Audit[0].Reason = "tag " + tag
		if was := tags(e.record)[tag]; was > 0 {
			e.answer.Reason = fmt.Sprintf("the tag %s was at version %d before", tag, was)
		}
		return e.done("version " + numbered(v.Version, v.Number) + " has the tag " + tag)
	})
}

func (s *server) deleteTag(ctx context.Context, in *ofTag) (*document[contract.Changed], error) {
	return s.change(ctx, in.OfProject, func(e *edit) (*change, error) {
		if slices.Contains(automaticTags, in.Tag) {
			return nil, conflict("the tag %s moves by itself and cannot be deleted", in.Tag)
		}
		if _, known := e.spec.Tags[in.Tag]; !known {
			return nil, notFound("project %s has no tag %q", e.spec.Name, shorten(in.Tag))
		}
		e.spec.Tags = maps.Clone(e.spec.Tags)
		delete(e.spec.Tags, in.Tag)
		e.unit.Audit[0].Reason = "tag " + in.Tag
		return e.done("the tag " + in.Tag + " is gone")
	})
}

type diffVersionsInput struct {
	OfProject
	From string `query:"from" doc:"a version; the one in force if left out" maxLength:"255"`
	To   string `query:"to" doc:"a version; the newest if left out" maxLength:"255"`
}

func (s *server) diffVersions(ctx context.Context, in *diffVersionsInput) (*document[contract.Diff], error) {
	r, err := s.findProject(ctx, in.Project, in.Organization)
	if err != nil {
		return nil, err
	}
	from, err := s.findVersion(ctx, r, firstOf(in.From, tagCurrent))
	if err != nil {
		return nil, err
	}
	to, err := s.findVersion(ctx, r, firstOf(in.To, tagLatest))
	if err != nil {
		return nil, err
	}
	v := s.viewer(ctx)
	a, err := s.Shelf.Version(ctx, r.ID, from.Spec.(*mariposa.VersionSpec).Number)
	if err != nil {
		return nil, err
	}
	b, err := s.Shelf.Version(ctx, r.ID, to.Spec.(*mariposa.VersionSpec).Number)
	if err != nil {
		return nil, err
	}
	doc := contract.Diff{From: v.versionDoc(from), To: v.versionDoc(to), Services: []contract.ServiceDiff{}, Metadata: []contract.ValueDiff{}}
	doc.From.Manifest, doc.To.Manifest = string(yamlOf(a.Spec)), string(yamlOf(b.Spec))
	for _, d := range manifest.Diff(a.Manifest, b.Manifest) {
		if d.Change != manifest.Unchanged {
			doc.Services = append(doc.Services, serviceDiff(d))
		}
	}
	for _, c := range manifest.DiffValues(v.hushed(r.ID, a.Values.Marked(b.Manifest)), v.hushed(r.ID, b.Values.Marked(a.Manifest))) {
		doc.Metadata = append(doc.Metadata, contract.ValueDiff{Key: c.Key, Change: string(c.Kind), Secret: c.Secret, Before: c.Before, After: c.After})
	}
	return answer(doc)
}

func serviceDiff(d manifest.Difference) contract.ServiceDiff {
	out := contract.ServiceDiff{Service: d.Service, Change: string(d.Change), Fields: []contract.FieldDiff{}}
	for _, f := range d.Fields {
		out.Fields = append(out.Fields, contract.FieldDiff{Field: f.Field, Before: f.Old, After: f.New})
	}
	return out
}
