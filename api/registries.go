package api

import (
	"context"

	"mariposa/change"
	"mariposa/contract"
)

func (s *server) listRegistries(ctx context.Context, in *OfOrganization) (*document[contract.Registries], error) {
	r, err := s.findOrganization(ctx, in.Organization)
	if err != nil {
		return nil, err
	}
	return answer(change.RegistriesOf(r.Spec()))
}

type putRegistryInput struct {
	OfOrganization
	Registry string `path:"registry" doc:"host of the registry, such as registry.example.com" maxLength:"255"`
	Body     contract.RegistryLogin
}

func (s *server) putRegistry(ctx context.Context, in *putRegistryInput) (*document[contract.Registry], error) {
	r, err := s.findOrganization(ctx, in.Organization)
	if err != nil {
		return nil, err
	}
	return changed(s.change.SetRegistry(ctx, request(ctx), r.ID, in.Registry, in.Body))
}

type deleteRegistryInput struct {
	OfOrganization
	Registry string `path:"registry" doc:"host of the registry" maxLength:"255"`
}

func (s *server) deleteRegistry(ctx context.Context, in *deleteRegistryInput) (*document[contract.Registry], error) {
	r, err := s.findOrganization(ctx, in.Organization)
	if err != nil {
		return nil, err
	}
	return changed(s.change.RemoveRegistry(ctx, request(ctx), r.ID, in.Registry))
}
