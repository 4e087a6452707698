package converge

import (
	"fmt"
	"time"

	"mariposa"
)

// measureRollout brings the rollout's own record up to date: how many are up at
// the new version, when it last got on, whether it must stop by itself.
func (t *turn) measureRollout() {
	t.settled = t.current()
	if t.st.Rollout == nil || t.ending {
		return
	}
	r := *t.st.Rollout
	t.st.Rollout = &r
	t.countUnsettled()
	if t.settled > r.Fresh { // a new best: the same ones coming back is no progress
		r.Progress, r.Failures, r.Fresh = t.now, 0, t.settled
	}
	t.judge(&r)
	t.rolling = r.Stopped == ""
	amount := r.Batch
	if amount.N == 0 {
		amount = t.s.def.Update.Rolling
	}
	t.batch = max(1, amount.Of(t.goal))
}

// countUnsettled takes from settled those that have not been up for min_healthy.
func (t *turn) countUnsettled() {
	if t.s.byStart == nil || t.s.def.Update.MinHealthy <= 0 {
		return
	}
	t.s.byStart.Scan(func(i *Instance) bool {
		due := since(i).Add(t.s.def.Update.MinHealthy)
		if !due.After(t.now) {
			return false
		}
		t.settled--
		t.wakeAt(due)
		return true
	})
}

// judge stops a rollout that fails or does not get on.
func (t *turn) judge(r *mariposa.Rollout) {
	u := t.s.def.Update
	if r.Stopped != "" || u.OnFailure == mariposa.OnFailureContinue || !t.unfinished() {
		return
	}
	due := r.Progress.Add(u.Deadline)
	switch {
	case r.Failures >= giveUp:
		r.Stopped = fmt.Sprintf("the rollout of version %d stopped after %d failures: %s", r.Number, r.Failures, t.lastFailure())
	case u.Deadline > 0 && !due.After(t.now):
		r.Stopped = fmt.Sprintf("the rollout of version %d stopped: no progress for %s", r.Number, u.Deadline)
	case u.Deadline > 0:
		t.wakeAt(due)
	}
}

// unfinished reports whether the rollout still has something to do.
func (t *turn) unfinished() bool {
	return t.s.count(stale)+t.s.count(staling)+t.s.count(amend)+t.s.count(updating) > 0 || t.settled < t.goal
}

func (t *turn) lastFailure() string {
	var last *Instance
	t.s.each(failed, func(i *Instance) bool {
		if last == nil || since(i).After(since(last)) {
			last = i
		}
		return true
	})
	if last == nil {
		return "its instances do not stay up"
	}
	return last.Spec.Name + " " + how(last)
}

// roll replaces outdated instances batch by batch.
func (t *turn) roll() {
	if !t.rolling {
		return
	}
	t.amendInPlace()
	t.s.each(staling, func(i *Instance) bool { // it never served: nobody misses it
		t.remove(i, fmt.Sprintf("version %d replaces it", t.st.Number), false)
		return true
	})
	if t.s.count(stale) > 0 && t.dependenciesRolled() {
		if t.s.def.Update.StopFirst {
			t.retire(t.settled + t.s.count(stale) - (t.goal - t.batch))
		} else {
			t.addReplacements()
			t.retire(t.settled + t.s.count(stale) - t.goal)
		}
	}
	if !t.unfinished() {
		t.st.Rollout = nil
	}
}

// dependenciesRolled holds a rollout back until those of its dependencies are
// through, so that new dependents meet new dependencies.
func (t *turn) dependenciesRolled() bool {
	for _, name := range t.s.def.DependsOn {
		d := t.view.services[name]
		if d == nil || d.status == nil || d.status.Rollout == nil || d.count(stale)+d.count(staling) == 0 {
			continue
		}
		if why := d.status.Rollout.Stopped; why != "" {
			t.wait(time.Time{}, "waits for %s: %s", name, why)
		} else {
			t.wait(time.Time{}, "waits for %s: its rollout is under way", name)
		}
		return false
	}
	return true
}

// addReplacements starts up to a batch of new instances beside the outdated
// ones, in the slots of those that will go first.
func (t *turn) addReplacements() {
	fresh := t.current() + t.s.count(starting)
	extra := t.counted() - t.s.count(staling) - t.goal
	n := min(t.batch-max(0, extra), t.goal-fresh)
	if extra < 0 || n <= 0 || !t.mayCreate() {
		return
	}
	t.s.each(stale, func(i *Instance) bool {
		if t.s.slots[i.Spec.Slot] > 1 || t.taken[i.Spec.Slot] {
			return true
		}
		n--
		return t.create(i.Spec.Slot, t.st.Number, fmt.Sprintf("version %d replaces %s", t.st.Number, i.Spec.Name), false) && n > 0
	})
}

// retire removes up to n outdated instances: those whose slot is filled again
// first, then in the order of victims.
func (t *turn) retire(n int) {
	n = min(n, t.s.count(stale))
	reason := fmt.Sprintf("version %d replaces it", t.st.Number)
	for _, replaced := range []bool{true, false} {
		t.s.each(stale, func(i *Instance) bool {
			if n > 0 && !t.removing[i.ID] && (!replaced || t.s.slots[i.Spec.Slot] > 1) {
				t.remove(i, reason, false)
				n--
			}
			return n > 0
		})
	}
}

// amendInPlace changes in place, a batch at a time, what can be.
func (t *turn) amendInPlace() {
	n := t.batch - t.s.count(updating)
	t.s.each(amend, func(i *Instance) bool {
		if n > 0 && !t.removing[i.ID] {
			t.step(Step{Action: Amend, Instance: i.ID, Number: t.st.Number, Reason: fmt.Sprintf("version %d changes it in place", t.st.Number)})
			n--
		}
		return n > 0
	})
}
