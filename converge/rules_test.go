package converge

import (
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	"mariposa"
)

// This file contains the rules that every plan must satisfy, whatever happened before.
// They use only instances, goals and definitions, so they do not depend on the
// implementation of the planner.

// holdToRules checks a plan against all rules.
func (w *world) holdToRules(p whole) {
	w.Helper()
	for _, s := range p.Steps {
		switch s.Action {
		case Remove, Preserve:
			w.breaksNoReference(p, s)
		case Create:
			w.refersToTheRunning(p, s)
			w.isAskedFor(p, s)
			w.waitsForTheStorm(p, s)
		}
	}
	w.staysSmall(p)
}

// breaksNoReference checks that no live instance refers to a removed instance.
func (w *world) breaksNoReference(p whole, s Step) {
	w.Helper()
	x := w.instances[s.Instance]
	if x == nil || !w.isUp(x) || neverPassed(x) || w.mayBreakReferences(x) {
		return
	}
	if by := w.referrers(x); len(by) > 0 {
		w.Fatalf("%s: %s refers to it and is not gone:\n%s%s", word(s), by[0], show(p), w.formatHistory())
	}
}

// mayBreakReferences reports whether an instance may be removed although others refer to
// it: it makes room for its own successor, or users want no instance.
func (w *world) mayBreakReferences(x *Instance) bool {
	ss, def := w.goal.Services[x.Spec.ServiceName], defOf(w.view, x.Spec.ServiceName)
	switch {
	case ss == nil || ss.Removed:
		return false
	case ss.Scale == 0, ss.Stopped && w.goal.Goal == mariposa.GoalStarted:
		return true
	}
	return w.goal.Goal == mariposa.GoalStarted && def != nil && def.Update.StopFirst && (isOutdated(w.view, x) || isDisplaced(w.view, x) || isUnhealthy(x))
}

// referrers lists the live instances that were created with a reference to an instance,
// by id.
func (w *world) referrers(x *Instance) []string {
	var ids []string
	for id, y := range w.instances {
		if id != x.ID && w.isAlive(y) && w.refersToOne(y.Spec, x) {
			ids = append(ids, id)
		}
	}
	slices.Sort(ids)
	return ids
}

// refersToOne reports whether an instance was created with a reference to another one
// that cannot change while it runs and is not about the whole service. A reference no
// longer counts if the service is now bound to another instance with the same value.
func (w *world) refersToOne(spec *mariposa.InstanceSpec, x *Instance) bool {
	d := w.versions[spec.Number][spec.ServiceName]
	return d != nil && slices.ContainsFunc(d.Refs, func(r mariposa.Ref) bool {
		b, bound := spec.Bindings.Get(r.Service)
		return isAboutOne(r) && r.Service == x.Spec.ServiceName && bound && b.Instance == x.ID && !w.isFollowed(spec.ServiceName, r, b)
	})
}

// isFollowed reports whether a service is now bound to another instance with the same
// value.
func (w *world) isFollowed(name string, r mariposa.Ref, was mariposa.Binding) bool {
	ss := w.goal.Services[name]
	if ss == nil {
		return false
	}
	b, _ := ss.Bindings.Get(r.Service)
	return b.Instance != was.Instance && w.instances[b.Instance] != nil && w.isUp(w.instances[b.Instance]) && b.Values[r.Field] == was.Values[r.Field]
}

// isAboutOne reports whether a reference is about a single instance, not about all
// instances.
func isAboutOne(r mariposa.Ref) bool { return r.Field != "ids" && r.Field != "addresses" }

// isUp reports whether an instance is desired and runs on a reachable node.
func (w *world) isUp(i *Instance) bool {
	return i.Spec.Goal == mariposa.GoalRunning && mariposa.StateOf(i.Spec, i.Status) == mariposa.StateRunning && !w.nodes[i.Spec.Node].Unknown
}

// isAlive reports whether an instance on a reachable node runs or will run, even if it is
// being removed.
func (w *world) isAlive(i *Instance) bool {
	return !hasEnded(mariposa.StateOf(i.Spec, i.Status)) && !w.nodes[i.Spec.Node].Unknown && !neverPassed(i)
}

