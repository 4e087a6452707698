package api_test

import (
	"fmt"
	"strings"
	"testing"

	"mariposa"
	"mariposa/contract"
)

// networks lists the networks that the caller can see.
func (h *testServer) networks(query string) string {
	h.t.Helper()
	var all []string
	for _, n := range want[contract.Networks](h.call("GET", "/v1/networks"+query, nil), 200).Networks {
		all = append(all, n.Name)
	}
	return strings.Join(all, " ")
}

func TestASharedNetworkIsForMembersOfItsOrganization(t *testing.T) {
	t.Parallel()
	w := newTestTeams(t)
	shared := newID()
	w.testServer.network(shared, mariposa.NetworkSpec{Name: "common", Organization: w.acme, Users: []string{w.shop.ID}})
	for name, want := range map[string]string{
		"admin": "backend common", "olga": "backend common", "mia": "backend common", "ada": "backend", "vera": "backend", "sam": "", "ulla": "",
	} {
		if got := w.asUser(name).networks(""); got != want {
			t.Errorf("%s sees %q instead of %q", name, got, want)
		}
	}
	if got := w.networks("?organization=acme") + ", " + w.networks("?project="+w.shop.ID) + ", " + w.networks("?organization=umbra") + ", " + w.networks("?limit=1"); got != "backend common, backend common, , backend" {
		t.Errorf("narrowed: %s", got)
	}
	w.asUser("vera").call("GET", "/v1/networks/"+shared, nil).wantError(404, mariposa.ResourceNotFound, shared)
	w.asUser("mia").call("DELETE", "/v1/networks/"+shared, nil).wantError(403, mariposa.Forbidden, "owner of the organization")
	n := want[contract.Network](w.asUser("mia").call("GET", "/v1/networks/"+shared[:35], nil), 200)
	if !n.Shared || n.OrganizationName != "acme" || n.Project != "" || len(n.Projects) != 1 || n.Projects[0].ProjectName != "shop" || len(n.Nodes) != 1 || n.Nodes[0].NodeName != "host-n1" || n.Nodes[0].State != "made" {
		t.Errorf("it is %+v", n)
	}
	events := func(by string) int {
		return strings.Count(string(w.asUser(by).call("GET", "/v1/events?since=0&limit=1000", nil).body), `"network.`)
	}
	if olga, vera, sam := events("olga"), events("vera"), events("sam"); olga != 4 || vera != 2 || sam != 0 {
		t.Errorf("olga hears of %d, vera of %d, sam of %d", olga, vera, sam)
	}
	own := want[contract.Network](w.asUser("vera").call("GET", "/v1/networks/"+w.network, nil), 200)
	if own.Shared || own.ProjectName != "shop" || own.OrganizationName != "acme" {
		t.Errorf("shop's own is %+v", own)
	}
}

func TestANetworkIsDeletedOnlyWhileNothingUsesIt(t *testing.T) {
	t.Parallel()
	w := newTestTeams(t)
	user := newID()
	w.testServer.instance(user, w.shop.ID, "web", "n1", mariposa.StateRunning, func(s *mariposa.InstanceSpec) {
		s.Networks = []mariposa.Join{{Network: w.network, Name: "backend"}}
	})
	name := want[contract.Instance](w.call("GET", "/v1/instances/"+user, nil), 200)
	if len(name.Networks) != 1 || name.Networks[0].Name != "backend" {
		t.Errorf("it is on %+v", name.Networks)
	}
	path := "/v1/networks/" + w.network
	w.asUser("olga").call("DELETE", path, nil).wantError(409, mariposa.Conflict, name.Name, "project shop")
	w.testServer.instance(user, w.shop.ID, "web", "n1", mariposa.StateStopped, func(s *mariposa.InstanceSpec) {
		s.Networks, s.Kept = []mariposa.Join{{Network: w.network, Name: "backend"}}, true
	})
	done := want[contract.Changed](w.asUser("olga").call("DELETE", path, nil), 202)
	if done.Name != "backend" || !strings.Contains(done.Reason, "its node removes it") {
		t.Errorf("it answered %+v", done)
	}
	w.asUser("olga").call("GET", path, nil).wantError(404, mariposa.ResourceNotFound)
	part := w.picture.Attachments.Get(mariposa.AttachmentID(w.network, "n1", mariposa.ComputeDummy))
	if part == nil || part.Spec().Goal != mariposa.GoalGone {
		t.Errorf("its part is %+v", part)
	}
	if audit := w.audit("?action=network.delete&outcome=done&project=" + w.shop.ID); len(audit) != 1 || audit[0].ObjectName != "backend" || audit[0].Outcome != mariposa.AuditDone {
		t.Errorf("the audit records are %+v", audit)
	}
}

