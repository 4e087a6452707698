package converge

import (
	"slices"

	"mariposa"
)

// acceptRunning makes the actual state the goal: as many instances as there are slots in
// use, at the newest version among them. Removed services that still run stay. A stopped
// service of which nothing runs stays stopped and keeps its scale. Accepting does not
// complete a version that was not completely rolled out.
func acceptRunning(st *mariposa.ProjectStatus, c *Change) {
	wasStarted, total := st.Goal == mariposa.GoalStarted, 0
	for name, ss := range st.Services {
		if !c.includes(name) {
			continue
		}
		is := c.Running[name]
		total += is.Scale
		n := *ss
		n.Rollout, n.Backoff = nil, nil
		if stopped := ss.Stopped || !wasStarted; is.Scale > 0 || !stopped {
			n.Accepted = ss.Accepted || is.Mixed || is.Scale > 0 && is.Number != ss.Number || is.Scale == 0 && ss.Scale > 0
			n.Scale, n.Stopped = is.Scale, false
		}
		if is.Scale > 0 {
			n.Number, n.Removed = is.Number, false
		}
		st.Services[name] = &n
	}
	if total == 0 {
		return
	}
	if !wasStarted {
		st.Goal = mariposa.GoalStarted
		for name := range st.Services {
			editService(st, name, func(ss *mariposa.ServiceStatus) {
				ss.Stopped = !c.includes(name) || c.Running[name].Scale == 0
			})
		}
	}
	dropUnusedVersion(st, c)
}

// dropUnusedVersion makes an older version current if nothing of the current one runs:
// the newest one that describes everything that was accepted.
func dropUnusedVersion(st *mariposa.ProjectStatus, c *Change) {
	numbers := []int{st.Completed}
	for _, ss := range st.Services {
		numbers = append(numbers, ss.Number)
	}
	slices.Sort(numbers)
	for _, n := range slices.Backward(slices.Compact(numbers)) {
		if n == 0 || n >= st.Number {
			continue
		}
		defs := c.Versions(n)
		if !describes(defs, st, c) {
			continue
		}
		st.Number, st.Version = n, c.Hash(n)
		for name, ss := range st.Services {
			s := *ss
			if s.Number = n; defs[name] == nil {
				s.Removed, s.Stopped = true, false
			}
			st.Services[name] = &s
		}
		return
	}
}

// describes reports whether the definitions of a version are those of everything that
// runs, and nothing is still to be rolled out. A service without instances may have any
// definition, or none.
func describes(defs Definitions, st *mariposa.ProjectStatus, c *Change) bool {
	for name, ss := range st.Services {
		was, def := c.Versions(ss.Number)[name], defs[name]
		switch {
		case ss.Rollout != nil || ss.Removed && def != nil:
			return false
		case ss.Removed || c.includes(name) && c.Running[name].Scale == 0:
		case was == nil || def == nil || was.Digest != def.Digest || was.Live != def.Live:
			return false
		}
	}
	for name := range defs {
		if st.Services[name] == nil {
			return false
		}
	}
	return true
}
