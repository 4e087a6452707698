package api

import (
	"cmp"
	"context"
	"slices"
	"strings"

	"mariposa"
	"mariposa/contract"
	"mariposa/store"
)

func (v *viewer) user(r *store.User) contract.User {
	spec := r.Spec()
	var identity *mariposa.Identity
	if c := caller(v.ctx); c.User == r.ID || v.s.seesAll(c) {
		identity = spec.Identity
	}
	return contract.User{
		ID: r.ID, Name: spec.Name, Email: spec.Email, Admin: spec.Admin, Disabled: spec.Disabled,
		Organization: spec.Organization, OrganizationName: v.orgName(spec.Organization), Created: spec.Created, Identity: identity,
	}
}

func (v *viewer) userName(id string) string {
	if r := v.s.Picture.Users.Get(id); r != nil {
		return r.Spec().Name
	}
	return ""
}

func (s *server) whoami(ctx context.Context, _ *struct{}) (*document[contract.Whoami], error) {
	c, v := caller(ctx), s.viewer(ctx)
	r := s.Picture.Users.Get(cmp.Or(c.By, c.User))
	if r == nil {
		return nil, notFound("there is no such user")
	}
	doc := contract.Whoami{User: v.user(r), HasPassword: r.Spec().Password != "", Access: s.directory.Access(c)}
	if id := r.Spec().Identity; id != nil && s.provider != nil && id.Issuer == s.provider.Issuer {
		doc.Provider = s.provider.Name
	}
	if c.By != "" {
		doc.For = c.Name
	}
	if t := s.Picture.Tokens.Get(c.Token); t != nil {
		doc.Token = v.token(t)
	}
	return answer(doc)
}

// mayKnowUser reports whether a caller can see a user: themselves, and users that they
// share an organization or project with.
func (s *server) mayKnowUser(ctx context.Context, user *store.User) bool {
	c := caller(ctx)
	return user.ID == c.By || s.seesAll(c) || s.knownUsers(ctx)[user.ID]
}

func (s *server) listUsers(ctx context.Context, _ *struct{}) (*document[contract.Users], error) {
	v, all := s.viewer(ctx), contract.Users{Users: []contract.User{}}
	if s.seesAll(caller(ctx)) {
		for _, r := range s.Picture.Users.All() {
			all.Users = append(all.Users, v.user(r))
		}
	} else {
		for id := range s.knownUsers(ctx) {
			if r := s.Picture.Users.Get(id); r != nil {
				all.Users = append(all.Users, v.user(r))
			}
		}
	}
	slices.SortFunc(all.Users, func(a, b contract.User) int { return strings.Compare(a.Name, b.Name) })
	return answer(all)
}

// knownUsers returns the ids of the users that a caller shares an organization or
// project with.
func (s *server) knownUsers(ctx context.Context) map[string]bool {
	c := caller(ctx)
	ids := map[string]bool{c.User: true}
	for _, org := range s.Picture.OrganizationsOf(c.User) {
		if s.directory.RoleOf(c, org) != "" {
			for id := range org.Spec().Members {
				ids[id] = true
			}
		}
	}
	projects, _ := s.projectsFor(ctx, "") // fails only for a given organization
	for _, p := range projects {
		for id := range p.Spec().Users {
			ids[id] = true
		}
	}
	return ids
}

// OfUser are the parameters of paths to a user.
type OfUser struct {
	User string `path:"user" doc:"id or name of the user" maxLength:"255"`
}

// findUser finds a user that the caller can see.
func (s *server) findUser(ctx context.Context, ref string) (*store.User, error) {
	r := s.directory.User(ref)
	if r == nil || !s.mayKnowUser(ctx, r) {
		return nil, notFound("there is no user %q", ref)
	}
	return r, nil
}

// anyUser finds a user by name or id, even if the caller cannot see them: it is used to
// give a role to a user whose name the caller already knows.
func (s *server) anyUser(ref string) (*store.User, error) {
	r := s.directory.User(ref)
	if r == nil {
		return nil, notFound("there is no user %q", ref)
	}
	return r, nil
}

func (s *server) getUser(ctx context.Context, in *OfUser) (*document[contract.User], error) {
	r, err := s.findUser(ctx, in.User)
	if err != nil {
		return nil, err
	}
	return answer(s.viewer(ctx).user(r))
}

type createUserInput struct{ Body contract.NewUser }

func (s *server) createUser(ctx context.Context, in *createUserInput) (*document[contract.Changed], error) {
	return changed(s.change.CreateUser(ctx, request(ctx), in.Body.Name, in.Body.Email, in.Body.Admin))
}

type updateUserInput struct {
	OfUser
	Cascade bool `query:"cascade" doc:"when disabling a user or removing admin rights: also invalidate the tokens that the user created for others"`
	Body    contract.UserChange
}

func (s *server) updateUser(ctx context.Context, in *updateUserInput) (*document[contract.Changed], error) {
	r, err := s.anyUser(in.User)
	if err != nil {
		return nil, err
	}
	issuer := ""
	if s.provider != nil {
		issuer = s.provider.Issuer
	}
	return changed(s.change.UpdateUser(ctx, request(ctx), r.ID, in.Body, issuer, in.Cascade))
}

type deleteUserInput struct {
	OfUser
	Cascade bool `query:"cascade" doc:"also revoke the tokens that the user created for others"`
}

func (s *server) deleteUser(ctx context.Context, in *deleteUserInput) (*document[contract.Changed], error) {
	r, err := s.anyUser(in.User)
	if err != nil {
		return nil, err
	}
	return changed(s.change.DeleteUser(ctx, request(ctx), r.ID, in.Cascade))
}
