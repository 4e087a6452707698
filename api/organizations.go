package api

import (
	"context"
	"slices"
	"strings"

	"mariposa"
	"mariposa/contract"
	"mariposa/store"
)

// OfOrganization are the parameters of paths to an organization.
type OfOrganization struct {
	Organization string `path:"organization" doc:"id or name" maxLength:"255"`
}

func (v *viewer) organization(r *store.Organization) contract.Organization {
	spec := r.Spec()
	return contract.Organization{
		ID: r.ID, Name: spec.Name, Personal: spec.Personal != "", Role: v.s.directory.RoleOf(caller(v.ctx), r), BaseRole: spec.Base,
		Members: len(spec.Members), Projects: len(v.s.Picture.ProjectsOf(r.ID)), Created: spec.Created,
	}
}

func (s *server) listOrganizations(ctx context.Context, _ *struct{}) (*document[contract.Organizations], error) {
	c, v := caller(ctx), s.viewer(ctx)
	records := s.Picture.OrganizationsOf(c.User)
	if c.Admin {
		records = s.Picture.Orgs.All()
	}
	all := contract.Organizations{Organizations: []contract.Organization{}}
	for _, r := range records {
		if s.directory.RoleOf(c, r) != "" {
			all.Organizations = append(all.Organizations, v.organization(r))
		}
	}
	slices.SortFunc(all.Organizations, func(a, b contract.Organization) int { return strings.Compare(a.Name, b.Name) })
	return answer(all)
}

func (s *server) getOrganization(ctx context.Context, in *OfOrganization) (*document[contract.Organization], error) {
	r, err := s.findOrganization(ctx, in.Organization)
	if err != nil {
		return nil, err
	}
	return answer(s.viewer(ctx).organization(r))
}

type createOrganizationInput struct{ Body contract.NewOrganization }

func (s *server) createOrganization(ctx context.Context, in *createOrganizationInput) (*document[contract.Changed], error) {
	return changed(s.change.CreateOrganization(ctx, request(ctx), in.Body.Name, in.Body.BaseRole))
}

type updateOrganizationInput struct {
	OfOrganization
	Body contract.OrganizationChange
}

func (s *server) updateOrganization(ctx context.Context, in *updateOrganizationInput) (*document[contract.Changed], error) {
	r, err := s.findOrganization(ctx, in.Organization)
	if err != nil {
		return nil, err
	}
	if in.Body.BaseRole != "" { // all members get it
		if err := s.requireProof(ctx); err != nil {
			return nil, err
		}
	}
	return changed(s.change.UpdateOrganization(ctx, request(ctx), r.ID, in.Body.Name, in.Body.BaseRole))
}

func (s *server) deleteOrganization(ctx context.Context, in *OfOrganization) (*document[contract.Changed], error) {
	r, err := s.findOrganization(ctx, in.Organization)
	if err != nil {
		return nil, err
	}
	return changed(s.change.DeleteOrganization(ctx, request(ctx), r.ID))
}

func (s *server) listMembers(ctx context.Context, in *OfOrganization) (*document[contract.Members], error) {
	r, err := s.findOrganization(ctx, in.Organization)
	if err != nil {
		return nil, err
	}
	v, all := s.viewer(ctx), contract.Members{Members: []contract.Member{}}
	for id, role := range r.Spec().Members {
		all.Members = append(all.Members, contract.Member{User: id, UserName: v.userName(id), Role: string(role)})
	}
	slices.SortFunc(all.Members, func(a, b contract.Member) int { return strings.Compare(a.UserName, b.UserName) })
	return answer(all)
}

// OfMember are the parameters of paths to a member.
type OfMember struct {
	OfOrganization
	OfUser
}

type putMemberInput struct {
	OfMember
	Body contract.MemberChange
}

func (s *server) putMember(ctx context.Context, in *putMemberInput) (*document[contract.Changed], error) {
	role := mariposa.OrgRole(in.Body.Role)
	if role != mariposa.OrgOwner && role != mariposa.OrgMember {
		return nil, invalid("role must be owner or member, not %q", shortenText(in.Body.Role))
	}
	user, err := s.anyUser(in.User)
	if err != nil {
		return nil, err
	}
	org, err := s.findOrganization(ctx, in.Organization)
	if err != nil {
		return nil, err
	}
	return changed(s.change.SetMember(ctx, request(ctx), org.ID, user, role))
}

func (s *server) removeMember(ctx context.Context, in *OfMember) (*document[contract.Changed], error) {
	org, err := s.findOrganization(ctx, in.Organization)
	if err != nil {
		return nil, err
	}
	user := s.directory.User(in.User)
	if user == nil || org.Spec().Members[user.ID] == "" {
		return nil, notFound("%q is not a member of organization %s", in.User, org.Spec().Name)
	}
	return changed(s.change.RemoveMember(ctx, request(ctx), org.ID, user))
}
