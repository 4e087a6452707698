package converge

import (
	"cmp"
	"slices"

	"mariposa"
)

// FindBefore returns what a change of the goal replaced: the state that an undo restores.
// The old goal is nil before the first version.
func FindBefore(old, next *mariposa.ProjectStatus) *mariposa.Before {
	b := &mariposa.Before{}
	if old == nil {
		return b
	}
	b.Number, b.FlippedAll = old.Number, len(old.Services) > 0
	for name, was := range old.Services {
		is := next.Services[name]
		if was.Removed {
			continue
		}
		if is == nil || is.Removed || is.Scale != was.Scale {
			if b.Scale == nil {
				b.Scale = map[string]int{}
			}
			b.Scale[name] = was.Scale
		}
		if is != nil && rests(old, was) != rests(next, is) {
			b.Flipped = append(b.Flipped, name)
		} else {
			b.FlippedAll = false
		}
		if r := was.Rollout; r != nil && r.Held && (is == nil || is.Rollout == nil || !is.Rollout.Held) {
			if b.Held == nil {
				b.Held = map[string]mariposa.Hold{}
			}
			b.Held[name] = HoldOf(r)
		}
	}
	if slices.Sort(b.Flipped); b.FlippedAll {
		b.Flipped = nil
	}
	return b
}

// HoldOf describes a held rollout.
func HoldOf(r *mariposa.Rollout) mariposa.Hold {
	return mariposa.Hold{Count: cmp.Or(r.Limit, r.MostServing), From: r.From}
}

// rests reports whether a goal requests no instances of a service because the service or
// the whole project is stopped.
func rests(goal *mariposa.ProjectStatus, ss *mariposa.ServiceStatus) bool {
	return ss.Stopped || goal.Goal != mariposa.GoalStarted
}
