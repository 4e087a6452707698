package main_test

import (
	"context"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"mariposa/client"
	"mariposa/listener/porttest"
)

// splitSystem is a `mariposa server` on SQLite with agents as separate processes. The
// server uses the data directory of its first node.
type splitSystem struct {
	*devServer
	data string // the server's data directory
	url  string
	// address is where the server listens and clients connect; empty: a loopback address.
	address string
	flags   []string // for the server
	links   []string // for agents and clients
	server  *exec.Cmd
	parts   []*exec.Cmd
}

func newSplitSystem(t *testing.T, flags ...string) *splitSystem {
	t.Helper()
	a := &splitSystem{devServer: &devServer{t: t, dir: t.TempDir()}, data: t.TempDir(), flags: flags}
	a.open()
	return a
}

// open starts the server until the test ends.
func (a *splitSystem) open() {
	a.t.Helper()
	a.serve()
	a.t.Cleanup(a.shut)
}

// serve starts the server, on its previous address if it had one.
func (a *splitSystem) serve() {
	a.t.Helper()
	a.out = &lockedBuffer{}
	if a.address == "" {
		a.address = porttest.Address(a.t)
	}
	a.server = a.launch(nil, append([]string{"server", "--store", "sqlite:" + filepath.Join(a.data, "m.db"), "--listen", a.address}, a.flags...)...)
	a.await("the server says where it is", func() bool {
		a.url = regexp.MustCompile(`running at (https?://\S+)`).FindString(a.out.String())
		a.url = strings.NewReplacer("running at ", "", "[::]", "127.0.0.1", "0.0.0.0", "127.0.0.1").Replace(a.url)
		return a.url != ""
	})
	if a.Client == nil {
		a.admin = a.secret("admin.token")
		var err error
		a.Client, err = client.New(client.Options{URL: a.url, Token: a.admin, Roots: a.roots})
		must(a.t, err)
	}
}

// secret reads a file in the server's data directory.
func (a *splitSystem) secret(name string) string {
	a.t.Helper()
	return strings.TrimSpace(string(read(a.t, filepath.Join(a.data, name))))
}

// joinToken creates a join token.
func (a *splitSystem) joinToken(flags ...string) string {
	a.t.Helper()
	env := []string{"MARIPOSA_URL=" + a.url, "MARIPOSA_TOKEN=" + a.admin}
	if len(a.roots) > 0 {
		ca := filepath.Join(a.t.TempDir(), "ca.pem")
		write(a.t, ca, a.roots)
		env = append(env, "MARIPOSA_CA="+ca)
	}
	out, errs, code := finish(a.t, program(a.t.Context(), a.dir, env, append([]string{"node", "join-token"}, flags...)...), "")
	if code != 0 {
		a.t.Fatalf("node join-token: exit %d\n%s", code, errs)
	}
	return strings.TrimSpace(out)
}

// agent starts the agent of this machine.
func (a *splitSystem) agent(flags ...string) *exec.Cmd {
	a.t.Helper()
	flags = append(append([]string{"agent", "--server", a.url, "--data", a.dir, "--name", "node-a"}, a.links...), flags...)
	return a.launch([]string{"MARIPOSA_JOIN=" + a.joinToken()}, flags...)
}

// launch starts a process that ends with the test.
func (a *splitSystem) launch(env []string, args ...string) *exec.Cmd {
	a.t.Helper()
	cmd := launch(a.t, program(context.Background(), a.dir, env, args...), a.out)
	a.parts = append(a.parts, cmd)
	return cmd
}

// shut removes all instances, then stops the server and the agents.
func (a *splitSystem) shut() {
	if a.t.Failed() {
		a.t.Logf("they said:\n%s", a.out)
	}
	a.clear()
	for _, cmd := range a.parts {
		end(cmd)
	}
}
