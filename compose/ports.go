package compose

import (
	"strconv"
	"strings"

	"github.com/compose-spec/compose-go/v2/types"
	"go.yaml.in/yaml/v3"
)

// ports sets the ports: those of the node, then those that the service only exposes.
func (d *draft) ports() {
	targets, hosts := map[uint32]bool{}, map[int]bool{}
	items := d.src.items(d.at("ports")...)
	for _, p := range d.from.Ports {
		at := []string{"ports"}
		if i := d.portIndex(items, p); i >= 0 {
			at = append(at, "["+strconv.Itoa(i)+"]")
		}
		d.port(p, at, targets, hosts)
	}
	for _, e := range d.from.Expose {
		d.expose(e, targets)
	}
	if len(d.to.Ports) > 0 && !d.accept("ports", d.to.Ports, "ports") {
		d.to.Ports = nil
	}
}

// port adds one port.
func (d *draft) port(p types.ServicePortConfig, at []string, targets map[uint32]bool, hosts map[int]bool) {
	if p.Protocol != "" && p.Protocol != "tcp" {
		d.lost(d.at(at...), "port %d is not carried over: ports are TCP, not %s", p.Target, strings.ToUpper(p.Protocol))
		return
	}
	if p.Name != "" || p.AppProtocol != "" {
		d.lost(d.at(at...), "name and app_protocol are not carried over: a port has only a number")
	}
	host := 0
	if p.Published != "" && p.Published != "0" {
		n, err := strconv.ParseUint(p.Published, 10, 16)
		switch {
		case err != nil:
			d.lost(d.at(at...), "a free port of the range %s cannot be chosen: port %d is not published on the node; choose one port of the node", p.Published, p.Target)
		case p.HostIP != "" && p.HostIP != "0.0.0.0" && p.HostIP != "::":
			d.lost(d.at(at...), "port %d is not published on the node, because it would be reachable at all addresses and not only at %s; write \"%d:%d\" if you want that", p.Target, p.HostIP, n, p.Target)
		default:
			host = int(n)
		}
	}
	switch {
	case p.Target == 0 || p.Target > 65535:
		d.lost(d.at(at...), "is not carried over: it has no port of the container")
	case targets[p.Target]:
		d.lost(d.at(at...), "is not carried over: port %d of the container is already listed, and can be published once", p.Target)
	case host > 0 && hosts[host]:
		d.lost(d.at(at...), "is not carried over: port %d of the node is already listed", host)
	case host > 0:
		targets[p.Target], hosts[host] = true, true
		d.to.Ports = append(d.to.Ports, strconv.Itoa(host)+":"+strconv.FormatUint(uint64(p.Target), 10))
	default:
		targets[p.Target] = true
		d.to.Ports = append(d.to.Ports, int(p.Target))
	}
}

// expose adds ports that are reached only inside the networks: 3000, 3000/tcp or
// 3000-3005.
func (d *draft) expose(ports string, targets map[uint32]bool) {
	numbers, protocol, _ := strings.Cut(ports, "/")
	if protocol != "" && protocol != "tcp" {
		d.lost(d.at("expose", ports), "is not carried over: ports are TCP, not %s", strings.ToUpper(protocol))
		return
	}
	first, last, isRange := strings.Cut(numbers, "-")
	if !isRange {
		last = first
	}
	from, err := strconv.ParseUint(first, 10, 16)
	to, err2 := strconv.ParseUint(last, 10, 16)
	if err != nil || err2 != nil || from == 0 || to < from {
		d.lost(d.at("expose", ports), "is not carried over: it is not a port or a range of ports")
		return
	}
	for n := from; n <= to; n++ {
		if !targets[uint32(n)] {
			targets[uint32(n)] = true
			d.to.Ports = append(d.to.Ports, int(n))
		}
	}
}

// portIndex returns which entry of a list a port comes from; -1 if none.
func (d *draft) portIndex(items []*yaml.Node, p types.ServicePortConfig) int {
	for i, item := range items {
		switch item = target(item); {
		case item == nil:
		case item.Kind == yaml.ScalarNode:
			for _, one := range d.parsePorts(item.Value) {
				if one.Target == p.Target && one.Published == p.Published && one.HostIP == p.HostIP && (p.Protocol == "" || one.Protocol == p.Protocol) {
					return i
				}
			}
		default:
			_, number := d.src.child(item, "target", maxFollowed)
			_, published := d.src.child(item, "published", maxFollowed)
			if number != nil && d.substituted(number.Value) == strconv.FormatUint(uint64(p.Target), 10) && (published == nil || d.substituted(published.Value) == p.Published) {
				return i
			}
		}
	}
	return -1
}

// parsePorts reads a port in its short form.
func (d *draft) parsePorts(text string) (all []types.ServicePortConfig) {
	if known, ok := d.parsed[text]; ok {
		return known
	}
	defer func() {
		if recover() != nil { // bugs of the library can cause a panic
			all = nil
		}
		d.parsed[text] = all
	}()
	all, err := types.ParsePortConfig(d.substituted(text))
	if err != nil {
		return nil
	}
	return all
}

// substituted replaces the variables of a text.
func (t *translation) substituted(text string) string {
	done, err := t.substitute(text, t.env.Resolve)
	if err != nil {
		return text
	}
	return done
}
