package converge

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"mariposa"
	"mariposa/reason"
)

// stamp formats a time of day.
func stamp(at time.Time) string { return at.UTC().Format("15:04:05") }

// Of the tests of rules, graphs and scenarios, only this file depends on how the planner
// stores its knowledge. A change to that affects only this file.

// isStopped reports whether a rollout stopped by itself.
func isStopped(r *mariposa.Rollout) bool { return r.HasFailed() }

// reasonOf returns the reason of a service as text; empty: none.
func reasonOf(ss *mariposa.ServiceStatus) string { return reason.Sentence(ss.Reason) }

// stepReason returns the reason of a step as text.
func stepReason(s Step) string { return reason.Sentence(s.Reason) }

// undoReason returns the reason of a requested rollback as text.
func undoReason(p Plan) string { return reason.Sentence(p.RollbackReason) }

// serviceNames lists the services of a view, sorted.
func serviceNames(v *View) []string { return slices.Sorted(maps.Keys(v.services)) }

// classOf returns the class of an instance.
func classOf(v *View, i *Instance) class { return v.services[i.Spec.ServiceName].members[i.ID] }

// countOf returns the number of instances of a service in the given classes.
func countOf(v *View, name string, of ...class) int {
	n := 0
	for _, c := range of {
		n += v.services[name].count(c)
	}
	return n
}

// sizeOf returns the number of instances of a service, without those kept for inspection,
// and the number of their slots.
func sizeOf(v *View, name string) (instances, slots int) {
	s := v.services[name]
	return len(s.members) - s.count(preserved), len(s.slots)
}

// defOf returns the current definition of a service; nil: none.
func defOf(v *View, name string) *mariposa.Service { return v.services[name].def }

// isEnding reports whether the whole service ends.
func isEnding(v *View, name string) bool { return v.services[name].isEnding(v.goal) }

// isOutdated reports whether an instance must be replaced.
func isOutdated(v *View, i *Instance) bool { return v.isOutdated(v.services[i.Spec.ServiceName], i) }

// livesBy returns the definition whose edges apply to an instance.
func livesBy(v *View, i *Instance) *mariposa.Service {
	d, _ := v.definitionOf(v.services[i.Spec.ServiceName], i.Spec.Number)
	return d
}

// dependentOf finds a service whose instances block the end of a service, and their
// number. A service that is stopped alone waits only for others that are stopped alone.
func dependentOf(v *View, name string, alone bool) (string, int) {
	return v.firstDependent(name, alone)
}

// referredBy lists the services that a service refers to.
func referredBy(v *View, name string) []string {
	return slices.Sorted(maps.Keys(v.referencesOf(v.services[name])))
}

// replaces reports whether a rollout replaces instances now.
func replaces(v *View, name string, r *mariposa.Rollout) bool {
	s, p := v.services[name], &planner{view: v}
	return r != nil && !isStopped(r) && !r.Held && !s.status.Paused && len(s.def.Needs) == 0 && p.heldDependencyOf(name) == ""
}