// neverPassed reports whether an instance runs but has not passed its checks in time, so that
// it counts as failed.
func neverPassed(i *Instance) bool { return isUnhealthy(i) && !i.Status.Served }

// refersToTheRunning checks that a new instance refers to running instances that this
// plan does not remove.
func (w *world) refersToTheRunning(p whole, s Step) {
	w.Helper()
	d := w.versions[s.Number][s.Service]
	if d == nil {
		return // checked by another rule
	}
	for _, r := range d.Refs {
		if !isAboutOne(r) {
			continue
		}
		b, _ := s.Bindings.Get(r.Service)
		x := w.instances[b.Instance]
		if x == nil || !w.canBeReferredTo(x) {
			w.Fatalf("%s: it refers to %q of %s, which does not run:\n%s%s", word(s), b.Instance, r.Service, show(p), w.formatHistory())
		}
		if slices.ContainsFunc(p.Steps, func(o Step) bool { return o.Instance == x.ID && (o.Action == Remove || o.Action == Preserve) }) {
			w.Fatalf("%s: it refers to %s, which goes:\n%s%s", word(s), x.ID, show(p), w.formatHistory())
		}
	}
}

// canBeReferredTo reports whether an instance runs or will run again: it is being
// restarted in place, or its node is unreachable and it has not been replaced.
func (w *world) canBeReferredTo(x *Instance) bool {
	state := mariposa.StateOf(x.Spec, x.Status)
	if x.Spec.Goal != mariposa.GoalRunning || hasEnded(state) {
		return false
	}
	if node := w.nodes[x.Spec.Node]; node.Unknown {
		def := defOf(w.view, x.Spec.ServiceName)
		asked := node.GivenUp || !w.goal.Services[x.Spec.ServiceName].RescheduleNow.Before(node.Since)
		return def == nil || def.Reschedule.Never || !asked && node.Since.Add(def.Reschedule.After).After(w.now) || !w.isReplaced(x)
	}
	return state == mariposa.StateRunning || x.Status != nil && !x.Status.Started.IsZero()
}

// isReplaced reports whether another instance has the slot of an instance.
func (w *world) isReplaced(x *Instance) bool {
	for id, i := range w.instances {
		if id != x.ID && i.Spec.ServiceName == x.Spec.ServiceName && i.Spec.Slot == x.Spec.Slot && w.isUp(i) && !isUnhealthy(i) {
			return true
		}
	}
	return false
}

// waitsForTheStorm checks that no instance is replaced whose node was lost together with
// many others, unless a user asked for it.
func (w *world) waitsForTheStorm(p whole, s Step) {
	w.Helper()
	others, held := 0, ""
	for id, i := range w.instances {
		if i.Spec.ServiceName != s.Service || i.Spec.Slot != s.Slot || i.Spec.Goal != mariposa.GoalRunning { // failed ones may be replaced
			continue
		}
		node := w.nodes[i.Spec.Node]
		asked := node.GivenUp || !w.goal.Services[s.Service].RescheduleNow.Before(node.Since)
		if w.storm.Held[i.Spec.Node] && !hasEnded(mariposa.StateOf(i.Spec, i.Status)) && node.Unknown && !asked {
			held = id
		} else {
			others++
		}
	}
	if held != "" && others == 0 {
		w.Fatalf("%s: it replaces %s, whose node was lost together with many others:\n%s%s", word(s), held, show(p), w.formatHistory())
	}
}

// isAskedFor checks that a new instance has a version that users requested: the current
// one, or one that had an instance before. A canary is requested at both.
func (w *world) isAskedFor(p whole, s Step) {
	w.Helper()
	ss, d := p.Services[s.Service], w.versions[s.Number][s.Service]
	if ss == nil || d == nil || s.Number == ss.Number || ss.Rollout != nil && ss.Rollout.Limit > 0 {
		return
	}
	if !w.ever[s.Service+"/"+likeness(d.Digest, d.Live)] {
		w.Fatalf("%s: version %d is in force, and there never was one of version %d:\n%s%s", word(s), ss.Number, s.Number, show(p), w.formatHistory())
	}
}

// likeness is equal for instances that need neither a replacement nor an update in place
// to be the same.
func likeness(digest, live string) string { return mariposa.FormOf(digest) + " " + live }

