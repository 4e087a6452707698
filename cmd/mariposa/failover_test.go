package main_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"mariposa/client"
)

// reachable is a cluster whose clients know all replicas, each through a cable.
type reachable struct {
	*cluster
	cables []*cable
	env    []string
	list   string // the URLs of all replicas
}

func newReachable(t *testing.T, replicas int) *reachable {
	t.Helper()
	r := &reachable{cluster: newCluster(t, replicas)}
	var all []string
	for _, one := range r.replicas {
		c, u := newCable(t, one.url)
		r.cables, all = append(r.cables, c), append(all, u)
	}
	r.list = strings.Join(all, ",")
	r.env = []string{"MARIPOSA_URL=" + r.list, "MARIPOSA_TOKEN=" + r.admin}
	return r
}

// node starts an agent that runs processes.
func (r *reachable) node(name string) *exec.Cmd {
	r.t.Helper()
	out := &lockedBuffer{}
	cmd := r.spawnProcess(out, []string{"MARIPOSA_JOIN=" + r.join}, "agent", "--server", r.urls(), "--data", filepath.Join(r.dir, name), "--name", name)
	return cmd
}

// run runs a client command to its end.
func (r *reachable) run(args ...string) (stdout, stderr string, code int) {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(r.t.Context(), limit)
	defer cancel()
	return finish(r.t, program(ctx, r.dir, r.env, args...), "")
}

// A follower is a client command that runs until it is interrupted.
type follower struct {
	cmd       *exec.Cmd
	out, errs *lockedBuffer
}

func (r *reachable) follow(args ...string) *follower {
	r.t.Helper()
	f := &follower{cmd: program(context.Background(), r.dir, r.env, args...), out: &lockedBuffer{}, errs: &lockedBuffer{}}
	f.cmd.Stdout, f.cmd.Stderr = f.out, f.errs
	must(r.t, f.cmd.Start())
	r.t.Cleanup(func() {
		end(f.cmd)
		if r.t.Failed() {
			r.t.Logf("%v said:\n%s", args, f.errs)
		}
	})
	return f
}

// stop interrupts a follower and waits for its end.
func (f *follower) stop(t *testing.T) {
	t.Helper()
	must(t, f.cmd.Process.Signal(syscall.SIGINT))
	if err := f.cmd.Wait(); err != nil {
		t.Errorf("%v: %v\n%s", f.cmd.Args[1:], err, f.errs)
	}
}

// counts a line every 20 ms.
const counting = `
services:
  web: {compute_type: process, command: [sh, -c, 'n=0; while :; do n=$((n+1)); echo "line $n"; sleep 0.02; done']}
  d: {compute_type: dummy, scale: 1}
`

// Replicas are cut off, hang, stop and die while clients follow events and logs. Everything
// arrives exactly once.
func TestFollowersContinueAtAnotherReplica(t *testing.T) {
	t.Parallel()
	r := newReachable(t, 2)
	r.node("n1")
	r.agent("dummies", 1, r.urls())
	defer func() {
		r.ask(1)
		r.clear()
	}()
	if _, errs, code := r.run("project", "create", "shop", "-m", fileOf(t, counting), "--wait"); code != 0 {
		t.Fatalf("create: %d\n%s", code, errs)
	}
	events := r.follow("events", "-f", "--since", "0", "--json")
	logs := r.follow("logs", "web", "-f", "--tail", "-1", "-j", "shop")
	tail := r.follow("logs", "web", "-f", "--tail", "0", "-j", "shop", "--json")
	scale := 1
	// progress waits until the followers have seen what happens now.
	progress := func(what string, all ...*follower) {
		t.Helper()
		scale++
		seen := strings.Count(events.out.String(), "\n")
		if out, errs, code := r.run("project", "scale", "shop", fmt.Sprintf("d=%d", scale), "--wait"); code != 0 || !strings.HasPrefix(out, "task ") || strings.Count(out, "\n") != 1 {
			t.Fatalf("%s: scale: %d\n%s%s", what, code, out, errs)
		}
		for _, f := range all {
			before := strings.Count(f.out.String(), "\n")
			if f == events {
				before = seen // there may be no more events after the task
			}
			r.await(what+": "+strings.Join(f.cmd.Args[1:3], " ")+" goes on", func() bool { return strings.Count(f.out.String(), "\n") >= before+3 })
		}
	}
	progress("at first", events, logs, tail)
	for i, c := range r.cables {
		c.setCut(true)
		progress(fmt.Sprintf("replica %d is cut off", i), events)
		c.setCut(false)
		progress(fmt.Sprintf("replica %d is back", i), events, logs, tail)
	}
	r.cables[0].setHung(true)
	progress("replica 0 hangs", events)
	r.cables[0].setHung(false)
	progress("replica 0 answers again", events, logs, tail)
	must(t, r.replicas[1].cmd.Process.Signal(syscall.SIGSTOP))
	progress("replica 1 is stopped", events, logs, tail)
	must(t, r.replicas[1].cmd.Process.Signal(syscall.SIGCONT))
	progress("replica 1 runs again", events, logs, tail)
	end(r.replicas[0].cmd)
	progress("replica 0 is dead", events, logs, tail)
	for _, f := range []*follower{events, logs, tail} {
		f.stop(t)
	}
	r.eachEventOnce(events.out.String())
	eachLineOnce(t, logs.out.String(), 1)
	eachLineOnce(t, textsOf(t, tail.out.String()), 0)
	for _, f := range []*follower{events, logs} {
		if said := f.errs.String(); !strings.Contains(said, "does not answer; continuing with 127.0.0.1:") {
			t.Errorf("%v did not say that it continues elsewhere: %s", f.cmd.Args[1:], said)
		}
	}
}

