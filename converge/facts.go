package converge

import (
	"slices"
	"time"

	"mariposa"
)

// facts is what a plan knows about one service. Facts are computed once per plan, only
// from the service's own records and the time. The rules of this service and of others
// read them. If a rule needs to know something else about a service, add a fact.
type facts struct {
	*service
	ending           bool // the whole service ends
	goal             int  // number of desired instances
	current          int  // running and up to date
	outdated         int  // running and outdated
	starting         int  // starting and up to date
	outdatedStarting int  // starting and outdated
	lost             int  // on unreachable nodes
	failed           int  // ended by themselves and not yet replaced
	outdatedSick     int  // unhealthy and outdated
	isRolling        bool // a rollout is in progress and not held
	batch            int  // number of instances that a rollout replaces at a time

	young     []*Instance // current instances up for less than min_healthy, youngest first; only during a rollout
	settled   int         // current instances up for longer
	givenUp   []*Instance // lost for longer than reschedule.after
	givenUpAt map[int]int // slot -> number of its holders that are given up
}

// factsOf returns the facts of a service in this plan.
func (p *planner) factsOf(s *service) *facts {
	if s.lastFactsPlan != p.plans {
		s.lastFacts, s.lastFactsPlan = p.view.count(s, p.now), p.plans
	}
	return &s.lastFacts
}

// count computes the facts of a service.
func (v *View) count(s *service, now time.Time) facts {
	f := facts{
		service: s, ending: s.isEnding(v.goal), outdated: s.count(outdatedRunning), starting: s.count(starting), outdatedStarting: s.count(outdatedStarting),
		lost: s.count(lost), failed: s.count(failed),
	}
	for _, c := range currentClasses {
		f.current += s.count(c)
	}
	f.settled = f.current
	if !f.ending {
		f.goal = s.status.Scale
	}
	if s.def == nil || s.status == nil {
		return f
	}
	s.each(unhealthy, func(i *Instance) bool {
		if v.isOutdated(s, i) {
			f.outdatedSick++
		}
		return true
	})
	f.isRolling = s.isRolling()
	f.batch = batchOf(s.def, s.status.Rollout, f.goal)
	if s.status.Rollout != nil {
		f.young = s.findYoung(now)
		f.settled -= len(f.young)
	}
	if !f.ending {
		f.findLostForGood(v, now)
	}
	return f
}

// batchOf returns the number of instances that a rollout replaces at a time.
func batchOf(def *mariposa.Service, r *mariposa.Rollout, goal int) int {
	amount := def.Update.Rolling
	if r != nil && r.Batch.N != 0 {
		amount = r.Batch
	}
	return max(1, amount.Of(goal))
}

// findLostForGood finds the instances whose node has been unreachable for longer than
// reschedule.after.
func (f *facts) findLostForGood(v *View, now time.Time) {
	if f.lost == 0 {
		return
	}
	f.each(lost, func(i *Instance) bool {
		if until, never := v.rescheduleTime(f.service, i); !never && !until.After(now) {
			f.givenUp = append(f.givenUp, i)
			if f.givenUpAt == nil {
				f.givenUpAt = map[int]int{}
			}
			f.givenUpAt[i.Spec.Slot]++
		}
		return true
	})
}

// rescheduleTime returns when an instance on an unreachable node is rescheduled.
func (v *View) rescheduleTime(s *service, i *Instance) (until time.Time, never bool) {
	n := v.nodes[i.Spec.Node]
	if v.skipsWaiting(s, i.Spec.Node) {
		return n.Since, s.def.Reschedule.Never
	}
	return n.Since.Add(s.def.Reschedule.After), s.def.Reschedule.Never
}

// skipsWaiting reports whether a user asked to replace the instances of a service on a lost
// node without further waiting: for the node, or for the service after the node was lost.
func (v *View) skipsWaiting(s *service, node string) bool {
	n := v.nodes[node]
	return n.GivenUp || s.status != nil && !s.status.RescheduleNow.IsZero() && n.Unknown && !s.status.RescheduleNow.Before(n.Since)
}

// isGivenUp reports whether an instance is among those given up.
func (f *facts) isGivenUp(i *Instance) bool {
	return f.givenUpAt[i.Spec.Slot] > 0 && slices.Contains(f.givenUp, i)
}

// countRunning returns the number of running instances, with any definition.
func (f *facts) countRunning() int { return f.current + f.outdated }

// countFilling returns the number of instances that count, or will count, toward the
// goal.
func (f *facts) countFilling() int {
	return f.countRunning() + f.starting + f.outdatedStarting + f.lost - len(f.givenUp)
}

// slotsHeld returns the number of slots with instances that count toward the goal. It is
// less than countFilling if two instances have the same slot: during a rollout, or when a
// node returns after its instances were replaced.
func (f *facts) slotsHeld() int {
	n := len(f.slots)
	for slot, given := range f.givenUpAt {
		if int(f.slots[slot].holders) == given {
			n--
		}
	}
	return n
}

// slotHolders returns the number of instances in a slot that count toward the goal.
func (f *facts) slotHolders(slot int) int { return int(f.slots[slot].holders) - f.givenUpAt[slot] }

// isLive reports whether the service has a running or starting instance on a reachable
// node.
func (f *facts) isLive() bool { return f.countRunning()+f.starting+f.outdatedStarting > 0 }

// hasRolloutLeft reports whether a rollout still has work to do. Empty slots
// are filled first, at a version that depends on whether the rollout is held.
func (f *facts) hasRolloutLeft() bool {
	return f.countNotRolled()+f.count(updating)+f.outdatedSick > 0 || f.settled < f.goal || f.slotsHeld() < f.goal
}

