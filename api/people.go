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
	spec, v := r.Spec.(*mariposa.ProjectSpec), s.viewer(ctx)
	roles := map[string]contract.Member{}
	add := func(id string, role mariposa.Role, via string) {
		if role.Rank() > mariposa.Role(roles[id].Role).Rank() {
			roles[id] = contract.Member{User: id, UserName: v.userName(id), Role: string(role), Via: via}
		}
	}
	for id, role := range spec.Users {
		add(id, role, "")
	}
	if org := s.Picture.Get(mariposa.KindOrg, spec.Organization); org != nil {
		o := org.Spec.(*mariposa.OrganizationSpec)
		for id, role := range o.Members {
			if role == mariposa.OrgOwner {
				add(id, mariposa.RoleAdmin, "owner of "+o.Name)
			} else {
				add(id, o.Base, "member of "+o.Name)
			}
		}
	}
	all := contract.Members{Members: slices.Collect(maps.Values(roles))}
	all.Members = list(all.Members)
	slices.SortFunc(all.Members, func(a, b contract.Member) int { return strings.Compare(a.UserName, b.UserName) })
	return answer(all)
}

// OfProjectUser are the parameters of a path that leads to a project's user.
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
		return nil, invalid("role must be viewer, deployer, operator or admin, not %q", shorten(in.Body.Role))
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

func (s *server) setProjectUser(ctx context.Context, in OfProject, user *store.Record, role mariposa.Role) (*document[contract.Changed], error) {
	name := user.Spec.(*mariposa.UserSpec).Name
	return s.change(ctx, in, func(e *edit) (*change, error) {
		if role == mariposa.RoleNone && e.spec.Users[user.ID] == "" {
			return nil, notFound("%s has no role of their own in project %s", name, e.spec.Name)
		}
		e.spec.Users = withRole(e.spec.Users, user.ID, role)
		e.unit.Require = append(e.unit.Require, store.Require{Kind: mariposa.KindUser, ID: user.ID, SpecRevision: -1, StatusRevision: -1})
		reason := name + " becomes " + string(role)
		if role == mariposa.RoleNone {
			reason = name + " has no role of their own any more"
		}
		e.unit.Audit[0].Reason = reason
		return e.done(reason)
	})
}

// withRole is a project's users with another role for one of them.
func withRole(users map[string]mariposa.Role, id string, role mariposa.Role) map[string]mariposa.Role {
	users = maps.Clone(users)
	if users == nil {
		users = map[string]mariposa.Role{}
	}
	if role == mariposa.RoleNone {
		delete(users, id)
	} else {
		users[id] = role
	}
	return users
}

// withUser writes a project with another role for a user, as part of a larger
// change.
func (s *server) withUser(ctx context.Context, r *store.Record, user string, role mariposa.Role) (store.Write, store.Require) {
	spec := *r.Spec.(*mariposa.ProjectSpec)
	spec.Users = withRole(spec.Users, user, role)
	return store.Write{
			Kind: mariposa.KindProject, ID: r.ID, Project: r.ID, Spec: &spec,
			Event: mariposa.Event{Kind: "project.updated", Project: r.ID, Actor: actor(ctx)},
		},
		store.Require{Kind: mariposa.KindProject, ID: r.ID, SpecRevision: r.SpecRevision, StatusRevision: -1}
}
