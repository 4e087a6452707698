package simulate

import (
	"maps"
	"reflect"
	"slices"
	"time"

	"mariposa"
	"mariposa/reason"
	"mariposa/store"
)

// checker checks the rules of the system after every event. It reads the feed directly
// from the store.
type checker struct {
	w               *World
	revision        int64
	instances       map[string]*store.Instance
	tasks           map[string]*store.Task
	projects        map[string]*store.Project
	nodes           map[string]*store.Node
	networks        networks
	volumes         map[string]*store.Volume
	deleted         map[string]bool
	before          map[string]int    // service -> serving instances that the planner could know of
	served          map[string]slotOf // the instances counted in before
	planned         int64
	changed         time.Time // when an instance, a task or a project last changed
	moves           int       // operations that nodes have completed
	checkedRevision int64     // the revision at which the machines were last checked
	changes         int       // changes on the machines at that time
	still           stillness
	bounces         map[string][]time.Time // lost instance -> when a replacement of it was removed that was not up yet
	refs            referrals
	sizes           map[*mariposa.ServiceStatus]int // stored sizes of the statuses measured so far
	lost            losses
	fronts          frontRules
}

func newChecker(w *World) *checker {
	return &checker{
		w: w, instances: map[string]*store.Instance{}, tasks: map[string]*store.Task{}, projects: map[string]*store.Project{},
		nodes: map[string]*store.Node{}, networks: newNetworks(), volumes: map[string]*store.Volume{}, deleted: map[string]bool{}, before: map[string]int{}, served: map[string]slotOf{}, changed: w.now, still: newStillness(), bounces: map[string][]time.Time{}, refs: newReferrals(),
		sizes: map[*mariposa.ServiceStatus]int{}, lost: newLosses(), fronts: newFrontRules(),
	}
}

// check reads new changes from the feed and checks the machines.
func (c *checker) check() {
	for {
		changes, err := c.w.store.Changes(c.w.ctx, c.revision, 1000)
		if err != nil {
			c.w.fail("read the feed: %v", err)
		}
		if len(changes) == 0 {
			break
		}
		for i := range changes {
			c.change(&changes[i])
		}
	}
	c.findExcuses()
	c.checkMachines()
	c.checkConnected()
}

func (c *checker) change(ch *store.Change) {
	if ch.Revision != c.revision+1 {
		c.w.fail("revision %d follows %d", ch.Revision, c.revision)
	}
	c.revision = ch.Revision
	c.still.noteChange(ch)
	c.w.seen[ch.Event.Kind]++
	r := ch.Record
	if r.Kind != mariposa.KindNode {
		c.changed = c.w.now
	}
	switch r.Kind {
	case mariposa.KindInstance:
		c.instance(ch)
	case mariposa.KindNetwork, mariposa.KindAttachment:
		c.networks.change(ch)
	case mariposa.KindTask:
		c.task(ch)
	case mariposa.KindProject, mariposa.KindService:
		c.goal(ch)
	case mariposa.KindVolume:
		c.volume(ch)
	case mariposa.KindNode:
		node := (*store.Node)(&ch.Record)
		c.nodes[r.ID] = node
		c.loseNode(node)
		c.lost.purge(node)
	}
}

func (c *checker) instance(ch *store.Change) {
	r := (*store.Instance)(&ch.Record)
	spec := r.Spec()
	state := mariposa.StateOf(spec, r.Status())
	c.w.note("r%d %s/%s %s goal %s is %s (%s)", ch.Revision, tail(spec.Project), spec.Name, ch.Event.Kind, spec.Goal, state, reason.Sentence(ch.Event.Reason))
	if ch.Deleted {
		if spec.Orphaned {
			c.w.seen["debt settled"]++
		} else if state != mariposa.StateDestroyed {
			c.w.fail("the record of %s was deleted in state %s", spec.Name, state)
		}
		delete(c.instances, r.ID)
		c.deleted[r.ID] = true
		c.fronts.forget(r.ID)
		return
	}
	if c.deleted[r.ID] {
		c.w.fail("%s appeared again after its record was deleted", spec.Name)
	}
	old, known := c.instances[r.ID]
	if known {
		was := old.Spec()
		if was.Goal == mariposa.GoalRunning && spec.Goal != mariposa.GoalRunning {
			c.noteRemoval(ch, spec)
			c.noteBounce(old, spec)
		}
		if was.Node != spec.Node {
			c.w.fail("%s moved from %s to %s", spec.Name, was.Node, spec.Node)
		}
		if was.Goal == mariposa.GoalGone && spec.Goal != mariposa.GoalGone || was.Kept && !spec.Kept {
			c.w.fail("%s is desired again after its removal was requested", spec.Name)
		}
		if from := mariposa.StateOf(was, old.Status()); !mariposa.CanFollow(from, state) {
			c.w.fail("%s changed its state from %s to %s", spec.Name, from, state)
		}
	} else {
		c.checkVolumeNode(r.ID, spec)
		c.checkStableNode(spec)
		c.checkNewReferences(spec)
	}
	if _, ok := c.tasks[spec.Task]; !ok {
		c.w.fail("%s was changed without an open task", spec.Name)
	}
	if why := c.networks.lacks(spec); !known && why != "" {
		c.w.fail("%s was created, but %s", spec.Name, why)
	}
	c.instances[r.ID] = r
	c.fronts.note(c, old, r)
	c.checkAlways(spec, !known)
	if ch.Status && !reflect.DeepEqual(r.Status(), old.Status()) && settledStates[state] {
		c.moves++
	}
}

