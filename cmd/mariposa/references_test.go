package main_test

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"mariposa"
	"mariposa/contract"
)

const referring = `
services:
  db:
    compute_type: process
    command: sleep 1000
    ports: [5432]
    environment: {NAME: "{{ .instance.name }}"}
    update: {min_healthy: 0}
    stop: {timeout: 1}
  web:
    compute_type: process
    command: sleep 1000
    environment:
      DB: "{{ .services.db.address }}:{{ .services.db.port }}"
      DB_NAME: "{{ .services.db.environment.NAME }}"
    update: {min_healthy: 0}
    stop: {timeout: 1}
  watcher:
    compute_type: process
    command: sleep 1000
    mdata: {db: "{{ .services.db.addresses }}"}
    stop: {timeout: 1}
`

// the returns the only running instance of a service and its process.
func (h *devServer) the(project, service string) (contract.Instance, int) {
	h.t.Helper()
	return h.only(project, "one instance of "+service+" runs", func(i contract.Instance) bool {
		return i.ServiceName == service && i.State == mariposa.StateRunning && i.Goal == mariposa.GoalRunning
	})
}

// Processes find the addresses of others in their environment. When an instance is
// killed, those that refer to it are replaced with its new address, and those that read
// it live keep running. Killing the server in between does not change that.
func TestProcessesAreToldWhereOthersAre(t *testing.T) {
	t.Parallel()
	h := newDevServer(t)
	h.create("shop", referring)
	for _, name := range []string{"db", "web", "watcher"} {
		h.converged("shop", name, 1)
	}
	db, dbPID := h.the("shop", "db")
	web, webPID := h.the("shop", "web")
	watcher, watcherPID := h.the("shop", "watcher")
	if env := environ(t, webPID); env["DB"] != db.Addresses[0] || env["DB_NAME"] != db.Name {
		t.Fatalf("web has DB=%s DB_NAME=%s, and db is %s at %v", env["DB"], env["DB_NAME"], db.Name, db.Addresses)
	}

	must(t, syscall.Kill(dbPID, syscall.SIGKILL))
	h.kill()
	h.start()
	h.await("web to follow", func() bool {
		next, _ := h.the("shop", "db")
		follower, pid := h.the("shop", "web")
		return next.ID != db.ID && follower.ID != web.ID && environ(t, pid)["DB_NAME"] == next.Name
	})
	next, _ := h.the("shop", "db")
	live := environ(t, watcherPID)["MARIPOSA_MDATA_FILE"]
	h.await("the watcher to be told", func() bool { return valuesIn(live)["db"] == strings.Join(next.Addresses, ",") })
	if still, _ := h.the("shop", "watcher"); still.ID != watcher.ID {
		t.Errorf("the watcher was %s and is %s", watcher.Name, still.Name)
	}
	h.realityMatches("shop")
}

// The example works as described in its comments: the web front end reaches the backend
// at the port that the node picked, even after the backend was replaced, and the diary
// keeps its pages.
func TestTheGraphExampleFollowsAndKeeps(t *testing.T) {
	t.Parallel()
	h := newDevServer(t)
	h.ok("project", "create", "graph", "-m", "../../examples/graph/mariposa.yaml", "--wait")
	answer := func() bool { // a process listens shortly after it has started
		n := 0
		for _, i := range h.instances("graph") {
			if i.ServiceName != "web" || i.State != mariposa.StateRunning || i.Goal != mariposa.GoalRunning {
				continue
			}
			if _, text := endpoint(t, "http://"+i.Addresses[0], ""); strings.Contains(text, `"greeting":"hello"`) {
				n++
			}
		}
		return n == 2
	}
	h.await("both web fronts reach the backend", answer)
	before, _ := h.the("graph", "backend")
	_, diary := h.the("graph", "diary")
	pages := filepath.Join(environ(t, diary)["MARIPOSA_VOLUME_PAGES"], "log")
	h.await("the diary has a page", func() bool { b, err := os.ReadFile(pages); return err == nil && len(b) > 0 })
	first := read(t, pages)
	h.ok("-j", "graph", "project", "reprovision", "--service", "backend", "--service", "diary", "--wait")
	h.converged("graph", "web", 2)
	if after, _ := h.the("graph", "backend"); after.ID == before.ID || after.Addresses[0] == before.Addresses[0] {
		t.Errorf("the backend was %s at %v and is %s at %v", before.Name, before.Addresses, after.Name, after.Addresses)
	}
	h.await("both web fronts reach the new backend", answer)
	_, diary = h.the("graph", "diary")
	if now := filepath.Join(environ(t, diary)["MARIPOSA_VOLUME_PAGES"], "log"); now != pages {
		t.Errorf("the diary was %s and is %s", pages, now)
	}
	if b, err := os.ReadFile(pages); err != nil || !strings.HasPrefix(string(b), string(first)) {
		t.Errorf("the diary began with %q and holds %q: %v", first, b, err)
	}
	if out := h.ok("-j", "graph", "project", "graph"); !strings.Contains(out, "backend") || !strings.Contains(out, "pages") {
		t.Errorf("the graph:\n%s", out)
	}
}
