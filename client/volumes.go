package client

import (
	"context"
	"errors"
	"iter"

	"mariposa/contract"
)

// VolumeFilter says which volumes are wanted.
type VolumeFilter struct {
	Project string
	Service string
	Node    string
}

// Volumes goes through all volumes that match, page by page. The first error ends
// it.
func (c *Client) Volumes(ctx context.Context, f VolumeFilter) iter.Seq2[contract.Volume, error] {
	return func(yield func(contract.Volume, error) bool) {
		q := c.owned()
		set(q, "project", f.Project)
		set(q, "service", f.Service)
		set(q, "node", f.Node)
		err := pages(q, func() (string, error) {
			page, err := answer[contract.Volumes](ctx, c, get("/v1/volumes", q))
			if err != nil {
				return "", err
			}
			for _, v := range page.Volumes {
				if !yield(v, nil) {
					return "", errStop
				}
			}
			return page.Marker, nil
		})
		if err != nil && !errors.Is(err, errStop) {
			yield(contract.Volume{}, err)
		}
	}
}

// AllVolumes collects what Volumes goes through.
func (c *Client) AllVolumes(ctx context.Context, f VolumeFilter) (*contract.Volumes, error) {
	all := &contract.Volumes{Volumes: []contract.Volume{}}
	for v, err := range c.Volumes(ctx, f) {
		if err != nil {
			return nil, err
		}
		all.Volumes = append(all.Volumes, v)
	}
	return all, nil
}

// Volume returns one volume, by its id or the beginning of it.
func (c *Client) Volume(ctx context.Context, id string) (*contract.Volume, error) {
	return answer[contract.Volume](ctx, c, get(under("/v1/volumes", id), nil))
}

// DeleteVolume deletes a volume with what is in it. Its node removes it as soon as
// it can be reached.
func (c *Client) DeleteVolume(ctx context.Context, id string) (*contract.Changed, error) {
	return answer[contract.Changed](ctx, c, remove(under("/v1/volumes", id), nil))
}
