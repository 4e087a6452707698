package converge

import (
	"maps"
	"slices"
	"time"

	"mariposa"
)

// Change is what Apply needs to know beside the patch.
type Change struct {
	Now      time.Time
	IDs      map[string]string // service name -> id
	Version  string            // of the version that the patch brings into force
	Versions func(number int) Definitions
}

// Apply returns the goal after a task's patch. The old status is not touched.
func Apply(old *mariposa.ProjectStatus, p mariposa.Patch, c Change) *mariposa.ProjectStatus {
	st := &mariposa.ProjectStatus{Goal: mariposa.GoalStarted, Status: mariposa.StatusConverging}
	if old != nil {
		*st = *old
	}
	st.Services = maps.Clone(st.Services)
	if st.Services == nil {
		st.Services = map[string]*mariposa.ServiceStatus{}
	}
	if p.Goal != "" {
		restart(st, p.Goal, c.Now)
	}
	if p.Number != 0 {
		define(st, p, c)
	}
	for _, name := range slices.Sorted(maps.Keys(p.Scale)) {
		rescale(st, name, func(int) int { return p.Scale[name] })
	}
	for _, name := range slices.Sorted(maps.Keys(p.ScaleBy)) {
		rescale(st, name, func(n int) int { return n + p.ScaleBy[name] })
	}
	for _, name := range p.Reprovision {
		if ss := st.Services[name]; ss != nil && !ss.Removed {
			n := *ss
			n.Rollout = &mariposa.Rollout{Number: ss.Number, From: proven(ss), Batch: p.Rolling, Before: c.Now, Progress: c.Now}
			n.Backoff = nil
			st.Services[name] = &n
		}
	}
	return st
}

// restart sets the goal of the whole. A start gives every rollout its time anew,
// those that stopped by themselves included.
func restart(st *mariposa.ProjectStatus, goal mariposa.ProjectGoal, now time.Time) {
	if goal == mariposa.GoalStarted {
		for name, ss := range st.Services {
			if r := ss.Rollout; r == nil || (r.Stopped == "" && st.Goal == goal) {
				continue
			}
			n, r := *ss, *ss.Rollout
			r.Stopped, r.Failures, r.Progress = "", 0, now
			n.Rollout, n.Backoff = &r, nil
			st.Services[name] = &n
		}
	}
	st.Goal = goal
}

func rescale(st *mariposa.ProjectStatus, name string, f func(int) int) {
	if ss := st.Services[name]; ss != nil {
		n := *ss
		n.Scale = max(0, f(ss.Scale))
		st.Services[name] = &n
	}
}

// define brings a version into force: new services appear, missing ones are
// marked to go, and those whose definition differs get a rollout.
func define(st *mariposa.ProjectStatus, p mariposa.Patch, c Change) {
	defs := c.Versions(p.Number)
	st.Number, st.Version = p.Number, c.Version
	for name, ss := range st.Services {
		if defs[name] == nil && !ss.Removed {
			n := *ss
			n.Removed, n.Rollout, n.Backoff = true, nil, nil
			st.Services[name] = &n
		}
	}
	for name, def := range defs {
		ss := st.Services[name]
		if ss == nil {
			ss = &mariposa.ServiceStatus{ID: c.IDs[name], Scale: scaleOf(def, 1), Number: p.Number, Status: mariposa.StatusConverging}
			st.Services[name] = ss
			continue
		}
		st.Services[name] = redefine(ss, c.Versions(ss.Number)[name], def, p, c.Now)
	}
}

func redefine(ss *mariposa.ServiceStatus, was, def *mariposa.Service, p mariposa.Patch, now time.Time) *mariposa.ServiceStatus {
	n := *ss
	n.Number = p.Number
	if was == nil || scaleOf(was, -1) != scaleOf(def, -1) {
		n.Scale = scaleOf(def, ss.Scale)
	}
	same := was != nil && sameForm(was.Digest, def.Digest) && was.Live == def.Live && !ss.Removed
	switch {
	case !same:
		n.Removed, n.Backoff = false, nil
		n.Rollout = &mariposa.Rollout{Number: p.Number, From: proven(ss), Batch: p.Rolling, Progress: now}
	case was.Digest != def.Digest && def.Update.OnMetadata == mariposa.OnMetadataReprovision:
		n.Backoff = nil
		n.Rollout = &mariposa.Rollout{Number: p.Number, From: proven(ss), Batch: p.Rolling, Before: outdatedBefore(ss), Progress: now, Metadata: true}
	case ss.Rollout != nil: // the same definition under a new number: the rollout goes on
		r := *ss.Rollout
		r.Number = p.Number
		if p.Rolling.N > 0 {
			r.Batch = p.Rolling
		}
		if len(was.Needs) > 0 && len(def.Needs) == 0 {
			r.Progress = now // it could not begin before
		}
		n.Rollout = &r
	}
	return &n
}

// proven is the version to fall back to: the one in force, unless it was still
// being rolled out itself.
func proven(ss *mariposa.ServiceStatus) int {
	if ss.Rollout != nil && ss.Rollout.From != 0 {
		return ss.Rollout.From
	}
	return ss.Number
}

func scaleOf(d *mariposa.Service, otherwise int) int {
	if d.Scale == nil {
		return otherwise
	}
	return *d.Scale
}
