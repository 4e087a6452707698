package simulate

import (
	"fmt"
	"maps"
	"slices"

	"mariposa"
	"mariposa/store"
)

// losses are the instances that the store has lost by going back.
type losses struct {
	known  map[string]bool   // the store has known them and does not now: they may run in quarantine
	spared map[string]string // they ran when the store went back, and must stay on this node
	left   map[string]bool   // they were to leave at a time that is lost, and a node that is cut off may still do that
}

func newLosses() losses {
	return losses{known: map[string]bool{}, spared: map[string]string{}, left: map[string]bool{}}
}

// purge notes which quarantined instances people want to remove.
func (l *losses) purge(r *store.Node) {
	for _, id := range r.Spec().Purge {
		delete(l.spared, id)
	}
}

// goBack reads the earlier state of the store and notes what ran without being told to
// go: the loss of the store's newest state is no reason to remove it.
func (c *checker) goBack() {
	w := c.w
	was, lost, deleted := c.instances, c.lost, c.deleted
	*c = *newChecker(w)
	c.revision = w.revisionOf(w.store)
	c.lost.known, c.lost.spared, c.lost.left = lost.known, map[string]string{}, lost.left
	for _, kind := range []mariposa.Kind{
		mariposa.KindNetwork, mariposa.KindAttachment, mariposa.KindTask, mariposa.KindProject, mariposa.KindService, mariposa.KindVolume, mariposa.KindNode, mariposa.KindInstance,
	} {
		all, err := w.store.List(w.ctx, store.Query{Kind: kind})
		if err != nil {
			w.fail("read the store: %v", err)
		}
		for i := range all {
			c.load(&store.Change{Revision: c.revision, Record: all[i], Spec: true, Status: true})
		}
	}
	for id := range deleted {
		c.deleted[id] = c.instances[id] == nil
	}
	for id, r := range was {
		c.lost.known[id] = true
		c.lost.left[id] = c.lost.left[id] || r.Spec().Goal != mariposa.GoalRunning
	}
	for id, r := range c.instances {
		// One that is destroyed here may have been created again in the time that is lost. It is
		// collected, and then quarantined when its node connects.
		if mariposa.StateOf(r.Spec(), r.Status()) != mariposa.StateDestroyed {
			delete(c.lost.known, id)
		}
		c.refs.hurt[id] = true // it may have been removed in the time that is lost
	}
	for _, n := range w.nodes {
		for _, o := range n.list() {
			old, is := was[o.ID], c.instances[o.ID]
			_, spared := lost.spared[o.ID]
			if spared = spared || old != nil && !c.lost.left[o.ID]; spared && o.Running && (is == nil || is.Spec().Goal == mariposa.GoalRunning) {
				c.lost.spared[o.ID] = n.name
			}
		}
	}
}

// load reads one object.
func (c *checker) load(ch *store.Change) {
	r := ch.Record
	switch r.Kind {
	case mariposa.KindInstance:
		c.instances[r.ID] = (*store.Instance)(&r)
	case mariposa.KindNetwork, mariposa.KindAttachment:
		c.networks.change(ch)
	case mariposa.KindTask:
		c.tasks[r.ID] = (*store.Task)(&r)
	case mariposa.KindProject, mariposa.KindService:
		c.goal(ch)
	case mariposa.KindVolume:
		c.volumes[r.ID] = (*store.Volume)(&r)
	case mariposa.KindNode:
		c.nodes[r.ID] = (*store.Node)(&r)
	}
}

// checkSpared checks that nothing was removed because the store went back. An instance
// that the store knows may be removed once that is its goal.
func (c *checker) checkSpared(where map[string]string) {
	for _, id := range slices.Sorted(maps.Keys(c.lost.spared)) {
		node := c.lost.spared[id]
		r := c.instances[id]
		switch {
		case r == nil && !c.lost.known[id], r != nil && r.Spec().Goal != mariposa.GoalRunning:
			delete(c.lost.spared, id)
		case where[id] == node:
		case r == nil:
			c.w.fail("%s was removed from %s; it is unknown since the store went back", id, node)
		default:
			c.w.fail("%s was removed from %s after the store went back, but its goal is to run", r.Spec().Name, node)
		}
	}
}

// unquarantined returns a node that does not report exactly what the store does not know;
// empty: none.
func (c *checker) unquarantined() string {
	for _, n := range c.w.nodes {
		var have []string
		for _, q := range c.nodes[n.name].Status().Quarantined {
			have = append(have, q.ID)
		}
		slices.Sort(have)
		if want := c.strays(n); !slices.Equal(want, have) {
			return fmt.Sprintf("%s has the unknown instances %v and reports %v", n.name, want, have)
		}
	}
	return ""
}

// strays lists the instances on a node that the store does not know.
func (c *checker) strays(n *node) []string {
	return slices.DeleteFunc(n.ids(), func(id string) bool { return c.instances[id] != nil })
}

// unpurged returns an instance that people have removed from quarantine and that is still
// there; empty: none.
func (c *checker) unpurged() string {
	for _, n := range c.w.nodes {
		r := c.nodes[n.name]
		if r == nil || r.Status() == nil {
			return n.name + " is unknown"
		}
		for _, id := range r.Spec().Purge {
			if slices.Contains(n.ids(), id) {
				return id + " is to be purged"
			}
		}
		if r.Status().State != mariposa.NodeRunning {
			return n.name + " is " + string(r.Status().State)
		}
	}
	return ""
}
