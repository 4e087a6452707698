package picture

import (
	"cmp"
	"slices"

	"mariposa"
	"mariposa/store"
)

// Staying is an instance on a node that is drained, and why it is still there.
type Staying struct {
	*store.Instance
	Why *mariposa.Reason // nil: it is about to be moved
}

// Moves reports whether the instance is being moved, or will be after others of its service:
// it only takes its time.
func (s Staying) Moves() bool { return s.urgency() > 0 }

// urgency is 0 if the instance cannot be moved now, 1 if it is being moved, and 2 if it waits
// for its turn or for a rollout in progress.
func (s Staying) urgency() int {
	switch {
	case s.Why.Is(mariposa.ReasonDrainTurn), s.Why.Is(mariposa.ReasonDrainService) && s.Why.Cause.Is(mariposa.ReasonDrainRollout):
		return 2
	case s.Why == nil || s.Why.Is(mariposa.ReasonDrainStopping, mariposa.ReasonDrainStarts, mariposa.ReasonDrainProves):
		return 1
	}
	return 0
}

// Summarize returns the instances with a reason, those first that cannot be moved. If
// instances of a service wait for others of it, one stands for all.
func Summarize(all []Staying) []Staying {
	var out []Staying
	first := map[string]int{} // by service and code
	for _, s := range all {
		if s.Why == nil {
			continue
		}
		if s.Why.Is(mariposa.ReasonDrainTurn, mariposa.ReasonDrainMissing, mariposa.ReasonDrainDown) {
			key := s.Spec().Service + " " + string(s.Why.Code)
			if at, has := first[key]; has {
				out[at].Why = out[at].Why.AndMore(out[at].Why.More + 1)
				continue
			}
			first[key] = len(out)
		}
		out = append(out, s)
	}
	slices.SortStableFunc(out, func(a, b Staying) int { return cmp.Compare(a.urgency(), b.urgency()) })
	return out
}

// WhyLeft returns why instances are left on a node that is drained: why one cannot be moved,
// else what is done about one. If its service cannot move it, that is what the service says:
// reasons do not nest, and the cause matters more than the name of one instance. Nil: there
// is nothing to say.
func WhyLeft(all []Staying) *mariposa.Reason {
	some := Summarize(all)
	if len(some) == 0 {
		return nil
	}
	if why := some[0].Why; why.Is(mariposa.ReasonDrainService, mariposa.ReasonDrainMissing) && why.Cause != nil {
		return why.Cause
	}
	return some[0].Why
}

// StaysOn lists the instances on a node that a drain has to move, by id. Ended ones that
// are kept for inspection are not among them. While no drain moves them, only those have a
// reason that none could move.
func (p *Picture) StaysOn(r *store.Node) []Staying {
	slots := occupants{}
	return p.staysOn(r, func(i *store.Instance, ss *mariposa.ServiceStatus, about mariposa.Reason) *mariposa.Reason {
		if !r.Spec().Drain.MovesInstances() {
			return nil
		}
		if next := p.successorOf(i, slots); next != nil && !slices.Contains(ss.Yields, i.ID) {
			return p.whySuccessorWaits(i, next)
		}
		return whyServiceKeeps(ss, about)
	})
}

// WouldStayOn lists the instances on a node that a drain would have to move, by id. Stuck
// returns the statuses that the service of an instance would have while it cannot be moved.
func (p *Picture) WouldStayOn(r *store.Node, stuck func(instance string) []*mariposa.ServiceStatus) []Staying {
	return p.staysOn(r, func(i *store.Instance, _ *mariposa.ServiceStatus, about mariposa.Reason) *mariposa.Reason {
		for _, ss := range stuck(i.ID) {
			if why := whyServiceKeeps(ss, about); !(Staying{i, why}).Moves() {
				return why
			}
		}
		return nil
	})
}

// staysOn lists the instances that a drain has to move. Keeps returns why the service of an
// instance does not move it.
func (p *Picture) staysOn(r *store.Node, keeps func(*store.Instance, *mariposa.ServiceStatus, mariposa.Reason) *mariposa.Reason) []Staying {
	var all []Staying
	for _, i := range p.InstancesOn(r.ID) {
		if i.Spec().Kept || mariposa.StateOf(i.Spec(), i.Status()) == mariposa.StateDestroyed {
			continue
		}
		ss, about := p.aboutService(r, i.Spec())
		why, movable := whyImmovable(r, i.Spec(), ss, about)
		if movable && ss != nil {
			why = keeps(i, ss, about)
		}
		all = append(all, Staying{i, why})
	}
	return all
}

// aboutService returns the status of an instance's service, and what reasons about the
// instance have in common.
func (p *Picture) aboutService(r *store.Node, spec *mariposa.InstanceSpec) (*mariposa.ServiceStatus, mariposa.Reason) {
	ss, project := p.serviceOf(spec)
	return ss, mariposa.Reason{Subject: spec.Name, Keys: []string{spec.ServiceName}, Other: project, Node: r.Spec().Name}
}

