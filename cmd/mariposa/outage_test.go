package main_test

import (
	"net"
	"net/url"
	"os/exec"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"mariposa"
	"mariposa/client"
	"mariposa/store/postgres/pgtest"
)

// cable is a TCP proxy between a replica and its database that tests can disturb.
type cable struct {
	t        *testing.T
	listener net.Listener
	target   string

	mu    sync.Mutex
	hung  chan struct{} // closed when data flows again; nil while it does
	cut   bool
	conns map[net.Conn]bool
}

// newCable returns a proxy for a connection URL, and the URL through it.
func newCable(t *testing.T, target string) (*cable, string) {
	t.Helper()
	u, err := url.Parse(target)
	must(t, err)
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	must(t, err)
	c := &cable{t: t, listener: l, target: u.Host, conns: map[net.Conn]bool{}}
	var all sync.WaitGroup
	all.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			all.Go(func() { c.serve(conn) })
		}
	})
	t.Cleanup(func() {
		_ = l.Close()
		c.setCut(true)
		c.setHung(false)
		all.Wait()
	})
	u.Host = l.Addr().String()
	return c, u.String()
}

func (c *cable) serve(near net.Conn) {
	defer near.Close()
	far, err := net.Dial("tcp", c.target)
	if err != nil {
		return
	}
	defer far.Close()
	c.mu.Lock()
	if c.cut {
		c.mu.Unlock()
		return
	}
	c.conns[near], c.conns[far] = true, true
	c.mu.Unlock()
	var both sync.WaitGroup
	both.Go(func() { c.copy(far, near) })
	both.Go(func() { c.copy(near, far) })
	both.Wait()
	c.mu.Lock()
	delete(c.conns, near)
	delete(c.conns, far)
	c.mu.Unlock()
}

// copy carries data in one direction, and ends the connection with it.
func (c *cable) copy(to, from net.Conn) {
	defer to.Close()
	buf := make([]byte, 32<<10)
	for {
		n, err := from.Read(buf)
		c.mu.Lock()
		hung := c.hung
		c.mu.Unlock()
		if hung != nil {
			<-hung
		}
		if n > 0 {
			if _, err := to.Write(buf[:n]); err != nil {
				return
			}
		}
		if err != nil {
			return
		}
	}
}

// setHung stops or resumes all data; connections stay open.
func (c *cable) setHung(hung bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case hung && c.hung == nil:
		c.hung = make(chan struct{})
	case !hung && c.hung != nil:
		close(c.hung)
		c.hung = nil
	}
}

// setCut ends all connections, and refuses new ones.
func (c *cable) setCut(cut bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.cut = cut
	if cut {
		for conn := range c.conns {
			_ = conn.Close()
		}
	}
}

// cabled starts replicas that reach their database through a cable each.
func cabled(t *testing.T, replicas int) (*cluster, []*cable) {
	t.Helper()
	database := pgtest.Start(t)
	c := &cluster{devServer: &devServer{t: t, dir: t.TempDir(), out: &lockedBuffer{}}, store: database}
	c.admin, c.join = c.token(), c.token("--join")
	var cables []*cable
	for range replicas {
		var one *cable
		one, c.store = newCable(t, database)
		cables = append(cables, one)
		c.addReplica()
	}
	c.store = database
	for i := range replicas {
		c.ask(i)
		c.await("the replica is ready", func() bool {
			_, err := c.Ready(t.Context())
			return err == nil
		})
	}
	return c, cables
}

// agent starts an agent with dummy nodes, which are named after it.
func (c *cluster) agent(name string, nodes int, servers string) *exec.Cmd {
	c.t.Helper()
	return c.spawnProcess(&lockedBuffer{}, []string{"MARIPOSA_JOIN=" + c.join}, "agent", "--server", servers,
		"--data", filepath.Join(c.dir, name), "--name", name, "--dummy-nodes", itoa(nodes))
}

// nodeStates returns the state of each node by name.
func (c *cluster) nodeStates() map[string]mariposa.NodeState {
	c.t.Helper()
	all, err := c.Nodes(c.t.Context())
	if err != nil {
		return nil
	}
	states := map[string]mariposa.NodeState{}
	for _, n := range all.Nodes {
		states[n.Name] = n.Status
	}
	return states
}

func isAll(states map[string]mariposa.NodeState, want mariposa.NodeState) bool {
	for _, s := range states {
		if s != want {
			return false
		}
	}
	return true
}

