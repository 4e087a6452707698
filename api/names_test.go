package api_test

import (
	"strings"
	"testing"
	"time"

	"mariposa"
	"mariposa/contract"
	"mariposa/store"
)

const namedManifest = `services:
  web: {compute_type: dummy, ports: [80], healthchecks: [{type: tcp, port: 80}]}
  db: {compute_type: dummy, ports: [5432], healthchecks: [{type: tcp, port: 5432}]}
  idle: {compute_type: dummy, scale: 0}
`

// named creates a project with instances of several kinds of health.
func named(t *testing.T) *testServer {
	t.Helper()
	h := newTestServer(t)
	for _, id := range []string{"n1", "n2"} {
		h.node(id, mariposa.NodeSpec{Name: "node-" + id}, mariposa.NodeStatus{State: mariposa.NodeRunning})
	}
	c := h.create("shop", namedManifest)
	services := map[string]*mariposa.ServiceStatus{}
	for name, scale := range map[string]int{"web": 2, "db": 1, "idle": 0} {
		services[name] = &mariposa.ServiceStatus{ID: "id-" + name, Scale: scale, Number: 1, Status: mariposa.StatusConverging}
	}
	h.plan(c.ID, &mariposa.ProjectStatus{Goal: mariposa.GoalStarted, Version: c.Version, Number: 1, Status: mariposa.StatusConverging, Services: services})
	for _, i := range []struct {
		id, service, node string
		status            mariposa.InstanceStatus
	}{
		{"i1", "web", "n1", mariposa.InstanceStatus{Health: mariposa.HealthHealthy, Addresses: []string{"10.0.0.1:80"}}},
		{"i2", "web", "n2", mariposa.InstanceStatus{Health: mariposa.HealthHealthy, Addresses: []string{"127.0.0.9:80"}}},
		{"i3", "db", "n1", mariposa.InstanceStatus{
			Health: mariposa.HealthStarting, Addresses: []string{"10.0.0.3:5432"},
			Checks: []mariposa.CheckStatus{{Name: "tcp :5432", Health: mariposa.HealthStarting, Reason: "refused the connection"}},
		}},
	} {
		h.instance(i.id, c.ID, i.service, i.node, mariposa.StateRunning, nil)
		i.status.State, i.status.Since = mariposa.StateRunning, time.Now()
		h.commit(store.Unit{Writes: []store.Write{{Kind: mariposa.KindInstance, ID: i.id, Project: c.ID, Status: &i.status}}})
	}
	return h
}

func TestNamesSayWhereTheyLead(t *testing.T) {
	t.Parallel()
	h := named(t)
	all := want[contract.Names](h.call("GET", "/v1/projects/shop/names", nil), 200)
	var got []string
	for _, n := range all.Names {
		line := strings.TrimSuffix(n.Name, "."+all.Domain)
		for _, target := range n.Targets {
			line += " " + target.InstanceName + "=" + target.Address + "@" + target.NodeName
		}
		got = append(got, line+" "+n.Reason)
	}
	const wanted = "db.svc.shop.admin db.1-i3 is not healthy yet: it is waiting for its checks (tcp :5432 refused the connection)\n" +
		"idle.svc.shop.admin its scale is 0\n" +
		"web.svc.shop.admin web.1-i1=10.0.0.1@node-n1 web.1-i2=127.0.0.9@node-n2 "
	if text := strings.Join(got, "\n"); text != wanted {
		t.Errorf("got\n%s\nwant\n%s", text, wanted)
	}

	// The loopback of another node cannot be reached.
	from := want[contract.Names](h.call("GET", "/v1/projects/shop/names?node=node-n1", nil), 200)
	if web := from.Names[2]; len(web.Targets) != 1 || web.Targets[0].Instance != "i1" || web.Targets[0].Ports[0] != 80 || web.Reason != "" {
		t.Errorf("from n1: %+v", web)
	}
	h.call("GET", "/v1/projects/shop/names?node=nobody", nil).wantError(404, mariposa.ResourceNotFound)
	h.call("GET", "/v1/projects/nobody/names", nil).wantError(404, mariposa.ResourceNotFound)
}

func TestAServiceSaysThatItsInstancesAreNotHealthyYet(t *testing.T) {
	t.Parallel()
	h := named(t)
	doc := want[contract.State](h.call("GET", "/v1/projects/shop/state", nil), 200).Projects[0]
	for _, one := range doc.Services {
		if wanted := "1 of 1 running, 1 not healthy yet; db.1-i3 is waiting for its checks (tcp :5432 refused the connection) on node node-n1"; one.Name == "db" && (one.Reason != wanted || one.Healthy != 0) {
			t.Errorf("%d healthy: %q", one.Healthy, one.Reason)
		}
	}
	if len(doc.Services) != 3 {
		t.Errorf("the services are %+v", doc.Services)
	}
}