// balanceOf counts what a plan does to a service.
func balanceOf(v *View, name string, now time.Time, p whole) balance {
	s := v.services[name]
	b := balance{ending: s.isEnding(v.goal) || s.def == nil}
	if b.ending || s.isFrozen() {
		return b
	}
	amount := s.def.Update.Rolling
	if r := s.status.Rollout; r != nil && r.Batch.N > 0 {
		amount = r.Batch
	}
	b.goal, b.batch, b.stopFirst = s.status.Scale, amount.Of(s.status.Scale), s.def.Update.StopFirst
	b.away = countAway(v, s, now)
	for id, c := range s.members {
		i := v.instances[id]
		if c.runs() && !stoppedByPeople(v, s, i) {
			b.running++
			if c == outdatedRunning || !since(i).Add(s.def.Update.MinHealthy).After(now) {
				b.settled++
			}
		}
		node := v.nodes[i.Spec.Node]
		if r := s.def.Reschedule; c.holdsSlot() && (c != lost || r.Never || !v.skipsWaiting(s, i.Spec.Node) && node.Since.Add(r.After).After(now)) {
			b.filling++
		}
	}
	there := map[int]bool{} // slots of instances at the target that may be refilled
	if r := s.status.Rollout; r != nil && r.Limit > 0 && another(v.Definition(r.From, s.name), s.def) && !refersToRemoved(v, v.Definition(r.From, s.name)) {
		b.limit = r.Limit
		for id, c := range s.members {
			i := v.instances[id]
			current := !v.isOutdated(s, i) && i.Spec.Live == s.def.Live
			switch {
			case c == failed || c == unhealthy || c == lost || v.isDisplaced(i): // it may be refilled at its version
				there[i.Spec.Slot] = there[i.Spec.Slot] || current || i.Spec.Number == s.status.Number
			case (c == serving || c == updating || c == starting) && s.isFresh(i) && current:
				b.target++
			}
		}
	}
	replaced := func(step Step) bool {
		return s.members[step.Instance] == outdatedRunning && replaces(v, s.name, p.Services[s.name].Rollout)
	}
	for _, step := range p.Steps {
		switch {
		case step.Service != s.name:
		case step.Action == Create:
			b.add++
			if step.Number == s.status.Number && !there[step.Slot] {
				b.beyond++
			}
		case step.Action == Remove && s.members[step.Instance] == outdatedStarting:
			b.filling-- // it is removed first, and its slot is taken immediately
		case (step.Action == Remove || step.Action == Preserve) && s.members[step.Instance].runs() && stoppedByPeople(v, s, v.instances[step.Instance]):
		case (step.Action == Remove || step.Action == Preserve) && s.status.Retired != 0 && isDisplaced(v, v.instances[step.Instance]) && hasSuccessor(v, v.instances[step.Instance], now):
			// its slot stays filled; those of the version that users stopped are not counted above
		case (step.Action == Remove || step.Action == Preserve) && !replaced(step) && handsOverSlot(v, p, v.instances[step.Instance], now):
			// its slot is served by its successor, whatever happened to other slots
		case (step.Action == Remove || step.Action == Preserve) && s.members[step.Instance].runs():
			b.retired++
			if replaced(step) {
				b.outdated++
			} else if isDisplaced(v, v.instances[step.Instance]) && !surplus(s) && !hasSuccessor(v, v.instances[step.Instance], now) {
				b.moved++
			}
		}
	}
	return b
}

// isDisplaced reports whether an instance must leave its node.
func isDisplaced(v *View, i *Instance) bool { return v.isDisplaced(i) }

// hasSuccessor reports whether another instance in the slot of an instance has been up for
// min_healthy.
func hasSuccessor(v *View, i *Instance, now time.Time) bool {
	s := v.services[i.Spec.ServiceName]
	for id, c := range s.members {
		o := v.instances[id]
		if id != i.ID && o.Spec.Slot == i.Spec.Slot && c.runs() && v.isDisplaced(o) {
			return true // one of them is surplus, and neither is a successor
		}
		if id != i.ID && o.Spec.Slot == i.Spec.Slot && c.runs() && !since(o).Add(s.def.Update.MinHealthy).After(now) {
			return true
		}
	}
	return false
}

// handsOverSlot reports whether an instance leaves a node that is drained or unstable, and
// another one that stays there has been up in its slot for min_healthy.
func handsOverSlot(v *View, p whole, i *Instance, now time.Time) bool {
	leaves := func(o *Instance) bool {
		return v.isDisplaced(o) || v.nodes[o.Spec.Node].isUnstable(now) && len(o.Spec.Mounts) == 0
	}
	s := v.services[i.Spec.ServiceName]
	for id, c := range s.members {
		o := v.instances[id]
		removed := slices.ContainsFunc(p.Steps, func(s Step) bool { return s.Instance == id && (s.Action == Remove || s.Action == Preserve) })
		if id != i.ID && o.Spec.Slot == i.Spec.Slot && c.runs() && !removed && leaves(i) && (v.isDisplaced(i) && !v.isDisplaced(o) || !leaves(o)) &&
			!since(o).Add(s.def.Update.MinHealthy).After(now) {
			return true
		}
	}
	return false
}

// countAway counts the instances of a service on unreachable nodes that are not given up, if
// a drain needs the place of surplus instances for successors.
func countAway(v *View, s *service, now time.Time) int {
	f := v.count(s, now)
	waits := slices.ContainsFunc(s.displaced, func(i *Instance) bool { return s.members[i.ID].runs() && f.slotHolders(i.Spec.Slot) == 1 })
	if !waits || s.status.Paused || s.def.Update.StopFirst {
		return 0
	}
	return f.lost - len(f.givenUp)
}

// surplus reports whether a service has instances in more slots than it should have.
func surplus(s *service) bool { return len(s.slots) > s.status.Scale }

