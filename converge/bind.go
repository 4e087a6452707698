package converge

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"mariposa"
)

// References to other services are stored bindings. A service is bound to one
// instance of each service it refers to: the first that served, kept as long as
// it lives. Only once the other service is at rest is it bound anew, so that a
// crash, a node that is away for a while or a rollout in several steps never
// send it back and forth. What is bound to an instance that is to be replaced
// follows its successor first; then the old one goes.

// bind brings the bindings of a service up to date. It reports whether running
// instances became outdated by that: they are sorted anew before anything else
// is done.
func (t *turn) bind() bool {
	asks := t.view.asks(t.s)
	was := t.st.Bindings
	if len(asks) == 0 {
		t.plan.Again = t.plan.Again || was != nil
		t.st.Bindings = nil
		return false
	}
	t.looked = true
	next, follows := &mariposa.Bindings{To: map[string]mariposa.Binding{}}, ""
	for _, on := range slices.Sorted(maps.Keys(asks)) {
		b, why := t.bindTo(on, asks[on])
		if why != "" && t.unbound == "" && slices.ContainsFunc(t.s.def.Refs, func(r mariposa.Ref) bool { return r.Service == on }) {
			t.unbound = "waits for " + on + ": " + why
		}
		if b.Instance == "" {
			continue
		}
		if old, had := was.Get(on); had && follows == "" && !maps.Equal(old.Values, b.Values) {
			follows = on
		}
		next.To[on] = b
	}
	if len(next.To) == 0 {
		next = nil
	}
	if reflect.DeepEqual(was, next) {
		return false
	}
	t.st.Bindings, t.plan.Again = next, true
	before, _ := boundTo(t.s.def, was)
	after, loose := boundTo(t.s.def, next)
	if loose || before == after || t.wanted() == 0 {
		return false
	}
	t.follow(follows)
	return true
}

// follow starts a rollout, or gives the one under way its time anew, so that
// instances come to what their references resolve to now.
func (t *turn) follow(on string) {
	r := mariposa.Rollout{Number: t.st.Number, From: t.st.Number, Follows: on}
	if t.st.Rollout != nil {
		r = *t.st.Rollout
	}
	r.Progress, r.Fresh, r.Failures, r.Stopped = t.now, 0, 0, "" // it is about something else now
	t.st.Rollout = &r
	t.st.Status, t.st.Reason = mariposa.StatusConverging, "what it refers to has changed"
	if on != "" {
		t.st.Reason = fmt.Sprintf("follows %s to %s", on, t.st.Bindings.To[on].Name)
	}
	t.left = max(1, t.wanted())
}

// asks lists what a service refers to, by service: by the definition in force, by
// those that its instances were made from, and by the one to fall back to.
func (v *View) asks(s *service) map[string][]string {
	var out map[string][]string
	add := func(d *mariposa.Service) {
		if d == nil {
			return
		}
		for _, refs := range [][]mariposa.Ref{d.Refs, d.LiveRefs} {
			for _, r := range refs {
				if out == nil {
					out = map[string][]string{}
				}
				if !slices.Contains(out[r.Service], r.Field) {
					out[r.Service] = append(out[r.Service], r.Field)
				}
			}
		}
	}
	if add(s.def); s.status == nil || out == nil && s.status.Bindings == nil {
		return out // nearly always
	}
	for _, number := range append(slices.Sorted(maps.Keys(s.numbers)), from(s.status)) {
		add(v.Definition(number, s.name))
	}
	return out
}

// bindTo says what a service is bound to of another one, and why it cannot be
// bound as it should.
func (t *turn) bindTo(on string, fields []string) (mariposa.Binding, string) {
	old, had := t.st.Bindings.Get(on)
	d := t.view.services[on]
	used := t.wanted() > 0
	if had && used {
		kept := t.view.keeps(d, old, t.now)
		if !kept {
			t.stray = fmt.Sprintf("refers to %s, which is gone; it follows once %s serves again", old.Name, on)
		}
		if kept || !t.view.quiet(d, t.now) || !t.proven(d) {
			return t.refresh(d, old, fields), ""
		}
	}
	if why := t.view.unready(on, used); why != "" {
		return old, why
	}
	if used && !had && !t.view.quiet(d, t.now) && d.status.Scale > 0 {
		return old, "it is not at rest" // what it would be bound to now may be about to go
	}
	i := t.view.first(d)
	if i == nil {
		return old, "its scale is 0, so there is nothing to refer to; scale it up"
	}
	b := t.view.resolve(d, i, fields)
	if had && used {
		if t.view.crowded(d) {
			keepSets(&b, old) // not all are there yet
		}
		b.Former = old.Former
		if old.Instance != i.ID {
			b.Former = append(slices.Clone(old.Former), old.Instance)
		}
	}
	return b, t.wanting(on, i, b, fields)
}

