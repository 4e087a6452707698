package converge

import (
	"slices"
	"sort"
	"time"

	"mariposa"
)

// An instance whose health checks fail is replaced. One that has never been healthy counts
// as failed. One that has served keeps running until its successor serves: it may recover,
// and the fault may be elsewhere. Nothing is removed before something healthy takes its
// place, so a fault that affects the whole service, such as a database that is away, costs
// one additional instance and not all of them.
//
// What several instances need may come back. So once another instance has become healthy, each
// unhealthy one is checked again before it is replaced or removed.
//
// With order stop-first an unhealthy instance is removed before its successor starts, one
// batch at a time.

// isUnhealthy reports whether the checks of a running instance fail.
func isUnhealthy(i *Instance) bool {
	return i.Status != nil && i.Status.Health == mariposa.HealthUnhealthy
}

// isUnproven reports whether a running instance has not passed its checks yet.
func isUnproven(i *Instance) bool {
	return i.Status != nil && i.Status.Health == mariposa.HealthStarting
}

// AwaitsChecks reports whether a running instance has not passed all checks of a definition yet. They
// may be new to it: it keeps serving until one of them fails.
func AwaitsChecks(def *mariposa.Service, st *mariposa.InstanceStatus) bool {
	if def.ChecksDigest == "" {
		return false
	}
	isOther := st.ChecksDigest != def.ChecksDigest && (st.ChecksDigest != "" || st.Health == "") // an older agent does not say which they are
	return isOther || slices.ContainsFunc(st.Checks, func(c mariposa.CheckStatus) bool { return c.Health == mariposa.HealthStarting })
}

// refillUnhealthy starts successors of unhealthy instances, after empty slots have got theirs.
// It returns how many empty slots may be filled.
func (t *turn) refillUnhealthy(missing int) int {
	if t.s.count(unhealthy) == 0 {
		return missing
	}
	t.ailing = t.findAiling()
	empty := max(0, t.goal-t.slotsHeld()-len(t.taken)-len(t.ailing))
	room, blamed, visited := t.unhealthyBatch(empty), t.blamesChecks(), map[int]bool{}
	if !t.s.def.Update.StopFirst {
		room = min(room, missing-empty)
	}
	t.s.each(unhealthy, func(i *Instance) bool {
		slot, code := i.Spec.Slot, mariposa.ReasonUnhealthy
		number, can := t.refillVersion(i)
		switch {
		case blamed && t.ailing[slot] && !t.isRolledOver(i):
			code = mariposa.ReasonCheckNeverPassed
		case t.recheckedAt(i).After(t.now):
			code = mariposa.ReasonUnhealthyRecheck
			t.wakeAt(t.recheckedAt(i))
		case !t.ailing[slot] || visited[slot]: // it has a successor
		case room <= 0 || !can:
			code = mariposa.ReasonUnhealthyTurn
		case t.s.def.Update.StopFirst:
			t.remove(i, mariposa.Reported(howItEnded(i)), true)
			room--
			visited[slot] = true
			return true // it waits for nothing
		case t.create(slot, number, &mariposa.Reason{Code: mariposa.ReasonReplacesUnhealthy, Subject: i.Spec.Name, Detail: howItEnded(i)}, true):
			room, missing = room-1, missing-1
		default:
			room = 0
		}
		visited[slot] = true
		t.wait(time.Time{}, func() *mariposa.Reason { return unhealthyReason(code, i) })
		return true
	})
	return min(missing, empty)
}

// findAiling returns the slots whose only instances are unhealthy.
func (t *turn) findAiling() map[int]bool {
	slots := map[int]bool{}
	t.s.each(unhealthy, func(i *Instance) bool {
		if slot := i.Spec.Slot; t.slotHolders(slot) == 0 && !t.taken[slot] {
			slots[slot] = true
		}
		return true
	})
	return slots
}

// explainUnhealthy says which instances are unhealthy while no successors can be started.
func (t *turn) explainUnhealthy() {
	t.s.each(unhealthy, func(i *Instance) bool {
		if t.goal > t.slotsHeld() || t.slotHolders(i.Spec.Slot) > 0 { // otherwise it is above the goal
			t.wait(time.Time{}, func() *mariposa.Reason { return unhealthyReason(mariposa.ReasonUnhealthy, i) })
		}
		return true
	})
}

// unhealthyBatch returns how many unhealthy instances may be replaced now: one batch at a time,
// together with the empty slots, and only one if no instance is healthy, because then the
// cause is probably something that all of them need.
func (t *turn) unhealthyBatch(empty int) int {
	most := t.moveBatch()
	if t.countRunning() == 0 {
		most = 1
	}
	return most - t.starting - t.outdatedStarting - len(t.taken) - empty
}

