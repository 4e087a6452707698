package api

import (
	"cmp"
	"context"
	"slices"
	"strconv"
	"strings"
	"time"

	"mariposa"
	"mariposa/auth"
	"mariposa/contract"
	"mariposa/store"
)

func (v *viewer) token(r *store.Token) contract.Token {
	spec := r.Spec()
	user := spec.User
	if spec.Use == mariposa.TokenAdmin {
		user = mariposa.FirstUser
	}
	c := caller(v.ctx)
	doc := contract.Token{
		ID: r.ID, Name: spec.Name, User: user, UserName: v.userName(user), Organization: spec.Organization,
		Project: spec.Project, Role: spec.Role, Created: spec.Created, Expires: optionalTime(spec.Expires), Current: c.Token == r.ID,
	}
	// A user may lose access to the project or organization that a token is bound to:
	// then its name is not shown.
	p, org := v.s.Picture.Projects.Get(spec.Project), v.s.Picture.Orgs.Get(spec.Organization)
	if p != nil && v.s.sees(c, p) {
		doc.ProjectName, doc.OrganizationName = p.Spec().Name, v.orgName(spec.Organization)
	}
	if org != nil && v.s.directory.RoleOf(c, org) != "" {
		doc.OrganizationName = org.Spec().Name
	}
	if st := r.Status(); st != nil {
		doc.LastUsed, doc.LastFrom = optionalTime(st.Used), st.From
	}
	return doc
}

type listTokensInput struct {
	User string `query:"user" doc:"of this user, for who runs the installation" maxLength:"255"`
}

func (s *server) listTokens(ctx context.Context, in *listTokensInput) (*document[contract.Tokens], error) {
	user, err := s.tokenUser(ctx, in.User)
	if err != nil {
		return nil, err
	}
	v, all := s.viewer(ctx), contract.Tokens{Tokens: []contract.Token{}}
	for _, r := range s.Picture.TokensOf(user) {
		if s.mayManageToken(caller(ctx), r) {
			all.Tokens = append(all.Tokens, v.token(r))
		}
	}
	slices.SortFunc(all.Tokens, func(a, b contract.Token) int {
		return cmp.Or(a.Created.Compare(b.Created), strings.Compare(a.ID, b.ID))
	})
	return answer(all)
}

// tokenUser returns the user whose tokens are requested: the caller, or anybody if the
// caller runs the installation.
func (s *server) tokenUser(ctx context.Context, ref string) (string, error) {
	c := caller(ctx)
	if ref == "" || ref == c.User || ref == c.Name {
		return c.User, nil
	}
	if !s.seesAll(c) {
		return "", notFound("there is no user %q", ref)
	}
	r, err := s.anyUser(ref)
	if err != nil {
		return "", err
	}
	return r.ID, nil
}

type createTokenInput struct{ Body contract.NewToken }

func (s *server) createToken(ctx context.Context, in *createTokenInput) (*document[contract.Token], error) {
	spec, err := s.newToken(ctx, in.Body)
	if err != nil {
		return nil, err
	}
	return changed(s.change.CreateToken(ctx, request(ctx), *spec, s.viewer(ctx).token))
}

// newToken checks the request for a token: it never has more rights than the caller.
func (s *server) newToken(ctx context.Context, ask contract.NewToken) (*mariposa.TokenSpec, error) {
	c, now := caller(ctx), s.Clock.Now()
	user, err := s.tokenUser(ctx, ask.User)
	if err != nil {
		return nil, err
	}
	spec := &mariposa.TokenSpec{Use: mariposa.TokenUser, Name: ask.Name, User: user, Role: ask.Role, Created: now, Author: actor(ctx)}
	if ask.Project != "" {
		p, err := s.findProject(ctx, ask.Project, ask.Organization)
		if err != nil {
			return nil, err
		}
		spec.Project, spec.Organization = p.ID, c.Bounds.Organization // otherwise in any organization: the project may move
	} else if ask.Organization != "" {
		org, err := s.findOrganization(ctx, ask.Organization)
		if err != nil {
			return nil, err
		}
		spec.Organization = org.ID
	}
	bounds := auth.Bounds{Organization: spec.Organization, Project: spec.Project, Role: spec.Role}
	if !bounds.Within(c.Bounds) {
		return nil, &mariposa.Error{Code: mariposa.Forbidden, Message: "a bounded token makes only tokens within its own bounds: name the same organization, project and at most the same role"}
	}
	if spec.Expires, err = readExpiry(ask.Expires, now); err != nil {
		return nil, err
	}
	if own := s.Picture.Tokens.Get(c.Token); own != nil && !c.Bounds.Unbounded() { // nor does it outlive the caller's token
		spec.Parent = own.ID
		if end := own.Spec().Expires; !end.IsZero() && (spec.Expires.IsZero() || spec.Expires.After(end)) {
			spec.Expires = end
		}
	}
	return spec, nil
}

// readExpiry reads a time, or a duration like 12h or 90d.
func readExpiry(text string, now time.Time) (time.Time, error) {
	if text == "" {
		return time.Time{}, nil
	}
	at, err := time.Parse(time.RFC3339, text)
	if err != nil {
		span, bad := time.ParseDuration(text)
		if days, ok := strings.CutSuffix(text, "d"); ok {
			n, err := strconv.Atoi(days)
			span, bad = time.Duration(n)*24*time.Hour, err
			if n > 36500 {
				bad = strconv.ErrRange
			}
		}
		if bad != nil {
			return at, invalid("expires must be a time like 2027-01-31T00:00:00Z or a span like 12h or 90d, not %q", shortenText(text))
		}
		at = now.Add(span)
	}
	if !at.After(now) {
		return at, invalid("expires: %s is not in the future", shortenText(text))
	}
	return at, nil
}

type ofToken struct {
	Token string `path:"token" doc:"its id or name" maxLength:"255"`
}

func (s *server) revokeToken(ctx context.Context, in *ofToken) (*document[contract.Changed], error) {
	found, err := s.findToken(ctx, in.Token)
	if err != nil {
		return nil, err
	}
	return changed(s.change.RevokeToken(ctx, request(ctx), found))
}

// findToken finds one of the caller's tokens by id or name, or anybody's by id if the
// caller runs the installation.
func (s *server) findToken(ctx context.Context, ref string) (*store.Token, error) {
	c := caller(ctx)
	if r := s.Picture.Tokens.Get(ref); r != nil && s.mayManageToken(c, r) {
		return r, nil
	}
	for _, r := range s.Picture.TokensOf(c.User) {
		if r.Spec().Name == ref && s.mayManageToken(c, r) {
			return r, nil
		}
	}
	return nil, notFound("there is no token %q", ref)
}

// mayManageToken reports whether a caller may see and revoke a token: their own, or
// anybody's if they run the installation. A bounded token can manage only itself and
// tokens within its bounds.
func (s *server) mayManageToken(c *auth.Caller, r *store.Token) bool {
	spec := r.Spec()
	b := auth.Bounds{Organization: spec.Organization, Project: spec.Project, Role: spec.Role}
	return s.seesAll(c) || (spec.User == c.User && (r.ID == c.Token || b.Within(c.Bounds)))
}
