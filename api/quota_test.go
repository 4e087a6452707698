package api_test

import (
	"fmt"
	"sync"
	"testing"

	"mariposa"
	"mariposa/contract"
)

// quota sets the quota of an organization.
func (h *testServer) quota(org, limits string) contract.Quota {
	h.t.Helper()
	return want[contract.Quota](h.as(adminToken).call("PUT", "/v1/organizations/"+org+"/quota", []byte(limits)), 200)
}

// used returns the quota usage of an organization.
func (h *testServer) used(org string) contract.QuotaUsed {
	h.t.Helper()
	return want[contract.Quota](h.as(adminToken).call("GET", "/v1/organizations/"+org+"/quota", nil), 200).Used
}

func TestAQuotaIsSetAndLifted(t *testing.T) {
	t.Parallel()
	w := newTestTeams(t)
	q := w.quota("acme", `{"projects":3,"instances":10,"cpu":2.5,"memory":1073741824}`)
	if *q.Limits.Projects != 3 || *q.Limits.Instances != 10 || *q.Limits.CPU != 2.5 || *q.Limits.Memory != 1<<30 || q.OrganizationName != "acme" {
		t.Errorf("set: %+v", q)
	}
	if q := w.quota("acme", `{"cpu":null,"instances":0}`); q.Limits.CPU != nil || *q.Limits.Instances != 0 || *q.Limits.Projects != 3 {
		t.Errorf("lifted: %+v", q)
	}
	for _, bad := range []string{`{"instances":-1}`, `{"instances":1.5}`, `{"instances":"1"}`, `{"colour":1}`, `[]`, `null x`, `{"memory":1e300}`, `{"cpu":"much"}`} {
		w.call("PUT", "/v1/organizations/acme/quota", []byte(bad)).wantError(400, mariposa.InvalidArgument)
	}
	w.asUser("olga").call("PUT", "/v1/organizations/acme/quota", []byte(`{"instances":null}`)).wantError(403, mariposa.Forbidden)
	if q := want[contract.Quota](w.asUser("mia").call("GET", "/v1/organizations/acme/quota", nil), 200); *q.Limits.Instances != 0 || q.Used.Projects != 1 {
		t.Errorf("to a member: %+v", q)
	}
	a := want[contract.Audit](w.call("GET", "/v1/audit?action=quota.put&outcome=done", nil), 200).Records
	if a[1].Reason != "at most projects 3, instances 10, cores 2.5, memory 1024 MiB" || a[0].ObjectName != "acme" || a[0].Organization != w.acme {
		t.Errorf("recorded as %+v", a)
	}
}

