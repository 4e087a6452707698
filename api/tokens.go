package api

import (
	"cmp"
	"context"
	"slices"
	"strings"

	"mariposa"
	"mariposa/auth"
	"mariposa/contract"
	"mariposa/store"
)

func (v *viewer) token(r *store.Token) contract.Token {
	spec := r.Spec()
	c, user := caller(v.ctx), spec.Owner()
	doc := contract.Token{
		ID: r.ID, Name: spec.Name, Use: spec.Use, User: user, UserName: v.userName(user), Organization: spec.Organization,
		Project: spec.Project, Role: spec.Role, Created: spec.Created, Expires: optionalTime(spec.Expires), Current: c.Token == r.ID, Proved: optionalTime(spec.Proved),
	}
	if maker := v.s.Picture.Tokens.Get(spec.Parent); maker != nil && v.s.mayManageToken(c, maker) {
		doc.Parent, doc.ParentName = maker.ID, maker.Spec().Name
	}
	if spec.Use == mariposa.TokenJoin {
		doc.Uses = &spec.Uses
		if spec.Uses > 0 {
			doc.Joined = &spec.Joined
		}
	}
	// A user may lose access to the project or organization that a token is restricted to.
	// Its name is not shown then.
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

// tokenTree is a token with all its descendants.
func (v *viewer) tokenTree(r *store.Token) contract.Token {
	below := map[string][]*store.Token{}
	for _, t := range auth.Descendants(v.s.Picture, r.ID) {
		below[t.Spec().Parent] = append(below[t.Spec().Parent], t)
	}
	var tree func(*store.Token) contract.Token
	tree = func(r *store.Token) contract.Token {
		doc := v.token(r)
		for _, t := range below[r.ID] {
			doc.Made = append(doc.Made, tree(t))
		}
		slices.SortFunc(doc.Made, byAge)
		return doc
	}
	return tree(r)
}

func byAge(a, b contract.Token) int {
	return cmp.Or(a.Created.Compare(b.Created), strings.Compare(a.ID, b.ID))
}

type listTokensInput struct {
	User string `query:"user" doc:"tokens of this user; requires an admin of the installation" maxLength:"255"`
	Use  string `query:"use" enum:"join" doc:"join: list join tokens; requires an admin of the installation"`
}

func (s *server) listTokens(ctx context.Context, in *listTokensInput) (*document[contract.Tokens], error) {
	user, err := s.tokenUser(ctx, in.User)
	if in.Use != "" && in.User != "" {
		err = invalid("user: join tokens do not belong to a user")
	} else if in.Use != "" {
		user, err = "", s.require(ctx, auth.RunInstallation, nil)
	}
	if err != nil {
		return nil, err
	}
	v, all := s.viewer(ctx), contract.Tokens{Tokens: []contract.Token{}}
	for _, r := range s.Picture.TokensOf(user) {
		if s.mayManageToken(caller(ctx), r) {
			all.Tokens = append(all.Tokens, v.token(r))
		}
	}
	slices.SortFunc(all.Tokens, byAge)
	return answer(all)
}

// tokenUser returns the user whose tokens are requested: the caller, or any user if the
// caller is an installation admin.
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

// newToken checks a request for a token, which never has more rights than the caller.
func (s *server) newToken(ctx context.Context, ask contract.NewToken) (*mariposa.TokenSpec, error) {
	c, now := caller(ctx), s.Clock.Now()
	if ask.Use == mariposa.TokenJoin {
		return s.newJoinToken(ctx, ask)
	}
	if ask.Use == mariposa.TokenLink {
		return s.newLink(ctx, ask)
	}
	if ask.Uses != nil {
		return nil, invalid("uses: only join tokens have a limit of uses")
	}
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
		spec.Project, spec.Organization = p.ID, c.Bounds.Organization // not restricted to the project's organization: the project may move
	} else if ask.Organization != "" {
		org, err := s.findOrganization(ctx, ask.Organization)
		if err != nil {
			return nil, err
		}
		spec.Organization = org.ID
	}
	bounds := auth.Bounds{Organization: spec.Organization, Project: spec.Project, Role: spec.Role}
	if !bounds.Within(c.Bounds) {
		return nil, &mariposa.Error{Code: mariposa.Forbidden, Message: "a restricted token can only create tokens with the same restrictions: specify the same organization and project, and at most the same role"}
	}
	spec.Expires, err = mariposa.ParseExpiry(ask.Expires, now)
	return spec, err
}

