// Package bridge has the networks of a node whose instances have addresses of their own: system
// containers and virtual machines. Each network has a bridge. The package owns the bridges, their
// firewall rules, and which address belongs to whom. It does not know what is attached to a bridge.
// An engine can have a part of the network of a project (share.go).
//
// All networks of a node are blocks of one private range of addresses. The first address of a
// block is that of the bridge.
//
// Instances whose manifest names no networks are in a network of their project, which is created
// with the first of them on this node and removed with the last. Block 0 is for those without a
// project.
package bridge

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"hash/fnv"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"mariposa"
	"mariposa/driver"
	"mariposa/driver/ostool"
	"mariposa/driver/statefile"
)

const (
	networksDir = "networks"
	subnetFile  = "subnet.json"
	blockBits   = 24 // 253 instances in a network
)

// Options configure the networks of a node. Bridges are in the network namespace that the agent
// runs in.
type Options struct {
	// Dir is a directory of the networks.
	Dir string
	// Scope names the node: several may run on one machine.
	Scope string
	// Prefix begins the names of the bridges, and has at most 7 characters; DefaultPrefix if empty.
	Prefix string
	// Subnet is a private range of IPv4 addresses for all networks of this node. If zero, one
	// that the machine does not use is chosen once, and kept.
	Subnet netip.Prefix
	// Names is the DNS server of the node; nil if there is none.
	Names driver.NameServer
}

// Networks are the networks of a node.
type Networks struct {
	options Options

	mu       sync.Mutex
	subnet   netip.Prefix // once it is known
	outgoing string       // how traffic leaves the node, for people
	// protected: the firewall rules of all networks were set, and none was added since.
	protected bool
	links     map[Owner][]Link
	asked     map[string]bool // bridges at which the DNS server of the node is asked
}

// Owner is an instance of one compute type.
type Owner struct {
	Compute mariposa.ComputeType
	ID      string
}

// Link is an interface of an instance in a network.
type Link struct {
	Network string       `json:"network,omitempty"` // its id; empty if it is that of instances without a project
	Bridge  string       `json:"bridge"`
	Address netip.Prefix `json:"address"`
	Gateway netip.Addr   `json:"gateway"`
}

// networkRecord is a network as it is kept on disk.
type networkRecord struct {
	ID      string               `json:"id"`
	Name    string               `json:"name"`
	Block   int                  `json:"block"`
	Compute mariposa.ComputeType `json:"compute,omitempty"` // whose driver has provided it
	Shared  bool                 `json:"shared,omitempty"`  // the upper half of its addresses is the Docker engine's
	Project string               `json:"project,omitempty"` // of the network of a project: its id; empty in records of earlier releases
}

// Open opens the networks of a node.
func Open(o Options) (*Networks, error) {
	if o.Prefix = cmp.Or(o.Prefix, DefaultPrefix); len(o.Prefix) > 7 {
		return nil, fmt.Errorf("the names of bridges cannot begin with %s: it has more than 7 characters", o.Prefix)
	}
	dir, err := filepath.Abs(o.Dir)
	if err == nil {
		err = os.MkdirAll(filepath.Join(dir, networksDir), 0o700)
	}
	if err == nil {
		dir, err = filepath.EvalSymlinks(dir)
	}
	if err != nil {
		return nil, fmt.Errorf("cannot create the directory of the networks: %w", err)
	}
	o.Dir = dir
	return &Networks{options: o, links: map[Owner][]Link{}, asked: map[string]bool{}}, nil
}

// Restore sets the firewall rules again if there are bridges: someone may have removed them.
func (n *Networks) Restore(ctx context.Context) {
	n.mu.Lock()
	defer n.mu.Unlock()
	all, err := n.list()
	has := false
	for _, r := range append(all, networkRecord{}) {
		if bridge := n.bridge(r.ID); hasInterface(bridge) {
			has = true
			err = errors.Join(err, withoutIPv6(bridge)) // earlier releases left it on
		}
	}
	if err == nil && has {
		err = n.applyRules(ctx)
	}
	for _, r := range all {
		if p, err := n.addresses(r.ID); err == nil && hasAddress(n.bridge(r.ID), p) {
			n.openDoor(ctx, r.ID, p)
		}
	}
	if err != nil {
		n.outgoing = "unknown: " + err.Error()
	}
}

// Details describe the networks for people.
func (n *Networks) Details() map[string]string {
	n.mu.Lock()
	defer n.mu.Unlock()
	m := map[string]string{}
	if n.subnet.IsValid() {
		m["network"] = n.subnet.String()
	}
	if n.outgoing != "" {
		m["outgoing"] = n.outgoing
	} else if ostool.Find("iptables-restore") == "" && ostool.Find("nft") == "" {
		m["outgoing"] = noFirewall
	}
	return m
}

// bridge returns the name of a network's bridge. A name of an interface has up to 15 characters.
func (n *Networks) bridge(id string) string {
	return fmt.Sprintf("%s%08x", n.options.Prefix, hash(n.options.Scope+"\x00"+n.options.Dir+"\x00"+id))
}