// everUnknown returns the ids of the nodes that have been unknown at any time.
func (c *cluster) everUnknown() (ids []string) {
	c.t.Helper()
	events := client.Events{More: true}
	for events.More {
		next, err := c.Events(c.t.Context(), client.EventFilter{Since: events.Revision, Limit: 1000})
		must(c.t, err)
		for _, e := range next.Events {
			if e.Kind == "node.unknown" && !slices.Contains(ids, e.Node) {
				ids = append(ids, e.Node)
			}
		}
		if events = *next; len(next.Events) == 0 {
			break
		}
	}
	return ids
}

// A database that does not answer for a while keeps replicas from renewing their leases
// and nodes from connecting. Nobody is to blame for that.
func TestAStalledDatabaseMakesNoHealthyNodeUnknown(t *testing.T) {
	t.Parallel()
	c, cables := cabled(t, 2)
	dying := []*exec.Cmd{c.agent("dying-0", 1, c.replicas[0].url), c.agent("dying-1", 1, c.replicas[1].url)}
	c.agent("healthy-0", 2, c.replicas[0].url)
	c.agent("healthy-1", 2, c.replicas[1].url)
	c.await("all nodes run", func() bool {
		states := c.nodeStates()
		return len(states) == 6 && isAll(states, mariposa.NodeRunning)
	})
	for _, cable := range cables {
		cable.setHung(true)
	}
	for i := range cables {
		c.await("the sessions have ended", func() bool { return c.metric(i, "mariposa_sessions") == 0 })
	}
	time.Sleep(11 * time.Second) // the stall itself: 17 s in total, less than the 20 s after which blocked calls fail
	for _, cable := range cables {
		cable.setHung(false)
	}
	for i := range cables {
		c.await("the nodes are back", func() bool { return c.metric(i, "mariposa_sessions") == 3 })
	}
	for _, cmd := range dying { // by the time that they are unknown, everybody has been judged
		end(cmd)
	}
	var states map[string]mariposa.NodeState
	c.await("both dead nodes are unknown", func() bool {
		states = c.nodeStates()
		n := 0
		for _, s := range states {
			if s == mariposa.NodeUnknown {
				n++
			}
		}
		return n >= 2
	})
	if unknown := c.everUnknown(); len(unknown) != 2 {
		t.Errorf("nodes %v have been unknown; the states are %v", unknown, states)
	}
}

// The other replica takes over the nodes. Nothing is started a second time, neither
// meanwhile nor once the connection is back.
func TestAReplicaThatLosesItsDatabaseGivesItsNodesAway(t *testing.T) {
	t.Parallel()
	for name, disturb := range map[string]func(*cable, bool){"cut": (*cable).setCut, "hung": (*cable).setHung} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c, cables := cabled(t, 2)
			c.agent("both", 3, c.urls())
			dying := c.agent("dying", 1, c.replicas[1].url)
			c.await("all nodes are connected", func() bool { return c.metric(0, "mariposa_sessions")+c.metric(1, "mariposa_sessions") == 4 })
			c.ask(1)
			c.create("shop", "services: {d: {compute_type: dummy, scale: 6, reschedule: {after: 0}}}")
			c.converged("shop", "d", 6)
			before := c.names()
			disturb(cables[0], true)
			c.await("all nodes are at the other replica", func() bool { return c.metric(0, "mariposa_sessions") == 0 && c.metric(1, "mariposa_sessions") == 4 })
			end(dying) // once it is unknown, all nodes of the other replica have been judged
			c.await("a dead node is unknown", func() bool {
				return c.nodeStates()["dying-1"] == mariposa.NodeUnknown || c.nodeStates()["dying"] == mariposa.NodeUnknown
			})
			c.converged("shop", "d", 6)
			if unknown := c.everUnknown(); len(unknown) != 1 {
				t.Errorf("nodes %v have been unknown", unknown)
			}
			disturb(cables[0], false)
			c.ask(0)
			c.await("the first replica works again", func() bool {
				_, err := c.Ready(t.Context())
				return err == nil && c.metric(0, "mariposa_shards") > 0
			})
			c.converged("shop", "d", 6)
			after := c.names()
			kept := 0
			for _, name := range before {
				if slices.Contains(after, name) {
					kept++
				}
			}
			if len(after) < 6 || kept < 4 { // what ran on the dead node was replaced
				t.Errorf("%d of %v are left: %v", kept, before, after)
			}
		})
	}
}
