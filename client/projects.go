package client

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"net/http"
	"net/url"
	"strconv"

	"mariposa"
	"mariposa/contract"
)

const yaml = "application/yaml"

// Update contains the options for submitting a new manifest.
type Update struct {
	Previous string // the version that the change is based on
	Force    bool   // accept any version
	Rolling  string // how many at a time, such as 2 or 25%; empty: as the services specify
	Canary   string // hold after this many, such as 2 or 25%; empty: as the services specify
	Message  string // describes the version in its history
}

// Projects lists all projects, or those with a name.
func (c *Client) Projects(ctx context.Context, name string) (*contract.Projects, error) {
	q := c.organizationQuery()
	setParameter(q, "name", name)
	return send[contract.Projects](ctx, c, get("/v1/projects", q))
}

// CreateProject creates a project from a manifest in YAML.
func (c *Client) CreateProject(ctx context.Context, name string, manifest []byte, message string) (*contract.Changed, error) {
	q := c.organizationQuery()
	setParameter(q, "name", name, "message", message)
	return send[contract.Changed](ctx, c, request{method: http.MethodPost, path: "/v1/projects", query: q, body: manifest, kind: yaml})
}

// NewProject creates a project with its metadata. The organization is the client's
// unless the document names one.
func (c *Client) NewProject(ctx context.Context, project contract.NewProject) (*contract.Changed, error) {
	project.Organization = cmp.Or(project.Organization, c.organization)
	return send[contract.Changed](ctx, c, post("/v1/projects", project))
}

// CopyProject creates a project from another's newest manifest.
func (c *Client) CopyProject(ctx context.Context, project string, to contract.Copy) (*contract.Changed, error) {
	return send[contract.Changed](ctx, c, post(pathOf(project, "copy"), to).with(c.organizationQuery()))
}

// MoveProject moves a project to another organization. Its instances keep running.
func (c *Client) MoveProject(ctx context.Context, project, organization string) (*contract.Changed, error) {
	return send[contract.Changed](ctx, c, post(pathOf(project, "move"), contract.Move{Organization: organization}).with(c.organizationQuery()))
}

// RenameProject renames a project. Its instances keep running.
func (c *Client) RenameProject(ctx context.Context, project, name string) (*contract.Changed, error) {
	return send[contract.Changed](ctx, c, put(pathOf(project), contract.ProjectChange{Name: name}).with(c.organizationQuery()))
}

// ProjectUsers lists the users of a project with their roles, and the source of each
// role.
func (c *Client) ProjectUsers(ctx context.Context, project string) (*contract.Members, error) {
	return send[contract.Members](ctx, c, get(pathOf(project, "users"), c.organizationQuery()))
}

// PutProjectUser sets the role of a user in a project.
func (c *Client) PutProjectUser(ctx context.Context, project, user string, role mariposa.Role) (*contract.Changed, error) {
	return send[contract.Changed](ctx, c, put(pathOf(project, "users", user), contract.MemberChange{Role: string(role)}).with(c.organizationQuery()))
}

// RemoveProjectUser removes a user's role in a project.
func (c *Client) RemoveProjectUser(ctx context.Context, project, user string) (*contract.Changed, error) {
	return send[contract.Changed](ctx, c, remove(pathOf(project, "users", user), c.organizationQuery()))
}

// Project returns one project, by its name or id.
func (c *Client) Project(ctx context.Context, project string) (*contract.Project, error) {
	return send[contract.Project](ctx, c, get(pathOf(project), c.organizationQuery()))
}

// UpdateManifest submits a new manifest in YAML.
func (c *Client) UpdateManifest(ctx context.Context, project string, manifest []byte, u Update) (*contract.Changed, error) {
	q := c.organizationQuery()
	setParameter(q, "previous", u.Previous, "rolling", u.Rolling, "canary", u.Canary, "message", u.Message)
	setIf(q, "force", u.Force)
	return send[contract.Changed](ctx, c, request{method: http.MethodPut, path: pathOf(project, "manifest"), query: q, body: manifest, kind: yaml})
}

// Manifest returns the newest manifest, byte for byte as it was submitted.
func (c *Client) Manifest(ctx context.Context, project string) ([]byte, error) {
	r := get(pathOf(project, "manifest"), c.organizationQuery())
	r.accept = yaml
	return c.bytes(ctx, r)
}

// Graph returns a project as a graph.
func (c *Client) Graph(ctx context.Context, project string) (*contract.Graph, error) {
	return send[contract.Graph](ctx, c, get(pathOf(project, "graph"), c.organizationQuery()))
}