// proven reports whether what a service would follow has been up for long enough:
// for min_healthy, and where it keeps failing for as long as the next try would be
// put off, so that nobody follows it from one try to the next.
func (t *turn) proven(d *service) bool {
	i := t.view.first(d)
	if i == nil || d.rollsOn() { // a rollout waits for that itself
		return true
	}
	proof := d.def.Update.MinHealthy
	if b := d.status.Backoff; b != nil {
		proof = max(proof, delay(d.status.ID, b.Failures+1))
	}
	at := since(i).Add(proof)
	if at.After(t.now) {
		t.following = true
		t.wait(at, func() string {
			return fmt.Sprintf("%s; %s must have been up for %s first", t.stray, i.Spec.Name, proof.Round(100*time.Millisecond))
		})
		return false
	}
	return true
}

// scaledAway reports whether a person wants no instance of a service.
func (v *View) scaledAway(name string) bool {
	s := v.services[name]
	return s != nil && s.status != nil && s.status.Scale == 0
}

// wanting says what an instance does not have that it is asked for.
func (t *turn) wanting(on string, i *Instance, b mariposa.Binding, fields []string) string {
	for _, f := range fields {
		if _, ok := b.Values[f]; !ok && slices.Contains(t.s.def.Refs, mariposa.Ref{Service: on, Field: f}) {
			return fmt.Sprintf("%s has no %s", i.Spec.Name, f)
		}
	}
	return ""
}

// refresh keeps a binding. What is asked of it for the first time is looked up,
// and what speaks of all instances is told anew once the other is at rest.
func (t *turn) refresh(d *service, old mariposa.Binding, fields []string) mariposa.Binding {
	b := old
	if t.s.count(stale)+t.s.count(staling) == 0 {
		b.Former = nil
	}
	var lacks, sets []string
	for _, f := range fields {
		_, has := b.Values[f]
		switch {
		case ofAll(f):
			sets = append(sets, f)
		case !has:
			lacks = append(lacks, f)
		}
	}
	i := t.view.instances[b.Instance]
	if i == nil || d == nil {
		return b
	}
	if len(sets) > 0 && t.view.quiet(d, t.now) && !t.view.crowded(d) {
		lacks = append(lacks, sets...)
	}
	if len(lacks) > 0 {
		more := t.view.resolve(d, i, lacks)
		b.Values = maps.Clone(b.Values)
		maps.Copy(b.Values, more.Values)
		b.Of = cmp.Or(b.Of, more.Of)
	}
	return b
}

// ofAll reports whether a field speaks of all instances.
func ofAll(field string) bool { return field == "ids" || field == "addresses" }

// keepSets leaves what speaks of all instances as it was.
func keepSets(b *mariposa.Binding, old mariposa.Binding) {
	for f, value := range old.Values {
		if ofAll(f) {
			b.Values[f] = value
		}
	}
}

// toOne reports whether a binding is about the one instance, and not about all
// alone.
func toOne(b mariposa.Binding) bool {
	for f := range b.Values {
		if !ofAll(f) {
			return true
		}
	}
	return false
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

// boundBy is the digest of what the references of a service's definition in force
// resolve to. It reports whether some do not yet.
func boundBy(s *service) (string, bool) {
	if s.status == nil {
		return "", false
	}
	return boundTo(s.def, s.status.Bindings)
}

func boundTo(def *mariposa.Service, b *mariposa.Bindings) (sum string, loose bool) {
	if def == nil || len(def.Refs) == 0 {
		return "", false
	}
	parts := make([]string, 0, 3*len(def.Refs))
	for _, r := range def.Refs {
		to, _ := b.Get(r.Service)
		value, ok := to.Values[r.Field]
		if !ok {
			return "", true
		}
		parts = append(parts, r.Service, r.Field, value)
	}
	return digest(parts), false
}

// digest hashes texts, each with its length before it.
func digest(parts []string) string {
	var all strings.Builder
	for _, p := range parts {
		all.WriteString(strconv.Itoa(len(p)) + ":" + p)
	}
	sum := sha256.Sum256([]byte(all.String()))
	return hex.EncodeToString(sum[:12])
}

// boundStep begins the step that makes an instance of a version, with what its
// references resolve to. It reports whether all of them do.
func (t *turn) boundStep(number int) (Step, bool) {
	s := Step{Action: Create}
	def := t.view.Definition(number, t.s.name)
	if def == nil || len(def.Refs)+len(def.LiveRefs) == 0 {
		return s, true
	}
	if s, made := t.bound[number]; made {
		return s, true
	}
	sum, loose := boundTo(def, t.st.Bindings)
	if loose {
		t.wait(time.Time{}, func() string { return cmp.Or(t.unbound, "what it refers to does not serve yet") })
		return s, false
	}
	s.Bound, s.Bindings = sum, &mariposa.Bindings{To: map[string]mariposa.Binding{}}
	for _, refs := range [][]mariposa.Ref{def.Refs, def.LiveRefs} {
		for _, r := range refs {
			if to, ok := t.st.Bindings.Get(r.Service); ok {
				to.Former = nil
				s.Bindings.To[r.Service] = to
			}
		}
	}
	if t.bound == nil {
		t.bound = map[int]Step{}
	}
	t.bound[number] = s
	return s, true
}
