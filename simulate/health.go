package simulate

import (
	"time"

	"mariposa"
	"mariposa/store"
)

// This file checks that nodes are not considered lost without need. A node that is marked
// as unknown loses its instances after a while, so a slow store must not look like a lost
// node.

const (
	// lifetime of a silent node, as in package fleet.
	nodeLifetime = 11 * time.Second
	// noticed is how long an outage of the store lasts that a server must notice.
	noticed = 5 * time.Second
	// tolerance is how long before the end of an outage a server may have noticed it last:
	// it looks every second, and a call may be slow.
	tolerance = 4 * time.Second
	// reconnects is how long an agent needs at most to notice that its connection is
	// broken, and to open another session.
	reconnects = time.Minute
)

// lostNodes returns the nodes that a commit marks as unknown.
func lostNodes(units []store.Unit, results []store.Result) (ids []string) {
	for i := range units {
		for _, wr := range units[i].Writes {
			st, ok := wr.Status.(*mariposa.NodeStatus)
			if ok && wr.Kind == mariposa.KindNode && st.State == mariposa.NodeUnknown && results[i].Err == nil && results[i].Last > 0 {
				ids = append(ids, wr.ID)
			}
		}
	}
	return ids
}

// checkLost checks that a server had a reason to mark nodes as unknown. The outage is the
// last one of its store when it decided that.
func (c *checker) checkLost(outage time.Time, units []store.Unit, results []store.Result) {
	for _, id := range lostNodes(units, results) {
		if ended := c.w.now.Sub(outage); ended < nodeLifetime-tolerance {
			c.w.fail("a server marked %s as unknown %s after it could reach the store again", id, ended)
		}
		for _, n := range c.w.nodes {
			l := n.link
			if n.name == id && l != nil && l.session != nil && c.w.now.Sub(l.opened) >= time.Second && c.w.now.Sub(l.heard) < nodeLifetime-tolerance {
				c.w.fail("%s was marked as unknown, but it has a session, and was heard %s ago", id, c.w.now.Sub(l.heard))
			}
		}
	}
}

// checkConnected checks that no node is unknown for long that could connect all the time.
func (c *checker) checkConnected() {
	for _, n := range c.w.nodes {
		if st := c.nodes[n.name].Status(); st == nil || st.State != mariposa.NodeUnknown {
			continue
		}
		if d, ok := n.couldConnect(); ok && d > reconnects {
			c.w.fail("%s is unknown, but it could connect for %s", n.name, d)
		}
	}
}

// couldConnect returns for how long a node could connect to whichever server it tried;
// false if it cannot.
func (n *node) couldConnect() (time.Duration, bool) {
	servers := n.reachable()
	if n.agent == nil || len(servers) == 0 {
		return 0, false
	}
	since := n.disturbed
	for _, s := range servers {
		if s.store.unreachable || s.store.isStalled() || s.store.waiting > 0 {
			return 0, false
		}
		if s.disturbed.After(since) {
			since = s.disturbed
		}
	}
	return n.w.now.Sub(since), true
}

// disturb notes that something keeps a node from its session.
func (n *node) disturb() { n.disturbed = n.w.now }