// newLink checks a request for a sign-in link, whose session has the rights of the caller.
func (s *server) newLink(ctx context.Context, ask contract.NewToken) (*mariposa.TokenSpec, error) {
	if ask.User != "" || ask.Organization != "" || ask.Project != "" || ask.Role != "" || ask.Uses != nil {
		return nil, invalid("a sign-in link has the rights of the caller: it cannot have a user, organization, project, role or uses")
	}
	c, now := caller(ctx), s.Clock.Now()
	spec := &mariposa.TokenSpec{
		Use: mariposa.TokenLink, Name: ask.Name, User: c.User, Created: now, Author: actor(ctx),
		Organization: c.Bounds.Organization, Project: c.Bounds.Project, Role: c.Bounds.Role,
	}
	var err error
	spec.Expires, err = mariposa.ParseExpiry(cmp.Or(ask.Expires, mariposa.LinkLifetime.String()), now)
	if err == nil && spec.Expires.After(now.Add(mariposa.MaxLinkLifetime)) {
		err = invalid("expires: a sign-in link can be valid for at most %s", mariposa.MaxLinkLifetime)
	}
	return spec, err
}

// newJoinToken checks a request for a join token.
func (s *server) newJoinToken(ctx context.Context, ask contract.NewToken) (*mariposa.TokenSpec, error) {
	request(ctx).Permission = auth.RunInstallation
	if err := s.require(ctx, auth.RunInstallation, nil); err != nil {
		return nil, err
	}
	if ask.User != "" || ask.Organization != "" || ask.Project != "" || ask.Role != "" {
		return nil, invalid("a join token is only for nodes: it cannot have a user, organization, project or role")
	}
	now := s.Clock.Now()
	spec := &mariposa.TokenSpec{Use: mariposa.TokenJoin, Name: ask.Name, Uses: mariposa.JoinUses, Created: now, Author: actor(ctx)}
	if ask.Uses != nil {
		spec.Uses = *ask.Uses
	}
	var err error
	spec.Expires, err = mariposa.ParseJoinExpiry(ask.Expires, now)
	return spec, err
}

// OfToken are the parameters of paths to a token.
type OfToken struct {
	Token string `path:"token" doc:"id or name" maxLength:"255"`
}

func (s *server) getToken(ctx context.Context, in *OfToken) (*document[contract.Token], error) {
	found, err := s.findToken(ctx, in.Token)
	if err != nil {
		return nil, err
	}
	return answer(s.viewer(ctx).tokenTree(found))
}

type revokeTokenInput struct {
	OfToken
	Cascade bool `query:"cascade" doc:"also revoke the tokens that it created; required if there are any"`
}

func (s *server) revokeToken(ctx context.Context, in *revokeTokenInput) (*document[contract.Changed], error) {
	found, err := s.findToken(ctx, in.Token)
	if err != nil {
		return nil, err
	}
	return changed(s.change.RevokeToken(ctx, request(ctx), found, in.Cascade))
}

type actOnTokenInput struct {
	OfToken
	Body contract.TokenAction
}

func (s *server) actOnToken(ctx context.Context, in *actOnTokenInput) (*document[contract.Changed], error) {
	found, err := s.findToken(ctx, in.Token)
	if err != nil {
		return nil, err
	}
	return changed(s.change.AdoptTokens(ctx, request(ctx), found))
}

// findToken finds a token of the caller by id or name, or for installation admins any
// token by id.
func (s *server) findToken(ctx context.Context, ref string) (*store.Token, error) {
	c := caller(ctx)
	if r := s.Picture.Tokens.Get(ref); r != nil && s.mayManageToken(c, r) {
		return r, nil
	}
	for _, r := range slices.Concat(s.Picture.TokensOf(c.User), s.Picture.TokensOf("")) { // the caller's tokens, then join tokens
		if r.Spec().Name == ref && s.mayManageToken(c, r) {
			return r, nil
		}
	}
	return nil, notFound("there is no token %q", ref)
}

// mayManageToken reports whether a caller can see and revoke a token: their own, or any
// token if they are an installation admin. A restricted token can manage only itself
// and its descendants.
func (s *server) mayManageToken(c *auth.Caller, r *store.Token) bool {
	if s.seesAll(c) {
		return true
	}
	return r.Spec().Owner() == c.User && (c.Bounds.Unbounded() || s.madeBy(r, c.Token))
}

// madeBy reports whether a token is another one or a descendant of it.
func (s *server) madeBy(r *store.Token, maker string) bool {
	for range auth.MaxDepth {
		if r == nil || r.ID == maker {
			break
		}
		r = s.Picture.Tokens.Get(r.Spec().Parent)
	}
	return r != nil && r.ID == maker
}
