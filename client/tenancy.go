package client

import (
	"context"
	"net/http"
	"net/url"

	"mariposa"
	"mariposa/contract"
)

// Whoami returns the user of the client's token, and the token's bounds.
func (c *Client) Whoami(ctx context.Context) (*contract.Whoami, error) {
	return send[contract.Whoami](ctx, c, get("/v1/user", nil))
}

// Users lists the users.
func (c *Client) Users(ctx context.Context) (*contract.Users, error) {
	return send[contract.Users](ctx, c, get("/v1/users", nil))
}

// User returns one user, by name or id.
func (c *Client) User(ctx context.Context, user string) (*contract.User, error) {
	return send[contract.User](ctx, c, get(pathUnder("/v1/users", user), nil))
}

// CreateUser creates a user, with an organization of its own.
func (c *Client) CreateUser(ctx context.Context, user contract.NewUser) (*contract.Changed, error) {
	return send[contract.Changed](ctx, c, post("/v1/users", user))
}

// UpdateUser changes the fields of a user that the document sets. Disabling one who created
// tokens for others needs cascade.
func (c *Client) UpdateUser(ctx context.Context, user string, change contract.UserChange, cascade bool) (*contract.Changed, error) {
	return send[contract.Changed](ctx, c, put(pathUnder("/v1/users", user), change).with(cascading(cascade)))
}

// DeleteUser deletes a user. One who made tokens for others goes only together with those:
// cascade.
func (c *Client) DeleteUser(ctx context.Context, user string, cascade bool) (*contract.Changed, error) {
	return send[contract.Changed](ctx, c, remove(pathUnder("/v1/users", user), cascading(cascade)))
}

// Organizations lists the organizations that the caller can see.
func (c *Client) Organizations(ctx context.Context) (*contract.Organizations, error) {
	return send[contract.Organizations](ctx, c, get("/v1/organizations", nil))
}

// Organization returns one organization, by name or id.
func (c *Client) Organization(ctx context.Context, org string) (*contract.Organization, error) {
	return send[contract.Organization](ctx, c, get(inOrg(org), nil))
}

// CreateOrganization creates an organization, owned by the caller.
func (c *Client) CreateOrganization(ctx context.Context, org contract.NewOrganization) (*contract.Changed, error) {
	return send[contract.Changed](ctx, c, post("/v1/organizations", org))
}

// UpdateOrganization changes the fields of an organization that the document sets.
func (c *Client) UpdateOrganization(ctx context.Context, org string, change contract.OrganizationChange) (*contract.Changed, error) {
	return send[contract.Changed](ctx, c, put(inOrg(org), change))
}

// DeleteOrganization deletes an organization.
func (c *Client) DeleteOrganization(ctx context.Context, org string) (*contract.Changed, error) {
	return send[contract.Changed](ctx, c, remove(inOrg(org), nil))
}

// Members lists the members of an organization.
func (c *Client) Members(ctx context.Context, org string) (*contract.Members, error) {
	return send[contract.Members](ctx, c, get(inOrg(org, "members"), nil))
}

// PutMember sets the role of a user in an organization.
func (c *Client) PutMember(ctx context.Context, org, user string, role mariposa.OrgRole) (*contract.Changed, error) {
	return send[contract.Changed](ctx, c, put(inOrg(org, "members", user), contract.MemberChange{Role: string(role)}))
}

// RemoveMember removes a user from an organization. Anybody may remove themselves.
func (c *Client) RemoveMember(ctx context.Context, org, user string) (*contract.Changed, error) {
	return send[contract.Changed](ctx, c, remove(inOrg(org, "members", user), nil))
}

// Quota returns the limits and the usage of an organization.
func (c *Client) Quota(ctx context.Context, org string) (*contract.Quota, error) {
	return send[contract.Quota](ctx, c, get(inOrg(org, "quota"), nil))
}

// QuotaChange says which limits of a quota to change. All others stay.
type QuotaChange struct {
	Set  contract.QuotaLimits // those that are not nil
	Lift []string             // the names of those that shall bound nothing: projects, instances, cpu, memory, stored_per_project
}

// figures are what is sent.
func (q QuotaChange) figures() map[string]any {
	figures := map[string]any{}
	if n := q.Set.Projects; n != nil {
		figures["projects"] = *n
	}
	if n := q.Set.Instances; n != nil {
		figures["instances"] = *n
	}
	if n := q.Set.CPU; n != nil {
		figures["cpu"] = *n
	}
	if n := q.Set.Memory; n != nil {
		figures["memory"] = *n
	}
	if n := q.Set.StoredPerProject; n != nil {
		figures["stored_per_project"] = *n
	}
	for _, name := range q.Lift {
		figures[name] = nil
	}
	return figures
}

