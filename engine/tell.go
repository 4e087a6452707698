package engine

import (
	"time"

	"mariposa"
)

// The goal of a project and how its services fare are one object: with ten
// thousand services most of a megabyte, written whole. While very many come up,
// each of them says something new. So what merely says how far they are is told at
// a pace that the number of services sets. It can be found out again from what
// runs, so nothing is lost with a planner that dies before it has told. Trouble,
// and whatever the next plan rests on, is told at once.

const (
	latest  = 2 * time.Second       // nothing is put off for longer
	soonest = 10 * time.Millisecond // where it would be for less, it is not
)

// nextTelling is when news of how services fare may be told again.
func (t *turn) nextTelling() time.Time {
	if t.goal == nil {
		return time.Time{}
	}
	every := min(time.Duration(len(t.goal.Services))*t.e.Telling, latest)
	if every < soonest {
		return time.Time{}
	}
	return t.wrote.Add(every)
}

// putOff leaves a status to be written later. The view goes on from it: what it
// was told is not told again.
func (t *turn) putOff(st *mariposa.ProjectStatus) {
	t.goal, t.ahead, t.follows = st, st, true
	t.view.Follow(t.plan)
}

// onlyFares reports whether a status differs from the last one in nothing but how
// far services are.
func (t *turn) onlyFares(st *mariposa.ProjectStatus) bool {
	if t.was == nil || t.goal != t.was || len(t.plan.Ended) > 0 || t.plan.Again {
		return false
	}
	a, b := *t.was, *st
	a.Services, b.Services, a.Reason = nil, nil, b.Reason
	if !same(a, b) {
		return false
	}
	for name, ss := range t.plan.Services {
		if was := t.was.Services[name]; was == nil || !onlyFarther(was, ss) {
			return false
		}
	}
	return true
}

// onlyFarther reports whether two words of a service differ in nothing but how far
// it is: what it waits for, how its rollout gets on, that it has arrived.
func onlyFarther(was, is *mariposa.ServiceStatus) bool {
	if !goesWell(was) || !goesWell(is) {
		return false
	}
	a, b := *was, *is
	a.Status, a.Reason = b.Status, b.Reason
	if a.Rollout != nil && b.Rollout != nil {
		r := *a.Rollout
		r.Progress, r.Fresh, r.Waiting = b.Rollout.Progress, b.Rollout.Fresh, b.Rollout.Waiting
		a.Rollout = &r
	} else if b.Rollout == nil {
		a.Rollout = nil // it is through: who looks again finds that too
	}
	return same(a, b)
}

func goesWell(ss *mariposa.ServiceStatus) bool {
	return ss.Status == mariposa.StatusConverging || ss.Status == mariposa.StatusConverged
}
