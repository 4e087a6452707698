package main_test

import (
	"bufio"
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"mariposa"
	"mariposa/contract"
	"mariposa/seal"
	"mariposa/store/postgres/pgtest"
)

// via makes the client and client commands use one replica.
func (c *cluster) via(i int) {
	c.t.Helper()
	c.ask(i)
	c.env = []string{"MARIPOSA_URL=" + c.replicas[i].url, "MARIPOSA_TOKEN=" + c.admin}
}

// addAgent starts the agent of a node that knows one replica.
func (c *cluster) addAgent(name string, replica int, flags ...string) *exec.Cmd {
	c.t.Helper()
	args := []string{"agent", "--server", c.replicas[replica].url, "--data", filepath.Join(c.dir, name), "--name", name}
	if c.ca != "" {
		args = append(args, "--ca", c.ca)
	}
	return c.spawnProcess(&lockedBuffer{}, []string{"MARIPOSA_JOIN=" + c.join}, append(args, flags...)...)
}

// replicaOf returns the name of the replica that a node is connected to.
func (c *cluster) replicaOf(node string) string {
	c.t.Helper()
	n, err := c.Node(c.t.Context(), node)
	if err != nil || n.Status != mariposa.NodeRunning {
		return ""
	}
	return n.Replica
}

// selves returns the names of the replicas, in order.
func (c *cluster) selves() (names []string) {
	c.t.Helper()
	for i := range c.replicas {
		c.via(i)
		c.await("the replica lists itself", func() bool {
			all, err := c.Replicas(c.t.Context())
			must(c.t, err)
			at := slices.IndexFunc(all.Replicas, func(r contract.Replica) bool { return r.Self })
			if at < 0 {
				return false
			}
			names = append(names, all.Replicas[at].Name)
			return true
		})
	}
	return names
}

const talkers = `services:
  web:
    compute_type: process
    scale: 4
    command: [sh, -c, 'echo hello; exec sleep 100000']
    update: {min_healthy: 0}
  d: {compute_type: dummy, scale: 2, update: {min_healthy: 0}}
`

// newTalkers starts three replicas, each with a node, and instances on all nodes.
func newTalkers(t *testing.T) (*cluster, []string) {
	t.Helper()
	c := newCluster(t, 3)
	names := c.selves()
	c.addAgent("a", 0)
	c.addAgent("b", 1)
	c.addAgent("d", 2, "--dummy-nodes", "1")
	for i, node := range []string{"a", "b", "d-1"} {
		c.await("the node is connected", func() bool { return c.replicaOf(node) == names[i] })
	}
	c.via(0)
	t.Cleanup(func() {
		i := slices.IndexFunc(c.replicas, func(r *replica) bool { return r.cmd.ProcessState == nil })
		c.via(i)
		c.clear()
	})
	c.create("shop", talkers)
	c.converged("shop", "web", 4)
	c.converged("shop", "d", 2)
	return c, names
}

// webs returns the running processes by the name of their node.
func (c *cluster) webs() map[string][]contract.Instance {
	c.t.Helper()
	all := map[string][]contract.Instance{}
	for _, i := range c.instances("shop") {
		if i.ServiceName == "web" {
			all[i.NodeName] = append(all[i.NodeName], i)
		}
	}
	if len(all) != 2 {
		c.t.Fatalf("the processes are on %d nodes", len(all))
	}
	return all
}