// staysSmall checks that the stored size of a service does not grow with its history.
func (w *world) staysSmall(p whole) {
	w.Helper()
	for name, ss := range p.Services {
		if w.small[name] == ss {
			continue // a plan copies what it changes
		}
		w.small[name] = ss
		if n := len(reasonOf(ss)); n > 600 {
			w.Fatalf("the reason of %s has %d characters: %s%s", name, n, reasonOf(ss)[:600], w.formatHistory())
		}
		text, err := json.Marshal(ss)
		if most := 4000 + 400*len(w.instances); err != nil || len(text) > most {
			w.Fatalf("the status of %s has %d bytes, where %d are plenty: %v%s", name, len(text), most, err, w.formatHistory())
		}
	}
}

// stable checks that a plan is stable: if its statuses are stored and nothing else
// changes, the steps stay the same, and soon nothing more must be stored. Otherwise
// planners would write forever. (The status of a service about another one is one plan
// behind.)
func (w *world) stable(p whole) {
	w.Helper()
	defer w.view.SetGoal(w.goal)
	last, before := p, w.goal.Services
	var said []Plan
	for range 3*len(serviceNames(w.view)) + 1 {
		st := *w.goal
		st.Services = last.Services
		w.view.SetGoal(&st)
		next := whole{Plan: w.view.Plan(w.now, Budget{Starting: w.budget})}
		next.Services = next.ApplyTo(last.Services)
		said = append(said, next.Plan)
		if turned(before, last.Services) { // stored before any other step
			before, p, last = last.Services, next, next
			continue
		}
		if !reflect.DeepEqual(unbound(p.Steps), unbound(next.Steps)) {
			w.Fatalf("the plan is\n%s\nbut once its statuses are stored\n%s%s", show(p), show(next), w.formatHistory())
		}
		if reflect.DeepEqual(last.Services, next.Services) {
			return
		}
		last = next
	}
	w.staysSmall(last)
	var news []string // the last changes, round by round
	for _, p := range said[max(0, len(said)-4):] {
		news = append(news, newsOf(p))
	}
	w.Fatalf("there is always something new to say:\n%s\nlast\n%s%s", show(last), strings.Join(news, "\n"), w.formatHistory())
}

// unbound returns steps without the values of their references, which may still change
// until an instance is created with them.
func unbound(steps []Step) []Step {
	out := slices.Clone(steps)
	for i := range out {
		out[i].Bindings, out[i].Bound = nil, ""
	}
	return out
}

// turned reports whether a service has a new binding, or will have one because its
// rollout has ended, is newly held, or asks others to follow.
func turned(before, after map[string]*mariposa.ServiceStatus) bool {
	held := func(ss *mariposa.ServiceStatus) bool { return ss.Rollout != nil && ss.Rollout.Held }
	asks := func(ss *mariposa.ServiceStatus) bool { return ss.Rollout != nil && ss.Rollout.AwaitsFollowers }
	yields := func(was, ss *mariposa.ServiceStatus) bool {
		return asks(was) != asks(ss) || !slices.Equal(was.Yields, ss.Yields)
	}
	lets := func(was, ss *mariposa.ServiceStatus) bool {
		return was.Bindings != nil && (was.Rollout == nil) != (ss.Rollout == nil)
	}
	for name, ss := range after {
		if was := before[name]; was != nil && (!reflect.DeepEqual(was.Bindings, ss.Bindings) || held(was) != held(ss) || isStopped(was.Rollout) != isStopped(ss.Rollout) || lets(was, ss) || yields(was, ss)) {
			return true
		}
	}
	return false
}

// newsOf returns the changed statuses of a plan as text.
func newsOf(p Plan) string {
	var b strings.Builder
	for _, name := range slices.Sorted(maps.Keys(p.Services)) {
		ss := p.Services[name]
		fmt.Fprintf(&b, "%s: %s %q yields %v bound to", name, ss.Status, reasonOf(ss), ss.Yields)
		if ss.Bindings != nil {
			for _, on := range slices.Sorted(maps.Keys(ss.Bindings.To)) {
				fmt.Fprintf(&b, " %s", ss.Bindings.To[on].Instance)
			}
		}
		fmt.Fprintf(&b, " rollout %+v\n", ss.Rollout)
	}
	return b.String()
}
