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
}

// Running returns what runs on reachable nodes.
func (v *View) Running() map[string]Running {
	out := map[string]Running{}
	for name, s := range v.services {
		r := Running{}
		for _, c := range upClasses {
			r.Scale += s.count(c)
			s.each(c, func(i *Instance) bool {
				number := i.number
				if c.upToDate() && s.status != nil { // unchanged since, whatever version it was made from
					number = max(number, s.status.Number)
				}
				r.Number = max(r.Number, number)
				r.Mixed = r.Mixed || s.def != nil && differs(s, i)
				return !c.upToDate() || filterOf(s.status) != nil // with a filter, those that it leaves out count as up to date
			})
		}
		out[name] = r
	}
	return out
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
