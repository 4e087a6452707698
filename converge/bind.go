package converge

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"maps"
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
// send it back and forth. handover.go says when it follows another.

// bindReferences brings the bindings of a service up to date. It reports whether they are
// about other instances now, or running instances became outdated: that is stored
// before anything is done, so that what they are about is known to be referred to,
// and instances are sorted anew.
func (t *turn) bindReferences() bool {
	was := t.st.Bindings
	next, follows, moved := t.resolveReferences(was)
	switch {
	case sameValue(was, next):
		return next != nil && t.rollAstray()
	case next == nil && len(t.view.referencesOf(t.s)) == 0:
		t.st.Bindings, t.plan.PlanAgain = nil, true
		return false
	}
	t.st.Bindings, t.plan.PlanAgain = next, true
	before, _ := bindingDigestOf(t.s.def, was)
	if after, unresolved := bindingDigestOf(t.s.def, next); !unresolved && before != after && t.s.countWanted() > 0 {
		t.startFollowing(follows)
		return true
	}
	if moved {
		t.st.Status, t.st.Reason = mariposa.StatusConverging, cmp.Or(t.unbound, &mariposa.Reason{Code: mariposa.ReasonFollowsOther})
		t.left = max(1, t.s.countWanted())
	}
	return moved
}

// resolveReferences finds what every reference resolves to now: the first service whose
// values are others than they were, and whether other instances are referred to.
func (t *turn) resolveReferences(was *mariposa.Bindings) (next *mariposa.Bindings, follows string, moved bool) {
	references := t.view.referencesOf(t.s)
	if len(references) == 0 {
		return nil, "", false
	}
	for _, on := range slices.Sorted(maps.Keys(references)) {
		b, why := t.bindTo(on, references[on])
		if slices.ContainsFunc(t.s.def.Refs, func(r mariposa.Ref) bool { return r.Service == on }) {
			t.unbound = cmp.Or(t.unbound, why)
		} else {
			t.unboundBefore = cmp.Or(t.unboundBefore, why)
		}
		if b.Instance == "" {
			continue
		}
		old, had := was.Get(on)
		if had && follows == "" && !maps.Equal(old.Values, b.Values) {
			follows = on
		}
		moved = moved || old.Instance != b.Instance || bindsOneInstance(old) != bindsOneInstance(b)
		if next == nil {
			next = &mariposa.Bindings{To: map[string]mariposa.Binding{}}
		}
		next.To[on] = b
	}
	return next, follows, moved
}

// rollAstray starts a rollout where instances refer to something else than the
// service is bound to, and none brings them there: one that was under way when
// the binding changed did not speak of them.
func (t *turn) rollAstray() bool {
	if t.s.astray == 0 || t.st.Rollout != nil {
		return false
	}
	t.startFollowing("")
	return true
}

// startFollowing starts a rollout, or gives the one under way its time anew, so that
// instances come to what their references resolve to now.
func (t *turn) startFollowing(on string) {
	r := mariposa.Rollout{Number: t.st.Number, From: t.st.Number, Follows: on}
	if t.st.Rollout != nil {
		r = *t.st.Rollout
	}
	r.Progress, r.MostServing, r.Failures, r.FailureReason = t.now, 0, 0, nil // it is about something else now
	t.st.Rollout = &r
	t.st.Status, t.st.Reason = mariposa.StatusConverging, &mariposa.Reason{Code: mariposa.ReasonFollowsOther}
	if on != "" {
		t.st.Reason = &mariposa.Reason{Code: mariposa.ReasonFollows, Subject: on, Other: t.st.Bindings.To[on].Name}
	}
	t.left = max(1, t.s.countWanted())
}

// referencesOf lists what a service refers to, by service: by the definition in force, by
// those that its instances were made from, and by the one to fall back to.
func (v *View) referencesOf(s *service) map[string][]string {
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
	if add(s.def); s.status == nil || out == nil && s.status.Bindings == nil && s.status.Rollout == nil {
		return out // nearly always
	}
	for _, number := range append(slices.Sorted(maps.Keys(s.numbers)), fallbackVersion(s.status)) {
		add(v.Definition(number, s.name))
	}
	return out
}

