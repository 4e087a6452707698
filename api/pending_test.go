package api_test

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/coder/websocket"

	"mariposa"
	"mariposa/agent"
	"mariposa/contract"
	"mariposa/wire"
)

func withPending(n int) func(*settings) { return func(s *settings) { s.pending = n } }

func (h *testServer) nodeByRef(ref string) contract.Node {
	h.t.Helper()
	return want[contract.Node](h.call("GET", "/v1/nodes/"+ref, nil), 200)
}

// becomes waits until a node has a state.
func (h *testServer) becomes(ref string, state mariposa.NodeState) contract.Node {
	h.t.Helper()
	h.until("node "+ref+" to be "+string(state), func() bool {
		r := h.call("GET", "/v1/nodes/"+ref, nil)
		return r.status == 200 && read[contract.Node](h.t, r.body).Status == state
	})
	return h.nodeByRef(ref)
}

// announce sends the hello of a node without a join token, and returns what it hears.
func (h *testServer) announce(hello wire.Hello) (wire.Frame, *http.Response, error) {
	h.t.Helper()
	header := http.Header{wire.NodeHeader: {hello.Node + ":" + hello.Key}}
	conn, resp, err := websocket.Dial(h.ctx, "ws"+strings.TrimPrefix(h.url, "http")+agent.Path, &websocket.DialOptions{HTTPClient: h.http, HTTPHeader: header})
	if err != nil {
		return wire.Frame{}, resp, err
	}
	defer conn.CloseNow()
	hello.Protocol = wire.Protocol
	if err := conn.Write(h.ctx, websocket.MessageText, must(wire.Encode(wire.Frame{Seq: 1, Hello: &hello}))(h.t)); err != nil {
		return wire.Frame{}, resp, err
	}
	_, b, err := conn.Read(h.ctx)
	if err != nil {
		return wire.Frame{}, resp, err
	}
	return must(wire.Decode(b))(h.t), resp, nil
}

// An agent without a join token waits until an operator accepts its node.
func TestANodeWithoutATokenIsAccepted(t *testing.T) {
	t.Parallel()
	h := newTestServer(t, withPending(10))
	id, key := newID(), nodeKey+"stray"
	h.runAgent(id, "stray", key, "")
	n := h.becomes("stray", mariposa.NodePending)
	fingerprint := mariposa.Fingerprint(mariposa.HashKey(key))
	if n.ID != id || !n.Tokenless || n.Fingerprint != fingerprint || n.Address != "127.0.0.1" || n.Eligible || len(n.Drivers) != 0 || !strings.Contains(n.Reason, "mariposa node accept stray --fingerprint SHA256:…") {
		t.Errorf("it waits as %+v", n)
	}
	f, _, err := h.announce(wire.Hello{Node: id, Key: key, Name: "stray"})
	if err != nil || f.Bye == nil || !f.Bye.Pending || f.Bye.Final || !strings.Contains(f.Bye.Reason, fingerprint) {
		t.Errorf("it hears %+v, %v", f, err)
	}
	for _, action := range []string{"rotate-key", "drain", "reschedule-now"} {
		refused := h.call("PUT", "/v1/nodes/stray", contract.NodeAction{Action: action})
		refused.wantError(409, mariposa.Conflict, "node stray is pending")
		refused.wantError(409, mariposa.Conflict, "`mariposa node accept stray --fingerprint SHA256:…`")
		refused.wantError(409, mariposa.Conflict, "`mariposa node rm stray`")
	}
	h.call("PUT", "/v1/nodes/stray", contract.NodeAction{Action: "accept", Fingerprint: "SHA256:other"}).wantError(409, mariposa.Conflict, fingerprint)
	c := want[contract.Changed](h.call("PUT", "/v1/nodes/stray", contract.NodeAction{Action: "accept", Fingerprint: fingerprint}), 200)
	if !strings.Contains(c.Reason, "without a join token") || !strings.Contains(c.Reason, "127.0.0.1") {
		t.Errorf("accepted: %+v", c)
	}
	if n := h.becomes("stray", mariposa.NodeRunning); n.Tokenless || n.ID != id {
		t.Errorf("it runs as %+v", n)
	}
	if again := want[contract.Changed](h.call("PUT", "/v1/nodes/stray", contract.NodeAction{Action: "approve"}), 200); again.ID != id {
		t.Errorf("accepted again: %+v", again)
	}
	told := h.audit("?action=node.announce&limit=10")
	if len(told) != 1 || told[0].ObjectName != "stray" || !strings.Contains(told[0].Reason, fingerprint) {
		t.Errorf("the audit log: %+v", told)
	}
}

