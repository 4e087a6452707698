package api_test

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"mariposa"
	"mariposa/api"
	"mariposa/contract"
)

func (h *testServer) audit(query string) []mariposa.Audit {
	h.t.Helper()
	return want[contract.Audit](h.call("GET", "/v1/audit"+query, nil), 200).Records
}

// Every change is recorded once, with user, source, object, version and task. Requests
// that change nothing are not recorded.
func TestEveryChangeIsNotedOnce(t *testing.T) {
	t.Parallel()
	w := newTestTeams(t)
	const path = "/v1/projects/shop"
	olga := w.asUser("olga")
	for _, c := range []struct {
		by           *testServer
		method, path string
		body         any
		action       string
		also         func(a mariposa.Audit, c contract.Changed) bool
	}{
		{olga, "PUT", path + "/manifest?organization=acme&force=true", teamsManifest + "# more\n", "manifest.put", func(a mariposa.Audit, c contract.Changed) bool {
			return a.Version == c.Version && a.Number == c.Number && a.Task == *c.Task && a.ProjectName == "shop" && a.Project == w.shop.ID && a.Organization == w.acme
		}},
		{olga, "PUT", path + "/metadata/mode?organization=acme", contract.MetadataValue{Value: []byte(`"wild"`)}, "metadata.set", func(a mariposa.Audit, c contract.Changed) bool {
			return a.Version == c.Version && a.Number == c.Number && a.Reason == "metadata key mode"
		}},
		{olga, "POST", path + "/metadata/n/incr?organization=acme", nil, "metadata.incr", nil},
		{olga, "DELETE", path + "/metadata/n?organization=acme", nil, "metadata.delete", nil},
		{olga, "PUT", path + "/metadata?organization=acme", "mode: calm\nkey: x\n", "metadata.put", nil},
		{olga, "POST", path + "/tags?organization=acme", contract.NewTag{Tag: "good", Version: "1"}, "tag.create", func(a mariposa.Audit, _ contract.Changed) bool { return a.Reason == "tag good" && a.Number == 1 }},
		{olga, "DELETE", path + "/tags/good?organization=acme", nil, "tag.delete", nil},
		{olga, "PUT", path + "/users/sam?organization=acme", contract.MemberChange{Role: "viewer"}, "people.put", func(a mariposa.Audit, _ contract.Changed) bool { return a.Reason == "sam becomes viewer" }},
		{olga, "DELETE", path + "/users/sam?organization=acme", nil, "people.remove", nil},
		{olga, "PUT", path + "/state?organization=acme", contract.Action{Action: "freeze"}, "state.put", func(a mariposa.Audit, c contract.Changed) bool { return a.Task == *c.Task && a.Reason != "" }},
		{olga, "POST", path + "/copy?organization=acme", contract.Copy{Name: "twin"}, "project.copy", func(a mariposa.Audit, c contract.Changed) bool { return a.Project == c.ID && a.Object == c.ID }},
		{olga, "PUT", "/v1/projects/twin?organization=acme", contract.ProjectChange{Name: "other"}, "project.update", nil},
		{olga, "DELETE", "/v1/projects/other?organization=acme", nil, "project.delete", nil},
		{olga, "PUT", "/v1/organizations/acme", contract.OrganizationChange{BaseRole: mariposa.RoleNone}, "organization.update", func(a mariposa.Audit, _ contract.Changed) bool { return a.Organization == w.acme && a.Object == w.acme }},
		{olga, "PUT", "/v1/organizations/acme/members/sam", contract.MemberChange{Role: "member"}, "member.put", func(a mariposa.Audit, _ contract.Changed) bool { return a.Reason == "sam becomes member" }},
		{olga, "DELETE", "/v1/organizations/acme/members/sam", nil, "member.remove", nil},
		{olga, "POST", "/v1/tokens", contract.NewToken{Name: "more", Organization: "acme"}, "token.create", func(a mariposa.Audit, _ contract.Changed) bool {
			return a.ObjectName == "more" && a.Organization == w.acme && a.Reason == "for olga"
		}},
		{olga, "DELETE", "/v1/tokens/more", nil, "token.revoke", nil},
		{w.testServer, "POST", "/v1/users", contract.NewUser{Name: "new"}, "user.create", func(a mariposa.Audit, c contract.Changed) bool { return a.Object == c.ID && a.ObjectName == "new" }},
		{w.testServer, "PUT", "/v1/users/new/password", contract.Password{Password: "correct horse battery"}, "password.put", func(a mariposa.Audit, c contract.Changed) bool {
			return a.Object == c.ID && a.ForName == "new" && a.Reason == ""
		}},
		{w.testServer, "DELETE", "/v1/users/new/password", nil, "password.delete", nil},
		{w.testServer, "DELETE", "/v1/users/new", nil, "user.delete", nil},
		{w.testServer, "PUT", "/v1/packages/small", contract.Package{Name: "small", Memory: 2 << 20}, "package.put", nil},
		{w.testServer, "PUT", "/v1/organizations/acme/policy", contract.PolicyChange{}, "policy.put", nil},
		{w.testServer, "PUT", "/v1/settings", map[string]any{"organizations_per_user": 100}, "settings.put", nil},
		{w.testServer, "PUT", "/v1/nodes/n1", contract.NodeAction{Action: "lose"}, "node.act", func(a mariposa.Audit, _ contract.Changed) bool { return a.Object == "n1" && a.Reason == "lose" }},
		{w.testServer, "POST", "/v1/keys/rotate", nil, "key.rotate", nil},
		{w.testServer, "PUT", "/v1/users/olga/projects/shop/metadata/n?organization=acme", contract.MetadataValue{Value: []byte(`"1"`)}, "metadata.set", func(a mariposa.Audit, _ contract.Changed) bool {
			return a.ActorName == "admin" && a.ForName == "olga" && a.For == w.users["olga"]
		}},
		{olga, "PUT", path + "/manifest?organization=acme&force=true", vaultOf("serve", ""), "manifest.put", nil},
		{olga, "DELETE", path + "/versions/latest/approval?organization=acme", nil, "version.withdraw", nil},
		{olga, "PUT", path + "/versions/latest/approval?organization=acme", nil, "version.approve", func(a mariposa.Audit, c contract.Changed) bool {
			return a.Number == c.Number && strings.Contains(a.Reason, "db-password")
		}},
	} {
		before := w.audit("?limit=1")[0].ID
		r := c.by.call(c.method, c.path, c.body)
		if r.status >= 300 {
			t.Errorf("%s %s answered %d %s", c.method, c.path, r.status, r.body)
			continue
		}
		changed := read[contract.Changed](t, r.body)
		noted := slices.DeleteFunc(w.audit("?limit=10"), func(a mariposa.Audit) bool { return a.ID <= before })
		if len(noted) != 1 {
			t.Errorf("%s %s is recorded as %+v", c.method, c.path, noted)
			continue
		}
		a := noted[0]
		who := "olga"
		if c.by == w.testServer {
			who = "admin"
		}
		if a.Action != c.action || a.Outcome != mariposa.AuditDone || a.ActorName != who || a.Actor != w.users[who] || a.From != "127.0.0.1" ||
			a.Request != r.header.Get("X-Request-Id") || a.Token == "" || time.Since(a.Time) > time.Minute || a.Kind == "" {
			t.Errorf("%s %s is recorded as %+v", c.method, c.path, a)
		}
		if c.also != nil && !c.also(a, changed) {
			t.Errorf("%s %s is recorded as %+v, and the response is %+v", c.method, c.path, a, changed)
		}
	}
	before := len(w.audit("?limit=1000"))
	for _, same := range []reply{
		w.asUser("ulla").call("PUT", "/v1/projects/"+w.dark.ID+"/manifest?force=true", teamsManifest),
		olga.call("PUT", "/v1/projects/"+w.shop.ID+"/metadata/n", "1", plainText...),
		olga.call("PUT", "/v1/projects/"+w.shop.ID+"/metadata/n", "1", append(plainText, "Idempotency-Key", "same")...),
		olga.call("GET", "/v1/projects/"+w.shop.ID, nil),
	} {
		if same.status != 200 {
			t.Errorf("answered %d %s", same.status, same.body)
		}
	}
	if after := len(w.audit("?limit=1000")); after != before {
		t.Errorf("what changed nothing made %d records", after-before)
	}
}

