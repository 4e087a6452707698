package main_test

import (
	"context"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"mariposa"
	"mariposa/client"
	"mariposa/contract"
)

// nodeNamed finds a node by its name, or returns nil.
func (h *devServer) nodeNamed(name string) *contract.Node {
	h.t.Helper()
	all, err := h.Nodes(h.t.Context())
	must(h.t, err)
	for i := range all.Nodes {
		if all.Nodes[i].Name == name {
			return &all.Nodes[i]
		}
	}
	return nil
}

func (h *devServer) awaitNode(name string, state mariposa.NodeState) *contract.Node {
	h.t.Helper()
	var n *contract.Node
	h.await("node "+name+" is "+string(state), func() bool {
		n = h.nodeNamed(name)
		return n != nil && n.Status == state
	})
	return n
}

// With --approve-nodes, a node with a join token waits for approval.
func TestANodeWaitsUntilAPersonApprovesIt(t *testing.T) {
	t.Parallel()
	a := newSplitSystem(t, "--approve-nodes")
	a.env = []string{"MARIPOSA_DATA=" + a.data}
	token := a.joinToken("--uses", "2")
	a.launch([]string{"MARIPOSA_JOIN=" + token}, "agent", "--server", a.url, "--data", a.dir, "--name", "node-a")
	n := a.awaitNode("node-a", mariposa.NodePending)
	said := regexp.MustCompile(`key=(SHA256:\S+)`).FindStringSubmatch(a.out.String())
	if said == nil || said[1] != n.Fingerprint || n.Address != "127.0.0.1" {
		t.Errorf("the agent says that its key is %v, the server %q from %q", said, n.Fingerprint, n.Address)
	}
	if out := a.ok("node", "list"); !strings.Contains(out, "pending") || !strings.Contains(out, "mariposa node accept node-a") {
		t.Errorf("node list:\n%s", out)
	}
	if out := a.ok("node", "show", "node-a"); !strings.Contains(out, n.Fingerprint) || !strings.Contains(out, "127.0.0.1") {
		t.Errorf("node show:\n%s", out)
	}
	a.cannot(n.Fingerprint, "node", "approve", "node-a", "--fingerprint", "SHA256:another")
	a.ok("node", "approve", "node-a", "--fingerprint", n.Fingerprint)
	a.awaitNode("node-a", mariposa.NodeRunning)
	if n := strings.Count(a.out.String(), "the node is waiting for approval"); n != 1 {
		t.Errorf("the agent says %d times that it waits:\n%s", n, a.out)
	}
	a.create("hello", "services: {web: {compute_type: process, command: [sleep, '1000']}}")
	a.converged("hello", "web", 1)

	stray := t.TempDir()
	over := make(chan int, 1)
	cmd := launch(t, program(context.Background(), stray, []string{"MARIPOSA_JOIN=" + token}, "agent", "--server", a.url, "--data", stray, "--name", "stray"), a.out)
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
	if out := a.ok("events", "--since", "0"); !strings.Contains(out, "node-a is pending") || !strings.Contains(out, "node-a is approved") || !strings.Contains(out, "stray is rejected") {
		t.Errorf("events:\n%s", out)
	}
}

// A node that has joined authenticates with its own key, so its join token may have
// expired.
func TestAnAgentComesBackWithoutAJoinToken(t *testing.T) {
	t.Parallel()
	a := newSplitSystem(t)
	a.env = []string{"MARIPOSA_DATA=" + a.data}
	token := a.joinToken("--name", "once", "--uses", "1")
	first := a.launch([]string{"MARIPOSA_JOIN=" + token}, "agent", "--server", a.url, "--data", a.dir, "--name", "node-a")
	a.awaitNode("node-a", mariposa.NodeRunning)
	if out := a.ok("node", "join-token", "list"); !strings.Contains(out, "1 of 1") || strings.Contains(out, token) {
		t.Errorf("join-token list:\n%s", out)
	}
	a.ok("node", "join-token", "revoke", "once")
	a.create("hello", "services: {web: {compute_type: process, command: [sleep, '1000']}}")
	a.converged("hello", "web", 1)
	before := a.pids("hello")
	end(first)
	end(a.server)
	a.serve()
	again := time.Now()
	a.launch(nil, "agent", "--server", a.url, "--data", a.dir, "--name", "node-a")
	a.await("the node is back", func() bool {
		n := a.nodeNamed("node-a")
		return n != nil && n.Status == mariposa.NodeRunning && n.LastHeartbeat != nil && n.LastHeartbeat.After(again) && strings.Count(a.out.String(), "node connected") > 0
	})
	a.converged("hello", "web", 1)
	a.runOn("hello", before)
	for _, dir := range []string{a.data, a.dir} {
		_ = filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error { // files may disappear meanwhile
			if err == nil && d.Type().IsRegular() {
				if text, err := os.ReadFile(path); err == nil && strings.Contains(string(text), token) {
					t.Errorf("the token is kept in %s", path)
				}
			}
			return nil
		})
	}
	stray := t.TempDir()
	_, errs, code := finish(t, program(t.Context(), stray, []string{"MARIPOSA_JOIN=" + token}, "agent", "--server", a.url, "--data", stray, "--name", "stray"), "")
	if code != 1 || !strings.Contains(errs, "was revoked on") || !strings.Contains(errs, "mariposa node join-token") {
		t.Errorf("another one with the same token: exit %d, %s", code, errs)
	}
}

