package bridge

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"strings"

	"mariposa/driver/ostool"
)

const noFirewall = "none: this machine has neither iptables nor nft, so instances reach the node and each other only"

// DefaultPrefix begins the names of our bridges.
const DefaultPrefix = "mplx-"

// foreignBridges are prefixes of the bridges of Docker and of other nodes on this machine. They
// belong to other projects.
var foreignBridges = []string{"docker", "br-", DefaultPrefix}

// bridged is a bridge with the addresses of its network.
type bridged struct {
	name      string
	addresses netip.Prefix
}

// bridges returns the bridges of the node. The caller holds the mutex.
func (n *Networks) bridges() ([]bridged, error) {
	all, err := n.list()
	if err != nil {
		return nil, err
	}
	ids := []string{""}
	for _, r := range all {
		ids = append(ids, r.ID)
	}
	var list []bridged
	for _, id := range ids {
		p, err := n.addresses(id)
		if err != nil {
			return nil, err
		}
		list = append(list, bridged{n.bridge(id), p})
	}
	return list, nil
}

// linkLocal are addresses that no router forwards. Clouds give the credentials of a node at one of
// them. Name servers may have one, too.
const linkLocal = "169.254.0.0/16"

// applyRules lets instances reach what is outside the node, by its address, and keeps networks
// apart. Without a firewall the node does not forward, so they are apart as well. The caller
// holds the mutex.
func (n *Networks) applyRules(ctx context.Context) error {
	list, err := n.bridges()
	if err != nil {
		return err
	}
	hash := hash(n.options.Scope + "\x00" + n.options.Dir)
	switch {
	case ostool.Find("iptables-restore") != "":
		err = applyIPTables(ctx, fmt.Sprintf("MARIPOSA-LXC-%08x", hash), n.subnet, list)
	case ostool.Find("nft") != "":
		_, err = ostool.RunWith(ctx, nftRules(fmt.Sprintf("mariposa_lxc_%08x", hash), n.subnet, list), "nft", "-f", "-")
	default:
		n.outgoing = noFirewall
		return nil
	}
	if err == nil {
		err = os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("1"), 0)
	}
	if err != nil {
		return fmt.Errorf("cannot set the firewall rules of the networks: %w", err)
	}
	n.outgoing = "by the address of the node"
	return nil
}

// applyIPTables replaces the rules of our own chains, and makes sure that they are used.
func applyIPTables(ctx context.Context, chain string, subnet netip.Prefix, list []bridged) error {
	if _, err := ostool.RunWith(ctx, iptablesRules(chain, subnet, list), "iptables-restore", "--noflush", "--wait=10"); err != nil {
		return err
	}
	for _, jump := range [][]string{{"mangle", "FORWARD", chain}, {"mangle", "INPUT", chain + "-IN"}, {"filter", "FORWARD", chain}, {"nat", "POSTROUTING", chain}} {
		if _, err := ostool.Run(ctx, "iptables", "--wait=10", "-t", jump[0], "-C", jump[1], "-j", jump[2]); err == nil {
			continue
		}
		if _, err := ostool.Run(ctx, "iptables", "--wait=10", "-t", jump[0], "-I", jump[1], "-j", jump[2]); err != nil {
			return err
		}
	}
	return nil
}

