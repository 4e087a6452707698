package converge

import (
	"slices"

	"mariposa"
)

// class says which part an instance plays for the plan. Each instance is in
// exactly one.
type class uint8

const (
	serving  class = iota // wanted, running, as the definition in force says
	amend                 // wanted, running, and differs in what can be changed in place
	updating              // wanted, running, its change in place not yet confirmed
	stale                 // wanted, running, of an outdated definition
	starting              // wanted, on its way up
	staling               // wanted, on its way up, of an outdated definition
	lost                  // wanted, its node cannot be reached
	failed                // wanted, ended by itself
	leaving               // unwanted, not gone yet
	stranded              // unwanted, its node cannot be reached
	corpse                // ended, and kept for people to look at
	gone                  // nothing of it is left but its record
	classes
)

var classNames = [classes]string{"serving", "amend", "updating", "stale", "starting", "staling", "lost", "failed", "leaving", "stranded", "corpse", "gone"}

func (c class) String() string { return classNames[c] }

// holdsSlot reports whether an instance of this class keeps its slot from
// being filled.
func (c class) holdsSlot() bool { return c < failed }

// wanted reports whether an instance of this class still has the goal to run.
func (c class) wanted() bool { return c <= failed }

// starts reports whether an instance of this class is on its way up.
func (c class) starts() bool { return c == starting || c == staling }

// runs reports whether an instance of this class runs, of whatever definition.
func (c class) runs() bool { return c <= stale }

// upToDate reports whether an instance of this class runs and needs no new
// incarnation.
func (c class) upToDate() bool { return c <= updating }

func (v *View) classify(s *service, i *Instance) class {
	state := mariposa.StateOf(i.Spec, i.Status)
	switch {
	case state == mariposa.StateDestroyed && i.Spec.Goal == mariposa.GoalGone:
		return gone
	case i.Spec.Goal == mariposa.GoalHalted && ended(state):
		return corpse
	case i.Spec.Goal != mariposa.GoalRunning && v.nodes[i.Spec.Node].Unknown:
		return stranded
	case i.Spec.Goal != mariposa.GoalRunning:
		return leaving
	case ended(state):
		return failed
	case v.nodes[i.Spec.Node].Unknown:
		return lost
	case state != mariposa.StateRunning:
		if v.outdated(s, i) {
			return staling
		}
		return starting
	case v.outdated(s, i):
		return stale
	case s.def != nil && i.Spec.Live != s.def.Live && !differs(s, i):
		return amend
	case i.Status.Generation < i.Spec.Generation:
		return updating
	}
	return serving
}

// ended reports whether nothing of an instance runs in a state.
func ended(state mariposa.State) bool {
	return state == mariposa.StateFailed || state == mariposa.StateStopped || state == mariposa.StateDestroyed
}

// outdated reports whether an instance needs a new incarnation to match the
// definition in force. Other values of metadata alone do not, unless the
// rollout under way is about them. What refers to other services is outdated
// once that resolves to something else. A rollout with a filter leaves alone what
// does not match.
func (v *View) outdated(s *service, i *Instance) bool {
	if s.def == nil || s.status == nil || !v.matches(s, i) {
		return false
	}
	return differs(s, i) || i.Spec.Created.Before(outdatedBefore(s.status)) || !s.loose && i.Spec.Bound != s.bound
}

// differs reports whether an instance was made from another definition.
func differs(s *service, i *Instance) bool {
	return i.Spec.Digest != s.def.Digest && (aboutMetadata(s.status) || !sameForm(i.Spec.Digest, s.def.Digest))
}

// matches reports whether the rollout under way is about an instance.
func (v *View) matches(s *service, i *Instance) bool {
	f := filterOf(s.status)
	if f == nil {
		return true
	}
	if f.Image != "" {
		if d := v.Definition(i.Spec.Number, s.name); d == nil || d.Image != f.Image {
			return false
		}
	}
	return (f.Version == 0 || f.Version == i.Spec.Number) &&
		(len(f.Instances) == 0 || slices.Contains(f.Instances, i.ID)) &&
		(len(f.Nodes) == 0 || slices.Contains(f.Nodes, i.Spec.Node))
}

// sameForm reports whether two digests differ in values of metadata at most.
func sameForm(a, b string) bool { return a == b || mariposa.FormOf(a) == mariposa.FormOf(b) }
