package api_test

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"mariposa"
	"mariposa/contract"
)

func TestStateBeforeTheFirstPlanSaysWhatIsToCome(t *testing.T) {
	t.Parallel()
	h := newTestServer(t)
	c := h.create("shop", hello)
	st := want[contract.State](h.call("GET", "/v1/state", nil), 200)
	if len(st.Projects) != 1 || st.Revision < 4 {
		t.Fatalf("state %+v", st)
	}
	p := st.Projects[0]
	if p.ID != c.ID || p.Goal != mariposa.GoalStarted || p.Status != mariposa.StatusConverging || p.Reason == "" || len(p.Services) != 2 {
		t.Errorf("project %+v", p)
	}
	if web := p.Services[1]; web.Name != "web" || web.Goal != 2 || web.Running != 0 || web.ID == "" || web.Version != c.Version || web.Reason != "0 of 2 running" {
		t.Errorf("web %+v", web)
	}
}

func TestStateCountsInstancesByWhatTheyAre(t *testing.T) {
	t.Parallel()
	h := newTestServer(t)
	c := h.create("shop", hello)
	st := settled(c)
	st.Status, st.Services["web"].Status = mariposa.StatusConverging, mariposa.StatusConverging
	st.Services["db"].Backoff = &mariposa.Backoff{Failures: 3, Until: time.Now()}
	h.plan(c.ID, st)
	h.node("up", mariposa.NodeSpec{Name: "host-up"}, mariposa.NodeStatus{State: mariposa.NodeRunning})
	h.node("away", mariposa.NodeSpec{Name: "host-away"}, mariposa.NodeStatus{State: mariposa.NodeUnknown})
	h.instance("i1", c.ID, "web", "up", mariposa.StateRunning, nil)
	h.instance("i2", c.ID, "web", "up", "", nil)
	h.instance("i3", c.ID, "web", "away", mariposa.StateRunning, nil)
	h.instance("i4", c.ID, "web", "up", mariposa.StateFailed, nil)
	h.instance("i5", c.ID, "web", "up", mariposa.StateStopping, nil)
	h.instance("i6", c.ID, "web", "up", mariposa.StateRunning, func(s *mariposa.InstanceSpec) { s.Digest = "older" })
	h.instance("i7", c.ID, "web", "up", mariposa.StateDestroyed, nil)
	h.instance("i8", c.ID, "old", "up", mariposa.StateRunning, func(s *mariposa.InstanceSpec) { s.Digest = "older"; s.ServiceName = "old" })

	p := want[contract.State](h.call("GET", "/v1/projects/shop/state", nil), 200).Projects[0]
	db, old, web := p.Services[0], p.Services[1], p.Services[2]
	if web.Running != 2 || web.Healthy != 2 || web.Starting != 1 || web.Unknown != 1 || web.Failed != 1 || web.Stopping != 1 || web.Outdated != 1 {
		t.Errorf("web %+v", web)
	}
	if !strings.Contains(web.Reason, "2 of 2 running") || !strings.Contains(web.Reason, "web.1-i2 is provisioning on node host-up") {
		t.Errorf("web's reason: %s", web.Reason)
	}
	if !strings.HasPrefix(p.Reason, "old: ") {
		t.Errorf("the project's reason: %s", p.Reason)
	}
	if db.Backoff == nil || db.Backoff.Failures != 3 || web.Backoff != nil {
		t.Errorf("back-offs %+v %+v", db.Backoff, web.Backoff)
	}
	if old.Name != "old" || old.Goal != 0 || old.Running != 1 {
		t.Errorf("what is left over %+v", old)
	}
	raw := h.call("GET", "/v1/projects/shop/services/db/state", nil)
	if one := want[contract.State](raw, 200); len(one.Projects[0].Services) != 1 || !strings.Contains(string(raw.body), `"frozen":false`) {
		t.Errorf("one service %s", raw.body)
	}
}

