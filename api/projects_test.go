package api_test

import (
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"mariposa"
	"mariposa/contract"
	"mariposa/store"
)

func TestCreatingAProjectIsOneCommitWithItsFirstTask(t *testing.T) {
	t.Parallel()
	h := newTestServer(t)
	before := h.picture.Revision()
	c := h.create("shop", hello)
	if c.ID == "" || c.Name != "shop" || len(c.Version) != 40 || c.Number != 1 || c.Task == nil {
		t.Fatalf("answered %+v", c)
	}
	var kinds []string
	for _, ch := range must(h.store.Changes(h.ctx, before, 0))(t) {
		if ch.Record.Kind == mariposa.KindToken {
			continue // that the token was used is noted at some time
		}
		kinds = append(kinds, ch.Event.Kind)
		if ch.Event.Kind != "" && (ch.Event.Actor != "admin" || ch.Event.Project != c.ID) {
			t.Errorf("event %+v", ch.Event)
		}
	}
	if got := strings.Join(kinds, " "); got != " project.created version.created task.queued" {
		t.Errorf("events: %q", got)
	}
	task := want[contract.Task](h.call("GET", "/v1/queue/"+*c.Task, nil), 200)
	if task.Task != mariposa.TaskStart || task.State != mariposa.TaskQueued || task.ProjectName != "shop" || task.Version != c.Version || task.Author != "admin" || task.Origin != mariposa.OriginUser {
		t.Errorf("task %+v", task)
	}
	p := want[contract.Project](h.call("GET", "/v1/projects/shop", nil), 200)
	if p.ID != c.ID || p.Goal != mariposa.GoalStarted || p.Status != mariposa.StatusConverging || strings.Join(p.Services, " ") != "db web" {
		t.Errorf("project %+v", p)
	}
	if byID := want[contract.Project](h.call("GET", "/v1/projects/"+c.ID, nil), 200); byID.Name != "shop" {
		t.Errorf("by id %+v", byID)
	}
	rec := must(h.store.Get(h.ctx, mariposa.KindTask, *c.Task))(t)
	if patch := rec.Spec.(*mariposa.TaskSpec).Patch; patch.Number != 1 || patch.Goal != mariposa.GoalStarted {
		t.Errorf("patch %+v", patch)
	}
}

func TestProjectsAreCreatedFromYAMLAndJSON(t *testing.T) {
	t.Parallel()
	h := newTestServer(t)
	asJSON := `{"services":{"web":{"compute_type":"dummy"}}}`
	generated := "services:\n  web:\n    compute_type: dummy\n"
	for _, c := range []struct {
		name, query string
		body        any
		kind        string
		stored      string
		storedKind  string
	}{
		{"yaml with its type", "?name=a", hello, "application/yaml", hello, "application/yaml"},
		{"yaml as text", "?name=b&message=hi", hello, "text/yaml; charset=utf-8", hello, "application/yaml"},
		{"yaml with the old type", "?name=c&organization=admin", hello, "application/x-yaml", hello, "application/yaml"},
		{"json as a manifest", "?name=d", []byte(asJSON), "application/json", generated, "application/yaml"},
		{"a document with an object", "", []byte(`{"name":"e","manifest":` + asJSON + `}`), "application/json", generated, "application/yaml"},
		{"a document with yaml in a string", "", contractNew("f", hello), "application/json", hello, "application/yaml"},
		{"yaml by curl's own type", "?name=h", hello, "application/x-www-form-urlencoded", hello, "application/yaml"},
		{"json by curl's own type", "?name=i", asJSON, "application/x-www-form-urlencoded", asJSON, "application/yaml"},
		{"a document by curl's own type", "", `{"name":"j","manifest":` + asJSON + `}`, "application/x-www-form-urlencoded", generated, "application/yaml"},
		{"a document that repeats the name", "?name=g", contractNew("g", hello), "application/json", hello, "application/yaml"},
	} {
		r := h.call("POST", "/v1/projects"+c.query, c.body, "Content-Type", c.kind)
		made := want[contract.Changed](r, http.StatusCreated)
		got := h.call("GET", "/v1/projects/"+made.ID+"/manifest", nil)
		if got.status != 200 || string(got.body) != c.stored || got.header.Get("Content-Type") != c.storedKind {
			t.Errorf("%s: stored %d %s %q", c.name, got.status, got.header.Get("Content-Type"), got.body)
		}
		if v := want[contract.Version](h.call("GET", "/v1/projects/"+made.ID+"/versions/1", nil), 200); v.Manifest != c.stored {
			t.Errorf("%s: version %q", c.name, v.Manifest)
		}
	}
	if all := want[contract.Projects](h.call("GET", "/v1/projects", nil), 200); len(all.Projects) != 10 {
		t.Errorf("%d projects", len(all.Projects))
	}
	if one := want[contract.Projects](h.call("GET", "/v1/projects?name=c&organization=admin", nil), 200); len(one.Projects) != 1 || one.Projects[0].Name != "c" {
		t.Errorf("by name: %+v", one)
	}
	if none := h.call("GET", "/v1/projects?name=nobody", nil); string(none.body) != "{\"projects\":[]}\n" {
		t.Errorf("no projects: %s", none.body)
	}
}

