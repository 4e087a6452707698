package client

import (
	"context"
	"iter"

	"mariposa/contract"
)

// VolumeFilter selects volumes.
type VolumeFilter struct {
	Project string
	Service string
	Node    string
}

// Volumes iterates over all matching volumes, page by page. It stops at the first error.
func (c *Client) Volumes(ctx context.Context, f VolumeFilter) iter.Seq2[contract.Volume, error] {
	q := c.organizationQuery()
	setParameter(q, "project", f.Project, "service", f.Service, "node", f.Node)
	return iteratePages(ctx, c, "/v1/volumes", q, func(page *contract.Volumes) ([]contract.Volume, string) { return page.Volumes, page.Marker })
}

// AllVolumes collects the result of Volumes.
func (c *Client) AllVolumes(ctx context.Context, f VolumeFilter) (*contract.Volumes, error) {
	all, err := collect(c.Volumes(ctx, f))
	return &contract.Volumes{Volumes: all}, err
}

// Volume returns one volume, by its id or a prefix of it.
func (c *Client) Volume(ctx context.Context, id string) (*contract.Volume, error) {
	return send[contract.Volume](ctx, c, get(pathUnder("/v1/volumes", id), nil))
}

// DeleteVolume deletes a volume and its contents. Its node removes it once it can be
// reached.
func (c *Client) DeleteVolume(ctx context.Context, id string) (*contract.Changed, error) {
	return send[contract.Changed](ctx, c, remove(pathUnder("/v1/volumes", id), nil))
}

// AttachVolume gives a volume of a deleted project to another project.
func (c *Client) AttachVolume(ctx context.Context, id string, to contract.VolumeAttachment) (*contract.Changed, error) {
	return send[contract.Changed](ctx, c, post(pathUnder("/v1/volumes", id, "attach"), to))
}

// Networks iterates over all networks, or those that a project uses, page by page. It
// stops at the first error.
func (c *Client) Networks(ctx context.Context, project string) iter.Seq2[contract.Network, error] {
	q := c.organizationQuery()
	setParameter(q, "project", project)
	return iteratePages(ctx, c, "/v1/networks", q, func(page *contract.Networks) ([]contract.Network, string) { return page.Networks, page.Marker })
}

// AllNetworks collects the result of Networks.
func (c *Client) AllNetworks(ctx context.Context, project string) (*contract.Networks, error) {
	all, err := collect(c.Networks(ctx, project))
	return &contract.Networks{Networks: all}, err
}

// Network returns one network, by its id or a prefix of it.
func (c *Client) Network(ctx context.Context, id string) (*contract.Network, error) {
	return send[contract.Network](ctx, c, get(pathUnder("/v1/networks", id), nil))
}

// DeleteNetwork deletes a network that nothing uses.
func (c *Client) DeleteNetwork(ctx context.Context, id string) (*contract.Changed, error) {
	return send[contract.Changed](ctx, c, remove(pathUnder("/v1/networks", id), nil))
}
