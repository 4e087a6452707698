// Package place assigns instances to nodes. It compares what an instance needs with what
// each node offers and what is already claimed there. It owns the filters, the spreading
// and a copy of all claims. It does not know the goals of services or how to reach nodes.
package place

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"mariposa"
)

// Need is what one instance requires of a node.
type Need struct {
	Service string // its id; instances of one service are spread
	Compute mariposa.ComputeType
	Take    mariposa.Resources
	Ports   []int  // fixed ports, each usable once per node
	Node    string // id of the only acceptable node, for example because a volume is there; empty: any
	Stable  bool   // no node that is shunned, unless it is the only acceptable one
}

// Node is what a node offers.
type Node struct {
	ID       string
	Name     string
	Ready    bool
	NotReady string // why it is not ready: "cannot be reached", "is drained"
	Capacity mariposa.Resources
	Drivers  []mariposa.ComputeType
	// Unavailable lists the kinds that the node cannot run at the moment.
	Unavailable []Unavailable
	// UnstableUntil is the time until which a node that was lost several times is avoided.
	UnstableUntil time.Time
	// ShunnedUntil is the time until which a Need that is Stable is never placed on it.
	ShunnedUntil time.Time
}

// Unavailable is a kind that a node cannot run, and the reason.
type Unavailable struct {
	Compute mariposa.ComputeType
	Why     string
}

// Placer keeps a copy of all claims in memory, so that projects that are planned
// concurrently do not all pick the same emptiest node. It is safe for concurrent use.
type Placer struct {
	// Reachable reports whether a node that is ready can be reached at this moment; nil:
	// every one can. It is asked when a node is picked, because it may change at any time.
	Reachable func(node string) bool

	// Now returns the time, to avoid unstable nodes; nil: all count as stable.
	Now func() time.Time

	mu     sync.Mutex
	nodes  []*node          // nodes with a known offer, by id
	byID   map[string]*node // these, and nodes that are known only from claims
	claims map[string]claim
}

type node struct {
	Node
	offered  bool // whether its offer is known
	claims   int
	used     mariposa.Resources
	ports    map[int]int
	services map[string]int
}

type claim struct {
	node string
	need Need
}

// NewPlacer returns a placer without nodes.
func NewPlacer() *Placer {
	return &Placer{byID: map[string]*node{}, claims: map[string]claim{}}
}

// SetNode adds or updates what a node offers.
func (p *Placer) SetNode(n Node) {
	p.mu.Lock()
	defer p.mu.Unlock()
	known := p.node(n.ID)
	known.Node = n
	if known.offered {
		return
	}
	known.offered = true
	at, _ := slices.BinarySearchFunc(p.nodes, n.ID, func(n *node, id string) int { return cmp.Compare(n.ID, id) })
	p.nodes = slices.Insert(p.nodes, at, known)
}

// RemoveNode removes a node's offer. Claims on the node stay until they are released, and
// count again if the node returns.
func (p *Placer) RemoveNode(id string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := p.byID[id]
	if n == nil {
		return
	}
	n.offered = false
	p.nodes = slices.DeleteFunc(p.nodes, func(n *node) bool { return n.ID == id })
	p.drop(n)
}

// Claim records that an instance is assigned to a node and what it uses there. It is
// idempotent.
func (p *Placer) Claim(instance, nodeID string, need Need) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.claim(instance, nodeID, need)
}

// Release removes the claim of an instance, if it has one.
func (p *Placer) Release(instance string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.release(instance)
}

// Pick finds the best node for an instance and claims a place there. The best node has
// the fewest instances of the service, then the lowest fill level, then the lowest id. If
// no node fits, Pick returns the reason: no node has joined, no node fits (with counts of
// what is missing), or the required node cannot take the instance.
func (p *Placer) Pick(instance string, need Need) (Node, *mariposa.Reason) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if need.Node != "" {
		return p.pickOnly(instance, need)
	}
	var best *node
	unstable := p.isUnstable()
	for _, n := range p.nodes {
		if !n.fits(need) || need.Stable && p.isShunned(n) {
			continue
		}
		if (best == nil || !unstable(n) && unstable(best) || unstable(n) == unstable(best) && n.isBetter(best, need)) && p.canReach(n) { // asked last: it is not free
			best = n
		}
	}
	if best == nil {
		return Node{}, p.whyNoNode(need)
	}
	p.claim(instance, best.ID, need)
	return best.Node, nil
}

// isShunned reports whether a node has just returned after it was lost several times.
func (p *Placer) isShunned(n *node) bool { return p.Now != nil && n.ShunnedUntil.After(p.Now()) }

// isUnstable returns a function that reports whether a node was lost several times
// recently. Such a node is used only if no other fits.
func (p *Placer) isUnstable() func(*node) bool {
	if p.Now == nil {
		return func(*node) bool { return false }
	}
	now := p.Now()
	return func(n *node) bool { return n.UnstableUntil.After(now) }
}

func (p *Placer) canReach(n *node) bool { return p.Reachable == nil || p.Reachable(n.ID) }

func (p *Placer) pickOnly(instance string, need Need) (Node, *mariposa.Reason) {
	n := p.byID[need.Node]
	switch {
	case n == nil || !n.offered:
		return Node{}, refusedBy(need.Node, "is no more")
	case !n.fits(need) || !p.canReach(n):
		return Node{}, refusedBy(n.ID, p.whyRefused(n, need))
	}
	p.claim(instance, n.ID, need)
	return n.Node, nil
}

// refusedBy returns the reason why the required node cannot take an instance. why
// completes a sentence about the node.
func refusedBy(node, why string) *mariposa.Reason {
	return &mariposa.Reason{Code: mariposa.ReasonNodeRefuses, Node: node, Detail: why}
}

