package simulate

import (
	"maps"
	"slices"

	"mariposa"
	"mariposa/reason"
	"mariposa/store"
)

// This file checks that before an instance is removed, everything that refers to it moves
// to another instance or is removed.

// removal is the removal of a running instance by Mariposa.
type removal struct {
	revision int64
	spec     *mariposa.InstanceSpec
	excuse   string          // why others need not follow first; empty: they must
	away     map[string]bool // instances on nodes that were unreachable then
}

// referrals tracks the instances that others may refer to.
type referrals struct {
	removed map[string]*removal
	news    []*removal      // those of the current event
	hurt    map[string]bool // instances that have failed or whose node was lost: nothing can wait for them
	running map[string]bool // what really runs
	unseen  map[string]bool // instances on nodes that the last plan considered unreachable
}

func newReferrals() referrals {
	return referrals{removed: map[string]*removal{}, hurt: map[string]bool{}, running: map[string]bool{}, unseen: map[string]bool{}}
}

// noteRemoval records that the planner no longer wants an instance to run.
func (c *checker) noteRemoval(ch *store.Change, spec *mariposa.InstanceSpec) {
	id := ch.Record.ID
	if c.refs.hurt[id] || !c.refs.running[id] || c.refs.removed[id] != nil {
		return
	}
	x := &removal{revision: ch.Revision, spec: spec, away: map[string]bool{}}
	c.refs.removed[id] = x
	c.refs.news = append(c.refs.news, x)
}

// loseNode records the instances of an unreachable node.
func (c *checker) loseNode(r *store.Node) {
	if st := r.Status(); st == nil || st.State != mariposa.NodeUnknown {
		return
	}
	for id, i := range c.instances {
		if i.Spec().Node == r.ID {
			c.refs.hurt[id] = true
		}
	}
}

// findExcuses finds the instances that need not follow before the removals of this event.
// It runs after the whole commit was read, because it needs the goal.
func (c *checker) findExcuses() {
	for _, x := range c.refs.news {
		x.excuse = c.excuseFor(x.spec)
		for id, r := range c.instances {
			node := c.nodes[r.Spec().Node].Status()
			if node == nil || node.State != mariposa.NodeRunning || c.refs.unseen[id] {
				x.away[id] = true
			}
		}
	}
	c.refs.news = nil
}

func (c *checker) excuseFor(spec *mariposa.InstanceSpec) string {
	st := c.projects[spec.Project].Status()
	if st == nil {
		return "its project is gone"
	}
	numbers := []int{spec.Number}
	if ss := st.Services[spec.ServiceName]; ss != nil {
		switch {
		case ss.Stopped:
			return "its service is stopped by itself"
		case ss.Scale == 0 && !ss.Removed:
			return "its service is scaled to 0"
		}
		numbers = append(numbers, ss.Number)
	}
	for _, n := range numbers {
		if def, err := c.w.definition(spec.Project, n, spec.ServiceName); err == nil && def != nil && def.Update.StopFirst {
			return "its service stops first"
		}
	}
	return ""
}

// checkNewReferences checks that a new instance refers to no instance that Mariposa has
// removed, whatever the excuse: it must wait for the successor.
func (c *checker) checkNewReferences(spec *mariposa.InstanceSpec) {
	for _, on := range c.refersTo(spec) {
		if x := c.refs.removed[spec.Bindings.To[on].Instance]; x != nil {
			c.w.fail("%s was created with a reference to %s, whose removal was requested in r%d (%s)", spec.Name, x.spec.Name, x.revision, reason.Sentence(x.spec.Reason))
		}
	}
}

// checkNoRemovedReferences checks that no running instance refers to an instance that
// Mariposa has removed.
func (c *checker) checkNoRemovedReferences() {
	if len(c.refs.removed) == 0 {
		return
	}
	for _, id := range slices.Sorted(maps.Keys(c.refs.running)) {
		r := c.instances[id]
		spec := r.Spec()
		if spec.Orphaned || spec.Bindings == nil {
			continue
		}
		for _, on := range c.refersTo(spec) {
			to := spec.Bindings.To[on].Instance
			x := c.refs.removed[to]
			if x != nil && x.excuse == "" && !x.away[id] && !c.refs.hurt[to] && !c.refs.running[to] {
				c.w.fail("%s (goal %s) runs and refers to %s, which Mariposa has removed since r%d (%s)", spec.Name, spec.Goal, x.spec.Name, x.revision, reason.Sentence(x.spec.Reason))
			}
		}
	}
}

// refersTo lists the services of which an instance's definition is bound to a single
// instance. Lists of all instances change when the instances do, and live values are
// published again.
func (c *checker) refersTo(spec *mariposa.InstanceSpec) (names []string) {
	if spec.Bindings == nil {
		return nil
	}
	def, err := c.w.definition(spec.Project, spec.Number, spec.ServiceName)
	if err != nil || def == nil {
		return nil
	}
	for _, ref := range def.Refs {
		if _, bound := spec.Bindings.Get(ref.Service); bound && ref.Field != "ids" && ref.Field != "addresses" && !slices.Contains(names, ref.Service) {
			names = append(names, ref.Service)
		}
	}
	return names
}
