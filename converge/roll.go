package converge

import (
	"cmp"
	"fmt"
	"time"

	"mariposa"
)

// measureRollout brings the rollout's own record up to date: how many are up at
// the new version, when it last got on, whether it must stop by itself.
func (t *turn) measureRollout() {
	t.settled = t.current()
	amount := t.s.def.Update.Rolling
	if t.st.Rollout == nil {
		t.batch = max(1, amount.Of(t.goal))
		return
	}
	r := *t.st.Rollout
	t.st.Rollout = &r
	if r.Batch.N != 0 {
		amount = r.Batch
	}
	t.batch = max(1, amount.Of(t.goal))
	fresh := t.s.count(serving)
	for _, i := range t.findYoung() {
		t.settled--
		if t.s.members[i.ID] == serving {
			fresh--
		}
	}
	if fresh > r.Fresh { // a new best: the same ones coming back is no progress
		r.Progress, r.Failures, r.Fresh = t.now, 0, fresh
	}
	t.judge(&r)
	if !t.unfinished() {
		r.Stopped = "" // what stood in its way has gone, and repairs did the rest
	}
	t.rolling = r.Stopped == "" && t.needs == ""
	t.pending = r.Stopped == "" && t.needs != ""
}

// findYoung finds those that have not been up for min_healthy.
func (t *turn) findYoung() []*Instance {
	if t.s.byStart == nil || t.s.def.Update.MinHealthy <= 0 {
		return nil
	}
	t.s.byStart.Scan(func(i *Instance) bool {
		due := since(i).Add(t.s.def.Update.MinHealthy)
		if !due.After(t.now) {
			return false
		}
		t.young = append(t.young, i)
		t.wakeAt(due)
		return true
	})
	return t.young
}

// judge stops a rollout that fails or does not get on.
func (t *turn) judge(r *mariposa.Rollout) {
	u := t.s.def.Update
	if r.Stopped != "" || t.needs != "" || u.OnFailure == mariposa.OnFailureContinue || !t.unfinished() {
		return
	}
	due := t.gotOn(r).Add(u.Deadline)
	switch {
	case r.Failures >= giveUp:
		r.Stopped = fmt.Sprintf("the rollout of version %d stopped after %d failures: %s", r.Number, r.Failures, t.lastFailure())
	case u.Deadline > 0 && t.s.count(stale) > 0 && t.heldBy() != "": // not its own fault
	case u.Deadline > 0 && !due.After(t.now):
		r.Stopped = fmt.Sprintf("the rollout of version %d stopped: no progress for %s", r.Number, u.Deadline)
	case u.Deadline > 0:
		t.wakeAt(due)
	}
}

// gotOn is when the rollout last got on. It could not begin before the rollouts
// of its dependencies were through, so theirs getting on counts as well.
func (t *turn) gotOn(r *mariposa.Rollout) time.Time {
	last := r.Progress
	for _, name := range t.s.def.DependsOn {
		d := t.view.services[name]
		if d == nil || d.byStart == nil {
			continue
		}
		if i, ok := d.byStart.Min(); ok && since(i).After(last) {
			last = since(i)
		}
	}
	return last
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
	if !t.stopped() && t.needs == "" {
		t.amendInPlace()
	}
	if !t.rolling {
		return
	}
	t.s.each(staling, func(i *Instance) bool { // it never served: nobody misses it
		t.remove(i, t.replaced(), false)
		return true
	})
	if t.s.count(stale) > 0 {
		held := t.heldBy()
		if held != "" {
			t.wait(time.Time{}, func() string { return held })
		}
		switch spare := t.settled + t.s.count(stale) - t.goal; {
		case held != "":
			t.retire(spare) // fewer are wanted: that much needs nobody new
		case t.s.def.Update.StopFirst:
			t.retire(spare + t.batch)
		default:
			t.addReplacements()
			t.retire(spare)
		}
	}
	if !t.unfinished() && t.leaveLost() == 0 {
		t.st.Rollout = nil
	}
}

// leaveLost tells the outdated instances on absent nodes to go, now that others
// serve in their place: after the rollout nobody would replace them.
func (t *turn) leaveLost() int {
	n := 0
	t.s.each(lost, func(i *Instance) bool {
		if outdated(t.s, i) {
			t.remove(i, t.replaced(), false)
			n++
		}
		return true
	})
	return n
}

// heldBy holds a rollout back until those of its dependencies are through, so
// that new dependents meet new dependencies. It says what is waited for.
func (t *turn) heldBy() string {
	for _, name := range t.s.def.DependsOn {
		d := t.view.services[name]
		if d == nil || d.status == nil || d.status.Rollout == nil || d.count(stale)+d.count(staling) == 0 {
			continue
		}
		return "waits for " + name + ": " + cmp.Or(d.status.Rollout.Stopped, "its rollout is under way")
	}
	return ""
}

func (t *turn) replaced() string { return fmt.Sprintf("version %d replaces it", t.st.Number) }

// addReplacements starts up to a batch of new instances beside the outdated
// ones, in the slots of those that will go first.
func (t *turn) addReplacements() {
	made := len(t.taken) // in this run, to fill what was missing
	fresh := t.current() + t.s.count(starting) + made
	extra := t.counted() - t.s.count(staling) + made - t.goal
	n := min(t.batch-max(0, extra), t.goal-fresh)
	if extra < 0 || n <= 0 || !t.mayCreate() {
		return
	}
	t.s.each(stale, func(i *Instance) bool {
		if t.holders(i.Spec.Slot) > 1 || t.taken[i.Spec.Slot] {
			return true
		}
		n--
		return t.create(i.Spec.Slot, t.st.Number, fmt.Sprintf("version %d replaces %s", t.st.Number, i.Spec.Name), false) && n > 0
	})
}

// retire removes up to n outdated instances: those whose slot is filled again
// first, then in the order of victims.
func (t *turn) retire(n int) {
	doubles := t.counted() - t.slotsHeld()
	for _, replaced := range []bool{true, false} {
		t.s.each(stale, func(i *Instance) bool {
			if n <= 0 || t.full() || (replaced && doubles <= 0) {
				return false
			}
			if !t.removing[i.ID] && (!replaced || t.holders(i.Spec.Slot) > 1) {
				t.remove(i, t.replaced(), false)
				n, doubles = n-1, doubles-1
			}
			return true
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