// A change beyond the quota is rejected with all numbers and changes nothing.
// Reductions release quota.
func TestAQuotaIsHeldWithFigures(t *testing.T) {
	t.Parallel()
	h := newTestServer(t)
	h.quota("admin", `{"projects":2,"instances":5,"cpu":4,"memory":1073741824}`)
	sized := func(scale int, cpu, memory string) string {
		return fmt.Sprintf("services: {web: {compute_type: dummy, scale: %d, cpu: %s, memory: %s}}\n", scale, cpu, memory)
	}
	c := h.create("shop", sized(3, "1", "100m"))
	h.plan(c.ID, &mariposa.ProjectStatus{
		Goal: mariposa.GoalStarted, Version: c.Version, Number: 1, Status: mariposa.StatusConverged,
		Services: map[string]*mariposa.ServiceStatus{"web": {ID: "id-web", Scale: 3, Number: 1, Status: mariposa.StatusConverged}},
	})
	wanted := contract.QuotaUsed{Projects: 1, Instances: 3, CPU: 3, Memory: 300 << 20}
	if got := h.used("admin"); got != wanted {
		t.Errorf("used: %+v", got)
	}
	before := h.picture.Revision()
	put := func(doc string) reply { return h.call("PUT", "/v1/projects/shop/manifest?force=true", doc) }
	h.call("PUT", "/v1/projects/shop/services/web/state", []byte(`{"action":"scale","scale":6}`)).wantError(409, mariposa.QuotaExceeded, "admin has a quota of 5 instances", "uses 3", "need 3 more")
	put(sized(3, "2", "100m")).wantError(409, mariposa.QuotaExceeded, "4 cores", "uses 3", "need 3 more")
	put(sized(3, "1", "400m")).wantError(409, mariposa.QuotaExceeded, "1024 MiB", "uses 300 MiB", "need 900 MiB more")
	h.call("POST", "/v1/projects?name=other", sized(3, "0.1", "1m")).wantError(409, mariposa.QuotaExceeded, "5 instances")
	h.call("POST", "/v1/projects/shop/copy", contract.Copy{Name: "twin"}).wantError(409, mariposa.QuotaExceeded)
	if h.picture.Revision() != before || h.used("admin") != wanted {
		t.Error("what was refused changed something")
	}
	want[contract.Changed](h.call("POST", "/v1/projects?name=other", sized(2, "0.5", "1m")), 201)
	h.call("POST", "/v1/projects?name=third", "services: {}\n").wantError(409, mariposa.QuotaExceeded, "2 projects", "uses 2", "need 1 more")
	want[contract.Changed](h.call("PUT", "/v1/projects/shop/services/web/state", []byte(`{"action":"scale","scale":"-2"}`)), 202)
	if got := h.used("admin"); got != (contract.QuotaUsed{Projects: 2, Instances: 3, CPU: 2, Memory: 102 << 20}) {
		t.Errorf("scaled down: %+v", got)
	}
	want[contract.Changed](h.call("PUT", "/v1/projects/shop/state", []byte(`{"action":"stop"}`)), 202)
	if got := h.used("admin"); got.Instances != 2 || got.Projects != 2 {
		t.Errorf("stopped: %+v", got)
	}
	h.plan(c.ID, &mariposa.ProjectStatus{
		Goal: mariposa.GoalStopped, Version: c.Version, Number: 1, Status: mariposa.StatusStopped,
		Services: map[string]*mariposa.ServiceStatus{"web": {ID: "id-web", Scale: 1, Number: 1, Status: mariposa.StatusStopped}},
	})
	h.quota("admin", `{"instances":1}`) // below what is in use: that stays, and more is refused
	h.call("PUT", "/v1/projects/shop/state", []byte(`{"action":"start"}`)).wantError(409, mariposa.QuotaExceeded, "has a quota of 1 instances, uses 2")
	want[contract.Changed](h.call("PUT", "/v1/projects/other/services/web/state", []byte(`{"action":"stop"}`)), 202)
	if got := h.used("admin"); got.Instances != 0 {
		t.Errorf("the other's service stopped too: %+v", got)
	}
}

// Concurrent changes never exceed the quota together, and use all of it.
func TestNoTwoSlipThroughAQuotaTogether(t *testing.T) {
	t.Parallel()
	h := newTestServer(t)
	other := h.restart() // of another replica nobody knows more than what the store says
	const projects, room = 50, 20
	for i := range projects {
		c := h.create(fmt.Sprintf("p%d", i), "services: {web: {compute_type: dummy, scale: 1, memory: 1m}}\n")
		h.plan(c.ID, &mariposa.ProjectStatus{
			Goal: mariposa.GoalStarted, Version: c.Version, Number: 1, Status: mariposa.StatusConverged,
			Services: map[string]*mariposa.ServiceStatus{"web": {ID: "id", Scale: 1, Number: 1, Status: mariposa.StatusConverged}},
		})
	}
	h.quota("admin", fmt.Sprintf(`{"instances":%d}`, projects+room))
	if err := other.picture.Await(h.ctx, h.picture.Revision()); err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	got := map[int]int{}
	var all sync.WaitGroup
	for i := range projects {
		all.Go(func() {
			at := []*testServer{h, other}[i%2]
			r := at.call("PUT", fmt.Sprintf("/v1/projects/p%d/services/web/state", i), []byte(`{"action":"scale","scale":"+1"}`))
			mu.Lock()
			defer mu.Unlock()
			got[r.status]++
			if r.status == 409 {
				r.wantError(409, mariposa.QuotaExceeded, fmt.Sprintf("a quota of %d instances", projects+room))
			}
		})
	}
	all.Wait()
	if got[202] != room || got[409] != projects-room || h.used("admin").Instances != projects+room {
		t.Errorf("answered %v, in use are %+v", got, h.used("admin"))
	}
	h.quota("admin", `{"instances":null,"projects":55}`)
	for i := range 20 {
		all.Go(func() {
			r := []*testServer{h, other}[i%2].call("POST", fmt.Sprintf("/v1/projects?name=q%d", i), "services: {}\n")
			if r.status != 201 {
				r.wantError(409, mariposa.QuotaExceeded, "55 projects")
			}
		})
	}
	all.Wait()
	if n := h.used("admin").Projects; n != 55 {
		t.Errorf("there are %d projects", n)
	}
}