// Every route that changes something has an audit action.
func TestChangesHaveNames(t *testing.T) {
	t.Parallel()
	for _, rt := range api.Routes() {
		changes := rt.Method != "GET" && rt.ID != "plan-project" && rt.ID != "plan-new-project" || rt.ID == "exec"
		if changes != (rt.Audit != "") || (changes && strings.Count(rt.Audit, ".") != 1) {
			t.Errorf("%s is called %q", rt, rt.Audit)
		}
	}
}

// Denied requests are recorded, and the owners of the object can read the records.
func TestWhatIsDeniedIsNoted(t *testing.T) {
	t.Parallel()
	w := newTestTeams(t)
	vera := w.asUser("vera")
	vera.call("DELETE", "/v1/projects/"+w.shop.ID, nil).wantError(403, mariposa.Forbidden)
	vera.call("GET", "/v1/projects/"+w.shop.ID+"/metadata?reveal=true", nil).wantError(403, mariposa.Forbidden)
	vera.call("POST", "/v1/instances", map[string]string{"project": w.shop.ID, "compute_type": "dummy"}).wantError(403, mariposa.Forbidden)
	w.asUser("mia").call("PUT", "/v1/organizations/acme", contract.OrganizationChange{Name: "mine"}).wantError(403, mariposa.Forbidden)
	w.asUser("sam").call("GET", "/v1/projects/"+w.shop.ID, nil).wantError(404, mariposa.ResourceNotFound)
	w.asUser("sam").call("GET", "/v1/nodes", nil).wantError(403, mariposa.Forbidden)
	var told []string
	for _, a := range w.asUser("olga").audit("?outcome=denied&organization=acme") {
		told = append(told, a.ActorName+" "+a.Action+" "+a.Object)
		if a.Reason == "" || a.From == "" || a.Request == "" || a.Organization != w.acme {
			t.Errorf("recorded as %+v", a)
		}
	}
	wanted := []string{
		"mia organization.update PUT /v1/organizations/acme", "vera instance.create POST /v1/instances",
		"vera secret.read GET /v1/projects/" + w.shop.ID + "/metadata", "vera project.delete DELETE /v1/projects/" + w.shop.ID,
	}
	if !slices.Equal(told, wanted) {
		t.Errorf("its owner reads of %q", told)
	}
	all := map[string]bool{}
	for _, a := range w.audit("?outcome=denied") {
		all[a.ActorName+" "+a.Object] = true
	}
	if !all["sam GET /v1/projects/"+w.shop.ID] || !all["sam GET /v1/nodes"] || len(all) != 6 {
		t.Errorf("who runs the installation reads of %v", slices.Sorted(maps.Keys(all)))
	}
}

