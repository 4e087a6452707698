package main_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"mariposa"
	"mariposa/driver/docker/enginetest"
)

// A service runs with Podman, from a manifest to its end. Its container outlives the service of
// Podman and the agent.
func TestAServiceRunsWithPodman(t *testing.T) {
	t.Parallel()
	e, err := enginetest.StartPodman(t.TempDir())
	must(t, err)
	t.Cleanup(func() { must(t, e.Stop()) })
	a := &containers{splitSystem: newSplitSystem(t), engine: e}
	a.env = []string{"MARIPOSA_URL=" + a.url, "MARIPOSA_TOKEN=" + a.admin}
	a.start()
	if show := a.ok("node", "show", "node-a"); !strings.Contains(show, "Podman ") {
		t.Errorf("node show says\n%s", show)
	}
	a.ok("project", "create", "shop", "-m", fileOf(t, boxes(1, "    command: [sh, -c, 'echo hello; exec sleep 100000']\n    memory: 32m\n")), "--wait")
	before := a.physical("shop")
	var name string
	for name = range before {
	}
	a.await("its log", func() bool { return strings.Contains(a.ok("-j", "shop", "logs"), "hello") })

	// Limits change in place.
	manifest := strings.Replace(a.ok("-j", "shop", "project", "version", "get", "1"), "32m", "48m", 1)
	a.ok("-j", "shop", "project", "update", "-m", fileOf(t, manifest), "--force", "--wait")
	limit := a.ok("-j", "shop", "instance", "exec", name, "--", "sh", "-c", "cat /sys/fs/cgroup/memory/memory.limit_in_bytes 2>/dev/null || cat /sys/fs/cgroup/memory.max")
	if strings.TrimSpace(limit) != fmt.Sprint(48<<20) || fmt.Sprint(a.physical("shop")) != fmt.Sprint(before) {
		t.Errorf("it has %q; the containers were %v and are %v", limit, before, a.physical("shop"))
	}

	must(t, e.Kill())
	a.await("the node says that Podman is away", func() bool {
		n := a.node()
		return !slices.Contains(n.Drivers, mariposa.ComputeDocker) && strings.Contains(n.Offers[mariposa.ComputeDocker].Unavailable, "Podman cannot be reached")
	})
	end(a.parts[len(a.parts)-1]) // the agent
	must(t, e.Launch())
	a.start()
	a.converged("shop", "web", 1)
	if now := a.physical("shop"); fmt.Sprint(now) != fmt.Sprint(before) {
		t.Errorf("the containers were %v and are %v", before, now)
	}
	a.ok("project", "delete", "shop", "--yes", "-f", "--wait")
	a.await("no container is left", func() bool { return a.running() == 0 })
}
