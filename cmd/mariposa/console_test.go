package main_test

import (
	"context"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"mariposa/contract"
	"mariposa/driver/kvm/guesttest"
)

// remembers starts a project with a machine that answers a ? on its console with the last byte
// before it.
func remembers(t *testing.T) (i *island, machine contract.Instance) {
	t.Helper()
	i = newIsland(t)
	disk := filepath.Join(t.TempDir(), "disk.raw")
	must(t, os.WriteFile(disk, guesttest.Memory(), 0o600))
	i.ok("image", "import", disk, "--name", "memory:1")
	i.ok("project", "create", "shop", "-m", fileOf(t, `
services:
  box: {compute_type: vm, image: "memory:1", memory: 32m, stop: {timeout: 0}, update: {min_healthy: 0}}
`), "--wait")
	for _, machine = range i.running("shop") {
	}
	return i, machine
}

// ask attaches to the console without a terminal, and sends it bytes until it answers.
func (i *island) ask(machine, bytes, answer string) {
	i.t.Helper()
	ctx, cancel := context.WithTimeout(i.t.Context(), limit)
	defer cancel()
	cmd := i.inside(ctx, "instance", "exec", "--console", machine)
	in, err := cmd.StdinPipe()
	must(i.t, err)
	out := &lockedBuffer{}
	launch(i.t, cmd, out)
	defer end(cmd)
	for !strings.Contains(out.String(), answer) {
		if _, err := io.WriteString(in, bytes); err != nil || ctx.Err() != nil {
			i.t.Fatalf("the console does not answer %s: %q %v", answer, out, err)
		}
		select { // it may not have booted yet
		case <-ctx.Done():
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// post sends a request with an idempotency key that is always the same.
func (i *island) post(path, body string) string {
	i.t.Helper()
	url, err := os.ReadFile(filepath.Join(i.dir, "url"))
	must(i.t, err)
	token, err := os.ReadFile(filepath.Join(i.dir, "admin.token"))
	must(i.t, err)
	ctx, cancel := context.WithTimeout(i.t.Context(), limit)
	defer cancel()
	cmd := i.inside(ctx)
	cmd.Args = append(cmd.Args[:len(cmd.Args)-1], "/bin/busybox", "wget", "-q", "-O", "-", "--header", "Idempotency-Key: k", "--header", "Content-Type: application/json",
		"--header", "Authorization: Bearer "+strings.TrimSpace(string(token)), "--post-data", body, strings.TrimSpace(string(url))+path)
	out, said, code := finish(i.t, cmd, "")
	if code != 0 {
		i.t.Fatalf("%s: %d %s%s", path, code, out, said)
	}
	return out
}

// The console of a machine is used at a terminal, and without one. A snapshot has its memory.
func TestTheConsoleAndSnapshotsOfAMachine(t *testing.T) {
	t.Parallel()
	i, one := remembers(t)
	i.ask(one.Name, "a?", "A")
	if _, said, code := i.try("instance", "snapshots", one.Name); code != 0 || !strings.Contains(said, "no snapshots") {
		t.Errorf("at first: %d %s", code, said)
	}
	if out := i.ok("instance", "snapshot", one.Name, "with-a"); !strings.Contains(out, one.Name+" saved as snapshot with-a") {
		t.Errorf("it said %s", out)
	}

	x := newTerminal(t, 24, 80)
	before := x.settings()
	cmd := x.starts(i.inside(t.Context(), "instance", "exec", "--console", one.Name))
	x.shows("press Ctrl-] to detach")
	x.types("b?")
	x.shows("B")
	x.types("\x1d")
	x.ended(cmd, 0, before)

	i.ask(one.Name, "?", "B")
	if out := i.ok("instance", "restore", one.Name, "with-a", "--yes"); !strings.Contains(out, "restored from snapshot with-a") {
		t.Errorf("it said %s", out)
	}
	i.ask(one.Name, "?", "A")
	if now := i.running("shop"); now[one.Name].PhysicalID != one.PhysicalID {
		t.Errorf("it is another machine: %+v", now)
	}

	for _, c := range []struct {
		args []string
		why  string
	}{
		{[]string{"snapshot", one.Name, "with-a"}, "already has a snapshot with-a"},
		{[]string{"snapshot", one.Name, "No Name"}, "the name of the snapshot must be"},
		{[]string{"restore", one.Name, "other", "--yes"}, "it has no snapshot other; it has with-a"},
		{[]string{"snapshot", "rm", one.Name, "other"}, "it has no snapshot other"},
		{[]string{"exec", "--console", one.Name, "--", "ls"}, "omit the command"},
	} {
		if _, said, code := i.try(append([]string{"instance"}, c.args...)...); code == 0 || !strings.Contains(said, c.why) {
			t.Errorf("%v: %d %s", c.args, code, said)
		}
	}

	// A request that is repeated with its key is carried out once.
	if first, second := i.post("/v1/instances/"+one.ID+"/snapshots", `{"name":"once"}`), i.post("/v1/instances/"+one.ID+"/snapshots", `{"name":"once"}`); first != second || !strings.Contains(first, `"once"`) {
		t.Errorf("it was answered with %s and %s", first, second)
	}
	i.ok("instance", "snapshot", "rm", one.Name, "once")

	// Nothing changes in a frozen project.
	i.ok("project", "freeze", "shop", "--wait")
	if _, said, code := i.try("instance", "restore", one.Name, "with-a", "--yes"); code == 0 || !strings.Contains(said, "froze service box") {
		t.Errorf("frozen: %d %s", code, said)
	}
	i.ok("project", "thaw", "shop", "--wait")
	i.ok("instance", "snapshot", "rm", one.Name, "with-a")
	if out := i.ok("instance", "snapshot", "list", one.Name, "--json"); !strings.Contains(out, `"snapshots": []`) {
		t.Errorf("at last: %s", out)
	}
	if out := i.ok("events", "--audit", "--json"); !strings.Contains(out, "instance.restore") || !strings.Contains(out, `"console"`) || !strings.Contains(out, "snapshot with-a") {
		t.Errorf("the audit log has %s", out)
	}
}