// ProjectHistory returns how the services of a project fared in the last so many minutes; 60 if zero.
func (c *Client) ProjectHistory(ctx context.Context, project string, minutes int) (*contract.ProjectHistory, error) {
	q := c.organizationQuery()
	setMinutes(q, minutes)
	return send[contract.ProjectHistory](ctx, c, get(pathOf(project, "history"), q))
}

// NodeHistory returns how full a node was in the last so many minutes; 60 if zero.
func (c *Client) NodeHistory(ctx context.Context, node string, minutes int) (*contract.NodeHistory, error) {
	q := url.Values{}
	setMinutes(q, minutes)
	return send[contract.NodeHistory](ctx, c, get(pathUnder("/v1/nodes", node, "history"), q))
}

func setMinutes(q url.Values, minutes int) {
	if minutes > 0 {
		q.Set("minutes", strconv.Itoa(minutes))
	}
}

// DeleteProject deletes a project. With force, the task in the response stops its
// instances first. The organization keeps its volumes.
func (c *Client) DeleteProject(ctx context.Context, project string, force bool) (*contract.Changed, error) {
	q := c.organizationQuery()
	setIf(q, "force", force)
	return send[contract.Changed](ctx, c, remove(pathOf(project), q))
}

// DeleteWithVolumes deletes a project like DeleteProject, including its volumes.
func (c *Client) DeleteWithVolumes(ctx context.Context, project string, force bool) (*contract.Changed, error) {
	q := c.organizationQuery()
	q.Set("volumes", "true")
	setIf(q, "force", force)
	return send[contract.Changed](ctx, c, remove(pathOf(project), q))
}

// Act changes the state of a project: start, stop, reprovision, scale and so on.
func (c *Client) Act(ctx context.Context, project string, action contract.Action) (*contract.Changed, error) {
	return send[contract.Changed](ctx, c, put(pathOf(project, "state"), action).with(c.organizationQuery()))
}

// ActOnService changes the state of one service.
func (c *Client) ActOnService(ctx context.Context, project, service string, action contract.Action) (*contract.Changed, error) {
	return send[contract.Changed](ctx, c, put(pathOf(project, "services", service, "state"), action).with(c.organizationQuery()))
}

// Scale sets the scales of services in one task. A scale is a number, or a change such
// as +2 or -1.
func (c *Client) Scale(ctx context.Context, project string, scales map[string]string) (*contract.Changed, error) {
	text, err := scalesInJSON(scales)
	if err != nil {
		return nil, err
	}
	return c.Act(ctx, project, contract.Action{Action: "scale", Scale: text})
}

// scalesInJSON encodes scales by service for the API.
func scalesInJSON(scales map[string]string) (json.RawMessage, error) {
	all := make(map[string]any, len(scales))
	for service, scale := range scales {
		all[service] = amount(scale)
	}
	return json.Marshal(all)
}

// Amount encodes a number for the API: 3 as a number, +1 and 25% as strings; nil for
// an empty string.
func Amount(s string) json.RawMessage {
	if s == "" {
		return nil
	}
	text, err := json.Marshal(amount(s))
	if err != nil {
		return nil // numbers and strings always marshal
	}
	return text
}

func amount(s string) any {
	if n, err := strconv.Atoi(s); err == nil && n >= 0 && s[0] != '+' {
		return n
	}
	return s
}

// organizationQuery returns the query parameters of paths that begin with a project.
func (c *Client) organizationQuery() url.Values {
	q := url.Values{}
	setParameter(q, "organization", c.organization)
	return q
}

// projectQuery returns the query parameters of a request for one project, or for all.
func (c *Client) projectQuery(project string) url.Values {
	if project == "" {
		return url.Values{}
	}
	q := c.organizationQuery()
	q.Set("project", project)
	return q
}

// setParameter sets the parameters that are not empty, given as pairs of name and
// value.
func setParameter(q url.Values, pairs ...string) {
	for n := 0; n+1 < len(pairs); n += 2 {
		if pairs[n+1] != "" {
			q.Set(pairs[n], pairs[n+1])
		}
	}
}

// setIf sets a parameter to true if yes is set.
func setIf(q url.Values, key string, yes bool) {
	if yes {
		q.Set(key, "true")
	}
}

// pathOf returns a path under a project.
func pathOf(parts ...string) string { return pathUnder("/v1/projects", parts...) }

func pathUnder(root string, parts ...string) string {
	var b bytes.Buffer
	b.WriteString(root)
	for _, p := range parts {
		b.WriteString("/" + url.PathEscape(p))
	}
	return b.String()
}
