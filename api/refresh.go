package api

import (
	"context"

	"mariposa/change"
	"mariposa/contract"
)

type refreshImagesInput struct {
	OfProject
	Body contract.Refresh
}

func (s *server) refreshImages(ctx context.Context, in *refreshImagesInput) (*document[contract.Changed], error) {
	if in.Body.Services != nil && len(in.Body.Services) == 0 {
		return nil, invalid("services: must have at least one service; omit it for all of them")
	}
	ask := change.Refresh{Services: in.Body.Services, Message: in.Body.Message}
	var err error
	if ask.Rolling, err = readAmount("rolling", in.Body.Rolling); err != nil {
		return nil, err
	}
	if ask.Canary, err = readAmount("canary", in.Body.Canary); err != nil {
		return nil, err
	}
	r, err := s.findProject(ctx, in.Project, in.Organization)
	if err != nil {
		return nil, err
	}
	return changed(s.change.RefreshImages(ctx, request(ctx), r.ID, ask))
}
