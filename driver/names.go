package driver

import (
	"context"
	"net/netip"
	"os"
	"slices"
	"strings"
)

// NameServer is the DNS server of the node, as drivers see it.
type NameServer interface {
	// Open makes it answer the instances in a network at an address of the node which they reach. It
	// is idempotent. An error means that they cannot ask it now.
	Open(ctx context.Context, d Door) error

	// Close ends what Open began. It is not an error if nothing is open.
	Close(device string)

	// Loopback returns the address at which processes on the node ask it; the zero one if they
	// cannot.
	Loopback() netip.Addr
}

// Door is where the instances in one network ask for names.
type Door struct {
	Device  string     // the bridge of the network; only what comes from there is answered
	Address netip.Addr // of the bridge
	Project string     // the id of the project whose network it is; empty if Attachment is set
	// Attachment is the id of the attachment of a network that a manifest declares.
	Attachment string
}

// ProjectID returns the id of an instance's project; empty if it is unknown.
func (i *Instance) ProjectID() string {
	if i.Origin == nil {
		return ""
	}
	return i.Origin.Project
}

// Resolver returns the name servers of an instance, and the domains that it searches. With own name
// servers in its workload it asks nobody else. Otherwise it asks the node, if it can (own is valid),
// or the given servers of the machine.
func (i *Instance) Resolver(own netip.Addr, machine []string) (servers, search []string) {
	w := i.Workload
	switch {
	case len(w.DNS) > 0:
		return w.DNS, w.DNSSearch
	case !own.IsValid() || len(i.Search) == 0:
		return machine, w.DNSSearch
	}
	search = slices.Clone(w.DNSSearch)
	for _, domain := range i.Search {
		if !slices.Contains(search, domain) {
			search = append(search, domain)
		}
	}
	return []string{own.String()}, search
}

// MachineNameServers returns the name servers of the machine. Those on its loopback are only for
// processes that share it.
func MachineNameServers(withLoopback bool) (all []string) {
	b, _ := os.ReadFile("/etc/resolv.conf") // without one there are none
	for line := range strings.Lines(string(b)) {
		f := strings.Fields(line)
		if len(f) < 2 || f[0] != "nameserver" {
			continue
		}
		if a, err := netip.ParseAddr(f[1]); err == nil && (withLoopback || !a.IsLoopback()) && !slices.Contains(all, f[1]) {
			all = append(all, f[1])
		}
	}
	return all
}

// ResolvConf returns the text of an instance's /etc/resolv.conf; empty if it has nothing to say.
func ResolvConf(servers, search []string) string {
	var b strings.Builder
	for _, s := range servers {
		b.WriteString("nameserver " + s + "\n")
	}
	if len(search) > 0 {
		b.WriteString("search " + strings.Join(search, " ") + "\n")
	}
	return b.String()
}
