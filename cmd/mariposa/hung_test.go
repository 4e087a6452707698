package main_test

import (
	"context"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"mariposa/store/postgres/pgtest"
)

// onlyCounting is the part of counting that runs a process.
var onlyCounting = counting[:strings.Index(counting, "  d:")]

// The replica that a node is connected to hangs. Its logs are read through another one,
// once the node has moved there. If all replicas hang, every command says so and fails.
func TestCommandsSurviveAReplicaThatHangs(t *testing.T) {
	t.Parallel()
	r := newReachable(t, 2)
	r.node("n1")
	signal := func(s syscall.Signal, some ...*replica) {
		t.Helper()
		for _, one := range some {
			must(t, one.cmd.Process.Signal(s))
		}
	}
	defer func() {
		signal(syscall.SIGCONT, r.replicas...)
		r.clear()
	}()
	if _, errs, code := r.run("project", "create", "shop", "-m", fileOf(t, onlyCounting), "--wait"); code != 0 {
		t.Fatalf("create: %d\n%s", code, errs)
	}
	hung := r.replicas[r.replicaOf("n1")]
	signal(syscall.SIGSTOP, hung)
	out, errs, code := r.run("logs", "web", "-j", "shop", "--tail", "3")
	if code != 0 || strings.Count(out, "line ") < 3 || strings.Contains(errs, "available") { // more lines may be written meanwhile
		t.Errorf("logs: exit %d\n%s%s", code, out, errs)
	}
	eachLineOnce(t, out, 0)
	signal(syscall.SIGCONT, hung)

	signal(syscall.SIGSTOP, r.replicas...)
	var all sync.WaitGroup
	for _, args := range [][]string{
		{"logs", "web"},
		{"logs", "web", "-t"},
		{"logs", "web", "-f"},
		{"instance", "logs", "web.1"},
		{"ps"},
		{"events"},
		{"events", "-f"},
		{"instance", "exec", "web.1", "--", "true"},
	} {
		all.Go(func() {
			out, errs, code := r.run(append([]string{"-j", "shop"}, args...)...)
			if code != 1 || out != "" || strings.Count(errs, "\n") != 1 || !strings.Contains(errs, "none of the 2 servers answers: ") {
				t.Errorf("%v: exit %d\n%s%s", args, code, out, errs)
			}
			for _, u := range strings.Split(r.list, ",") {
				if !strings.Contains(errs, u+": it does not answer") {
					t.Errorf("%v does not name %s: %s", args, u, errs)
				}
			}
		})
	}
	all.Wait()
}

// replicaOf returns the number of the replica that a node is connected to.
func (r *reachable) replicaOf(node string) int {
	r.t.Helper()
	all, err := r.Replicas(r.t.Context())
	must(r.t, err)
	n, err := r.Node(r.t.Context(), node)
	must(r.t, err)
	for _, one := range all.Replicas {
		for i, known := range r.replicas {
			if one.Name == n.Replica && one.URL == known.url {
				return i
			}
		}
	}
	r.t.Fatalf("%s is connected to %s, which is not in %+v", node, n.Replica, all.Replicas)
	return 0
}

// A backup is restored while events and logs are followed: they say so, and go on.
func TestFollowersGoOnAfterARestore(t *testing.T) {
	t.Parallel()
	t.Run("SQLite", func(t *testing.T) {
		t.Parallel()
		a := newSplitSystem(t)
		a.agent()
		r := &reachable{cluster: &cluster{devServer: a.devServer}, env: []string{"MARIPOSA_URL=" + a.url, "MARIPOSA_TOKEN=" + a.admin}}
		file := filepath.Join(t.TempDir(), "a.backup")
		followRestored(r, func() { a.command("backup", file) }, func() { a.restore(file) })
	})
	t.Run("PostgreSQL", func(t *testing.T) {
		t.Parallel()
		r := newReachable(t, 2)
		r.node("n1")
		defer r.clear()
		file := filepath.Join(t.TempDir(), "a.backup")
		followRestored(r, func() { r.do("backup", file) }, func() {
			ctx, cancel := context.WithTimeout(t.Context(), limit)
			defer cancel()
			if _, errs, code := finish(t, program(ctx, r.dir, []string{"MARIPOSA_STORE=" + r.store}, "restore", file, "--force"), ""); code != 0 {
				t.Fatalf("restore: exit %d\n%s", code, errs)
			}
		})
	})
	t.Run("a database that goes back", func(t *testing.T) {
		t.Parallel()
		server := pgtest.Shared(t)
		r := newReachable(t, 2)
		r.node("n1")
		defer r.clear()
		var saved string
		followRestored(r, func() { saved = server.Save(t, r.store) }, func() { server.Restore(t, r.store, saved) })
	})
}

