package bridge

import (
	"context"
	"errors"
	"net/netip"
	"slices"

	"mariposa/driver"
	"mariposa/driver/statefile"
)

// The Docker engine of a node puts the containers of a project onto the bridge of its network,
// so that they and the system containers and virtual machines of the project reach each other.
// The engine has the upper half of the network's addresses, and chooses among them itself.

// Share is the part of a network that an engine has.
type Share struct {
	Network string       // its id
	Bridge  string       // with the address Gateway
	Subnet  netip.Prefix // of the whole network
	Gateway netip.Addr
	Range   netip.Prefix // the addresses of the engine
}

// ErrNoRoom means that other instances have addresses in the half of an engine.
var ErrNoRoom = errors.New("the network of the project has no addresses left for an engine on this node")

// Share makes the network of an instance's project exist, and gives an engine its part. It is
// the engine's until Unshare.
func (n *Networks) Share(ctx context.Context, i driver.Instance) (Share, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	id := projectNetwork(i)
	if id == "" {
		return Share{}, errors.New("an instance without a project has no network to share")
	}
	if err := n.create(ctx, networkRecord{ID: id, Name: i.Project, Project: i.ProjectID()}); err != nil {
		return Share{}, err
	}
	p, err := n.addresses(id)
	if err != nil {
		return Share{}, err
	}
	upper := netip.PrefixFrom(addressAt(p.Addr(), 1<<(31-p.Bits())), p.Bits()+1)
	for _, links := range n.links {
		if slices.ContainsFunc(links, func(l Link) bool { return l.Network == id && upper.Contains(l.Address.Addr()) }) {
			return Share{}, ErrNoRoom
		}
	}
	if err := n.setShared(id, true); err != nil {
		return Share{}, err
	}
	return Share{Network: id, Bridge: n.bridge(id), Subnet: p, Gateway: p.Addr().Next(), Range: upper}, nil
}

// Unshare ends the share that an engine has in a network. Call Clear later.
func (n *Networks) Unshare(id string) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.setShared(id, false)
}

// Shares returns the ids of the networks that are shared with an engine.
func (n *Networks) Shares() (ids []string, err error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	all, err := n.list()
	for _, r := range all {
		if r.Shared {
			ids = append(ids, r.ID)
		}
	}
	return ids, err
}

// setShared records whether an engine has a part of a network. The caller holds the mutex.
func (n *Networks) setShared(id string, is bool) error {
	var r networkRecord
	err := statefile.Read(n.path(id), &r)
	if err != nil || r.Shared == is {
		return statefile.IgnoreMissing(err)
	}
	r.Shared = is
	return statefile.Write(n.path(id), r)
}

// isShared reports whether an engine has a part of a network. The caller holds the mutex.
func (n *Networks) isShared(id string) bool {
	var r networkRecord
	return id != "" && statefile.Read(n.path(id), &r) == nil && r.Shared
}
