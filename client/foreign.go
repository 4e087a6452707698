package client

import (
	"context"

	"mariposa/contract"
)

// ForeignContainers lists the containers of a node that Mariposa neither created nor adopted; of
// all nodes if the node is empty.
func (c *Client) ForeignContainers(ctx context.Context, node string) (*contract.ForeignContainers, error) {
	if node == "" {
		return send[contract.ForeignContainers](ctx, c, get("/v1/foreign", nil))
	}
	return send[contract.ForeignContainers](ctx, c, get(pathUnder("/v1/nodes", node, "foreign"), nil))
}

// AdoptContainer makes a foreign container of a node an unmanaged instance of a project.
func (c *Client) AdoptContainer(ctx context.Context, node, container string, ask contract.ContainerAdoption) (*contract.Changed, error) {
	if ask.Organization == "" {
		ask.Organization = c.organization
	}
	return send[contract.Changed](ctx, c, post(pathUnder("/v1/nodes", node, "foreign", container, "adopt"), ask))
}
