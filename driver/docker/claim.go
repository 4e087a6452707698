package docker

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"strings"

	"github.com/containerd/errdefs"
	"github.com/moby/moby/client"
)

// An engine cannot add a label to a container, so an adopted one is claimed by an empty volume that
// is named after it. All who use the engine see the claim: a container cannot be adopted by two
// nodes or installations. It also has the record of the adoption, in case the node loses it.

const (
	labelClaim  = "mariposa.adopted.by" // the scope of the node
	labelRecord = "mariposa.adopted.record"
)

// claimed is a record with its instance.
type claimed struct {
	Instance string    `json:"instance"`
	Adoption *adoption `json:"adoption"`
}

func claimName(container string) string { return "mariposa-adopted-" + container }

// claim claims a container for an instance of this node.
func (d *Driver) claim(ctx context.Context, id string, a *adoption) error {
	record, err := json.Marshal(claimed{id, a})
	if err != nil {
		return err
	}
	labels := map[string]string{labelClaim: d.options.Scope, labelRecord: string(record)}
	for range 3 {
		if _, err := d.api().VolumeCreate(ctx, client.VolumeCreateOptions{Name: claimName(a.Container), Labels: labels}); err != nil {
			return d.explain(err)
		}
		is, err := d.api().VolumeInspect(ctx, claimName(a.Container), client.VolumeInspectOptions{}) // it may have existed
		switch {
		case errdefs.IsNotFound(err):
			continue // it has just been removed
		case err != nil:
			return d.explain(err)
		case is.Volume.Labels[labelClaim] != d.options.Scope:
			return fmt.Errorf("another node or installation has already adopted the container. If that no longer exists, run `docker volume rm %s` on the machine", claimName(a.Container))
		case is.Volume.Labels[labelRecord] == string(record):
			return nil
		}
		if err := d.unclaim(ctx, a.Container); err != nil { // of an instance that is gone
			return err
		}
	}
	return fmt.Errorf("the volume %s is created and removed by someone else", claimName(a.Container))
}

// unclaim removes our claim of a container. It is not an error if there is none.
func (d *Driver) unclaim(ctx context.Context, container string) error {
	is, err := d.api().VolumeInspect(ctx, claimName(container), client.VolumeInspectOptions{})
	if err == nil && is.Volume.Labels[labelClaim] == d.options.Scope {
		_, err = d.api().VolumeRemove(ctx, claimName(container), client.VolumeRemoveOptions{})
	}
	return d.explain(unlessGone(err))
}

// reconcileClaims finds adopted containers whose records this node has lost, and renews claims that
// someone has removed.
func (d *Driver) reconcileClaims(ctx context.Context) error {
	list, err := d.api().VolumeList(ctx, client.VolumeListOptions{Filters: make(client.Filters).Add("label", labelClaim+"="+d.options.Scope)})
	if err != nil {
		return d.explain(err)
	}
	for _, v := range list.Items {
		var c claimed
		if json.Unmarshal([]byte(v.Labels[labelRecord]), &c) != nil || c.Adoption == nil || v.Name != claimName(c.Adoption.Container) || c.Instance == "" || strings.ContainsAny(c.Instance, "./") {
			continue // not ours
		}
		if d.adoptions.instanceOf(c.Adoption.Container) != "" {
			continue
		}
		_, err := d.api().ContainerInspect(ctx, c.Adoption.Container, client.ContainerInspectOptions{})
		switch {
		case errdefs.IsNotFound(err):
			err = d.unclaim(ctx, c.Adoption.Container)
		case err == nil:
			err = d.adoptions.put(c.Instance, c.Adoption)
		}
		if err != nil {
			slog.Warn("cannot read the claim of an adopted container; it is tried again later", "instance", c.Instance, "err", err)
		}
	}
	for _, id := range d.adoptions.ids() {
		if a := d.adoptions.of(id); a != nil {
			if err := d.claim(ctx, id, a); err != nil {
				slog.Warn("cannot claim an adopted container", "instance", id, "err", err)
			}
		}
	}
	return ctx.Err()
}
