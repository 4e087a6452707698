package api_test

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"

	"mariposa"
	"mariposa/agent"
	"mariposa/contract"
	"mariposa/driver"
	"mariposa/driver/dummy"
	"mariposa/wire"
)

// runAgent runs the agent of a dummy node. Leave stops it and returns its error.
func (h *testServer) runAgent(node, name, key, token string) (leave func() error, ended <-chan error) {
	return h.runAgentWith(agent.Options{Hello: wire.Hello{Node: node, Key: key, Name: name}}, token)
}

func (h *testServer) runAgentWith(o agent.Options, token string) (leave func() error, ended <-chan error) {
	ctx, cancel := context.WithCancel(h.ctx)
	d := dummy.New(dummy.NewWorld(1), steady)
	over := make(chan error, 2)
	go func() {
		o.Hello.Dummy, o.Drivers, o.Clock = true, []driver.Driver{d}, steady
		err := agent.Run(ctx, agent.Link{Servers: []string{h.url}, Token: token, Client: h.http}, o)
		_ = d.Close()
		over <- err
		over <- err
	}()
	h.t.Cleanup(func() {
		cancel()
		<-over
	})
	return func() error { cancel(); return <-over }, over
}

// tryJoin connects a node that should be rejected, and returns the error.
func (h *testServer) tryJoin(node, name, key, token string) error {
	h.t.Helper()
	_, ended := h.runAgent(node, name, key, token)
	select {
	case err := <-ended:
		return err
	case <-time.After(time.Minute):
		return fmt.Errorf("the agent of %s was neither accepted nor rejected", name)
	}
}

// joins connects a node that must be accepted, and disconnects it.
func (h *testServer) joins(node, name, key, token string) {
	h.t.Helper()
	before := int64(0)
	if r := h.picture.Nodes.Get(node); r != nil {
		before = r.Status().Epoch
	}
	leave, _ := h.runAgent(node, name, key, token)
	h.until("node "+name+" to connect", func() bool {
		r := h.picture.Nodes.Get(node)
		return r != nil && r.Status() != nil && r.Status().State == mariposa.NodeRunning && r.Status().Epoch > before
	})
	if err := leave(); err != nil {
		h.t.Errorf("the agent of %s ended: %v", name, err)
	}
}

const nodeKey = "a-secret-key-of-the-node-"

