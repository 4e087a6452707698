package main_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"mariposa"
	"mariposa/contract"
)

// served is a service whose instances serve the files of their own directory: /health is
// there as long as nobody removes it. Its checks run often, so that tests are quick.
func served(scale int, script, more string) string {
	return fmt.Sprintf(`services:
  web:
    compute_type: process
    command: [sh, -c, '%s; exec busybox httpd -f -p 127.0.0.1:$PORT -h .']
    scale: %d
    ports: [8080]
    healthchecks:
      - {type: http, port: 8080, path: /health, poll: 0.2, unhealthy_poll: 0.1, timeout: 20, retries: 1}
      - {type: command, command: [sh, -c, "test ! -e sick || { echo it is sick; exit 1; }"], poll: 0.2, unhealthy_poll: 0.1, timeout: 20, retries: 1}
    grace: 60
    stop: {timeout: 1}
    update: {min_healthy: 0}
%s`, script, scale, more)
}

// healthy waits until all instances are healthy and the project is converged, and returns
// them.
func (h *devServer) healthy(project string, n int) map[string]contract.Instance {
	h.t.Helper()
	h.await("all instances are healthy", func() bool {
		s := h.state(project)
		return s.Status == mariposa.StatusConverged && len(s.Services) == 1 && s.Services[0].Healthy == n && s.Services[0].Running == n
	})
	return h.instances(project)
}

func TestAnUnhealthyInstanceIsReplaced(t *testing.T) {
	t.Parallel()
	h := newDevServer(t)
	h.ok("project", "create", "shop", "-m", fileOf(t, served(3, "echo ok > health", "")), "--wait")
	before := h.healthy("shop", 3)
	sick := slices.Sorted(maps.Keys(before))[1]
	h.ok("-j", "shop", "instance", "exec", sick, "--", "rm", "health")
	h.await("it is replaced", func() bool { return h.instances("shop")[sick].ID == "" })
	after := h.healthy("shop", 3)
	for id := range before {
		if _, stays := after[id]; stays != (id != sick) {
			t.Errorf("instance %s stays: %t", before[id].Name, stays)
		}
	}
	events := h.ok("-j", "shop", "events", "--limit", "200")
	if !strings.Contains(events, "is unhealthy on") || !strings.Contains(events, "is healthy on") || !strings.Contains(events, "http :8080/health answered 404, 2 times in ") {
		t.Errorf("the events do not say why:\n%s", events)
	}

	// A command inside the instance, after kill -9 of the server and the agent.
	h.kill()
	h.start()
	if again := h.healthy("shop", 3); !maps.EqualFunc(after, again, func(a, b contract.Instance) bool { return a.Started.Equal(*b.Started) }) {
		t.Errorf("the restart of the server changed instances: %v, %v", after, again)
	}
	sick = slices.Sorted(maps.Keys(after))[0]
	h.ok("-j", "shop", "instance", "exec", sick, "--", "touch", "sick")
	h.await("it is replaced", func() bool { return h.instances("shop")[sick].ID == "" })
	h.healthy("shop", 3)
	if events := h.ok("-j", "shop", "events", "--limit", "200"); !strings.Contains(events, "exited with code 1: it is sick") {
		t.Errorf("the events do not say why:\n%s", events)
	}

	var doc contract.HealthChecks
	if err := json.Unmarshal([]byte(h.ok("-j", "shop", "service", "health", "web", "--json")), &doc); err != nil {
		t.Fatal(err)
	}
	if web := doc.Services[0]; len(web.HealthChecks) != 2 || len(web.Instances) != 3 || len(web.Instances[0].Checks) != 2 || web.Instances[0].Checks[0].Health != mariposa.HealthHealthy {
		t.Errorf("%+v", doc)
	}

	// A changed check applies to running instances. It is done when all of them have passed it.
	before = h.instances("shop")
	changed := strings.NewReplacer("path: /health", "path: /ready", "grace: 60", "grace: 3600").Replace(served(3, "echo ok > health", ""))
	h.ok("-j", "shop", "project", "update", "-m", fileOf(t, changed), "--force")
	h.await("it waits for the new check", func() bool {
		s := h.state("shop").Services[0]
		return s.Status == mariposa.StatusConverging && strings.Contains(s.Reason, "is waiting for its checks (http :8080/ready answered 404)")
	})
	for id := range before {
		h.ok("-j", "shop", "instance", "exec", id, "--", "touch", "ready")
	}
	after = h.healthy("shop", 3)
	for id := range before {
		if _, stays := after[id]; !stays {
			t.Errorf("a changed check has replaced %s", id)
		}
	}
}

func TestAVersionThatNeverGetsHealthyStopsByItself(t *testing.T) {
	t.Parallel()
	h := newDevServer(t)
	h.ok("project", "create", "shop", "-m", fileOf(t, served(2, "echo ok > health", "")), "--wait")
	before := h.healthy("shop", 2)
	bad := strings.Replace(served(2, "true", ""), "grace: 60", "grace: 0", 1)
	_, errs, code := h.mariposa("", "-j", "shop", "project", "update", "-m", fileOf(t, bad), "--force", "--wait")
	if code != 3 || !strings.Contains(errs, "http :8080/health answered 404") {
		t.Errorf("exit %d, %s", code, errs)
	}
	for id := range before {
		if i := h.instances("shop")[id]; i.State != mariposa.StateRunning || i.Health != mariposa.HealthHealthy {
			t.Errorf("%+v", i)
		}
	}
}

func TestAnUnhealthyInstanceIsRestartedInPlaceFirst(t *testing.T) {
	t.Parallel()
	h := newDevServer(t)
	h.ok("project", "create", "shop", "-m", fileOf(t, served(1, "echo ok > health", "    restart: always\n")), "--wait")
	before := h.healthy("shop", 1)
	id := slices.Collect(maps.Keys(before))[0]
	h.ok("-j", "shop", "instance", "exec", id, "--", "rm", "health")
	h.await("it is restarted", func() bool { return h.instances("shop")[id].Restarts == 1 })
	if after := h.healthy("shop", 1); after[id].ID == "" {
		t.Errorf("it was replaced: %+v", after)
	}
}

func TestACommandCheckMayWriteMuchToItsErrors(t *testing.T) {
	t.Parallel()
	h := newDevServer(t)
	loud := strings.Replace(served(1, "echo ok > health", ""), `"test ! -e sick`, `"head -c 200000 /dev/zero >&2; test ! -e sick`, 1)
	h.ok("project", "create", "shop", "-m", fileOf(t, loud), "--wait")
	h.healthy("shop", 1)
}
