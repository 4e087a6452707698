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

// This file holds the rules that no plan may break, whatever happened before.
// They speak of instances, goals and definitions alone, so they do not depend on
// how the planner comes to its decisions.

// holdToRules holds a plan to all of them.
func (w *world) holdToRules(p whole) {
	w.Helper()
	for _, s := range p.Steps {
		switch s.Action {
		case Remove, Preserve:
			w.breaksNoReference(p, s)
		case Create:
			w.refersToTheRunning(p, s)
			w.isAskedFor(p, s)
		}
	}
	w.staysSmall(p)
}

// breaksNoReference holds the removal of an instance to nobody alive referring to it.
func (w *world) breaksNoReference(p whole, s Step) {
	w.Helper()
	x := w.instances[s.Instance]
	if x == nil || !w.isUp(x) || w.mayBreakReferences(x) {
		return
	}
	if by := w.referrers(x); len(by) > 0 {
		w.Fatalf("%s: %s refers to it and is not gone:\n%s%s", word(s), by[0], show(p), w.formatHistory())
	}
}

// mayBreakReferences reports whether an instance may go though others refer to it:
// it makes room for its own successor, or a person wants none of it.
func (w *world) mayBreakReferences(x *Instance) bool {
	ss, def := w.goal.Services[x.Spec.ServiceName], defOf(w.view, x.Spec.ServiceName)
	switch {
	case ss == nil || ss.Removed:
		return false
	case ss.Scale == 0, ss.Stopped && w.goal.Goal == mariposa.GoalStarted:
		return true
	}
	return w.goal.Goal == mariposa.GoalStarted && def != nil && def.Update.StopFirst && isOutdated(w.view, x)
}

// referrers lists the live instances that were made with a reference to the one
// instance, by id.
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

// refersToOne reports whether an instance was made with a reference to the other
// that cannot change while it runs, and is not about all of its service. One whose
// service is bound to another instance by now that has the same value needs no more.
func (w *world) refersToOne(spec *mariposa.InstanceSpec, x *Instance) bool {
	d := w.versions[spec.Number][spec.ServiceName]
	return d != nil && slices.ContainsFunc(d.Refs, func(r mariposa.Ref) bool {
		b, bound := spec.Bindings.Get(r.Service)
		return isAboutOne(r) && r.Service == x.Spec.ServiceName && bound && b.Instance == x.ID && !w.isFollowed(spec.ServiceName, r, b)
	})
}

// isFollowed reports whether a service is bound to another instance than it was that
// has the same value.
func (w *world) isFollowed(name string, r mariposa.Ref, was mariposa.Binding) bool {
	ss := w.goal.Services[name]
	if ss == nil {
		return false
	}
	b, _ := ss.Bindings.Get(r.Service)
	return b.Instance != was.Instance && w.instances[b.Instance] != nil && w.isUp(w.instances[b.Instance]) && b.Values[r.Field] == was.Values[r.Field]
}

// isAboutOne reports whether a reference is about the one instance that a service
// is bound to, and not about all.
func isAboutOne(r mariposa.Ref) bool { return r.Field != "ids" && r.Field != "addresses" }

// isUp reports whether an instance is wanted and runs where it can be reached.
func (w *world) isUp(i *Instance) bool {
	return i.Spec.Goal == mariposa.GoalRunning && mariposa.StateOf(i.Spec, i.Status) == mariposa.StateRunning && !w.nodes[i.Spec.Node].Unknown
}

// isAlive reports whether something of an instance on a reachable node runs or
// is about to, even if it is being removed.
func (w *world) isAlive(i *Instance) bool {
	return !hasEnded(mariposa.StateOf(i.Spec, i.Status)) && !w.nodes[i.Spec.Node].Unknown
}

// refersToTheRunning holds a new instance to references to instances that run, and
// that this plan does not remove.
func (w *world) refersToTheRunning(p whole, s Step) {
	w.Helper()
	d := w.versions[s.Number][s.Service]
	if d == nil {
		return // another rule's concern
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

// canBeReferredTo reports whether an instance runs, or will again: it is being
// started again in place, or its node is away and nobody has taken its place.
func (w *world) canBeReferredTo(x *Instance) bool {
	state := mariposa.StateOf(x.Spec, x.Status)
	if x.Spec.Goal != mariposa.GoalRunning || hasEnded(state) {
		return false
	}
	if node := w.nodes[x.Spec.Node]; node.Unknown {
		def := defOf(w.view, x.Spec.ServiceName)
		return def == nil || def.Reschedule.Never || node.Since.Add(def.Reschedule.After).After(w.now) || !w.isReplaced(x)
	}
	return state == mariposa.StateRunning || x.Status != nil && !x.Status.Started.IsZero()
}

// isReplaced reports whether another instance has the slot of one.
func (w *world) isReplaced(x *Instance) bool {
	for id, i := range w.instances {
		if id != x.ID && i.Spec.ServiceName == x.Spec.ServiceName && i.Spec.Slot == x.Spec.Slot && w.isUp(i) {
			return true
		}
	}
	return false
}

// isAskedFor holds a new instance to a version that people asked for: the one in
// force, or one of which there was an instance before. A canary is asked for at both.
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

// likeness is what instances have in common that need neither a new incarnation
// nor a change in place to be alike.
func likeness(digest, live string) string { return mariposa.FormOf(digest) + " " + live }

// staysSmall holds what is stored of a service to a size that does not grow with
// its history.
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

// stable holds a plan to what it says of the services: once that is stored and
// nothing else has changed, the steps are the same and soon nothing more is to
// be stored. Else planners would go on writing for ever. (What a service says of
// another one is one plan behind.)
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
		if turned(before, last.Services) { // that is stored before anything is done about it
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
	var news []string // what was said last, round by round
	for _, p := range said[max(0, len(said)-4):] {
		news = append(news, newsOf(p))
	}
	w.Fatalf("there is always something new to say:\n%s\nlast\n%s%s", show(last), strings.Join(news, "\n"), w.formatHistory())
}

// unbound are steps without what their references resolve to: until somebody is
// made with it, that may be another with every word about the other service.
func unbound(steps []Step) []Step {
	out := slices.Clone(steps)
	for i := range out {
		out[i].Bindings, out[i].Bound = nil, ""
	}
	return out
}

// turned reports whether a service is bound to something else than before, or
// will be as its rollout has ended, holds where it did not, or asks others to follow.
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

// newsOf is what a plan says of services that is new.
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