// A data directory of an earlier release contains a join token without an expiry. The
// server converts it to a record with an expiry and deletes the file. The same applies to
// a join token in the store.
func TestTheJoinTokenOfAnEarlierReleaseIsTakenOver(t *testing.T) {
	t.Parallel()
	a := &splitSystem{devServer: &devServer{t: t, dir: t.TempDir()}, data: t.TempDir()}
	a.env = []string{"MARIPOSA_DATA=" + a.data}
	const old = "0123456789abcdef0123456789abcdef0123456789abcdef"
	path := filepath.Join(a.data, "join.token")
	write(t, path, []byte(old+"\n"))
	write(t, filepath.Join(a.data, "admin.token"), []byte("the-admin-token-of-before\n"))
	a.open()
	if _, err := os.Stat(path); !os.IsNotExist(err) {
		t.Errorf("the file is still there: %v", err)
	}
	if a.admin != "the-admin-token-of-before" {
		t.Errorf("the admin token became %s", a.admin)
	}
	a.launch([]string{"MARIPOSA_JOIN=" + old}, "agent", "--server", a.url, "--data", a.dir, "--name", "node-a")
	a.awaitNode("node-a", mariposa.NodeRunning)
	all, err := a.JoinTokens(t.Context())
	must(t, err)
	if len(all.Tokens) != 1 || all.Tokens[0].Name != "join.token" || all.Tokens[0].Expires == nil || time.Until(*all.Tokens[0].Expires).Round(time.Hour) != 7*24*time.Hour {
		t.Errorf("it became %+v", all.Tokens)
	}
	a.ok("node", "join-token", "revoke", "join.token")
	stray := t.TempDir()
	if _, errs, code := finish(t, program(t.Context(), stray, []string{"MARIPOSA_JOIN=" + old}, "agent", "--server", a.url, "--data", stray, "--name", "stray"), ""); code != 1 || !strings.Contains(errs, "was revoked on") {
		t.Errorf("once it is revoked: exit %d, %s", code, errs)
	}
}

// The admin token in a data directory is a normal record. If it is revoked, the next
// start creates another one, so the owner of the directory is never locked out.
func TestTheAdminTokenOfAFolderCanBeReplaced(t *testing.T) {
	t.Parallel()
	a := newSplitSystem(t)
	a.env = []string{"MARIPOSA_DATA=" + a.data}
	old := a.admin
	who, err := a.Whoami(t.Context())
	must(t, err)
	if who.Token.Use != mariposa.TokenAdmin || !strings.HasPrefix(who.Token.Name, "admin.token") {
		t.Errorf("it is shown as %+v", who.Token)
	}
	if out := a.ok("token", "list"); !strings.Contains(out, who.Token.ID) || strings.Contains(out, old) {
		t.Errorf("token list:\n%s", out)
	}
	a.ok("user", "create", "ann")
	ann := strings.TrimSpace(a.ok("token", "create", "laptop", "--user", "ann"))
	a.cannot("laptop of ann", "token", "revoke", who.Token.ID)
	end(a.server)
	must(t, os.Remove(filepath.Join(a.data, "admin.token"))) // another one is created
	a.Client = nil
	a.serve()
	a.ok("token", "adopt", who.Token.ID)
	a.ok("token", "revoke", who.Token.ID)
	at := func(token string) *client.Client {
		c, err := client.New(client.Options{URL: a.url, Token: token})
		must(t, err)
		return c
	}
	if _, err := at(old).Whoami(t.Context()); mariposa.CodeOf(err) != mariposa.Unauthorized {
		t.Errorf("the old one: %v", err)
	}
	if me, err := at(ann).Whoami(t.Context()); err != nil || me.Name != "ann" {
		t.Errorf("what it made and was taken over: %v", err)
	}
	now, err := a.Whoami(t.Context())
	must(t, err)
	a.ok("token", "revoke", now.Token.ID, "--yes")
	if _, err := at(ann).Whoami(t.Context()); mariposa.CodeOf(err) != mariposa.Unauthorized {
		t.Errorf("what the new one has: %v", err)
	}
	end(a.server)
	before := a.secret("admin.token")
	a.Client = nil
	a.serve()
	if a.admin == before {
		t.Error("a revoked token is still the one of the folder")
	}
	a.ok("node", "list")
}

