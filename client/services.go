package client

import (
	"context"
	"net/http"
	"net/url"

	"mariposa/contract"
)

// Services lists the services of a project.
func (c *Client) Services(ctx context.Context, project string) (*contract.Services, error) {
	return send[contract.Services](ctx, c, get(pathOf(project, "services"), c.organizationQuery()))
}

// Service returns one service.
func (c *Client) Service(ctx context.Context, project, service string) (*contract.Service, error) {
	return send[contract.Service](ctx, c, get(pathOf(project, "services", service), c.organizationQuery()))
}

// AddService adds a service to the manifest of a project. Of the update, Force does not
// apply: without Previous, any version is accepted.
func (c *Client) AddService(ctx context.Context, project, service string, definition []byte, u Update) (*contract.Changed, error) {
	q := c.serviceQuery(u)
	q.Set("name", service)
	return send[contract.Changed](ctx, c, request{method: http.MethodPost, path: pathOf(project, "services"), query: q, body: definition, kind: yaml})
}

// UpdateService replaces the definition of a service in the manifest of a project.
func (c *Client) UpdateService(ctx context.Context, project, service string, definition []byte, u Update) (*contract.Changed, error) {
	return send[contract.Changed](ctx, c, request{method: http.MethodPut, path: pathOf(project, "services", service), query: c.serviceQuery(u), body: definition, kind: yaml})
}

// DeleteService removes a service from the manifest of a project.
func (c *Client) DeleteService(ctx context.Context, project, service string, u Update) (*contract.Changed, error) {
	return send[contract.Changed](ctx, c, remove(pathOf(project, "services", service), c.serviceQuery(u)))
}

func (c *Client) serviceQuery(u Update) url.Values {
	q := c.organizationQuery()
	setParameter(q, "previous", u.Previous, "rolling", u.Rolling, "canary", u.Canary, "message", u.Message)
	return q
}

// HealthChecks returns the health checks of a project's services and their results, or of one
// service.
func (c *Client) HealthChecks(ctx context.Context, project, service string) (*contract.HealthChecks, error) {
	path := pathOf(project, "healthchecks")
	if service != "" {
		path = pathOf(project, "services", service, "healthchecks")
	}
	return send[contract.HealthChecks](ctx, c, get(path, c.organizationQuery()))
}

// Names returns the DNS names of a project's services, as instances on a node get them. If the node
// is empty, each instance is seen from its own.
func (c *Client) Names(ctx context.Context, project, node string) (*contract.Names, error) {
	q := c.organizationQuery()
	if node != "" {
		q.Set("node", node)
	}
	return send[contract.Names](ctx, c, get(pathOf(project, "names"), q))
}

// Balancers returns the load balancers of a project with their members, or of all projects if it
// is empty.
func (c *Client) Balancers(ctx context.Context, project string) (*contract.Balancers, error) {
	path := "/v1/balancers"
	if project != "" {
		path = pathOf(project, "balancers")
	}
	return send[contract.Balancers](ctx, c, get(path, c.organizationQuery()))
}
