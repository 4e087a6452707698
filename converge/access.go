package converge

import "slices"

// A rule reaches beyond its own service only through the functions of this
// file. They record what the turn read, so that the next plan looks at the
// service again when any of that changes, and only then. A rule need not know.

// reads is what a service's last turn read beyond the service itself.
type reads struct {
	services   []string // other services, in the order in which they were read
	dependents bool     // who depends on it, and who refers to its instances
	graph      bool     // how the edges of all services lie
	holds      bool     // which rollouts hold, of all services
	budget     bool     // how much the plan may still start, or do
}

// other returns the facts of another service; nil where there is none.
func (t *turn) other(name string) *facts {
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

// dependent finds a service whose instances keep this one's from going because
// they depend on it, and says how many it still has.
func (t *turn) dependent(alone bool) (by string, left int) {
	t.read.dependents, t.read.graph = true, true
	return t.view.firstDependent(t.s.name, alone)
}

// referrer finds the first service, by name, whose instances refer to one of this
// service; empty: none.
func (t *turn) referrer(i *Instance) string {
	return t.referrerAmong(i, func(*service) bool { return true })
}

// referrerAmong finds the first of some services, by name, whose instances refer to
// one of this service; empty: none.
func (t *turn) referrerAmong(i *Instance, among func(*service) bool) string {
	t.read.dependents = true
	first := ""
	for s := range t.view.referrers[i.ID] {
		if (first == "" || s.name < first) && among(s) {
			first = s.name
		}
	}
	return first
}

// boundService finds the first service, by name, that is bound to an instance of this
// one: what it makes next refers to it; empty: none.
func (t *turn) boundService(i *Instance) string {
	t.read.dependents = true
	first := ""
	for s := range t.view.bound[i.ID] {
		if (first == "" || s.name < first) && s.def != nil && !s.ending(t.view.goal) {
			first = s.name
		}
	}
	return first
}

// heldBelow finds what the service depends on, near or far, whose rollout is held.
func (t *turn) heldBelow() string {
	t.read.holds = true
	return t.planner.firstHeld(t.s.name)
}

// full reports whether bulk work has had its share of this plan.
func (t *turn) full() bool {
	t.read.budget = true
	return t.planner.isSpent()
}

// hasRoom reports whether one more instance may be on its way up.
func (t *turn) hasRoom() bool {
	t.read.budget = true
	return t.room > 0
}
