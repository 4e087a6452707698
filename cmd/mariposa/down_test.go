package main_test

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// --down names the lost node that it waits for, and says how to continue without it.
func TestTakingDownSaysWhichNodeItWaitsFor(t *testing.T) {
	t.Parallel()
	h := newDevServer(t, "--dummy-nodes", "1")
	h.create("shop", "services:\n  web: {compute_type: dummy, scale: 2}\n")
	h.converged("shop", "web", 2)
	h.kill()
	must(t, os.RemoveAll(filepath.Join(h.dir, "nodes"))) // the simulated node is lost
	must(t, os.Remove(filepath.Join(h.dir, "url")))
	var out lockedBuffer
	down := launch(t, program(context.Background(), h.dir, nil, "dev", "--listen", "127.0.0.1:0", "--data", h.dir, "--down", "--yes"), &out)
	over := make(chan error, 1)
	go func() { over <- down.Wait() }()
	t.Cleanup(func() { _ = down.Process.Kill() }) // it has ended already, unless the test failed
	h.await("it says what it waits for", func() bool {
		return strings.Contains(out.String(), "waiting for the removal of 2 instances on node dummy-1, which is not connected")
	})
	if !strings.Contains(out.String(), "`mariposa node rm dummy-1 --force`") {
		t.Errorf("it does not say how to go on:\n%s", &out)
	}
	if _, said, code := finish(t, program(t.Context(), h.dir, []string{"MARIPOSA_DATA=" + h.dir}, "node", "rm", "dummy-1", "--force"), ""); code != 0 {
		t.Fatalf("node rm: exit %d, %s", code, said)
	}
	if err := <-over; err != nil || !strings.Contains(out.String(), "All projects and their instances are deleted") || !strings.Contains(out.String(), "--down --purge --data "+h.dir) {
		t.Errorf("it ended with %v:\n%s", err, &out)
	}
}

// Without a terminal and --yes, --down refuses before it starts anything.
func TestTakingDownIsConfirmedBeforeAnythingStarts(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	must(t, os.WriteFile(filepath.Join(dir, "mariposa.db"), nil, 0o600))
	for _, flags := range [][]string{{"--down"}, {"--down", "--purge"}} {
		printed, said, code := finish(t, program(t.Context(), t.TempDir(), nil, append([]string{"dev", "--listen", "127.0.0.1:0", "--data", dir}, flags...)...), "")
		if code != 2 || printed != "" || !strings.Contains(said, "stops and deletes all projects") || !strings.Contains(said, "add --yes to confirm") {
			t.Errorf("%v: exit %d: %s%s", flags, code, printed, said)
		}
	}
	if left, _ := os.ReadDir(dir); len(left) != 1 {
		t.Errorf("it has made %v", left)
	}
}

// Without a store, --down deletes and creates nothing.
func TestTakingDownNeedsAStore(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "nosuch")
	_, said, code := finish(t, program(t.Context(), t.TempDir(), nil, "dev", "--listen", "127.0.0.1:0", "--data", dir, "--down", "--yes"), "")
	if code != 1 || !strings.Contains(said, "there is no store in "+dir) {
		t.Errorf("exit %d: %s", code, said)
	}
	if _, err := os.Stat(dir); err == nil {
		t.Errorf("%s was created", dir)
	}
}
