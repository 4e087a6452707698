package client

import (
	"context"
	"net/http"

	"mariposa/contract"
)

// Snapshots lists the snapshots of an instance, the oldest first.
func (c *Client) Snapshots(ctx context.Context, id string) (*contract.Snapshots, error) {
	return send[contract.Snapshots](ctx, c, get(pathUnder("/v1/instances", id, "snapshots"), nil))
}

// CreateSnapshot saves the state of an instance; without a name, under the time. If it takes
// long, the answer comes before it is done.
func (c *Client) CreateSnapshot(ctx context.Context, id, name string) (*contract.SnapshotChanged, error) {
	return send[contract.SnapshotChanged](ctx, c, post(pathUnder("/v1/instances", id, "snapshots"), contract.NewSnapshot{Name: name}))
}

// RestoreSnapshot returns an instance to a snapshot. If it takes long, the answer comes before
// it is done.
func (c *Client) RestoreSnapshot(ctx context.Context, id, name string) (*contract.SnapshotChanged, error) {
	return send[contract.SnapshotChanged](ctx, c, request{method: http.MethodPost, path: pathUnder("/v1/instances", id, "snapshots", name, "restore")})
}

// DeleteSnapshot deletes a snapshot. If it takes long, the answer comes before it is done.
func (c *Client) DeleteSnapshot(ctx context.Context, id, name string) (*contract.SnapshotChanged, error) {
	return send[contract.SnapshotChanged](ctx, c, remove(pathUnder("/v1/instances", id, "snapshots", name), nil))
}
