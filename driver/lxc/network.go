package lxc

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"mariposa/driver"
)

// All networks of a node are blocks of one private range of addresses. Each has a bridge on the
// node; the first address of a block is that of the bridge.
//
// Instances whose manifest names no networks are in a network of their project, which comes with
// the first of them on this node and goes with the last. Block 0 is for those without a project.

const (
	subnetFile = "subnet.json"
	blockBits  = 24 // 253 instances in a network
)

// networks are the networks of a node.
type networks struct {
	options Options

	mu       sync.Mutex
	subnet   netip.Prefix // once it is known
	outgoing string       // how traffic leaves the node, for people
	// protected: the firewall rules of all networks were set, and none was added since.
	protected bool
}

// networkRecord is a network as it is kept on disk.
type networkRecord struct {
	ID    string `json:"id"`
	Name  string `json:"name"`
	Block int    `json:"block"`
}

func newNetworks(o Options) *networks { return &networks{options: o} }

// restore sets the firewall rules again if there are bridges: someone may have removed them.
func (n *networks) restore(ctx context.Context) {
	n.mu.Lock()
	defer n.mu.Unlock()
	all, err := n.list()
	has := hasInterface(n.bridge(""))
	for _, r := range all {
		has = has || hasInterface(n.bridge(r.ID))
	}
	if err == nil && has {
		err = n.applyRules(ctx)
	}
	if err != nil {
		n.outgoing = "unknown: " + err.Error()
	}
}

// details describe the networks for people.
func (n *networks) details() map[string]string {
	n.mu.Lock()
	defer n.mu.Unlock()
	m := map[string]string{}
	if n.subnet.IsValid() {
		m["network"] = n.subnet.String()
	}
	if n.outgoing != "" {
		m["outgoing"] = n.outgoing
	} else if findTool("iptables-restore") == "" && findTool("nft") == "" {
		m["outgoing"] = noFirewall
	}
	return m
}

// bridge returns the name of a network's bridge. A name of an interface has up to 15 characters.
func (n *networks) bridge(id string) string {
	return fmt.Sprintf("%s%08x", n.options.Bridge, hashOf(n.options.Scope+"\x00"+n.options.Dir+"\x00"+id))
}

// open returns the range of addresses of the node. It is chosen once. The caller holds the mutex.
func (n *networks) open() (netip.Prefix, error) {
	if n.subnet.IsValid() {
		return n.subnet, nil
	}
	path := filepath.Join(n.options.Dir, subnetFile)
	var kept netip.Prefix
	err := readJSON(path, &kept)
	switch {
	case n.options.Subnet.IsValid():
		n.subnet = n.options.Subnet.Masked()
		if !n.subnet.Addr().Is4() || n.subnet.Bits() > 29 {
			return netip.Prefix{}, fmt.Errorf("%s cannot be the network of system containers: it must be a range of IPv4 addresses, such as 10.96.0.0/16", n.subnet)
		}
		return n.subnet, nil
	case err == nil && kept.IsValid():
		n.subnet = kept
		return kept, nil
	case err != nil && !isGone(err):
		return netip.Prefix{}, fmt.Errorf("cannot read the network of system containers: %w", err)
	}
	chosen, err := chooseSubnet(hashOf(n.options.Scope + n.options.Dir))
	if err == nil {
		err = writeJSON(path, chosen)
	}
	if err != nil {
		return netip.Prefix{}, fmt.Errorf("cannot choose a network for system containers: %w", err)
	}
	n.subnet = chosen
	return chosen, nil
}

// chooseSubnet returns a range that no interface of the machine uses.
func chooseSubnet(seed uint32) (netip.Prefix, error) {
	addrs, err := net.InterfaceAddrs()
	if err != nil {
		return netip.Prefix{}, err
	}
	var used []netip.Prefix
	for _, a := range addrs {
		if p, err := netip.ParsePrefix(a.String()); err == nil {
			used = append(used, p.Masked())
		}
	}
	for n := range uint32(156) {
		p := netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(100 + (seed+n)%156), 0, 0}), 16)
		if !slices.ContainsFunc(used, p.Overlaps) {
			return p, nil
		}
	}
	return netip.Prefix{}, errors.New("the machine uses all of 10.100.0.0 to 10.255.255.255: choose one that is free")
}

// block returns the addresses of a network.
func block(subnet netip.Prefix, index int) (netip.Prefix, error) {
	bits := max(blockBits, subnet.Bits())
	if index >= 1<<(bits-subnet.Bits()) {
		return netip.Prefix{}, errors.New("this node has no addresses left for another network: remove networks")
	}
	return netip.PrefixFrom(addressAt(subnet.Addr(), index<<(32-bits)), bits), nil
}

