package docker

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/containerd/errdefs"
	"github.com/moby/moby/client"

	"mariposa"
	"mariposa/driver"
)

// volumesDir has the volumes with a size.
const volumesDir = "volumes"

// labelSize has the size of a volume that the manifest asks for.
const labelSize = "mariposa.size"

// labelsOf returns the labels of a resource.
func (d *Driver) labelsOf(r driver.Resource) map[string]string {
	labels := map[string]string{labelScope: d.options.Scope, labelResource: r.ID, labelName: r.Name}
	if r.Size > 0 {
		labels[labelSize] = strconv.FormatInt(r.Size, 10)
	}
	return labels
}

// Provide creates a volume or a network of the engine, unless it exists. The engine knows where
// a network is.
func (d *Driver) Provide(ctx context.Context, r driver.Resource) (string, error) {
	ctx, leave, err := d.gate.Enter(ctx)
	if err != nil {
		return "", err
	}
	defer leave()
	switch r.Kind {
	case mariposa.KindVolume:
		return d.provideVolume(ctx, r)
	case mariposa.KindNetwork, mariposa.KindAttachment:
		return "", d.explain(d.provideNetwork(ctx, r))
	}
	return "", fmt.Errorf("the docker driver has no %s: %w", r.Kind, driver.ErrNotSupported)
}

// provideVolume creates a volume of the engine. One with a size is a directory of this machine that
// the engine mounts; the engine itself cannot limit a volume.
func (d *Driver) provideVolume(ctx context.Context, r driver.Resource) (string, error) {
	is, err := d.api().VolumeInspect(ctx, volumeName(r.ID), client.VolumeInspectOptions{})
	exists := err == nil
	if err = unlessGone(err); err != nil {
		return "", d.explain(err)
	}
	if exists && is.Volume.Labels[labelScope] != d.options.Scope {
		return "", fmt.Errorf("another volume has the name %s: remove it", volumeName(r.ID))
	}
	limited := r.Size > 0
	if exists { // it stays as it was created
		limited = is.Volume.Options["device"] != ""
	}
	o := client.VolumeCreateOptions{Name: volumeName(r.ID), Labels: d.labelsOf(r)}
	var path string
	var grown error
	if limited {
		if err := d.requireLocalEngine(); err != nil {
			return "", err
		}
		small := (*driver.GrowError)(nil)
		if path, grown = d.volumes.Provide(ctx, r); grown != nil && !errors.As(grown, &small) {
			return "", grown
		}
		o.Driver, o.DriverOpts = "local", map[string]string{"type": "none", "o": "bind", "device": path}
	}
	if !exists {
		made, err := d.api().VolumeCreate(ctx, o)
		if err != nil {
			return "", d.explain(err)
		}
		is.Volume = made.Volume
	}
	if path == "" {
		path = is.Volume.Mountpoint
	}
	return path, grown
}

// requireLocalEngine refuses a volume with a size for an engine on another machine, which does not
// see what is mounted here.
func (d *Driver) requireLocalEngine() error {
	if host := d.api().DaemonHost(); !strings.HasPrefix(host, "unix:") {
		return fmt.Errorf("its size cannot be enforced: the Docker engine is at %s, and must be on this machine; use an engine with a socket here, or remove size from the volume in the manifest", host)
	}
	return nil
}

func (d *Driver) provideNetwork(ctx context.Context, r driver.Resource) error {
	is, err := d.api().NetworkInspect(ctx, networkName(r.ID), client.NetworkInspectOptions{})
	switch {
	case errdefs.IsNotFound(err):
		_, err = d.api().NetworkCreate(ctx, networkName(r.ID), client.NetworkCreateOptions{Driver: "bridge", Labels: d.labelsOf(r)})
		return err
	case err == nil && is.Network.Labels[labelScope] != d.options.Scope:
		return &explained{"another network has the name " + networkName(r.ID) + ": remove it", nil}
	}
	return err
}

// Withdraw removes a volume with its content, or a network.
func (d *Driver) Withdraw(ctx context.Context, r driver.Resource) error {
	ctx, leave, err := d.gate.Enter(ctx)
	if err != nil {
		return err
	}
	defer leave()
	if r.Kind == mariposa.KindVolume {
		is, err := d.api().VolumeInspect(ctx, volumeName(r.ID), client.VolumeInspectOptions{})
		if err == nil && is.Volume.Labels[labelScope] == d.options.Scope {
			_, err = d.api().VolumeRemove(ctx, volumeName(r.ID), client.VolumeRemoveOptions{})
		}
		if err := unlessGone(err); err != nil {
			return d.explain(err)
		}
		return d.volumes.Withdraw(r.ID)
	}
	is, err := d.api().NetworkInspect(ctx, networkName(r.ID), client.NetworkInspectOptions{})
	if err == nil && is.Network.Labels[labelScope] == d.options.Scope {
		_, err = d.api().NetworkRemove(ctx, networkName(r.ID), client.NetworkRemoveOptions{})
	}
	return d.explain(unlessGone(err))
}

func unlessGone(err error) error {
	if errdefs.IsNotFound(err) {
		return nil
	}
	return err
}

// Provided returns the volumes and networks of this node.
func (d *Driver) Provided(ctx context.Context) ([]driver.Resource, error) {
	ctx, leave, err := d.gate.Enter(ctx)
	if err != nil {
		return nil, err
	}
	defer leave()
	ours := make(client.Filters).Add("label", labelScope+"="+d.options.Scope)
	volumes, err := d.api().VolumeList(ctx, client.VolumeListOptions{Filters: ours})
	if err != nil {
		return nil, d.explain(err)
	}
	networks, err := d.api().NetworkList(ctx, client.NetworkListOptions{Filters: ours})
	if err != nil {
		return nil, d.explain(err)
	}
	var all []driver.Resource
	for _, v := range volumes.Items {
		size, _ := strconv.ParseInt(v.Labels[labelSize], 10, 64) // none if there is no label
		all = append(all, driver.Resource{Kind: mariposa.KindVolume, ID: v.Labels[labelResource], Name: v.Labels[labelName], Size: size})
	}
	for _, n := range networks.Items {
		if n.Labels[labelResource] == "" {
			continue // the network of a project
		}
		all = append(all, driver.Resource{Kind: mariposa.KindNetwork, ID: n.Labels[labelResource], Name: n.Labels[labelName]})
	}
	return all, nil
}