// bindTo says what a service is bound to of another one, and why it cannot be
// bound as it should.
func (t *turn) bindTo(on string, fields []string) (mariposa.Binding, *mariposa.Reason) {
	old, had := t.st.Bindings.Get(on)
	d := t.otherFacts(on)
	is := detached
	if had {
		is = t.attachmentOf(d, old)
	}
	if is == attached {
		b := t.refreshBinding(d, old, fields)
		return b, t.missingField(on, b, fields)
	}
	next, why := t.nextTarget(on, d, old, had, is)
	if next == nil {
		if had {
			old = t.refreshBinding(d, old, fields)
		}
		return old, why
	}
	b := t.view.resolve(d, next, fields)
	if had && t.isLive() && !d.hasFinalInstances() {
		keepSetFields(&b, old) // not all are there yet
	}
	return b, t.missingField(on, b, fields)
}

// nextTarget finds the instance that a service is bound to next; nil: none yet, and
// why.
func (t *turn) nextTarget(on string, d *facts, old mariposa.Binding, had bool, is attachment) (*Instance, *mariposa.Reason) {
	if is == yielding {
		i := t.view.findCandidate(d)
		if i == nil || i.ID == old.Instance {
			return nil, nil
		}
		return i, nil
	}
	gone := func(code mariposa.ReasonCode) *mariposa.Reason {
		return &mariposa.Reason{Code: code, Subject: on, Other: old.Name}
	}
	inUse := t.isLive()
	if had && inUse {
		t.astrayWhy = gone(mariposa.ReasonReferenceGone)
	}
	if why := t.whyNotReady(on, inUse); why != nil {
		return nil, why
	}
	if d.goal == 0 {
		return nil, &mariposa.Reason{Code: mariposa.ReasonWaitsScale, Subject: on}
	}
	i := t.view.findCandidate(d)
	switch {
	case i == nil:
		return nil, &mariposa.Reason{Code: mariposa.ReasonWaitsRest, Subject: on}
	case !inUse:
		return i, nil
	case !d.isAtRest() && !d.awaitsFollowers(): // what it would be bound to now may be about to go
		if had {
			return nil, gone(mariposa.ReasonWaitsReference)
		}
		return nil, &mariposa.Reason{Code: mariposa.ReasonWaitsRest, Subject: on}
	case had && !t.isProven(d, i, old.Name):
		return nil, gone(mariposa.ReasonWaitsReference)
	}
	return i, nil
}

// isScaledToZero reports whether a person wants no instance of another service.
func (t *turn) isScaledToZero(name string) bool {
	d := t.otherFacts(name)
	return d != nil && d.status != nil && d.status.Scale == 0
}

// missingField says what an instance does not have that it is asked for.
func (t *turn) missingField(on string, b mariposa.Binding, fields []string) *mariposa.Reason {
	for _, f := range fields {
		_, has := b.Values[f]
		switch {
		case has || !slices.Contains(t.s.def.Refs, mariposa.Ref{Service: on, Field: f}):
		case isSetField(f):
			return &mariposa.Reason{Code: mariposa.ReasonWaitsRest, Subject: on}
		default:
			return &mariposa.Reason{Code: mariposa.ReasonWaitsField, Subject: on, Other: b.Name, Detail: f}
		}
	}
	return nil
}

