package converge

import (
	"maps"
	"slices"
	"time"

	"mariposa"
)

// Change contains what Apply needs in addition to the patch.
type Change struct {
	Now         time.Time
	IDs         map[string]string // service name -> id
	Version     string            // hash of the version that the patch makes current
	Versions    func(number int) Definitions
	Scope       []string                // services that the patch applies to; empty: all
	LiftsFreeze bool                    // it ends the freeze of its scope
	Author      string                  // who requested it
	Values      int                     // the version whose live values are in use, for a patch that freezes
	Running     map[string]Running      // what runs, for a patch that accepts the actual state
	Hash        func(number int) string // hash of a version, for such a patch
	OnlyValues  bool                    // the version of the patch differs from the current one in metadata values only
}

// includes reports whether the patch applies to a service.
func (c *Change) includes(name string) bool {
	return len(c.Scope) == 0 || slices.Contains(c.Scope, name)
}

// Apply returns the goal after applying a task's patch. It does not change the old
// status.
func Apply(old *mariposa.ProjectStatus, p mariposa.Patch, c Change) *mariposa.ProjectStatus {
	st := &mariposa.ProjectStatus{Goal: mariposa.GoalStarted, Status: mariposa.StatusConverging}
	if old != nil {
		*st = *old
	}
	st.Services, st.Fallback = maps.Clone(st.Services), maps.Clone(st.Fallback)
	if st.Services == nil {
		st.Services = map[string]*mariposa.ServiceStatus{}
	}
	if c.LiftsFreeze {
		setMode(st, mariposa.ModeThaw, &c)
	}
	if p.Goal != "" {
		st.RollbackReason = nil // the new goal has its own reason
		setProjectGoal(st, p.Goal, &c)
	}
	if p.Number >= max(1, st.Number) || p.Rollback { // an older version that had to wait is already part of the newer one
		applyVersion(st, p, &c)
	}
	for _, name := range slices.Sorted(maps.Keys(p.Scale)) {
		rescale(st, name, c.Now, func(int) int { return p.Scale[name] })
	}
	for _, name := range slices.Sorted(maps.Keys(p.ScaleBy)) {
		rescale(st, name, c.Now, func(n int) int { return n + p.ScaleBy[name] })
	}
	if p.StopVersion > 0 {
		stopVersion(st, p.StopVersion, &c)
	}
	for _, name := range p.Reprovision {
		editService(st, name, func(ss *mariposa.ServiceStatus) { reprovision(ss, p, c.Now) })
	}
	if p.Mode != "" {
		setMode(st, p.Mode, &c)
	}
	if p.Retry {
		skipBackoffs(st, &c)
	}
	if p.Reschedule {
		giveUpLost(st, &c)
	}
	if p.Accept {
		acceptRunning(st, &c)
	}
	return st
}

// editService changes a copy of one service's goal. A removed service is not changed.
func editService(st *mariposa.ProjectStatus, name string, f func(*mariposa.ServiceStatus)) {
	if ss := st.Services[name]; ss != nil && !ss.Removed {
		n := *ss
		f(&n)
		st.Services[name] = &n
	}
}

// setProjectGoal sets the goal of the whole project or of the named services. A start
// resets the progress time of every rollout, including those that stopped by themselves.
func setProjectGoal(st *mariposa.ProjectStatus, goal mariposa.ProjectGoal, c *Change) {
	was := st.Goal
	alone := len(c.Scope) > 0 && goal != mariposa.GoalDeleted
	if !alone || goal == mariposa.GoalStarted {
		st.Goal = goal
	}
	for name := range st.Services {
		editService(st, name, func(ss *mariposa.ServiceStatus) {
			before := ss.Stopped || was != mariposa.GoalStarted
			switch {
			case !c.includes(name):
				ss.Stopped = before && st.Goal == mariposa.GoalStarted // only the named services start
			case goal == mariposa.GoalStarted:
				ss.Stopped = false
				if retryRollout(ss, before, c.Now); before {
					watchStart(ss, c.Now)
				}
			case alone:
				ss.Stopped = true
			}
		})
	}
}

