package api_test

import (
	"fmt"
	"strings"
	"sync"
	"testing"

	"mariposa"
	"mariposa/contract"
)

// policy sets the policy of an organization.
func (h *testServer) policy(org, change string) contract.Policy {
	h.t.Helper()
	return want[contract.Policy](h.as(adminToken).call("PUT", "/v1/organizations/"+org+"/policy", []byte(change)), 200)
}

// settledAlone returns the status after the planner has rolled out a version whose only
// service is web.
func settledAlone(c contract.Changed) *mariposa.ProjectStatus {
	return &mariposa.ProjectStatus{
		Goal: mariposa.GoalStarted, Version: c.Version, Number: c.Number, Completed: c.Number, Status: mariposa.StatusConverged,
		Services: map[string]*mariposa.ServiceStatus{"web": {ID: "id-web", Scale: 1, Number: c.Number, Status: mariposa.StatusConverged}},
	}
}

func TestUnderAQuotaEveryServiceSaysItsSize(t *testing.T) {
	t.Parallel()
	h := newTestServer(t)
	const unsized = "services:\n  web:\n    compute_type: dummy\n"
	old := h.create("old", unsized)
	h.plan(old.ID, settledAlone(old))
	h.quota("admin", `{"memory":1073741824,"cpu":4}`)

	// Without a size, a service would count as nothing.
	f := h.call("POST", "/v1/projects?name=shop", "services:\n  db: {compute_type: dummy, memory: 1m, cpu: 1}\n  web:\n    compute_type: dummy\n    scale: 1000\n").
		wantError(400, mariposa.InvalidArgument, "service web", "memory: 256m", "package", "default package")
	if len(f.Errors) != 2 || f.Errors[0].Field != "services.web.memory" || f.Errors[0].Line != 3 || f.Errors[1].Field != "services.web.cpu" || f.Errors[1].Code != mariposa.FaultMissing {
		t.Errorf("the faults are %+v", f.Errors)
	}
	h.call("POST", "/v1/instances", []byte(`{"project":"old","compute_type":"dummy","memory":"1m"}`)).wantError(400, mariposa.InvalidArgument, "cpu")

	// Services from before the quota keep running and can be changed, but not grow.
	h.call("PUT", "/v1/projects/old/services/web/state", []byte(`{"action":"scale","scale":5}`)).wantError(409, mariposa.QuotaExceeded, "service web", "memory", "keeps its 1")
	want[contract.Changed](h.call("PUT", "/v1/projects/old/metadata/mode", []byte(`{"value":"calm"}`)), 200)
	h.call("PUT", "/v1/projects/old/manifest?force=true", unsized+"    scale: 2\n").wantError(400, mariposa.InvalidArgument, "service web")
	second := want[contract.Changed](h.call("PUT", "/v1/projects/old/manifest?force=true", "services: {web: {compute_type: dummy, memory: 1m, cpu: 1}}\n"), 200)
	h.plan(old.ID, settledAlone(second))
	h.call("PUT", "/v1/projects/old/state", []byte(`{"action":"revert","version":"1"}`)).wantError(400, mariposa.InvalidArgument, "line 2", "service web")

	// A default package sets the size of services without one.
	want[contract.Changed](h.call("PUT", "/v1/packages/small", contract.Package{Name: "small", Memory: 64 << 20, CPU: 0.25, Disk: 1 << 30}), 200)
	h.call("PUT", "/v1/organizations/admin/policy", []byte(`{"default_package":"huge"}`)).wantError(400, mariposa.InvalidArgument, "huge", "small")
	h.policy("admin", `{"default_package":"small"}`)
	h.call("DELETE", "/v1/packages/small", nil).wantError(409, mariposa.Conflict, "admin")
	before := h.used("admin")
	want[contract.Changed](h.call("POST", "/v1/projects?name=shop", "services:\n  web: {compute_type: dummy, scale: 2}\n  db: {compute_type: dummy, memory: 1m, cpu: 1}\n"), 201)
	got := h.used("admin")
	if got.Memory-before.Memory != 2*64<<20+1<<20 || got.CPU-before.CPU != 1.5 {
		t.Errorf("two small ones and a service of 1 MiB and a core take %+v more than %+v", got, before)
	}
}