func TestPartsOfNetworksGoWithANodeThatIsGivenUp(t *testing.T) {
	t.Parallel()
	h := newTestServer(t)
	h.node("n1", mariposa.NodeSpec{Name: "host-n1"}, mariposa.NodeStatus{State: mariposa.NodeUnknown})
	p, id := h.create("shop", hello), newID()
	h.network(id, mariposa.NetworkSpec{Name: "backend", Project: p.ID})
	if n := want[contract.Network](h.call("GET", "/v1/networks/"+id, nil), 200); n.Nodes[0].State != "unknown" || !strings.Contains(n.Nodes[0].Reason, "cannot be reached") {
		t.Errorf("while it is away: %+v", n)
	}
	want[contract.Changed](h.call("DELETE", "/v1/nodes/n1", nil), 200)
	if n := want[contract.Network](h.call("GET", "/v1/networks/"+id, nil), 200); len(n.Nodes) != 0 {
		t.Errorf("on a node that is no more: %+v", n)
	}
}

func TestNetworksComeAndGoWithWhatUsesThem(t *testing.T) {
	t.Parallel()
	h := newTestServer(t, withPlanner)
	h.join("n1")
	manifest := func(networks string) string {
		return "services:\n  web: {compute_type: dummy, scale: 2, networks: [backend], update: {min_healthy: 0}}\nnetworks: {backend: {" + networks + "}}\n"
	}
	h.create("shop", manifest("shared: true"))
	h.create("blog", manifest("shared: true"))
	h.awaitRest("shop")
	h.awaitRest("blog")
	one := want[contract.Networks](h.call("GET", "/v1/networks?project=blog", nil), 200).Networks
	if len(one) != 1 || len(one[0].Projects) != 2 || one[0].Instances != 4 {
		t.Fatalf("shared: %+v", one)
	}
	h.until("its part to be there", func() bool {
		nodes := want[contract.Network](h.call("GET", "/v1/networks/"+one[0].ID, nil), 200).Nodes
		return len(nodes) == 1 && nodes[0].State == "made"
	})
	nodes, edges := h.graph("shop")
	if n := nodes["backend"]; edges != "web>backend(network) " || n.ID != one[0].ID || n.Status != mariposa.StatusConverged || n.Layer != 1 || nodes["web"].Layer != 2 {
		t.Errorf("drawn: %s, %+v", edges, nodes)
	}
	h.call("DELETE", "/v1/networks/"+one[0].ID, nil).wantError(409, mariposa.Conflict, "backend", "web.1-", "web.2-")
	h.call("POST", "/v1/projects/shop/move", contract.Move{Organization: want[contract.Changed](h.call("POST", "/v1/organizations", contract.NewOrganization{Name: "acme"}), 201).ID}).
		wantError(409, mariposa.Conflict, "uses network backend")
	for _, name := range []string{"shop", "blog"} {
		want[contract.Changed](h.call("DELETE", "/v1/projects/"+name+"?force=true", nil), 202)
		h.until(name+" to be gone", func() bool {
			return h.call("GET", "/v1/projects?name="+name, nil).status == 200 && h.networks("") == map[string]string{"shop": "backend", "blog": ""}[name]
		})
	}
	h.until("nothing to be left on the node", func() bool { return len(h.picture.AttachmentsOn("n1")) == 0 })

	h.create("own", manifest(""))
	h.awaitRest("own")
	own := want[contract.Networks](h.call("GET", "/v1/networks", nil), 200).Networks
	if len(own) != 1 || own[0].Shared || own[0].ProjectName != "own" || own[0].ID == one[0].ID {
		t.Errorf("its own: %+v", own)
	}
	h.awaitTask(h.startTask("own", `{"action":"stop"}`), mariposa.TaskCompleted)
	if h.networks("") != "backend" {
		t.Error("a stopped project has lost its network")
	}
	want[contract.Changed](h.call("DELETE", "/v1/networks/"+own[0].ID, nil), 202)
	h.awaitTask(h.startTask("own", `{"action":"start"}`), mariposa.TaskCompleted)
	if h.networks("") != "backend" {
		t.Error("it was not made again")
	}
	h.putManifest("own", "services:\n  web: {compute_type: dummy, scale: 2, update: {min_healthy: 0}}\n", "")
	h.until("it to go with its last instance", func() bool { return h.networks("") == "" && len(h.picture.AttachmentsOn("n1")) == 0 })
}

func TestWhatIsWrongWithNetworksIsSaid(t *testing.T) {
	t.Parallel()
	h := newTestServer(t)
	service := func(networks string) string {
		return "services:\n  web: {compute_type: dummy, networks: [" + networks + "]}\nnetworks: {backend: {}}\n"
	}
	var many []string
	for n := range 40 {
		many = append(many, fmt.Sprint("n", n))
	}
	for text, says := range map[string]string{
		service("back"):                                  "not declared under networks",
		service(strings.Join(many, ",")):                 "32 networks",
		"services: {}\nnetworks: {a: {shared: often}}\n": "shared",
		"services: {}\nnetworks: {a: {driver: x}}\n":     "unknown key",
	} {
		h.call("POST", "/v1/projects?name=shop", text).wantError(400, mariposa.InvalidArgument, says)
	}
	h.create("shop", service("backend"))
	h.call("POST", "/v1/instances", map[string]any{"project": "shop", "compute_type": "dummy", "networks": []string{"backend"}}).wantError(400, mariposa.InvalidArgument, "networks")
}
