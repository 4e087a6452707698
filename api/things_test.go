package api_test

import (
	"cmp"
	"fmt"
	"strings"
	"testing"
	"time"

	"mariposa"
	"mariposa/contract"
	"mariposa/store"
)

func TestTheQueueIsFilteredAndPaged(t *testing.T) {
	t.Parallel()
	h := newTestServer(t)
	c := h.create("shop", hello)
	h.plan(c.ID, settled(c))
	other := h.create("other", hello)
	web := want[contract.Changed](h.act(`{"action":"scale","scale":{"web":3}}`), 202)
	db := want[contract.Changed](h.act(`{"action":"scale","scale":{"db":3}}`), 202)
	ids := func(query string) string {
		var all []string
		for {
			page := want[contract.Tasks](h.call("GET", "/v1/queue"+query, nil), 200)
			for _, task := range page.Tasks {
				all = append(all, task.ID)
			}
			if page.Marker == "" {
				return strings.Join(all, " ")
			}
			query, _, _ = strings.Cut(query, "&marker=")
			query += "&marker=" + page.Marker
		}
	}
	join := func(all ...*string) string {
		var texts []string
		for _, one := range all {
			texts = append(texts, *one)
		}
		return strings.Join(texts, " ")
	}
	for query, wanted := range map[string]string{
		"":                               join(db.Task, web.Task, other.Task),
		"?limit=1":                       join(db.Task, web.Task, other.Task),
		"?project=shop":                  join(db.Task, web.Task),
		"?service=web":                   join(web.Task, other.Task), // a task of the whole project is one of web's too
		"?project=shop&service=web":      join(web.Task),
		"?all=true":                      join(db.Task, web.Task, other.Task, c.Task),
		"?all=true&limit=1":              join(db.Task, web.Task, other.Task, c.Task),
		"?all=true&project=" + c.ID:      join(db.Task, web.Task, c.Task),
		"?state=completed":               join(c.Task),
		"?state=queued":                  join(db.Task, web.Task, other.Task),
		"?state=active":                  "",
		"?state=completed&project=other": "",
	} {
		if got := ids(query); got != wanted {
			t.Errorf("%q: %s\nwanted %s", query, got, wanted)
		}
	}
	h.call("GET", "/v1/queue?state=tired", nil).wantError(400, mariposa.InvalidArgument, "state")
	h.call("GET", "/v1/queue?marker=first", nil).wantError(400, mariposa.InvalidArgument, "marker", "first")
	h.call("GET", "/v1/queue?all=true&marker=first", nil).wantError(400, mariposa.InvalidArgument, "marker")
	h.call("GET", "/v1/queue?limit=0", nil).wantError(400, mariposa.InvalidArgument, "limit")
	h.call("GET", "/v1/queue?project=nobody", nil).wantError(404, mariposa.ResourceNotFound)
	h.call("GET", "/v1/queue/nothing", nil).wantError(404, mariposa.ResourceNotFound)
	h.call("GET", "/v1/queue?project=shop&service=nothing", nil).wantError(404, mariposa.ResourceNotFound, `has no service "nothing"`, "it has db, web")
	h.call("GET", "/v1/events?project=shop&service=nothing", nil).wantError(404, mariposa.ResourceNotFound, `has no service "nothing"`, "it has db, web")
	h.act(`{"action":"scale","scale":{"nothing":3}}`).wantError(404, mariposa.ResourceNotFound, `has no service "nothing"`, "it has db, web")
	ended := want[contract.Terminated](h.call("DELETE", "/v1/queue/"+*db.Task, nil), 202)
	if ended.Freeze != nil || !strings.Contains(ended.ContinueWith, "project scale db=") {
		t.Errorf("a task that waits is dropped: %+v", ended)
	}
	h.call("DELETE", "/v1/queue/"+*db.Task, nil).wantError(409, mariposa.Conflict, "already ended")
}