func TestOnItsWayAProjectSaysWhatIsAwaited(t *testing.T) {
	t.Parallel()
	h := newTestServer(t)
	c := h.create("shop", "services: {web: {compute_type: dummy, scale: 2, update: {min_healthy: 30}}}")
	project := func() contract.Project {
		all := want[contract.Projects](h.call("GET", "/v1/projects", nil), 200).Projects
		if one := want[contract.Project](h.call("GET", "/v1/projects/shop", nil), 200); one.Reason != all[0].Reason {
			t.Errorf("shown as %q, listed as %q", one.Reason, all[0].Reason)
		}
		return all[0]
	}
	if p := project(); p.Status != mariposa.StatusConverging || p.Reason != "web: 0 of 2 running" {
		t.Errorf("at first: %+v", p)
	}
	st := settled(c)
	delete(st.Services, "db")
	st.Status, st.Services["web"].Status = mariposa.StatusConverging, mariposa.StatusConverging
	h.plan(c.ID, st)
	h.node("up", mariposa.NodeSpec{Name: "host-up"}, mariposa.NodeStatus{State: mariposa.NodeRunning})
	h.instance("i1", c.ID, "web", "up", mariposa.StateRunning, nil)
	older := func(s *mariposa.InstanceSpec) { s.Digest = "older" }
	h.instance("i2", c.ID, "web", "up", mariposa.StateRunning, older)
	h.instance("i3", c.ID, "web", "up", mariposa.StateRunning, older)
	if p := project(); p.Reason != "web: 3 running, 2 wanted, 2 outdated, 1 not yet up for 30 s" {
		t.Errorf("in the middle: %q", p.Reason)
	}
	h.create("empty", "services: {}")
	if p := want[contract.Project](h.call("GET", "/v1/projects/empty", nil), 200); p.Reason != "not planned yet" {
		t.Errorf("without services: %q", p.Reason)
	}
}

func TestANextTryThatIsDueIsNow(t *testing.T) {
	t.Parallel()
	h := newTestServer(t)
	c := h.create("shop", hello)
	for _, due := range []bool{false, true} {
		until := time.Now().Add(time.Hour)
		if due {
			until = time.Now().Add(-time.Second)
		}
		st := settled(c)
		web := st.Services["web"]
		web.Status, web.Backoff = mariposa.StatusBackingOff, &mariposa.Backoff{Failures: 3, Until: until}
		web.Reason = (&mariposa.Reason{Code: mariposa.ReasonBackingOff, Count: 3, Until: until}).Because(mariposa.TextReason("exit code 1"))
		st.Status, st.Reason = web.Status, web.Reason.About("web")
		h.plan(c.ID, st)
		p := want[contract.State](h.call("GET", "/v1/state", nil), 200).Projects[0]
		listed := want[contract.Projects](h.call("GET", "/v1/projects", nil), 200).Projects[0]
		for _, reason := range []string{p.Reason, p.Services[1].Reason, listed.Reason} {
			if strings.Contains(reason, "retrying now: exit") != due || strings.Contains(reason, "next retry at") == due {
				t.Errorf("due %v: %s", due, reason)
			}
		}
	}
}

func TestAQueuedTaskSaysWhatItWaitsFor(t *testing.T) {
	t.Parallel()
	h := newTestServer(t)
	c := h.create("shop", hello) // its start is open
	scale := want[contract.Changed](h.act(`{"action":"scale","scale":{"web":3}}`), 202)
	for _, task := range append(want[contract.Tasks](h.call("GET", "/v1/queue", nil), 200).Tasks, want[contract.Task](h.call("GET", "/v1/queue/"+*scale.Task, nil), 200)) {
		waits := task.ID == *scale.Task
		if (len(task.WaitsFor) == 1 && task.WaitsFor[0] == *c.Task && strings.HasSuffix(task.Reason, "; waits for task "+*c.Task+" (start, queued)")) != waits {
			t.Errorf("task %+v", task)
		}
	}
	h.act(`{"action":"scale","scale":{"web":4}}`).wantError(409, mariposa.Conflict, *scale.Task, "mariposa queue show "+*scale.Task, "or stop the project")
	want[contract.Changed](h.act(`{"action":"stop"}`), 202)
	if e := h.act(`{"action":"start"}`).wantError(409, mariposa.Conflict, "mariposa queue show"); contains(e.Message, "or stop") {
		t.Errorf("it is being stopped: %s", e.Message)
	}
}