func TestAPolicySaysWhichComputeTypesAndPortsManifestsMayAskFor(t *testing.T) {
	t.Parallel()
	w := newTestTeams(t)
	olga := w.asUser("olga")
	path := "/v1/projects/" + w.shop.ID
	put := func(doc string) reply { return olga.call("PUT", path+"/manifest?force=true", doc) }
	const ported = "services:\n  web:\n    compute_type: dummy\n    ports:\n      - 8080\n      - \"7443:8443\"\n      - \"443:9443\"\n"

	// A new organization can use everything except fixed ports.
	if p := want[contract.Policy](w.asUser("mia").call("GET", "/v1/organizations/acme/policy", nil), 200); p.HostPorts || p.LowPorts || len(p.ComputeTypes) != 6 {
		t.Errorf("a new organization has %+v", p)
	}
	f := put(ported).wantError(400, mariposa.InvalidArgument, "line 6", "services.web.ports[1]", "7443", "acme")
	if len(f.Errors) != 2 || f.Errors[1].Line != 7 || f.Errors[1].Code != mariposa.FaultNotAllowed {
		t.Errorf("the faults are %+v", f.Errors)
	}
	olga.call("POST", "/v1/instances", []byte(`{"project":"`+w.shop.ID+`","compute_type":"dummy","ports":["443:8443"]}`)).wantError(400, mariposa.InvalidArgument, "ports[0]", "443")
	olga.call("POST", path+"/plan", ported).wantError(400, mariposa.InvalidArgument, "line 6")
	olga.call("PUT", "/v1/organizations/acme/policy", []byte(`{"host_ports":true}`)).wantError(403, mariposa.Forbidden)
	w.call("PUT", "/v1/organizations/acme/policy", []byte(`{"compute_types":["rocket"]}`)).wantError(400, mariposa.InvalidArgument, "rocket", "docker")

	// An external balancer is shared by all, like the ports of nodes.
	external := "services: {web: {compute_type: dummy, ports: [80]}}\nload_balancers:\n  front:\n    address: /run/haproxy/admin.sock\n    service: web\n    port: 80\n"
	put(external).wantError(400, mariposa.InvalidArgument, "line 4", "load_balancers.front.address", "host ports", "acme")

	// Ports below 1024 require host_ports.
	w.call("PUT", "/v1/organizations/acme/policy", []byte(`{"host_ports":false,"low_ports":true}`)).wantError(400, mariposa.InvalidArgument, "low_ports", "host_ports")
	if p := w.policy("acme", `{"low_ports":true}`); !p.HostPorts || !p.LowPorts {
		t.Errorf("low ports are allowed, and the policy is %+v", p)
	}
	if p := w.policy("acme", `{"host_ports":false}`); p.HostPorts || p.LowPorts {
		t.Errorf("no ports are allowed, and the policy is %+v", p)
	}

	// host_ports alone does not allow ports below 1024.
	w.policy("acme", `{"host_ports":true}`)
	if f := put(ported).wantError(400, mariposa.InvalidArgument, "line 7", "from 1024"); len(f.Errors) != 1 {
		t.Errorf("the faults are %+v", f.Errors)
	}
	w.policy("acme", `{"low_ports":true}`)
	low := want[contract.Changed](put(ported), 200)

	// After a policy change, instances keep running, but no other way restores the version.
	want[contract.Changed](put(teamsManifest+"# without ports\n"), 200)
	w.policy("acme", `{"host_ports":false}`)
	for _, action := range []string{"revert", "start"} {
		olga.call("PUT", path+"/state", fmt.Appendf(nil, `{"action":%q,"version":"%d"}`, action, low.Number)).wantError(400, mariposa.InvalidArgument, "line 6", "7443")
	}

	// The same for compute types.
	w.policy("acme", `{"host_ports":true,"compute_types":["docker","dummy","docker"]}`)
	put("services:\n  web: {compute_type: process, command: [/bin/true]}\n").wantError(400, mariposa.InvalidArgument, "line 2", "services.web.compute_type", "process", "docker, dummy")
	olga.call("PUT", path+"/services/web", "compute_type: process\ncommand: [/bin/true]\n").wantError(400, mariposa.InvalidArgument, "compute_type", "process")
	olga.call("POST", "/v1/projects?name=next&organization=acme", "services: {web: {compute_type: process, command: [/bin/true]}}\n").wantError(400, mariposa.InvalidArgument, "line 1", "process")
	want[contract.Changed](put("services:\n  web: {compute_type: dummy, ports: [80]}\n"), 200) // which is no port of a node

	// A project cannot be moved or copied to an organization whose policy rejects it.
	mine := want[contract.Changed](w.call("POST", "/v1/projects?name=wide", ported), 201) // the first organization has no policy
	w.policy("acme", `{"host_ports":false}`)
	w.call("POST", "/v1/projects/"+mine.ID+"/move", contract.Move{Organization: "acme"}).wantError(409, mariposa.Conflict, "acme", "line 6", "7443")
	w.call("POST", "/v1/projects/"+mine.ID+"/copy", contract.Copy{Name: "tight", Organization: "acme"}).wantError(400, mariposa.InvalidArgument, "7443")

	a := want[contract.Audit](w.call("GET", "/v1/audit?action=policy.put&outcome=done", nil), 200).Records
	if len(a) != 7 || a[1].Reason != "compute types docker, dummy, host ports from 1024" || a[0].ObjectName != "acme" || a[0].Organization != w.acme {
		t.Errorf("noted as %+v", a)
	}
	if n := len(want[contract.Audit](w.call("GET", "/v1/audit?action=policy.put&outcome=denied", nil), 200).Records); n != 1 {
		t.Errorf("%d are recorded as denied", n)
	}
}

