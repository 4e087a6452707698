package simulate

import (
	"fmt"
	"slices"
	"time"

	"mariposa"
	"mariposa/balance"
	"mariposa/store"
)

// This file checks the members of load balancers:
//
//   - An instance is stopped only after each balancer of its service has shown that it has no
//     connections left, or when the drain time is over.
//   - A balancer that behaves has all instances that serve, and no others.
//   - A change of members never leaves fewer of them than there are before and after it.

// balanced is how long a balancer has to get its members right, once nothing is wrong.
const balanced = time.Minute

// frontRules is what the store says about load balancers and their members.
type frontRules struct {
	alive   map[string]time.Time // balancer -> since when it runs
	serves  map[string]time.Time // instance -> since when it serves
	silent  map[string]time.Time // instance -> since when it does not serve
	leaves  map[string]leaving   // instances that are to stop
	numbers map[string]numbered  // balancer's service -> the version that it has
}

// leaving is an instance that is to stop.
type leaving struct {
	at     time.Time
	fronts map[string]bool // the balancers that forwarded to it then, and have run since
}

type numbered struct {
	number int
	since  time.Time
}

func newFrontRules() frontRules {
	return frontRules{
		alive: map[string]time.Time{}, serves: map[string]time.Time{}, silent: map[string]time.Time{},
		leaves: map[string]leaving{}, numbers: map[string]numbered{},
	}
}

// note handles a change of an instance.
func (f *frontRules) note(c *checker, old, r *store.Instance) {
	now, spec, st := c.w.now, r.Spec(), r.Status()
	runs := spec.Goal == mariposa.GoalRunning && st != nil && st.State == mariposa.StateRunning
	if spec.Compute == mariposa.ComputeBalancer {
		keepSince(f.alive, r.ID, runs, now)
		if !runs {
			for _, l := range f.leaves {
				delete(l.fronts, r.ID)
			}
		}
		return
	}
	keepSince(f.serves, r.ID, runs && passes(st), now)
	keepSince(f.silent, r.ID, !runs || !passes(st), now)
	ran := old != nil && !departs(old) && old.Status() != nil && old.Status().State == mariposa.StateRunning
	if departs(r) && ran {
		l := leaving{at: now, fronts: map[string]bool{}}
		for id := range f.alive {
			l.fronts[id] = c.forwards(id, r)
		}
		f.leaves[r.ID] = l
	}
}

// departs reports whether an instance is to stop, for good or for a restart.
func departs(r *store.Instance) bool {
	done := 0
	if r.Status() != nil {
		done = r.Status().ManualRestarts
	}
	return r.Spec().Goal != mariposa.GoalRunning || r.Spec().ManualRestarts > done
}

// keepSince keeps since when something is so.
func keepSince(all map[string]time.Time, id string, is bool, now time.Time) {
	if _, was := all[id]; is && !was {
		all[id] = now
	} else if !is {
		delete(all, id)
	}
}

func (f *frontRules) forget(id string) {
	for _, all := range []map[string]time.Time{f.alive, f.serves, f.silent} {
		delete(all, id)
	}
	delete(f.leaves, id)
	for _, l := range f.leaves {
		delete(l.fronts, id)
	}
}

// checkStop checks that an instance has left all balancers before it is stopped. One whose checks
// fail may be restarted in place, by an agent that does not know yet that it leaves.
func (f *frontRules) checkStop(c *checker, on *node, id string) {
	l, leaves := f.leaves[id]
	r := c.instances[id]
	if !leaves || r == nil || r.Spec().Forced || !departs(r) || c.refs.hurt[id] || c.w.rewinds > 0 || !on.isRunning(id) {
		return
	}
	for _, n := range c.w.nodes {
		for _, front := range n.sortedFronts() {
			if !l.fronts[front.id] || !c.forwards(front.id, r) {
				continue
			}
			b, waited := c.balancerOf(front.id), c.w.now.Sub(l.at)
			if !b.Serves(r.Spec().ServiceName) {
				c.w.seen["left with its route"]++
			}
			if r.Spec().Goal == mariposa.GoalRunning {
				c.w.seen["left for a restart"]++
			}
			switch {
			case front.idle[id]:
				c.w.seen["stopped without connections"]++
			case waited >= b.Drain:
				c.w.seen["stopped after its drain"]++
			default:
				c.w.fail("%s is stopped %s after it left, but the balancer %s has not confirmed that, and may take %s", r.Spec().Name, waited, tail(front.id), b.Drain)
			}
		}
	}
}

// forwards reports whether a balancer has a route to an instance, or had one and lists it still.
func (c *checker) forwards(balancer string, to *store.Instance) bool {
	r, b := c.instances[balancer], c.balancerOf(balancer)
	return b != nil && r.Spec().Project == to.Spec().Project && (b.Serves(to.Spec().ServiceName) || isListed(r, to.ID))
}

// isListed reports whether an instance is stored as a member of a balancer.
func isListed(r *store.Instance, id string) bool {
	return slices.ContainsFunc(r.Status().Members, func(m mariposa.MemberStatus) bool { return m.Instance == id })
}

// isRunning reports whether an instance runs on the machine.
func (n *node) isRunning(id string) bool {
	for _, o := range n.list() {
		if o.ID == id {
			return o.Running
		}
	}
	return false
}