func contractNew(name, manifest string) map[string]any {
	return map[string]any{"name": name, "manifest": manifest}
}

func TestWhatCannotBecomeAProjectIsRefused(t *testing.T) {
	t.Parallel()
	h := newTestServer(t)
	taken := h.create("taken", hello)
	long := strings.Repeat("x", 64)
	for _, c := range []struct {
		name, query string
		body        any
		kind        string
		status      int
		code        mariposa.Code
		says        string
	}{
		{"no name", "", hello, "application/yaml", 400, mariposa.InvalidArgument, "name"},
		{"a bad name", "?name=Shop", hello, "application/yaml", 400, mariposa.InvalidArgument, "lower-case"},
		{"a long name", "?name=" + long, hello, "application/yaml", 400, mariposa.InvalidArgument, "63"},
		{"a name like an id", "?name=" + taken.ID, hello, "application/yaml", 400, mariposa.InvalidArgument, "id"},
		{"a name that is taken", "?name=taken", hello, "application/yaml", 409, mariposa.Conflict, taken.ID},
		{"no body", "?name=x", "", "application/yaml", 400, mariposa.InvalidArgument, "the manifest is empty"},
		{"nothing but white space", "?name=x", " \n\n", "application/yaml", 400, mariposa.InvalidArgument, "the manifest is empty"},
		{"an empty string in a document", "", contractNew("x", ""), "application/json", 400, mariposa.InvalidArgument, "the manifest is empty"},
		{"an empty document", "?name=x", "#\n", "application/yaml", 400, mariposa.InvalidArgument, ""},
		{"an unknown type", "?name=x", hello, "multipart/form-data", 400, mariposa.InvalidArgument, "application/yaml"},
		{"an unknown parameter", "?name=x&colour=red", hello, "application/yaml", 400, mariposa.InvalidArgument, "colour"},
		{"an unknown organization", "?name=x&organization=acme", hello, "application/yaml", 404, mariposa.ResourceNotFound, "acme"},
		{"an unknown field", "", map[string]any{"name": "x", "manifest": hello, "size": 3}, "application/json", 400, mariposa.InvalidArgument, "size"},
		{"a document without a manifest", "", map[string]any{"name": "x"}, "application/json", 400, mariposa.InvalidArgument, "manifest"},
		{"a field of another kind", "", map[string]any{"name": 7, "manifest": hello}, "application/json", 400, mariposa.InvalidArgument, "name"},
		{"metadata that is none", "", map[string]any{"name": "x", "manifest": hello, "metadata": []int{1}}, "application/json", 400, mariposa.InvalidArgument, ""},
		{"torn json", "", []byte(`{"name":`), "application/json", 400, mariposa.InvalidArgument, ""},
		{"two documents", "", []byte(`{"name":"x","manifest":"services: {}"}{}`), "application/json", 400, mariposa.InvalidArgument, "more than one"},
		{"two names", "?name=y", map[string]any{"name": "x", "manifest": hello}, "application/json", 400, mariposa.InvalidArgument, "different"},
		{"a long message", "?name=x&message=" + strings.Repeat("m", 1001), hello, "application/yaml", 400, mariposa.InvalidArgument, "message"},
	} {
		r := h.call("POST", "/v1/projects"+c.query, c.body, "Content-Type", c.kind)
		t.Run(c.name, func(t *testing.T) {
			r.t = t
			r.wantError(c.status, c.code, c.says)
		})
	}
	if n := h.picture.Projects.Len(); n != 1 {
		t.Errorf("it created %d projects", n)
	}
}

func TestAWrongManifestGetsEveryFaultWithItsLine(t *testing.T) {
	t.Parallel()
	h := newTestServer(t)
	bad := "services:\n  web:\n    compute_type: dummy\n    scale: many\n    colour: red\n"
	f := h.call("POST", "/v1/projects?name=x", bad).wantError(400, mariposa.InvalidArgument)
	lines := map[string]int{}
	for _, one := range f.Errors {
		lines[one.Field] = one.Line
	}
	if len(f.Errors) != 2 || lines["services.web.scale"] != 4 || lines["services.web.colour"] != 5 {
		t.Errorf("faults %+v", f.Errors)
	}
}