func TestSettingsHoldForNewOrganizations(t *testing.T) {
	t.Parallel()
	w := newTestTeams(t)
	other := w.restart() // another replica
	s := want[contract.Settings](w.call("PUT", "/v1/settings", []byte(`{"quota":{"instances":7,"memory":1048576},"organizations_per_user":2,"stored_per_project":5000000}`)), 200)
	if *s.Quota.Instances != 7 || *s.OrganizationsPerUser != 2 || s.StoredPerProject != 5000000 || s.Quota.CPU != nil {
		t.Errorf("set: %+v", s)
	}
	for _, bad := range []string{`{"colour":1}`, `[]`, `{"quota":3}`, `{"quota":{"colour":1}}`, `{"organizations_per_user":-1}`, `{"stored_per_project":"much"}`, `{"stored_per_project":0}`, `{"quota":{"stored_per_project":0}}`} {
		w.call("PUT", "/v1/settings", []byte(bad)).wantError(400, mariposa.InvalidArgument)
	}
	w.asUser("olga").call("PUT", "/v1/settings", []byte(`{"organizations_per_user":null}`)).wantError(403, mariposa.Forbidden)
	w.asUser("olga").call("GET", "/v1/settings", nil).wantError(403, mariposa.Forbidden)
	want[contract.Changed](w.call("POST", "/v1/users", contract.NewUser{Name: "nora"}), 201)
	want[contract.Changed](w.asUser("mia").call("POST", "/v1/organizations", contract.NewOrganization{Name: "first"}), 201)
	for _, org := range []string{"nora", "first"} {
		if q := want[contract.Quota](w.call("GET", "/v1/organizations/"+org+"/quota", nil), 200); *q.Limits.Instances != 7 || *q.Limits.Memory != 1<<20 || q.Limits.StoredPerProject != nil || q.Stored.PerProject != 5000000 {
			t.Errorf("%s begins with %+v", org, q)
		}
	}
	if q := want[contract.Quota](w.call("GET", "/v1/organizations/acme/quota", nil), 200); *q.Limits.Instances != mariposa.DefaultInstances {
		t.Errorf("acme, which was there before, has %+v", q)
	}
	if err := other.picture.Await(w.ctx, w.picture.Revision()); err != nil {
		t.Fatal(err)
	}
	var all sync.WaitGroup
	var mu sync.Mutex
	got := map[int]int{}
	for i := range 12 { // mia owns one, and races for the second at two replicas
		all.Go(func() {
			at := []*testServer{w.testServer, other}[i%2].as(w.keys["mia"])
			r := at.call("POST", "/v1/organizations", contract.NewOrganization{Name: fmt.Sprintf("more-%d", i)})
			mu.Lock()
			defer mu.Unlock()
			if got[r.status]++; r.status != 201 {
				r.wantError(409, mariposa.QuotaExceeded, "mia owns 2 organizations, and the limit is 2", "delete one")
			}
		})
	}
	all.Wait()
	if got[201] != 1 || got[409] != 11 {
		t.Errorf("answered %v", got)
	}
	want[contract.Changed](w.call("POST", "/v1/organizations", contract.NewOrganization{Name: "of-the-admin"}), 201)
	a := want[contract.Audit](w.call("GET", "/v1/audit?action=settings.put&outcome=done", nil), 200).Records
	if len(a) != 1 || a[0].Reason != "new organizations: at most projects 100, instances 7, memory 1 MiB; organizations per user: 2; stored per project: 4 MiB" {
		t.Errorf("recorded as %+v", a)
	}
	if s := want[contract.Settings](w.call("PUT", "/v1/settings", []byte(`{"quota":{"instances":null},"organizations_per_user":null,"stored_per_project":null}`)), 200); s.OrganizationsPerUser != nil || s.StoredPerProject != mariposa.DefaultStoredPerProject || s.Quota.Instances != nil || *s.Quota.Memory != 1<<20 {
		t.Errorf("lifted: %+v", s)
	}
}