// retryRollout restarts a rollout that stopped by itself, or that made no progress
// because everything was stopped.
func retryRollout(ss *mariposa.ServiceStatus, idle bool, now time.Time) {
	if ss.Rollout == nil || !ss.Rollout.HasFailed() && !idle {
		return
	}
	r := *ss.Rollout
	r.FailureReason, r.Failures, r.Progress = nil, 0, now
	ss.Rollout, ss.Backoff = &r, nil
}

// watchStart gives a service that starts from nothing a rollout, so that the
// start is complete once its instances have proved themselves, and does not
// wait for earlier failures. One that has a rollout keeps it.
func watchStart(ss *mariposa.ServiceStatus, now time.Time) {
	if ss.Rollout == nil {
		ss.Rollout, ss.Backoff = &mariposa.Rollout{Number: ss.Number, From: ss.Number, Progress: now, First: true}, nil
	}
}

// RetriedServices returns, sorted, the services whose rollouts stopped by themselves and
// are retried when a version becomes current, and those whose rollouts wait for others
// and can then continue. Services that a user has stopped, frozen, paused or held are not
// included: they continue on request.
func RetriedServices(goal *mariposa.ProjectStatus) []string {
	if goal == nil || goal.Goal != mariposa.GoalStarted {
		return nil
	}
	var stopped, waiting []string
	for name, ss := range goal.Services {
		switch r := ss.Rollout; {
		case r == nil || ss.Removed || ss.Stopped || ss.Frozen != nil:
		case r.HasFailed():
			stopped = append(stopped, name)
		case r.Waiting && !r.Held && !ss.Paused:
			waiting = append(waiting, name)
		}
	}
	if len(stopped) == 0 {
		return nil
	}
	return slices.Sorted(slices.Values(append(stopped, waiting...)))
}

// rescale changes a scale. A scale set by a user survives a rollback. A service
// that had no instances starts like a new one.
func rescale(st *mariposa.ProjectStatus, name string, now time.Time, f func(int) int) {
	ss := st.Services[name]
	if ss == nil {
		return
	}
	n := *ss
	n.Scale, n.Retired = max(0, f(ss.Scale)), 0
	if ss.Scale == 0 && n.Scale > 0 && !ss.Removed {
		retryRollout(&n, false, now)
		watchStart(&n, now)
	}
	st.Services[name] = &n
	if _, kept := st.Fallback[name]; kept {
		st.Fallback[name] = n.Scale
	}
}

// applyVersion makes a version current: new services are added, missing ones are marked
// as removed, and those whose definition differs get a rollout.
func applyVersion(st *mariposa.ProjectStatus, p mariposa.Patch, c *Change) {
	if st.Number != 0 && st.Number == st.Completed && st.Number != p.Number {
		st.Fallback = scalesInForce(st)
	}
	was := st.Number
	st.Number, st.Version = p.Number, c.Version
	defs := c.Versions(p.Number)
	// A person accepted an older version of such a service. New values are no reason to
	// roll out the rest of the manifest.
	stays := func(ss *mariposa.ServiceStatus) bool {
		return c.OnlyValues && ss != nil && ss.Accepted && !ss.Removed && ss.Number != was
	}
	for name, ss := range st.Services {
		if defs[name] == nil && !ss.Removed && !stays(ss) {
			n := *ss
			n.Removed, n.Stopped, n.Rollout, n.Backoff = true, false, nil, nil
			st.Services[name] = &n
		}
	}
	for name, def := range defs {
		if ss := st.Services[name]; stays(ss) {
			continue
		} else if ss != nil {
			st.Services[name] = redefine(ss, c.Versions(ss.Number)[name], def, p, c.Now)
			continue
		}
		ss := newServiceStatus(st, c.IDs[name], def, p, c.Now)
		ss.Stopped = p.Goal == mariposa.GoalStarted && !c.includes(name) // only the named services start
		st.Services[name] = ss
	}
}

// newServiceStatus returns the goal of a new service. Its rollout lasts until the
// instances have been healthy for long enough.
func newServiceStatus(st *mariposa.ProjectStatus, id string, def *mariposa.Service, p mariposa.Patch, now time.Time) *mariposa.ServiceStatus {
	ss := &mariposa.ServiceStatus{ID: id, Scale: scaleOf(def, 1), Number: p.Number, Paused: st.Paused, Status: mariposa.StatusConverging}
	if st.Frozen {
		ss.Frozen = &mariposa.Freeze{Since: now}
	}
	ss.Rollout = &mariposa.Rollout{Number: p.Number, Batch: p.Rolling, Progress: now, IsRollback: p.Rollback, First: true}
	return ss
}

