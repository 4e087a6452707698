package main_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"mariposa"
	"mariposa/contract"
	"mariposa/store/postgres/pgtest"
	"mariposa/wire"
)

// inQuarantine counts the instances that nodes keep and that the store does not know.
func (h *devServer) inQuarantine() (n int) {
	all, err := h.Nodes(h.t.Context())
	if err != nil {
		return -1
	}
	for _, node := range all.Nodes {
		n += len(node.Quarantined)
	}
	return n
}

// While replicas run, their database is replaced by an earlier state of it, as by a
// restored backup or a standby that lagged behind. They went on with what they had read:
// what was written from then on was neither shown nor carried out.
func TestADatabaseThatGoesBackUnderReplicasIsReadAgain(t *testing.T) {
	t.Parallel()
	server := pgtest.Shared(t)
	c := &cluster{devServer: &devServer{t: t, dir: t.TempDir(), out: &lockedBuffer{}}, store: server.Database(t, "")}
	c.admin, c.join = c.token(), c.token("--join")
	c.addReplicas(2)
	both := func(what string, is func() bool) {
		t.Helper()
		for i := range c.replicas {
			c.ask(i)
			c.await(what, is)
		}
	}
	running := func(n int) func() bool {
		return func() bool {
			s := c.state("shop")
			return len(s.Services) == 1 && s.Status == mariposa.StatusConverged && s.Services[0].Goal == n && s.Services[0].Running == n
		}
	}
	ready := func() bool {
		_, err := c.Ready(t.Context())
		return err == nil
	}
	both("the replica is ready", ready)
	c.agent("node", 2, c.urls())
	c.create("shop", "services: {web: {compute_type: dummy, scale: 4}}")
	both("4 run", running(4))

	saved := server.Save(t, c.store)
	both("the replica is ready again", ready)
	c.must(c.Scale(t.Context(), "shop", map[string]string{"web": "6"}))
	both("6 run", running(6))
	for i, r := range c.replicas {
		if strings.Contains(r.out.String(), "gone back") {
			t.Errorf("replica %d says that the database has gone back before it has:\n%s", i, r.out)
		}
	}

	server.Restore(t, c.store, saved)
	for _, r := range c.replicas {
		c.await("the replica says what happened", func() bool { return strings.Contains(r.out.String(), "the database has gone back to an earlier state") })
	}
	both("the restored state is shown", running(4))
	both("what only the lost state knew is kept", func() bool { return c.inQuarantine() == 2 })
	for i, n := range []int{1, 3, 0} { // asked at either replica
		c.ask(i % 2)
		c.must(c.Scale(t.Context(), "shop", map[string]string{"web": itoa(n)}))
		both("it is carried out and shown", running(n))
	}
	if n := c.inQuarantine(); n != 2 {
		t.Errorf("%d instances are in quarantine", n)
	}

	// The same state once more: nodes know its incarnation, from the time before the
	// first restore.
	server.Restore(t, c.store, saved)
	both("the restored state is shown again", running(4))
	c.must(c.Scale(t.Context(), "shop", map[string]string{"web": "1"}))
	both("the nodes obey it", running(1))

	kept := server.Save(t, c.store)
	both("the replica is ready again", ready)
	server.Restore(t, c.store, "template0") // an empty database
	for _, r := range c.replicas {
		c.await("requests are refused", func() bool {
			status, _ := endpoint(t, r.url+"/v1/state", c.admin)
			alive, _ := endpoint(t, r.url+"/healthz", "")
			return status == 503 && alive == 200
		})
	}
	server.Restore(t, c.store, kept)
	both("the right database is used again", running(1))
	c.must(c.Scale(t.Context(), "shop", map[string]string{"web": "2"}))
	both("changes are carried out", running(2))
}

// The database file is replaced by an earlier copy while the server is down. The node
// ignored the goals in it, because it knew newer ones.
func TestARestoredDatabaseFileIsObeyed(t *testing.T) {
	t.Parallel()
	for name, restarts := range map[string]bool{"the agent runs on": false, "the agent restarts too": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			restoredFile(t, restarts)
		})
	}
}

func restoredFile(t *testing.T, agentRestarts bool) {
	a := newSplitSystem(t)
	agent := a.agent()
	a.create("hello", web(3, "hi"))
	a.converged("hello", "web", 3)
	end(a.server)
	saved := t.TempDir()
	copyDatabase(t, a.data, saved)
	a.serve()
	a.converged("hello", "web", 3)
	for name, pid := range a.pids("hello") { // the goals of instances get newer generations
		a.must(a.ActOnInstance(t.Context(), a.instances("hello")[name].ID, "restart"))
		a.await(name+" restarts", func() bool {
			now := a.pids("hello")[name]
			return now != 0 && now != pid
		})
	}
	a.must(a.Scale(t.Context(), "hello", map[string]string{"web": "5"}))
	a.converged("hello", "web", 5)
	before := a.pids("hello")
	if agentRestarts {
		now := a.revision()
		a.await("the node has stored what it has seen", func() bool {
			var seen wire.Seen
			b, err := os.ReadFile(filepath.Join(a.dir, "seen.json"))
			return err == nil && json.Unmarshal(b, &seen) == nil && seen.Revision >= now
		})
		end(agent)
	}
	end(a.server)
	copyDatabase(t, saved, a.data)
	a.serve()
	if agentRestarts {
		a.agent()
	}
	a.await("the server says what happened", func() bool { return strings.Contains(a.out.String(), "the database has gone back to an earlier state") })
	a.await("what only the lost state knew is kept", func() bool { return a.inQuarantine() == 2 })
	a.converged("hello", "web", 3)
	live(t, before)
	a.must(a.Scale(t.Context(), "hello", map[string]string{"web": "0"}))
	a.await("the others end", func() bool { return len(a.instances("hello")) == 1 && len(a.processes()) == 3 })
	a.must(a.ActOnNode(t.Context(), "node-a", contract.NodeAction{Action: "purge"}))
	a.await("what was purged ends", func() bool { return len(a.processes()) == 1 && a.inQuarantine() == 0 })
}

// copyDatabase copies the files of a database that is not in use.
func copyDatabase(t *testing.T, from, to string) {
	t.Helper()
	for _, dir := range []string{to, from} {
		files, err := filepath.Glob(filepath.Join(dir, "m.db*"))
		must(t, err)
		for _, f := range files {
			if dir == to {
				must(t, os.Remove(f))
			} else {
				write(t, filepath.Join(to, filepath.Base(f)), read(t, f))
			}
		}
	}
}
