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
		kept := t.stays(d, old)
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
