package fleet_test

import (
	"strings"
	"testing"

	"mariposa"
	"mariposa/store"
	"mariposa/store/memory"
	"mariposa/wire"
)

// seen returns the newest state of the store that an agent was told.
func (p *peer) seen() *wire.Seen {
	var seen wire.Seen
	for _, f := range p.heard() {
		switch {
		case f.Welcome != nil:
			seen = wire.Seen{Incarnation: f.Welcome.Incarnation, Revision: f.Welcome.Revision, Past: f.Welcome.Past, Proof: f.Welcome.Proof}
		case f.Heartbeat != nil:
			seen.Revision, seen.Proof = f.Heartbeat.Revision, f.Heartbeat.Proof
		case f.Assign != nil:
			seen.Revision, seen.Proof = f.Assign.Revision, f.Assign.Proof
		}
	}
	return &seen
}

// change makes the store grow.
func (r *rig) change(n int) {
	r.t.Helper()
	for range n {
		r.commit(store.Write{Kind: mariposa.KindProject, ID: "p", Project: "p", Spec: &mariposa.ProjectSpec{Name: "shop", Organization: "default"}})
	}
}

// replace puts another store in the place of the present one, under a restarted server.
func (r *rig) replace(st store.Store) (outdated *[]int64) {
	r.t.Helper()
	r.store.Store, r.open = st, nil
	r.boot("r1")
	outdated = new([]int64)
	r.fleet.Outdated = func(seen int64) { *outdated = append(*outdated, seen) }
	return outdated
}

// A node that was told a revision which the store does not have shows that the store has
// gone back. It is refused until the store was read again.
func TestANodeThatHasSeenMoreThanTheStoreHasIsHeard(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.connect("n1").session.End("the test goes on")
	r.run()
	backup := r.store.Store.(*memory.Store).Copy()
	r.change(3)
	p := r.connect("n1")
	r.change(3)
	p.say(wire.Frame{Heartbeat: &wire.Heartbeat{}})
	fromBeat := p.seen()
	if fromBeat.Revision != r.pic.Revision() {
		t.Fatalf("it was told %+v, the store has %d", fromBeat, r.pic.Revision())
	}
	told := r.replace(backup)
	h := hello("n1")
	h.Seen = fromBeat
	_, bye := r.try(h)
	if bye == nil || bye.Final || !strings.Contains(bye.Reason, "gone back") || len(*told) != 1 || (*told)[0] != fromBeat.Revision {
		t.Errorf("it was answered %+v, and told %v", bye, *told)
	}
	r.fleet.Outdated = nil
	if _, bye := r.try(h); bye != nil {
		t.Errorf("a node that is not believed is refused: %+v", bye)
	}
}

// The same, if the store had a later incarnation when the node last saw it.
func TestANodeThatHasSeenALaterIncarnationIsHeard(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	first := r.connect("n1").seen()
	backup := r.store.Store.(*memory.Store).Copy()
	if err := r.store.Reincarnate(t.Context(), first.Incarnation); err != nil {
		t.Fatal(err)
	}
	r.replace(r.store.Store)
	h := hello("n1")
	h.Seen = first
	p, bye := r.try(h)
	if bye != nil {
		t.Fatal(bye)
	}
	later := p.seen()
	if later.Incarnation == first.Incarnation || len(later.Past) != 1 || later.Past[0] != first.Incarnation {
		t.Fatalf("it was told %+v after %+v", later, first)
	}
	told := r.replace(backup)
	h.Seen = later
	if _, bye := r.try(h); bye == nil || bye.Final || len(*told) != 1 {
		t.Errorf("it was answered %+v, and told %v", bye, *told)
	}
}

// What no server of this installation signed is not believed: a hostile node could
// otherwise make every server throw away what it has read.
func TestANodeIsNotBelievedWithoutAProof(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	stranger := newRig(t) // another installation, whose stores have the same identity
	stranger.change(50)
	elsewhere := stranger.connect("n1").seen()
	was := r.connect("n1").seen()
	if err := r.store.Reincarnate(t.Context(), was.Incarnation); err != nil {
		t.Fatal(err)
	}
	told := r.replace(r.store.Store)
	h := hello("n1")
	h.Seen = was
	p, bye := r.try(h)
	if bye != nil {
		t.Fatal(bye)
	}
	r.run()
	is := p.seen()
	forge := func(from *wire.Seen, change func(*wire.Seen)) *wire.Seen {
		next := *from
		change(&next)
		return &next
	}
	for what, seen := range map[string]*wire.Seen{
		"nothing":                            nil,
		"what it was told":                   is,
		"what it was told before":            was,
		"a revision without a proof":         forge(is, func(s *wire.Seen) { s.Revision, s.Proof = 8e18, "" }),
		"a later revision":                   forge(is, func(s *wire.Seen) { s.Revision = 8e18 }),
		"a proof of another installation":    forge(elsewhere, func(s *wire.Seen) { s.Incarnation = is.Incarnation }),
		"the current incarnation as a past":  forge(was, func(s *wire.Seen) { s.Past = []string{is.Incarnation} }),
		"a former incarnation as the newest": forge(is, func(s *wire.Seen) { s.Incarnation, s.Past = was.Incarnation, []string{is.Incarnation} }),
		"text instead of a proof":            forge(is, func(s *wire.Seen) { s.Revision, s.Proof = 8e18, strings.Repeat("x=y,", 1000) }),
	} {
		h := hello("n1")
		h.Seen = seen
		if _, bye := r.try(h); bye != nil || len(*told) != 0 {
			t.Errorf("with %s it was answered %+v, and told %v", what, bye, *told)
		}
		r.run()
	}
}