// iptablesRules returns the rules as iptables-restore reads them. Networks are kept apart in the
// table mangle, which comes before filter: in filter, an engine puts its rules for a new network
// before ours, and accepts everything that leaves the network.
//
// What leaves a network has an address of the network. It reaches the node at the address that the
// node has there, and at those that the node has outside, but not at those in other networks.
func iptablesRules(chain string, subnet netip.Prefix, list []bridged) string {
	var b strings.Builder
	line := func(format string, args ...any) { _, _ = fmt.Fprintf(&b, format+"\n", args...) } // never fails
	line("*mangle")
	for _, c := range []string{chain, chain + "-OUT", chain + "-IN"} {
		line(":%s - [0:0]\n-F %s", c, c)
	}
	for _, x := range list {
		line("-A %s -i %s -o %s -j RETURN", chain, x.name, x.name)
		line("-A %s -i %s ! -s %s -j DROP", chain, x.name, x.addresses)
		line("-A %s -i %s -j %s-OUT", chain, x.name, chain)
		line("-A %s-OUT -o %s -j DROP", chain, x.name)
		line("-A %s-IN -i %s ! -s %s -j DROP", chain, x.name, x.addresses)
		line("-A %s-IN -i %s -d %s -j RETURN", chain, x.name, x.addresses)
		line("-A %s-IN -i %s -d %s -j DROP", chain, x.name, subnet)
	}
	for _, protocol := range []string{"udp", "tcp"} {
		line("-A %s-OUT -d %s -p %s --dport 53 -j RETURN", chain, linkLocal, protocol)
	}
	line("-A %s-OUT -d %s -j DROP", chain, linkLocal)
	for _, other := range foreignBridges {
		line("-A %s-OUT -o %s+ -j DROP", chain, other)
	}
	for _, x := range list {
		line("-A %s -o %s -m conntrack --ctstate RELATED,ESTABLISHED -j RETURN", chain, x.name)
		for _, other := range foreignBridges {
			line("-A %s -i %s+ -o %s -j DROP", chain, other, x.name)
		}
	}
	// Releases before had the rules of mangle here, in two chains.
	line("COMMIT\n*filter\n:%s - [0:0]\n:%s-OUT - [0:0]\n-F %s\n-F %s-OUT\n-X %s-OUT", chain, chain, chain, chain, chain)
	for _, x := range list {
		line("-A %s -i %s -j ACCEPT", chain, x.name)
		line("-A %s -o %s -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT", chain, x.name)
	}
	line("COMMIT\n*nat\n:%s - [0:0]\n-F %s", chain, chain)
	for _, x := range list {
		line("-A %s -s %s ! -o %s -j MASQUERADE", chain, x.addresses, x.name)
	}
	line("COMMIT")
	return b.String()
}

// nftRules returns the rules as nft reads them: a table of our own, replaced at once.
func nftRules(table string, subnet netip.Prefix, list []bridged) string {
	var b strings.Builder
	line := func(format string, args ...any) { _, _ = fmt.Fprintf(&b, format+"\n", args...) } // never fails
	names := make([]string, len(list))
	for n, x := range list {
		names[n] = `"` + x.name + `"`
	}
	set := "{ " + strings.Join(names, ", ") + " }"
	line("table inet %s {}\ndelete table inet %s\ntable inet %s {", table, table, table)
	line("chain forward {\ntype filter hook forward priority filter; policy accept;")
	for _, x := range list {
		line(`iifname "%s" oifname "%s" accept`, x.name, x.name)
		line(`iifname "%s" ip saddr != %s drop`, x.name, x.addresses)
	}
	line("iifname %s meta nfproto ipv6 drop", set)
	line("iifname %s oifname %s drop", set, set)
	for _, other := range foreignBridges {
		line(`iifname %s oifname "%s*" drop`, set, other)
		line(`iifname "%s*" oifname %s ct state new drop`, other, set)
	}
	line(`iifname %s ip daddr %s meta l4proto { tcp, udp } th dport != 53 drop`, set, linkLocal)
	line(`iifname %s ip daddr %s meta l4proto != { tcp, udp } drop`, set, linkLocal)
	line("}")
	line("chain input {\ntype filter hook input priority filter; policy accept;")
	for _, x := range list {
		line(`iifname "%s" ip saddr != %s drop`, x.name, x.addresses)
		line(`iifname "%s" ip daddr != %s ip daddr %s drop`, x.name, x.addresses, subnet)
	}
	line("}")
	line("chain postrouting {\ntype nat hook postrouting priority srcnat; policy accept;")
	for _, x := range list {
		line(`ip saddr %s oifname != "%s" masquerade`, x.addresses, x.name)
	}
	line("}\n}")
	return b.String()
}