// Whoever has a wrong token, or somebody's id, does not wait: that is an error.
func TestWhoMayNotWait(t *testing.T) {
	t.Parallel()
	h := newTestServer(t, withPending(10))
	h.joins("a1", "node-a", nodeKey+"a", joinToken)
	if err := h.tryJoin(newID(), "typo", nodeKey+"t", "mrj_wrong"); err == nil || !strings.Contains(err.Error(), "invalid join token") {
		t.Errorf("with a wrong token: %v", err)
	}
	if err := h.tryJoin("a1", "node-a", nodeKey+"wrong", ""); err == nil || !strings.Contains(err.Error(), "start the agent with a join token") {
		t.Errorf("with a wrong key: %v", err)
	}
	if err := h.tryJoin("x1", "node-x", nodeKey+"x", ""); err == nil || !strings.Contains(err.Error(), "must be a UUID") {
		t.Errorf("with an odd id: %v", err)
	}
	h.call("GET", agent.Path, nil).wantError(401, mariposa.Unauthorized) // nothing at all, or the token of a user
	if n := len(h.picture.Nodes.All()); n != 1 {
		t.Errorf("there are %d nodes", n)
	}
	off := newTestServer(t)
	if err := off.tryJoin(newID(), "stray", nodeKey+"s", ""); err == nil || !strings.Contains(err.Error(), "start the agent with a join token") {
		t.Errorf("where nobody may wait: %v", err)
	}
}

// Nodes that wait can have any name, also that of another node. Nobody is taken for
// another.
func TestNamesOfNodesThatWait(t *testing.T) {
	t.Parallel()
	h := newTestServer(t, withPending(10))
	leave, _ := h.runAgent("a1", "node-a", nodeKey+"a", joinToken)
	h.becomes("node-a", mariposa.NodeRunning)
	ids := []string{newID(), newID(), newID()}
	for i, name := range []string{"node-a", "twin", "twin"} {
		if f, _, err := h.announce(wire.Hello{Node: ids[i], Key: nodeKey + ids[i], Name: name}); err != nil || f.Bye == nil || !f.Bye.Pending {
			t.Fatalf("%s hears %+v, %v", name, f, err)
		}
	}
	h.until("the nodes to be known", func() bool { return len(h.picture.Nodes.All()) == 4 })
	if n := h.nodeByRef("node-a"); n.ID != "a1" {
		t.Errorf("node-a is %+v", n)
	}
	h.call("PUT", "/v1/nodes/node-a", contract.NodeAction{Action: "accept"}).wantError(409, mariposa.Conflict, "another node already has the name node-a")
	n := h.nodeByRef(ids[0])
	if n.ReasonCode != mariposa.ReasonNameTaken || strings.Contains(n.Reason, "node accept") || !strings.Contains(n.Reason, "`mariposa node rm a1`;") || !strings.Contains(n.Reason, "`mariposa node rm "+ids[0]+"`,") {
		t.Errorf("a node with a name that is taken waits: %s", n.Reason)
	}
	if n := h.nodeByRef(ids[1]); n.ReasonCode != mariposa.ReasonAwaitsApproval {
		t.Errorf("a node whose name only waits as well waits: %s", n.Reason)
	}
	h.call("PUT", "/v1/nodes/twin", contract.NodeAction{Action: "accept"}).wantError(409, mariposa.Conflict, "2 nodes", ids[1], ids[2], mariposa.Fingerprint(mariposa.HashKey(nodeKey+ids[1])))
	h.call("GET", "/v1/nodes/twin", nil).wantError(409, mariposa.Conflict, ids[1], ids[2])
	c := want[contract.Changed](h.call("PUT", "/v1/nodes/twin", contract.NodeAction{Action: "accept", Fingerprint: mariposa.Fingerprint(mariposa.HashKey(nodeKey + ids[2]))}), 200)
	if c.ID != ids[2] {
		t.Errorf("accepted %+v", c)
	}
	h.call("PUT", "/v1/nodes/"+ids[1], contract.NodeAction{Action: "accept"}).wantError(409, mariposa.Conflict, "another node already has the name twin")
	want[contract.Changed](h.call("PUT", "/v1/nodes/"+ids[0], contract.NodeAction{Action: "reject"}), 200)
	want[contract.Changed](h.call("DELETE", "/v1/nodes/"+ids[1], nil), 200)
	want[contract.Changed](h.call("DELETE", "/v1/nodes/"+ids[0], nil), 200)
	if err := leave(); err != nil {
		t.Error(err)
	}
}

