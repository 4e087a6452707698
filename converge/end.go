package converge

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"mariposa"
)

// end removes every instance of a service that is to be no more, once nothing
// that lives depends on it.
func (t *turn) end() {
	if t.wanted() == 0 {
		return
	}
	if by, n := t.view.leanedOn(t.s.name); n > 0 {
		t.wait(time.Time{}, "goes after %s, which depends on it and still has %d", by, n)
		return
	}
	reason := "the project is stopped"
	switch {
	case t.view.goal == mariposa.GoalDeleted:
		reason = "the project is deleted"
	case t.st.Removed || t.s.def == nil:
		reason = "the service is no longer in the manifest"
	}
	for c := range gone {
		if c == leaving {
			continue
		}
		t.s.each(c, func(i *Instance) bool {
			t.remove(i, reason, false)
			return true
		})
	}
}

// wanted is how many instances still have the goal to run.
func (t *turn) wanted() int {
	n := 0
	for c := range leaving {
		n += t.s.count(c)
	}
	return n
}

// leanedOn finds a service with instances that depend on the named one, by the
// definitions those instances were made from. Where versions contradict each
// other about who depends on whom, the newer one counts.
func (v *View) leanedOn(name string) (string, int) {
	for _, other := range slices.Sorted(maps.Keys(v.services)) {
		s := v.services[other]
		if other == name {
			continue
		}
		for _, number := range slices.Sorted(maps.Keys(s.numbers)) {
			d := v.Definition(number, other)
			if d == nil || !slices.Contains(d.DependsOn, name) || v.reaches(name, other, number) {
				continue
			}
			return other, len(s.members) - s.count(gone)
		}
	}
	return "", 0
}

// reaches reports whether, by some definition newer than the given version that
// still has instances, from depends on to.
func (v *View) reaches(from, to string, newerThan int) bool {
	seen := map[string]bool{}
	var walk func(string) bool
	walk = func(at string) bool {
		if at == to {
			return true
		}
		if seen[at] || v.services[at] == nil {
			return false
		}
		seen[at] = true
		for number := range v.services[at].numbers {
			d := v.Definition(number, at)
			if number <= newerThan || d == nil {
				continue
			}
			if slices.ContainsFunc(d.DependsOn, walk) {
				return true
			}
		}
		return false
	}
	return walk(from)
}

// report says how the service fares.
func (t *turn) report() {
	left := len(t.s.members)
	if (t.st.Removed || t.s.status == nil) && left == 0 {
		return // it has ended, so nobody asks any more
	}
	if t.s.status != nil {
		t.plan.Services[t.s.name] = t.st
	}
	t.plan.Todo[t.s.name] = t.todo()
	t.st.Status, t.st.Reason = t.verdict()
}

// todo measures how far reality is from the goal, in instances.
func (t *turn) todo() int {
	n := t.s.count(failed) + t.s.count(leaving) + t.s.count(gone) + t.s.count(updating)
	up := t.current()
	if !t.rolling {
		up += t.s.count(stale) // left alone, so they count
	} else {
		n += t.s.count(stale) + t.s.count(staling) + t.s.count(amend)
	}
	if d := t.goal - up; d > 0 {
		n += d
	} else {
		n -= d
	}
	if t.rolling && t.st.Rollout != nil && n == 0 {
		n = max(0, t.goal-t.settled)
	}
	return n
}

func (t *turn) verdict() (mariposa.Status, string) {
	waits := ""
	if len(t.waiting) > 0 {
		waits = t.waiting[0]
		if more := len(t.waiting) - 1; more > 0 {
			waits += fmt.Sprintf(" (and %d more)", more)
		}
	}
	todo := t.todo()
	r, b := t.st.Rollout, t.st.Backoff
	switch {
	case r != nil && r.Stopped != "":
		return mariposa.StatusFailed, r.Stopped
	case b != nil && b.Until.After(t.now) && t.goal > t.running():
		return mariposa.StatusBackingOff, fmt.Sprintf("failed %d times in a row; next try at %s: %s", b.Failures, stamp(b.Until), t.lastFailure())
	case todo > 0:
		return mariposa.StatusConverging, waits
	case t.ending && t.view.goal == mariposa.GoalStopped && !t.st.Removed:
		return mariposa.StatusStopped, ""
	}
	return mariposa.StatusConverged, ""
}