func TestStateIsFiltered(t *testing.T) {
	t.Parallel()
	h := newTestServer(t)
	c := h.create("shop", hello)
	h.create("other", "services: {db: {compute_type: dummy}}")
	count := func(query string) (projects, services int) {
		st := want[contract.State](h.call("GET", "/v1/state"+query, nil), 200)
		for _, p := range st.Projects {
			services += len(p.Services)
		}
		return len(st.Projects), services
	}
	for query, wanted := range map[string][2]int{
		"": {2, 3}, "?project=shop": {1, 2}, "?project=" + c.ID: {1, 2}, "?service=db": {2, 2}, "?service=web": {1, 1},
		"?project=shop&service=web": {1, 1}, "?organization=admin": {2, 3},
	} {
		if p, s := count(query); p != wanted[0] || s != wanted[1] {
			t.Errorf("%q: %d projects, %d services", query, p, s)
		}
	}
	h.call("GET", "/v1/state?project=nobody", nil).wantError(404, mariposa.ResourceNotFound)
	h.call("GET", "/v1/state?project=shop&service=nothing", nil).wantError(404, mariposa.ResourceNotFound)
	h.call("GET", "/v1/projects/shop/services/nothing/state", nil).wantError(404, mariposa.ResourceNotFound)
}

func TestServicesAreListed(t *testing.T) {
	t.Parallel()
	h := newTestServer(t)
	c := h.create("shop", hello)
	h.create("other", "services: {db: {compute_type: dummy}}")
	all := want[contract.Services](h.call("GET", "/v1/services", nil), 200)
	mine := want[contract.Services](h.call("GET", "/v1/projects/shop/services", nil), 200)
	if len(all.Services) != 3 || len(mine.Services) != 2 {
		t.Fatalf("%d and %d services", len(all.Services), len(mine.Services))
	}
	for _, ref := range []string{"web", mine.Services[1].ID} {
		web := want[contract.Service](h.call("GET", "/v1/projects/shop/services/"+ref, nil), 200)
		if web.Name != "web" || web.ProjectName != "shop" || web.Project != c.ID || web.ComputeType != mariposa.ComputeDummy || web.Goal != 2 {
			t.Errorf("web %+v", web)
		}
	}
	h.call("GET", "/v1/projects/shop/services/nothing", nil).wantError(404, mariposa.ResourceNotFound)
}

func TestAServiceThatComesBackIsTheSame(t *testing.T) {
	t.Parallel()
	h := newTestServer(t)
	c := h.create("shop", hello)
	ids := func() map[string]string {
		return must(h.store.Get(h.ctx, mariposa.KindProject, c.ID))(t).Spec.(*mariposa.ProjectSpec).Services
	}
	before := ids()["db"]
	put := func(m string) { want[contract.Changed](h.call("PUT", "/v1/projects/shop/manifest?force=true", m), 200) }
	put("services: {web: {compute_type: dummy}}")
	if p := want[contract.Project](h.call("GET", "/v1/projects/shop", nil), 200); len(p.Services) != 1 {
		t.Errorf("services %v", p.Services)
	}
	put(hello)
	if after := ids()["db"]; after != before || len(after) != 36 {
		t.Errorf("%s became %s", before, after)
	}
}

// act changes the state of the project shop.
func (h *testServer) act(body string) reply {
	return h.call("PUT", "/v1/projects/shop/state", []byte(body))
}

func (h *testServer) taskSpec(c contract.Changed) *mariposa.TaskSpec {
	h.t.Helper()
	if c.Task == nil {
		h.t.Fatal("no task was created")
	}
	return must(h.store.Get(h.ctx, mariposa.KindTask, *c.Task))(h.t).Spec.(*mariposa.TaskSpec)
}