// Attempts without a token are limited by address; nodes with a key or a token are not
// affected.
func TestAttemptsWithoutATokenAreThrottled(t *testing.T) {
	t.Parallel()
	now := &shiftedClock{}
	h := newTestServer(t, withPending(3), withClock(now))
	h.joins("a1", "node-a", nodeKey+"a", joinToken)
	var throttled, full, waiting int
	for i := range 60 {
		f, resp, err := h.announce(wire.Hello{Node: newID(), Key: fmt.Sprint(nodeKey, i), Name: fmt.Sprint("flood-", i)})
		switch {
		case err != nil && resp != nil && resp.StatusCode == http.StatusTooManyRequests:
			throttled++
		case err != nil:
			t.Fatal(err)
		case strings.Contains(f.Bye.Reason, "no more nodes can wait"):
			full++
		case f.Bye.Pending:
			waiting++
		}
	}
	if waiting != 3 || throttled == 0 || full == 0 {
		t.Errorf("%d wait, %d were told that it is full, %d were throttled", waiting, full, throttled)
	}
	h.joins("a1", "node-a", nodeKey+"a", "")
	h.joins("b1", "flood-0", nodeKey+"b", joinToken)
	// A hello without end is not read.
	now.turn(time.Minute)
	if f, _, err := h.announce(wire.Hello{Node: newID(), Key: nodeKey, Name: strings.Repeat("x", 1<<20)}); err == nil {
		t.Errorf("a hello of a megabyte is answered: %+v", f)
	}
}

// keyFile is where an agent of a test stores its keys.
type keyFile struct {
	mu     sync.Mutex
	stored []agent.Keys
}

func (k *keyFile) store(keys agent.Keys) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.stored = append(k.stored, keys)
	return nil
}

func (k *keyFile) all() []agent.Keys {
	k.mu.Lock()
	defer k.mu.Unlock()
	return slices.Clone(k.stored)
}

func TestAKeyIsRotated(t *testing.T) {
	t.Parallel()
	h := newTestServer(t)
	file := &keyFile{}
	old := nodeKey + "old"
	o := agent.Options{Hello: wire.Hello{Node: "a1", Name: "node-a", Key: old}, StoreKeys: file.store}
	leave, _ := h.runAgentWith(o, joinToken)
	first := h.becomes("node-a", mariposa.NodeRunning)
	rotate := func() contract.Changed {
		return *new(want[contract.Changed](h.call("PUT", "/v1/nodes/node-a", contract.NodeAction{Action: "rotate-key"}), 200))
	}
	done := func(before string) func() bool {
		return func() bool {
			n := h.nodeByRef("node-a")
			return n.KeyRotation == nil && n.Fingerprint != before && n.Status == mariposa.NodeRunning
		}
	}
	rotate()
	h.until("the key to be rotated", done(first.Fingerprint))
	stored := file.all()
	if len(stored) != 1 || stored[0].Former != old || mariposa.Fingerprint(mariposa.HashKey(stored[0].Current)) != h.nodeByRef("node-a").Fingerprint {
		t.Fatalf("stored %+v", stored)
	}
	if err := leave(); err != nil {
		t.Error(err)
	}
	for what, token := range map[string]string{"its old key": "", "its old key and a join token": joinToken} {
		if err := h.tryJoin("a1", "node-a", old, token); err == nil || !strings.Contains(err.Error(), "its data directory is an old copy") {
			t.Errorf("with %s: %v", what, err)
		}
	}
	// A node that is away gets its new key when it returns.
	if c := rotate(); h.nodeByRef("node-a").KeyRotation == nil {
		t.Errorf("asked: %+v", c)
	}
	if again := rotate(); !strings.Contains(again.Reason, "asked for before") {
		t.Errorf("asked again: %+v", again)
	}
	o.Hello.Key, o.Hello.FormerKey = stored[0].Current, stored[0].Former
	second := h.nodeByRef("node-a").Fingerprint
	h.runAgentWith(o, "")
	h.until("the key to be rotated again", done(second))
	if stored = file.all(); len(stored) != 2 || stored[1].Former != stored[0].Current {
		t.Errorf("stored %+v", stored)
	}
	if told := h.audit("?action=node.key-rotated&limit=10"); len(told) != 2 || told[0].ObjectName != "node-a" {
		t.Errorf("the audit log: %+v", told)
	}
}

// A node that is removed while it is connected keeps its instances and stays away.
func TestARemovedNodeStaysAway(t *testing.T) {
	t.Parallel()
	h := newTestServer(t, withPending(10))
	id := newID()
	_, ended := h.runAgent(id, "node-a", nodeKey+"a", joinToken)
	h.becomes("node-a", mariposa.NodeRunning)
	want[contract.Changed](h.call("DELETE", "/v1/nodes/node-a", nil), 200)
	h.until("the session to end", func() bool { return h.fleet.Sessions() == 0 })
	select {
	case err := <-ended:
		t.Errorf("the agent ended: %v", err)
	case <-time.After(time.Second): // it would have reconnected within a tenth of that
	}
	if n := len(h.picture.Nodes.All()); n != 0 {
		t.Errorf("it came back: %d nodes", n)
	}
	h.runAgent(id, "node-a", nodeKey+"a", "") // somebody starts it again
	h.becomes("node-a", mariposa.NodePending)
}
