package api

import (
	"context"
	"errors"
	"slices"
	"strings"

	"mariposa"
	"mariposa/store"
)

// OIDCGroup is a group at the provider whose members are members of an organization.
type OIDCGroup struct {
	Group        string
	Organization string // name
	Role         mariposa.OrgRole
}

// ParseOIDCGroup parses GROUP=ORGANIZATION or GROUP=ORGANIZATION:ROLE. A group may contain = and :.
func ParseOIDCGroup(text string) (g OIDCGroup, err error) {
	at := strings.LastIndexByte(text, '=')
	if at > 0 {
		g.Group = text[:at]
		var role string
		g.Organization, role, _ = strings.Cut(text[at+1:], ":")
		if g.Role = mariposa.OrgRole(role); role == "" {
			g.Role = mariposa.OrgMember
		}
	}
	switch {
	case g.Organization == "":
		return g, mariposa.Errorf(mariposa.InvalidArgument, "%q is not a group mapping: use a form such as engineers=acme or leads=acme:owner", text)
	case g.Role != mariposa.OrgMember && g.Role != mariposa.OrgOwner:
		return g, mariposa.Errorf(mariposa.InvalidArgument, "the role in %q must be member or owner", text)
	}
	return g, mariposa.CheckName("organization", g.Organization)
}

// rolesOf returns the role of a person in each organization that groups lead to; empty: none.
func (p *provider) rolesOf(claims map[string]any) (map[string]mariposa.OrgRole, error) {
	if len(p.Groups) == 0 {
		return nil, nil
	}
	if names, ok := claims["_claim_names"].(map[string]any); ok && names[p.GroupsClaim] != nil {
		return nil, errors.New("the person is in so many groups that the token does not contain them: let the provider send only those that are needed")
	}
	var groups []string
	switch said := claims[p.GroupsClaim].(type) {
	case string:
		groups = []string{said}
	case []any:
		for _, one := range said {
			if name, ok := one.(string); ok {
				groups = append(groups, name)
			}
		}
	}
	roles := map[string]mariposa.OrgRole{}
	for _, g := range p.Groups {
		role := roles[g.Organization]
		if slices.Contains(groups, g.Group) && role != mariposa.OrgOwner {
			role = g.Role
		}
		roles[g.Organization] = role
	}
	return roles, nil
}

// joinGroups gives a person the roles of their groups.
func (s *server) joinGroups(ctx context.Context, person outsider, user *store.User) error {
	kept, err := s.change.JoinGroups(ctx, person.Outsider, user, person.roles)
	if len(kept) > 0 {
		s.Logger.WarnContext(ctx, "groups at the provider did not change organizations that do not exist, are personal, or would have no owner",
			"user", user.Spec().Name, "organizations", kept, "request", requestID(ctx))
	}
	return err
}
