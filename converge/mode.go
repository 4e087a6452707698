package converge

import (
	"time"

	"mariposa"
)

// Running is what runs of a service: how many instances, and the newest version
// among them.
type Running struct {
	Scale  int
	Number int
	Mixed  bool // some are not of the definition in force
	// Slots are those of the instances that run or are on their way up, by version; Lost
	// counts the instances that are out of reach.
	Slots map[int][]int
	Lost  map[int]int
}

// At returns how many instances are at a version, and how many slots others hold that
// are within reach.
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
		r := Running{}
		for _, c := range upClasses {
			r.Scale += s.count(c)
			s.each(c, func(i *Instance) bool {
				r.Number = max(r.Number, v.versionOf(s, i))
				r.Mixed = r.Mixed || s.def != nil && differs(s, i)
				return !c.upToDate() || filterOf(s.status) != nil // with a filter, those that it leaves out count as up to date
			})
		}
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

// versionOf returns the version that an instance is at: the one in force if nothing
// has changed since the one that it was made from.
func (v *View) versionOf(s *service, i *Instance) int {
	if s.status != nil && s.def != nil && !v.isOutdated(s, i) {
		return max(i.number, s.status.Number)
	}
	return i.number
}

// stopVersion stops the instances of one version. A service that has no others within
// reach is stopped and keeps its scale. One that has others keeps those: their number is its
// scale from now on, and a rollout that is under way is held.
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

// isAllStopped reports whether a project has services and people stopped each of them.
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

// setMode freezes, thaws, pauses or resumes a scope. Time in which nothing
// could be done does not count against a rollout.
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
			n.Frozen = &mariposa.Freeze{Since: c.Now, By: c.Author}
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

// anyService reports whether something is so for a service that is not being removed.
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

// skipBackoffs ends all back-offs once: what fails again waits even longer.
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

// acceptRunning makes what runs the goal: the same number of instances, of the
// newest version among them. Removed services that still run stay. It does not
// complete a version that was not rolled out to its end.
func acceptRunning(st *mariposa.ProjectStatus, c *Change) {
	total := 0
	for name, ss := range st.Services {
		if !c.includes(name) {
			continue
		}
		is := c.Running[name]
		total += is.Scale
		n := *ss
		n.Accepted = ss.Accepted || is.Mixed || is.Scale > 0 && is.Number != ss.Number || is.Scale == 0 && ss.Scale > 0
		n.Scale, n.Stopped, n.Rollout, n.Backoff = is.Scale, false, nil, nil
		if is.Scale > 0 {
			n.Number, n.Removed = is.Number, false
		}
		st.Services[name] = &n
	}
	if total == 0 || st.Goal == mariposa.GoalStarted {
		return
	}
	st.Goal = mariposa.GoalStarted
	for name := range st.Services {
		editService(st, name, func(ss *mariposa.ServiceStatus) { ss.Stopped = !c.includes(name) })
	}
}

// scalesInForce returns the scales in force.
func scalesInForce(st *mariposa.ProjectStatus) map[string]int {
	out := make(map[string]int, len(st.Services))
	for name, ss := range st.Services {
		if !ss.Removed {
			out[name] = ss.Scale
		}
	}
	return out
}

// RollBack returns the goal after a version is rolled back: the version that
// was last fully in force, with the scales it had then. A project that never
// had one is stopped. It reports false if there is nothing to go back to.
func RollBack(old *mariposa.ProjectStatus, c Change) (*mariposa.ProjectStatus, bool) {
	if old.Completed == old.Number {
		return old, false
	}
	if old.Completed == 0 {
		c.Scope = nil
		st := Apply(old, mariposa.Patch{Goal: mariposa.GoalStopped}, c)
		for name := range st.Services {
			editService(st, name, func(ss *mariposa.ServiceStatus) {
				if ss.Backoff = nil; ss.Rollout != nil { // a start before everything is gone brings the rest up to date
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
