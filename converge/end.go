package converge

import (
	"fmt"
	"time"

	"mariposa"
)

// end removes every instance of a service that is to be no more, once nothing
// that lives depends on it.
func (t *turn) end() {
	if t.wanted() == 0 {
		return
	}
	alone := t.st.Stopped && !t.st.Removed && t.view.goal == mariposa.GoalStarted
	t.leaned = true
	if by, n := t.view.leanedOn(t.s.name, alone); n > 0 {
		t.wait(time.Time{}, func() string {
			why := fmt.Sprintf("goes after %s, which depends on it and still has %d", by, n)
			if t.view.services[by].frozen() {
				why += " and is frozen"
			}
			return why
		})
		return
	}
	reason := "the project is stopped"
	switch {
	case alone:
		reason = "the service is stopped"
	case t.view.goal == mariposa.GoalDeleted:
		reason = "the project is deleted"
	case t.st.Removed:
		reason = "the service is no longer in the manifest"
	}
	for c := serving; c.wanted(); c++ {
		t.s.each(c, func(i *Instance) bool {
			t.remove(i, reason, false)
			return !t.full()
		})
	}
}

// noteStranded says what only the return of a node can finish.
func (t *turn) noteStranded() {
	if t.s.count(stranded) == 0 {
		return
	}
	i, _ := t.s.byClass[stranded].Min()
	t.wait(time.Time{}, func() string {
		node := t.view.nodes[i.Spec.Node]
		return fmt.Sprintf("%s is on node %s, which cannot be reached since %s; it goes when the node returns", i.Spec.Name, node.Name, stamp(node.Since))
	})
}

// wanted is how many instances still have the goal to run.
func (t *turn) wanted() int { return t.s.wanted() }

func (s *service) wanted() int {
	n := 0
	for c := serving; c.wanted(); c++ {
		n += s.count(c)
	}
	return n
}

// report says how the service fares.
func (t *turn) report() {
	left := len(t.s.members)
	if (t.st.Removed || t.s.status == nil) && left == 0 {
		t.over = true
		return // it has ended, so nobody asks any more
	}
	t.left = t.todo()
	t.beside = t.left
	if t.pending && t.st.Paused {
		t.pending = false
		t.beside = t.todo()
		t.pending = true
	}
	t.st.Status, t.st.Reason = t.verdict()
}

// todo measures how far reality is from the goal, in instances. It is nothing
// only when there is nothing to do and nothing on its way.
func (t *turn) todo() int {
	n := t.s.count(failed) + t.s.count(leaving) + t.s.count(stranded) + t.s.count(gone) + t.s.count(updating)
	up, filling := t.current(), t.counted()
	if t.rolling || t.pending || t.st.Rollout == nil {
		n += t.s.count(amend)
	}
	if t.rolling || t.pending {
		n += t.s.count(stale) + t.s.count(staling)
		filling -= t.s.count(stale) + t.s.count(staling)
	} else {
		up += t.s.count(stale) // left alone, so they count
	}
	n += max(0, t.goal-up) + max(0, filling-t.goal)
	if n = max(n, t.steps); n > 0 || t.ending {
		return n
	}
	if t.following {
		return 1
	}
	if n = max(0, t.goal-t.slotsHeld()); n == 0 && t.rolling && t.st.Rollout != nil {
		n = max(0, t.goal-t.settled)
	}
	return n
}

func (s *service) frozen() bool { return s.status != nil && s.status.Frozen != nil }

func (t *turn) verdict() (mariposa.Status, string) {
	waits := t.waits
	if t.more > 0 {
		waits += fmt.Sprintf(" (and %d more)", t.more)
	}
	todo := t.todo()
	r, b := t.st.Rollout, t.st.Backoff
	switch {
	case r != nil && r.Stopped != "":
		return mariposa.StatusFailed, r.Stopped
	case t.needs != "":
		return mariposa.StatusBlocked, t.needs
	case t.backing:
		return mariposa.StatusBackingOff, fmt.Sprintf("failed %d times in a row; next try at %s: %s", b.Failures, stamp(b.Until), t.lastFailure())
	case t.barred:
		return mariposa.StatusBlocked, waits
	case t.st.Paused && !t.ending && (t.pending || todo == 0):
		return mariposa.StatusPaused, t.sayPaused(waits)
	case todo > 0:
		return mariposa.StatusConverging, waits
	case t.ending && (t.view.goal == mariposa.GoalStopped || t.st.Stopped) && !t.st.Removed:
		return mariposa.StatusStopped, ""
	case r != nil && r.Held:
		return mariposa.StatusHeld, t.sayHeld(r)
	case t.heldDep != "":
		return mariposa.StatusHeld, "waits for " + t.heldDep + ", whose rollout is held"
	}
	return mariposa.StatusConverged, t.stray
}

func (t *turn) sayHeld(r *mariposa.Rollout) string {
	return fmt.Sprintf("%d of %d at version %d; reprovision goes on, revert takes it back", t.s.fresh[serving], t.goal, r.Number)
}

func (t *turn) sayPaused(waits string) string {
	if t.st.Rollout != nil && t.unfinished() {
		return fmt.Sprintf("the rollout of version %d is paused: %d of %d are up to date", t.st.Rollout.Number, t.current(), t.goal)
	}
	return waits
}