func TestATaskShowsItsSteps(t *testing.T) {
	t.Parallel()
	h := newTestServer(t)
	c := h.create("shop", hello)
	h.node("n1", mariposa.NodeSpec{Name: "host-n1"}, mariposa.NodeStatus{State: mariposa.NodeRunning})
	spec := &mariposa.InstanceSpec{Name: "web.1-i", Project: c.ID, ServiceName: "web", Node: "n1", Goal: mariposa.GoalRunning, Generation: 1}
	event := func(kind string) mariposa.Event {
		return mariposa.Event{Kind: kind, Project: c.ID, Task: *c.Task, Instance: "i", Reason: mariposa.TextReason("because")}
	}
	write := func(w store.Write) {
		w.Kind, w.ID, w.Project = mariposa.KindInstance, "i", c.ID
		h.commit(store.Unit{Writes: []store.Write{w}})
	}
	write(store.Write{Spec: spec, Event: event("instance.provisioning")})
	write(store.Write{Status: &mariposa.InstanceStatus{State: mariposa.StateRunning}, Event: event("instance.running")})
	gone := *spec
	gone.Goal, gone.Generation = mariposa.GoalGone, 2
	write(store.Write{Spec: &gone, Event: event("instance.stopping")})
	write(store.Write{Status: &mariposa.InstanceStatus{State: mariposa.StateDestroyed}, Event: event("instance.destroyed")})
	write(store.Write{Delete: true, Event: event("instance.collected")})

	steps := func(query string) ([]string, string) {
		task := want[contract.Task](h.call("GET", "/v1/queue/"+*c.Task+query, nil), 200)
		var all []string
		for _, s := range task.Steps {
			all = append(all, s.Step+" "+s.Result)
			if s.InstanceName != "web.1-i" || s.NodeName != "host-n1" || s.Reason != "because" || s.Revision == 0 || s.At.IsZero() {
				t.Errorf("step %+v", s)
			}
		}
		return all, task.Marker
	}
	all, _ := steps("")
	if got := strings.Join(all, ", "); got != "collect done, remove destroyed, remove asked, create running, create asked" {
		t.Errorf("steps: %s", got)
	}
	first, marker := steps("?limit=2")
	rest, _ := steps("?marker=" + marker)
	if strings.Join(append(first, rest...), ", ") != strings.Join(all, ", ") {
		t.Errorf("pages %v %v", first, rest)
	}

	// What nobody reported on before the end of the task was not done.
	spec = &mariposa.InstanceSpec{Name: "web.1-i", Project: c.ID, ServiceName: "web", Node: "n1", Goal: mariposa.GoalRunning, Generation: 1}
	h.commit(store.Unit{Writes: []store.Write{{Kind: mariposa.KindInstance, ID: "j", Project: c.ID, Spec: spec, Event: event("instance.provisioning")}}})
	if all, _ = steps("?limit=1"); all[0] != "create asked" {
		t.Errorf("of an open task: %v", all)
	}
	h.commit(store.Unit{Writes: []store.Write{{
		Kind: mariposa.KindTask, ID: *c.Task, Project: c.ID, Status: &mariposa.TaskStatus{State: mariposa.TaskFailed, Finished: time.Now()},
		Event: mariposa.Event{Kind: "task.failed", Project: c.ID, Task: *c.Task},
	}}})
	const ended = "create not done, collect done, remove destroyed, remove done, create running, create done"
	all, _ = steps("")
	first, marker = steps("?limit=4")
	rest, _ = steps("?marker=" + marker)
	if strings.Join(all, ", ") != ended || strings.Join(append(first, rest...), ", ") != ended {
		t.Errorf("of a failed task: %v; in pages: %v %v", all, first, rest)
	}
}

// fill adds instances i1 to i5 to the store.
func (h *testServer) fill() contract.Changed {
	c := h.create("shop", "services:\n  web: {compute_type: dummy, scale: 2, command: [serve, '{{ .instance.name }}'], environment: ['N={{ .project.name }}', 'P={{ .placement.cn.uuid }}']}\n  db: {compute_type: dummy}\n")
	h.plan(c.ID, settled(c))
	h.node("n1", mariposa.NodeSpec{Name: "host-n1", Dummy: true}, mariposa.NodeStatus{State: mariposa.NodeRunning, Capabilities: declaredCapabilities})
	h.node("n2", mariposa.NodeSpec{Name: "host-n2"}, mariposa.NodeStatus{State: mariposa.NodeUnknown})
	h.instance("aaaa-i1", c.ID, "web", "n1", mariposa.StateRunning, nil)
	h.instance("aaaa-i2", c.ID, "web", "n1", mariposa.StateFailed, nil)
	h.instance("bbbb-i3", c.ID, "web", "n2", mariposa.StateRunning, nil)
	h.instance("cccc-i4", c.ID, "db", "n1", "", func(s *mariposa.InstanceSpec) { s.Compute = mariposa.ComputeProcess })
	h.instance("dddd-i5", c.ID, "db", "n1", mariposa.StateRunning, func(s *mariposa.InstanceSpec) { s.Digest, s.Number = "older", 7 })
	return c
}

