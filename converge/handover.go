package converge

import (
	"cmp"
	"slices"
	"time"

	"mariposa"
)

// Before an instance is removed, all instances that refer to it are removed or replaced
// by instances that refer to another one. The service of the instance decides (yield,
// askFollowers) and stores the decision in ServiceStatus.Yields. The services that refer
// to it follow (bindReferences in bind.go). No other service is involved:
//
//	binding to an instance that is             kept   used for new instances   replaced by another binding
//	attached: it runs, or its node may return  yes    yes                      never
//	yielding: it will be removed               no     no                       once there is an instance that does not yield
//	detached: it is gone, or given up          no     no                       once the other service is at rest and its next
//	                                                                           instance is healthy; immediately if no instance
//	                                                                           of the referring service is live
//
// attachmentOf returns these states. Services only wait for an older instance or for a
// service that their definition depends on, so no two services ever wait for each other.

// attachment is the state of a binding.
type attachment uint8

const (
	detached attachment = iota
	attached
	yielding
)

// attachmentOf returns the state of a binding to an instance of another service. It
// schedules a plan for the time when an unreachable node is given up.
func (t *turn) attachmentOf(d *facts, b mariposa.Binding) attachment {
	i := t.view.instances[b.Instance]
	if d == nil || i == nil || i.Spec.ServiceName != d.name {
		return detached
	}
	switch c := d.members[i.ID]; {
	case c == lost && d.def != nil:
		until, never := t.view.rescheduleTime(d.service, i)
		if !never && until.After(t.now) {
			t.wakeAt(until)
		}
		if d.slotHolders(i.Spec.Slot) > 0 && d.isGivenUp(i) {
			t.wakeAtNextGivenUp(d, i.Spec.Slot)
			return detached // its slot was filled elsewhere
		}
	case !c.runs() && !c.starts() && c != lost && c != unhealthy:
		return detached
	}
	if d.isYielding(i.ID) || d.members[i.ID] == unhealthy { // it may recover, but nothing new should use it
		return yielding
	}
	return attached
}

// findCandidate finds the next instance of another service to bind to: the running one in
// the lowest slot, during a rollout only one that is healthy for long enough. If only
// outdated ones run, it is the newest. Nil: there is none.
func (v *View) findCandidate(d *facts) *Instance {
	best, rank := (*Instance)(nil), 0
	for _, c := range upClasses {
		d.each(c, func(i *Instance) bool {
			if d.isYielding(i.ID) {
				return true
			}
			r := 1 // current, or there is no rollout
			switch {
			case v.isDisplaced(i):
				r = 4
			case d.isRolling && c == outdatedRunning:
				r = 3
			case d.isRolling && slices.Contains(d.young, i):
				r = 2
			}
			if best == nil || r < rank || r == rank && isBefore(r, i, best) {
				best, rank = i, r
			}
			return true
		})
	}
	return best
}

// isBefore reports whether a comes before b among candidates of the same rank.
func isBefore(rank int, a, b *Instance) bool {
	if rank == 3 {
		return victimBefore(b, a) // the newest
	}
	return cmp.Or(cmp.Compare(a.Spec.Slot, b.Spec.Slot), cmp.Compare(a.ID, b.ID)) < 0
}

// isProven reports whether an instance has been up long enough to be followed: for
// min_healthy and, if its service keeps failing, for the delay of the next attempt, so
// that followers do not move from one attempt to the next.
func (t *turn) isProven(d *facts, i *Instance, lost string) bool {
	if d.isRolling { // the rollout itself waits for this
		return true
	}
	proof := d.def.Update.MinHealthy
	if b := d.status.Backoff; b != nil {
		proof = max(proof, backoffDelay(d.status.ID, b.Failures+1))
	}
	at := since(i).Add(proof)
	if !at.After(t.now) {
		return true
	}
	t.following = true
	t.wait(at, func() *mariposa.Reason {
		return &mariposa.Reason{Code: mariposa.ReasonProves, Subject: i.Spec.Name, Other: lost, For: proof.Round(100 * time.Millisecond)}
	})
	return false
}

// wakeAtNextGivenUp schedules a plan for when another instance in a slot of another
// service is given up.
func (t *turn) wakeAtNextGivenUp(d *facts, slot int) {
	d.each(lost, func(i *Instance) bool {
		if until, never := t.view.rescheduleTime(d.service, i); i.Spec.Slot == slot && !never && until.After(t.now) {
			t.wakeAt(until)
		}
		return true
	})
}