// Owners can read the audit log with filters, in pages, and as lines of JSON with the
// same records.
func TestTheAuditIsReadByThoseWhoseItIs(t *testing.T) {
	t.Parallel()
	w := newTestTeams(t)
	for i := range 30 {
		w.call("PUT", fmt.Sprintf("/v1/projects/%s/metadata/k%d", w.shop.ID, i%3), fmt.Sprint(i), plainText...)
	}
	w.asUser("vera").call("GET", "/v1/audit?project="+w.shop.ID, nil).wantError(403, mariposa.Forbidden)
	w.asUser("mia").call("GET", "/v1/audit?organization=acme", nil).wantError(403, mariposa.Forbidden)
	w.asUser("ulla").call("GET", "/v1/audit?organization=acme", nil).wantError(404, mariposa.ResourceNotFound)
	for _, a := range w.asUser("ulla").audit("?limit=1000") {
		if a.Organization != w.umbra && a.Organization != w.picture.UserNamed("ulla").Spec().Organization {
			t.Errorf("ulla reads %+v", a)
		}
	}
	if got := len(w.asUser("ada").audit("?project=" + w.shop.ID + "&limit=1000")); got != 30+1+4+2+1 { // vera was denied it
		t.Errorf("of the project there are %d records", got)
	}
	for query, n := range map[string]int{
		"?organization=acme&action=metadata.set":              32,
		"?organization=acme&action=metadata.":                 32,
		"?organization=acme&action=project.create":            1,
		"?organization=acme&actor=olga&action=people.":        4,
		"?organization=acme&actor=nobody":                     0,
		"?organization=acme&outcome=failed":                   0,
		"?organization=acme&since=2999-01-01T00:00:00Z":       0,
		"?organization=acme&until=2001-01-01T00:00:00Z":       0,
		"?organization=acme&action=metadata.set&limit=5":      5,
		"?project=" + w.shop.ID + "&action=metadata.set":      32,
		"?project=shop&organization=acme&action=metadata.set": 32,
	} {
		if got := len(w.asUser("olga").audit(query)); got != n {
			t.Errorf("%s lists %d records, not %d", query, got, n)
		}
	}
	for _, bad := range []string{"?marker=x", "?marker=-1", "?limit=0", "?limit=1001", "?outcome=perhaps", "?since=yesterday"} {
		w.call("GET", "/v1/audit"+bad, nil).wantError(400, mariposa.InvalidArgument)
	}
	w.samePages("/v1/audit?organization=acme")
	w.samePages("/v1/audit?action=metadata.")
	w.samePages("/v1/audit")
}