func TestAnOversizedBodyIsRefusedAtOnce(t *testing.T) {
	t.Parallel()
	h := newTestServer(t)
	c := h.create("shop", hello)
	huge := "services: {}\n#" + strings.Repeat("x", 10<<20)
	for _, one := range [][2]string{{"POST", "/v1/projects?name=big"}, {"PUT", "/v1/projects/shop/manifest?force=true"}} {
		began := time.Now()
		h.call(one[0], one[1], huge).wantError(413, mariposa.TooLarge, "the manifest has 10.1 MiB; the limit is 1 MiB")
		if took := time.Since(began); took > 20*time.Second { // below the 30 s that a body may take
			t.Errorf("%s took %v", one[1], took)
		}
	}
	h.call("PUT", "/v1/projects/shop/state", []byte(`{"action":"`+strings.Repeat("x", 2<<20)+`"}`)).wantError(413, mariposa.TooLarge)
	over := "services: {}\n#" + strings.Repeat("x", 1<<20)
	h.call("PUT", "/v1/projects/shop/manifest?force=true", over).wantError(413, mariposa.TooLarge, "the manifest has 1.1 MiB; the limit is 1 MiB")
	exact := over[:1<<20]
	if got := want[contract.Changed](h.call("PUT", "/v1/projects/shop/manifest?force=true", exact), 200); got.Number != c.Number+1 {
		t.Errorf("a manifest of just the right size: %+v", got)
	}
}

func TestANewManifestNeedsToKnowTheOldOne(t *testing.T) {
	t.Parallel()
	h := newTestServer(t)
	first := h.create("shop", hello)
	h.plan(first.ID, settled(first))
	put := func(query, manifest string) reply { return h.call("PUT", "/v1/projects/shop/manifest"+query, manifest) }
	changed := strings.Replace(hello, "db: {compute_type: dummy}", "db: {compute_type: dummy, environment: [A=1]}", 1)

	put("", changed).wantError(409, mariposa.Conflict, first.Version, "previous")
	put("?previous=7", changed).wantError(409, mariposa.Conflict, first.Version)
	put("?previous="+strings.Repeat("0", 40), changed).wantError(409, mariposa.Conflict, first.Version)
	put("?previous=1&canary=few", changed).wantError(400, mariposa.InvalidArgument, "canary")
	put("?previous=1&rolling=0", changed).wantError(400, mariposa.InvalidArgument, "rolling")
	put("?previous=1&rolling=-1%25", changed).wantError(400, mariposa.InvalidArgument, "rolling")
	put("?previous=1", "services: [").wantError(400, mariposa.InvalidArgument)

	same := want[contract.Changed](put("?previous=1", hello), 200)
	if same.Task != nil || same.Number != 1 || same.Version != first.Version {
		t.Errorf("the same bytes again: %+v", same)
	}
	second := want[contract.Changed](put("?previous="+first.Version[:12]+"&rolling=25%25&message=more", changed), 200)
	if second.Number != 2 || second.Task == nil || second.Version == first.Version {
		t.Fatalf("second %+v", second)
	}
	task := must(h.store.Get(h.ctx, mariposa.KindTask, *second.Task))(t).Spec.(*mariposa.TaskSpec)
	if task.Task != mariposa.TaskReprovision || strings.Join(task.Services, " ") != "db" || task.Reason.Detail != "more" ||
		task.Patch.Number != 2 || task.Patch.Rolling != (mariposa.Amount{N: 25, Percent: true}) {
		t.Errorf("task %+v", task)
	}
	scaled := strings.Replace(changed, "scale: 2", "scale: 3", 1)
	third := want[contract.Changed](put("?previous=2", scaled), 200)
	task = must(h.store.Get(h.ctx, mariposa.KindTask, *third.Task))(t).Spec.(*mariposa.TaskSpec)
	if task.Task != mariposa.TaskScale || strings.Join(task.Services, " ") != "web" || task.Patch.Number != 3 {
		t.Errorf("task %+v", task)
	}
	if got := h.call("GET", "/v1/projects/shop/manifest", nil); string(got.body) != scaled {
		t.Errorf("manifest %q", got.body)
	}
}