// settledStates are the states after a completed operation of a node.
var settledStates = map[mariposa.State]bool{
	mariposa.StateRunning: true, mariposa.StateFailed: true, mariposa.StateStopped: true, mariposa.StateDestroyed: true,
}

// goal keeps the projects up to date, each with its services in its status.
func (c *checker) goal(ch *store.Change) {
	id := ch.Record.Project
	r := c.projects[id]
	was := r.Status()
	if ch.Record.Kind == mariposa.KindProject {
		r = (*store.Project)(&ch.Record)
	}
	switch is := withServices(was, ch); {
	case ch.Deleted && ch.Record.Kind == mariposa.KindProject:
		delete(c.projects, id)
	case r != nil && is != nil:
		next := *r
		next.Halves.Status = is
		c.projects[id] = &next
		c.project(r.Spec().Name, is)
	case r != nil:
		c.projects[id] = r
	}
}

// withServices returns the status of a project, including its services, after a change to
// the project or to one of its services; nil: there is none.
func withServices(was *mariposa.ProjectStatus, ch *store.Change) *mariposa.ProjectStatus {
	switch spec := ch.Record.Spec.(type) {
	case *mariposa.ProjectSpec:
		st := (*store.Project)(&ch.Record).Status()
		if st == nil || ch.Deleted {
			return nil
		}
		is := *st
		if was != nil {
			is.Services = was.Services
		}
		return &is
	case *mariposa.ServiceSpec:
		if was == nil {
			return nil
		}
		is := *was
		is.Services = maps.Clone(was.Services)
		if is.Services == nil {
			is.Services = map[string]*mariposa.ServiceStatus{}
		}
		if delete(is.Services, spec.Name); !ch.Deleted {
			is.Services[spec.Name] = (*store.Service)(&ch.Record).Status()
		}
		return &is
	}
	return was
}

// project counts the outcomes of rollouts.
func (c *checker) project(name string, st *mariposa.ProjectStatus) {
	c.checkProjectSize(name, st)
	if st.RolledBack > 0 && st.RolledBack > st.Number {
		c.w.seen["version taken back"]++
	}
	for _, ss := range st.Services {
		if ss.Rollout != nil && ss.Rollout.FailureReason != nil {
			c.w.seen["rollout stopped"]++
		}
		if ss.Backoff != nil && ss.Backoff.Failures > 1 {
			c.w.seen["backed off"]++
		}
		switch ss.Status {
		case mariposa.StatusHeld, mariposa.StatusPaused, mariposa.StatusFrozen:
			c.w.seen["service "+string(ss.Status)]++
		}
	}
}

func (c *checker) task(ch *store.Change) {
	r := (*store.Task)(&ch.Record)
	st, spec := r.Status(), r.Spec()
	if st != nil {
		c.checkStatusSize("task "+tail(r.ID), st)
		c.w.note("r%d task %s/%s %s %v is %s %d/%d %s", ch.Revision, tail(spec.Project), tail(r.ID), spec.Task, spec.Services, st.State, st.Progress.Done, st.Progress.Total, reason.Sentence(st.Reason))
	}
	if was := c.tasks[r.ID].Status(); was != nil && st != nil {
		switch {
		case was.State.Ended():
			c.w.fail("task %s changed after it was %s", r.ID, was.State)
		case st.Progress.Done < was.Progress.Done || st.Progress.Total < was.Progress.Total:
			c.w.fail("task %s went back from %v to %v", r.ID, was.Progress, st.Progress)
		case st.Progress.Done > st.Progress.Total:
			c.w.fail("task %s has completed more than its total: %v", r.ID, st.Progress)
		}
	}
	c.tasks[r.ID] = r
}

// checkMachines checks what really runs, if it or the store has changed.
func (c *checker) checkMachines() {
	changes := 0
	for _, n := range c.w.nodes {
		changes += n.world.Changes() + n.frontWorld.Changes()
	}
	if changes == c.changes && c.revision == c.checkedRevision {
		return
	}
	c.changes, c.checkedRevision = changes, c.revision
	where := map[string]string{}
	clear(c.refs.running)
	for _, n := range c.w.nodes {
		for _, o := range n.list() {
			id := o.ID
			if other := where[id]; other != "" {
				c.w.fail("%s runs on %s and on %s", id, other, n.name)
			}
			where[id] = n.name
			r, ok := c.instances[id]
			if !ok && c.lost.known[id] {
				continue
			}
			if o.Running {
				c.refs.running[id] = true
			}
			if !ok {
				c.w.fail("%s runs on %s but is not in the store", id, n.name)
			}
			if spec := r.Spec(); spec.Node != n.name {
				c.w.fail("%s runs on %s instead of %s", spec.Name, n.name, spec.Node)
			}
		}
	}
	c.checkSpared(where)
	c.checkNoRemovedReferences()
}