// eachEventOnce checks that a followed feed is the same as the list of events.
func (r *reachable) eachEventOnce(followed string) {
	r.t.Helper()
	r.ask(1)
	var got []int64
	for line := range strings.Lines(followed) {
		var e client.Event
		must(r.t, json.Unmarshal([]byte(line), &e))
		got = append(got, e.Revision)
	}
	var want []int64
	for since := int64(0); ; {
		page, err := r.Events(r.t.Context(), client.EventFilter{Since: since, Limit: 1000})
		must(r.t, err)
		for _, e := range page.Events {
			want = append(want, e.Revision)
		}
		if len(page.Events) == 0 && !page.More {
			break
		}
		since = page.Revision
	}
	for n, revision := range got {
		if n >= len(want) || revision != want[n] {
			r.t.Fatalf("event %d has revision %d, which is missing, doubled or out of order", n, revision)
		}
	}
	r.t.Logf("%d of %d events", len(got), len(want))
}

// eachLineOnce checks that lines are numbered without gaps; first is the number of the
// first, or 0 for any.
func eachLineOnce(t *testing.T, text string, first int) {
	t.Helper()
	n := 0
	for line := range strings.Lines(text) {
		_, number, _ := strings.Cut(line, "line ")
		got := atoi(strings.TrimSpace(number))
		if n == 0 && first == 0 {
			first = got
		}
		if got != first+n {
			t.Fatalf("line %d is %q: a line is missing, doubled or out of order", first+n, line)
		}
		n++
	}
	t.Logf("%d lines", n)
}

// textsOf returns the texts of a log in JSON.
func textsOf(t *testing.T, lines string) string {
	t.Helper()
	var b strings.Builder
	for line := range strings.Lines(lines) {
		var doc struct{ Text string }
		must(t, json.Unmarshal([]byte(line), &doc))
		b.WriteString(doc.Text + "\n")
	}
	return b.String()
}

// The answers of the first replica never arrive, so every change is sent to the second
// one, too.
func TestAChangeWhoseAnswerIsLostIsMadeOnce(t *testing.T) {
	t.Parallel()
	r := newReachable(t, 2)
	r.agent("dummies", 1, r.urls())
	if _, errs, code := r.run("project", "create", "counts", "-m", fileOf(t, "services: {d: {compute_type: dummy}}\nmetadata: {n: {type: integer, default: 0}}"), "--wait"); code != 0 {
		t.Fatalf("create: %d\n%s", code, errs)
	}
	r.cables[0].loseAnswers("Idempotency-Key")
	const rounds = 5
	for n := range rounds {
		for _, args := range [][]string{
			{"meta", "incr", "n", "7", "-j", "counts"},
			{"token", "create", fmt.Sprint("t", n)},
			{"instance", "create", fmt.Sprint("one", n), "-j", "counts", "--compute-type", "dummy"},
		} {
			_, errs, code := r.run(args...)
			if code != 0 || strings.Count(errs, "does not answer; continuing with ") != 1 {
				t.Fatalf("%v: %d\n%s", args, code, errs)
			}
			r.forgetUsed()
		}
	}
	if lost := r.cables[0].lost; lost < 3*rounds {
		t.Errorf("the first replica answered %d changes, not %d", lost, 3*rounds)
	}
	r.ask(1)
	if n, err := r.MetadataKey(t.Context(), "counts", "n", false); err != nil || n.Value != fmt.Sprint(7*rounds) {
		t.Errorf("%d times 7 is %+v, %v", rounds, n, err)
	}
	if tokens, err := r.Tokens(t.Context(), ""); err != nil || len(tokens.Tokens) != 1+rounds {
		t.Errorf("%d tokens, not %d, %v", len(tokens.Tokens), 1+rounds, err)
	}
	if singles := strings.Count(strings.Join(r.names(), " "), "one"); singles != rounds {
		t.Errorf("%d single instances, not %d", singles, rounds)
	}
}