func TestASupersededTaskEndsInTheCommitThatSupersedesIt(t *testing.T) {
	t.Parallel()
	h := newTestServer(t)
	c := h.create("shop", hello)
	h.plan(c.ID, settled(c))
	update := func(value string) contract.Changed {
		m := strings.Replace(hello, "scale: 2", "scale: 2, environment: [A="+value+"]", 1)
		return want[contract.Changed](h.call("PUT", "/v1/projects/shop/manifest?force=true", m), 200)
	}
	one, two := update("1"), update("2")
	old := want[contract.Task](h.call("GET", "/v1/queue/"+*one.Task, nil), 200)
	if old.State != mariposa.TaskTerminated || old.EndedBy != *two.Task || old.Finished == nil {
		t.Errorf("the first task %+v", old)
	}
	if open := want[contract.Tasks](h.call("GET", "/v1/queue", nil), 200); len(open.Tasks) != 1 || open.Tasks[0].ID != *two.Task {
		t.Errorf("open tasks %+v", open)
	}
}

func TestOfManyUpdatesOfTheSameVersionExactlyOneWins(t *testing.T) {
	t.Parallel()
	h := newTestServer(t)
	c := h.create("shop", hello)
	h.plan(c.ID, settled(c))
	var won, lost atomic.Int64
	var all sync.WaitGroup
	for i := range 50 {
		all.Go(func() {
			m := hello + "# " + strings.Repeat("x", i) + "\n"
			r := h.call("PUT", "/v1/projects/shop/manifest?previous=1", m)
			switch r.status {
			case 200:
				won.Add(1)
			case 409:
				lost.Add(1)
			default:
				t.Errorf("answered %d %s", r.status, r.body)
			}
		})
	}
	all.Wait()
	if won.Load() != 1 || lost.Load() != 49 {
		t.Errorf("%d won, %d lost", won.Load(), lost.Load())
	}
	if vs := want[contract.Versions](h.call("GET", "/v1/projects/shop/versions", nil), 200); len(vs.Versions) != 2 {
		t.Errorf("%d versions", len(vs.Versions))
	}
}

func TestOfManyForcedUpdatesNoneIsLost(t *testing.T) {
	t.Parallel()
	h := newTestServer(t)
	c := h.create("shop", hello)
	h.plan(c.ID, settled(c))
	var all sync.WaitGroup
	for i := range 30 {
		all.Go(func() {
			r := h.call("PUT", "/v1/projects/shop/manifest?force=true", hello+"# "+strings.Repeat("y", i)+"\n")
			if r.status != 200 {
				t.Errorf("answered %d %s", r.status, r.body)
			}
		})
	}
	all.Wait()
	p := want[contract.Project](h.call("GET", "/v1/projects/shop", nil), 200)
	if p.Number != 31 {
		t.Errorf("at number %d", p.Number)
	}
}

func TestOfManyProjectsWithOneNameOneIsMade(t *testing.T) {
	t.Parallel()
	h := newTestServer(t)
	var made atomic.Int64
	var all sync.WaitGroup
	for range 20 {
		all.Go(func() {
			if r := h.call("POST", "/v1/projects?name=shop", hello); r.status == 201 {
				made.Add(1)
			} else if r.status != 409 {
				t.Errorf("answered %d %s", r.status, r.body)
			}
		})
	}
	all.Wait()
	if made.Load() != 1 {
		t.Errorf("%d were made", made.Load())
	}
}

func TestAConflictWithOthersIsTriedAgain(t *testing.T) {
	t.Parallel()
	spoiler := &conflictingStore{times: 3}
	h := newTestServer(t, withStore(func(s store.Store) store.Store { spoiler.Store = s; return spoiler }))
	c := h.create("shop", hello)
	h.plan(c.ID, settled(c))
	spoiler.spoil.Store(true)
	want[contract.Changed](h.call("PUT", "/v1/projects/shop/state", contract.Action{Action: "stop"}), 202)
	spoiler.times = 1 << 30
	h.call("PUT", "/v1/projects/shop/manifest?force=true", hello+"#\n").wantError(409, mariposa.Conflict)
}

