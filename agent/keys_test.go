package agent_test

import (
	"errors"
	"testing"
	"time"

	"mariposa"
	"mariposa/agent"
	"mariposa/wire"
)

// keyRig is a node whose keys the test stores.
type keyRig struct {
	*rig
	stored []agent.Keys
	fails  error
}

const firstKey = "the key of the node"

func newKeyRig(t *testing.T) *keyRig {
	t.Helper()
	r := &keyRig{rig: newRig(t)}
	r.start(agent.Keys{Current: firstKey})
	return r
}

// start starts the agent with stored keys.
func (r *keyRig) start(keys agent.Keys) {
	r.t.Helper()
	r.boot()
	r.node = agent.NewNode(agent.Options{
		Hello: wire.Hello{Node: "n1", Name: "n1", Key: keys.Current, FormerKey: keys.Former}, Clock: r.clk, Wake: r.wake, Spawn: r.clk.Go,
		StoreKeys: func(k agent.Keys) error {
			if r.fails == nil {
				r.stored = append(r.stored, k)
			}
			return r.fails
		},
	})
	if err := r.node.List(r.t.Context()); err != nil {
		r.t.Fatal(err)
	}
}

// join connects the node; the control plane admits it with a key.
func (r *keyRig) join(key string) *wire.Hello {
	r.t.Helper()
	r.conn = &conn{}
	r.node.Connected(r.conn)
	r.node.Step(r.t.Context())
	r.conn.seq++
	r.node.Receive(r.conn, wire.Frame{Seq: r.conn.seq, Welcome: &wire.Welcome{Epoch: 1, Incarnation: "i", HeartbeatInterval: time.Minute, KeyHash: mariposa.HashKey(key)}})
	r.node.Step(r.t.Context())
	return r.conn.sent()[0].Hello
}

func (r *keyRig) askForKey() {
	r.t.Helper()
	r.conn.seq++
	r.node.Receive(r.conn, wire.Frame{Seq: r.conn.seq, Rotate: &wire.Rotate{}})
	r.node.Step(r.t.Context())
}

// offered returns the hashes of keys that the node has offered in this session.
func (r *keyRig) offered() (out []string) {
	for _, f := range r.conn.sent() {
		if f.Rotate != nil {
			out = append(out, f.Rotate.KeyHash)
		}
	}
	return out
}

func TestANewKeyIsStoredBeforeItIsOffered(t *testing.T) {
	t.Parallel()
	r := newKeyRig(t)
	r.join(firstKey)
	r.fails = errors.New("the disk is full")
	r.askForKey()
	if len(r.offered()) != 0 {
		t.Fatal("a key was offered that is not stored")
	}
	if h := r.join(firstKey); h.Key != firstKey || h.FormerKey != "" {
		t.Errorf("it says %+v", h)
	}
	r.fails = nil
	r.askForKey()
	if len(r.stored) != 1 || r.stored[0].Former != firstKey || len(r.stored[0].Current) < 32 {
		t.Fatalf("stored %+v", r.stored)
	}
	next := r.stored[0].Current
	if got := r.offered(); len(got) != 1 || got[0] != mariposa.HashKey(next) {
		t.Errorf("offered %v", got)
	}
	if h := r.join(next); h.Key != next || h.FormerKey != firstKey {
		t.Errorf("it says %+v", h)
	}
	if len(r.offered()) != 0 {
		t.Error("it offers a key that the control plane knows")
	}
	r.askForKey()
	if len(r.stored) != 2 || r.stored[1].Former != next {
		t.Errorf("stored %+v", r.stored)
	}
}

// As long as the control plane does not know the current key, no other one is made: the
// former one would be lost.
func TestAKeyThatIsNotKnownYetIsOfferedAgain(t *testing.T) {
	t.Parallel()
	r := newKeyRig(t)
	const next = "the next key of the node"
	r.start(agent.Keys{Current: next, Former: firstKey}) // it was killed before its offer was stored
	r.join(firstKey)
	r.askForKey()
	if got := r.offered(); len(got) != 2 || got[0] != mariposa.HashKey(next) || got[1] != got[0] || len(r.stored) != 0 {
		t.Errorf("offered %v, stored %+v", got, r.stored)
	}
}

func TestANodeThatStoresNoKeysKeepsItsKey(t *testing.T) {
	t.Parallel()
	r := newKeyRig(t)
	r.node.StoreKeys = nil
	r.join(firstKey)
	r.askForKey()
	if len(r.offered()) != 0 || r.conn.isClosed() {
		t.Error("it does something else")
	}
}