// whyImmovable returns why no drain could move an instance now. It reports whether one could.
func whyImmovable(r *store.Node, spec *mariposa.InstanceSpec, ss *mariposa.ServiceStatus, about mariposa.Reason) (*mariposa.Reason, bool) {
	if st := r.Status(); st != nil && st.State == mariposa.NodeUnknown {
		return &mariposa.Reason{Code: mariposa.ReasonDrainAway, Node: r.Spec().Name, Since: st.Since}, false
	}
	switch {
	case spec.Goal != mariposa.GoalRunning && (spec.Managed || spec.Goal == mariposa.GoalGone):
		return &mariposa.Reason{Code: mariposa.ReasonDrainStopping, Subject: spec.Name}, false
	case !spec.Managed || spec.Orphaned:
		return &mariposa.Reason{Code: mariposa.ReasonDrainUnmanaged, Subject: spec.Name, Other: about.Other, Node: about.Node}, false
	case ss != nil && ss.Frozen != nil:
		about.Code = mariposa.ReasonDrainFrozen
		return &about, false
	case len(spec.Mounts) > 0:
		names := []string{}
		for _, m := range spec.Mounts {
			names = append(names, m.Name)
		}
		return &mariposa.Reason{Code: mariposa.ReasonDrainVolumes, Subject: spec.Name, Keys: names, Other: about.Other, IDs: about.Keys}, false
	case ss != nil && ss.Paused:
		about.Code = mariposa.ReasonDrainPaused
		return &about, false
	}
	return nil, true
}

// whyServiceKeeps returns why a service with a status has not moved an instance yet.
func whyServiceKeeps(ss *mariposa.ServiceStatus, about mariposa.Reason) *mariposa.Reason {
	cannot := mariposa.Reason{Code: mariposa.ReasonDrainService, Subject: about.Subject, Other: about.Other, Node: about.Node}
	awaitsNode := ss.Reason.Is(mariposa.ReasonStorm, mariposa.ReasonStormSlow, mariposa.ReasonNodeAway, mariposa.ReasonNodeAwayNever, mariposa.ReasonNodeAwayVolumes)
	switch {
	case (ss.Status == mariposa.StatusBlocked || ss.Status == mariposa.StatusBackingOff) && !awaitsNode:
		return cannot.Because(ss.Reason)
	case ss.Drain.Is(mariposa.ReasonDrainTurn, mariposa.ReasonDrainMissing, mariposa.ReasonDrainDown):
		why := *ss.Drain
		why.Subject, why.Keys, why.Other = about.Subject, about.Keys, about.Other
		return &why
	case ss.Drain != nil:
		return cannot.Because(ss.Drain)
	case ss.Reason.Is(mariposa.ReasonReferrers):
		return cannot.Because(ss.Reason)
	}
	return nil
}

// whySuccessorWaits returns what the successor of an instance is still missing.
func (p *Picture) whySuccessorWaits(i, next *store.Instance) *mariposa.Reason {
	why := &mariposa.Reason{Code: mariposa.ReasonDrainStarts, Subject: i.Spec().Name, Other: next.Spec().Name}
	n := p.Nodes.Get(next.Spec().Node)
	switch {
	case n != nil && n.Status() != nil && n.Status().State == mariposa.NodeUnknown:
		why.Code, why.Node, why.Since = mariposa.ReasonDrainLost, n.Spec().Name, n.Status().Since
	case mariposa.StateOf(next.Spec(), next.Status()) == mariposa.StateRunning:
		why.Code, why.Since = mariposa.ReasonDrainProves, next.Status().Since
	}
	return why
}

// occupants are the instances of projects that are wanted, by project and slot. They are
// read once for all instances on a node.
type occupants map[string]map[slotOf][]*store.Instance

type slotOf struct {
	service string
	slot    int
}

// successorOf returns an instance in the slot of another that is to stay there: one that
// runs, if there is one. Nil: there is none.
func (p *Picture) successorOf(i *store.Instance, slots occupants) *store.Instance {
	project := i.Spec().Project
	if slots[project] == nil {
		slots[project] = map[slotOf][]*store.Instance{}
		p.EachInstanceOf(project, func(o *store.Instance) bool {
			if s := o.Spec(); s.Managed && !s.Orphaned && s.Goal == mariposa.GoalRunning {
				at := slotOf{s.Service, s.Slot}
				slots[project][at] = append(slots[project][at], o)
			}
			return true
		})
	}
	var best *store.Instance
	for _, o := range slots[project][slotOf{i.Spec().Service, i.Spec().Slot}] {
		state := mariposa.StateOf(o.Spec(), o.Status())
		if o.ID == i.ID || o.Spec().Node == i.Spec().Node || state == mariposa.StateFailed || state == mariposa.StateStopped || state == mariposa.StateDestroyed {
			continue
		}
		if best == nil || state == mariposa.StateRunning && mariposa.StateOf(best.Spec(), best.Status()) != mariposa.StateRunning || state == mariposa.StateOf(best.Spec(), best.Status()) && o.ID < best.ID {
			best = o
		}
	}
	return best
}

// serviceOf returns the status of an instance's service, and the name of its project.
func (p *Picture) serviceOf(spec *mariposa.InstanceSpec) (*mariposa.ServiceStatus, string) {
	r := p.Projects.Get(spec.Project)
	if r == nil {
		return nil, spec.Project
	}
	if r.Status() == nil {
		return nil, r.Spec().Name
	}
	return r.Status().Services[spec.ServiceName], r.Spec().Name
}
