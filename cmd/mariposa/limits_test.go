package main_test

import (
	"strings"
	"testing"
)

// A user reaches each limit of a real installation, gets a message that says what to do,
// and succeeds after doing it.
func TestATenantRunsIntoTheLimitsOfTheInstallation(t *testing.T) {
	t.Parallel()
	h := newDevServer(t)
	h.ok("server", "settings", "--instances", "5", "--memory", "1g", "--organizations-per-user", "1")
	if said := h.ok("server", "settings"); !strings.Contains(said, "organizations per user") || !strings.Contains(said, "256 MiB") {
		t.Errorf("the settings are\n%s", said)
	}
	ann := h.hire("ann")
	ann.cannot("requires an admin of the installation", "server", "settings", "--no-memory")
	ann.can("org", "create", "shop")
	ann.cannot("ann owns 1 organization, and the limit is 1", "org", "create", "more")
	ann.can("-o", "shop", "project", "create", "site", "-m", fileOf(t, "services:\n  web: {compute_type: dummy, memory: 64m, scale: 0}\n"))

	update := func(manifest string) []string {
		return []string{"-o", "shop", "-j", "site", "project", "update", "--force", "-m", fileOf(t, manifest)}
	}
	ann.cannot("service web sets no memory", update("services:\n  web: {compute_type: dummy, scale: 0}\n")...)
	ann.cannot(":4: services.web.ports[0]: uses host port 443", update("services:\n  web:\n    compute_type: dummy\n    ports: [\"443:8443\"]\n    memory: 64m\n    scale: 0\n")...)
	h.ok("org", "policy", "shop", "--host-ports", "--low-ports", "--compute-types", "docker")
	ann.cannot("dummy is not allowed", update("services:\n  web: {compute_type: dummy, ports: [\"443:8443\"], memory: 64m, scale: 0}\n")...)
	h.ok("org", "policy", "shop", "--all-compute-types")
	ann.can(update("services:\n  web: {compute_type: dummy, ports: [\"443:8443\"], memory: 64m, scale: 0}\n")...)

	h.ok("org", "quota", "shop", "--stored-per-project", "100k")
	ann.cannot("project site would store", "-o", "shop", "-j", "site", "meta", "set", "big", strings.Repeat("x", 90_000))
	h.ok("org", "quota", "shop", "--no-stored-per-project")
	ann.can("-o", "shop", "-j", "site", "meta", "set", "big", strings.Repeat("x", 90_000))
	if said := ann.can("-o", "shop", "project", "show", "site"); !strings.Contains(said, "of 256 MiB (versions ") {
		t.Errorf("the project is shown as\n%s", said)
	}
}
