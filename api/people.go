package api

import (
	"context"
	"maps"
	"slices"
	"strings"

	"mariposa"
	"mariposa/contract"
	"mariposa/store"
)

func (s *server) listProjectUsers(ctx context.Context, in *OfProject) (*document[contract.Members], error) {
	r, err := s.findProject(ctx, in.Project, in.Organization)
	if err != nil {
		return nil, err
	}
	spec, v := r.Spec(), s.viewer(ctx)
	roles := map[string]contract.Member{}
	add := func(id string, role mariposa.Role, via string) {
		if role.Rank() > mariposa.Role(roles[id].Role).Rank() {
			roles[id] = contract.Member{User: id, UserName: v.userName(id), Role: string(role), Via: via}
		}
	}
	for id, role := range spec.Users {
		add(id, role, "")
	}
	if org := s.Picture.Orgs.Get(spec.Organization); org != nil {
		o := org.Spec()
		for id, role := range o.Members {
			if role == mariposa.OrgOwner {
				add(id, mariposa.RoleAdmin, "owner of "+o.Name)
			} else {
				add(id, o.Base, "member of "+o.Name)
			}
		}
	}
	all := contract.Members{Members: slices.Collect(maps.Values(roles))}
	all.Members = neverNil(all.Members)
	slices.SortFunc(all.Members, func(a, b contract.Member) int { return strings.Compare(a.UserName, b.UserName) })
	return answer(all)
}

// OfProjectUser are the parameters of paths to a user of a project.
type OfProjectUser struct {
	OfProject
	OfUser
}

type putProjectUserInput struct {
	OfProjectUser
	Body contract.MemberChange
}

func (s *server) putProjectUser(ctx context.Context, in *putProjectUserInput) (*document[contract.Changed], error) {
	role := mariposa.Role(in.Body.Role)
	if role.Rank() == 0 {
		return nil, invalid("role must be viewer, deployer, operator or admin, not %q", shortenText(in.Body.Role))
	}
	user, err := s.anyUser(in.User)
	if err != nil {
		return nil, err
	}
	return s.setProjectUser(ctx, in.OfProject, user, role)
}

func (s *server) removeProjectUser(ctx context.Context, in *OfProjectUser) (*document[contract.Changed], error) {
	user, err := s.anyUser(in.User)
	if err != nil {
		return nil, err
	}
	return s.setProjectUser(ctx, in.OfProject, user, mariposa.RoleNone)
}

func (s *server) setProjectUser(ctx context.Context, in OfProject, user *store.User, role mariposa.Role) (*document[contract.Changed], error) {
	r, err := s.findProject(ctx, in.Project, in.Organization)
	if err != nil {
		return nil, err
	}
	return changed(s.change.SetProjectUser(ctx, request(ctx), r.ID, user, role))
}
