package main_test

import (
	"maps"
	"slices"
	"strings"
	"testing"

	"mariposa"
	"mariposa/contract"
)

// addressesOf returns the addresses of the running instances of a service, by name, once
// there are n of them and all answer.
func (h *devServer) addressesOf(project, service string, n int) map[string]string {
	h.t.Helper()
	var found map[string]string
	h.await("all of "+service+" answer", func() bool {
		found = map[string]string{}
		for _, i := range h.instances(project) {
			if i.ServiceName == service && i.State == mariposa.StateRunning && i.Goal == mariposa.GoalRunning {
				if _, text := endpoint(h.t, "http://"+i.Addresses[0], ""); strings.Contains(text, "greeting") {
					found[i.Name] = i.Addresses[0]
				}
			}
		}
		return len(found) == n
	})
	return found
}

// The example works as described in its comments: three instances on one machine listen
// on three ports, keep them when the server is killed and when they restart in place, and
// other services find them.
func TestInstancesOfOneNodeHavePortsOfTheirOwn(t *testing.T) {
	t.Parallel()
	h := newDevServer(t)
	h.ok("project", "create", "ports", "-m", "../../examples/ports/mariposa.yaml", "--wait")
	before := h.addressesOf("ports", "backend", 3)
	if ports := slices.Compact(slices.Sorted(maps.Values(before))); len(ports) != 3 {
		t.Errorf("they share ports: %v", before)
	}
	h.addressesOf("ports", "web", 1)

	// The shown port is the port that the process has.
	var shown contract.Instance
	for name, address := range before {
		i, err := h.Instance(t.Context(), name)
		must(t, err)
		shown = *i
		_, port, _ := strings.Cut(address, ":")
		if !slices.Equal(i.Command, []string{"hello", "backend", "--port", port}) || !slices.Contains(i.Environment, "ENDPOINT="+address) {
			t.Errorf("%s at %s shows %q %q", name, address, i.Command, i.Environment)
		}
		if out := h.ok("-j", "ports", "instance", "exec", name, "--", "sh", "-c", "echo $ENDPOINT $PORT"); out != address+" "+port+"\n" {
			t.Errorf("inside %s at %s: %q", name, address, out)
		}
	}

	h.kill()
	h.start()
	h.await("the node is back", func() bool { _, _, code := h.mariposa("", "instance", "restart", shown.ID); return code == 0 })
	h.await("it was restarted", func() bool {
		i, err := h.Instance(t.Context(), shown.ID)
		return err == nil && i.State == mariposa.StateRunning && i.Started != nil && i.Started.After(*shown.Started)
	})
	if after := h.addressesOf("ports", "backend", 3); !maps.Equal(before, after) {
		t.Errorf("their addresses were %v and are %v", before, after)
	}

	// Instances that refer to a replaced instance find its successor.
	h.ok("-j", "ports", "project", "reprovision", "--service", "backend", "--wait")
	h.converged("ports", "web", 1)
	h.addressesOf("ports", "backend", 3)
	h.addressesOf("ports", "web", 1)
	h.realityMatches("ports")

	text := strings.Replace(string(read(t, "../../examples/ports/mariposa.yaml")), "ports: [8080]", "", 1)
	h.wants(1, `m.yaml:26: services.web.command[3]: refers to "instance.port", but "web" has no ports`, "-j", "ports", "project", "update", "--force", "-m", fileOf(t, text))
}