// Without any settings, no user can fill the installation with projects or organizations.
// Installation admins can.
func TestANewUserHasAQuotaByDefault(t *testing.T) {
	t.Parallel()
	w := newTestTeams(t)
	want[contract.Changed](w.call("POST", "/v1/users", contract.NewUser{Name: "nora"}), 201)
	want[contract.Changed](w.call("POST", "/v1/users", contract.NewUser{Name: "root", Admin: true}), 201)
	limits := func(org string) contract.QuotaLimits {
		t.Helper()
		return want[contract.Quota](w.call("GET", "/v1/organizations/"+org+"/quota", nil), 200).Limits
	}
	if q := limits("nora"); q.Projects == nil || *q.Projects != 100 || q.Instances == nil || *q.Instances != 1000 || q.Memory != nil {
		t.Errorf("a new user has %+v", q)
	}
	for _, org := range []string{"admin", "root"} {
		if q := limits(org); q.Projects != nil || q.Instances != nil {
			t.Errorf("%s has %+v", org, q)
		}
	}
	mia := w.asUser("mia")
	for i := range 10 {
		want[contract.Changed](mia.call("POST", "/v1/organizations", contract.NewOrganization{Name: fmt.Sprintf("own-%d", i)}), 201)
	}
	mia.call("POST", "/v1/organizations", contract.NewOrganization{Name: "own-10"}).wantError(409, mariposa.QuotaExceeded, "mia owns 10 organizations, and the limit is 10")
	if q := limits("own-9"); q.Projects == nil || *q.Projects != 100 {
		t.Errorf("an organization of a user has %+v", q)
	}
	want[contract.Quota](w.call("PUT", "/v1/organizations/own-9/quota", []byte(`{"projects":1}`)), 200)
	want[contract.Changed](mia.call("POST", "/v1/projects", []byte(`{"name":"a","organization":"own-9","manifest":{"services":{"web":{"compute_type":"dummy"}}}}`)), 201)
	mia.call("POST", "/v1/projects", []byte(`{"name":"b","organization":"own-9","manifest":{"services":{"web":{"compute_type":"dummy"}}}}`)).wantError(409, mariposa.QuotaExceeded, "quota of 1 projects")

	s := want[contract.Settings](w.call("PUT", "/v1/settings", []byte(`{"quota":{"projects":null},"organizations_per_user":null}`)), 200)
	if s.Quota.Projects != nil || *s.Quota.Instances != 1000 || s.OrganizationsPerUser != nil {
		t.Errorf("lifted: %+v", s)
	}
	want[contract.Changed](mia.call("POST", "/v1/organizations", contract.NewOrganization{Name: "own-10"}), 201)
	if q := limits("own-10"); q.Projects != nil || *q.Instances != 1000 {
		t.Errorf("after the limit was lifted, a new organization has %+v", q)
	}
}