// balancerOf returns what a load balancer should do; nil if that is unknown or it should not run.
func (c *checker) balancerOf(id string) *mariposa.Balancer {
	r := c.instances[id]
	if r == nil || r.Spec().Goal != mariposa.GoalRunning {
		return nil
	}
	st := c.projects[r.Spec().Project].Status()
	if st == nil || st.Services[r.Spec().ServiceName] == nil {
		return nil
	}
	def, err := c.w.definition(r.Spec().Project, st.Services[r.Spec().ServiceName].Number, r.Spec().ServiceName)
	if err != nil || def == nil {
		return nil
	}
	return def.Balancer
}

// check checks the members of a balancer that had the time to get them right.
func (f *frontRules) check(c *checker, front *front) {
	b := c.balancerOf(front.id)
	if b == nil || c.w.rewinds > 0 || !c.isUndisturbed(front) {
		return
	}
	spec := c.instances[front.id].Spec()
	ready := map[balance.Key]bool{}
	for _, s := range front.servers {
		if s.Name != foreign && s.State == balance.Ready {
			ready[balance.Key{Backend: s.Backend, Instance: s.Name}] = true
			if since, silent := f.silent[s.Name]; c.instances[s.Name] == nil || silent && c.w.now.Sub(since) > balanced && c.isConnected(c.instances[s.Name]) {
				c.w.fail("%s gets connections from the balancer %s, but does not serve", tail(s.Name), tail(front.id))
			}
		}
	}
	for _, id := range c.sorted() {
		r := c.instances[id]
		since, serves := f.serves[id]
		if r.Spec().Project != spec.Project || !serves || c.w.now.Sub(since) < balanced || !c.isConnected(r) {
			continue
		}
		for _, route := range b.Routes {
			if route.Service != r.Spec().ServiceName {
				continue
			}
			if !ready[balance.Key{Backend: b.Backend(spec.ServiceName, route), Instance: id}] {
				c.w.fail("%s serves, but is not a member of the balancer %s", r.Spec().Name, tail(front.id))
			}
			c.w.seen["member while others change"]++
		}
	}
}

// isUndisturbed reports whether a balancer had the time to get its members right.
func (c *checker) isUndisturbed(f *front) bool {
	r := c.instances[f.id]
	since, runs := c.fronts.alive[f.id]
	if !runs || f.mood != behaves || c.w.now.Sub(f.disturbed) < balanced || c.w.now.Sub(since) < balanced || !c.isConnected(r) {
		return false
	}
	key := r.Spec().Project + "/" + r.Spec().ServiceName
	number := c.projects[r.Spec().Project].Status().Services[r.Spec().ServiceName].Number
	if was := c.fronts.numbers[key]; was.number != number {
		c.fronts.numbers[key] = numbered{number, c.w.now}
	}
	return c.w.now.Sub(c.fronts.numbers[key].since) >= balanced
}

// isConnected reports whether the node of an instance has had the time to connect to a server.
func (c *checker) isConnected(r *store.Instance) bool {
	for _, n := range c.w.nodes {
		if n.name == r.Spec().Node {
			d, ok := n.couldConnect()
			return ok && d >= balanced
		}
	}
	return false
}

// unbalanced says what is wrong with the members of balancers at rest; empty: nothing.
func (c *checker) unbalanced() string {
	for _, n := range c.w.nodes {
		for _, f := range n.sortedFronts() {
			if b := c.balancerOf(f.id); b != nil {
				if why := c.wrongMember(f, b); why != "" {
					return fmt.Sprintf("the balancer %s: %s", tail(f.id), why)
				}
				c.w.seen["balanced at rest"]++
			}
		}
	}
	return ""
}

// wrongMember compares a balancer with the instances, and with what is stored of it.
func (c *checker) wrongMember(f *front, b *mariposa.Balancer) string {
	r := c.instances[f.id]
	want := map[balance.Key]bool{}
	for _, route := range b.Routes {
		for id, i := range c.instances {
			if i.Spec().Project == r.Spec().Project && i.Spec().ServiceName == route.Service && i.Spec().Goal == mariposa.GoalRunning {
				want[balance.Key{Backend: b.Backend(r.Spec().ServiceName, route), Instance: id}] = true
			}
		}
	}
	others := 0
	for _, s := range f.servers {
		k := balance.Key{Backend: s.Backend, Instance: s.Name}
		switch {
		case s.Name == foreign && s.Weight == 3 && s.State == balance.Drain:
			others++
		case !want[k] || s.State != balance.Ready || s.Weight != 100 || s.Address == "192.0.2.1:1":
			return fmt.Sprintf("has %+v", s)
		}
		delete(want, k)
	}
	if len(want) > 0 || others != 1 {
		return fmt.Sprintf("lacks %v, and has %d servers of others", want, others)
	}
	for _, m := range r.Status().Members {
		if m.State != mariposa.MemberUp {
			return fmt.Sprintf("%s is stored as %s: %s", m.Name, m.State, m.Reason)
		}
	}
	if got := len(r.Status().Members); got != len(f.members) {
		return fmt.Sprintf("%d of %d members are stored", got, len(f.members))
	}
	return ""
}