// SetQuota changes the quota of an organization.
func (c *Client) SetQuota(ctx context.Context, org string, change QuotaChange) (*contract.Quota, error) {
	return send[contract.Quota](ctx, c, put(inOrg(org, "quota"), change.figures()))
}

// Policy returns what the manifests of an organization may ask for.
func (c *Client) Policy(ctx context.Context, org string) (*contract.Policy, error) {
	return send[contract.Policy](ctx, c, get(inOrg(org, "policy"), nil))
}

// SetPolicy changes what the document names of an organization's policy.
func (c *Client) SetPolicy(ctx context.Context, org string, change contract.PolicyChange) (*contract.Policy, error) {
	return send[contract.Policy](ctx, c, put(inOrg(org, "policy"), change))
}

// Settings returns what is set for the installation.
func (c *Client) Settings(ctx context.Context) (*contract.Settings, error) {
	return send[contract.Settings](ctx, c, get("/v1/settings", nil))
}

// SettingsChange says which settings of the installation to change. All others stay.
type SettingsChange struct {
	Quota                QuotaChange // what new organizations begin with
	OrganizationsPerUser *int
	StoredPerProject     *int64
	Lift                 []string // the names of those that shall bound nothing, or be as they were: organizations_per_user, stored_per_project
}

// SetSettings changes what is set for the installation.
func (c *Client) SetSettings(ctx context.Context, change SettingsChange) (*contract.Settings, error) {
	body := map[string]any{}
	if quota := change.Quota.figures(); len(quota) > 0 {
		body["quota"] = quota
	}
	if n := change.OrganizationsPerUser; n != nil {
		body["organizations_per_user"] = *n
	}
	if n := change.StoredPerProject; n != nil {
		body["stored_per_project"] = *n
	}
	for _, name := range change.Lift {
		body[name] = nil
	}
	return send[contract.Settings](ctx, c, put("/v1/settings", body))
}

// Tokens lists the caller's tokens, or another user's if the caller runs the
// installation.
func (c *Client) Tokens(ctx context.Context, user string) (*contract.Tokens, error) {
	q := url.Values{}
	setParameter(q, "user", user)
	return send[contract.Tokens](ctx, c, get("/v1/tokens", q))
}

// CreateToken creates a token. Only this answer contains the secret.
func (c *Client) CreateToken(ctx context.Context, token contract.NewToken) (*contract.Token, error) {
	return send[contract.Token](ctx, c, post("/v1/tokens", token))
}

// JoinTokens lists the tokens that let nodes join.
func (c *Client) JoinTokens(ctx context.Context) (*contract.Tokens, error) {
	return send[contract.Tokens](ctx, c, get("/v1/tokens", url.Values{"use": {string(mariposa.TokenJoin)}}))
}

// Token returns a token by its id or name, with those that it made.
func (c *Client) Token(ctx context.Context, token string) (*contract.Token, error) {
	return send[contract.Token](ctx, c, get(pathUnder("/v1/tokens", token), nil))
}

// RevokeToken revokes a token, by its id. One that has descendants needs cascade.
func (c *Client) RevokeToken(ctx context.Context, id string, cascade bool) (*contract.Changed, error) {
	return send[contract.Changed](ctx, c, remove(pathUnder("/v1/tokens", id), cascading(cascade)))
}

// AdoptTokens takes over what a token made, by its id: they end with the caller's token.
func (c *Client) AdoptTokens(ctx context.Context, id string) (*contract.Changed, error) {
	return send[contract.Changed](ctx, c, put(pathUnder("/v1/tokens", id), contract.TokenAction{Action: "adopt"}))
}

// cascading says that what somebody made may end with them.
func cascading(cascade bool) url.Values {
	if !cascade {
		return nil
	}
	return url.Values{"cascade": {"true"}}
}

// Packages lists the packages.
func (c *Client) Packages(ctx context.Context) (*contract.Packages, error) {
	return send[contract.Packages](ctx, c, get("/v1/packages", nil))
}

// PutPackage creates or changes a package.
func (c *Client) PutPackage(ctx context.Context, p contract.Package) (*contract.Changed, error) {
	return send[contract.Changed](ctx, c, put(pathUnder("/v1/packages", p.Name), p))
}

// DeletePackage deletes a package.
func (c *Client) DeletePackage(ctx context.Context, name string) (*contract.Changed, error) {
	return send[contract.Changed](ctx, c, remove(pathUnder("/v1/packages", name), nil))
}

// RotateKey makes a new key of the installation and rewraps with it what the old one
// wrapped.
func (c *Client) RotateKey(ctx context.Context) (*contract.KeyRotation, error) {
	return send[contract.KeyRotation](ctx, c, request{method: http.MethodPost, path: "/v1/keys/rotate"})
}

// inOrg returns a path under an organization.
func inOrg(parts ...string) string { return pathUnder("/v1/organizations", parts...) }
