package converge

import "mariposa"

// class is the role of an instance in the plan. Each instance has exactly one. Rules use
// the traits of a class and never its position in this list. To add a class, add it here
// and in traitsOf.
type class uint8

const (
	serving          class = iota // wanted, running, matches the definition in force
	needsUpdate                   // wanted, running, differs in fields that can be changed in place
	updating                      // wanted, running, its change in place is not confirmed yet, or it has not passed changed checks yet
	outdatedRunning               // wanted, running, of an outdated definition
	starting                      // wanted, on its way up
	outdatedStarting              // wanted, on its way up, of an outdated definition
	lost                          // wanted, its node cannot be reached
	unhealthy                     // wanted, running, has served, its health checks fail
	failed                        // wanted, ended by itself, or never passed its health checks
	leaving                       // unwanted, but not yet removed
	leavingLost                   // unwanted, on an unreachable node
	preserved                     // ended and kept for inspection
	gone                          // only its record exists
	classes
)

// traits are the properties of a class that rules use.
type traits struct {
	name      string
	wanted    bool // its goal is to run
	up        bool // it runs, with any definition
	current   bool // it runs and does not have to be replaced
	starts    bool // it is starting
	holdsSlot bool // its slot is not free
	refers    bool // it uses the instances that it refers to
	lives     bool // the dependencies of its definition must stay
}

var traitsOf = [classes]traits{
	serving:          {name: "serving", wanted: true, up: true, current: true, holdsSlot: true, refers: true, lives: true},
	needsUpdate:      {name: "needs update", wanted: true, up: true, current: true, holdsSlot: true, refers: true, lives: true},
	updating:         {name: "updating", wanted: true, up: true, current: true, holdsSlot: true, refers: true, lives: true},
	outdatedRunning:  {name: "outdated, running", wanted: true, up: true, holdsSlot: true, refers: true, lives: true},
	starting:         {name: "starting", wanted: true, starts: true, holdsSlot: true, refers: true, lives: true},
	outdatedStarting: {name: "outdated, starting", wanted: true, starts: true, holdsSlot: true, refers: true, lives: true},
	lost:             {name: "lost", wanted: true, holdsSlot: true, lives: true},
	unhealthy:        {name: "unhealthy", wanted: true, refers: true, lives: true},
	failed:           {name: "failed", wanted: true, lives: true},
	leaving:          {name: "leaving", refers: true, lives: true},
	leavingLost:      {name: "leaving, lost"},
	preserved:        {name: "preserved"},
	gone:             {name: "gone"},
}

// The classes that share a trait, and the order in which surplus instances are removed:
// those not yet running first, those with the current definition last.
var (
	wantedClasses  = classesWith(func(t traits) bool { return t.wanted })
	upClasses      = classesWith(func(t traits) bool { return t.up })
	currentClasses = classesWith(func(t traits) bool { return t.current })
	victimClasses  = []class{outdatedStarting, starting, lost, outdatedRunning, needsUpdate, updating, serving}
)

func classesWith(trait func(traits) bool) []class {
	var out []class
	for c := range classes {
		if trait(traitsOf[c]) {
			out = append(out, c)
		}
	}
	return out
}

func (c class) String() string  { return traitsOf[c].name }
func (c class) runs() bool      { return traitsOf[c].up }
func (c class) upToDate() bool  { return traitsOf[c].current }
func (c class) starts() bool    { return traitsOf[c].starts }
func (c class) holdsSlot() bool { return traitsOf[c].holdsSlot }
func (c class) refers() bool    { return traitsOf[c].refers }
func (c class) lives() bool     { return traitsOf[c].lives }

func (v *View) classify(s *service, i *Instance) class {
	state := mariposa.StateOf(i.Spec, i.Status)
	switch {
	case state == mariposa.StateDestroyed && i.Spec.Goal == mariposa.GoalGone:
		return gone
	case i.Spec.Goal == mariposa.GoalHalted && hasEnded(state):
		return preserved
	case i.Spec.Goal != mariposa.GoalRunning && v.nodes[i.Spec.Node].Unknown:
		return leavingLost
	case i.Spec.Goal != mariposa.GoalRunning:
		return leaving
	case hasEnded(state):
		return failed
	case v.nodes[i.Spec.Node].Unknown:
		return lost
	case state == mariposa.StateRunning && isUnhealthy(i):
		if i.Status.Served {
			return unhealthy
		}
		return failed
	case state != mariposa.StateRunning || isUnproven(i):
		if v.isOutdated(s, i) {
			return outdatedStarting
		}
		return starting
	case v.isOutdated(s, i):
		return outdatedRunning
	case s.def != nil && i.Spec.Live != s.def.Live && !differs(s, i):
		return needsUpdate
	case i.Status.Generation < i.Spec.Generation, s.def != nil && AwaitsChecks(s.def, i.Status):
		return updating
	}
	return serving
}

// hasEnded reports whether nothing runs of an instance in this state.
func hasEnded(state mariposa.State) bool {
	return state == mariposa.StateFailed || state == mariposa.StateStopped || state == mariposa.StateDestroyed
}

// isOutdated reports whether an instance must be replaced to match the current
// definition. Changed metadata values alone do not count unless the current rollout is
// about them. An instance is also outdated if its references have changed. A rollout with
// a filter ignores instances that do not match the filter.
func (v *View) isOutdated(s *service, i *Instance) bool {
	if s.def == nil || s.status == nil || !v.matches(s, i) {
		return false
	}
	return differs(s, i) || i.Spec.Created.Before(outdatedBefore(s.status)) || !s.unresolved && i.Spec.Bound != s.bound
}

// differs reports whether an instance was created from another definition.
func differs(s *service, i *Instance) bool {
	return i.Spec.Digest != s.def.Digest && (aboutMetadata(s.status) || !sameForm(i.Spec.Digest, s.def.Digest))
}

// matches reports whether the current rollout covers an instance.
func (v *View) matches(s *service, i *Instance) bool {
	f := filterOf(s.status)
	return f == nil || Matches(f, i.ID, i.Spec, v.Definition(i.Spec.Number, s.name))
}

// sameForm reports whether two digests differ at most in metadata values.
func sameForm(a, b string) bool { return a == b || mariposa.FormOf(a) == mariposa.FormOf(b) }
