package fleet_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"mariposa"
	"mariposa/store"
	"mariposa/store/memory"
	"mariposa/wire"
)

// twoReplicas are two control planes that let nodes join with the same token. Their heartbeat
// interval is long: with a short one, a pause of the machine counts as a failure of the store, and
// they refuse nodes.
func twoReplicas(t *testing.T, token mariposa.TokenSpec) [2]*testServer {
	t.Helper()
	st := memory.New(steady)
	t.Cleanup(func() { _ = st.Close() })
	token.Use, token.Name = mariposa.TokenJoin, "fleet"
	all := [2]*testServer{newTestReplica(t, time.Minute, st, st, "r1"), newTestReplica(t, time.Minute, st, st, "r2")}
	all[0].commit(store.Write{Kind: mariposa.KindToken, ID: "tok", Spec: &token})
	for _, p := range all {
		p.token = "tok"
		p.until("the token is there", func() bool { return p.pic.Tokens.Get("tok") != nil })
	}
	return all
}

// sayHello connects, and returns the answer to a hello. The connection stays open.
func (p *testServer) sayHello(h *wire.Hello) wire.Frame {
	pipe, _ := p.dial()
	p.t.Cleanup(pipe.Close)
	pipe.Send(wire.Frame{Seq: 1, Hello: h})
	f, err := pipe.Read(p.ctx)
	if err != nil {
		p.t.Errorf("no answer: %v", err)
	}
	return f
}

// Many nodes join at the same time, at two replicas. Each is welcomed by its first
// connection, and each use of the token is counted.
func TestNodesJoinAtTheSameTimeWithOneToken(t *testing.T) {
	t.Parallel()
	const nodes = 40
	all := twoReplicas(t, mariposa.TokenSpec{Uses: nodes})
	var joining sync.WaitGroup
	for i := range nodes {
		joining.Go(func() {
			if f := all[i%2].sayHello(hello(fmt.Sprintf("n%d", i))); f.Welcome == nil {
				t.Errorf("n%d was refused: %+v", i, f.Bye)
			}
		})
	}
	joining.Wait()
	if t.Failed() {
		return
	}
	for _, p := range all {
		p.until("all nodes have joined", func() bool { return len(p.pic.Nodes.All()) == nodes })
	}
	if spec := all[0].pic.Tokens.Get("tok").Spec(); spec.Joined != nodes {
		t.Errorf("%d uses were counted", spec.Joined)
	}
	if f := all[1].sayHello(hello("late")); f.Bye == nil {
		t.Error("one more node joined")
	}
}

// Nodes that have the same name join at the same time, at two replicas, with a token that
// has no limit. One of them gets in.
func TestOneOfSeveralNodesWithTheSameNameJoins(t *testing.T) {
	t.Parallel()
	all := twoReplicas(t, mariposa.TokenSpec{})
	var joining sync.WaitGroup
	var welcomed atomic.Int32
	for i := range 10 {
		joining.Go(func() {
			h := hello(fmt.Sprintf("n%d", i))
			h.Name = "db-1"
			switch f := all[i%2].sayHello(h); {
			case f.Welcome != nil:
				welcomed.Add(1)
			case f.Bye == nil || !f.Bye.Final || !strings.Contains(f.Bye.Reason, "another node is named db-1"):
				t.Errorf("got %+v", f.Bye)
			}
		})
	}
	joining.Wait()
	if n := welcomed.Load(); n != 1 {
		t.Errorf("%d nodes are named db-1", n)
	}
}

// slowSeizing is a store that does not let leases be seized while it is held up.
type slowSeizing struct {
	store.Store
	asked, left, heldUp chan struct{}
}

func (s *slowSeizing) Seize(ctx context.Context, holder, name string) (store.Lease, error) {
	s.asked <- struct{}{}
	select {
	case <-ctx.Done():
		s.left <- struct{}{}
		return store.Lease{}, ctx.Err()
	case <-s.heldUp:
		return s.Store.Seize(ctx, holder, name)
	}
}

// An agent leaves a replica whose store takes long, and connects to another one. When the
// store answers, the session that it has now goes on.
func TestAnAgentThatLeftGetsNoSession(t *testing.T) {
	t.Parallel()
	st := memory.New(steady)
	t.Cleanup(func() { _ = st.Close() })
	slow := &slowSeizing{Store: st, asked: make(chan struct{}, 10), left: make(chan struct{}, 10), heldUp: make(chan struct{})}
	first, second := newTestReplica(t, 10*time.Second, st, slow, "r1"), newTestReplica(t, 10*time.Second, st, st, "r2")
	pipe, conn := first.dial()
	defer pipe.Close()
	pipe.Send(wire.Frame{Seq: 1, Hello: hello("n1")})
	<-slow.asked
	_ = conn.CloseNow()
	if f := second.sayHello(hello("n1")); f.Welcome == nil {
		t.Fatalf("refused: %+v", f.Bye)
	}
	select {
	case <-slow.left:
	case <-time.After(20 * time.Second):
		t.Error("the first replica did not notice that the agent has left")
	}
	close(slow.heldUp)
	first.serving.Wait()
	st1, err := st.Get(t.Context(), mariposa.KindNode, "n1")
	if err != nil {
		t.Fatal(err)
	}
	if at := st1.Status.(*mariposa.NodeStatus).Replica; at != "r2" || first.fleet.Sessions() != 0 || second.fleet.Sessions() != 1 {
		t.Errorf("it is connected to %s; sessions %d and %d", at, first.fleet.Sessions(), second.fleet.Sessions())
	}
}