// A join token expires or is used up; nodes that have joined no longer need it.
func TestAJoinTokenIsSpentAndEnds(t *testing.T) {
	t.Parallel()
	now := &shiftedClock{}
	w := newTestTeams(t, withClock(now))
	two := 2
	made := w.mintBy(contract.NewToken{Name: "rack-7", Use: mariposa.TokenJoin, Uses: &two})
	if !strings.HasPrefix(made.Secret, "mrj_") || made.Expires == nil || made.Expires.Sub(made.Created) != 24*time.Hour || *made.Uses != 2 || *made.Joined != 0 || made.User != "" {
		t.Errorf("made: %+v", made)
	}
	if usual := w.mintBy(contract.NewToken{Name: "usual", Use: mariposa.TokenJoin}); *usual.Uses != 10 {
		t.Errorf("by default: %+v", usual)
	}
	for _, long := range []string{"9999d", "366d", "2999-01-01T00:00:00Z"} {
		w.call("POST", "/v1/tokens", contract.NewToken{Name: "for ever", Use: mariposa.TokenJoin, Expires: long}).wantError(400, mariposa.InvalidArgument, "expires", "at most 365 days")
	}
	w.mintBy(contract.NewToken{Name: "for a year", Use: mariposa.TokenJoin, Expires: "365d"})
	w.joins("a1", "node-a", nodeKey+"a", made.Secret)
	w.joins("a1", "node-a", nodeKey+"a", made.Secret) // which is no second node
	w.joins("b1", "node-b", nodeKey+"b", made.Secret)
	refused := func(why, node, name, key, token string) {
		t.Helper()
		if err := w.tryJoin(node, name, key, token); err == nil || !strings.Contains(err.Error(), why) {
			t.Errorf("node %s should have been rejected: %v", name, err)
		}
	}
	refused("has let 2 nodes join", "c1", "node-c", nodeKey+"c", made.Secret)
	w.until("the use to be noted", func() bool {
		for _, one := range want[contract.Tokens](w.call("GET", "/v1/tokens?use=join", nil), 200).Tokens {
			if one.Name == "rack-7" {
				return *one.Joined == 2 && one.LastUsed != nil && one.LastFrom == "127.0.0.1" && one.Secret == ""
			}
		}
		return false
	})
	if r := w.call("GET", "/v1/nodes/node-a", nil); contains(string(r.body), nodeKey) || !contains(string(r.body), mariposa.Fingerprint(mariposa.HashKey(nodeKey+"a"))) {
		t.Errorf("node show: %s", r.body)
	}
	joined := w.audit("?action=node.join&limit=10")
	if len(joined) != 2 || joined[1].ObjectName != "node-a" || joined[1].Token != made.ID || joined[1].From != "127.0.0.1" {
		t.Errorf("the audit of joining: %+v", joined)
	}

	// Their keys are sufficient from now on, whatever happens to the token; other keys are not.
	want[contract.Changed](w.call("DELETE", "/v1/tokens/rack-7", nil), 200)
	w.joins("a1", "node-a", nodeKey+"a", made.Secret)
	w.joins("b1", "node-b", nodeKey+"b", "")
	refused("was revoked on", "c1", "node-c", nodeKey+"c", made.Secret)
	refused("start the agent with a join token", "c1", "node-c", nodeKey+"c", "")
	refused("start the agent with a join token", "a1", "node-a", nodeKey+"wrong", "")
	late := w.mintBy(contract.NewToken{Name: "late", Use: mariposa.TokenJoin, Expires: "1h"})
	now.turn(2 * time.Hour)
	refused("expired on", "c1", "node-c", nodeKey+"c", late.Secret)
	refused("is the token of a user", "c1", "node-c", nodeKey+"c", adminToken)
	w.as(late.Secret).call("GET", "/v1/nodes", nil).wantError(401, mariposa.Unauthorized)

	sam := w.asUser("sam")
	sam.call("POST", "/v1/tokens", contract.NewToken{Name: "mine", Use: mariposa.TokenJoin}).wantError(403, mariposa.Forbidden)
	sam.call("GET", "/v1/tokens?use=join", nil).wantError(403, mariposa.Forbidden)
	sam.call("DELETE", "/v1/tokens/"+late.ID, nil).wantError(404, mariposa.ResourceNotFound)
	sam.call("GET", "/v1/tokens/late", nil).wantError(404, mariposa.ResourceNotFound)
	w.call("POST", "/v1/tokens", contract.NewToken{Name: "x", Use: mariposa.TokenJoin, Role: mariposa.RoleViewer}).wantError(400, mariposa.InvalidArgument)
	w.call("POST", "/v1/tokens", contract.NewToken{Name: "x", Uses: &two}).wantError(400, mariposa.InvalidArgument, "uses")
}

// A token for one node lets one node join, however many try at once.
func TestNodesThatRaceShareTheUses(t *testing.T) {
	t.Parallel()
	h := newTestServer(t)
	one := 1
	made := h.mintBy(contract.NewToken{Name: "one", Use: mariposa.TokenJoin, Uses: &one})
	const n = 8
	ends := make(chan error, n)
	for i := range n {
		_, ended := h.runAgent(fmt.Sprintf("r%d", i), fmt.Sprintf("racer-%d", i), nodeKey+"racer", made.Secret)
		go func() { ends <- <-ended }()
	}
	for range n - 1 {
		select {
		case err := <-ends:
			if err == nil || !strings.Contains(err.Error(), "has let 1 node join") {
				t.Errorf("an agent ended with %v", err)
			}
		case <-time.After(time.Minute):
			t.Fatal("not all but one were refused")
		}
	}
	if got := len(h.picture.Nodes.All()); got != 1 {
		t.Errorf("%d nodes joined", got)
	}
}

