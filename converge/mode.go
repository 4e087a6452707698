package converge

import (
	"time"

	"mariposa"
)

// Running describes the running instances of a service: the number of their slots and
// their newest version. During a rollout, two instances may share a slot.
type Running struct {
	Scale  int
	Number int
	Mixed  bool // some do not have the current definition
	// Slots are the slots of running or starting instances, by version. Lost is the
	// number of unreachable instances.
	Slots map[int][]int
	Lost  map[int]int
}

// At returns how many instances are at a version, and how many other slots have reachable
// instances.
func (r Running) At(number int) (at, others int) {
	held := map[int]bool{}
	for n, slots := range r.Slots {
		for _, slot := range slots {
			if n != number {
				held[slot] = true
			}
		}
	}
	return len(r.Slots[number]) + r.Lost[number], len(held)
}

// Running returns what runs on reachable nodes.
func (v *View) Running() map[string]Running {
	out := map[string]Running{}
	for name, s := range v.services {
		r, slots := Running{}, map[int]bool{}
		for _, c := range upClasses {
			s.each(c, func(i *Instance) bool {
				slots[i.Spec.Slot] = true
				r.Number = max(r.Number, v.versionOf(s, i))
				r.Mixed = r.Mixed || s.def != nil && differs(s, i)
				return true
			})
		}
		r.Scale = len(slots)
		r.Slots, r.Lost = map[int][]int{}, map[int]int{}
		for _, c := range victimClasses {
			s.each(c, func(i *Instance) bool {
				n := v.versionOf(s, i)
				if c == lost {
					r.Lost[n]++
				} else {
					r.Slots[n] = append(r.Slots[n], i.Spec.Slot)
				}
				return true
			})
		}
		out[name] = r
	}
	return out
}

// versionOf returns the version of an instance: the current one if its definition has not
// changed since the version that it was created from.
func (v *View) versionOf(s *service, i *Instance) int {
	if s.status != nil && s.def != nil && !v.isOutdated(s, i) {
		return max(i.number, s.status.Number)
	}
	return i.number
}

// stopVersion stops the instances of one version. A service without other reachable
// instances is stopped and keeps its scale. Otherwise it keeps the other instances: their
// number becomes its scale, and a rollout in progress is held.
func stopVersion(st *mariposa.ProjectStatus, number int, c *Change) {
	for name := range st.Services {
		if !c.includes(name) {
			continue
		}
		at, others := c.Running[name].At(number)
		switch {
		case at == 0:
		case others == 0:
			editService(st, name, func(ss *mariposa.ServiceStatus) { ss.Stopped = true })
		default:
			rescale(st, name, c.Now, func(scale int) int { return min(scale, others) })
			editService(st, name, func(ss *mariposa.ServiceStatus) {
				ss.Retired = number
				if ss.Rollout != nil && !ss.Rollout.HasFailed() {
					r := *ss.Rollout
					r.Held = true
					ss.Rollout = &r
				}
			})
		}
	}
	if st.Goal == mariposa.GoalStarted && isAllStopped(st) {
		st.Goal = mariposa.GoalStopped
	}
}

// isAllStopped reports whether a project has services and users stopped all of them.
func isAllStopped(st *mariposa.ProjectStatus) bool {
	n := 0
	for _, ss := range st.Services {
		if ss.Removed {
			continue
		}
		if n++; !ss.Stopped {
			return false
		}
	}
	return n > 0
}