func TestInstancesAreFilteredAndPaged(t *testing.T) {
	t.Parallel()
	h := newTestServer(t)
	c := h.fill()
	for query, wanted := range map[string]string{
		"":                          "aaaa-i1 aaaa-i2 bbbb-i3 cccc-i4 dddd-i5",
		"?limit=2":                  "aaaa-i1 aaaa-i2 bbbb-i3 cccc-i4 dddd-i5",
		"?project=shop":             "aaaa-i1 aaaa-i2 bbbb-i3 cccc-i4 dddd-i5",
		"?project=shop&node=n2":     "bbbb-i3",
		"?node=host-n1":             "aaaa-i1 aaaa-i2 cccc-i4 dddd-i5",
		"?service=db":               "cccc-i4 dddd-i5",
		"?service=id-db":            "cccc-i4 dddd-i5",
		"?service=other":            "",
		"?state=running":            "aaaa-i1 dddd-i5",
		"?state=unknown":            "bbbb-i3",
		"?state=provisioning":       "cccc-i4",
		"?state=pending":            "",
		"?version=" + c.Version:     "aaaa-i1 aaaa-i2 bbbb-i3 cccc-i4",
		"?version=" + c.Version[:7]: "aaaa-i1 aaaa-i2 bbbb-i3 cccc-i4",
		"?version=1&project=shop":   "aaaa-i1 aaaa-i2 bbbb-i3 cccc-i4",
		"?version=abcdef0":          "",
		"?marker=aaaa-i2":           "bbbb-i3 cccc-i4 dddd-i5",
		"?project=" + newID():       "",
	} {
		var got []string
		for at := query; ; {
			page := want[contract.Instances](h.call("GET", "/v1/instances"+at, nil), 200)
			for _, i := range page.Instances {
				got = append(got, i.ID)
			}
			if page.Marker == "" {
				break
			}
			at = query + "&marker=" + page.Marker
		}
		if strings.Join(got, " ") != wanted {
			t.Errorf("%q: %v", query, got)
		}
	}
	for query, status := range map[string]int{"?state=tired": 400, "?marker=bbbb": 400, "?limit=10001": 400, "?limit=x": 400, "?node=nowhere": 404, "?project=nobody": 404, "?organization=acme": 404} {
		if r := h.call("GET", "/v1/instances"+query, nil); r.status != status {
			t.Errorf("%q answered %d %s", query, r.status, r.body)
		}
	}
}

func TestAnInstanceIsShownWithItsDetails(t *testing.T) {
	t.Parallel()
	h := newTestServer(t)
	c := h.fill()
	for _, ref := range []string{"aaaa-i1", "web.1-aaaa-i1"} {
		i := want[contract.Instance](h.call("GET", "/v1/instances/"+ref, nil), 200)
		if i.Slot != "web.1" || i.ProjectName != "shop" || i.NodeName != "host-n1" || i.ServiceName != "web" || i.Version != c.Version || i.Health != mariposa.HealthUnknown || !i.Managed {
			t.Errorf("instance %+v", i)
		}
		if got := strings.Join(i.Environment, " "); got != "N=shop P=n1" || strings.Join(i.Command, " ") != "serve web.1-aaaa-i1" {
			t.Errorf("environment %q, command %q", got, i.Command)
		}
	}
	if i := want[contract.Instance](h.call("GET", "/v1/instances/bbbb", nil), 200); i.State != mariposa.StateUnknown || !contains(i.Reason, "host-n2") {
		t.Errorf("on a node that is away: %+v", i)
	}
	raw := h.call("GET", "/v1/instances/cccc-i4", nil)
	for _, part := range []string{`"addresses":[]`, `"started":null`, `"exit_code":null`, `"usage":{}`, `"state":"provisioning"`} {
		if !contains(string(raw.body), part) {
			t.Errorf("%s is not in %s", part, raw.body)
		}
	}
	h.call("GET", "/v1/instances/aaaa", nil).wantError(400, mariposa.InvalidArgument, "more than one")
	h.call("GET", "/v1/instances/zzzz", nil).wantError(404, mariposa.ResourceNotFound)
	h.call("GET", "/v1/instances/b", nil).wantError(404, mariposa.ResourceNotFound)
}