// With a join token, an attacker tries to impersonate another node.
func TestNoNodeCanBeTakenForAnother(t *testing.T) {
	t.Parallel()
	h := newTestServer(t)
	h.joins("a1", "node-a", nodeKey+"a", joinToken)
	for what, c := range map[string]struct{ node, name, why string }{
		"its name":                {"x1", "node-a", "another node is named node-a"},
		"its id as a name":        {"x1", "a1", "another node is named a1"},
		"its id":                  {"a1", "node-a", "another key"},
		"its name as an id":       {"node-a", "node-x", "another node has that name"},
		"upper case":              {"x1", "Node-A", "invalid node name"},
		"an id of nobody's":       {"x1", "01a1e292-dec4-7ded-baeb-00a6b6bf75b3", "looks like an id"},
		"what moves the cursor":   {"x1", "node-b\x1b[2J", "the name of a node must have 1 to 253 characters"},
		"a path":                  {"x1", "../../etc", "invalid node name"},
		"a space at the end":      {"x1", "node-a ", "invalid node name"},
		"no name":                 {"x1", "", "the name of a node must have 1 to 253 characters"},
		"a long name":             {"x1", strings.Repeat("a.", 126) + "aa", "the name of a node must have 1 to 253 characters"},
		"a dash at the beginning": {"x1", "-rf", "invalid node name"},
	} {
		if err := h.tryJoin(c.node, c.name, nodeKey+"x", joinToken); err == nil || !strings.Contains(err.Error(), c.why) {
			t.Errorf("with %s: %v", what, err)
		}
	}
	if n := len(h.picture.Nodes.All()); n != 1 {
		t.Errorf("there are %d nodes", n)
	}
	h.joins("a1", "node-b.example.org", nodeKey+"a", "") // its own to change
}

// sayHello connects a node by hand, and returns the first message that it receives.
func (h *testServer) sayHello(node, name, key, token string) wire.Frame {
	h.t.Helper()
	ctx, cancel := context.WithTimeout(h.ctx, time.Minute)
	defer cancel()
	conn, _, err := websocket.Dial(ctx, "ws"+strings.TrimPrefix(h.url, "http")+agent.Path, &websocket.DialOptions{
		HTTPClient: h.http, HTTPHeader: http.Header{"Authorization": {"Bearer " + token}},
	})
	if err != nil {
		h.t.Fatal(err)
	}
	pipe := wire.NewPipe(ctx, conn)
	defer pipe.Close()
	pipe.Send(wire.Frame{Seq: 1, Hello: &wire.Hello{Protocol: wire.Protocol, Node: node, Key: key, Name: name, Dummy: true}})
	return must(pipe.Read(ctx))(h.t)
}

func approveNodes(s *settings) { s.approve = true }

