package client

import (
	"context"
	"errors"
	"iter"

	"mariposa/contract"
)

// Networks goes through all networks, or those that a project uses, page by page. The
// first error ends it.
func (c *Client) Networks(ctx context.Context, project string) iter.Seq2[contract.Network, error] {
	return func(yield func(contract.Network, error) bool) {
		q := c.owned()
		set(q, "project", project)
		err := pages(q, func() (string, error) {
			page, err := answer[contract.Networks](ctx, c, get("/v1/networks", q))
			if err != nil {
				return "", err
			}
			for _, n := range page.Networks {
				if !yield(n, nil) {
					return "", errStop
				}
			}
			return page.Marker, nil
		})
		if err != nil && !errors.Is(err, errStop) {
			yield(contract.Network{}, err)
		}
	}
}

// AllNetworks collects what Networks goes through.
func (c *Client) AllNetworks(ctx context.Context, project string) (*contract.Networks, error) {
	all := &contract.Networks{Networks: []contract.Network{}}
	for n, err := range c.Networks(ctx, project) {
		if err != nil {
			return nil, err
		}
		all.Networks = append(all.Networks, n)
	}
	return all, nil
}

// Network returns one network, by its id or the beginning of it.
func (c *Client) Network(ctx context.Context, id string) (*contract.Network, error) {
	return answer[contract.Network](ctx, c, get(under("/v1/networks", id), nil))
}

// DeleteNetwork deletes a network that nothing uses.
func (c *Client) DeleteNetwork(ctx context.Context, id string) (*contract.Changed, error) {
	return answer[contract.Changed](ctx, c, remove(under("/v1/networks", id), nil))
}
