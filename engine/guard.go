package engine

import (
	"log/slog"
	"time"

	"mariposa"
	"mariposa/store"
)

// A plan must not commit forever while nothing changes. The planner is designed not to.
// If it does nevertheless, the guard notices, reports it and backs off, so that a faulty
// rule delays one project instead of using a core and the disk of the store.
//
// The guard reacts in either of two cases:
//
//   - The planner commits again and again although nothing changed outside. Commits without
//     instances are limited by the number of services, those with instances by the number of
//     instances that exist or should exist: each can be created, changed, stopped and deleted
//     once.
//
//   - The planner creates instances again and again, and nodes carry that out. The reports
//     of nodes about that work (echoes) do not count as changes. Actions of people do, and so
//     do nodes that connect or disconnect. Failures halve the count: their repair is not a
//     loop.
//
// Passing time is not a change either, but a long pause between two commits ends a row of
// them. The guard itself never waits longer than that.

const (
	baseCommits = 40   // without an outside change, plus 3 for each service
	maxCommits  = 1000 // however many services there are
	baseSteps   = 100  // without an outside change, plus 4 for each instance that exists or should exist
	baseChanges = 100  // with echoes only, plus 20 for each service and each instance that should exist
	firstPause  = time.Second
	maxPause    = time.Minute
	rowGap      = 2 * maxPause // the gap between two commits that ends a row
)

// guard counts what an actor has committed since the last outside change.
type guard struct {
	first, last      int64 // the revisions of its newest commit
	at               time.Time
	commits          int // commits without instances
	steps            int // instances written by other commits
	base             int // how many instances there were at the start
	changedInstances int // instances created or changed in place since the last change that was not an echo

	stepLimit, madeLimit int // zero if not computed yet

	pause        time.Duration // before the next plan; zero if it is not held back
	until        time.Time
	makesTooMany bool // it is held back because it created too many instances
}

// observe records a change that came through the feed.
func (g *guard) observe(c *store.Change) {
	if g.first <= c.Revision && c.Revision <= g.last {
		return // its own commit
	}
	g.commits, g.steps, g.stepLimit = 0, 0, 0
	switch {
	case !isEcho(c):
		g.changedInstances, g.madeLimit, g.makesTooMany = 0, 0, false
	case c.Record.Kind == mariposa.KindInstance && endedByItself(c.Record.Spec, c.Record.Status):
		g.changedInstances, g.makesTooMany = g.changedInstances/2, false
	}
	if !g.makesTooMany {
		g.pause = 0
	}
}

// isEcho reports whether a change is a report of a node, which nearly always means that
// the node has carried out its work.
func isEcho(c *store.Change) bool {
	switch c.Record.Kind {
	case mariposa.KindInstance:
		return !c.Spec && !c.Deleted
	case mariposa.KindVolume, mariposa.KindAttachment:
		return !c.Spec || c.Deleted
	}
	return false
}

func endedByItself(spec, status any) bool {
	st, _ := status.(*mariposa.InstanceStatus)
	return st != nil && (st.State == mariposa.StateFailed || st.State == mariposa.StateStopped && spec.(*mariposa.InstanceSpec).Goal == mariposa.GoalRunning)
}

// heldBackFor returns how long the next plan is held back; zero if it is not.
func (a *actor) heldBackFor() time.Duration {
	g := &a.guard
	if g.pause == 0 {
		return 0
	}
	now := a.e.Clock.Now()
	if now.Sub(g.at) >= rowGap {
		*g = guard{first: g.first, last: g.last}
	}
	return g.until.Sub(now)
}

// countCommit counts what a turn has committed, and holds the next plan back if
// that is too much.
func (t *turn) countCommit(res store.Result) {
	g := &t.guard
	if len(t.unit.Writes) == 0 {
		return
	}
	g.first, g.last = res.First, res.Last
	if t.now.Sub(g.at) >= rowGap {
		*g = guard{first: g.first, last: g.last}
	}
	g.at = t.now
	if g.commits+g.steps == 0 {
		g.base = t.view.Len()
	}
	if t.touched == 0 {
		g.commits++
	}
	g.steps += t.touched
	g.changedInstances += t.made
	churns := t.made > 0 && (g.makesTooMany || t.makesTooMany())
	g.makesTooMany = g.makesTooMany || churns
	if churns || t.repeatsItself() {
		t.holdBack()
	}
}

// repeatsItself reports whether more was committed than can be necessary without an
// outside change.
func (t *turn) repeatsItself() bool {
	g := &t.guard
	if t.touched > 0 && g.steps > max(g.stepLimit, baseSteps) {
		g.stepLimit = baseSteps + 4*(g.base+t.countDesired())
		return g.steps > g.stepLimit
	}
	return t.touched == 0 && g.commits > min(baseCommits+3*len(t.goal.Services), maxCommits)
}

// makesTooMany reports whether more instances were created than any outside change can
// require.
func (t *turn) makesTooMany() bool {
	g := &t.guard
	if g.changedInstances <= max(g.madeLimit, baseChanges) {
		return false
	}
	g.madeLimit = baseChanges + 20*(t.countDesired()+len(t.goal.Services))
	return g.changedInstances > g.madeLimit
}

// countDesired returns how many instances there should be.
func (t *turn) countDesired() int {
	n := 0
	for _, ss := range t.goal.Services {
		n += ss.Scale
	}
	return n
}

// holdBack delays the next plan, twice as long each time.
func (t *turn) holdBack() {
	g := &t.guard
	if g.pause == 0 {
		t.e.loops.Add(1)
		slog.Error("the plan of this project keeps repeating; please report this", "project", t.project, "name", t.spec.Name,
			"commits", g.commits, "steps", g.steps, "created", g.changedInstances)
	}
	g.pause = min(max(2*g.pause, firstPause), maxPause)
	g.until = t.now.Add(g.pause)
}

// delayWake returns when to plan next, given when the plan asks for it; zero means never.
// A held-back project plans once more when its row of commits has ended, to report that.
func (g *guard) delayWake(wake time.Time) time.Time {
	if g.pause == 0 {
		return wake
	}
	if end := g.at.Add(rowGap); wake.IsZero() || end.Before(wake) {
		wake = end
	}
	if wake.Before(g.until) {
		wake = g.until
	}
	return wake
}

// explain adds that the plan of a project is held back, with the project's own reason as
// the cause.
func (g *guard) explain(why *mariposa.Reason) *mariposa.Reason {
	if g.pause == 0 {
		return why
	}
	repeats := &mariposa.Reason{Code: mariposa.ReasonPlanRepeats, For: maxPause}
	return repeats.Because(why)
}

// Loops returns how often a repeating plan was found.
func (e *Engine) Loops() int64 { return e.loops.Load() }
