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

func TestAPlanTellsWhatWouldBeDoneAndChangesNothing(t *testing.T) {
	t.Parallel()
	h := newTestServer(t, withPlanner)
	h.join("n1")
	h.create("shop", "services:\n  web: {compute_type: dummy, scale: 2, update: {min_healthy: 0}}\n  old: {compute_type: dummy}\n")
	h.awaitRest("shop")
	before := h.recorded()
	rest := want[contract.Plan](h.call("POST", "/v1/projects/shop/plan", nil), 200)
	if len(rest.Steps) != 0 || !rest.Complete || len(rest.Resources) != 2 || rest.Resources[1].Change != "unchanged" {
		t.Errorf("at rest: %+v", rest)
	}
	next := "services:\n  web: {compute_type: dummy, scale: 3, environment: {A: b}, update: {min_healthy: 0}}\n  new: {compute_type: dummy}\n"
	p := want[contract.Plan](h.call("POST", "/v1/projects/shop/plan", next, "Content-Type", "application/yaml"), 200)
	changes := map[string]string{}
	for _, r := range p.Resources {
		changes[r.Name] = r.Change
	}
	if changes["web"] != "replace" || changes["old"] != "delete" || changes["new"] != "create" || !p.Complete {
		t.Errorf("resources: %+v", p.Resources)
	}
	steps := map[string]int{}
	for _, s := range p.Steps {
		steps[s.Step+" "+s.Service]++
		if s.Reason == "" || s.Slot == "" {
			t.Errorf("step %+v", s)
		}
	}
	for step, n := range map[string]int{"create web": 3, "remove web": 2, "collect web": 2, "create new": 1, "remove old": 1, "collect old": 1} {
		if steps[step] != n {
			t.Errorf("%s %d times, not %d: %+v", step, steps[step], n, steps)
		}
	}
	if now := h.recorded(); !maps.Equal(now, before) {
		t.Errorf("the plan changed something: %v, before %v", now, before)
	}
	h.call("POST", "/v1/projects/shop/plan", "services: [", "Content-Type", "application/yaml").wantError(400, mariposa.InvalidArgument)
	h.call("POST", "/v1/projects/shop/plan?rolling=1", nil).wantError(400, mariposa.InvalidArgument)
	h.call("POST", "/v1/projects/nobody/plan", nil).wantError(404, mariposa.ResourceNotFound)
}

// A plan shows which steps fit on no node, assuming that all earlier steps are done. It
// claims no resources.
func TestAPlanTellsWhatNoNodeTakes(t *testing.T) {
	t.Parallel()
	h := newTestServer(t, withPlanner)
	h.joinGated("n1")
	web := func(scale int, more string) string {
		return fmt.Sprintf("services:\n  web: {compute_type: dummy, scale: %d, ports: [\"443:8443\"], update: {min_healthy: 0}%s}\n", scale, more)
	}
	h.create("shop", web(1, ""))
	h.awaitRest("shop")
	newer := strings.Replace(web(1, ", environment: {A: b}"), "min_healthy: 0", "min_healthy: 0, order: stop-first", 1)
	for name, c := range map[string]struct{ manifest, wait string }{
		"two on one port":                  {web(2, ""), "web: web.2 would have to wait: no node fits this dummy instance: port 443 taken (1 of 1)"},
		"three on one port":                {web(3, ""), "port 443 taken (1 of 1) (and 1 more instance)"},
		"a successor beside its elder":     {web(1, ", environment: {A: b}"), "web: web.1 would have to wait: no node fits"},
		"a successor after its elder":      {newer, ""},
		"what the node has no driver for":  {"services:\n  job: {compute_type: process, command: [/bin/true]}\n", "job: job.1 would have to wait: no node fits this process instance: cannot run process (1 of 1)"},
		"another in the place of an elder": {"services:\n  db: {compute_type: dummy, ports: [\"444:1\"]}\n", ""},
	} {
		t.Run(name, func(t *testing.T) {
			for range 2 { // nothing that one plan tried is in the way of the next
				p := want[contract.Plan](h.in(t).call("POST", "/v1/projects/shop/plan", c.manifest, "Content-Type", "application/yaml"), 200)
				said := strings.Join(p.Waits, "\n")
				if !strings.Contains(said, c.wait) || (c.wait == "") != (said == "") || p.Complete != (c.wait == "") || len(p.Steps) == 0 {
					t.Errorf("waits %q, complete %v, %d steps", said, p.Complete, len(p.Steps))
				}
			}
		})
	}
}

// A service whose instances are replaced because of a reference is shown as replaced,
// with the service that causes it, even if the reference is indirect.
func TestAPlanTellsWhatFollows(t *testing.T) {
	t.Parallel()
	h := newTestServer(t, withPlanner)
	h.joinGated("n1")
	text := func(db, web string) string {
		return "services:\n  db: {compute_type: dummy, update: {min_healthy: 0}, environment: {V: '" + db + "'}}\n" +
			"  web: {compute_type: dummy, update: {min_healthy: 0}, environment: {DB: '{{ .services.db.id }}'}" + web + "}\n" +
			"  leaf: {compute_type: dummy, update: {min_healthy: 0}, environment: {WEB: '{{ .services.web.id }}'}}\n  side: {compute_type: dummy}\n"
	}
	h.create("shop", text("1", ""))
	h.awaitRest("shop")
	p := want[contract.Plan](h.call("POST", "/v1/projects/shop/plan", text("2", ", scale: 2")), 200)
	got := map[string]string{}
	for _, r := range p.Resources {
		got[r.Name] = strings.TrimSpace(fmt.Sprint(r.Change, " ", r.Follows, " ", r.Before, " ", r.After))
	}
	for name, want := range map[string]string{"db": "replace  1 1", "web": "replace db 1 2", "leaf": "replace web 1 1", "side": "unchanged  1 1"} {
		if got[name] != want {
			t.Errorf("%s: %q, want %q", name, got[name], want)
		}
	}
}