func TestEveryReplicaServesEveryRequest(t *testing.T) {
	t.Parallel()
	c, names := newTalkers(t)
	for i := range c.replicas {
		c.via(i)
		c.await("the replica has the whole picture", func() bool { return c.state("shop").Status == mariposa.StatusConverged })
		c.await("the log of each instance is there", func() bool { return strings.Count(c.ok("logs", "-j", "shop"), "hello") == 4 })
		for _, all := range c.webs() {
			one := all[0]
			out, errs, code := c.mariposa("some input\n", "instance", "exec", "-i", one.Name, "--", "sh", "-c", `read x; echo "got $x"; echo trouble >&2; exit 7`)
			if out != "got some input\n" || errs != "trouble\n" || code != 7 {
				t.Errorf("at replica %d, a command said %q and %q and ended with %d", i, out, errs, code)
			}
			c.await("its usage is measured", func() bool {
				found, err := c.Instance(t.Context(), one.ID)
				return err == nil && found.Usage.Memory != nil
			})
		}
		c.await("a dummy crashes", func() bool { // it may have been replaced meanwhile
			return slices.ContainsFunc(c.dummies(), func(d contract.Instance) bool {
				_, err := c.ActOnInstance(t.Context(), d.ID, "crash")
				return err == nil && c.goes(d)
			})
		})
		c.converged("shop", "d", 2)
	}
	t.Run("much output", func(t *testing.T) { c.muchGoesThrough(t) })
	t.Run("errors of the node", func(t *testing.T) {
		c.via(2)
		c.cannot(`cannot run "no-such-command"`, "instance", "exec", c.webs()["a"][0].Name, "--", "no-such-command")
	})
	t.Run("a command ends with its client", func(t *testing.T) {
		c.via(1)
		before := len(c.processes())
		cmd := c.beginLine("instance", "exec", c.webs()["a"][0].Name, "--", "sh", "-c", stays)
		c.await("the command runs", func() bool { return len(c.processes()) > before })
		end(cmd)
		c.await("the command is gone", func() bool { return len(c.processes()) == before })
	})
	t.Run("heartbeats", func(t *testing.T) { c.heartbeatsAreShown(names) })
	t.Run("list", func(t *testing.T) { c.replicasAreListed(names) })
}

func (c *cluster) dummies() (all []contract.Instance) {
	for _, i := range c.instances("shop") {
		if i.ServiceName == "d" {
			all = append(all, i)
		}
	}
	return all
}

// goes waits until an instance has failed or was replaced.
func (c *cluster) goes(i contract.Instance) bool {
	c.await("the instance has crashed", func() bool {
		now, err := c.Instance(c.t.Context(), i.ID)
		return err != nil || now.State != mariposa.StateRunning || now.Restarts > i.Restarts
	})
	return true
}

func (c *cluster) muchGoesThrough(t *testing.T) {
	text := make([]byte, 3<<20)
	_, _ = rand.Read(text) // it never fails
	for i, node := range []string{"b", "a", "a"} {
		c.via(i)
		if out := c.fed(string(text), "instance", "exec", "-i", c.webs()[node][0].Name, "--", "cat"); !bytes.Equal([]byte(out), text) {
			t.Errorf("at replica %d, %d bytes came back of %d, or others", i, len(out), len(text))
		}
	}
	if out, said, code := c.mariposa("", "instance", "exec", "-t", c.webs()["a"][0].Name, "--", "stty", "size"); out != "24 80\r\n" || code != 0 {
		t.Errorf("its terminal is %q, and it ended with %d: %s", out, code, said)
	}
}

// beginLine starts a client command and waits for its first line of output.
func (c *cluster) beginLine(args ...string) *exec.Cmd {
	c.t.Helper()
	cmd, lines := c.follow(args...)
	if _, err := lines.ReadString('\n'); err != nil {
		c.t.Fatalf("it printed nothing: %v", err)
	}
	return cmd
}

// follow starts a client command whose output the test reads.
func (c *cluster) follow(args ...string) (*exec.Cmd, *bufio.Reader) {
	c.t.Helper()
	cmd := program(context.Background(), c.dir, c.env, args...)
	out, err := cmd.StdoutPipe()
	must(c.t, err)
	must(c.t, cmd.Start())
	c.t.Cleanup(func() { end(cmd) })
	return cmd, bufio.NewReader(out)
}

// heartbeatsAreShown checks that every replica shows a recent heartbeat of every node. The
// agents send one every 5 s.
func (c *cluster) heartbeatsAreShown(names []string) {
	first, err := c.Nodes(c.t.Context())
	must(c.t, err)
	for i := range names {
		c.via(i)
		c.await("every node is heard again", func() bool {
			now, err := c.Nodes(c.t.Context())
			must(c.t, err)
			for j, n := range now.Nodes {
				if n.LastHeartbeat == nil || !n.LastHeartbeat.After(*first.Nodes[j].LastHeartbeat) {
					return false
				}
			}
			return len(now.Nodes) == 3
		})
	}
}

