package api_test

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"mariposa"
	"mariposa/contract"
)

// referring returns a manifest in which web refers to db. Size changes the definition
// of db.
func referring(size, dbs, webs int) string {
	return fmt.Sprintf(`
services:
  db:
    compute_type: dummy
    scale: %d
    dummy: {name_len: %d}
    environment: {NAME: "{{ .instance.name }}", KEY: "{{ .meta.key }}", PORT: "5432"}
    update: {min_healthy: 0}
  web:
    compute_type: dummy
    scale: %d
    environment:
      ID: "{{ .services.db.id }}"
      AT: "{{ .services.db.address }}"
      ALL: "{{ .services.db.ids }}"
      NAME: "{{ .services.db.environment.NAME }}"
      KEY: "{{ .services.db.environment.KEY }}"
      PORT: "{{ .services.db.environment.PORT }}"
    update: {min_healthy: 0}
metadata:
  key: {secret: true, generate: 16}
`, dbs, size, webs)
}

// environment returns the resolved environment of an instance.
func (h *testServer) environment(id string) map[string]string {
	h.t.Helper()
	out := map[string]string{}
	for _, v := range want[contract.Instance](h.call("GET", "/v1/instances/"+id, nil), 200).Environment {
		name, value, _ := strings.Cut(v, "=")
		out[name] = value
	}
	return out
}

// only returns the only running instance of a service.
func (h *testServer) only(project, service string) contract.Instance {
	h.t.Helper()
	all := slices.Collect(maps.Values(h.instances(project, service)))
	if len(all) != 1 {
		h.t.Fatalf("%s has %d instances", service, len(all))
	}
	return all[0]
}

func TestReferencesResolveAndFollow(t *testing.T) {
	t.Parallel()
	h := newTestServer(t, withPlanner)
	h.joinGated("n1")
	h.create("shop", referring(9, 1, 1))
	h.awaitRest("shop")
	db, web := h.only("shop", "db"), h.only("shop", "web")
	env := h.environment(web.ID)
	if env["ID"] != db.PhysicalID || env["ALL"] != db.PhysicalID || env["AT"] != db.Addresses[0] || env["NAME"] != db.Name || env["PORT"] != "5432" {
		t.Errorf("web has %v, and db is %+v", env, db)
	}
	doc := want[contract.Service](h.call("GET", "/v1/projects/shop/services/web", nil), 200)
	if len(doc.References) != 1 || doc.References[0].Instance != db.ID || doc.References[0].InstanceName != db.Name || doc.References[0].Values["id"] != db.PhysicalID || len(doc.References[0].Values) != 3 {
		t.Errorf("web refers to %+v", doc.References)
	}
	if own := h.environment(db.ID)["KEY"]; env["KEY"] != own || !strings.Contains(own, "••••") {
		t.Errorf("what db keeps secret is %q in web, and %q in db", env["KEY"], own)
	}

	h.awaitTask(h.putManifest("shop", referring(10, 1, 1), ""), mariposa.TaskCompleted)
	h.awaitRest("shop")
	next, follower := h.only("shop", "db"), h.only("shop", "web")
	if next.ID == db.ID || follower.ID == web.ID {
		t.Fatalf("db was %s and is %s, web was %s and is %s", db.Name, next.Name, web.Name, follower.Name)
	}
	if env := h.environment(follower.ID); env["ID"] != next.PhysicalID || env["NAME"] != next.Name {
		t.Errorf("web has %v, and db is %+v", env, next)
	}
	followed := false
	for _, task := range want[contract.Tasks](h.call("GET", "/v1/queue?all=true&project=shop", nil), 200).Tasks {
		followed = followed || task.Component == "follow" && task.Task == mariposa.TaskReprovision && slices.Equal(task.Services, []string{"web"})
	}
	if !followed {
		t.Error("no task shows that web followed db")
	}
}

// The old db is kept until web was replaced: at every moment some db that web can refer to
// is running, and the new web is created before the old db is removed.
func TestTheOldOneGoesAfterItsFollowers(t *testing.T) {
	t.Parallel()
	h := newTestServer(t, withPlanner)
	h.joinGated("n1")
	h.create("shop", referring(9, 1, 1))
	h.awaitRest("shop")
	db, web := h.only("shop", "db"), h.only("shop", "web")
	h.awaitTask(h.putManifest("shop", referring(10, 1, 1), ""), mariposa.TaskCompleted)
	h.awaitRest("shop")
	events := want[contract.Events](h.call("GET", "/v1/events?limit=1000&project=shop", nil), 200).Events
	at := func(kind, instance string) int {
		return slices.IndexFunc(events, func(e contract.Event) bool { return e.Kind == kind && e.Instance == instance })
	}
	left, gone := at("instance.stopping", web.ID), at("instance.stopping", db.ID)
	if left < 0 || gone < left {
		t.Errorf("the old web is removed at %d, the old db at %d", left, gone)
	}
}

func TestACrashOfWhatNobodyIsBoundToMovesNobody(t *testing.T) {
	t.Parallel()
	h := newTestServer(t, withPlanner)
	h.joinGated("n1")
	h.create("shop", strings.ReplaceAll(referring(9, 2, 1), `      ALL: "{{ .services.db.ids }}"`, ""))
	h.awaitRest("shop")
	web := h.only("shop", "web")
	bound := h.environment(web.ID)["ID"]
	for id, i := range h.instances("shop", "db") {
		if i.PhysicalID != bound {
			h.crash(id)
		}
	}
	h.until("db to be repaired", func() bool {
		s := h.of("shop", "db")
		return s.Running == 2 && s.Failed == 0 && len(h.openTasks("shop")) == 0
	})
	if now := h.only("shop", "web"); now.ID != web.ID {
		t.Errorf("web was %s and is %s", web.Name, now.Name)
	}
}

func TestAnUnmanagedInstanceFollowsNobody(t *testing.T) {
	t.Parallel()
	h := newTestServer(t, withPlanner)
	h.create("shop", referring(9, 1, 1))
	h.call("POST", "/v1/instances", map[string]any{
		"project": "shop", "name": "one", "definition": map[string]any{"compute_type": "dummy", "environment": map[string]any{"A": "{{ .services.db.id }}"}},
	}).wantError(400, mariposa.InvalidArgument)
}
