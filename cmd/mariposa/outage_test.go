package main_test

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"mariposa"
	"mariposa/client"
	"mariposa/contract"
	"mariposa/store/postgres/pgtest"
)

// cable is a TCP proxy between a replica and its database, or a client and a replica, that
// tests can disturb.
type cable struct {
	t        *testing.T
	listener net.Listener
	target   string

	mu    sync.Mutex
	hung  chan struct{} // closed when data flows again; nil while it does
	cut   bool
	lost  int    // answers that did not arrive
	loses []byte // a connection ends with the answer to a request that contains this; nil: none
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
	var isDoomed atomic.Bool
	both.Go(func() {
		c.copy(far, near, func(request []byte) bool {
			if c.losesAnswer(request) {
				isDoomed.Store(true)
			}
			return true
		})
	})
	both.Go(func() {
		c.copy(near, far, func([]byte) bool {
			if !isDoomed.Load() {
				return true
			}
			c.mu.Lock()
			defer c.mu.Unlock()
			c.lost++
			return false
		})
	})
	both.Wait()
	c.mu.Lock()
	delete(c.conns, near)
	delete(c.conns, far)
	c.mu.Unlock()
}

// loseAnswers lets requests with a text through, but not their answers.
func (c *cable) loseAnswers(text string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.loses = []byte(text)
}

func (c *cable) losesAnswer(request []byte) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.loses) > 0 && bytes.Contains(request, c.loses)
}

// copy carries data in one direction, as long as it passes, and ends the connection with
// it.
func (c *cable) copy(to, from net.Conn, passes func([]byte) bool) {
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
			if !passes(buf[:n]) {
				_ = from.Close()
				return
			}
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
	return cabledTo(t, pgtest.Start(t), replicas)
}

// cabledTo is cabled, on a database of the test's own.
func cabledTo(t *testing.T, database string, replicas int) (*cluster, []*cable) {
	t.Helper()
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
	return c.agentInto(&lockedBuffer{}, name, nodes, servers)
}

