package client

import (
	"context"
	"crypto/rand"
	"net/http"
	"net/url"
	"strings"

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

// CreateUser creates a user with a personal organization.
func (c *Client) CreateUser(ctx context.Context, user contract.NewUser) (*contract.Changed, error) {
	return send[contract.Changed](ctx, c, post("/v1/users", user))
}

// UpdateUser changes the given fields of a user. Disabling a user who created tokens
// for others requires cascade.
func (c *Client) UpdateUser(ctx context.Context, user string, change contract.UserChange, cascade bool) (*contract.Changed, error) {
	return send[contract.Changed](ctx, c, put(pathUnder("/v1/users", user), change).with(cascading(cascade)))
}

// DeleteUser deletes a user. If the user created tokens for others, cascade is
// required, which revokes them.
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

// UpdateOrganization changes the given fields of an organization.
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

// RemoveMember removes a user from an organization. Users can remove themselves.
func (c *Client) RemoveMember(ctx context.Context, org, user string) (*contract.Changed, error) {
	return send[contract.Changed](ctx, c, remove(inOrg(org, "members", user), nil))
}

// Quota returns the limits and the usage of an organization.
func (c *Client) Quota(ctx context.Context, org string) (*contract.Quota, error) {
	return send[contract.Quota](ctx, c, get(inOrg(org, "quota"), nil))
}

// QuotaChange contains the limits of a quota to change. All others remain unchanged.
type QuotaChange struct {
	Set  contract.QuotaLimits // those that are not nil
	Lift []string             // names of limits to remove: projects, instances, cpu, memory, stored_per_project
}

// figures returns the request body.
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

// Policy returns the policy of an organization: what its manifests can use.
func (c *Client) Policy(ctx context.Context, org string) (*contract.Policy, error) {
	return send[contract.Policy](ctx, c, get(inOrg(org, "policy"), nil))
}

// SetPolicy changes the given fields of an organization's policy.
func (c *Client) SetPolicy(ctx context.Context, org string, change contract.PolicyChange) (*contract.Policy, error) {
	return send[contract.Policy](ctx, c, put(inOrg(org, "policy"), change))
}

// Registries lists the logins of an organization to registries of images.
func (c *Client) Registries(ctx context.Context, org string) (*contract.Registries, error) {
	return send[contract.Registries](ctx, c, get(inOrg(org, "registries"), nil))
}

// SetRegistry sets the login of an organization to a registry of images.
func (c *Client) SetRegistry(ctx context.Context, org, registry string, login contract.RegistryLogin) (*contract.Registry, error) {
	return send[contract.Registry](ctx, c, put(inOrg(org, "registries", registry), login))
}

// RemoveRegistry removes the login of an organization to a registry.
func (c *Client) RemoveRegistry(ctx context.Context, org, registry string) (*contract.Registry, error) {
	return send[contract.Registry](ctx, c, remove(inOrg(org, "registries", registry), nil))
}

// Settings returns the settings of the installation.
func (c *Client) Settings(ctx context.Context) (*contract.Settings, error) {
	return send[contract.Settings](ctx, c, get("/v1/settings", nil))
}

// SettingsChange contains the settings of the installation to change. All others remain
// unchanged.
type SettingsChange struct {
	Quota                QuotaChange // quota of new organizations
	OrganizationsPerUser *int
	StoredPerProject     *int64
	StormBreaker         *int     // percent; 0: off
	Lift                 []string // names of settings to remove or reset: organizations_per_user, stored_per_project, storm_breaker
}

// SetSettings changes the settings of the installation.
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
	if n := change.StormBreaker; n != nil {
		body["storm_breaker"] = *n
	}
	for _, name := range change.Lift {
		body[name] = nil
	}
	return send[contract.Settings](ctx, c, put("/v1/settings", body))
}

// Tokens lists the tokens of the caller, or of another user if the caller is an
// installation admin.
func (c *Client) Tokens(ctx context.Context, user string) (*contract.Tokens, error) {
	q := url.Values{}
	setParameter(q, "user", user)
	return send[contract.Tokens](ctx, c, get("/v1/tokens", q))
}

// CreateToken creates a token. Only this response contains the secret.
func (c *Client) CreateToken(ctx context.Context, token contract.NewToken) (*contract.Token, error) {
	return send[contract.Token](ctx, c, post("/v1/tokens", token))
}

// SetPassword sets the password of a user for the web page. The caller must be an installation
// admin.
func (c *Client) SetPassword(ctx context.Context, user, password string) (*contract.Changed, error) {
	return send[contract.Changed](ctx, c, put(pathUnder("/v1/users", user, "password"), contract.Password{Password: password}))
}

// RemovePassword removes the password of a user.
func (c *Client) RemovePassword(ctx context.Context, user string) (*contract.Changed, error) {
	return send[contract.Changed](ctx, c, remove(pathUnder("/v1/users", user, "password"), nil))
}

// CreateLink creates a URL that signs the caller in to the web page, once. The part after # is
// secret; browsers do not send it to servers. Expires is a duration; the server's default if empty.
func (c *Client) CreateLink(ctx context.Context, expires string) (link string, made *contract.Token, err error) {
	made, err = c.CreateToken(ctx, contract.NewToken{Name: "link-" + rand.Text()[:8], Use: mariposa.TokenLink, Expires: expires})
	if err != nil {
		return "", nil, err
	}
	return strings.TrimRight(c.URL(), "/") + "/#sign-in=" + made.Secret, made, nil
}

// JoinTokens lists the join tokens.
func (c *Client) JoinTokens(ctx context.Context) (*contract.Tokens, error) {
	return send[contract.Tokens](ctx, c, get("/v1/tokens", url.Values{"use": {string(mariposa.TokenJoin)}}))
}

// Token returns a token by its id or name, with the tokens that it created.
func (c *Client) Token(ctx context.Context, token string) (*contract.Token, error) {
	return send[contract.Token](ctx, c, get(pathUnder("/v1/tokens", token), nil))
}

// RevokeToken revokes a token by its id. If it created other tokens, cascade is required.
func (c *Client) RevokeToken(ctx context.Context, id string, cascade bool) (*contract.Changed, error) {
	return send[contract.Changed](ctx, c, remove(pathUnder("/v1/tokens", id), cascading(cascade)))
}

// AdoptTokens makes the caller's token the parent of the tokens that another token created.
func (c *Client) AdoptTokens(ctx context.Context, id string) (*contract.Changed, error) {
	return send[contract.Changed](ctx, c, put(pathUnder("/v1/tokens", id), contract.TokenAction{Action: "adopt"}))
}

// cascading returns the query parameters for cascade.
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

// RotateKey replaces the outer key of the installation and encrypts all project keys
// with the new one.
func (c *Client) RotateKey(ctx context.Context) (*contract.KeyRotation, error) {
	return send[contract.KeyRotation](ctx, c, request{method: http.MethodPost, path: "/v1/keys/rotate"})
}

// inOrg returns a path under an organization.
func inOrg(parts ...string) string { return pathUnder("/v1/organizations", parts...) }