func redefine(ss *mariposa.ServiceStatus, was, def *mariposa.Service, p mariposa.Patch, now time.Time) *mariposa.ServiceStatus {
	n := *ss
	n.Number, n.Retired = p.Number, 0
	if (was == nil || scaleOf(was, -1) != scaleOf(def, -1)) && !p.KeepScale {
		n.Scale = scaleOf(def, ss.Scale)
	}
	same := was != nil && sameForm(was.Digest, def.Digest) && was.Live == def.Live && !ss.Removed
	switch {
	case !same:
		n.Removed, n.Backoff, n.Accepted = false, nil, false
		n.Rollout = &mariposa.Rollout{Number: p.Number, From: provenVersion(ss), Batch: p.Rolling, Limit: limitOf(ss, def, n.Scale, p), IsRollback: p.Rollback, Progress: now}
	case was.Digest != def.Digest && def.Update.OnMetadata == mariposa.OnMetadataReprovision:
		n.Backoff, n.Accepted = nil, false
		n.Rollout = &mariposa.Rollout{
			Number: p.Number, From: provenVersion(ss), Batch: p.Rolling, Limit: limitOf(ss, def, n.Scale, p), IsRollback: p.Rollback,
			Before: outdatedBefore(ss), Progress: now, Metadata: true,
		}
	case ss.Rollout != nil: // same definition under a new number: the rollout continues or is retried
		retryRollout(&n, false, now)
		r := *n.Rollout
		r.Number, r.IsRollback, r.Progress, r.Failures = p.Number, r.IsRollback || p.Rollback, now, 0 // it is judged by the results of this version
		if p.Rolling.N > 0 {
			r.Batch = p.Rolling
		}
		if r.Filter == nil && (was.Update.Canary != def.Update.Canary || p.Canary.N > 0) { // the canary changed
			r.Limit = limitOf(ss, def, n.Scale, p)
			r.Held = r.Held && r.Limit > 0
		}
		n.Rollout = &r
	case ss.Scale == 0 && n.Scale > 0:
		watchStart(&n, now)
	}
	return &n
}

// limitOf returns how many instances a rollout brings to the target before it is held; 0:
// it continues to the end. A rollback is not held. Nor is the rollout of a service
// without instances, because there is nothing to compare a canary with.
func limitOf(ss *mariposa.ServiceStatus, def *mariposa.Service, scale int, p mariposa.Patch) int {
	n := p.Canary.Of(scale)
	if n == 0 && !p.SkipCanary {
		n = def.Update.Canary.Of(scale)
	}
	if n >= scale || p.Rollback || ss.Scale == 0 {
		return 0
	}
	return n
}

// reprovision replaces all instances of a service. If a rollout of the whole service is
// held, it continues the rollout instead, by the given number of instances or to the end,
// unless the patch requests all instances.
func reprovision(ss *mariposa.ServiceStatus, p mariposa.Patch, now time.Time) {
	held := ss.Rollout != nil && ss.Rollout.Held && ss.Rollout.Filter == nil
	ss.Backoff, ss.Retired = nil, 0
	if held && p.Filter == nil && !p.All {
		r := *ss.Rollout
		r.Held, r.Limit, r.Progress, r.Failures = false, 0, now, 0
		if p.Canary.N > 0 {
			r.Limit = r.MostServing + p.Canary.Of(ss.Scale)
		}
		if p.Rolling.N > 0 {
			r.Batch = p.Rolling
		}
		ss.Rollout = &r
		return
	}
	ss.Accepted = ss.Accepted && p.Filter != nil
	ss.Rollout = &mariposa.Rollout{
		Number: ss.Number, From: provenVersion(ss), Batch: p.Rolling, Before: now, Filter: p.Filter, Limit: p.Canary.Of(ss.Scale),
		HoldsAgain: p.Filter != nil && (held || ss.Rollout != nil && ss.Rollout.HoldsAgain), Progress: now,
	}
}

// provenVersion returns the version to fall back to: the current one, unless its own
// rollout is still in progress.
func provenVersion(ss *mariposa.ServiceStatus) int {
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