// Bridges returns the names of the bridges that exist, except that of instances without a project.
func (n *Networks) Bridges() (names []string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	all, _ := n.bridges() // none if they cannot be read
	for _, b := range all {
		if hasInterface(b.name) && b.name != n.bridge("") {
			names = append(names, b.name)
		}
	}
	return names
}

// open returns the range of addresses of the node. It is chosen once. The caller holds the mutex.
func (n *Networks) open() (netip.Prefix, error) {
	if n.subnet.IsValid() {
		return n.subnet, nil
	}
	path := filepath.Join(n.options.Dir, subnetFile)
	var kept netip.Prefix
	err := statefile.Read(path, &kept)
	switch {
	case n.options.Subnet.IsValid():
		n.subnet = n.options.Subnet.Masked()
		if !n.subnet.Addr().Is4() || n.subnet.Bits() > 29 {
			return netip.Prefix{}, fmt.Errorf("%s cannot be the network of a node: it must be a range of IPv4 addresses, such as 10.96.0.0/16", n.subnet)
		}
		return n.subnet, nil
	case err == nil && kept.IsValid():
		n.subnet = kept
		return kept, nil
	case err != nil && !statefile.IsGone(err):
		return netip.Prefix{}, fmt.Errorf("cannot read the network of the node: %w", err)
	}
	chosen, err := chooseSubnet(hash(n.options.Scope + n.options.Dir))
	if err == nil {
		err = statefile.Write(path, chosen)
	}
	if err != nil {
		return netip.Prefix{}, fmt.Errorf("cannot choose a network for the node: %w", err)
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
func (n *Networks) path(id string) string {
	return filepath.Join(n.options.Dir, networksDir, id+".json")
}

// list returns all networks of the node.
func (n *Networks) list() (all []networkRecord, err error) {
	paths, err := filepath.Glob(filepath.Join(n.options.Dir, networksDir, "*.json"))
	for _, path := range paths {
		var r networkRecord
		if err := statefile.Read(path, &r); err != nil {
			return nil, fmt.Errorf("cannot read the networks of the node: %w", err)
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

// Provide creates a network for the instances of a compute type, unless it exists.
func (n *Networks) Provide(ctx context.Context, c mariposa.ComputeType, id, name string) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.create(ctx, networkRecord{ID: id, Name: name, Compute: c})
}

// create creates a network, unless it exists. The caller holds the mutex.
func (n *Networks) create(ctx context.Context, r networkRecord) error {
	all, err := n.list()
	if err != nil {
		return err
	}
	if !slices.ContainsFunc(all, func(o networkRecord) bool { return o.ID == r.ID }) {
		r.Block = 1
		for slices.ContainsFunc(all, func(o networkRecord) bool { return o.Block == r.Block }) {
			r.Block++
		}
		subnet, err := n.open()
		if err == nil {
			_, err = block(subnet, r.Block)
		}
		if err == nil {
			err = statefile.Write(n.path(r.ID), r)
		}
		if err != nil {
			return err
		}
	} else if err := n.recordProject(r); err != nil {
		return err
	}
	_, err = n.ensure(ctx, r.ID)
	return err
}

// Withdraw removes a network, if it exists.
func (n *Networks) Withdraw(ctx context.Context, id string) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.remove(ctx, id)
}

// remove removes a network, if it exists. The caller holds the mutex.
func (n *Networks) remove(ctx context.Context, id string) error {
	if !isFile(n.path(id)) {
		return nil
	}
	n.closeDoor(n.bridge(id))
	if bridge := n.bridge(id); hasInterface(bridge) {
		if _, err := ostool.Run(ctx, "ip", "link", "delete", bridge); err != nil && hasInterface(bridge) {
			return fmt.Errorf("cannot remove the bridge of the network: %w", err)
		}
	}
	if err := statefile.IgnoreMissing(os.Remove(n.path(id))); err != nil {
		return err
	}
	return n.applyRules(ctx)
}

// ensure makes the bridge of a network exist, with its address: those of a machine are gone after
// a restart. It returns the addresses of the network. The caller holds the mutex.
func (n *Networks) ensure(ctx context.Context, id string) (netip.Prefix, error) {
	p, err := n.addresses(id)
	if err != nil {
		return p, err
	}
	bridge := n.bridge(id)
	if hasAddress(bridge, p) && n.protected {
		n.openDoor(ctx, id, p)
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
		if _, err = ostool.Run(ctx, "ip", "link", "add", bridge, "type", "bridge"); err != nil {
			return p, fmt.Errorf("cannot create the bridge of its network: %w", err)
		}
	}
	if err := withoutIPv6(bridge); err != nil {
		return p, fmt.Errorf("cannot keep the bridge of its network from IPv6: %w", err)
	}
	for _, args := range [][]string{{"address", "replace", gateway.String(), "dev", bridge}, {"link", "set", bridge, "up"}} {
		if _, err := ostool.Run(ctx, "ip", args...); err != nil {
			return p, fmt.Errorf("cannot set up the bridge of its network: %w", err)
		}
	}
	n.openDoor(ctx, id, p)
	return p, nil
}

// withoutIPv6 keeps the node from using IPv6 on a bridge. Networks have none, and no rules for it:
// an instance could make itself the router of the node, or be reached around the rules.
func withoutIPv6(bridge string) error {
	return statefile.IgnoreMissing(os.WriteFile("/proc/sys/net/ipv6/conf/"+bridge+"/disable_ipv6", []byte("1"), 0)) // missing: the machine has none at all
}

// addresses returns the addresses of a network. The caller holds the mutex.
func (n *Networks) addresses(id string) (netip.Prefix, error) {
	subnet, err := n.open()
	if err != nil {
		return subnet, err
	}
	if id == "" {
		return block(subnet, 0)
	}
	var r networkRecord
	if err := statefile.Read(n.path(id), &r); err != nil {
		return netip.Prefix{}, fmt.Errorf("this node does not have network %s", id)
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

// Provided returns the networks that the driver of a compute type has provided.
func (n *Networks) Provided(c mariposa.ComputeType) ([]driver.Resource, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	records, err := n.list()
	var all []driver.Resource
	for _, r := range records {
		if !r.isProject() && cmp.Or(r.Compute, mariposa.ComputeInfrastructure) == c { // records did not name it at first
			all = append(all, driver.Resource{Kind: mariposa.KindNetwork, ID: r.ID, Name: r.Name})
		}
	}
	return all, err
}

// Keep says which links an instance has that an earlier agent has started.
func (n *Networks) Keep(o Owner, links []Link) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.links[o] = links
}

// Connect returns the links of an instance, with the addresses that it has or new ones.
func (n *Networks) Connect(ctx context.Context, o Owner, i driver.Instance) ([]Link, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	var ids []string
	for _, network := range i.Networks {
		ids = append(ids, network.ID)
	}
	if len(ids) == 0 {
		ids = []string{projectNetwork(i)}
		if ids[0] != "" {
			if err := n.create(ctx, networkRecord{ID: ids[0], Name: i.Project, Project: i.ProjectID()}); err != nil {
				return nil, err
			}
		}
	}
	var links []Link
	for _, id := range ids {
		p, err := n.ensure(ctx, id)
		if err != nil {
			return nil, err
		}
		l := Link{Network: id, Bridge: n.bridge(id), Gateway: p.Addr().Next()}
		if l.Address, err = n.assignAddress(o, id, p); err != nil {
			return nil, err
		}
		links = append(links, l)
	}
	n.links[o] = links
	return links, nil
}

// Disconnect releases the addresses of an instance that is gone. Call Clear later.
func (n *Networks) Disconnect(o Owner) {
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.links, o)
}

// Clear removes the networks of projects that have no instance here any more. One that cannot be
// removed now is removed with the next instance, or when the agent starts.
func (n *Networks) Clear(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, ostool.Timeout)
	defer cancel()
	n.mu.Lock()
	defer n.mu.Unlock()
	all, err := n.list()
	for _, r := range all {
		if err == nil && r.isProject() && !r.Shared && !n.hasLink(r.ID) {
			err = n.remove(ctx, r.ID)
		}
	}
	if err != nil && ctx.Err() == nil {
		slog.Warn("cannot remove the network of a project; it is tried again later", "err", err)
	}
}

// hasLink reports whether an instance is in a network. The caller holds the mutex.
func (n *Networks) hasLink(network string) bool {
	for _, links := range n.links {
		if slices.ContainsFunc(links, func(l Link) bool { return l.Network == network }) {
			return true
		}
	}
	return false
}

// assignAddress returns the address that an instance has in a network, or one that is free. The
// caller holds the mutex.
func (n *Networks) assignAddress(o Owner, id string, p netip.Prefix) (netip.Prefix, error) {
	used := map[netip.Addr]bool{}
	for other, links := range n.links {
		for _, l := range links {
			if other == o && l.Network == id && p.Contains(l.Address.Addr()) {
				return l.Address, nil
			}
			used[l.Address.Addr()] = true
		}
	}
	end := 1<<(32-p.Bits()) - 1
	if n.isShared(id) {
		end = 1 << (31 - p.Bits())
	}
	for n := 2; n < end; n++ {
		if a := addressAt(p.Addr(), n); !used[a] {
			return netip.PrefixFrom(a, p.Bits()), nil
		}
	}
	return netip.Prefix{}, errors.New("its network has no address left on this node: remove instances")
}

// HardwareAddress returns the hardware address of the interface. It follows from its address, so
// that others find it again after a restart.
func (l Link) HardwareAddress() string {
	b := l.Address.Addr().As4()
	return fmt.Sprintf("02:6d:%02x:%02x:%02x:%02x", b[0], b[1], b[2], b[3])
}

// Broadcast returns the last address of its network.
func (l Link) Broadcast() netip.Addr {
	p := l.Address
	return addressAt(p.Masked().Addr(), 1<<(32-p.Bits())-1)
}

func isFile(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.Mode().IsRegular()
}

func hash(text string) uint32 {
	h := fnv.New32a()
	_, _ = h.Write([]byte(text)) // never fails
	return h.Sum32()
}