func TestWhatAnInstanceRefuses(t *testing.T) {
	t.Parallel()
	h := newTestServer(t)
	h.fill()
	put := func(id, action string) reply {
		return h.call("PUT", "/v1/instances/"+id, map[string]string{"action": action})
	}
	put("cccc-i4", "crash").wantError(409, mariposa.Conflict, "process", "does not support crashing")
	put("aaaa-i1", "crash").wantError(503, mariposa.Unavailable, "not connected")
	put("aaaa-i1", "stop").wantError(409, mariposa.Conflict, "service web")
	put("aaaa-i1", "start").wantError(409, mariposa.Conflict)
	put("aaaa-i1", "sing").wantError(400, mariposa.InvalidArgument)
	put("zzzz", "crash").wantError(404, mariposa.ResourceNotFound)
	h.call("DELETE", "/v1/instances/aaaa-i1", nil).wantError(409, mariposa.Conflict)
	h.call("POST", "/v1/instances", map[string]any{"image": "x"}).wantError(400, mariposa.InvalidArgument, "project is missing")
	h.call("GET", "/v1/instances/aaaa-i1/logs", nil).wantError(409, mariposa.Conflict, "compute type dummy", "does not support logs")
	h.call("GET", "/v1/instances/cccc-i4/logs", nil).wantError(503, mariposa.Unavailable, "not connected")
	h.call("GET", "/v1/instances/aaaa-i1/logs?tail=-2", nil).wantError(400, mariposa.InvalidArgument, "tail")
	h.call("GET", "/v1/instances/zzzz/logs", nil).wantError(404, mariposa.ResourceNotFound)
}

