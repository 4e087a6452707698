package converge

import (
	"cmp"
	"fmt"
	"reflect"
	"slices"
	"time"

	"mariposa"
)

// This file says when what others are bound to may go: how a rollout hands over
// to its successors, and whom it waits for.

// stays reports whether a binding stays as it is, and looks again when the absence
// of its node has been ridden out: a frozen service does not ask for that itself.
func (t *turn) stays(d *service, b mariposa.Binding) bool {
	if i := t.view.instances[b.Instance]; d != nil && i != nil && d.def != nil && d.members[i.ID] == lost {
		if until := t.view.nodes[i.Spec.Node].Since.Add(d.def.Reschedule.After); until.After(t.now) {
			t.wakeAt(until)
		}
	}
	return t.view.keeps(d, b, t.now)
}

// keeps reports whether a binding stays as it is: the instance lives, or its node
// is away and nobody has taken its place.
func (v *View) keeps(d *service, b mariposa.Binding, now time.Time) bool {
	i := v.instances[b.Instance]
	if d == nil || i == nil || i.Spec.ServiceName != d.name {
		return false
	}
	switch d.members[i.ID] {
	case serving, amend, updating, starting:
		return true
	case stale, staling:
		return !v.yields(d, now)
	case lost:
		return d.slots[i.Spec.Slot] < 2 || d.def == nil || d.def.Reschedule.Never || v.nodes[i.Spec.Node].Since.Add(d.def.Reschedule.After).After(now)
	}
	return false
}

// quiet reports whether a service is at rest, so that others may be bound to it
// anew: all it should have runs, and no rollout is about to change that.
func (v *View) quiet(d *service, now time.Time) bool {
	if d == nil || d.status == nil || d.def == nil || d.ending(v.goal) || d.status.Scale == 0 {
		return false
	}
	if d.upToDate()+d.count(stale) < d.status.Scale || d.count(starting)+d.count(staling)+d.count(failed) > 0 {
		return false
	}
	return !d.rollsOn() || d.rolledOut(now) || v.yields(d, now)
}

// yields reports whether those that are bound to outdated instances are to follow
// new ones now: all of them are there, or there is no room for more and at least
// one is.
func (v *View) yields(d *service, now time.Time) bool {
	return v.handsOver(d, now) || v.crowded(d) && d.upToDate() > len(d.findYoung(now))
}

// rolledOut reports whether a rollout has nothing left to do.
func (s *service) rolledOut(now time.Time) bool {
	return s.leftBehind()+s.count(updating)+s.count(starting) == 0 && s.upToDate()-len(s.findYoung(now)) >= s.status.Scale
}

// rollsOn reports whether a rollout of the service is under way and nothing holds it.
func (s *service) rollsOn() bool {
	r := s.status.Rollout
	return r != nil && r.Stopped == "" && !r.Held && !s.held && !s.status.Paused && !s.frozen()
}

// upToDate is how many run as the definition in force says, or nearly.
func (s *service) upToDate() int { return s.count(serving) + s.count(amend) + s.count(updating) }

// handsOver reports whether a rollout has done all it can before others follow:
// enough have proved themselves, and of the outdated ones those alone are left
// that others are bound to.
func (v *View) handsOver(d *service, now time.Time) bool {
	if d.count(stale) == 0 || d.status == nil || d.def == nil || d.ending(v.goal) || !d.rollsOn() || d.status.Scale == 0 ||
		d.count(starting)+d.count(staling) > 0 || d.upToDate() < d.status.Scale {
		return false
	}
	return v.allPinned(d, v.pins(d)) && d.upToDate()-len(d.findYoung(now)) >= d.status.Scale
}

// awaitsFollowers reports whether a rollout gets no further before others follow:
// it hands over, or what they are bound to leaves no room for more.
func (v *View) awaitsFollowers(d *service, now time.Time) bool {
	return v.handsOver(d, now) || v.crowded(d)
}

// crowded reports whether all that a rollout may have beside the goal, or in one
// slot, are outdated ones that others are bound to: they follow what there is
// then, as it is.
func (v *View) crowded(d *service) bool {
	if d.count(stale) == 0 || d.status == nil || d.def == nil || d.ending(v.goal) || !d.rollsOn() || d.status.Scale == 0 ||
		d.count(starting)+d.count(staling) > 0 || d.upToDate() >= d.status.Scale {
		return false
	}
	batch := d.def.Update.Rolling
	if r := d.status.Rollout; r.Batch.N != 0 {
		batch = r.Batch
	}
	full, single := d.upToDate()+d.count(stale)-d.status.Scale >= max(1, batch.Of(d.status.Scale)), false
	d.each(stale, func(i *Instance) bool {
		single = d.slots[i.Spec.Slot] == 1
		return !single
	})
	return (full || !single) && v.allPinned(d, v.pins(d))
}

// allPinned reports whether others are bound to every outdated instance.
func (v *View) allPinned(d *service, pins map[string]string) bool {
	all := len(pins) > 0
	d.each(stale, func(i *Instance) bool {
		all = all && pins[i.ID] != ""
		return all
	})
	return all
}

