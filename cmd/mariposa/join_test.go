package main_test

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"mariposa"
)

// agentWith starts an agent of the node node-a, with a join token or without.
func (a *splitSystem) agentWith(token string) *exec.Cmd {
	a.t.Helper()
	var env []string
	if token != "" {
		env = []string{"MARIPOSA_JOIN=" + token}
	}
	return a.launch(env, "agent", "--server", a.url, "--data", a.dir, "--name", "node-a")
}

// An agent without a join token waits, whatever is killed meanwhile, until its node is
// accepted.
func TestAnAgentWithoutATokenWaitsUntilItIsAccepted(t *testing.T) {
	t.Parallel()
	a := newSplitSystem(t)
	a.env = []string{"MARIPOSA_DATA=" + a.data}
	agent := a.agentWith("")
	n := a.awaitNode("node-a", mariposa.NodePending)
	remedy := "mariposa node accept node-a --fingerprint " + n.Fingerprint
	a.await("the agent says what to do", func() bool { return strings.Contains(a.out.String(), remedy) })
	out, hint, _ := a.mariposa("", "node", "list")
	if !strings.Contains(out, "pending") || !strings.Contains(out, "mariposa node accept node-a --fingerprint SHA256:…") || !strings.Contains(hint, "1 node is pending: run `mariposa node accept NODE --fingerprint SHA256:…`") {
		t.Errorf("node list:\n%s%s", out, hint)
	}
	if out := a.ok("node", "show", "node-a"); !strings.Contains(out, n.Fingerprint) || !strings.Contains(out, "127.0.0.1") || !strings.Contains(out, "what the agent says") || !strings.Contains(out, "kernel") {
		t.Errorf("node show:\n%s", out)
	}
	end(agent)
	end(a.server)
	a.serve()
	a.agentWith("")
	a.await("the agent waits again", func() bool { return strings.Contains(a.out.String(), remedy) })
	if again := a.nodeNamed("node-a"); again == nil || again.ID != n.ID || again.Status != mariposa.NodePending {
		t.Errorf("after the restart it is %+v", again)
	}
	a.ok("node", "accept", "node-a", "--fingerprint", n.Fingerprint)
	a.awaitNode("node-a", mariposa.NodeRunning)
	a.create("hello", "services: {web: {compute_type: process, command: [sleep, '1000']}}")
	a.converged("hello", "web", 1)

	stray := t.TempDir()
	over := make(chan int, 1)
	cmd := launch(t, program(context.Background(), stray, nil, "agent", "--server", a.url, "--data", stray, "--name", "stray"), a.out)
	go func() {
		_ = cmd.Wait()
		over <- cmd.ProcessState.ExitCode()
	}()
	a.awaitNode("stray", mariposa.NodePending)
	a.ok("node", "reject", "stray")
	select {
	case code := <-over:
		if code != 1 || !strings.Contains(a.out.String(), "was rejected") {
			t.Errorf("the rejected agent ended with %d", code)
		}
	case <-time.After(limit):
		_ = cmd.Process.Kill()
		t.Fatal("the agent of a rejected node goes on")
	}
}

func TestPendingNodesCanBeTurnedOff(t *testing.T) {
	t.Parallel()
	a := newSplitSystem(t, "--pending-nodes", "off")
	stray := t.TempDir()
	_, errs, code := finish(t, program(t.Context(), stray, nil, "agent", "--server", a.url, "--data", stray, "--name", "stray"), "")
	if code != 1 || !strings.Contains(errs, "start the agent with a join token") {
		t.Errorf("exit %d: %s", code, errs)
	}
	if a.nodeNamed("stray") != nil {
		t.Error("the node waits")
	}
	_, errs, code = finish(t, program(t.Context(), stray, nil, "server", "--store", "sqlite:"+filepath.Join(stray, "m.db"), "--pending-nodes", "many"), "")
	if code != 2 || !strings.Contains(errs, "--pending-nodes many") {
		t.Errorf("exit %d: %s", code, errs)
	}
}

