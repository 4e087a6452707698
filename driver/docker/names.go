package docker

import (
	"context"
	"net/netip"
	"strings"

	"github.com/google/uuid"
	"github.com/moby/moby/api/types/network"
	"github.com/moby/moby/client"

	"mariposa/driver"
)

// Containers ask the DNS server of the node at the address of the bridge of their network, through
// the resolver of the engine, which knows the containers of the network by itself. The
// configuration of a container's resolver is not part of its digest: a container from before stays
// as it is.

// setResolver makes a new container ask the DNS server of the node, if it can. Its network is looked
// up if it is nil.
func (d *Driver) setResolver(ctx context.Context, i driver.Instance, plan *client.ContainerCreateOptions, in *network.Network) {
	if len(i.Workload.DNS) > 0 || len(i.Search) == 0 || !d.mayOpenDoors() {
		return
	}
	if in == nil {
		is, err := d.api().NetworkInspect(ctx, string(plan.HostConfig.NetworkMode), client.NetworkInspectOptions{})
		if err != nil {
			return // the creation fails with the same error
		}
		in = &is.Network.Network
	}
	own := d.openDoor(ctx, in)
	if !own.IsValid() {
		return
	}
	servers, search := i.Resolver(own, nil)
	servers = append(servers, driver.MachineNameServers(false)...) // for the time when no agent runs
	host := *plan.HostConfig
	host.DNS, host.DNSSearch = nil, search
	for _, s := range servers {
		if ip, err := netip.ParseAddr(s); err == nil && ip.Zone() == "" {
			host.DNS = append(host.DNS, ip)
		}
	}
	plan.HostConfig = &host
}

// namesDetail is the detail of a node that says why containers cannot resolve names.
const namesDetail = "names"

// mayOpenDoors reports whether containers can ask the DNS server of the node.
func (d *Driver) mayOpenDoors() bool { return d.options.Names != nil && d.whyNoNames() == "" }

// whyNoNames says why containers cannot ask the DNS server of a node; empty if they can, or there is
// none.
func (d *Driver) whyNoNames() string {
	switch {
	case d.options.Names == nil:
		return ""
	case d.isPodman.Load():
		return "Podman answers at the addresses of its networks itself"
	case !isInOurNetwork(d.api().DaemonHost()):
		return "the engine does not run in the network of this node"
	}
	return ""
}

// openDoors makes the DNS server of the node answer in all networks of its containers.
func (d *Driver) openDoors(ctx context.Context) {
	if !d.mayOpenDoors() {
		return
	}
	list, err := d.api().NetworkList(ctx, client.NetworkListOptions{Filters: make(client.Filters).Add("label", labelScope+"="+d.options.Scope)})
	if err != nil {
		return // the engine is away
	}
	for _, n := range list.Items {
		d.openDoor(ctx, &n.Network)
	}
}

// openDoor makes the DNS server of the node answer in a network. It returns its address there; the
// zero one if containers cannot ask it.
func (d *Driver) openDoor(ctx context.Context, n *network.Network) (own netip.Addr) {
	door := driver.Door{Device: n.Options["com.docker.network.bridge.name"]}
	for _, c := range n.IPAM.Config {
		if c.Gateway.Is4() {
			door.Address = c.Gateway
		}
	}
	if door.Device == "" && len(n.ID) > 12 {
		door.Device = "br-" + n.ID[:12]
	}
	if id, ok := declaredNetwork(n.Name); ok {
		door.Attachment = id
	} else {
		door.Project = d.projectOf(n.Name)
	}
	if n.Driver != "bridge" || n.Labels[labelScope] != d.options.Scope || !door.Address.IsValid() || door.Device == "" || door.Project+door.Attachment == "" {
		return own
	}
	if err := d.options.Names.Open(ctx, door); err != nil {
		return own // the server has logged it
	}
	return door.Address
}

// declaredNetwork returns the id of the attachment of a network that a manifest declares, by its
// name in the engine.
func declaredNetwork(name string) (id string, ok bool) {
	id, ok = strings.CutPrefix(name, networkName(""))
	if !ok || uuid.Validate(id) != nil {
		return "", false
	}
	return id, true
}

// projectOf returns the id of the project that has a network, by its name in the engine; empty if
// it has no id.
func (d *Driver) projectOf(name string) string {
	id := strings.TrimPrefix(name, networkName(""))
	id = strings.TrimSuffix(id, "-"+d.options.Scope[max(0, len(d.options.Scope)-12):])
	if uuid.Validate(id) != nil {
		return ""
	}
	return id
}
