package client

import (
	"context"
	"encoding/json"
	"io"
	"iter"
	"maps"
	"net/http"
	"net/url"

	"mariposa"
	"mariposa/contract"
)

// State returns the desired and actual state of all projects, of one project, or of one
// service.
func (c *Client) State(ctx context.Context, project, service string) (*contract.State, error) {
	q := c.projectQuery(project)
	setParameter(q, "service", service)
	return send[contract.State](ctx, c, get("/v1/state", q))
}

// InstanceFilter selects instances.
type InstanceFilter struct {
	Project string
	Service string
	Node    string
	State   string
	Version string
	Usage   bool // measure the usage of running instances
}

// Instances iterates over all matching instances, page by page: there may be a hundred
// thousand. It stops at the first error.
func (c *Client) Instances(ctx context.Context, f InstanceFilter) iter.Seq2[contract.Instance, error] {
	q := c.projectQuery(f.Project)
	if f.Usage {
		q.Set("usage", "true")
	}
	setParameter(q, "service", f.Service, "node", f.Node, "state", f.State, "version", f.Version)
	return iteratePages(ctx, c, "/v1/instances", q, func(page *contract.Instances) ([]contract.Instance, string) { return page.Instances, page.Marker })
}

// AllInstances collects the result of Instances.
func (c *Client) AllInstances(ctx context.Context, f InstanceFilter) (*contract.Instances, error) {
	all, err := collect(c.Instances(ctx, f))
	return &contract.Instances{Instances: all}, err
}

// Instance returns one instance with its details, by its name, its id or a prefix of
// its id.
func (c *Client) Instance(ctx context.Context, id string) (*contract.Instance, error) {
	return send[contract.Instance](ctx, c, get(pathUnder("/v1/instances", id), nil))
}

// ActOnInstance acts on an instance: restart, replace, crash and so on.
func (c *Client) ActOnInstance(ctx context.Context, id, action string) (*contract.Changed, error) {
	return send[contract.Changed](ctx, c, put(pathUnder("/v1/instances", id), contract.InstanceAction{Action: action}))
}

// CreateInstance creates an unmanaged instance. Definition has the keys of a service,
// as in a manifest.
func (c *Client) CreateInstance(ctx context.Context, project, name string, definition map[string]any) (*contract.Changed, error) {
	document := maps.Clone(definition)
	if document == nil {
		document = map[string]any{}
	}
	document["project"] = project
	if name != "" {
		document["name"] = name
	}
	if c.organization != "" {
		document["organization"] = c.organization
	}
	body, err := json.Marshal(document)
	if err != nil {
		return nil, mariposa.Errorf(mariposa.InvalidArgument, "the definition of the instance is not valid JSON: %w", err)
	}
	return send[contract.Changed](ctx, c, request{method: http.MethodPost, path: "/v1/instances", body: body, kind: "application/json"})
}

// DeleteInstance removes an unmanaged instance. With force it is killed without time
// to stop, which also works for a managed instance that is stopping.
func (c *Client) DeleteInstance(ctx context.Context, id string, force bool) (*contract.Changed, error) {
	q := url.Values{}
	setIf(q, "force", force)
	return send[contract.Changed](ctx, c, remove(pathUnder("/v1/instances", id), q))
}

// Backup returns a backup of the whole store. The caller must close it, and check that it
// is complete.
func (c *Client) Backup(ctx context.Context) (io.ReadCloser, error) {
	r := get("/v1/backup", nil)
	r.accept = "application/octet-stream"
	res, _, err := c.open(ctx, r)
	if err != nil {
		return nil, err
	}
	return res.Body, nil
}

// Replicas lists the replicas of the server that are alive.
func (c *Client) Replicas(ctx context.Context) (*contract.Replicas, error) {
	return send[contract.Replicas](ctx, c, get("/v1/replicas", nil))
}

// Nodes lists the nodes.
func (c *Client) Nodes(ctx context.Context) (*contract.Nodes, error) {
	return send[contract.Nodes](ctx, c, get("/v1/nodes", nil))
}

// Node returns one node, by its name or id.
func (c *Client) Node(ctx context.Context, node string) (*contract.Node, error) {
	return send[contract.Node](ctx, c, get(pathUnder("/v1/nodes", node), nil))
}

// ActOnNode acts on a node: purge, lose, restore and so on.
func (c *Client) ActOnNode(ctx context.Context, node string, action contract.NodeAction) (*contract.Changed, error) {
	return send[contract.Changed](ctx, c, put(pathUnder("/v1/nodes", node), action))
}

// DeleteNode removes a node; with force, including the instances that are assigned to
// it.
func (c *Client) DeleteNode(ctx context.Context, node string, force bool) (*contract.Changed, error) {
	q := url.Values{}
	setIf(q, "force", force)
	return send[contract.Changed](ctx, c, remove(pathUnder("/v1/nodes", node), q))
}

// Health reports that the server is alive; Ready, that it can reach its store too.
func (c *Client) Health(ctx context.Context) (*contract.Health, error) {
	return send[contract.Health](ctx, c, get("/healthz", nil))
}

func (c *Client) Ready(ctx context.Context) (*contract.Health, error) {
	return send[contract.Health](ctx, c, get("/readyz", nil))
}