func (c *cluster) replicasAreListed(names []string) {
	for i := range names {
		c.via(i)
		var all contract.Replicas
		c.await("all shards are held", func() bool {
			must(c.t, json.Unmarshal([]byte(c.ok("server", "list", "--json")), &all))
			shards := 0
			for _, r := range all.Replicas {
				shards += r.Shards
			}
			return len(all.Replicas) == 3 && shards == 64
		})
		for _, r := range all.Replicas {
			j := slices.Index(names, r.Name)
			if j < 0 || r.URL != c.replicas[j].url || r.Self != (i == j) || r.Sessions != 1 || r.Version == "" || r.Since == nil || time.Since(*r.Since) > 10*limit {
				c.t.Errorf("replica %d lists %+v", i, r)
			}
		}
		if table := c.ok("server", "list"); strings.Count(table, "this one") != 1 || !strings.Contains(table, c.replicas[i].url) {
			c.t.Errorf("%s", table)
		}
	}
}

// Agents that know only the address of a replica that dies connect to another one, and the
// logs of their instances are read through any of the others again.
func TestAnAgentThatKnowsOneReplicaSurvivesIt(t *testing.T) {
	t.Parallel()
	c, names := newTalkers(t)
	c.via(1)
	before := c.pids("shop")
	one := c.webs()["a"][0]
	c.await("the agent has learned of all replicas", func() bool {
		var urls []string
		_ = json.Unmarshal(readIfThere(filepath.Join(c.dir, "a", "servers.json")), &urls) // it is not there yet
		return len(urls) == 3
	})
	log := c.followPlainly(1, one.ID)
	defer log.Close()
	lines := bufio.NewReader(log)
	if line, err := lines.ReadString('\n'); line != "hello\n" {
		t.Fatalf("%q, %v", line, err)
	}
	end(c.replicas[0].cmd)
	began := time.Now()
	ended := make(chan error, 1)
	go func() { // the log cannot go on through a replica that is gone, and its end is noticed
		_, err := io.ReadAll(lines)
		ended <- err
	}()
	select {
	case err := <-ended:
		if err == nil {
			t.Error("a log that was cut looks complete")
		}
	case <-time.After(limit):
		t.Fatal("a log through a dead replica never ends")
	}
	// The next request waits for the node to connect elsewhere, or says where it is.
	c.await("the log is read again", func() bool {
		asked := time.Now()
		status, text := c.answer("GET", "/v1/instances/"+one.ID+"/logs", "", nil)
		if status != 200 && (time.Since(asked) > limit/4 || !strings.Contains(text, "on node a")) {
			t.Errorf("after %s: %s", time.Since(asked), text)
		}
		return text == "hello\n"
	})
	t.Logf("the log could be read again after %s", time.Since(began).Round(time.Millisecond))
	if now := c.replicaOf("a"); now == names[0] || now == "" {
		t.Errorf("the node is at %q", now)
	}
	c.runOn("shop", before)
	if ids := c.everUnknown(); len(ids) > 0 {
		t.Errorf("healthy nodes became unknown: %v", ids)
	}
}

func readIfThere(path string) []byte {
	b, _ := os.ReadFile(path)
	return b
}

// Replicas verify each other by the certificates that they publish, agents and clients by
// the CA. A replica whose certificate was renewed is reached by those that did not know it.
func TestReplicasWithTheirOwnCAReachEachOther(t *testing.T) {
	t.Parallel()
	ca := newAuthority(t)
	ca.sign(2)
	c := &cluster{devServer: &devServer{t: t, dir: t.TempDir(), out: &lockedBuffer{}, roots: ca.pem}, store: pgtest.Start(t), ca: ca.path("ca.pem")}
	c.start(2, ca.flags()...)
	names := c.selves()
	c.addAgent("d", 0, "--dummy-nodes", "1")
	c.await("the node is connected", func() bool { return c.replicaOf("d-1") == names[0] })
	c.create("shop", "services: {d: {compute_type: dummy}}")
	crash := func(replica int) {
		c.via(replica)
		c.converged("shop", "d", 1)
		c.await("a dummy crashes", func() bool {
			d := c.dummies()[0]
			_, err := c.ActOnInstance(t.Context(), d.ID, "crash")
			return err == nil && c.goes(d)
		})
	}
	crash(1)
	ca.sign(3)
	c.await("the renewed certificate is served", func() bool { return ca.served(c.replicas[0].url) == 3 })
	c.addReplica(ca.flags()...)
	c.via(2)
	c.await("the new replica is ready", func() bool { _, err := c.Ready(t.Context()); return err == nil })
	crash(2)
}