// A service with an unchanged definition is not shown as unchanged while its instances
// are still being created or replaced.
func TestAPlanTellsWhatIsUnfinished(t *testing.T) {
	t.Parallel()
	h := newTestServer(t, withPlanner)
	text := func(v string) string {
		return "services:\n  db: {compute_type: dummy, update: {min_healthy: 0}, environment: {V: '" + v + "'}}\n" +
			"  web: {compute_type: dummy, update: {min_healthy: 0}, depends_on: [db], environment: {V: '" + v + "'}}\n  side: {compute_type: dummy}\n"
	}
	says := func(db, web, side string) {
		t.Helper()
		p := want[contract.Plan](h.call("POST", "/v1/projects/shop/plan", nil), 200)
		got := map[string]string{}
		for _, r := range p.Resources {
			got[r.Name] = r.Change
		}
		if got["db"] != db || got["web"] != web || got["side"] != side {
			t.Errorf("db is %q, want %q; web is %q, want %q; side is %q, want %q", got["db"], db, got["web"], web, got["side"], side)
		}
	}
	h.create("shop", text("1"))
	h.until("the plan to be made", func() bool { return h.picture.Projects.Get(h.idOf("shop")).Status() != nil })
	says("create", "create", "create")
	g := h.joinGated("n1")
	h.awaitRest("shop")
	says("unchanged", "unchanged", "unchanged")
	g.close("shop")
	h.putManifest("shop", text("2"), "")
	h.until("web to wait for db", func() bool { return strings.HasPrefix(h.of("shop", "web").Reason, "waits for db") })
	says("replace", "replace", "unchanged")
	g.open("shop")
	h.awaitRest("shop")
	says("unchanged", "unchanged", "unchanged")
}

// A plan also lists networks and volumes.
func TestAPlanListsNetworksAndVolumes(t *testing.T) {
	t.Parallel()
	h := newTestServer(t, withPlanner)
	h.joinGated("n1")
	h.create("shop", "services:\n  web: {compute_type: dummy, volumes: [data:/data, old:/old], networks: [back]}\n"+
		"volumes: {data: {size: 1g}, old: {}}\nnetworks: {back: {}}\n")
	h.awaitRest("shop")
	changes := func(body any) map[string]string {
		t.Helper()
		all := map[string]string{}
		for _, r := range want[contract.Plan](h.call("POST", "/v1/projects/shop/plan", body), 200).Resources {
			all[r.Kind+" "+r.Name] = r.Change
			if r.Kind == "volume" && r.Change == "update" && (len(r.Fields) != 1 || r.Fields[0] != contract.FieldDiff{Field: "size", Before: "1073741824", After: "2147483648"}) {
				t.Errorf("of %s differ %+v", r.Name, r.Fields)
			}
		}
		return all
	}
	now := map[string]string{"service web": "unchanged", "volume data": "unchanged", "volume old": "unchanged", "network back": "unchanged"}
	if got := changes(nil); !maps.Equal(got, now) {
		t.Errorf("now: %v", got)
	}
	next := "services:\n  web: {compute_type: dummy, volumes: [data:/data, new:/new], networks: [front]}\n" +
		"volumes: {data: {size: 2g}, new: {}}\nnetworks: {front: {}}\n"
	after := map[string]string{
		"service web": "replace", "volume data": "update", "volume old": "keep", "volume new": "create", "network back": "delete", "network front": "create",
	}
	if got := changes(next); !maps.Equal(got, after) {
		t.Errorf("with another manifest: %v", got)
	}
}

// The plan of a new project lists the steps of its creation, and stores nothing.
func TestTheCreationOfAProjectIsPlanned(t *testing.T) {
	t.Parallel()
	h := newTestServer(t, withPlanner)
	h.joinGated("n1")
	text := "services:\n  db: {compute_type: dummy}\n  web: {compute_type: dummy, scale: 2, depends_on: [db]}\n"
	p := want[contract.Plan](h.call("POST", "/v1/plan?name=shop", text), 200)
	var slots []string
	for _, s := range p.Steps {
		slots = append(slots, s.Slot)
	}
	if len(p.Resources) != 2 || p.Resources[0].Change != "create" || p.Resources[1].After != 2 {
		t.Errorf("the resources are %+v", p.Resources)
	}
	if !slices.Equal(slots, []string{"db.1", "web.1", "web.2"}) {
		t.Errorf("the steps are %+v", p.Steps)
	}
	p = want[contract.Plan](h.call("POST", "/v1/plan?name=shop", text+"metadata: {k: {required: true}}\n"), 200)
	if !slices.Equal(p.Missing, []string{"k"}) || len(p.Steps) > 0 || len(p.Waits) != 2 {
		t.Errorf("without a required key, the plan is %+v", p)
	}
	h.call("POST", "/v1/plan?name=Shop", text).wantError(400, mariposa.InvalidArgument, "name")
	h.call("POST", "/v1/plan?name=shop", "services: [").wantError(400, mariposa.InvalidArgument)
	if all := want[contract.Projects](h.call("GET", "/v1/projects", nil), 200).Projects; len(all) > 0 {
		t.Errorf("the plans created %+v", all)
	}
	h.create("shop", text)
	h.call("POST", "/v1/plan?name=shop", text).wantError(409, mariposa.Conflict, "shop")
}
