package converge

import "slices"

// Rules access other services only through the functions in this file. They record what
// the turn read, so that the next plan visits the service again if any of it changes, and
// only then. Rules do not have to care about this.

// reads records what a service's last turn read beyond the service itself.
type reads struct {
	services     []string // other services, in the order in which they were read
	dependents   bool     // its dependents, and the services that refer to its instances
	graph        bool     // the edges of all services
	heldRollouts bool     // which rollouts are held
	budget       bool     // how many more steps or starts the plan allows
}

// otherFacts returns the facts of another service, or nil if it does not exist.
func (t *turn) otherFacts(name string) *facts {
	d := t.view.services[name]
	switch {
	case d == nil:
		if !slices.Contains(t.read.services, name) {
			t.read.services = append(t.read.services, name)
		}
		return nil
	case d.readBy != t.serial:
		d.readBy = t.serial
		if t.read.services == nil && t.s.def != nil {
			t.read.services = make([]string, 0, max(1, len(t.s.def.DependsOn)))
		}
		t.read.services = append(t.read.services, name)
	}
	return t.factsOf(d)
}

// findDependent finds a service whose instances depend on this one and block the removal
// of its instances. It also returns how many instances that service still has.
func (t *turn) findDependent(alone bool) (by string, left int) {
	t.read.dependents, t.read.graph = true, true
	return t.view.firstDependent(t.s.name, alone)
}

// findReferrer finds the first service, by name, with instances that refer to
// an instance of this service; empty: none.
func (t *turn) findReferrer(i *Instance) string {
	return t.findReferrerAmong(i, func(*service) bool { return true })
}

// findReferrerAmong finds the first matching service, by name, with instances
// that refer to an instance of this service; empty: none.
func (t *turn) findReferrerAmong(i *Instance, among func(*service) bool) string {
	t.read.dependents = true
	first := ""
	for s := range t.view.referrers[i.ID] {
		if (first == "" || s.name < first) && among(s) {
			first = s.name
		}
	}
	return first
}

// findBoundService finds the first service, by name, that is bound to an
// instance of this one, so that its next instance refers to it; empty: none.
func (t *turn) findBoundService(i *Instance) string {
	t.read.dependents = true
	first := ""
	for s := range t.view.bound[i.ID] {
		if (first == "" || s.name < first) && s.def != nil && !s.isEnding(t.view.goal) {
			first = s.name
		}
	}
	return first
}

// findHeldDependency finds a direct or indirect dependency whose rollout is
// held.
func (t *turn) findHeldDependency() string {
	t.read.heldRollouts = true
	return t.planner.heldDependencyOf(t.s.name)
}

// isBulkSpent reports whether bulk work has used its share of this plan.
func (t *turn) isBulkSpent() bool {
	t.read.budget = true
	return t.planner.isSpent()
}

// hasRoom reports whether one more instance may start.
func (t *turn) hasRoom() bool {
	t.read.budget = true
	return t.room > 0
}