// agentInto is agent. What it prints goes to a buffer.
func (c *cluster) agentInto(out *lockedBuffer, name string, nodes int, servers string) *exec.Cmd {
	c.t.Helper()
	return c.spawnProcess(out, []string{"MARIPOSA_JOIN=" + c.join}, "agent", "--server", servers,
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
				c.t.Logf("%s at %s: %s", e.Node, e.Time.Format("15:04:05.000"), e.Reason)
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
	c.outlive(t, func(isOut bool) {
		for _, cable := range cables {
			cable.setHung(isOut)
		}
	})
}

// A database that can only be read is no better, although it answers.
func TestAReadOnlyDatabaseMakesNoHealthyNodeUnknown(t *testing.T) {
	t.Parallel()
	database := pgtest.New(t)
	c, _ := cabledTo(t, database.Database(t, ""), 2)
	c.outlive(t, func(isOut bool) {
		mode := "off"
		if isOut {
			mode = "on"
		}
		must(t, database.Exec("ALTER SYSTEM SET default_transaction_read_only = "+mode, "SELECT pg_reload_conf()"))
	})
}

// outlive runs healthy and dying nodes at two replicas during an outage of the database.
func (c *cluster) outlive(t *testing.T, disturb func(isOut bool)) {
	t.Helper()
	dying := []*exec.Cmd{c.agent("dying-0", 1, c.replicas[0].url), c.agent("dying-1", 1, c.replicas[1].url)}
	c.agent("healthy-0", 2, c.replicas[0].url)
	c.agent("healthy-1", 2, c.replicas[1].url)
	c.await("all nodes run", func() bool {
		states := c.nodeStates()
		return len(states) == 6 && isAll(states, mariposa.NodeRunning)
	})
	disturb(true)
	for i := range c.replicas {
		c.await("the sessions have ended", func() bool { return c.metric(i, "mariposa_sessions") == 0 })
	}
	time.Sleep(11 * time.Second) // the outage itself: 17 s in total, less than the 20 s after which blocked calls fail
	disturb(false)
	c.await("the nodes are back", func() bool { return c.metric(0, "mariposa_sessions")+c.metric(1, "mariposa_sessions") == 6 })
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

// While the database does not answer, requests that need it are refused within seconds,
// and the rest is answered. Instances run on, and work resumes by itself.
func TestRequestsDoNotWaitForASilentDatabase(t *testing.T) {
	t.Parallel()
	c, cables := cabled(t, 1)
	c.agent("node", 1, c.urls())
	c.create("shop", "services: {web: {compute_type: dummy, scale: 2}}")
	c.await("it runs", func() bool { return c.state("shop").Status == mariposa.StatusConverged })
	token := "Bearer " + c.admin
	ask := func(method, path, body string) (status int, took time.Duration) {
		t.Helper()
		req, err := http.NewRequestWithContext(t.Context(), method, c.replicas[0].url+path, strings.NewReader(body))
		must(t, err)
		req.Header.Set("Authorization", token)
		req.Header.Set("Content-Type", "application/json")
		began := time.Now()
		answer, err := http.DefaultClient.Do(req)
		must(t, err)
		_ = answer.Body.Close()
		return answer.StatusCode, time.Since(began)
	}
	// quick is the best of a few: other tests may keep the machine busy.
	quick := func(method, path, body string) (status int, took time.Duration) {
		t.Helper()
		for range 4 {
			if status, took = ask(method, path, body); took <= 3*time.Second {
				break
			}
		}
		return status, took
	}
	for name, disturb := range map[string]func(bool){"hung": cables[0].setHung, "cut": cables[0].setCut} {
		disturb(true)
		for range 2 { // the first finds open connections
			for _, r := range []struct{ method, path, body string }{
				{"PUT", "/v1/projects/shop/state", `{"action":"stop"}`},
				{"GET", "/v1/projects/shop/versions/1", ""},
				{"GET", "/v1/audit", ""},
				{"GET", "/readyz", ""},
			} {
				if status, took := quick(r.method, r.path, r.body); status != 503 || took > 3*time.Second {
					t.Errorf("%s: %s %s answers %d after %s", name, r.method, r.path, status, took)
				}
			}
			if status, took := quick("GET", "/v1/state", ""); status != 200 || took > 3*time.Second {
				t.Errorf("%s: the state answers %d after %s", name, status, took)
			}
		}
		disturb(false)
		c.await("changes are accepted again", func() bool {
			_, err := c.Scale(t.Context(), "shop", map[string]string{"web": "3"})
			return err == nil
		})
		c.await("they are carried out", func() bool {
			s := c.state("shop")
			return s.Status == mariposa.StatusStopped || s.Status == mariposa.StatusConverged
		})
		c.await("it runs again", func() bool { // one of the stops may have been stored
			_, err := c.Act(t.Context(), "shop", contract.Action{Action: "start"})
			return err == nil && c.state("shop").Status == mariposa.StatusConverged
		})
	}
}

// Many changes of one project come at the same time while the database hangs. They wait for
// each other, but not longer together than one of them.
func TestConcurrentChangesDoNotWaitForASilentDatabase(t *testing.T) {
	t.Parallel()
	c, cables := cabled(t, 1)
	c.agent("node", 1, c.urls())
	const manifest = "services: {web: {compute_type: dummy, scale: 2}}"
	c.create("shop", manifest)
	c.await("it runs", func() bool { return c.state("shop").Status == mariposa.StatusConverged })
	token := "Bearer " + c.admin
	kinds := []struct{ method, path, body, kind string }{
		{"PUT", "/v1/projects/shop/state", `{"action":"scale","scale":{"web":3}}`, "application/json"},
		{"PUT", "/v1/projects/shop/metadata/color", `{"value":"red"}`, "application/json"},
		{"DELETE", "/v1/projects/shop/metadata/color", "", "application/json"},
		{"PUT", "/v1/projects/shop/manifest", manifest + "\n# new\n", "application/yaml"},
		{"POST", "/v1/instances", `{"project":"shop","name":"probe","compute_type":"dummy"}`, "application/json"},
		{"POST", "/v1/projects?name=other", manifest, "application/yaml"},
	}
	var wrong []string
	for range 4 { // other tests may keep the machine busy
		wrong = nil
		cables[0].setHung(true)
		var mu sync.Mutex
		var all sync.WaitGroup
		for i := range 5 * len(kinds) {
			all.Go(func() {
				k := kinds[i%len(kinds)]
				req, err := http.NewRequestWithContext(t.Context(), k.method, c.replicas[0].url+k.path, strings.NewReader(k.body))
				if err != nil {
					t.Error(err)
					return
				}
				req.Header.Set("Authorization", token)
				req.Header.Set("Content-Type", k.kind)
				began := time.Now()
				answer, err := http.DefaultClient.Do(req)
				if err != nil {
					t.Error(err)
					return
				}
				body, _ := io.ReadAll(answer.Body) // on an error it is incomplete
				_ = answer.Body.Close()
				if took := time.Since(began); answer.StatusCode != 503 || took > 3*time.Second {
					mu.Lock()
					wrong = append(wrong, fmt.Sprintf("%s %s answers %d after %s: %s", k.method, k.path, answer.StatusCode, took, body))
					mu.Unlock()
				}
			})
		}
		all.Wait()
		cables[0].setHung(false)
		c.await("changes are accepted again", func() bool {
			_, err := c.Scale(t.Context(), "shop", map[string]string{"web": "2"})
			return err == nil
		})
		if len(wrong) == 0 {
			return
		}
	}
	t.Errorf("%d are wrong:\n%s", len(wrong), strings.Join(wrong, "\n"))
}
