// Package pace limits how many instances may be starting at once, and shares that
// number so that no project starves another. It owns the limits; it does not know what
// is being started, or why.
package pace

import "sync"

// Gate shares a number of places among projects. It limits how many are taken at once
// and by whom, not how often, so a rate limiter would not work.
type Gate struct {
	mu     sync.Mutex
	limit  int
	floor  int
	total  int
	shares map[string]int
}

// NewGate returns a gate with limit places, of which every project may have floor even
// when the others have taken all.
func NewGate(limit, floor int) *Gate {
	return &Gate{limit: limit, floor: floor, shares: map[string]int{}}
}

// Set sets how many places a project takes now.
func (g *Gate) Set(project string, n int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.total += n - g.shares[project]
	if g.shares[project] = n; n == 0 {
		delete(g.shares, project)
	}
}

// Share returns how many places a project may take in all, including those it has. The
// rest is divided among the projects that have or want places.
func (g *Gate) Share(project string) int {
	g.mu.Lock()
	defer g.mu.Unlock()
	mine := g.shares[project]
	others := len(g.shares)
	if mine == 0 {
		others++
	}
	fair := g.limit / max(1, others)
	left := g.limit - (g.total - mine)
	return max(g.floor, min(left, max(fair, left/2)))
}