// setMode freezes, thaws, pauses or resumes a scope. Time in which nothing could be done
// does not count against a rollout.
func setMode(st *mariposa.ProjectStatus, mode mariposa.Mode, c *Change) {
	if len(c.Scope) == 0 {
		switch mode {
		case mariposa.ModeFreeze, mariposa.ModeThaw:
			st.Frozen = mode == mariposa.ModeFreeze
		case mariposa.ModePause, mariposa.ModeResume:
			st.Paused = mode == mariposa.ModePause
		}
	}
	for name, ss := range st.Services {
		if !c.includes(name) {
			continue
		}
		n := *ss
		switch {
		case mode == mariposa.ModeFreeze && n.Frozen == nil:
			n.Frozen = &mariposa.Freeze{Since: c.Now, By: c.Author, Values: c.Values}
		case mode == mariposa.ModeThaw && n.Frozen != nil:
			n.Frozen, n.Rollout = nil, resetProgress(n.Rollout, c.Now)
		case mode == mariposa.ModePause:
			n.Paused = true
		case mode == mariposa.ModeResume && n.Paused:
			n.Paused, n.Rollout = false, resetProgress(n.Rollout, c.Now)
		}
		st.Services[name] = &n
	}
	if mode == mariposa.ModeThaw && !anyService(st, func(ss *mariposa.ServiceStatus) bool { return ss.Frozen != nil }) {
		st.Frozen = false
	}
	if mode == mariposa.ModeResume && !anyService(st, func(ss *mariposa.ServiceStatus) bool { return ss.Paused }) {
		st.Paused = false
	}
}

// anyService reports whether a condition is true for a service that is not being removed.
func anyService(st *mariposa.ProjectStatus, is func(*mariposa.ServiceStatus) bool) bool {
	for _, ss := range st.Services {
		if !ss.Removed && is(ss) {
			return true
		}
	}
	return false
}

func resetProgress(r *mariposa.Rollout, now time.Time) *mariposa.Rollout {
	if r == nil {
		return nil
	}
	n := *r
	n.Progress = now
	return &n
}

// skipBackoffs ends all current back-offs. Services that fail again wait even longer.
// Rollouts that stopped by themselves are retried.
func skipBackoffs(st *mariposa.ProjectStatus, c *Change) {
	for name := range st.Services {
		editService(st, name, func(ss *mariposa.ServiceStatus) {
			if !c.includes(name) {
				return
			}
			retryRollout(ss, false, c.Now)
			if ss.Backoff != nil && ss.Backoff.Until.After(c.Now) {
				b := *ss.Backoff
				b.Until = c.Now
				ss.Backoff = &b
			}
		})
	}
}

// giveUpLost makes services replace their instances on nodes that are lost now without
// further waiting.
func giveUpLost(st *mariposa.ProjectStatus, c *Change) {
	for name := range st.Services {
		editService(st, name, func(ss *mariposa.ServiceStatus) {
			if c.includes(name) {
				ss.RescheduleNow = c.Now
			}
		})
	}
}

// scalesInForce returns the current scales.
func scalesInForce(st *mariposa.ProjectStatus) map[string]int {
	out := make(map[string]int, len(st.Services))
	for name, ss := range st.Services {
		if !ss.Removed {
			out[name] = ss.Scale
		}
	}
	return out
}

// RollBack returns the goal after the rollback of a version: the last version that was
// rolled out completely, with its scales. A project without such a version is stopped. It
// returns false if there is nothing to roll back to.
func RollBack(old *mariposa.ProjectStatus, c Change) (*mariposa.ProjectStatus, bool) {
	if old.Completed == old.Number {
		return old, false
	}
	if old.Completed == 0 {
		c.Scope = nil
		st := Apply(old, mariposa.Patch{Goal: mariposa.GoalStopped}, c)
		for name := range st.Services {
			editService(st, name, func(ss *mariposa.ServiceStatus) {
				if ss.Backoff = nil; ss.Rollout != nil { // a start before everything is removed updates the rest
					ss.Rollout = &mariposa.Rollout{Number: ss.Number, From: ss.Rollout.From, Progress: c.Now}
				}
			})
		}
		st.RolledBack = old.Number
		return st, true
	}
	st := Apply(old, mariposa.Patch{Number: old.Completed, Rollback: true, KeepScale: true}, c)
	for name, scale := range old.Fallback {
		editService(st, name, func(ss *mariposa.ServiceStatus) { ss.Scale = scale })
	}
	st.Fallback, st.RolledBack = nil, old.Number
	return st, true
}