// refreshBinding keeps a binding. What is asked of it for the first time is looked up,
// and what speaks of all instances is told anew once the other is at rest. A first
// time does not wait for that if the other waits for those that refer to it.
func (t *turn) refreshBinding(d *facts, old mariposa.Binding, fields []string) mariposa.Binding {
	b := old
	i := t.view.instances[b.Instance]
	if i == nil || d == nil || i.Spec.ServiceName != d.name {
		return b
	}
	var lacks, sets []string
	for _, f := range fields {
		_, has := b.Values[f]
		switch {
		case isSetField(f) && (has || !d.awaitsFollowers()):
			sets = append(sets, f)
		case !has:
			lacks = append(lacks, f)
		}
	}
	if len(sets) > 0 && d.hasFinalInstances() {
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

// isSetField reports whether a field speaks of all instances.
func isSetField(field string) bool { return field == "ids" || field == "addresses" }

// keepSetFields leaves what speaks of all instances as it was.
func keepSetFields(b *mariposa.Binding, old mariposa.Binding) {
	for f, value := range old.Values {
		if isSetField(f) {
			b.Values[f] = value
		}
	}
}

// bindsOneInstance reports whether a binding is about the one instance, and not about all
// alone.
func bindsOneInstance(b mariposa.Binding) bool {
	for f := range b.Values {
		if !isSetField(f) {
			return true
		}
	}
	return false
}

// bindingDigest is the digest of what the references of a service's definition in force
// resolve to. It reports whether some do not yet.
func bindingDigest(s *service) (string, bool) {
	if s.status == nil {
		return "", false
	}
	return bindingDigestOf(s.def, s.status.Bindings)
}

func bindingDigestOf(def *mariposa.Service, b *mariposa.Bindings) (sum string, unresolved bool) {
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
	return digestOf(parts), false
}

// digestOf hashes texts, each with its length before it.
func digestOf(parts []string) string {
	var all strings.Builder
	for _, p := range parts {
		all.WriteString(strconv.Itoa(len(p)) + ":" + p)
	}
	sum := sha256.Sum256([]byte(all.String()))
	return hex.EncodeToString(sum[:12])
}

// boundStep begins the step that makes an instance of a version, with what its
// references resolve to. It reports whether all of them do, to instances that are
// there: nothing is made with a reference to what is gone.
func (t *turn) boundStep(number int) (Step, bool) {
	s := Step{Action: Create}
	def := t.view.Definition(number, t.s.name)
	if def == nil || len(def.Refs)+len(def.LiveRefs) == 0 {
		return s, true
	}
	if s, made := t.bound[number]; made {
		return s, true
	}
	sum, unresolved := bindingDigestOf(def, t.st.Bindings)
	why := cmp.Or(t.unbound, t.unboundBefore)
	if !unresolved {
		why = t.findGoneReference(def)
	}
	if unresolved || why != nil {
		t.wait(time.Time{}, func() *mariposa.Reason { return cmp.Or(why, &mariposa.Reason{Code: mariposa.ReasonFollowsOther}) })
		return s, false
	}
	s.Bound, s.Bindings = sum, &mariposa.Bindings{To: map[string]mariposa.Binding{}}
	for _, refs := range [][]mariposa.Ref{def.Refs, def.LiveRefs} {
		for _, r := range refs {
			if to, ok := t.st.Bindings.Get(r.Service); ok {
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

// findGoneReference says which instance that a definition refers to is gone; nil: none.
func (t *turn) findGoneReference(def *mariposa.Service) *mariposa.Reason {
	for _, r := range def.Refs {
		if isSetField(r.Field) {
			continue
		}
		b, _ := t.st.Bindings.Get(r.Service)
		switch d := t.otherFacts(r.Service); {
		case t.attachmentOf(d, b) == detached:
			return &mariposa.Reason{Code: mariposa.ReasonWaitsReference, Subject: r.Service, Other: b.Name}
		case d.isYielding(b.Instance):
			return &mariposa.Reason{Code: mariposa.ReasonWaitsRest, Subject: r.Service}
		case d.ending:
			return &mariposa.Reason{Code: mariposa.ReasonWaitsStopped, Subject: r.Service}
		case d.goal == 0:
			return &mariposa.Reason{Code: mariposa.ReasonWaitsScale, Subject: r.Service}
		case d.isRolling && d.def.Update.StopFirst && d.members[b.Instance] == outdatedRunning: // it is about to go, before its successor comes
			return &mariposa.Reason{Code: mariposa.ReasonWaitsRollout, Subject: r.Service}
		}
	}
	return nil
}