// addressAt returns the address at a distance.
func addressAt(first netip.Addr, distance int) netip.Addr {
	b := first.As4()
	binary.BigEndian.PutUint32(b[:], binary.BigEndian.Uint32(b[:])+uint32(distance)) //nolint:gosec // within the range
	return netip.AddrFrom4(b)
}

// path returns where a network is recorded.
func (n *networks) path(id string) string {
	return filepath.Join(n.options.Dir, networksDir, id+".json")
}

// list returns the networks of manifests.
func (n *networks) list() (all []networkRecord, err error) {
	paths, err := filepath.Glob(filepath.Join(n.options.Dir, networksDir, "*.json"))
	for _, path := range paths {
		var r networkRecord
		if err := readJSON(path, &r); err != nil {
			return nil, fmt.Errorf("cannot read the networks of system containers: %w", err)
		}
		all = append(all, r)
	}
	return all, err
}

// projectPrefix begins the ids of the networks of projects. No id of a resource begins so.
const projectPrefix = ".project-"

// projectNetwork returns the id of the network of an instance's project; empty if that is unknown.
func projectNetwork(i driver.Instance) string {
	project := i.Project
	if i.Origin != nil {
		project = cmp.Or(i.Origin.Project, project)
	}
	if project == "" {
		return ""
	}
	sum := sha256.Sum256([]byte(project))
	return projectPrefix + hex.EncodeToString(sum[:8])
}

// isProject reports whether a network is that of a project.
func (r *networkRecord) isProject() bool { return strings.HasPrefix(r.ID, projectPrefix) }

// provide creates a network, unless it exists.
func (n *networks) provide(ctx context.Context, id, name string) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.create(ctx, id, name)
}

// create creates a network, unless it exists. The caller holds the mutex.
func (n *networks) create(ctx context.Context, id, name string) error {
	all, err := n.list()
	if err != nil {
		return err
	}
	if !slices.ContainsFunc(all, func(r networkRecord) bool { return r.ID == id }) {
		r := networkRecord{ID: id, Name: name, Block: 1}
		for slices.ContainsFunc(all, func(o networkRecord) bool { return o.Block == r.Block }) {
			r.Block++
		}
		subnet, err := n.open()
		if err == nil {
			_, err = block(subnet, r.Block)
		}
		if err == nil {
			err = writeJSON(n.path(id), r)
		}
		if err != nil {
			return err
		}
	}
	_, err = n.ensure(ctx, id)
	return err
}

// withdraw removes a network.
func (n *networks) withdraw(ctx context.Context, id string) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.remove(ctx, id)
}

// remove removes a network, if it exists. The caller holds the mutex.
func (n *networks) remove(ctx context.Context, id string) error {
	if !isFile(n.path(id)) {
		return nil
	}
	if bridge := n.bridge(id); hasInterface(bridge) {
		if _, err := runTool(ctx, "ip", "link", "delete", bridge); err != nil && hasInterface(bridge) {
			return fmt.Errorf("cannot remove the bridge of the network: %w", err)
		}
	}
	if err := ignoreMissing(os.Remove(n.path(id))); err != nil {
		return err
	}
	return n.applyRules(ctx)
}

// ensure makes the bridge of a network exist, with its address: those of a machine are gone after
// a restart. It returns the addresses of the network. The caller holds the mutex.
func (n *networks) ensure(ctx context.Context, id string) (netip.Prefix, error) {
	p, err := n.addresses(id)
	if err != nil {
		return p, err
	}
	bridge := n.bridge(id)
	if hasAddress(bridge, p) && n.protected {
		return p, nil
	}
	// The rules come first, so that no container is ever in a network without them.
	n.protected = false
	if err := n.applyRules(ctx); err != nil {
		return p, err
	}
	n.protected = true
	gateway := netip.PrefixFrom(p.Addr().Next(), p.Bits())
	if !hasInterface(bridge) {
		if _, err = runTool(ctx, "ip", "link", "add", bridge, "type", "bridge"); err != nil {
			return p, fmt.Errorf("cannot create the bridge of its network: %w", err)
		}
	}
	for _, args := range [][]string{{"address", "replace", gateway.String(), "dev", bridge}, {"link", "set", bridge, "up"}} {
		if _, err := runTool(ctx, "ip", args...); err != nil {
			return p, fmt.Errorf("cannot set up the bridge of its network: %w", err)
		}
	}
	return p, nil
}