// isAtRest reports whether all desired instances run and no rollout is about to change
// that.
func (f *facts) isAtRest() bool {
	if f.ending || f.def == nil || f.goal == 0 || f.countRunning() < f.goal || f.starting+f.outdatedStarting+f.failed > 0 {
		return false
	}
	return !f.isRolling || !f.hasRolloutLeft()
}

// hasFinalInstances reports whether all instances that the service will have are serving:
// it is at rest, or its rollout only waits for services that refer to outdated instances.
func (f *facts) hasFinalInstances() bool {
	return f.isAtRest() || f.goal > 0 && f.settled >= f.goal && f.awaitsFollowers()
}

// awaitsFollowers reports whether a rollout cannot continue until the services that refer
// to outdated instances follow other ones.
func (f *facts) awaitsFollowers() bool { return f.isRolling && f.status.Rollout.AwaitsFollowers }

// isYielding reports whether an instance is removed as soon as no instance refers to it.
func (s *service) isYielding(id string) bool {
	return s.status != nil && slices.Contains(s.status.Yields, id)
}

// isEnding reports whether the whole service ends.
func (s *service) isEnding(goal mariposa.ProjectGoal) bool {
	return s.status == nil || s.status.Removed || s.status.Stopped || goal != mariposa.GoalStarted
}

func (s *service) isFrozen() bool { return s.status != nil && s.status.Frozen != nil }

// isRolling reports whether a rollout of the service is in progress and not held.
func (s *service) isRolling() bool {
	r := s.status.Rollout
	return r != nil && r.FailureReason == nil && !r.Held && !s.rolloutHeld && !s.status.Paused && !s.isFrozen()
}

// countNotRolled returns the number of instances that a rollout has not yet brought to
// the target.
func (s *service) countNotRolled() int {
	return s.count(outdatedRunning) + s.count(outdatedStarting) + s.count(needsUpdate)
}

// countWanted returns the number of instances whose goal is to run.
func (s *service) countWanted() int {
	n := 0
	for _, c := range wantedClasses {
		n += s.count(c)
	}
	return n
}

// proofTime is how long an instance must be up to count as healthy in the current
// rollout. It is shorter for a start, unless the start also replaces instances.
func (s *service) proofTime() time.Duration {
	r := s.status.Rollout
	return s.def.Update.ProofTime(r != nil && r.First && s.countNotRolled() == 0)
}

// provenAt returns when an instance counts as healthy in the current rollout. For starts
// it is rounded up, so that services that come up one after another are visited together.
func (s *service) provenAt(i *Instance) time.Time {
	const together = 250 * time.Millisecond
	at := since(i).Add(s.proofTime())
	if r := s.status.Rollout; r == nil || !r.First || s.proofTime() == 0 || at.Equal(at.Truncate(together)) {
		return at
	}
	return at.Truncate(together).Add(together)
}

// findYoung finds the instances that have been up for less than min_healthy, youngest
// first.
func (s *service) findYoung(now time.Time) []*Instance {
	if s.byStart == nil || s.proofTime() <= 0 {
		return nil
	}
	var young []*Instance
	s.byStart.Scan(func(i *Instance) bool {
		if !s.provenAt(i).After(now) {
			return false
		}
		young = append(young, i)
		return true
	})
	return young
}

// lastFailure describes how the last failed instance ended.
func (s *service) lastFailure() *mariposa.Reason {
	var last *Instance
	for _, c := range []class{failed, unhealthy, preserved} {
		if last != nil {
			break
		}
		s.each(c, func(i *Instance) bool {
			if i.Status.Reason != "" && (last == nil || since(i).After(since(last))) {
				last = i
			}
			return true
		})
	}
	if last == nil {
		return &mariposa.Reason{Code: mariposa.ReasonFailure}
	}
	return &mariposa.Reason{Code: mariposa.ReasonFailure, Subject: last.Spec.Name, Detail: howItEnded(last)}
}

// whyPersonNeeded returns why a service cannot continue without user action, or nil if it
// can.
func (s *service) whyPersonNeeded() *mariposa.Reason {
	switch r := s.status.Rollout; {
	case r.HasFailed():
		return r.FailureReason
	case s.isFrozen():
		return &mariposa.Reason{Code: mariposa.ReasonIsFrozen}
	case s.rolloutHeld:
		return &mariposa.Reason{Code: mariposa.ReasonIsHeld}
	case s.status.Paused:
		return &mariposa.Reason{Code: mariposa.ReasonIsPaused}
	case s.def != nil && len(s.def.Needs) > 0:
		return missingMetadata(s.def)
	}
	return nil
}

// waitsForService returns the service in this one's waiting reason; empty: none.
func (s *service) waitsForService() string {
	switch r := s.status.Reason; {
	case r.Is(mariposa.ReasonReferrers):
		return r.Other
	case r.Is(mariposa.ReasonWaitsMissing, mariposa.ReasonWaitsStopped, mariposa.ReasonWaitsInstances, mariposa.ReasonWaitsRollout,
		mariposa.ReasonWaitsHeld, mariposa.ReasonWaitsScale, mariposa.ReasonWaitsRest, mariposa.ReasonWaitsReference):
		return r.Subject
	}
	return ""
}

// missingMetadata returns which required metadata values a definition is missing; nil:
// none.
func missingMetadata(d *mariposa.Service) *mariposa.Reason {
	if len(d.Needs) == 0 {
		return nil
	}
	return &mariposa.Reason{Code: mariposa.ReasonNeedsMetadata, Keys: d.Needs, Secrets: d.Secrets}
}