// The quota of a project is released when its last instance is gone, and moves with the
// project.
func TestAQuotaComesBackAndMoves(t *testing.T) {
	t.Parallel()
	h := newTestServer(t, withPlanner)
	h.join("n1")
	h.until("the node", func() bool {
		r := h.picture.Nodes.Get("n1")
		return r.Status() != nil
	})
	acme := want[contract.Changed](h.call("POST", "/v1/organizations", contract.NewOrganization{Name: "acme"}), 201).ID
	c := h.create("shop", "services: {web: {compute_type: dummy, scale: 3, memory: 1m, update: {min_healthy: 0}}}\n")
	single := want[contract.Changed](h.call("POST", "/v1/instances", []byte(`{"project":"shop","name":"probe","compute_type":"dummy","memory":"2m"}`)), 201)
	want[contract.Changed](h.call("POST", "/v1/instances", []byte(`{"project":"shop","compute_type":"dummy","memory":"4m"}`)), 201)
	full := contract.QuotaUsed{Projects: 1, Instances: 5, Memory: 9 << 20}
	if got := h.used("admin"); got != full {
		t.Errorf("used: %+v", got)
	}
	h.quota("admin", `{"instances":5}`)
	h.call("POST", "/v1/instances", []byte(`{"project":"shop","compute_type":"dummy"}`)).wantError(409, mariposa.QuotaExceeded, "uses 5", "need 1 more")
	h.quota("acme", `{"instances":4}`)
	h.call("POST", "/v1/projects/shop/move", contract.Move{Organization: "acme"}).wantError(409, mariposa.QuotaExceeded, "acme has a quota of 4 instances", "need 5 more")
	h.quota("acme", `{"instances":5}`)
	want[contract.Changed](h.call("POST", "/v1/projects/shop/move", contract.Move{Organization: "acme"}), 200)
	if from, to := h.used("admin"), h.used("acme"); from != (contract.QuotaUsed{}) || to != full {
		t.Errorf("moved: %+v there, %+v here", from, to)
	}
	h.until("all to run", func() bool {
		return len(want[contract.Instances](h.call("GET", "/v1/instances?state=running", nil), 200).Instances) == 5
	})
	want[contract.Changed](h.call("DELETE", "/v1/instances/"+single.ID, nil), 200)
	if got := h.used("acme"); got.Instances != 4 || got.Memory != 7<<20 {
		t.Errorf("without the one: %+v", got)
	}
	h.call("DELETE", "/v1/organizations/acme", nil).wantError(409, mariposa.Conflict)
	want[contract.Changed](h.call("DELETE", "/v1/projects/"+c.ID+"?force=true", nil), 202)
	h.until("the project to go", func() bool { return h.call("GET", "/v1/projects/"+c.ID, nil).status == 404 })
	if got := h.used("acme"); got != (contract.QuotaUsed{}) {
		t.Errorf("after the end: %+v", got)
	}
	resources, projects := mariposa.LedgerOf(acme)
	ledger := must(h.store.Ledger(h.ctx))(t)
	if ledger[resources] != (mariposa.Resources{}) || ledger[projects] != (mariposa.Resources{}) {
		t.Errorf("the ledger contains %+v", ledger)
	}
	want[contract.Changed](h.call("DELETE", "/v1/organizations/acme", nil), 200)
}

