package bridge

import (
	"context"
	"net/netip"
	"strings"

	"mariposa"
	"mariposa/driver"
	"mariposa/driver/statefile"
)

// The instances in a network ask the DNS server of the node at the address of its bridge. Each
// bridge is a door of its own, so the server knows which project asks.

// openDoor makes the DNS server answer at the bridge of a network. Without it, instances ask the
// name servers of the machine. The caller holds the mutex.
func (n *Networks) openDoor(ctx context.Context, id string, p netip.Prefix) {
	bridge := n.bridge(id)
	delete(n.asked, bridge)
	if n.options.Names == nil || id == "" {
		return
	}
	var r networkRecord
	if err := statefile.Read(n.path(id), &r); err != nil || r.isProject() && r.Project == "" {
		return // an earlier release has created it; its next instance says whose it is
	}
	d := driver.Door{Device: bridge, Address: p.Addr().Next(), Project: r.Project}
	if !r.isProject() {
		d.Project, d.Attachment = "", id
	}
	n.asked[bridge] = n.options.Names.Open(ctx, d) == nil // the server logs why not
}

// closeDoor ends what openDoor began. The caller holds the mutex.
func (n *Networks) closeDoor(bridge string) {
	if delete(n.asked, bridge); n.options.Names != nil {
		n.options.Names.Close(bridge)
	}
}

// recordProject adds to the record of a network whose it is, which earlier releases did not note.
// The caller holds the mutex.
func (n *Networks) recordProject(r networkRecord) error {
	var known networkRecord
	if err := statefile.Read(n.path(r.ID), &known); err != nil || r.Project == "" || known.Project != "" {
		return err
	}
	known.Project = r.Project
	return statefile.Write(n.path(r.ID), known)
}

// Resolver returns the name servers of an instance with links, and the domains that it searches.
func (n *Networks) Resolver(i driver.Instance, links []Link) (servers, search []string) {
	var own netip.Addr
	n.mu.Lock()
	if len(links) > 0 && n.asked[links[0].Bridge] {
		own = links[0].Gateway
	}
	n.mu.Unlock()
	return i.Resolver(own, driver.MachineNameServers(false))
}

// Describe adds the address to the details of an instance, if a manifest declares the network.
func (l *Link) Describe(details map[string]string) {
	if l.Network != "" && !strings.HasPrefix(l.Network, projectPrefix) {
		details[mariposa.NetworkDetail(l.Network)] = l.Address.Addr().String()
	}
}