// mayGo reports whether an instance may be removed now. An instance that others refer to
// yields instead: it stays until they follow another one, and its status says so. An
// instance that others are only bound to yields for one plan, so that they create nothing
// more with it. If no instance is desired, there is nothing to follow.
func (t *turn) mayGo(i *Instance) bool {
	if t.goal == 0 || t.s.members[i.ID] == failed {
		return true
	}
	by := t.findReferrer(i)
	if by == "" && !t.s.isYielding(i.ID) {
		by = t.findBoundService(i)
	}
	if by == "" {
		return true
	}
	t.yield(i, by)
	return false
}

// yield records that an instance is removed once nothing refers to it.
func (t *turn) yield(i *Instance, by string) {
	if slices.Contains(t.yielding, i.ID) {
		return
	}
	t.yielding = append(t.yielding, i.ID)
	if t.keptFor == nil && t.view.isDisplaced(i) {
		t.keptFor = t.whyStays(i, by)
	}
	t.waitForOne(time.Time{}, func() *mariposa.Reason { return t.whyStays(i, by) })
}

// whyStays returns which service blocks the removal of an instance, and why that service
// does not follow another one.
func (t *turn) whyStays(i *Instance, by string) *mariposa.Reason {
	r := &mariposa.Reason{Code: mariposa.ReasonReferrers, Subject: i.Spec.Name, Other: by}
	f := t.otherFacts(by)
	switch {
	case f == nil || f.status == nil || f.ending:
		return r.Because(&mariposa.Reason{Code: mariposa.ReasonIsRemoved})
	case f.whyPersonNeeded() != nil:
		return r.Because(f.whyPersonNeeded())
	}
	if on := f.waitsForService(); on != "" {
		return r.Because(&mariposa.Reason{Code: mariposa.ReasonIsWaiting, Subject: on})
	}
	return r.Because(&mariposa.Reason{Code: mariposa.ReasonIsFollowing})
}

// askFollowers makes the outdated instances that others refer to yield once the rollout
// cannot continue without them: everything new is healthy, or there is no room for more.
func (t *turn) askFollowers() {
	if t.s.def.Update.StopFirst || t.starting+t.outdatedStarting+len(t.taken) > 0 {
		return
	}
	var referred []*Instance
	by, free := map[string]string{}, false
	t.s.each(outdatedRunning, func(i *Instance) bool {
		if t.removing[i.ID] {
			return true
		}
		if by[i.ID] = t.findReferrer(i); by[i.ID] == "" {
			free = true // removed before the others
		}
		referred = append(referred, i)
		return !free
	})
	crowded := t.countFilling()-t.goal >= t.batch
	switch {
	case free || len(referred) == 0:
		return
	case t.settled >= t.goal || crowded && t.settled > 0:
	case crowded && t.current == 0: // they follow the newest outdated one
		referred = referred[:len(referred)-1]
	default:
		return
	}
	t.st.Rollout.AwaitsFollowers = true
	t.plan.PlanAgain = t.plan.PlanAgain || !t.s.status.Rollout.AwaitsFollowers
	for _, i := range referred {
		t.yield(i, by[i.ID])
	}
}

// storeYields stores which instances yield.
func (t *turn) storeYields() {
	some := len(t.yielding) > 0
	for id := range t.removing { // removed instances must not be followed or used either
		if c := t.s.members[id]; t.s.isYielding(id) || some && (c.refers() || c == lost) {
			t.yielding = append(t.yielding, id)
		}
	}
	slices.Sort(t.yielding)
	if !slices.Equal(t.st.Yields, t.yielding) {
		t.st.Yields, t.plan.PlanAgain = t.yielding, true
	}
}

// findStuckReferrer returns the service that refers to a yielding instance and has failed
// to follow; nil: none.
func (t *turn) findStuckReferrer() *mariposa.Reason {
	var first *facts
	for _, id := range t.st.Yields {
		i := t.view.instances[id]
		if i == nil {
			continue
		}
		by := t.findReferrerAmong(i, func(s *service) bool {
			return s.status != nil && s.status.Rollout.HasFailed()
		})
		if by != "" && (first == nil || by < first.name) {
			first = t.otherFacts(by)
		}
	}
	if first == nil {
		return nil
	}
	r := &mariposa.Reason{Code: mariposa.ReasonNotFollowed, Version: t.st.Rollout.Number, Subject: first.name}
	return r.Because(first.status.Rollout.FailureReason)
}