// beforePlan counts the instances that the planner can know to be running.
func (c *checker) beforePlan(s *server, project string) {
	c.check()
	c.planned = c.revision
	clear(c.before)
	clear(c.served)
	clear(c.refs.unseen)
	for _, r := range s.picture.InstancesOf(project) {
		if spec := r.Spec(); c.serves(s, r) {
			c.before[spec.ServiceName]++
			c.served[r.ID] = slotOf{spec.ServiceName, spec.Slot}
		} else if !c.isReached(s, spec.Node) {
			c.refs.unseen[r.ID] = true
		}
	}
}

func (c *checker) serves(s *server, r *store.Instance) bool {
	spec, status := r.Spec(), r.Status()
	return spec.Goal == mariposa.GoalRunning && status != nil && status.State == mariposa.StateRunning && passes(status) && c.isReached(s, spec.Node)
}

// isReached reports whether a server considers a node reachable.
func (c *checker) isReached(s *server, node string) bool {
	st := s.picture.Nodes.Get(node).Status()
	return st != nil && st.State == mariposa.NodeRunning
}

// afterPlan checks that the planner did not go below the scale of a serving service and
// did not change anything frozen.
func (c *checker) afterPlan(project string) {
	changes, err := c.w.store.Changes(c.w.ctx, c.planned, 10000)
	if err != nil {
		c.w.fail("read the feed: %v", err)
	}
	c.countPlan(project, changes)
	removed, touched := map[string]*mariposa.InstanceSpec{}, map[string]string{}
	goal := c.projects[project].Status()
	was := goal
	for _, ch := range changes {
		switch spec := ch.Record.Spec.(type) {
		case *mariposa.ProjectSpec, *mariposa.ServiceSpec:
			goal = withServices(goal, &ch)
		case *mariposa.InstanceSpec:
			if ch.Spec && !ch.Deleted { // deleting records of removed instances is part of settling
				touched[spec.ServiceName] = spec.Name + ": " + reason.Sentence(spec.Reason)
			}
			if _, serves := c.served[ch.Record.ID]; ch.Spec && spec.Goal != mariposa.GoalRunning && serves {
				delete(c.served, ch.Record.ID)
				removed[ch.Record.ID] = spec
				c.w.note("planner takes %s, which serves: %s", spec.Name, reason.Sentence(spec.Reason))
			}
		}
	}
	c.checkFrozenUntouched(was, goal, touched)
	for name, n := range c.countTaken(removed) {
		if goal == nil || goal.Goal != mariposa.GoalStarted || goal.Services[name] == nil || goal.Services[name].Removed || goal.Services[name].Stopped {
			continue
		}
		if left := c.before[name] - n; left < goal.Services[name].Scale && !c.stopsFirst(project, goal, name) {
			c.w.fail("a plan left %s with %d serving instances; its scale is %d", name, left, goal.Services[name].Scale)
		}
	}
}

// slotOf is a slot of a service.
type slotOf struct {
	service string
	slot    int
}

// countTaken counts by service the removed instances that served, except those whose slot
// another one serves that takes over from it: off a node that is drained or unstable, an
// instance goes whatever happened to other slots.
func (c *checker) countTaken(removed map[string]*mariposa.InstanceSpec) map[string]int {
	still, taken := map[slotOf]bool{}, map[string]int{}
	for _, slot := range c.served {
		still[slot] = true
	}
	for _, spec := range removed {
		handsOver := spec.Reason.Is(mariposa.ReasonDrains, mariposa.ReasonSlotHeld)
		if !handsOver || !still[slotOf{spec.ServiceName, spec.Slot}] {
			taken[spec.ServiceName]++
		}
	}
	return taken
}

// stopsFirst reports whether a service stops its old instances before it starts new
// ones.
func (c *checker) stopsFirst(project string, goal *mariposa.ProjectStatus, name string) bool {
	def, err := c.w.definition(project, goal.Services[name].Number, name)
	return err == nil && def != nil && def.Update.StopFirst
}

// checkFrozenUntouched checks that the planner did not change services that were frozen
// and settled and still are.
func (c *checker) checkFrozenUntouched(was, is *mariposa.ProjectStatus, touched map[string]string) {
	if was == nil || is == nil {
		return
	}
	for _, name := range slices.Sorted(maps.Keys(touched)) {
		before, after := was.Services[name], is.Services[name]
		if before != nil && after != nil && before.Frozen != nil && before.Frozen.Settled && after.Frozen != nil {
			c.w.fail("%s is frozen, but %s", name, touched[name])
		}
	}
}