// Instances from before a policy keep running. No scale, start, thaw, approval or move
// from another organization restores a version that the policy rejects.
func TestWhatAPolicyForbidsDoesNotGrowOrComeBack(t *testing.T) {
	t.Parallel()
	h := newTestServer(t, withPlanner)
	h.joinGated("n1")
	ported := func(port int) string {
		return fmt.Sprintf("services:\n  web: {compute_type: dummy, ports: [\"%d:8443\"], update: {min_healthy: 0, order: stop-first}}\n", port)
	}
	const plain = "services:\n  web: {compute_type: dummy, update: {min_healthy: 0}}\n"
	const secret = "metadata: {p: {secret: true, protect: true}}\n"
	allow := func(yes bool) { h.policy("admin", fmt.Sprintf(`{"host_ports":%v}`, yes)) }
	allow(true)
	for i, name := range []string{"runs", "stopped", "never"} {
		h.create(name, ported(7001+i))
	}
	frozen, waiting := h.create("frozen", plain), h.create("waiting", plain+secret)
	for _, name := range []string{"runs", "stopped", "never", "frozen", "waiting"} {
		h.awaitRest(name)
	}
	single := want[contract.Changed](h.call("POST", "/v1/instances", []byte(`{"project":"runs","name":"one","compute_type":"dummy","ports":["7444:8443"]}`)), 201)
	want[contract.Changed](h.call("PUT", "/v1/instances/"+single.ID, []byte(`{"action":"stop"}`)), 202)
	h.awaitTask(h.startTask("stopped", `{"action":"stop"}`), mariposa.TaskCompleted)
	h.startTask("frozen", `{"action":"freeze"}`)
	h.until("the freeze", func() bool { return h.of("frozen", "web").Frozen })
	deployer, _ := h.newMembers("frozen")
	queued := want[contract.Changed](deployer.call("PUT", h.about(frozen, "/manifest?force=true"), ported(7005)), 200)
	deployer, _ = h.newMembers("waiting")
	want[contract.Changed](deployer.call("PUT", h.about(waiting, "/manifest?force=true"), strings.Replace(ported(7006), "update:", "environment: [\"P={{ .meta.p }}\"], update:", 1)+secret), 200)
	allow(false)

	h.putAction("runs", `{"action":"scale","scale":{"web":2}}`).wantError(409, mariposa.Conflict, "service web keeps its 1", "7001")
	h.putAction("stopped", `{"action":"start"}`).wantError(409, mariposa.Conflict, "service web keeps its 0", "7002")
	h.call("PUT", "/v1/instances/"+single.ID, []byte(`{"action":"start"}`)).wantError(409, mariposa.Conflict, "instance one", "7444")
	h.putAction("frozen", `{"action":"thaw"}`).wantError(409, mariposa.Conflict, "version 2", "7005", "mariposa queue terminate "+*queued.Task)
	h.putAction("frozen", `{"action":"scale","scale":{"web":2}}`).wantError(409, mariposa.Conflict, "version 2", "7005")
	h.call("PUT", "/v1/projects/waiting/versions/2/approval", nil).wantError(409, mariposa.Conflict, "version 2", "7006")

	// Running services can still be operated.
	h.awaitTask(h.startTask("runs", `{"action":"reprovision"}`), mariposa.TaskCompleted)
	want[contract.Changed](h.call("PUT", "/v1/projects/runs/metadata/mode", []byte(`{"value":"calm"}`)), 200)
	h.awaitTask(h.startTask("runs", `{"action":"stop"}`), mariposa.TaskCompleted)
	want[contract.Terminated](h.call("DELETE", "/v1/queue/"+*queued.Task, nil), 202)
	want[contract.Changed](h.putAction("frozen", `{"action":"thaw"}`), 202)

	// A newer, allowed version does not let a project move while the version in force is not allowed.
	allow(true)
	want[contract.Changed](h.call("POST", "/v1/organizations", contract.NewOrganization{Name: "strict"}), 201)
	h.startTask("never", `{"action":"freeze"}`)
	h.until("the freeze", func() bool { return h.of("never", "web").Frozen })
	want[contract.Changed](h.call("PUT", "/v1/projects/never/manifest?force=true", plain), 200)
	h.call("POST", "/v1/projects/never/move", contract.Move{Organization: "strict"}).wantError(409, mariposa.Conflict, "version 1", "7003")
	want[contract.Changed](h.call("PUT", "/v1/projects/runs/manifest?force=true", plain), 200)
	h.awaitRest("runs")
	h.call("POST", "/v1/projects/runs/move", contract.Move{Organization: "strict"}).wantError(409, mariposa.Conflict, "single instance one", "7444")
	want[contract.Changed](h.call("DELETE", "/v1/instances/"+single.ID, nil), 200)
	h.until("the instance to go", func() bool { return h.picture.Instances.Get(single.ID) == nil })
	want[contract.Changed](h.call("POST", "/v1/projects/runs/move", contract.Move{Organization: "strict"}), 200)
}