func TestActionsBecomeTasks(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, path, body string
		task             string // empty: none
	}{
		{"stop", "state", `{"action":"stop"}`, `{"task":"stop","patch":{"goal":"stopped"}}`},
		{"start of what is started", "state", `{"action":"start"}`, ``},
		{"scale of one", "services/web/state", `{"action":"scale","scale":5}`, `{"task":"scale","services":["web"],"patch":{"scale":{"web":5}}}`},
		{"scale by a difference", "services/web/state", `{"action":"scale","scale":"+1"}`, `{"task":"scale","services":["web"],"patch":{"scale_by":{"web":1}}}`},
		{"scale down by a difference", "services/web/state", `{"action":"scale","scale":"-2"}`, `{"task":"scale","services":["web"],"patch":{"scale_by":{"web":-2}}}`},
		{"scale by id", "services/id-web/state", `{"action":"scale","scale":"7"}`, `{"task":"scale","services":["web"],"patch":{"scale":{"web":7}}}`},
		{"scale of many", "state", `{"action":"scale","scale":{"web":4,"db":"+2"}}`, `{"task":"scale","services":["db","web"],"patch":{"scale":{"web":4},"scale_by":{"db":2}}}`},
		{"scale to what is", "state", `{"action":"scale","scale":{"web":2}}`, ``},
		{"reprovision of all", "state", `{"action":"reprovision"}`, `{"task":"reprovision","patch":{"reprovision":["db","web"]}}`},
		{"reprovision of some", "state", `{"action":"reprovision","services":["web"],"rolling":"50%"}`, `{"task":"reprovision","services":["web"],"patch":{"rolling":{"n":50,"percent":true},"reprovision":["web"]}}`},
		{"reprovision of one", "services/db/state", `{"action":"reprovision","rolling":2}`, `{"task":"reprovision","services":["db"],"patch":{"rolling":{"n":2},"reprovision":["db"]}}`},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			h := newTestServer(t)
			first := h.create("shop", hello)
			h.plan(first.ID, settled(first))
			got := want[contract.Changed](h.call("PUT", "/v1/projects/shop/"+c.path, []byte(c.body)), 202)
			if c.task == "" {
				if got.Task != nil {
					t.Fatalf("a task was created: %+v", h.taskSpec(got))
				}
				return
			}
			spec := h.taskSpec(got)
			short := must(json.Marshal(struct {
				Task     mariposa.TaskKind `json:"task"`
				Services []string          `json:"services,omitempty"`
				Patch    mariposa.Patch    `json:"patch"`
			}{spec.Task, spec.Services, spec.Patch}))(t)
			if string(short) != c.task || spec.Reason == nil || spec.Author != "admin" || spec.Project != first.ID {
				t.Errorf("became %s (%+v)", short, spec)
			}
		})
	}
}

