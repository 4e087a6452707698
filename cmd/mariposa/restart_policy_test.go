package main_test

import (
	"fmt"
	"syscall"
	"testing"

	"mariposa"
)

// A new restart policy applies to instances that run: without a restart they learn that they
// are restarted in place, and that they no longer are.
func TestARunningInstanceGetsANewRestartPolicy(t *testing.T) {
	t.Parallel()
	h := newDevServer(t)
	policy := func(p string) string {
		return fileOf(t, fmt.Sprintf("services:\n  web: {compute_type: process, command: [sleep, '1000'], restart: %s, update: {min_healthy: 0}}\n", p))
	}
	h.ok("project", "create", "shop", "-m", policy("'no'"), "--wait")
	// restartsInPlace kills the instance and reports whether it was restarted in place, not
	// replaced, after an update from one policy to another.
	restartsInPlace := func(from, to string) (inPlace bool) {
		t.Helper()
		h.ok("-j", "shop", "project", "update", "-m", policy(from), "--force", "--wait")
		before, pid := h.one("shop")
		h.ok("-j", "shop", "project", "update", "-m", policy(to), "--force", "--wait")
		if after, same := h.one("shop"); after.ID != before.ID || same != pid {
			t.Fatalf("the update replaced the instance: %+v, %d", after, same)
		}
		must(t, syscall.Kill(pid, syscall.SIGKILL))
		h.await("it runs again", func() bool {
			for _, i := range h.instances("shop") {
				if inPlace = i.ID == before.ID; i.State == mariposa.StateRunning && (!inPlace || i.Restarts > before.Restarts) {
					return true
				}
			}
			return false
		})
		return inPlace
	}
	// The node is told right after the update completes, so a kill can come too early once.
	// The node restarts one at most three times, so no more tries than two.
	for _, c := range []struct {
		from, to string
		inPlace  bool
	}{{"'no'", "always", true}, {"on-failure", "'no'", false}} {
		inPlace := restartsInPlace(c.from, c.to)
		if inPlace != c.inPlace {
			inPlace = restartsInPlace(c.from, c.to)
		}
		if inPlace != c.inPlace {
			t.Errorf("from %s to %s: restarted in place is %t", c.from, c.to, inPlace)
		}
	}
}
