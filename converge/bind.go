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

// References to other services are stored as bindings. A service is bound to one instance
// of each service that it refers to: the first one that served, as long as it exists. It
// is bound to another instance only when the other service is at rest, so that a crash,
// an unreachable node or a rollout in several steps does not move it back and forth.
// handover.go describes when it follows another instance.

// bindReferences updates the bindings of a service. It reports whether they now point to
// other instances, or whether running instances became outdated. This is stored before
// any step is taken, so that the new targets are known to be in use and instances are
// classified again.
func (t *turn) bindReferences() bool {
	was := t.st.Bindings
	next, follows, moved := t.resolveReferences(was)
	switch {
	case sameValue(was, next):
		return next != nil && t.rollMisbound()
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

// resolveReferences returns the current value of every reference, the first service whose
// values changed, and whether the references point to other instances now.
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
			t.formerUnbound = cmp.Or(t.formerUnbound, why)
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

// rollMisbound starts a rollout if instances refer to something other than the binding
// and no rollout replaces them, because the rollout that was in progress when the binding
// changed did not cover them.
func (t *turn) rollMisbound() bool {
	if t.s.misbound == 0 || t.st.Rollout != nil {
		return false
	}
	t.startFollowing("")
	return true
}

// startFollowing starts a rollout, or resets the progress time of the current one, so
// that instances are created with the current values of their references.
func (t *turn) startFollowing(on string) {
	r := mariposa.Rollout{Number: t.st.Number, From: t.st.Number, Follows: on}
	if t.st.Rollout != nil {
		r = *t.st.Rollout
	}
	r.Progress, r.MostServing, r.Failures, r.FailureReason = t.now, 0, 0, nil // it has a new purpose now
	t.st.Rollout = &r
	t.st.Status, t.st.Reason = mariposa.StatusConverging, &mariposa.Reason{Code: mariposa.ReasonFollowsOther}
	if on != "" {
		t.st.Reason = &mariposa.Reason{Code: mariposa.ReasonFollows, Subject: on, Other: t.st.Bindings.To[on].Name}
	}
	t.left = max(1, t.s.countWanted())
}

// referencesOf returns the referenced fields by service: those of the current definition,
// of the definitions that its instances were created from, and of the fallback version.
// The live values of an instance follow the current definition, whatever it was created
// from.
func (v *View) referencesOf(s *service) map[string][]string {
	var out map[string][]string
	add := func(refs []mariposa.Ref) {
		for _, r := range refs {
			if out == nil {
				out = map[string][]string{}
			}
			if !slices.Contains(out[r.Service], r.Field) {
				out[r.Service] = append(out[r.Service], r.Field)
			}
		}
	}
	if s.def != nil {
		add(s.def.Refs)
		add(s.def.LiveRefs)
	}
	if s.status == nil || out == nil && s.status.Bindings == nil && s.status.Rollout == nil {
		return out // the common case
	}
	fallback := fallbackVersion(s.status)
	for _, number := range append(slices.Sorted(maps.Keys(s.numbers)), fallback) {
		d := v.Definition(number, s.name)
		if d == nil {
			continue
		}
		if add(d.Refs); number == fallback {
			add(d.LiveRefs)
		}
	}
	return out
}

// bindTo returns the binding to another service, and the reason if it is not up to date.
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
		keepSetFields(&b, old) // the set is not yet complete
	}
	return b, t.missingField(on, b, fields)
}

// nextTarget finds the next instance to bind to. If there is none yet, it returns nil and
// the reason.
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
		t.goneReference = gone(mariposa.ReasonReferenceGone)
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
	case !d.isAtRest() && !d.awaitsFollowers() && !t.isAwaitedBy(d): // the new target may be removed soon
		if had {
			return nil, gone(mariposa.ReasonWaitsReference)
		}
		return nil, &mariposa.Reason{Code: mariposa.ReasonWaitsRest, Subject: on}
	case had && !t.isProven(d, i, old.Name):
		return nil, gone(mariposa.ReasonWaitsReference)
	}
	return i, nil
}

// isAwaitedBy reports whether another service keeps an instance until this one uses another. Then
// this one must not wait for the other to be at rest: both would wait for ever.
func (t *turn) isAwaitedBy(d *facts) bool {
	return slices.ContainsFunc(d.status.Yields, func(id string) bool {
		return t.view.referrers[id][t.s] > 0
	})
}

// isScaledToZero reports whether a user scaled another service to zero.
func (t *turn) isScaledToZero(name string) bool {
	d := t.otherFacts(name)
	return d != nil && d.status != nil && d.status.Scale == 0
}

// missingField returns the requested field that an instance does not have; nil: none.
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

// refreshBinding keeps a binding and updates its values. New fields are looked up. Fields
// about all instances are read again once the other service is at rest. The first lookup
// does not wait for that if the other service waits for its followers.
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

// isSetField reports whether a field covers all instances of a service.
func isSetField(field string) bool { return field == "ids" || field == "addresses" }

// keepSetFields keeps the old values of the fields that cover all instances.
func keepSetFields(b *mariposa.Binding, old mariposa.Binding) {
	for f, value := range old.Values {
		if isSetField(f) {
			b.Values[f] = value
		}
	}
}

// bindsOneInstance reports whether a binding uses the instance itself, not only
// fields that cover all instances.
func bindsOneInstance(b mariposa.Binding) bool {
	for f := range b.Values {
		if !isSetField(f) {
			return true
		}
	}
	return false
}

// bindingDigest returns the digest of the values of the current definition's references,
// and whether some are unresolved.
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

// digestOf hashes texts, each prefixed with its length.
func digestOf(parts []string) string {
	var all strings.Builder
	for _, p := range parts {
		all.WriteString(strconv.Itoa(len(p)) + ":" + p)
	}
	sum := sha256.Sum256([]byte(all.String()))
	return hex.EncodeToString(sum[:12])
}

// boundStep begins the step that creates an instance of a version, with the values of its
// references. It reports whether all of them resolve to existing instances: nothing is
// created with a reference to a removed instance.
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
	why := cmp.Or(t.unbound, t.formerUnbound)
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

// findGoneReference returns the removed instance that a definition refers to; nil: none.
func (t *turn) findGoneReference(def *mariposa.Service) *mariposa.Reason {
	for _, r := range def.Refs {
		if isSetField(r.Field) {
			continue
		}
		b, _ := t.st.Bindings.Get(r.Service)
		switch d := t.otherFacts(r.Service); {
		case t.attachmentOf(d, b) == detached:
			return &mariposa.Reason{Code: mariposa.ReasonWaitsReference, Subject: r.Service, Other: b.Name}
		case d.isYielding(b.Instance) || d.members[b.Instance] == unhealthy:
			return &mariposa.Reason{Code: mariposa.ReasonWaitsRest, Subject: r.Service}
		case d.ending:
			return &mariposa.Reason{Code: mariposa.ReasonWaitsStopped, Subject: r.Service}
		case d.goal == 0:
			return &mariposa.Reason{Code: mariposa.ReasonWaitsScale, Subject: r.Service}
		case d.isRolling && d.def.Update.StopFirst && d.members[b.Instance] == outdatedRunning: // removed before its successor starts
			return &mariposa.Reason{Code: mariposa.ReasonWaitsRollout, Subject: r.Service}
		case t.leavesFirst(d, b.Instance):
			return &mariposa.Reason{Code: mariposa.ReasonWaitsRest, Subject: r.Service}
		}
	}
	return nil
}