// Used returns the resources claimed on a node.
func (p *Placer) Used(id string) mariposa.Resources {
	p.mu.Lock()
	defer p.mu.Unlock()
	if n := p.byID[id]; n != nil {
		return n.used
	}
	return mariposa.Resources{}
}

// Trial returns a copy of the placer for trial placements. It knows the offers and claims
// of all nodes, and the places of the given instances, so that they can be released. It
// does not affect this placer.
func (p *Placer) Trial(instances []string) *Placer {
	p.mu.Lock()
	defer p.mu.Unlock()
	t := NewPlacer()
	t.Reachable, t.Now = p.Reachable, p.Now
	for id, n := range p.byID {
		c := *n
		c.ports, c.services = maps.Clone(n.ports), map[string]int{}
		t.byID[id] = &c
	}
	for _, n := range p.nodes {
		t.nodes = append(t.nodes, t.byID[n.ID])
	}
	for _, id := range instances {
		if c, ok := p.claims[id]; ok {
			t.claims[id] = c
			t.byID[c.node].services[c.need.Service]++
		}
	}
	return t
}

func (p *Placer) node(id string) *node {
	n := p.byID[id]
	if n == nil {
		n = &node{Node: Node{ID: id}, ports: map[int]int{}, services: map[string]int{}}
		p.byID[id] = n
	}
	return n
}

// drop removes a node that has neither an offer nor claims.
func (p *Placer) drop(n *node) {
	if !n.offered && n.claims == 0 {
		delete(p.byID, n.ID)
	}
}

func (p *Placer) claim(instance, nodeID string, need Need) {
	p.release(instance) // its needs may have changed
	n := p.node(nodeID)
	n.claims++
	n.used = n.used.Plus(need.Take)
	n.services[need.Service]++
	for _, port := range need.Ports {
		n.ports[port]++
	}
	p.claims[instance] = claim{nodeID, need}
}

func (p *Placer) release(instance string) {
	c, ok := p.claims[instance]
	if !ok {
		return
	}
	delete(p.claims, instance)
	n := p.byID[c.node]
	n.claims--
	n.used = n.used.Minus(c.need.Take)
	if n.services[c.need.Service]--; n.services[c.need.Service] == 0 {
		delete(n.services, c.need.Service)
	}
	for _, port := range c.need.Ports {
		if n.ports[port]--; n.ports[port] == 0 {
			delete(n.ports, port)
		}
	}
	p.drop(n)
}

// fits reports whether a node can take an instance.
func (n *node) fits(need Need) bool {
	return n.Ready && slices.Contains(n.Drivers, need.Compute) && n.used.Plus(need.Take).Within(n.Capacity) &&
		!slices.ContainsFunc(need.Ports, func(port int) bool { return n.ports[port] > 0 })
}

// whyRefused returns why a node cannot take an instance. The text completes a sentence
// about the node.
func (p *Placer) whyRefused(n *node, need Need) string {
	switch {
	case !n.Ready:
		return cmp.Or(n.NotReady, "is not ready")
	case n.fits(need) && need.Stable && need.Node == "" && p.isShunned(n):
		return "was lost several times within an hour"
	case n.fits(need), !p.canReach(n): // one that fits was not connected a moment ago
		return "is not connected"
	}
	if !slices.Contains(n.Drivers, need.Compute) {
		for _, u := range n.Unavailable {
			if u.Compute == need.Compute {
				return "cannot run " + string(need.Compute) + ": " + u.Why
			}
		}
		return "cannot run " + string(need.Compute)
	}
	for _, port := range need.Ports {
		if n.ports[port] > 0 {
			return fmt.Sprintf("has port %d taken", port)
		}
	}
	after := n.used.Plus(need.Take)
	c := n.Capacity
	switch {
	case c.Memory > 0 && after.Memory > c.Memory:
		return fmt.Sprintf("has less than %d MiB of memory free", need.Take.Memory>>20)
	case c.MilliCPU > 0 && after.MilliCPU > c.MilliCPU:
		return fmt.Sprintf("has less than %g cpu free", float64(need.Take.MilliCPU)/1000)
	}
	return "is full"
}

func (n *node) isBetter(o *node, need Need) bool {
	return cmp.Or(
		cmp.Compare(n.services[need.Service], o.services[need.Service]),
		cmp.Compare(n.fillLevel(), o.fillLevel()),
		cmp.Compare(n.used.Instances, o.used.Instances)) < 0
}

// fillLevel returns the used share of the node's scarcest resource.
func (n *node) fillLevel() float64 {
	f := 0.0
	if n.Capacity.Memory > 0 {
		f = float64(n.used.Memory) / float64(n.Capacity.Memory)
	}
	if n.Capacity.MilliCPU > 0 {
		f = max(f, float64(n.used.MilliCPU)/float64(n.Capacity.MilliCPU))
	}
	if n.Capacity.Instances > 0 {
		f = max(f, float64(n.used.Instances)/float64(n.Capacity.Instances))
	}
	return f
}

// whyNoNode returns what the nodes are missing, with the number of nodes for each.
func (p *Placer) whyNoNode(need Need) *mariposa.Reason {
	if len(p.nodes) == 0 {
		return &mariposa.Reason{Code: mariposa.ReasonNoNodes}
	}
	lacks := map[string]int{}
	for _, n := range p.nodes {
		lacks[p.whyRefused(n, need)]++
	}
	return &mariposa.Reason{Code: mariposa.ReasonNoNode, Detail: string(need.Compute), Tally: lacks, Of: len(p.nodes)}
}
