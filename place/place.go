// Package place says which node: what an instance needs, what a node offers and
// what is already assigned to it. It owns the filters, the spreading and a copy
// of all claims; it refuses to know services' goals and how nodes are reached.
package place

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	"mariposa"
)

// Need is what one instance needs of a node.
type Need struct {
	Service string // its id; instances of one service are spread
	Compute mariposa.ComputeType
	Take    mariposa.Resources
	Ports   []int // fixed ports, which can be had once a node
}

// Node is what a node offers.
type Node struct {
	ID       string
	Name     string
	Ready    bool
	Why      string // why it is not ready: "cannot be reached", "is drained"
	Capacity mariposa.Resources
	Drivers  []mariposa.ComputeType
}

// Placer keeps a copy of all claims in memory, so that projects planned side by
// side do not all pick the same emptiest node. It is safe for concurrent use.
type Placer struct {
	mu     sync.Mutex
	nodes  []*node // by id
	byID   map[string]*node
	claims map[string]claim
}

type node struct {
	Node
	used     mariposa.Resources
	ports    map[int]int
	services map[string]int
}

type claim struct {
	node string
	need Need
}

// NewPlacer makes a placer that knows no node.
func NewPlacer() *Placer {
	return &Placer{byID: map[string]*node{}, claims: map[string]claim{}}
}

// SetNode tells what a node offers.
func (p *Placer) SetNode(n Node) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.node(n.ID).Node = n
}

// RemoveNode forgets a node.
func (p *Placer) RemoveNode(id string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.byID, id)
	p.nodes = slices.DeleteFunc(p.nodes, func(n *node) bool { return n.ID == id })
}

// Claim tells that an instance has its place on a node. Telling it again is
// harmless.
func (p *Placer) Claim(instance, nodeID string, need Need) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.claim(instance, nodeID, need)
}

// Release tells that an instance has left its node, or never came.
func (p *Placer) Release(instance string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.release(instance)
}

// Pick finds the best node for an instance and claims a place there: the one
// with the fewest of its service, then the least filled, then by id. When no
// node fits, the error says what each lacks.
func (p *Placer) Pick(instance string, need Need) (Node, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	var best *node
	refused := map[string]int{}
	for _, n := range p.nodes {
		if why := n.refuses(need); why != "" {
			refused[why]++
			continue
		}
		if best == nil || n.better(best, need) {
			best = n
		}
	}
	if best == nil {
		return Node{}, p.noFit(need, refused)
	}
	p.claim(instance, best.ID, need)
	return best.Node, nil
}

// Used is what is claimed of a node.
func (p *Placer) Used(id string) mariposa.Resources {
	p.mu.Lock()
	defer p.mu.Unlock()
	if n := p.byID[id]; n != nil {
		return n.used
	}
	return mariposa.Resources{}
}

func (p *Placer) node(id string) *node {
	n := p.byID[id]
	if n == nil {
		n = &node{Node: Node{ID: id}, ports: map[int]int{}, services: map[string]int{}}
		p.byID[id] = n
		at, _ := slices.BinarySearchFunc(p.nodes, id, func(n *node, id string) int { return cmp.Compare(n.ID, id) })
		p.nodes = slices.Insert(p.nodes, at, n)
	}
	return n
}

func (p *Placer) claim(instance, nodeID string, need Need) {
	if old, ok := p.claims[instance]; ok {
		if old.node == nodeID {
			return
		}
		p.release(instance)
	}
	n := p.node(nodeID)
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
	if n == nil {
		return
	}
	n.used = n.used.Minus(c.need.Take)
	if n.services[c.need.Service]--; n.services[c.need.Service] == 0 {
		delete(n.services, c.need.Service)
	}
	for _, port := range c.need.Ports {
		if n.ports[port]--; n.ports[port] == 0 {
			delete(n.ports, port)
		}
	}
}

// refuses says why a node cannot take an instance, as the rest of a sentence
// that begins with a number of nodes; empty when it can.
func (n *node) refuses(need Need) string {
	if !n.Ready {
		return n.Why
	}
	if !slices.Contains(n.Drivers, need.Compute) {
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
	case c.Instances > 0 && after.Instances > c.Instances:
		return "is full"
	}
	return ""
}

func (n *node) better(o *node, need Need) bool {
	return cmp.Or(
		cmp.Compare(n.services[need.Service], o.services[need.Service]),
		cmp.Compare(n.filled(), o.filled()),
		cmp.Compare(n.used.Instances, o.used.Instances)) < 0
}

// filled is how much of its scarcest resource a node has given out.
func (n *node) filled() float64 {
	f := 0.0
	if n.Capacity.Memory > 0 {
		f = float64(n.used.Memory) / float64(n.Capacity.Memory)
	}
	if n.Capacity.MilliCPU > 0 {
		f = max(f, float64(n.used.MilliCPU)/float64(n.Capacity.MilliCPU))
	}
	return f
}

func (p *Placer) noFit(need Need, refused map[string]int) error {
	if len(p.nodes) == 0 {
		return mariposa.Errorf(mariposa.Unavailable, "no node has joined yet")
	}
	parts := make([]string, 0, len(refused))
	for _, why := range slices.Sorted(maps.Keys(refused)) {
		parts = append(parts, fmt.Sprintf("%d %s", refused[why], why))
	}
	return mariposa.Errorf(mariposa.Unavailable, "no node fits a %s instance: of %d, %s", need.Compute, len(p.nodes), strings.Join(parts, ", "))
}