// A node that is not approved receives no data and no instances.
func TestANewNodeWaitsForApproval(t *testing.T) {
	t.Parallel()
	h := newTestServer(t, approveNodes, withPlanner)
	token := h.mintBy(contract.NewToken{Name: "join", Use: mariposa.TokenJoin}).Secret
	h.runAgent("w1", "waiting", nodeKey+"w", token)
	node := func(ref string) contract.Node { return want[contract.Node](h.call("GET", "/v1/nodes/"+ref, nil), 200) }
	h.until("the node to wait", func() bool {
		r := h.call("GET", "/v1/nodes/waiting", nil)
		return r.status == 200 && read[contract.Node](t, r.body).Status == mariposa.NodePending
	})
	fingerprint := mariposa.Fingerprint(mariposa.HashKey(nodeKey + "w"))
	if n := node("waiting"); n.Address != "127.0.0.1" || n.Fingerprint != fingerprint || len(n.Drivers) != 0 || !strings.Contains(n.Reason, "mariposa node accept waiting") {
		t.Errorf("it waits as %+v", n)
	}
	want[contract.Changed](h.call("POST", "/v1/projects?name=hello", "services: {web: {compute_type: dummy}}"), 201)
	h.until("the plan to find no node", func() bool {
		s := want[contract.State](h.call("GET", "/v1/state", nil), 200)
		return len(s.Projects) == 1 && s.Projects[0].Status == mariposa.StatusBlocked
	})
	if n := h.picture.Instances.Len(); n != 0 {
		t.Errorf("%d instances were made", n)
	}
	// The agent learns only that it waits, and nothing about the server.
	bye := h.sayHello("w1", "waiting", nodeKey+"w", token)
	if bye.Bye == nil || bye.Bye.Final || bye.Welcome != nil || !strings.Contains(bye.Bye.Reason, fingerprint) {
		t.Errorf("it hears %+v", bye)
	}
	if f := h.sayHello("w1", "other-name", nodeKey+"w", token); f.Bye == nil || !f.Bye.Final || !strings.Contains(f.Bye.Reason, "is waiting for approval as waiting") {
		t.Errorf("it becomes another while it waits: %+v", f)
	}
	h.call("PUT", "/v1/nodes/waiting", contract.NodeAction{Action: "approve", Fingerprint: "SHA256:of-another"}).wantError(409, mariposa.Conflict, fingerprint)
	want[contract.Changed](h.call("PUT", "/v1/nodes/waiting", contract.NodeAction{Action: "approve", Fingerprint: fingerprint}), 200)
	h.until("the instance to run there", func() bool {
		s := want[contract.State](h.call("GET", "/v1/state", nil), 200)
		return s.Projects[0].Status == mariposa.StatusConverged && node("waiting").Status == mariposa.NodeRunning
	})
	h.call("PUT", "/v1/nodes/waiting", contract.NodeAction{Action: "reject"}).wantError(409, mariposa.Conflict, "already accepted")

	_, ended := h.runAgent("v1", "unwanted", nodeKey+"v", token)
	h.until("the other to wait", func() bool { return h.call("GET", "/v1/nodes/unwanted", nil).status == 200 })
	want[contract.Changed](h.call("PUT", "/v1/nodes/unwanted", contract.NodeAction{Action: "reject"}), 200)
	if err := <-ended; err == nil || !strings.Contains(err.Error(), "was rejected") {
		t.Errorf("its agent ended with %v", err)
	}
	if n := node("unwanted"); n.Status != mariposa.NodeRejected {
		t.Errorf("it was rejected: %+v", n)
	}
	// Its name can be reused, and it stays rejected until it is removed.
	if err := h.tryJoin("v1", "unwanted", nodeKey+"v", token); err == nil || !strings.Contains(err.Error(), "was rejected") {
		t.Errorf("a rejected node joined again: %v", err)
	}
	h.runAgent("u1", "unwanted", nodeKey+"u", token)
	h.until("one of the same name to wait", func() bool { return node("unwanted").ID == "u1" })
	h.call("PUT", "/v1/nodes/v1", contract.NodeAction{Action: "approve"}).wantError(409, mariposa.Conflict, "another node already has the name unwanted")
	want[contract.Changed](h.call("DELETE", "/v1/nodes/v1", nil), 200)
	var kinds []string
	for _, e := range want[contract.Events](h.call("GET", "/v1/events?since=0&limit=1000", nil), 200).Events {
		if strings.HasPrefix(e.Kind, "node.") {
			kinds = append(kinds, e.Kind)
		}
	}
	var decisions []string
	for _, a := range h.audit("?action=node.act&limit=10") {
		decision, _, _ := strings.Cut(a.Reason, ";")
		decisions = append(decisions, a.ObjectName+" "+decision)
	}
	if got := strings.Join(decisions, ", "); !strings.Contains(got, "unwanted rejected") || !strings.Contains(got, "waiting approved") {
		t.Errorf("the audit records are %s", got)
	}
	want[contract.Changed](h.call("DELETE", "/v1/nodes/u1", nil), 200) // it waits, and its agent may be gone for good
	if got := strings.Join(kinds, " "); got != "node.pending node.approved node.running node.pending node.rejected node.pending node.deleted" {
		t.Errorf("events: %s", got)
	}
}