// samePages compares the pages of a list with its export.
func (w *testTeams) samePages(path string) {
	w.t.Helper()
	sep := "?"
	if strings.Contains(path, "?") {
		sep = "&"
	}
	var paged, exported []mariposa.Audit
	export := w.call("GET", path, nil, "Accept", "application/x-ndjson")
	lines := bufio.NewScanner(bytes.NewReader(export.body))
	for lines.Scan() {
		exported = append(exported, read[mariposa.Audit](w.t, lines.Bytes()))
	}
	for at := ""; ; {
		page := want[contract.Audit](w.call("GET", path+sep+strings.Join([]string{"limit=7", "marker=" + at}[:1+min(1, len(at))], "&"), nil), 200)
		paged = append(paged, page.Records...)
		if at = page.Marker; at == "" {
			break
		}
	}
	if len(paged) < 20 || !reflect.DeepEqual(paged, exported) || export.header.Get("Content-Type") != "application/x-ndjson" || !json.Valid(bytes.SplitN(export.body, []byte("\n"), 2)[0]) {
		w.t.Errorf("%s: %d records in pages, %d as lines", path, len(paged), len(exported))
	}
}

// Automatic repairs are recorded.
func TestRepairsAreNoted(t *testing.T) {
	t.Parallel()
	h := newTestServer(t, withPlanner)
	h.join("n1")
	c := h.create("shop", "services: {web: {compute_type: dummy, update: {min_healthy: 0}}}\n")
	var first string
	h.until("it to run", func() bool {
		all := want[contract.Instances](h.call("GET", "/v1/instances?state=running", nil), 200).Instances
		if len(all) == 1 {
			first = all[0].ID
		}
		return len(all) == 1 && h.service("web").Status == mariposa.StatusConverged
	})
	want[contract.Changed](h.call("PUT", "/v1/instances/"+first, contract.InstanceAction{Action: "crash"}), 202)
	h.until("the repair", func() bool { return len(h.audit("?action=instance.repair")) > 0 })
	a := h.audit("?action=instance.repair&project=shop")
	if len(a) == 0 || a[0].ActorName != "mariposa" || a[0].Project != c.ID || a[0].ProjectName != "shop" || a[0].Task == "" || a[0].Reason == "" || a[0].Version != c.Version {
		t.Errorf("recorded as %+v", a)
	}
	if crash := h.audit("?action=instance.act&project=shop"); len(crash) != 1 || crash[0].Object != first || crash[0].Reason != "crash" || crash[0].Organization == "" {
		t.Errorf("the crash is recorded as %+v", crash)
	}
}
