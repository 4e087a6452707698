package api

import (
	"context"
	"strconv"

	"mariposa"
	"mariposa/contract"
	"mariposa/store"
)

type listVersionsInput struct {
	OfProject
	Limit  int `query:"limit" minimum:"1" maximum:"1000" default:"100"`
	Marker int `query:"marker" minimum:"0" doc:"the marker of the previous page"`
}

func (s *server) listVersions(ctx context.Context, in *listVersionsInput) (*document[contract.Versions], error) {
	r, err := s.findProject(ctx, in.Project, in.Organization)
	if err != nil {
		return nil, err
	}
	q := store.Query{Kind: mariposa.KindVersion, Project: r.ID, Limit: in.Limit + 1}
	if in.Marker > 0 {
		q.Before = mariposa.VersionID(r.ID, in.Marker)
	}
	found, err := s.Store.List(ctx, q)
	if err != nil {
		return nil, err
	}
	v, page := s.viewer(ctx), contract.Versions{Versions: []contract.Version{}}
	for i := range found {
		if i == in.Limit {
			page.Marker = strconv.Itoa(page.Versions[i-1].Number)
			break
		}
		page.Versions = append(page.Versions, v.versionNow(r, (*store.Version)(&found[i])))
	}
	return answer(page)
}

// versionNow shows a version. For the version in force it counts outdated instances: a
// completed version can have some if services do not apply new metadata values
// automatically.
func (v *viewer) versionNow(project *store.Project, r *store.Version) contract.Version {
	doc := v.versionDoc(r)
	if st := project.Status(); st == nil || st.Number != doc.Number {
		return doc
	}
	st, _ := v.s.projectState(v, project.ID)
	for _, one := range st.Services {
		doc.Outdated += one.Outdated
	}
	return doc
}

type getVersionInput struct {
	OfProject
	Version string `path:"version" doc:"number or hash of the version, at least the first 7 characters of the hash, or a tag"`
}

func (s *server) getVersion(ctx context.Context, in *getVersionInput) (*document[contract.Version], error) {
	r, err := s.findProject(ctx, in.Project, in.Organization)
	if err != nil {
		return nil, err
	}
	found, err := s.change.FindVersion(ctx, r, in.Version)
	if err != nil {
		return nil, err
	}
	doc := s.viewer(ctx).versionNow(r, found)
	doc.Manifest = string(yamlOf(found.Spec()))
	return answer(doc)
}

func (s *server) approveVersion(ctx context.Context, in *getVersionInput) (*document[contract.Changed], error) {
	r, err := s.findProject(ctx, in.Project, in.Organization)
	if err != nil {
		return nil, err
	}
	return changed(s.change.ApproveVersion(ctx, request(ctx), r.ID, in.Version))
}

func (s *server) withdrawApproval(ctx context.Context, in *getVersionInput) (*document[contract.Changed], error) {
	r, err := s.findProject(ctx, in.Project, in.Organization)
	if err != nil {
		return nil, err
	}
	return changed(s.change.WithdrawApproval(ctx, request(ctx), r.ID, in.Version))
}