func TestAVersionIsFoundByNumberHashAndTag(t *testing.T) {
	t.Parallel()
	h := newTestServer(t)
	c := h.create("shop", hello)
	h.plan(c.ID, settled(c))
	second := want[contract.Changed](h.call("PUT", "/v1/projects/shop/manifest?force=true", hello+"# two\n"), 200)
	for ref, number := range map[string]int{"1": 1, "2": 2, c.Version: 1, c.Version[:7]: 1, second.Version[:10]: 2, "current": 1, "latest": 2} {
		v := want[contract.Version](h.call("GET", "/v1/projects/shop/versions/"+ref, nil), 200)
		if v.Number != number || v.Manifest == "" {
			t.Errorf("%s is %+v", ref, v)
		}
	}
	for _, ref := range []string{"0", "3", "-1", "abcdef0", c.Version[:6], strings.Repeat("f", 40), "x%2Fy"} {
		h.call("GET", "/v1/projects/shop/versions/"+ref, nil).wantError(404, mariposa.ResourceNotFound)
	}
	all := want[contract.Versions](h.call("GET", "/v1/projects/shop/versions", nil), 200)
	if len(all.Versions) != 2 || all.Versions[0].Number != 2 || all.Marker != "" || all.Versions[0].Tags[0] != "latest" || all.Versions[1].Tags[0] != "current" {
		t.Errorf("versions %+v", all)
	}
	if got := strings.Join(all.Versions[1].ServicesChanged, " "); got != "db web" || len(all.Versions[0].ServicesChanged) != 0 {
		t.Errorf("services changed %q", got)
	}
	page := want[contract.Versions](h.call("GET", "/v1/projects/shop/versions?limit=1", nil), 200)
	rest := want[contract.Versions](h.call("GET", "/v1/projects/shop/versions?marker="+page.Marker, nil), 200)
	if len(page.Versions) != 1 || len(rest.Versions) != 1 || rest.Versions[0].Number != 1 {
		t.Errorf("pages %+v %+v", page, rest)
	}
}

func TestAProjectIsRenamed(t *testing.T) {
	t.Parallel()
	h := newTestServer(t)
	c := h.create("shop", hello)
	h.create("other", hello)
	put := func(body any) reply { return h.call("PUT", "/v1/projects/"+c.ID, body) }
	put(contract.ProjectChange{Name: "other"}).wantError(409, mariposa.Conflict)
	put(contract.ProjectChange{Name: "Not A Name"}).wantError(400, mariposa.InvalidArgument)
	put(contract.ProjectChange{}).wantError(400, mariposa.InvalidArgument)
	put(map[string]any{"name": "x", "metadata": 1}).wantError(409, mariposa.Conflict, "previous")
	if got := want[contract.Changed](put(contract.ProjectChange{Name: "store"}), 200); got.Name != "store" || got.Task != nil {
		t.Errorf("renamed: %+v", got)
	}
	h.call("GET", "/v1/projects/shop", nil).wantError(404, mariposa.ResourceNotFound)
	want[contract.Project](h.call("GET", "/v1/projects/store", nil), 200)
	h.create("shop", hello)
	h.plan(c.ID, settled(c))
	both := want[contract.Changed](h.call("PUT", "/v1/projects/store?previous=1", map[string]any{"name": "again", "manifest": hello + "# b\n"}), 200)
	if both.Name != "again" || both.Number != 2 || both.Task == nil {
		t.Errorf("both: %+v", both)
	}
	h.call("PUT", "/v1/projects/again", map[string]any{"manifest": hello}).wantError(409, mariposa.Conflict, "previous")
}

func TestADeletedProjectFreesItsNameAtOnce(t *testing.T) {
	t.Parallel()
	h := newTestServer(t)
	c := h.create("shop", hello)
	h.plan(c.ID, settled(c))
	h.node("n1", mariposa.NodeSpec{Name: "n1"}, mariposa.NodeStatus{State: mariposa.NodeRunning})
	h.instance("i1", c.ID, "web", "n1", mariposa.StateRunning, nil)
	h.call("DELETE", "/v1/projects/shop", nil).wantError(409, mariposa.Conflict, "force", "web.1-i1")
	want[contract.Changed](h.call("PUT", "/v1/projects/shop/state", contract.Action{Action: "stop"}), 202)

	gone := want[contract.Changed](h.call("DELETE", "/v1/projects/shop?force=true", nil), 202)
	task := want[contract.Task](h.call("GET", "/v1/queue/"+*gone.Task, nil), 200)
	if task.Task != mariposa.TaskStop || task.Component != "delete" {
		t.Errorf("task %+v", task)
	}
	h.call("GET", "/v1/projects/shop", nil).wantError(404, mariposa.ResourceNotFound)
	p := want[contract.Project](h.call("GET", "/v1/projects/"+c.ID, nil), 200)
	if p.Goal != mariposa.GoalDeleted || p.Status != mariposa.StatusConverging {
		t.Errorf("project %+v", p)
	}
	if again := h.create("shop", hello); again.ID == c.ID {
		t.Error("the same project again")
	}
	for _, r := range []reply{
		h.call("DELETE", "/v1/projects/"+c.ID, nil),
		h.call("PUT", "/v1/projects/"+c.ID+"/manifest?force=true", hello+"#\n"),
		h.call("PUT", "/v1/projects/"+c.ID+"/state", contract.Action{Action: "start"}),
	} {
		r.wantError(409, mariposa.Conflict, "being deleted")
	}
}