// An unmanaged instance that is removed with its node releases its quota.
func TestWhatIsForgottenWithItsNodeGivesBack(t *testing.T) {
	t.Parallel()
	h := newTestServer(t)
	h.create("shop", "services: {}\n")
	node := h.join("n1")
	h.until("the node", func() bool {
		r := h.picture.Nodes.Get("n1")
		return r.Status() != nil
	})
	want[contract.Changed](h.call("POST", "/v1/instances", []byte(`{"project":"shop","compute_type":"dummy","memory":"2m"}`)), 201)
	if got := h.used("admin"); got.Instances != 1 || got.Memory != 2<<20 {
		t.Errorf("used: %+v", got)
	}
	want[contract.Changed](h.call("PUT", "/v1/nodes/n1", contract.NodeAction{Action: "lose"}), 200)
	h.until("the node to be unknown", func() bool {
		return want[contract.Node](h.call("GET", "/v1/nodes/n1", nil), 200).Status == mariposa.NodeUnknown
	})
	node.leave()
	want[contract.Changed](h.call("DELETE", "/v1/nodes/n1?force=true", nil), 200)
	if got := h.used("admin"); got != (contract.QuotaUsed{Projects: 1}) {
		t.Errorf("afterwards: %+v", got)
	}
	want[contract.Changed](h.call("PUT", "/v1/projects/shop/metadata/a", "b", plainText...), 200)
	if got := h.used("admin"); got != (contract.QuotaUsed{Projects: 1}) {
		t.Errorf("after another change: %+v", got)
	}
}

// An unmanaged instance that a drain removes releases its quota.
func TestAForcedDrainGivesBackTheQuotaOfUnmanagedInstances(t *testing.T) {
	t.Parallel()
	h := newTestServer(t, withPlanner)
	h.joinNodes(1)
	h.create("shop", "services: {}\n")
	for range 2 {
		want[contract.Changed](h.call("POST", "/v1/instances", []byte(`{"project":"shop","compute_type":"dummy","memory":"2m"}`)), 201)
	}
	h.until("the instances to run", func() bool { return h.onNode("shop", "n1") == 2 })
	if got := h.used("admin"); got.Instances != 2 || got.Memory != 4<<20 {
		t.Errorf("used: %+v", got)
	}
	h.actOnNode("n1", contract.NodeAction{Action: "drain", Force: true})
	h.until("the instances to go", func() bool { return h.onNode("shop", "n1") == 0 })
	if got := h.used("admin"); got != (contract.QuotaUsed{Projects: 1}) {
		t.Errorf("afterwards: %+v", got)
	}
	want[contract.Changed](h.call("PUT", "/v1/projects/shop/metadata/a", "b", plainText...), 200)
	if got := h.used("admin"); got != (contract.QuotaUsed{Projects: 1}) {
		t.Errorf("after another change: %+v", got)
	}
}

// An accept reserves quota for the goal that the planner will set: without instances on
// unreachable nodes, and without instances that are stopping.
func TestAnAcceptReservesWhatThePlannerCounts(t *testing.T) {
	t.Parallel()
	h := newTestServer(t)
	c := h.create("shop", "services: {web: {compute_type: dummy, scale: 4}}\n")
	h.plan(c.ID, &mariposa.ProjectStatus{
		Goal: mariposa.GoalStarted, Version: c.Version, Number: 1, Status: mariposa.StatusConverging,
		Services: map[string]*mariposa.ServiceStatus{"web": {ID: "id-web", Scale: 4, Number: 1, Status: mariposa.StatusConverging}},
	})
	h.node("n1", mariposa.NodeSpec{Name: "n1"}, mariposa.NodeStatus{State: mariposa.NodeRunning})
	h.node("n2", mariposa.NodeSpec{Name: "n2"}, mariposa.NodeStatus{State: mariposa.NodeUnknown})
	h.instance("i1", c.ID, "web", "n1", mariposa.StateRunning, nil)
	h.instance("i2", c.ID, "web", "n1", mariposa.StateRunning, func(s *mariposa.InstanceSpec) { s.Slot = 2 })
	h.instance("i3", c.ID, "web", "n2", mariposa.StateRunning, func(s *mariposa.InstanceSpec) { s.Slot = 3 })
	h.instance("i4", c.ID, "web", "n1", mariposa.StateRunning, func(s *mariposa.InstanceSpec) { s.Slot, s.Goal = 4, mariposa.GoalGone })
	h.startTask("shop", `{"action":"accept"}`)
	if used := h.used("admin"); used.Instances != 2 {
		t.Errorf("reserved are %+v", used)
	}
}
