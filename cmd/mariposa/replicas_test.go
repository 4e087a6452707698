package main_test

import (
	"context"
	"fmt"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"mariposa"
	"mariposa/client"
	"mariposa/listener/porttest"
	"mariposa/store/postgres/pgtest"
)

// replica is one `mariposa server` on a shared PostgreSQL.
type replica struct {
	cmd *exec.Cmd
	out *lockedBuffer
	url string
}

// cluster is a set of replicas on one database, with agents as separate processes.
type cluster struct {
	*devServer
	store    string
	replicas []*replica
	join     string
	ca       string // file with the certificate to trust, if replicas have their own
}

func newCluster(t *testing.T, replicas int) *cluster {
	t.Helper()
	c := &cluster{devServer: &devServer{t: t, dir: t.TempDir(), out: &lockedBuffer{}}, store: pgtest.Start(t)}
	return c.start(replicas)
}

// start starts the first replicas.
func (c *cluster) start(replicas int, flags ...string) *cluster {
	t := c.t
	t.Helper()
	c.admin = c.token()
	c.join = c.token("--join")
	for range replicas {
		c.addReplica(flags...)
	}
	for i := range replicas {
		c.ask(i)
		c.await("the replica is ready", func() bool {
			_, err := c.Ready(t.Context())
			return err == nil
		})
	}
	c.ask(0)
	return c
}

func (c *cluster) token(args ...string) string {
	c.t.Helper()
	out, err := program(c.t.Context(), c.dir, []string{"MARIPOSA_STORE=" + c.store}, append([]string{"server", "token"}, args...)...).Output()
	if err != nil {
		c.t.Fatalf("server token: %v", err)
	}
	return strings.TrimSpace(string(out))
}

// spawnProcess starts a process of the cluster that ends with the test.
func (c *cluster) spawnProcess(out *lockedBuffer, env []string, args ...string) *exec.Cmd {
	c.t.Helper()
	cmd := launch(c.t, program(context.Background(), c.dir, env, args...), out)
	c.t.Cleanup(func() {
		end(cmd)
		if c.t.Failed() {
			c.t.Logf("%v said:\n%s", args, out)
		}
	})
	return cmd
}

func (c *cluster) addReplica(flags ...string) {
	c.t.Helper()
	c.addReplicas(1, flags...)
}

// addReplicas starts several at once.
func (c *cluster) addReplicas(n int, flags ...string) {
	c.t.Helper()
	var all []*replica
	for range n {
		r := &replica{out: &lockedBuffer{}}
		r.cmd = c.spawnProcess(r.out, []string{"MARIPOSA_STORE=" + c.store}, append([]string{"server", "--listen", porttest.Address(c.t)}, flags...)...)
		all = append(all, r)
	}
	for _, r := range all {
		c.await("the replica says where it is", func() bool {
			r.url = regexp.MustCompile(`https?://\S+`).FindString(r.out.String())
			return r.url != ""
		})
	}
	c.replicas = append(c.replicas, all...)
}

// ask makes the client use one replica.
func (c *cluster) ask(i int) {
	c.t.Helper()
	var err error
	c.Client, err = client.New(client.Options{URL: c.replicas[i].url, Token: c.admin, Roots: c.roots})
	must(c.t, err)
}

func (c *cluster) urls() string {
	var all []string
	for _, r := range c.replicas {
		all = append(all, r.url)
	}
	return strings.Join(all, ",")
}

// metric reads a metric of a replica.
func (c *cluster) metric(i int, name string) int {
	status, text := endpoint(c.t, c.replicas[i].url+"/metrics", "")
	if status == 0 {
		c.t.Error(text)
	}
	for line := range strings.Lines(text) {
		if value, ok := strings.CutPrefix(line, name+" "); ok {
			return atoi(strings.TrimSpace(value))
		}
	}
	return -1
}

func TestTwoReplicasShareTheWorkAndSurviveTheLossOfOne(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 2)
	c.await("the shards are shared", func() bool {
		a, b := c.metric(0, "mariposa_shards"), c.metric(1, "mariposa_shards")
		return a > 8 && b > 8 && a+b == 64
	})
	c.spawnProcess(&lockedBuffer{}, []string{"MARIPOSA_JOIN=" + c.join}, "agent", "--server", c.urls(), "--data", filepath.Join(c.dir, "dummies"), "--dummy-nodes", "6")
	const projects, scale = 8, 20
	for i := range projects {
		c.ask(i % 2) // write to either replica
		c.create(fmt.Sprintf("p%d", i), fmt.Sprintf("services: {d: {compute_type: dummy, scale: %d}}", scale))
	}
	for i := range projects {
		c.ask((i + 1) % 2) // and read from the other
		c.converged(fmt.Sprintf("p%d", i), "d", scale)
	}
	before := c.names()
	end(c.replicas[0].cmd)
	lost := time.Now()
	c.ask(1)
	for i := range projects {
		c.must(c.Scale(t.Context(), fmt.Sprintf("p%d", i), map[string]string{"d": fmt.Sprint(scale + 5)}))
	}
	for i := range projects {
		c.converged(fmt.Sprintf("p%d", i), "d", scale+5)
	}
	t.Logf("the survivor had done the work of both %s after the loss", time.Since(lost).Round(time.Millisecond))
	// The leases of the lost replica expire one by one; those of shards without a project
	// may be the last.
	c.await("the survivor holds all 64 shards", func() bool { return c.metric(1, "mariposa_shards") == 64 })
	after := c.names()
	for _, name := range before {
		if !slices.Contains(after, name) {
			t.Errorf("%s did not survive the loss of a replica", name)
		}
	}
	if len(after) != projects*(scale+5) {
		t.Errorf("%d instances, want %d: something was doubled or lost", len(after), projects*(scale+5))
	}
	c.addReplica()
	c.await("a new replica gets its share", func() bool { return c.metric(2, "mariposa_shards") > 8 })
}

func (c *cluster) names() []string {
	c.t.Helper()
	list, err := c.AllInstances(c.t.Context(), client.InstanceFilter{})
	must(c.t, err)
	var out []string
	for _, i := range list.Instances {
		out = append(out, i.Name)
	}
	return out
}

func TestAReplicaWaitsOutAStoppedDatabase(t *testing.T) {
	t.Parallel()
	server := pgtest.New(t)
	c := &cluster{devServer: &devServer{t: t, dir: t.TempDir(), out: &lockedBuffer{}}, store: server.Database(t, "")}
	c.admin, c.join = c.token(), c.token("--join")
	c.addReplica()
	c.ask(0)
	c.spawnProcess(&lockedBuffer{}, []string{"MARIPOSA_JOIN=" + c.join}, "agent", "--server", c.urls(), "--data", filepath.Join(c.dir, "dummies"), "--dummy-nodes", "2")
	c.create("p", "services: {d: {compute_type: dummy, scale: 10}}")
	c.converged("p", "d", 10)
	before := c.names()
	server.Stop()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	_, err := c.Scale(ctx, "p", map[string]string{"d": "12"})
	refusedForNow(t, err)
	if _, err := c.Ready(ctx); err == nil {
		t.Error("it says it is ready without its database")
	}
	must(t, server.Start())
	c.await("changes are taken again", func() bool {
		_, err := c.Scale(t.Context(), "p", map[string]string{"d": "14"})
		return err == nil
	})
	c.converged("p", "d", 14)
	for _, name := range before {
		if !slices.Contains(c.names(), name) {
			t.Errorf("%s did not survive the outage", name)
		}
	}
	if s := c.state("p"); s.Status != mariposa.StatusConverged {
		t.Errorf("%+v", s)
	}
}