// Tokens that are created directly in the store have a record of who created them.
func TestServerTokensAreOnRecord(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 1)
	short := c.token("--expires", "12h", "--name", "break-glass")
	var all *contract.Tokens
	c.await("the server knows what was made beside it", func() (seen bool) {
		var err error
		all, err = c.Tokens(t.Context(), "")
		return err == nil && len(all.Tokens) > 1
	})
	var found *contract.Token
	for i := range all.Tokens {
		if all.Tokens[i].Name == "break-glass" {
			found = &all.Tokens[i]
		}
	}
	if len(all.Tokens) != 2 || found == nil || found.Use != mariposa.TokenAdmin || found.Expires == nil || found.Expires.Sub(found.Created) > 12*time.Hour {
		t.Fatalf("admin tokens: %+v", all.Tokens)
	}
	joins, err := c.JoinTokens(t.Context())
	must(t, err)
	if len(joins.Tokens) != 1 || joins.Tokens[0].Expires == nil || joins.Tokens[0].Expires.Sub(joins.Tokens[0].Created) > 24*time.Hour || *joins.Tokens[0].Uses != 10 {
		t.Errorf("join tokens: %+v", joins.Tokens)
	}
	c.env = []string{"MARIPOSA_URL=" + c.replicas[0].url, "MARIPOSA_TOKEN=" + short}
	out := c.ok("events", "--audit", "--action", "token.create", "--json")
	for _, id := range []string{found.ID, joins.Tokens[0].ID, all.Tokens[0].ID} {
		if !strings.Contains(out, id) {
			t.Errorf("the audit does not say who made %s:\n%s", id, out)
		}
	}
	if !strings.Contains(out, "created by mariposa server token") || strings.Contains(out, short) || strings.Contains(out, c.join) {
		t.Errorf("the audit says:\n%s", out)
	}
	c.env = []string{"MARIPOSA_URL=" + c.replicas[0].url, "MARIPOSA_TOKEN=" + c.admin}
	c.ok("token", "revoke", "break-glass")
	c.env[1] = "MARIPOSA_TOKEN=" + short
	c.cannot("was revoked on", "node", "list")
}

// Neither the agent nor a client sends a secret unencrypted to another machine.
func TestAgentsAndClientsRefusePlainHTTP(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	const far = "http://192.0.2.1:8080"
	for name, args := range map[string][]string{
		"an agent":            {"agent", "--server", far, "--join", "x", "--data", dir},
		"an agent, of one":    {"agent", "--server", "http://127.0.0.1:1," + far, "--join", "x", "--data", dir},
		"a client":            {"node", "list", "--url", far, "--token", "x"},
		"a client that joins": {"node", "join-token", "--url", far, "--token", "x"},
	} {
		_, errs, code := finish(t, program(t.Context(), dir, nil, args...), "")
		if code != 2 || !strings.Contains(errs, "sent unencrypted") || !strings.Contains(errs, "MARIPOSA_INSECURE=1") {
			t.Errorf("%s: exit %d, %s", name, code, errs)
		}
	}
	out := &lockedBuffer{}
	cmd := launch(t, program(context.Background(), dir, []string{"MARIPOSA_INSECURE=1"}, "agent", "--server", "http://mariposa.invalid", "--join", "x", "--data", dir, "--dummy-nodes", "1"), out)
	defer end(cmd)
	h := &devServer{t: t, out: out}
	h.await("an agent that was told so tries", func() bool { return strings.Contains(out.String(), "not connected to the control plane") })
}
