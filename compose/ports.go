package compose

import (
	"cmp"
	"strconv"
	"strings"

	"github.com/compose-spec/compose-go/v2/types"
	"go.yaml.in/yaml/v3"
)

// ports sets the ports: those of the node, then those that the service only exposes.
func (d *draft) ports() {
	targets, hosts := map[uint32]bool{}, map[int]bool{}
	steps := d.portSteps()
	for _, p := range d.from.Ports {
		at := []string{"ports"}
		if step, ok := steps[keyOf(p)]; ok {
			at = append(at, step)
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

// portKey identifies a port of a service.
type portKey struct{ target, published, address, protocol string }

func keyOf(p types.ServicePortConfig) portKey {
	return portKey{strconv.FormatUint(uint64(p.Target), 10), p.Published, p.HostIP, cmp.Or(p.Protocol, "tcp")}
}

// portSteps returns which entry of the list each port comes from.
func (d *draft) portSteps() map[portKey]string {
	steps := map[portKey]string{}
	for i, item := range d.src.items(d.at("ports")...) {
		step := "[" + strconv.Itoa(i) + "]"
		if item = target(item); item == nil {
			continue
		}
		if item.Kind == yaml.ScalarNode {
			for _, p := range parsePorts(d.substituted(item.Value)) {
				steps[keyOf(p)] = step
			}
			continue
		}
		text := func(key string) string {
			if _, value := d.src.child(item, key, maxFollowed); value != nil {
				return d.substituted(value.Value)
			}
			return ""
		}
		steps[portKey{text("target"), text("published"), text("host_ip"), cmp.Or(text("protocol"), "tcp")}] = step
	}
	return steps
}

// parsePorts reads a port in its short form.
func parsePorts(text string) (all []types.ServicePortConfig) {
	defer func() {
		if recover() != nil { // bugs of the library can cause a panic
			all = nil
		}
	}()
	all, err := types.ParsePortConfig(text)
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