// Two users cannot exceed the limit of organizations by making each other owners.
func TestALimitOfOrganizationsCountsThoseThatOthersGive(t *testing.T) {
	t.Parallel()
	w := newTestTeams(t)
	want[contract.Settings](w.call("PUT", "/v1/settings", []byte(`{"organizations_per_user":1}`)), 200)
	mia, olga := w.asUser("mia"), w.asUser("olga") // olga owns one already
	want[contract.Changed](mia.call("POST", "/v1/organizations", contract.NewOrganization{Name: "first"}), 201)
	mia.call("PUT", "/v1/organizations/first/members/olga", contract.MemberChange{Role: "owner"}).wantError(409, mariposa.QuotaExceeded, "olga already owns the maximum number of organizations")
	want[contract.Changed](mia.call("PUT", "/v1/organizations/first/members/olga", contract.MemberChange{Role: "member"}), 200)
	mia.call("PUT", "/v1/organizations/first/members/olga", contract.MemberChange{Role: "owner"}).wantError(409, mariposa.QuotaExceeded)
	want[contract.Changed](olga.call("PUT", "/v1/organizations/acme/members/olga", contract.MemberChange{Role: "owner"}), 200) // which she is
	want[contract.Changed](mia.call("PUT", "/v1/organizations/first/members/sam", contract.MemberChange{Role: "owner"}), 200)
	want[contract.Changed](w.call("PUT", "/v1/organizations/first/members/olga", contract.MemberChange{Role: "owner"}), 200) // who runs the installation may
}