// forgetUsed makes the next command begin with the first URL.
func (r *reachable) forgetUsed() {
	_ = exec.Command("rm", "-f", filepath.Join(r.dir, ".local", "state", "mariposa", "servers.json")).Run()
}

// A client waits for a task whose replica dies in the meantime.
func TestAWaitGoesOnAtAnotherReplica(t *testing.T) {
	t.Parallel()
	r := newReachable(t, 2)
	f := r.follow("project", "create", "shop", "-m", fileOf(t, "services: {d: {compute_type: dummy, scale: 5}}"), "--wait")
	r.await("the task waits for a node", func() bool {
		return strings.Contains(f.errs.String(), "create") || strings.Contains(f.errs.String(), "start")
	})
	end(r.replicas[0].cmd)
	r.agent("dummies", 1, r.urls())
	if err := f.cmd.Wait(); err != nil {
		t.Fatalf("%v\n%s", err, f.errs)
	}
	said := f.errs.String()
	if !strings.Contains(said, "does not answer; continuing with 127.0.0.1:") || !strings.Contains(said, "completed") {
		t.Errorf("it said %s", said)
	}
	if out := f.out.String(); strings.Contains(out, "does not answer") || !strings.Contains(out, "task ") {
		t.Errorf("it printed %s", out)
	}
	// The next command begins with the replica that answered last.
	if out, errs, code := r.run("project", "list", "--json"); code != 0 || errs != "" || !strings.Contains(out, `"shop"`) {
		t.Errorf("%d: %s%s", code, out, errs)
	}
	r.forgetUsed()
	if _, errs, code := r.run("project", "list", "--json"); code != 0 || strings.Count(errs, "\n") != 1 || !strings.Contains(errs, "does not answer; continuing with ") {
		t.Errorf("%d: %s", code, errs)
	}
	end(r.replicas[1].cmd)
	_, errs, code := r.run("project", "list")
	if code != 1 || strings.Count(errs, "\n") > 2 {
		t.Errorf("%d: %s", code, errs)
	}
	for _, u := range strings.Split(r.list, ",") {
		if !strings.Contains(errs, u) {
			t.Errorf("it does not name %s: %s", u, errs)
		}
	}
}

// A command inside an instance cannot move to another replica.
func TestACommandEndsWithItsConnection(t *testing.T) {
	t.Parallel()
	r := newReachable(t, 2)
	r.node("n1")
	defer r.clear()
	if _, errs, code := r.run("project", "create", "shop", "-m", fileOf(t, counting[:strings.Index(counting, "  d:")]), "--wait"); code != 0 {
		t.Fatalf("create: %d\n%s", code, errs)
	}
	f := r.follow("instance", "exec", "web.1", "-j", "shop", "--", "sh", "-c", "echo begun; exec sleep 1000")
	r.await("the command runs", func() bool { return strings.Contains(f.out.String(), "begun") })
	for _, c := range r.cables {
		c.setCut(true)
	}
	_ = f.cmd.Wait()
	if code := f.cmd.ProcessState.ExitCode(); code != 255 || !strings.Contains(f.errs.String(), "cannot be continued") || strings.Count(f.errs.String(), "\n") != 1 {
		t.Errorf("exit %d: %s", code, f.errs)
	}
}

// A server of another installation gets no token.
func TestAnotherInstallationAmongTheURLs(t *testing.T) {
	t.Parallel()
	h, other := newDevServer(t), newDevServer(t)
	both := h.URL() + "," + other.URL()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	home := t.TempDir()
	for _, args := range [][]string{
		{"login", both, "--token", h.admin},
		{"--url", both, "--token", h.admin, "project", "list"},
	} {
		_, errs, code := finish(t, program(ctx, home, nil, args...), "")
		if code != 1 || !strings.Contains(errs, "different installations") {
			t.Errorf("%v: %d %s", args, code, errs)
		}
	}
	if bytes.Contains([]byte(other.out.String()), []byte("login")) {
		t.Error("the other server got the token")
	}
	other.kill()
	// The profile remembers the installation.
	if _, errs, code := finish(t, program(ctx, home, nil, "login", both, "--token", h.admin), ""); code != 0 || !strings.Contains(errs, "was not checked") {
		t.Errorf("login: %d %s", code, errs)
	}
	other.start()
	text := read(t, filepath.Join(home, ".config", "mariposa", "profile.json"))
	write(t, filepath.Join(home, ".config", "mariposa", "profile.json"), bytes.ReplaceAll(text, []byte(both), []byte(other.URL()+","+h.URL())))
	_, errs, code := finish(t, program(ctx, home, nil, "whoami"), "")
	if code != 0 || !strings.Contains(errs, "belongs to another installation") {
		t.Errorf("whoami: %d %s", code, errs)
	}
}
