package fleet_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"mariposa"
	"mariposa/fleet"
	"mariposa/wire"
)

const newKey = "a new secret key of the node"

// askForKey does what `mariposa node rotate-key` does.
func (r *rig) askForKey(node string) {
	r.t.Helper()
	r.clk.Pass(time.Millisecond)
	r.amend(node, func(s *mariposa.NodeSpec) { s.RotateKey = r.clk.Now() })
}

// asked counts how often the agent was asked for a new key.
func (p *peer) asked() (n int) {
	for _, f := range p.heard() {
		if f.Rotate != nil {
			n++
		}
	}
	return n
}

func (p *peer) offer(key string) {
	p.say(wire.Frame{Rotate: &wire.Rotate{KeyHash: mariposa.HashKey(key)}})
	p.r.run()
}

// rotated is the hello of a node that has stored a new key.
func rotated(node string) *wire.Hello {
	h := hello(node)
	h.Key, h.FormerKey = newKey, h.Key
	return h
}

func (r *rig) admits(what string, h *wire.Hello) *peer {
	r.t.Helper()
	r.by = fleet.Admission{Node: h.Node}
	p, bye := r.try(h)
	if bye != nil {
		r.t.Fatalf("%s: refused: %s", what, bye.Reason)
	}
	r.run()
	return p
}

func (p *peer) admittedWith() string {
	for _, f := range p.heard() {
		if f.Welcome != nil {
			return f.Welcome.KeyHash
		}
	}
	return ""
}

func TestAKeyIsReplacedWhenASessionConfirmsTheNewOne(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	p := r.connect("n1")
	old := mariposa.HashKey(hello("n1").Key)
	if p.admittedWith() != old {
		t.Errorf("admitted with %s", p.admittedWith())
	}
	r.askForKey("n1")
	if p.asked() != 1 {
		t.Fatalf("asked %d times", p.asked())
	}
	r.amend("n1", func(s *mariposa.NodeSpec) { s.Reserved = "ann" }) // another change
	if p.asked() != 1 {
		t.Errorf("asked again")
	}
	p.offer(newKey)
	if spec, _ := r.node("n1"); spec.KeyHash != old || spec.NextKeyHash != mariposa.HashKey(newKey) || spec.RotateKey.IsZero() || spec.Reserved != "ann" {
		t.Errorf("the node is %+v", spec)
	}
	if !p.isClosed() {
		t.Error("the session goes on, so that the node does not use its new key")
	}
	// Both keys are valid: the new one may have been lost with the disk.
	q := r.admits("with the old key", hello("n1"))
	if q.asked() != 1 || q.admittedWith() != old {
		t.Errorf("with the old key, it is asked %d times", q.asked())
	}
	s := r.admits("with the new key", rotated("n1"))
	spec, _ := r.node("n1")
	if spec.KeyHash != mariposa.HashKey(newKey) || spec.NextKeyHash != "" || !spec.RotateKey.IsZero() || !slices.Equal(spec.RetiredKeys, []string{old}) {
		t.Errorf("the node is %+v", spec)
	}
	if s.asked() != 0 || s.admittedWith() != mariposa.HashKey(newKey) {
		t.Errorf("it is asked %d times, admitted with %s", s.asked(), s.admittedWith())
	}
	if _, bye := r.try(hello("n1")); bye == nil || !bye.Final || !strings.Contains(bye.Reason, "old copy") {
		t.Errorf("with the old key: %+v", bye)
	}
	r.by = fleet.Admission{Own: true} // a join token does not help
	if _, bye := r.try(hello("n1")); bye == nil || !bye.Final || !strings.Contains(bye.Reason, "old copy") {
		t.Errorf("with the old key and a token: %+v", bye)
	}
	r.admits("again", rotated("n1"))
	changes, err := r.store.Changes(t.Context(), 0, 0)
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for _, c := range changes {
		if c.Event.Kind == "node.key_rotated" {
			n++
		}
	}
	if n != 1 {
		t.Errorf("%d events", n)
	}
}