// do runs a client command that must succeed.
func (r *reachable) do(args ...string) {
	r.t.Helper()
	if out, errs, code := r.run(args...); code != 0 {
		r.t.Fatalf("mariposa %v: exit %d\n%s%s", args, code, out, errs)
	}
}

func followRestored(r *reachable, save, restore func()) {
	t := r.t
	t.Helper()
	r.do("project", "create", "shop", "-m", fileOf(t, onlyCounting), "--wait")
	save()
	r.await("a server answers", func() bool {
		_, _, code := r.run("project", "scale", "shop", "web=2", "--wait")
		return code == 0
	})
	events, logs := r.follow("events", "-f", "-j", "shop"), r.follow("logs", "-f", "-j", "shop", "--tail", "1")
	grows := func(f *follower) func() bool {
		before := strings.Count(f.out.String(), "\n")
		return func() bool { return strings.Count(f.out.String(), "\n") > before+2 }
	}
	r.await("the logs are followed", grows(logs))
	r.do("project", "scale", "shop", "web=3", "--wait")
	r.await("the events are followed", func() bool { return strings.Contains(events.out.String(), "web.3") })
	restore()
	const said = "the installation was restored from a backup; continuing with what happens from now on"
	for _, f := range []*follower{events, logs} {
		r.await(strings.Join(f.cmd.Args[1:3], " ")+" says so", func() bool { return strings.Contains(f.errs.String(), said) })
	}
	r.await("the log of what exists goes on", grows(logs))
	seen := len(events.out.String())
	r.await("a server answers", func() bool {
		_, _, code := r.run("project", "scale", "shop", "web=4", "--wait")
		return code == 0
	})
	r.await("new events are shown", func() bool { return strings.Contains(events.out.String()[seen:], "web.4") })
	r.await("the logs of new instances are shown", func() bool { return strings.Contains(logs.out.String(), "web.4-") })
	adopted := r.quarantinedName()
	printed := strings.Count(logs.out.String(), adopted)
	r.do("node", "adopt", r.nodeName(), adopted, "--replace")
	r.await("the log of what is adopted goes on", func() bool { return strings.Count(logs.out.String(), adopted) > printed+2 })
	for _, f := range []*follower{events, logs} {
		f.stop(t)
		if n := strings.Count(f.errs.String(), said); n != 1 {
			t.Errorf("%v said it %d times: %s", f.cmd.Args[1:], n, f.errs)
		}
	}
	r.do("node", "purge", r.nodeName())
}

// quarantinedName returns the name of a quarantined instance of the only node.
func (r *reachable) quarantinedName() (name string) {
	r.t.Helper()
	r.await("an instance is in quarantine", func() bool {
		all, err := r.Nodes(r.t.Context())
		if err != nil || len(all.Nodes[0].Quarantined) == 0 {
			return false
		}
		name = all.Nodes[0].Quarantined[0].Name
		return true
	})
	return name
}

// nodeName returns the name of the only node.
func (r *reachable) nodeName() string {
	r.t.Helper()
	all, err := r.Nodes(r.t.Context())
	must(r.t, err)
	return all.Nodes[0].Name
}