// blamesChecks reports whether the checks themselves are the likely cause: the unhealthy
// instances fail checks that none has ever passed. Checks are spread in time, so others may
// still run that have not finished them.
func (t *turn) blamesChecks() bool {
	digest, names, isNew := "", map[string]bool{}, true
	t.s.each(unhealthy, func(i *Instance) bool {
		digest = i.Status.ChecksDigest
		for _, c := range i.Status.Checks {
			if c.Health == mariposa.HealthUnhealthy {
				names[c.Name], isNew = true, isNew && !c.Passed
			}
		}
		return isNew
	})
	for _, c := range wantedClasses {
		if !isNew {
			return false
		}
		t.s.each(c, func(i *Instance) bool {
			isNew = i.Status == nil || !hasPassed(i.Status, digest, names) && (!c.runs() || AwaitsChecks(t.s.def, i.Status))
			return isNew
		})
	}
	return isNew
}

// hasPassed reports whether an instance has passed one of the named checks of a definition.
func hasPassed(st *mariposa.InstanceStatus, digest string, names map[string]bool) bool {
	return st.ChecksDigest == digest && slices.ContainsFunc(st.Checks, func(c mariposa.CheckStatus) bool { return c.Passed && names[c.Name] })
}

// isRolledOver reports whether the rollout replaces an instance now, so that what its checks
// say does not matter.
func (t *turn) isRolledOver(i *Instance) bool { return t.view.isOutdated(t.s, i) && !t.isOnHold() }

// dropUnhealthy removes unhealthy instances that are not needed: those whose slot is served by
// another one, and those above the goal.
func (t *turn) dropUnhealthy() {
	if t.s.count(unhealthy) == 0 {
		return
	}
	served := t.servedSlots()
	surplus := t.s.count(unhealthy) - max(0, t.goal-t.slotsHeld())
	t.s.each(unhealthy, func(i *Instance) bool {
		hasSuccessor := t.slotHolders(i.Spec.Slot) > 0
		switch {
		case t.removing[i.ID]:
			surplus--
		case served[i.Spec.Slot] && t.recheckedAt(i).After(t.now):
			t.wakeAt(t.recheckedAt(i))
			surplus--
		case served[i.Spec.Slot], surplus > 0 && !hasSuccessor && t.countRunning() >= t.goal:
			if t.mayGo(i) {
				t.remove(i, mariposa.Reported(howItEnded(i)), true)
			}
			surplus--
		}
		return !t.isBulkSpent()
	})
}

// servedSlots returns the slots of unhealthy instances in which another one has been up for
// min_healthy.
func (t *turn) servedSlots() map[int]bool {
	slots := map[int]bool{}
	t.s.each(unhealthy, func(i *Instance) bool { slots[i.Spec.Slot] = false; return true })
	for _, c := range upClasses {
		t.s.each(c, func(i *Instance) bool {
			done, asked := slots[i.Spec.Slot]
			if !asked || done || t.removing[i.ID] {
				return true
			}
			at := since(i).Add(t.s.def.Update.MinHealthy)
			if slots[i.Spec.Slot] = !at.After(t.now); at.After(t.now) {
				t.wakeAt(at)
			}
			return true
		})
	}
	return slots
}

// maxAnswer is how long an instance that has recovered takes to answer a check, whatever its timeout is.
const maxAnswer = 5 * time.Second

// recheckedAt returns when an unhealthy instance has certainly been checked again after the first
// other one became healthy; zero if none has since it failed.
func (t *turn) recheckedAt(i *Instance) time.Time {
	var within time.Duration
	for _, c := range t.s.def.Checks() {
		within = max(within, c.MostPause()+min(c.Timeout, maxAnswer))
	}
	if within == 0 {
		return time.Time{}
	}
	if t.recoveries == nil {
		t.recoveries = []time.Time{}
		for _, c := range upClasses {
			t.s.each(c, func(i *Instance) bool { t.recoveries = append(t.recoveries, since(i)); return true })
		}
		slices.SortFunc(t.recoveries, time.Time.Compare)
	}
	first := sort.Search(len(t.recoveries), func(n int) bool { return t.recoveries[n].After(since(i)) })
	if first == len(t.recoveries) {
		return time.Time{}
	}
	return t.recoveries[first].Add(within)
}

// unhealthyReason returns a reason about an instance whose checks fail.
func unhealthyReason(code mariposa.ReasonCode, i *Instance) *mariposa.Reason {
	return &mariposa.Reason{Code: code, Subject: i.Spec.Name, Detail: howItEnded(i)}
}