// A crash of the agent or the server after any step leaves a key that is valid.
func TestNoCrashLocksANodeOut(t *testing.T) {
	t.Parallel()
	t.Run("the agent has stored its key, and the server does not know it", func(t *testing.T) {
		t.Parallel()
		r := newRig(t)
		r.connect("n1")
		r.askForKey("n1")
		r.boot("r2")
		p := r.admits("with both keys", rotated("n1"))
		if p.asked() != 1 || p.admittedWith() != mariposa.HashKey(hello("n1").Key) {
			t.Errorf("asked %d times", p.asked())
		}
		p.offer(newKey)
		r.admits("with both keys", rotated("n1"))
		if spec, _ := r.node("n1"); spec.KeyHash != mariposa.HashKey(newKey) {
			t.Errorf("the node is %+v", spec)
		}
	})
	t.Run("the offer cannot be stored", func(t *testing.T) {
		t.Parallel()
		r := newRig(t)
		p := r.connect("n1")
		r.askForKey("n1")
		r.store.setFault(errTest, nil)
		p.offer(newKey)
		if p.isClosed() {
			t.Error("the session ended without its new key")
		}
		r.store.setFault(nil, nil)
		r.clk.Pass(2 * time.Second)
		r.run()
		if spec, _ := r.node("n1"); spec.NextKeyHash == "" || !p.isClosed() {
			t.Errorf("the node is %+v", spec)
		}
	})
	t.Run("the session that confirms it cannot be stored", func(t *testing.T) {
		t.Parallel()
		r := newRig(t)
		p := r.connect("n1")
		r.askForKey("n1")
		p.offer(newKey)
		for _, lies := range []bool{false, true} { // the commit was lost, or only its answer
			r.store.lies = lies
			r.store.setFault(errTest, nil)
			r.by = fleet.Admission{Node: "n1"}
			if _, bye := r.try(rotated("n1")); bye == nil || bye.Final {
				t.Errorf("it hears %+v", bye)
			}
			r.store.setFault(nil, nil)
			r.run()
		}
		r.admits("with both keys", rotated("n1"))
		if spec, _ := r.node("n1"); spec.KeyHash != mariposa.HashKey(newKey) {
			t.Errorf("the node is %+v", spec)
		}
	})
	t.Run("the store is restored from before the rotation", func(t *testing.T) {
		t.Parallel()
		r := newRig(t)
		r.connect("n1")
		p := r.admits("with both keys", rotated("n1"))
		if p.admittedWith() != mariposa.HashKey(hello("n1").Key) {
			t.Errorf("admitted with %s", p.admittedWith())
		}
		p.offer(newKey) // unasked
		r.admits("with both keys", rotated("n1"))
		if spec, _ := r.node("n1"); spec.KeyHash != mariposa.HashKey(newKey) {
			t.Errorf("the node is %+v", spec)
		}
	})
}

func TestAnInvalidKeyEndsTheSession(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	p := r.connect("n1")
	p.say(wire.Frame{Rotate: &wire.Rotate{KeyHash: "not a hash"}})
	r.run()
	if p.err == nil || !p.isClosed() {
		t.Errorf("it ended with %v", p.err)
	}
}

// A removed node hears it, so that it does not come back by itself.
func TestARemovedNodeIsToldSo(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	p := r.connect("n1")
	r.remove("n1")
	frames := p.heard()
	if last := frames[len(frames)-1]; last.Bye == nil || !last.Bye.Removed || last.Bye.Final || !p.isClosed() {
		t.Errorf("it hears %+v", last)
	}
	r.by = fleet.Admission{Node: "n1"}
	if _, bye := r.try(hello("n1")); bye == nil || !bye.Final {
		t.Errorf("its key is still valid: %+v", bye)
	}
}