func TestNodesAreShownHurtPurgedAndForgotten(t *testing.T) {
	t.Parallel()
	h := newTestServer(t)
	c := h.fill()
	h.node("n3", mariposa.NodeSpec{Name: "host-n3"}, mariposa.NodeStatus{State: mariposa.NodeRunning, Quarantined: []mariposa.Quarantined{{ID: "q1"}, {ID: "q2"}}})
	all := want[contract.Nodes](h.call("GET", "/v1/nodes", nil), 200)
	if len(all.Nodes) != 3 || all.Nodes[0].Instances != 4 || all.Nodes[1].Status != mariposa.NodeUnknown || !all.Nodes[0].Dummy {
		t.Errorf("nodes %+v", all)
	}
	put := func(node string, body any) reply { return h.call("PUT", "/v1/nodes/"+node, body) }
	spec := func(node string) *mariposa.NodeSpec {
		return must(h.store.Get(h.ctx, mariposa.KindNode, node))(t).Spec.(*mariposa.NodeSpec)
	}
	put("n3", contract.NodeAction{Action: "lose"}).wantError(409, mariposa.Conflict, "not a dummy")
	put("n3", contract.NodeAction{Action: "restore"}).wantError(409, mariposa.Conflict, "not a dummy")
	for _, action := range []string{"drain", "undrain", "reserve", "unreserve"} {
		want[contract.Changed](put("n3", contract.NodeAction{Action: action}), 200)
	}
	put("n3", contract.NodeAction{Action: "reserve", DryRun: true}).wantError(400, mariposa.InvalidArgument, "only drain")
	put("n3", contract.NodeAction{Action: "fly"}).wantError(400, mariposa.InvalidArgument)
	put("n1", contract.NodeAction{Action: "lose", Instances: []string{"q1"}}).wantError(400, mariposa.InvalidArgument)
	put("nowhere", contract.NodeAction{Action: "lose"}).wantError(404, mariposa.ResourceNotFound)

	put("n3", contract.NodeAction{Action: "purge", Instances: []string{"q9"}}).wantError(404, mariposa.ResourceNotFound, "q9")
	want[contract.Changed](put("n3", contract.NodeAction{Action: "purge", Instances: []string{"q2"}}), 200)
	if got := fmt.Sprint(spec("n3").Purge); got != "[q2]" {
		t.Errorf("purge %s", got)
	}
	want[contract.Changed](put("n3", contract.NodeAction{Action: "purge"}), 200)
	if got := fmt.Sprint(spec("n3").Purge); got != "[q1 q2]" {
		t.Errorf("purge %s", got)
	}
	before := h.picture.Revision()
	if c := want[contract.Changed](put("n3", contract.NodeAction{Action: "purge"}), 200); c.Reason != "2 quarantined instances will be removed" {
		t.Errorf("purged: %+v", c)
	}
	if c := want[contract.Changed](put("n1", contract.NodeAction{Action: "purge"}), 200); c.Reason != "the node has no quarantined instances" {
		t.Errorf("purged: %+v", c)
	}
	if h.picture.Revision() != before {
		t.Error("the same again was written again")
	}

	h.instance("bbbb-i9", c.ID, "web", "n2", mariposa.StateRunning, func(s *mariposa.InstanceSpec) { s.Slot = 2 }) // bbbb-i3 has a replacement on n1
	h.call("DELETE", "/v1/nodes/n2", nil).wantError(409, mariposa.Conflict, "has 1 instance without a running replacement", "reschedule-now host-n2", "--force")
	h.node("n5", mariposa.NodeSpec{Name: "host-n5"}, mariposa.NodeStatus{State: mariposa.NodeUnknown})
	h.instance("bbbb-i8", c.ID, "web", "n5", mariposa.StateRunning, nil)
	if done := want[contract.Changed](h.call("DELETE", "/v1/nodes/n5", nil), 200); done.Reason != "1 instance on it removed too" {
		t.Errorf("removed a node whose instance was replaced: %+v", done)
	}
	h.node("n4", mariposa.NodeSpec{Name: "host-n4"}, mariposa.NodeStatus{State: mariposa.NodeUnknown})
	want[contract.Changed](h.call("DELETE", "/v1/nodes/host-n4", nil), 200)
	h.call("GET", "/v1/nodes/n4", nil).wantError(404, mariposa.ResourceNotFound)
	heard := time.Now().Add(-time.Hour).Round(0)
	h.node("n10", mariposa.NodeSpec{Name: "host-n10"}, mariposa.NodeStatus{State: mariposa.NodeUnknown, Since: time.Now(), LastSeen: heard})
	if n := want[contract.Node](h.call("GET", "/v1/nodes/n10", nil), 200); !n.LastHeartbeat.Equal(heard) {
		t.Errorf("last heard at %v, not %v", n.LastHeartbeat, heard)
	}
	var names []string
	for _, n := range want[contract.Nodes](h.call("GET", "/v1/nodes", nil), 200).Nodes {
		names = append(names, n.Name)
	}
	if got := strings.Join(names, " "); got != "host-n1 host-n2 host-n3 host-n10" {
		t.Errorf("nodes in the order %s", got)
	}
	if n := want[contract.Node](h.call("GET", "/v1/nodes/host-n3", nil), 200); len(n.Quarantined) != 2 || n.LastHeartbeat != nil {
		t.Errorf("node %+v", n)
	}

	// In the end: it may be unknown from then on.
	want[contract.Changed](put("host-n1", contract.NodeAction{Action: "lose"}), 200)
	if !spec("n1").Lost {
		t.Error("n1 is not lost")
	}
	want[contract.Changed](put("n1", contract.NodeAction{Action: "restore"}), 200)
	if spec("n1").Lost {
		t.Error("n1 is still lost")
	}
}

func TestCurlNeedNotSayThatItSendsJSON(t *testing.T) {
	t.Parallel()
	h := newTestServer(t)
	h.fill()
	h.node("n3", mariposa.NodeSpec{Name: "host-n3", Dummy: true}, mariposa.NodeStatus{State: mariposa.NodeRunning})
	curl := []string{"Content-Type", "application/x-www-form-urlencoded"}
	for path, status := range map[string]int{"/v1/projects/shop/state": 202, "/v1/nodes/n3": 200} {
		action := map[string]string{"/v1/nodes/n3": "lose"}[path]
		want[contract.Changed](h.call("PUT", path, `{"action":"`+cmp.Or(action, "stop")+`"}`, curl...), status)
	}
	h.call("PUT", "/v1/projects/shop/services/web/state", `{"action":"scale","scale":"+2"}`, curl...).wantError(409, mariposa.Conflict) // understood, and in the way of the stop
	h.call("PUT", "/v1/instances/aaaa-i1", `{"action":"stop"}`, curl...).wantError(409, mariposa.Conflict, "service web")
	h.call("PUT", "/v1/projects/shop/state", "action=stop", curl...).wantError(400, mariposa.InvalidArgument, "body")
	h.call("PUT", "/v1/projects/shop/state", "", curl...).wantError(400, mariposa.InvalidArgument, "empty")
}
