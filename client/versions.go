package client

import (
	"context"
	"net/http"

	"mariposa/contract"
)

// Versions lists the submitted versions, newest first. It reads all pages.
func (c *Client) Versions(ctx context.Context, project string) (*contract.Versions, error) {
	all, err := collect(iteratePages(ctx, c, pathOf(project, "versions"), c.organizationQuery(), func(page *contract.Versions) ([]contract.Version, string) { return page.Versions, page.Marker }))
	return &contract.Versions{Versions: all}, err
}

// Version returns one version with its manifest, by its hash, number or tag.
func (c *Client) Version(ctx context.Context, project, version string) (*contract.Version, error) {
	return send[contract.Version](ctx, c, get(pathOf(project, "versions", version), c.organizationQuery()))
}

// ApproveVersion approves a version that uses protected secrets.
func (c *Client) ApproveVersion(ctx context.Context, project, version string) (*contract.Changed, error) {
	return send[contract.Changed](ctx, c, request{method: http.MethodPut, path: pathOf(project, "versions", version, "approval"), query: c.organizationQuery()})
}

// WithdrawApproval withdraws the approval of a version.
func (c *Client) WithdrawApproval(ctx context.Context, project, version string) (*contract.Changed, error) {
	return send[contract.Changed](ctx, c, remove(pathOf(project, "versions", version, "approval"), c.organizationQuery()))
}

// Diff returns the differences between two versions.
func (c *Client) Diff(ctx context.Context, project, from, to string) (*contract.Diff, error) {
	q := c.organizationQuery()
	setParameter(q, "from", from, "to", to)
	return send[contract.Diff](ctx, c, get(pathOf(project, "diff"), q))
}

// Tags lists the tags of versions.
func (c *Client) Tags(ctx context.Context, project string) (*contract.Tags, error) {
	return send[contract.Tags](ctx, c, get(pathOf(project, "tags"), c.organizationQuery()))
}

// AddTag adds a tag to a version.
func (c *Client) AddTag(ctx context.Context, project, tag, version string) (*contract.Changed, error) {
	return send[contract.Changed](ctx, c, post(pathOf(project, "tags"), contract.NewTag{Tag: tag, Version: version}).with(c.organizationQuery()))
}

// DeleteTag deletes a tag.
func (c *Client) DeleteTag(ctx context.Context, project, tag string) (*contract.Changed, error) {
	return send[contract.Changed](ctx, c, remove(pathOf(project, "tags", tag), c.organizationQuery()))
}

// Revert contains the options of a revert.
type Revert struct {
	Version   string            // empty: the last one that completed
	Rolling   string            // how many at a time, such as 2 or 25%; empty: as the services specify
	Canary    string            // hold after this many
	WithScale bool              // restore its scales too
	Scale     map[string]string // scales to set at the same time, by service
	Message   string            // describes the version in its history
}

// Revert restores a version by creating a new version with the same content.
func (c *Client) Revert(ctx context.Context, project string, r Revert) (*contract.Changed, error) {
	ask := contract.Action{
		Action: "revert", Version: r.Version, Rolling: Amount(r.Rolling), Canary: Amount(r.Canary), WithScale: r.WithScale, Message: r.Message,
	}
	if len(r.Scale) > 0 {
		var err error
		if ask.Scale, err = scalesInJSON(r.Scale); err != nil {
			return nil, err
		}
	}
	return c.Act(ctx, project, ask)
}

// Refresh contains the options of a refresh of images.
type Refresh struct {
	Services []string // only their images; empty: all
	Rolling  string   // how many at a time, such as 2 or 25%; empty: as the services specify
	Canary   string   // hold after this many
	Message  string   // describes the version in its history
}

// Refresh resolves the images of a project anew, and rolls out those that have moved.
func (c *Client) Refresh(ctx context.Context, project string, r Refresh) (*contract.Changed, error) {
	ask := contract.Refresh{Services: r.Services, Message: r.Message, Rolling: Amount(r.Rolling), Canary: Amount(r.Canary)}
	return send[contract.Changed](ctx, c, post(pathOf(project, "refresh"), ask).with(c.organizationQuery()))
}

// PlanNew previews the creation of a project from a manifest in YAML. It changes nothing.
func (c *Client) PlanNew(ctx context.Context, project string, manifest []byte) (*contract.Plan, error) {
	q := c.organizationQuery()
	setParameter(q, "name", project)
	return send[contract.Plan](ctx, c, request{method: http.MethodPost, path: "/v1/plan", query: q, body: manifest, kind: yaml})
}

// Plan previews a new manifest in YAML, with a rolling and a canary amount (empty: as the
// services specify). Without a manifest, it returns what would be done now. It changes
// nothing.
func (c *Client) Plan(ctx context.Context, project string, manifest []byte, rolling, canary string) (*contract.Plan, error) {
	q := c.organizationQuery()
	setParameter(q, "rolling", rolling, "canary", canary)
	r := request{method: http.MethodPost, path: pathOf(project, "plan"), query: q}
	if len(manifest) > 0 {
		r.body, r.kind = manifest, yaml
	}
	return send[contract.Plan](ctx, c, r)
}