// stoppedByPeople reports whether users stopped the version of an instance.
func stoppedByPeople(v *View, s *service, i *Instance) bool {
	return s.status.Retired != 0 && v.versionOf(s, i) == s.status.Retired
}

// refersToRemoved reports whether a definition refers to a service that is no longer
// in the manifest.
func refersToRemoved(v *View, d *mariposa.Service) bool {
	return slices.ContainsFunc(d.Refs, func(r mariposa.Ref) bool {
		on := v.services[r.Service]
		return on == nil || on.status == nil || on.status.Removed
	})
}

// another reports whether instances of the previous definition can be created that are
// not at the target. If not, a rollout with a limit has no choice.
func another(before, target *mariposa.Service) bool {
	return before != nil && len(before.Needs) == 0 && (!sameForm(before.Digest, target.Digest) || before.Live != target.Live)
}

// edgesOf lists the edges of a view, from both ends.
func edgesOf(v *View) map[string][]string {
	out := map[string][]string{}
	for id, by := range v.referrers {
		for s, n := range by {
			out["refers to "+id] = append(out["refers to "+id], fmt.Sprintf("%s: %d", s.name, n))
		}
		slices.Sort(out["refers to "+id])
	}
	for _, on := range slices.Sorted(maps.Keys(v.dependents)) {
		for s := range v.dependents[on] {
			out["leans on "+on] = append(out["leans on "+on], s.name)
		}
		slices.Sort(out["leans on "+on])
	}
	for version, n := range v.inUse {
		out["in use"] = append(out["in use"], fmt.Sprintf("%d: %d", version, n))
	}
	slices.Sort(out["in use"])
	return out
}

// dump formats everything in a view, in a canonical order. It omits the hint for free
// slots, because only its correctness matters, which is checked.
func dump(v *View) string {
	var b strings.Builder
	fmt.Fprintf(&b, "goal %v %s %d\n", v.hasGoal, v.goal, v.number)
	for _, id := range slices.Sorted(maps.Keys(v.nodes)) {
		n := v.nodes[id]
		fmt.Fprintf(&b, "node %s %v %d %v %v\n", id, n.Unknown, n.Since.UnixNano(), n.Draining, n.GivenUp)
	}
	for _, id := range slices.Sorted(maps.Keys(v.byNode)) {
		fmt.Fprintf(&b, "on %s %v\n", id, slices.Sorted(maps.Keys(v.byNode[id])))
	}
	for _, name := range slices.Sorted(maps.Keys(v.services)) {
		s := v.services[name]
		fmt.Fprintf(&b, "service %s status %p def %p\n", name, s.status, s.def) // neither is ever changed
		for c := range classes {
			s.each(c, func(i *Instance) bool {
				b.WriteString("  " + c.String() + " " + i.ID + " slot " + strconv.Itoa(i.Spec.Slot) + " v" + strconv.Itoa(i.Spec.Number) + " on " + i.Spec.Node + "\n")
				if v.instances[i.ID] != i || s.members[i.ID] != c {
					fmt.Fprintf(&b, "  %s is told differently elsewhere\n", i.ID)
				}
				return true
			})
		}
		fmt.Fprintf(&b, "  %d members, slots %v, numbers %v, fresh %v, %d with references, %d astray, holds %v, by start", len(s.members), s.slots, s.numbers, s.fresh, s.binding, s.misbound, s.referenceCounts)
		if s.byStart != nil {
			s.byStart.Scan(func(i *Instance) bool { fmt.Fprintf(&b, " %s", i.ID); return true })
		}
		b.WriteString(", displaced")
		for _, i := range s.displaced {
			fmt.Fprintf(&b, " %s", i.ID)
			if v.instances[i.ID] != i {
				b.WriteString(", which is told differently elsewhere")
			}
		}
		b.WriteByte('\n')
		for slot := 1; slot < s.free; slot++ {
			if s.slots[slot].holders == 0 {
				fmt.Fprintf(&b, "  slot %d is free, below the hint %d\n", slot, s.free)
			}
		}
	}
	for _, id := range slices.Sorted(maps.Keys(v.referrers)) {
		fmt.Fprintf(&b, "%s is referred to by", id)
		for _, by := range slices.SortedFunc(maps.Keys(v.referrers[id]), func(a, b *service) int { return strings.Compare(a.name, b.name) }) {
			fmt.Fprintf(&b, " %s: %d", by.name, v.referrers[id][by])
		}
		b.WriteByte('\n')
	}
	fmt.Fprintf(&b, "%d instances", len(v.instances))
	return b.String()
}
