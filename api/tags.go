package api

import (
	"cmp"
	"context"
	"slices"
	"strings"

	"mariposa/change"
	"mariposa/contract"
	"mariposa/manifest"
	"mariposa/store"
)

func (v *viewer) tag(r *store.Project, name string, number int) contract.Tag {
	return contract.Tag{Tag: name, Version: v.sha(r.ID, number), Number: number, Automatic: slices.Contains(change.AutomaticTags, name)}
}

func (s *server) listTags(ctx context.Context, in *OfProject) (*document[contract.Tags], error) {
	r, err := s.findProject(ctx, in.Project, in.Organization)
	if err != nil {
		return nil, err
	}
	v, all := s.viewer(ctx), contract.Tags{Tags: []contract.Tag{}}
	for name, number := range change.Tags(r) {
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
	number, known := change.Tags(r)[in.Tag]
	if !known {
		return nil, notFound("project %s has no tag %q", r.Spec().Name, shortenText(in.Tag))
	}
	return answer(s.viewer(ctx).tag(r, in.Tag, number))
}

type createTagInput struct {
	OfProject
	Body contract.NewTag
}

func (s *server) createTag(ctx context.Context, in *createTagInput) (*document[contract.Changed], error) {
	r, err := s.findProject(ctx, in.Project, in.Organization)
	if err != nil {
		return nil, err
	}
	return changed(s.change.SetTag(ctx, request(ctx), r.ID, in.Body.Tag, in.Body.Version))
}

func (s *server) deleteTag(ctx context.Context, in *ofTag) (*document[contract.Changed], error) {
	r, err := s.findProject(ctx, in.Project, in.Organization)
	if err != nil {
		return nil, err
	}
	return changed(s.change.DeleteTag(ctx, request(ctx), r.ID, in.Tag))
}

type diffVersionsInput struct {
	OfProject
	From string `query:"from" doc:"a version; default: the version in force" maxLength:"255"`
	To   string `query:"to" doc:"a version; default: the newest version" maxLength:"255"`
}

func (s *server) diffVersions(ctx context.Context, in *diffVersionsInput) (*document[contract.Diff], error) {
	r, err := s.findProject(ctx, in.Project, in.Organization)
	if err != nil {
		return nil, err
	}
	from, err := s.change.FindVersion(ctx, r, cmp.Or(in.From, change.TagCurrent))
	if err != nil {
		return nil, err
	}
	to, err := s.change.FindVersion(ctx, r, cmp.Or(in.To, change.TagLatest))
	if err != nil {
		return nil, err
	}
	v := s.viewer(ctx)
	a, err := s.Cache.Version(ctx, r.ID, from.Spec().Number)
	if err != nil {
		return nil, err
	}
	b, err := s.Cache.Version(ctx, r.ID, to.Spec().Number)
	if err != nil {
		return nil, err
	}
	doc := contract.Diff{From: v.versionDoc(from), To: v.versionDoc(to), Services: []contract.ServiceDiff{}, Metadata: []contract.ValueDiff{}}
	doc.From.Manifest, doc.To.Manifest = string(yamlOf(a.Spec)), string(yamlOf(b.Spec))
	diffs := manifest.Diff(a.Manifest, b.Manifest)
	manifest.AddImages(diffs, a.Services, b.Services)
	for _, d := range diffs {
		if d.Change != manifest.Unchanged {
			doc.Services = append(doc.Services, change.ServiceDiff(d))
		}
	}
	for _, c := range manifest.DiffValues(v.maskLaterSecrets(r.ID, a.Values.WithSecretsMarked(b.Manifest)), v.maskLaterSecrets(r.ID, b.Values.WithSecretsMarked(a.Manifest))) {
		doc.Metadata = append(doc.Metadata, contract.ValueDiff{Key: c.Key, Change: string(c.Kind), Secret: c.Secret, Before: c.Before, After: c.After})
	}
	return answer(doc)
}