func TestActionsThatMakeNoSenseAreRefused(t *testing.T) {
	t.Parallel()
	h := newTestServer(t)
	c := h.create("shop", hello)
	h.plan(c.ID, settled(c))
	for _, body := range []string{
		`{}`, `{"action":"dance"}`, `{"action":7}`, `{"action":"start","colour":"red"}`, `[]`, `null`, `"start"`, `{"action":`, `x`,
		`{"action":"scale"}`, `{"action":"scale","scale":3}`, `{"action":"scale","scale":{}}`, `{"action":"scale","scale":{"web":-1}}`,
		`{"action":"scale","scale":{"web":"-3"}}`, `{"action":"scale","scale":{"web":1.5}}`, `{"action":"scale","scale":{"web":"+"}}`,
		`{"action":"scale","scale":{"web":1000001}}`, `{"action":"scale","scale":{"web":"+1000000"}}`, `{"action":"scale","scale":{"web":null}}`,
		`{"action":"scale","scale":{"web":99999999999999999999}}`, `{"action":"scale","scale":{"web":true}}`, `{"action":"scale","scale":{"web":1,"id-web":2}}`,
		`{"action":"reprovision","rolling":0}`, `{"action":"reprovision","rolling":"x"}`, `{"action":"reprovision","canary":"many"}`,
		`{"action":"reprovision","filters":{"a":1}}`, `{"action":"reprovision","version":"1"}`, `{"action":"freeze","rolling":1}`, `{"action":"thaw","version":"1"}`,
		`{"action":"reprovision","count":1,"canary":2}`, `{"action":"reprovision","filters":{"instance":7}}`, `{"action":"accept","scale":1}`,
		`{"action":"revert","services":["web"]}`, `{"action":"start","version":"1","services":["web"]}`,
		`{"action":"start","rolling":1}`, `{"action":"stop","scale":1}`, `{"action":"scale","scale":{"web":1},"services":["web"]}`, `{"action":"start","with_scale":true}`,
	} {
		r := h.act(body)
		if r.status != 400 {
			t.Errorf("%s answered %d %s", body, r.status, r.body)
			continue
		}
		r.wantError(400, mariposa.InvalidArgument)
	}
	h.act(`{"action":"scale","scale":{"nothing":1}}`).wantError(404, mariposa.ResourceNotFound, "nothing")
	h.act(`{"action":"reprovision","services":["nothing"]}`).wantError(404, mariposa.ResourceNotFound, "nothing")
	h.call("PUT", "/v1/projects/nobody/state", []byte(`{"action":"start"}`)).wantError(404, mariposa.ResourceNotFound)
	h.call("PUT", "/v1/projects/shop/services/nothing/state", []byte(`{"action":"scale","scale":1}`)).wantError(404, mariposa.ResourceNotFound)
	h.act(`{"action":"stop","version":"7"}`).wantError(404, mariposa.ResourceNotFound, "7")
	h.act(`{"action":"freeze","services":["nothing"]}`).wantError(404, mariposa.ResourceNotFound, "nothing")
	h.call("PUT", "/v1/projects/shop/services/web/state", []byte(`{"action":"reprovision","services":["db"]}`)).wantError(400, mariposa.InvalidArgument)
	h.call("PUT", "/v1/projects/shop/state", `action: start`).wantError(400, mariposa.InvalidArgument, "application/json")
	if open := h.picture.TasksOf(c.ID); len(open) != 0 {
		t.Errorf("it created %d tasks", len(open))
	}
}

func TestTasksAreAdmittedByTheTable(t *testing.T) {
	t.Parallel()
	h := newTestServer(t)
	c := h.create("shop", hello)
	h.act(`{"action":"start"}`).wantError(409, mariposa.Conflict, *c.Task)
	scale := want[contract.Changed](h.act(`{"action":"scale","scale":{"web":3}}`), 202) // behind the start
	h.act(`{"action":"scale","scale":{"web":4}}`).wantError(409, mariposa.Conflict, *scale.Task)
	want[contract.Changed](h.act(`{"action":"scale","scale":{"db":4}}`), 202) // another scope
	stop := want[contract.Changed](h.act(`{"action":"stop"}`), 202)
	h.act(`{"action":"start"}`).wantError(409, mariposa.Conflict, *stop.Task)
	for _, id := range []string{*c.Task, *scale.Task} {
		if task := want[contract.Task](h.call("GET", "/v1/queue/"+id, nil), 200); task.State != mariposa.TaskTerminated || task.EndedBy != *stop.Task {
			t.Errorf("task %+v", task)
		}
	}
}

func TestAServiceWhoseTaskWaitsCanBeScaled(t *testing.T) {
	t.Parallel()
	h := newTestServer(t)
	c := h.create("shop", hello)
	h.plan(c.ID, settled(c))
	want[contract.Changed](h.call("PUT", "/v1/projects/shop/manifest?force=true", hello+"  new: {compute_type: dummy, scale: 2}\n"), 200)
	if spec := h.taskSpec(want[contract.Changed](h.act(`{"action":"scale","scale":{"new":"+3"}}`), 202)); spec.Patch.ScaleBy["new"] != 3 {
		t.Errorf("patch %+v", spec.Patch)
	}
}
