package docker

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"strings"

	"github.com/containerd/errdefs"
	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/api/types/network"
	"github.com/moby/moby/client"

	"mariposa/driver"
)

// Containers whose manifest names no networks are in a network of their project: those of
// other projects cannot reach them. The driver creates it with the first container of the
// project on this node, and removes it with the last.

// labelNetwork marks the network of a project.
const labelNetwork = "mariposa.project.network"

// projectNetwork returns the name of the network of an instance's project on this node; empty
// if its project is unknown. The engine may be used by several nodes.
func (d *Driver) projectNetwork(i driver.Instance) string {
	project := i.Project
	if i.Origin != nil {
		project = cmp.Or(i.Origin.Project, project)
	}
	if project == "" {
		return ""
	}
	return "mariposa-" + project + "-" + d.options.Scope[max(0, len(d.options.Scope)-12):]
}

// joinNetworks puts a container into the first network of its instance, where it is known by the
// name of its service and its own, and returns the others.
func (d *Driver) joinNetworks(c *client.ContainerCreateOptions, i driver.Instance) (more []string) {
	var all []string
	for _, net := range i.Networks {
		all = append(all, networkName(net.ID))
	}
	if own := d.projectNetwork(i); len(all) == 0 && own != "" {
		all = []string{own}
		c.Config.Labels[labelNetwork] = own
	}
	if len(all) == 0 {
		return nil
	}
	c.HostConfig.NetworkMode = container.NetworkMode(all[0])
	c.NetworkingConfig = &network.NetworkingConfig{EndpointsConfig: map[string]*network.EndpointSettings{all[0]: endpoint(i)}}
	return all[1:]
}

// createContainer creates a container, and the network of its project if it needs that.
func (d *Driver) createContainer(ctx context.Context, i driver.Instance, plan client.ContainerCreateOptions) error {
	own := plan.Config.Labels[labelNetwork]
	if own == "" {
		d.setResolver(ctx, i, &plan, nil)
		_, err := d.api().ContainerCreate(ctx, plan)
		return err
	}
	d.networks.RLock() // until the container is there, so that the network is not removed
	defer d.networks.RUnlock()
	is, err := d.ensureNetwork(ctx, own, i)
	if err != nil {
		return err
	}
	d.setResolver(ctx, i, &plan, is)
	_, err = d.api().ContainerCreate(ctx, plan)
	return err
}

// ensureNetwork creates the network of a project unless it exists. It returns the network if it
// existed. A known network is not looked up again, because the more containers a network has, the
// longer the engine takes for that.
func (d *Driver) ensureNetwork(ctx context.Context, name string, i driver.Instance) (*network.Network, error) {
	d.ensuring.Lock() // an engine may have two networks with one name
	defer d.ensuring.Unlock()
	if known := d.ensured[name]; known != nil {
		return known, nil
	}
	is, err := d.api().NetworkInspect(ctx, name, client.NetworkInspectOptions{})
	switch {
	case errdefs.IsNotFound(err):
		o := client.NetworkCreateOptions{Driver: "bridge", Labels: map[string]string{labelScope: d.options.Scope, labelNetwork: name, labelProject: i.Project}}
		if err := d.useSharedBridge(ctx, i, &o); err != nil {
			return nil, err
		}
		_, err = d.api().NetworkCreate(ctx, name, o)
		return nil, err
	case err != nil:
		return nil, err
	case is.Network.Labels[labelScope] != d.options.Scope:
		return nil, &explained{fmt.Sprintf("another network has the name %s: remove it", name), nil}
	case is.Network.Labels[labelShared] != "":
		err = d.restoreSharedBridge(ctx, i)
	}
	if err == nil {
		d.ensured[name] = &is.Network.Network
	}
	return &is.Network.Network, err
}

// forgetNetworks makes ensureNetwork look up the networks of projects again: one, or all without a
// name.
func (d *Driver) forgetNetworks(name string) {
	d.ensuring.Lock()
	defer d.ensuring.Unlock()
	if name == "" {
		clear(d.ensured)
	}
	delete(d.ensured, name)
}

// sweepNetworks removes the networks of projects that have no containers here any more. An engine
// may refuse to remove one, because it counts containers in it that are gone; the network stays
// until a later sweep, and everything else goes on.
func (d *Driver) sweepNetworks(ctx context.Context) error {
	list, err := d.projectNetworks(ctx)
	if err != nil {
		return err
	}
	defer d.openDoors(ctx)
	defer d.releaseShares(ctx)
	for _, n := range list {
		if err := d.removeUnused(ctx, n.Labels[labelNetwork]); err != nil && ctx.Err() == nil {
			slog.Warn("cannot remove the network of a project; it is tried again later", "network", n.Name, "err", d.explain(err))
		}
	}
	return ctx.Err()
}

// projectNetworks returns the networks of projects.
func (d *Driver) projectNetworks(ctx context.Context) ([]network.Summary, error) {
	ours := make(client.Filters).Add("label", labelScope+"="+d.options.Scope).Add("label", labelNetwork)
	list, err := d.api().NetworkList(ctx, client.NetworkListOptions{Filters: ours})
	return list.Items, err
}

// removeUnused removes the network of a project unless a container uses it, running or not.
func (d *Driver) removeUnused(ctx context.Context, name string) error {
	if name == "" {
		return nil
	}
	used := func() (bool, error) {
		list, err := d.api().ContainerList(ctx, client.ContainerListOptions{All: true, Limit: 1, Filters: make(client.Filters).Add("label", labelNetwork+"="+name)})
		return err != nil || len(list.Items) > 0, err
	}
	if is, err := used(); is { // most often
		return err
	}
	d.networks.Lock()
	defer d.networks.Unlock()
	if is, err := used(); is {
		return err
	}
	is, err := d.api().NetworkInspect(ctx, name, client.NetworkInspectOptions{})
	if err != nil || is.Network.Labels[labelScope] != d.options.Scope || is.Network.Labels[labelNetwork] != name || len(is.Network.Containers) > 0 {
		return unlessGone(err)
	}
	d.forgetNetworks(name)
	if _, err = d.api().NetworkRemove(ctx, name, client.NetworkRemoveOptions{}); unlessGone(err) == nil {
		d.unshare(ctx, is.Network.Labels[labelShared])
	}
	return unlessGone(err)
}

// isMissingNetwork reports whether a container cannot start because its network is gone.
func isMissingNetwork(err error) bool {
	return errdefs.IsNotFound(err) && strings.Contains(err.Error(), "network")
}