// Only replicas of this installation can connect as one. Whoever can read the database, or
// has a token, cannot.
func TestOutsidersCannotActAsReplicas(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 1)
	name := c.selves()[0]
	at := itoa(int(time.Now().UnixMilli()))
	foreign := seal.NewRing().Sign("replica link", "", "other", name, at, "nonce")
	for _, authorization := range []string{
		"", "Bearer " + c.admin, "Bearer " + c.join, "Mariposa-Replica", "Mariposa-Replica x", "Mariposa-Replica other " + name + " " + at + " nonce ",
		"Mariposa-Replica other " + name + " " + at + " nonce " + foreign,
	} {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, c.replicas[0].url+"/v1/replica", nil)
		must(t, err)
		req.Header = http.Header{
			"Authorization": {authorization}, "Upgrade": {"websocket"}, "Connection": {"Upgrade"}, "Sec-Websocket-Version": {"13"}, "Sec-Websocket-Key": {"AAAAAAAAAAAAAAAAAAAAAA=="},
		}
		res, err := http.DefaultClient.Do(req)
		must(t, err)
		text, err := io.ReadAll(res.Body)
		must(t, err)
		must(t, res.Body.Close())
		if res.StatusCode != http.StatusUnauthorized || !strings.Contains(string(text), "only other replicas of this installation may connect here") {
			t.Errorf("%q: %d %s", authorization, res.StatusCode, text)
		}
	}
}

// A replica that is stopped does not close its connections. Others notice that it does not
// answer.
func TestALogThroughAStoppedReplicaEnds(t *testing.T) {
	t.Parallel()
	c, _ := newTalkers(t)
	c.via(1)
	log := c.followPlainly(1, c.webs()["a"][0].ID)
	defer log.Close()
	lines := bufio.NewReader(log)
	if line, err := lines.ReadString('\n'); line != "hello\n" {
		t.Fatalf("%q, %v", line, err)
	}
	must(t, c.replicas[0].cmd.Process.Signal(syscall.SIGSTOP))
	defer func() { _ = c.replicas[0].cmd.Process.Signal(syscall.SIGCONT) }()
	if rest, err := io.ReadAll(lines); err == nil {
		t.Errorf("a log that was cut looks complete, with %q", rest)
	}
}

// followPlainly follows a log through one replica, and does not continue elsewhere as the
// client does.
func (c *cluster) followPlainly(i int, instance string) io.ReadCloser {
	c.t.Helper()
	req, err := http.NewRequestWithContext(c.t.Context(), "GET", c.replicas[i].url+"/v1/instances/"+instance+"/logs?follow=true", nil)
	must(c.t, err)
	req.Header.Set("Authorization", "Bearer "+c.admin)
	res, err := http.DefaultClient.Do(req)
	must(c.t, err)
	if res.StatusCode != http.StatusOK {
		c.t.Fatalf("the log answers %s", res.Status)
	}
	return res.Body
}

// A replica that joins later gets some of the nodes. None of them becomes unknown.
func TestANewReplicaGetsItsShareOfTheNodes(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 1)
	c.addAgent("d", 0, "--dummy-nodes", "8")
	c.await("all nodes are connected", func() bool { return c.metric(0, "mariposa_sessions") == 8 })
	c.addReplica()
	c.await("some nodes have moved", func() bool { return c.metric(1, "mariposa_sessions") >= 3 })
	if ids := c.everUnknown(); len(ids) > 0 {
		t.Errorf("nodes became unknown: %v", ids)
	}
}