// addresses returns the addresses of a network. The caller holds the mutex.
func (n *networks) addresses(id string) (netip.Prefix, error) {
	subnet, err := n.open()
	if err != nil {
		return subnet, err
	}
	if id == "" {
		return block(subnet, 0)
	}
	var r networkRecord
	if err := readJSON(n.path(id), &r); err != nil {
		return netip.Prefix{}, fmt.Errorf("this node does not have network %s of system containers", id)
	}
	return block(subnet, r.Block)
}

func hasInterface(name string) bool {
	_, err := net.InterfaceByName(name)
	return err == nil
}

// hasAddress reports whether a bridge is up and has the first address of a network.
func hasAddress(name string, p netip.Prefix) bool {
	i, err := net.InterfaceByName(name)
	if err != nil || i.Flags&net.FlagUp == 0 {
		return false
	}
	addrs, err := i.Addrs()
	want := netip.PrefixFrom(p.Addr().Next(), p.Bits()).String()
	return err == nil && slices.ContainsFunc(addrs, func(a net.Addr) bool { return a.String() == want })
}

// connect returns the links of an instance, with the addresses that it has or new ones.
func (d *Driver) connect(ctx context.Context, e *entry, i driver.Instance) ([]link, error) {
	n := d.network
	n.mu.Lock()
	defer n.mu.Unlock()
	var ids []string
	for _, network := range i.Networks {
		ids = append(ids, network.ID)
	}
	if len(ids) == 0 {
		ids = []string{projectNetwork(i)}
		if ids[0] != "" {
			if err := n.create(ctx, ids[0], i.Project); err != nil {
				return nil, err
			}
		}
	}
	var links []link
	for _, id := range ids {
		p, err := n.ensure(ctx, id)
		if err != nil {
			return nil, err
		}
		l := link{Network: id, Bridge: n.bridge(id), Gateway: p.Addr().Next()}
		if l.Address, err = d.assignAddress(e, id, p); err != nil {
			return nil, err
		}
		links = append(links, l)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	e.held.links = links
	return links, nil
}

// clearNetworks removes the networks of projects that have no instance here any more. One that
// cannot be removed now is removed with the next instance, or when the agent starts.
func (d *Driver) clearNetworks() {
	ctx, cancel := context.WithTimeout(d.ctx, toolTimeout)
	defer cancel()
	n := d.network
	n.mu.Lock()
	defer n.mu.Unlock()
	all, err := n.list()
	for _, r := range all {
		if err == nil && r.isProject() && !d.hasLink(r.ID) {
			err = n.remove(ctx, r.ID)
		}
	}
	if err != nil && d.ctx.Err() == nil {
		slog.Warn("cannot remove the network of a project; it is tried again later", "err", err)
	}
}

// hasLink reports whether an instance is in a network.
func (d *Driver) hasLink(network string) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, e := range d.entries {
		if slices.ContainsFunc(e.held.links, func(l link) bool { return l.Network == network }) {
			return true
		}
	}
	return false
}

// assignAddress returns the address that an instance has in a network, or one that is free.
func (d *Driver) assignAddress(e *entry, id string, p netip.Prefix) (netip.Prefix, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	used := map[netip.Addr]bool{}
	for _, other := range d.entries {
		for _, l := range other.held.links {
			if other == e && l.Network == id && p.Contains(l.Address.Addr()) {
				return l.Address, nil
			}
			used[l.Address.Addr()] = true
		}
	}
	for n := 2; n < 1<<(32-p.Bits())-1; n++ {
		if a := addressAt(p.Addr(), n); !used[a] {
			return netip.PrefixFrom(a, p.Bits()), nil
		}
	}
	return netip.Prefix{}, errors.New("its network has no address left on this node: remove instances")
}

// hardwareAddress returns the hardware address of an interface. It follows from its address, so
// that others find it again after a restart.
func hardwareAddress(a netip.Addr) string {
	b := a.As4()
	return fmt.Sprintf("02:6d:%02x:%02x:%02x:%02x", b[0], b[1], b[2], b[3])
}

// broadcast returns the last address of a network.
func broadcast(p netip.Prefix) netip.Addr {
	return addressAt(p.Masked().Addr(), 1<<(32-p.Bits())-1)
}

// nameServers returns the name servers of the machine that a container can reach.
func nameServers() (all []string) {
	b, _ := os.ReadFile("/etc/resolv.conf") // without one there are none
	for line := range strings.Lines(string(b)) {
		f := strings.Fields(line)
		if len(f) < 2 || f[0] != "nameserver" {
			continue
		}
		if a, err := netip.ParseAddr(f[1]); err == nil && !a.IsLoopback() && !slices.Contains(all, f[1]) {
			all = append(all, f[1])
		}
	}
	return all
}
