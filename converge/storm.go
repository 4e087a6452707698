package converge

import (
	"maps"
	"time"

	"mariposa"
)

// Storm says which lost nodes are not given up yet, because many were lost at once. It is
// an input of the plan: the same for all projects, and decided from the state of all
// nodes. It only delays the refilling of slots; what a returning node finds replaced is
// surplus as ever.
type Storm struct {
	Count, Of int       // of the nodes, so many are lost
	Since     time.Time // when the first of them was lost
	Held      map[string]bool
	After     map[string]time.Time // nodes whose instances are not replaced before a time
}

func (s Storm) equal(o Storm) bool {
	return s.Count == o.Count && s.Of == o.Of && s.Since.Equal(o.Since) && maps.Equal(s.Held, o.Held) &&
		maps.EqualFunc(s.After, o.After, time.Time.Equal)
}

// SetProject sets the name of the project, for commands in reasons.
func (v *View) SetProject(name string) {
	if v.project != name {
		v.project, v.agenda.all = name, true
	}
}

// SetStorm sets which lost nodes are not given up yet.
func (v *View) SetStorm(s Storm) {
	if v.storm.equal(s) {
		return
	}
	old := v.storm
	v.storm = s
	for node, on := range v.byNode {
		if _, was := old.After[node]; !was && !old.Held[node] && !s.Held[node] {
			if _, is := s.After[node]; !is {
				continue
			}
		}
		for id := range on {
			v.touch(v.services[v.instances[id].Spec.ServiceName])
		}
	}
}

// stormHold returns whether the instances of a service on a lost node are not replaced for
// now, and until when; zero: until the storm is over.
func (v *View) stormHold(s *service, node string, now time.Time) (held bool, until time.Time) {
	if v.skipsWaiting(s, node) {
		return false, time.Time{}
	}
	if v.storm.Held[node] {
		return true, time.Time{}
	}
	until = v.storm.After[node]
	return until.After(now), until
}

// stormReason returns why a lost instance is not replaced for now.
func (t *turn) stormReason(i *Instance) *mariposa.Reason {
	r, s := t.unreachableReason(mariposa.ReasonStorm, i), t.view.storm
	r.Count, r.Of, r.Since, r.Other = s.Count, s.Of, s.Since, t.view.project
	return r
}
