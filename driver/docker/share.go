package docker

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"strconv"

	"github.com/moby/moby/api/types/network"
	"github.com/moby/moby/client"

	"mariposa/driver"
	"mariposa/driver/bridge"
)

// On a node that also runs system containers or virtual machines, the containers of a project are
// on the bridge that those of the project have, so that all of them reach each other. The engine
// uses a bridge that exists, and leaves it there when its network is removed.

// labelShared marks the network of a project that uses such a bridge. Its value is the id of the
// bridge's network.
const labelShared = "mariposa.shared"

// shared returns the networks of system containers and virtual machines; nil if there are none,
// or if the engine cannot use their bridges.
func (d *Driver) shared() *bridge.Networks {
	if d.options.Shared == nil || !isInOurNetwork(d.api().DaemonHost()) {
		return nil
	}
	return d.options.Shared()
}

// useSharedBridge puts the network of an instance's project onto the bridge of the project, if
// this node shares bridges.
func (d *Driver) useSharedBridge(ctx context.Context, i driver.Instance, o *client.NetworkCreateOptions) error {
	networks := d.shared()
	if networks == nil {
		return nil
	}
	s, err := networks.Share(ctx, i)
	switch {
	case errors.Is(err, bridge.ErrNoRoom):
		slog.Warn("the containers of a project cannot reach its system containers and virtual machines", "project", i.Project, "err", err)
		return nil
	case err != nil:
		return err
	}
	o.Labels[labelShared] = s.Network
	o.Options = map[string]string{"com.docker.network.bridge.name": s.Bridge}
	o.IPAM = &network.IPAM{Config: []network.IPAMConfig{{Subnet: s.Subnet, Gateway: s.Gateway, IPRange: s.Range}}}
	return nil
}

// restoreSharedBridge makes sure that the bridge of a project has its address and its firewall
// rules: after a restart of the machine it was the engine that created it.
func (d *Driver) restoreSharedBridge(ctx context.Context, i driver.Instance) error {
	if networks := d.shared(); networks != nil {
		_, err := networks.Share(ctx, i)
		return err
	}
	return nil
}

// unshare gives the bridge of a removed network back.
func (d *Driver) unshare(ctx context.Context, id string) {
	networks := d.shared()
	if networks == nil || id == "" {
		return
	}
	if err := networks.Unshare(id); err != nil {
		slog.Warn("cannot give back the bridge of a project; it is tried again later", "err", err)
		return
	}
	networks.Clear(ctx)
}

// releaseShares gives back the bridges whose network is gone: someone may have removed it, or the
// agent may have been killed before it could do that.
func (d *Driver) releaseShares(ctx context.Context) {
	networks := d.shared()
	if networks == nil {
		return
	}
	d.networks.Lock() // none is created meanwhile
	defer d.networks.Unlock()
	ids, err := networks.Shares()
	if err != nil || len(ids) == 0 {
		return
	}
	list, err := d.projectNetworks(ctx)
	if err != nil {
		return // the engine is away
	}
	used := map[string]bool{}
	for _, n := range list {
		used[n.Labels[labelShared]] = true
	}
	for _, id := range ids {
		if !used[id] {
			d.unshare(ctx, id)
		}
	}
}

// isInOurNetwork reports whether an engine runs in the network namespace of the agent, and so sees
// the same bridges.
func isInOurNetwork(host string) bool {
	peer := peerOf(host)
	if peer == nil {
		return false
	}
	theirs, err := os.Readlink("/proc/" + strconv.Itoa(int(peer.Pid)) + "/ns/net")
	if err != nil {
		return false
	}
	ours, err := os.Readlink("/proc/self/ns/net")
	return err == nil && ours == theirs
}