// pins lists the instances of a service that others are bound to, with the first
// of those by name. What goes before its successor comes waits for nobody.
func (v *View) pins(d *service) map[string]string {
	if d.def == nil || d.def.Update.StopFirst {
		return nil
	}
	out, known := v.pinned[d]
	if !known {
		out = v.findPins(d)
		v.pinned[d] = out
	}
	return out
}

func (v *View) findPins(d *service) map[string]string {
	var out map[string]string
	pin := func(by *service, id string) {
		if out == nil {
			out = map[string]string{}
		}
		if first := out[id]; first == "" || by.name < first {
			out[id] = by.name
		}
	}
	each := func(by *service) {
		if by.status == nil || by.status.Bindings == nil || by.def == nil || by.ending(v.goal) || by.wanted() == 0 {
			return
		}
		b, ok := by.status.Bindings.Get(d.name)
		if !ok || !toOne(b) || !refers(by.def, d.name) && v.needsFar(d, by, map[*service]bool{}) {
			return // by the version in force it is the other way round
		}
		pin(by, b.Instance)
		by.each(leaving, func(i *Instance) bool { // they use it until they are gone
			if was, ok := i.Spec.Bindings.Get(d.name); ok {
				pin(by, was.Instance)
			}
			return true
		})
		if by.count(stale)+by.count(staling) > 0 {
			for _, id := range b.Former {
				pin(by, id)
			}
		}
	}
	for by := range v.needers[d.name] {
		each(by)
	}
	for by := range v.leaners[d.name] {
		each(by)
	}
	return out
}

func refers(def *mariposa.Service, on string) bool {
	to := func(r mariposa.Ref) bool { return r.Service == on }
	return slices.ContainsFunc(def.Refs, to) || slices.ContainsFunc(def.LiveRefs, to)
}

// needsFar reports whether a service depends on another one, near or far, by the
// definitions in force.
func (v *View) needsFar(s, on *service, seen map[*service]bool) bool {
	if s == nil || s.def == nil || seen[s] {
		return false
	}
	seen[s] = true
	return slices.ContainsFunc(s.def.DependsOn, func(name string) bool {
		return name == on.name || v.needsFar(v.services[name], on, seen)
	})
}

// touchBound touches those that a service was or is bound to, where that is
// something else now: they may go, or must stay.
func (v *View) touchBound(old, ss *mariposa.ServiceStatus) {
	if old == nil || reflect.DeepEqual(old.Bindings, ss.Bindings) {
		return
	}
	for _, b := range []*mariposa.Bindings{old.Bindings, ss.Bindings} {
		if b == nil {
			continue
		}
		for on := range b.To {
			if d := v.services[on]; d != nil {
				v.touch(d)
			}
		}
	}
}

// spreadBound marks those that refer to a service whose rollout may be able to
// hand over.
func (v *View) spreadBound(on *service) {
	for by := range v.needers[on.name] {
		if by.looked {
			v.mark(by)
		}
	}
}

// pinned reports whether others are bound to an instance and can follow another.
func (t *turn) pinned(i *Instance) bool {
	if t.goal == 0 {
		return false
	}
	if t.pins == nil {
		t.followed = true
		if t.pins = t.view.pins(t.s); t.pins == nil {
			t.pins = map[string]string{}
		}
	}
	return t.pins[i.ID] != ""
}

// waitForFollowers says whom a rollout waits for that has nothing left to do
// before others follow.
func (t *turn) waitForFollowers() {
	if t.followed = true; !t.view.awaitsFollowers(t.s, t.now) {
		return
	}
	t.s.each(stale, func(i *Instance) bool {
		if t.pinned(i) {
			by := t.pins[i.ID]
			t.wait(time.Time{}, func() string {
				why := cmp.Or(t.view.services[by].stoppedShort(), t.view.services[by].status.Reason, "it is on its way")
				return fmt.Sprintf("%s stays until %s, which refers to it, has followed another: %s", i.Spec.Name, by, why)
			})
		}
		return true
	})
}

// notFollowed says which of those that are bound to outdated instances has given
// up following; empty: none.
func (t *turn) notFollowed() string {
	if !t.view.awaitsFollowers(t.s, t.now) {
		return ""
	}
	first := ""
	t.s.each(stale, func(i *Instance) bool {
		by := t.view.services[t.view.pins(t.s)[i.ID]]
		if by != nil && by.status.Rollout != nil && by.status.Rollout.Stopped != "" && (first == "" || by.name < first) {
			first = by.name
		}
		return true
	})
	if first == "" {
		return ""
	}
	return fmt.Sprintf("%s, which refers to it, does not follow: %s", first, t.view.services[first].status.Rollout.Stopped)
}

// stoppedShort says why a rollout does not go on by itself; empty while it does.
func (s *service) stoppedShort() string {
	if r := s.status.Rollout; r != nil && r.Stopped != "" {
		return r.Stopped
	}
	if s.held {
		return "its rollout is held"
	}
	return s.standstill()
}