// A key is rotated while agent and server are killed at any moment: the node is never
// locked out, and its instances keep running.
func TestAKeyRotationSurvivesKills(t *testing.T) {
	t.Parallel()
	a := newSplitSystem(t)
	a.env = []string{"MARIPOSA_DATA=" + a.data}
	token := a.joinToken("--name", "once", "--uses", "1")
	agent := a.agentWith(token)
	first := a.awaitNode("node-a", mariposa.NodeRunning).Fingerprint
	a.ok("node", "join-token", "revoke", "once")
	a.create("hello", "services: {web: {compute_type: process, command: [sleep, '1000']}}")
	a.converged("hello", "web", 1)
	before := a.pids("hello")
	copied := t.TempDir()
	write(t, filepath.Join(copied, "node.json"), read(t, filepath.Join(a.dir, "node.json")))

	last := first
	for i := range 8 {
		a.ok("node", "rotate-key", "node-a")
		time.Sleep(time.Duration(i/2) * 15 * time.Millisecond) // a kill at different moments, not a wait for anything
		if i%2 == 0 {
			_ = agent.Process.Kill()
			_ = agent.Wait()
			agent = a.agentWith(token) // which was revoked, and is not needed
		} else {
			_ = a.server.Process.Kill()
			_ = a.server.Wait()
			a.serve()
		}
		a.await("the key is rotated", func() bool {
			n := a.nodeNamed("node-a")
			return n != nil && n.KeyRotation == nil && n.Fingerprint != last && n.Status == mariposa.NodeRunning
		})
		last = a.nodeNamed("node-a").Fingerprint
	}
	a.runOn("hello", before)
	live(t, before)
	_, errs, code := finish(t, program(t.Context(), copied, nil, "agent", "--server", a.url, "--data", copied, "--name", "node-a", "--moved"), "")
	if code != 1 || !strings.Contains(errs, "its data directory is an old copy") {
		t.Errorf("with a copy of the old directory: exit %d, %s", code, errs)
	}
	if out := a.ok("events", "--since", "0"); strings.Count(out, "node-a has a new key") != 8 || !strings.Contains(out, last) {
		t.Errorf("events:\n%s", out)
	}
	if out := a.ok("events", "--audit", "--action", "node.key-rotated"); !strings.Contains(out, "node-a") {
		t.Errorf("the audit log:\n%s", out)
	}
}

// A node is removed, and its key rotated, through a replica that it is not connected to.
func TestAnyReplicaRotatesKeysAndRemovesNodes(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 2)
	c.env = []string{"MARIPOSA_URL=" + c.replicas[0].url, "MARIPOSA_TOKEN=" + c.admin}
	out := &lockedBuffer{}
	args := []string{"agent", "--server", c.replicas[1].url, "--data", c.dir, "--name", "node-a"}
	join := []string{"MARIPOSA_JOIN=" + c.join}
	cmd := c.spawnProcess(out, join, args...)
	n := c.awaitNode("node-a", mariposa.NodeRunning)
	c.ok("node", "rotate-key", "node-a")
	c.await("the key is rotated", func() bool {
		now := c.nodeNamed("node-a")
		return now.Fingerprint != n.Fingerprint && now.KeyRotation == nil && now.Status == mariposa.NodeRunning
	})
	c.create("hello", "services: {web: {compute_type: process, command: [sleep, '1000']}}")
	c.converged("hello", "web", 1)
	before := c.pids("hello")
	c.cannot("mariposa node drain node-a", "node", "rm", "node-a")
	for i := range c.replicas { // one of them does not have its session
		if c.metric(i, "mariposa_sessions") == 0 {
			c.env[0] = "MARIPOSA_URL=" + c.replicas[i].url
		}
	}
	c.ok("node", "rm", "node-a", "--force")
	c.await("the agent knows", func() bool { return strings.Contains(out.String(), "an operator removed this node") })
	live(t, before)
	if c.nodeNamed("node-a") != nil {
		t.Error("the node came back, though nobody asked for it")
	}
	end(cmd)
	live(t, before)
	// Without a token, its key is worth nothing, and it waits.
	cmd = c.spawnProcess(out, nil, args...)
	if now := c.awaitNode("node-a", mariposa.NodePending); now.ID != n.ID || !now.Tokenless {
		t.Errorf("it waits as %+v", now)
	}
	end(cmd)
	// With one, it is a new node, and what it runs is in quarantine.
	c.spawnProcess(out, join, args...)
	c.awaitNode("node-a", mariposa.NodeRunning)
	c.await("what runs is in quarantine", func() bool { return len(c.nodeNamed("node-a").Quarantined) == len(before) })
	live(t, before)
	c.ok("node", "purge", "node-a")
	c.await("what was purged is gone", func() bool { return len(c.nodeNamed("node-a").Quarantined) == 0 })
	c.converged("hello", "web", 1) // its successor; one that is starting now would be left behind
	c.clear()
	if _, err := os.Stat(filepath.Join(c.dir, "node.json")); err != nil {
		t.Error(err)
	}
}
