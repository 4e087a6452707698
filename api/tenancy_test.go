package api_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"

	"mariposa"
	"mariposa/api"
	"mariposa/contract"
	"mariposa/store"
)

// private are the ids and names of objects of acme, which nobody outside acme may see.
func (w *testTeams) private() []string {
	words := []string{w.acme, w.shop.ID, *w.shop.Task, w.instance, w.single, w.token, "acme", "probe", "sesame-" + w.shop.ID, "host-n1"}
	for _, name := range []string{"olga", "mia", "max", "vera", "dora", "oleg", "ada"} {
		words = append(words, w.users[name], `"`+name+`"`)
	}
	for _, id := range w.picture.Projects.Get(w.shop.ID).Spec().Services {
		words = append(words, id)
	}
	return words
}

// params are the query parameters of every route that lists something.
func (w *testTeams) params() map[string][]string {
	var doc struct {
		Paths map[string]map[string]struct{ Parameters []struct{ Name, In string } }
	}
	if err := json.Unmarshal(w.call("GET", "/openapi.json", nil).body, &doc); err != nil {
		w.t.Fatal(err)
	}
	lists := map[string][]string{}
	for _, rt := range api.UserRoutes() {
		if rt.Method != "GET" || strings.Contains(rt.Path, "{") {
			continue
		}
		lists[rt.Path] = nil
		for _, p := range doc.Paths[rt.Path]["get"].Parameters {
			if p.In == "query" {
				lists[rt.Path] = append(lists[rt.Path], p.Name)
			}
		}
	}
	return lists
}

// For a stranger, every object of acme in any parameter of any list looks as if it did
// not exist, and no list shows anything of acme.
func TestNoListTellsOfOthers(t *testing.T) {
	t.Parallel()
	w := newTestTeams(t)
	service := w.picture.Projects.Get(w.shop.ID).Spec().Services["web"]
	names := map[string][]string{
		"organization": {w.acme, "acme"}, "project": {w.shop.ID, "shop"}, "service": {service}, "node": {"n1", "host-n1"}, "user": {w.users["olga"], "olga"},
		"actor": {w.users["olga"], "olga"}, "marker": {w.instance, *w.shop.Task}, "name": {"shop"}, "version": {w.shop.Version},
	}
	strangers := map[string]*testServer{
		"sam": w.asUser("sam"),
		"olga by a token bound to another organization": w.as(w.forge(mariposa.TokenSpec{User: w.users["olga"], Organization: w.umbra})),
		"admin by a token bound to another project":     w.as(w.forge(mariposa.TokenSpec{User: w.users["admin"], Organization: w.umbra, Project: newID()})),
	}
	private := w.private()
	lists := w.params()
	if len(lists) < 14 {
		t.Fatalf("only %d lists", len(lists))
	}
	for who, h := range strangers {
		// Some of these are users of theirs, or say so themselves.
		own := func(word string) bool {
			return who != "sam" && (strings.Contains(word, "olga") || word == w.users["olga"])
		}
		for path, params := range lists {
			if r := h.call("GET", path, nil); r.status != 200 && r.status != 403 {
				t.Errorf("%s to %s: %d %s", path, who, r.status, r.body)
			} else if i := slices.IndexFunc(private, func(word string) bool { return bytes.Contains(r.body, []byte(word)) && !own(word) }); i >= 0 {
				t.Errorf("%s reveals to %s %s: %s", path, who, private[i], r.body)
			}
			for _, param := range params {
				for _, ref := range names[param] {
					if own(ref) {
						continue
					}
					ghost := strings.Repeat("g", len(ref))
					if len(ref) == 36 {
						ghost = newID()
					} else if len(ref) == 40 {
						ghost = strings.Repeat("0", 40)
					}
					is, never := h.call("GET", path+"?"+param+"="+ref, nil), h.call("GET", path+"?"+param+"="+ghost, nil)
					if is.status != never.status || !bytes.Equal(is.body, bytes.ReplaceAll(never.body, []byte(ghost), []byte(ref))) {
						t.Errorf("%s?%s=%s answers %s %d %s, but for an object that never existed %d %s", path, param, ref, who, is.status, is.body, never.status, never.body)
					}
				}
			}
		}
	}
}

// The same for references in paths, bodies and prefixes.
func TestNoReferenceTellsOfOthers(t *testing.T) {
	t.Parallel()
	w := newTestTeams(t)
	own := want[contract.Changed](w.asUser("sam").call("POST", "/v1/projects?name=own", hello), 201)
	sam := w.asUser("sam")
	for _, c := range []struct{ method, path, body, ref string }{
		{"GET", "/v1/projects/shop?organization=acme", "", "shop"},
		{"GET", "/v1/projects/shop?organization=acme", "", "acme"},
		{"GET", "/v1/projects/shop?organization=" + w.acme, "", w.acme},
		{"GET", "/v1/projects/shop", "", "shop"},
		{"GET", "/v1/projects/own?organization=acme", "", "acme"},
		{"GET", "/v1/projects/own/versions/" + w.shop.Version, "", w.shop.Version},
		{"GET", "/v1/projects/own/diff?from=1&to=" + w.shop.Version, "", w.shop.Version},
		{"GET", "/v1/projects/own/services/" + w.picture.Projects.Get(w.shop.ID).Spec().Services["web"], "", ""},
		{"GET", "/v1/instances/probe", "", "probe"},
		{"GET", "/v1/instances/" + w.instance[:8], "", ""},
		{"GET", "/v1/instances/" + w.instance + "/logs?follow=true", "", w.instance},
		{"GET", "/v1/users/olga", "", "olga"},
		{"GET", "/v1/users/olga/projects", "", "olga"},
		{"GET", "/v1/users/olga/user", "", "olga"},
		{"GET", "/v1/users/" + w.users["olga"] + "/tokens", "", w.users["olga"]},
		{"POST", "/v1/users/olga/tokens", `{"name":"x"}`, "olga"},
		{"DELETE", "/v1/users/olga/projects/shop", "", "olga"},
		{"GET", "/v1/organizations/acme", "", "acme"},
		{"GET", "/v1/organizations/acme/members", "", "acme"},
		{"GET", "/v1/organizations/" + w.acme + "/quota", "", w.acme},
		{"GET", "/v1/events?project=shop&organization=acme", "", "acme"},
		{"POST", "/v1/projects", `{"name":"x","organization":"acme","manifest":{"services":{}}}`, "acme"},
		{"POST", "/v1/projects/own/copy", `{"name":"x","organization":"acme"}`, "acme"},
		{"POST", "/v1/projects/own/move", `{"organization":"acme"}`, "acme"},
		{"POST", "/v1/projects/own/move", `{"organization":"` + w.acme + `"}`, w.acme},
		{"POST", "/v1/tokens", `{"name":"x","organization":"acme"}`, "acme"},
		{"POST", "/v1/tokens", `{"name":"x","project":"` + w.shop.ID + `"}`, w.shop.ID},
		{"POST", "/v1/tokens", `{"name":"x","user":"olga"}`, "olga"},
		{"DELETE", "/v1/tokens/" + w.token, "", w.token},
		{"POST", "/v1/instances", `{"project":"shop","organization":"acme","compute_type":"dummy"}`, "shop"},
		{"POST", "/v1/instances", `{"project":"` + w.shop.ID + `","compute_type":"dummy"}`, w.shop.ID},
	} {
		ref := c.ref
		if ref == "" {
			ref = c.path[strings.LastIndexByte(c.path, '/')+1:]
		}
		ghost := "ghost"
		switch len(ref) {
		case 36:
			ghost = newID()
		case 40:
			ghost = strings.Repeat("0", 40)
		case 8:
			ghost = "00000000"
		}
		send := func(ref string) reply {
			var body any
			if c.body != "" {
				body = []byte(strings.Replace(c.body, c.ref, ref, 1))
			}
			path := c.path
			if c.body == "" || c.method == "POST" && strings.HasPrefix(path, "/v1/users/") {
				path = strings.Replace(path, firstNonEmpty(c.ref, path[strings.LastIndexByte(path, '/')+1:]), ref, 1)
			}
			return sam.call(c.method, path, body)
		}
		is, never := send(ref), send(ghost)
		if is.status != http.StatusNotFound || never.status != is.status || !bytes.Equal(bytes.ReplaceAll(is.body, []byte(ref), nil), bytes.ReplaceAll(never.body, []byte(ghost), nil)) {
			t.Errorf("%s %s %s answers %d %s, but for an object that never existed %d %s", c.method, c.path, c.body, is.status, is.body, never.status, never.body)
		}
	}
	if p := want[contract.Project](sam.call("GET", "/v1/projects/own", nil), 200); p.ID != own.ID {
		t.Errorf("sam's own project is %+v", p)
	}
}

func firstNonEmpty(a, b string) string {
	if a != "" {
		return a
	}
	return b
}

// A prefix with a user that the caller can act for works, is recorded in the audit log,
// and never authenticates an agent.
func TestActingForAUserIsTheirRightAndIsNoted(t *testing.T) {
	t.Parallel()
	w := newTestTeams(t)
	if all := want[contract.Projects](w.call("GET", "/v1/users/ulla/projects", nil), 200).Projects; len(all) != 1 || all[0].Name != "dark" {
		t.Errorf("for ulla, the projects are %+v", all)
	}
	who := want[contract.Whoami](w.call("GET", "/v1/users/ul%6Ca/user", nil), 200)
	if who.Name != "admin" || who.For != "ulla" {
		t.Errorf("acting for ulla is %+v", who)
	}
	want[contract.Changed](w.call("POST", "/v1/users/sam/projects?name=gift", hello), 201)
	if p := want[contract.Project](w.asUser("sam").call("GET", "/v1/projects/gift", nil), 200); p.Author != "sam (by admin)" || p.OrganizationName != "sam" {
		t.Errorf("the gift is %+v", p)
	}
	a := want[contract.Audit](w.asUser("sam").call("GET", "/v1/audit?action=project.create", nil), 200).Records
	if len(a) != 1 || a[0].ActorName != "admin" || a[0].ForName != "sam" || a[0].For != w.users["sam"] {
		t.Errorf("the audit records are %+v", a)
	}
	w.asUser("sam").call("GET", "/v1/users/ulla/projects", nil).wantError(404, mariposa.ResourceNotFound)
	denied := want[contract.Audit](w.call("GET", "/v1/audit?action=user.act-for&outcome=denied", nil), 200).Records
	if len(denied) != 1 || denied[0].ActorName != "sam" || denied[0].Object != "GET /v1/users/ulla/projects" {
		t.Errorf("the attempt is recorded as %+v", denied)
	}
	if all := want[contract.Projects](w.asUser("sam").call("GET", "/v1/users/sam/projects", nil), 200).Projects; len(all) != 1 {
		t.Errorf("for oneself, the projects are %+v", all)
	}
	bounded := w.as(w.forge(mariposa.TokenSpec{User: mariposa.FirstUser, Role: mariposa.RoleAdmin}))
	bounded.call("GET", "/v1/users/sam/projects", nil).wantError(404, mariposa.ResourceNotFound)
	for _, path := range []string{"/v1/users/sam/agent", "/v1/users/sam/%61gent", "/v1/users/" + w.users["sam"] + "/agent"} {
		upgrade := []string{"Connection", "Upgrade", "Upgrade", "websocket", "Sec-Websocket-Version", "13", "Sec-Websocket-Key", "dGhlIHNhbXBsZSBub25jZQ=="}
		w.asUser("sam").call("GET", path, nil, upgrade...).wantError(404, mariposa.ResourceNotFound)
		w.call("GET", strings.Replace(path, "sam", "admin", 1), nil, upgrade...).wantError(404, mariposa.ResourceNotFound)
	}
}

// Users are visible to users who share an organization or a project with them.
func TestPeopleAreKnownToThoseTheyWorkWith(t *testing.T) {
	t.Parallel()
	w := newTestTeams(t)
	for who, known := range map[string]string{
		"sam":   "sam",
		"ulla":  "ulla",
		"olga":  "ada dora max mia oleg olga vera",
		"mia":   "ada dora max mia oleg olga vera",
		"vera":  "ada dora oleg olga vera", // olga made the project and has a role in it
		"admin": "ada admin dora max mia oleg olga sam ulla vera",
	} {
		var names []string
		for _, u := range want[contract.Users](w.asUser(who).call("GET", "/v1/users", nil), 200).Users {
			names = append(names, u.Name)
		}
		if got := strings.Join(names, " "); got != known {
			t.Errorf("%s knows %s", who, got)
		}
		for name := range w.users {
			wanted := 404
			if slices.Contains(strings.Fields(known), name) {
				wanted = 200
			}
			if r := w.asUser(who).call("GET", "/v1/users/"+name, nil); r.status != wanted {
				t.Errorf("%s asks for %s: %d", who, name, r.status)
			}
		}
	}
	bounded := w.as(w.forge(mariposa.TokenSpec{User: w.users["olga"], Organization: w.umbra}))
	if all := want[contract.Users](bounded.call("GET", "/v1/users", nil), 200).Users; len(all) != 1 || all[0].Name != "olga" {
		t.Errorf("by a token of elsewhere, olga knows %+v", all)
	}
}

// Visibility ends with the role, in lists and by id.
func TestWhoLosesARoleSeesNothingMore(t *testing.T) {
	t.Parallel()
	w := newTestTeams(t)
	vera, mia := w.asUser("vera"), w.asUser("mia")
	want[contract.Project](vera.call("GET", "/v1/projects/"+w.shop.ID, nil), 200)
	bound := w.mint(contract.NewToken{Name: "bound", User: "vera", Project: w.shop.ID})
	want[contract.Changed](w.asUser("ada").call("DELETE", "/v1/projects/"+w.shop.ID+"/users/vera", nil), 200)
	want[contract.Changed](w.asUser("olga").call("DELETE", "/v1/organizations/acme/members/mia", nil), 200)
	want[contract.Changed](w.asUser("ada").call("PUT", "/v1/projects/"+w.shop.ID, contract.ProjectChange{Name: "renamed"}), 200)
	for name, h := range map[string]*testServer{"vera": vera, "mia": mia, "vera by a bound token": w.as(bound)} {
		h.call("GET", "/v1/projects/"+w.shop.ID, nil).wantError(404, mariposa.ResourceNotFound)
		if all := want[contract.Projects](h.call("GET", "/v1/projects", nil), 200).Projects; len(all) != 0 {
			t.Errorf("%s still lists %+v", name, all)
		}
		if all := want[contract.Events](h.call("GET", "/v1/events?since=0", nil), 200).Events; len(all) != 0 {
			t.Errorf("%s still reads of %+v", name, all)
		}
		r := h.call("GET", "/v1/tokens", nil)
		if want[contract.Tokens](r, 200); contains(string(r.body), "renamed") || contains(string(r.body), "acme") {
			t.Errorf("the tokens of %s reveal names: %s", name, r.body)
		}
	}
}

// The error for a taken name does not say who has it.
func TestANameThatIsTakenDoesNotTellByWhom(t *testing.T) {
	t.Parallel()
	w := newTestTeams(t)
	want[contract.Changed](w.asUser("olga").call("PUT", "/v1/organizations/acme", contract.OrganizationChange{BaseRole: mariposa.RoleNone}), 200)
	mine := want[contract.Changed](w.asUser("mia").call("POST", "/v1/projects?name=mine&organization=acme", hello), 201)
	for _, r := range []reply{
		w.asUser("mia").call("POST", "/v1/projects?name=shop&organization=acme", hello),
		w.asUser("mia").call("PUT", "/v1/projects/"+mine.ID, contract.ProjectChange{Name: "shop"}),
		w.asUser("mia").call("POST", "/v1/projects/"+mine.ID+"/copy", contract.Copy{Name: "shop"}),
	} {
		if f := r.wantError(409, mariposa.Conflict, "shop is taken"); contains(f.Message, w.shop.ID) {
			t.Errorf("the error reveals the owner: %s", f.Message)
		}
	}
	private := want[contract.Changed](w.asUser("mia").call("POST", "/v1/projects?name=shop&organization=mia", hello), 201)
	if f := w.asUser("mia").call("POST", "/v1/projects/"+private.ID+"/move", contract.Move{Organization: "acme"}).wantError(409, mariposa.Conflict, "acme"); contains(f.Message, w.shop.ID) {
		t.Errorf("the error reveals the owner: %s", f.Message)
	}
	w.asUser("sam").call("POST", "/v1/organizations", contract.NewOrganization{Name: "acme"}).wantError(409, mariposa.Conflict, "taken")
}

// Organizations are created, renamed, left and deleted by the rules of GitHub.
func TestOrganizationsLiveAndEnd(t *testing.T) {
	t.Parallel()
	w := newTestTeams(t)
	olga, mia := w.asUser("olga"), w.asUser("mia")
	olga.call("DELETE", "/v1/organizations/acme", nil).wantError(409, mariposa.Conflict, "1 project")
	olga.call("DELETE", "/v1/organizations/acme/members/olga", nil).wantError(409, mariposa.Conflict, "no owner")
	olga.call("PUT", "/v1/organizations/acme/members/olga", contract.MemberChange{Role: "member"}).wantError(409, mariposa.Conflict, "no owner")
	olga.call("PUT", "/v1/organizations/acme/members/mia", contract.MemberChange{Role: "king"}).wantError(400, mariposa.InvalidArgument, "owner or member")
	olga.call("PUT", "/v1/organizations/acme/members/ghost", contract.MemberChange{Role: "member"}).wantError(404, mariposa.ResourceNotFound)
	olga.call("PUT", "/v1/organizations/olga/members/mia", contract.MemberChange{Role: "member"}).wantError(409, mariposa.Conflict, "personal organization")
	olga.call("PUT", "/v1/organizations/olga", contract.OrganizationChange{Name: "other"}).wantError(409, mariposa.Conflict, "cannot be renamed")
	olga.call("DELETE", "/v1/organizations/olga", nil).wantError(409, mariposa.Conflict, "deleted with its user")
	want[contract.Changed](mia.call("DELETE", "/v1/organizations/acme/members/mia", nil), 200)
	mia.call("GET", "/v1/organizations/acme", nil).wantError(404, mariposa.ResourceNotFound)
	want[contract.Changed](olga.call("PUT", "/v1/organizations/acme", contract.OrganizationChange{Name: "bolt"}), 200)
	olga.call("GET", "/v1/organizations/acme", nil).wantError(404, mariposa.ResourceNotFound)
	if o := want[contract.Organization](olga.call("GET", "/v1/organizations/bolt", nil), 200); o.ID != w.acme || o.Members != 2 || o.Role != mariposa.OrgOwner {
		t.Errorf("renamed: %+v", o)
	}
	want[contract.Changed](w.asUser("sam").call("POST", "/v1/organizations", contract.NewOrganization{Name: "acme", BaseRole: mariposa.RoleNone}), 201)
	want[contract.Changed](w.asUser("sam").call("DELETE", "/v1/organizations/acme", nil), 200)
	var names []string
	for _, o := range want[contract.Organizations](olga.call("GET", "/v1/organizations", nil), 200).Organizations {
		names = append(names, o.Name)
	}
	if fmt.Sprint(names) != "[bolt olga]" {
		t.Errorf("olga's organizations are %v", names)
	}
	members := map[string]string{}
	for _, m := range want[contract.Members](olga.call("GET", "/v1/projects/"+w.shop.ID+"/users", nil), 200).Members {
		members[m.UserName] = m.Role + " " + m.Via
	}
	wanted := map[string]string{"ada": "admin ", "dora": "deployer ", "oleg": "operator ", "vera": "viewer ", "olga": "admin ", "max": "viewer member of bolt"}
	if !maps.Equal(members, wanted) {
		t.Errorf("who may do what in the project: %v", members)
	}
}

// The task that deleted a project and its events remain visible only to users who could
// see the project when it was deleted.
func TestTheEndOfAProjectIsSeenByItsPeople(t *testing.T) {
	t.Parallel()
	h := newTestServer(t, withPlanner)
	h.join("n1")
	keys := map[string]*testServer{}
	for _, name := range []string{"olga", "vera", "late", "sam"} {
		want[contract.Changed](h.call("POST", "/v1/users", contract.NewUser{Name: name}), 201)
		keys[name] = h.as(h.mint(contract.NewToken{Name: "t", User: name}))
	}
	olga := keys["olga"]
	c := want[contract.Changed](olga.call("POST", "/v1/projects?name=shop", "services: {web: {compute_type: dummy, update: {min_healthy: 0}}}\n"), 201)
	for _, name := range []string{"vera", "late"} {
		want[contract.Changed](olga.call("PUT", "/v1/projects/shop/users/"+name, contract.MemberChange{Role: "viewer"}), 200)
	}
	want[contract.Changed](olga.call("DELETE", "/v1/projects/shop/users/late", nil), 200)
	h.until("it to run", func() bool {
		return len(want[contract.Instances](olga.call("GET", "/v1/instances?state=running", nil), 200).Instances) == 1
	})
	streams := map[string]*live{"olga": olga.stream("", h.picture.Revision()), "vera": keys["vera"].stream("", h.picture.Revision())}
	end := want[contract.Changed](olga.call("DELETE", "/v1/projects/shop?force=true", nil), 202)
	for name, l := range streams {
		before, _ := l.until("project.deleted")
		if len(before) < 4 { // task, instance, project, version at least
			t.Errorf("%s heard only of %+v before the end", name, before)
		}
		l.close()
	}
	for name, h := range keys {
		seen := name == "olga" || name == "vera"
		task, events, list := h.call("GET", "/v1/queue/"+*end.Task, nil), h.call("GET", "/v1/events?limit=1000&project="+c.ID, nil), h.call("GET", "/v1/events?since=0&limit=1000", nil)
		if (task.status == 200) != seen || (events.status == 200) != seen || bytes.Contains(list.body, []byte(c.ID)) != seen {
			t.Errorf("%s is answered %d, %d and %s", name, task.status, events.status, list.body)
		}
		if seen && want[contract.Task](task, 200).State != mariposa.TaskCompleted {
			t.Errorf("%s sees the task as %s", name, task.body)
		}
		h.call("GET", "/v1/projects/"+c.ID, nil).wantError(404, mariposa.ResourceNotFound)
	}
	ghost := newID()
	is, never := keys["sam"].call("GET", "/v1/events?project="+c.ID, nil), keys["sam"].call("GET", "/v1/events?project="+ghost, nil)
	if !bytes.Equal(is.body, bytes.ReplaceAll(never.body, []byte(ghost), []byte(c.ID))) {
		t.Errorf("sam gets %s, but for an object that never existed %s", is.body, never.body)
	}
}

// delayedStore adds a project to an organization just before the organization is deleted.
type delayedStore struct{ store.Store }

func (l delayedStore) Commit(ctx context.Context, units ...store.Unit) []store.Result {
	for _, u := range units {
		for _, w := range u.Writes {
			if w.Kind == mariposa.KindOrg && w.Delete {
				_, account := mariposa.LedgerOf(w.ID)
				l.Store.Commit(ctx, store.Unit{Claims: []store.Claim{{Node: account, Take: mariposa.Resources{Instances: 1}}}})
			}
		}
	}
	return l.Store.Commit(ctx, units...)
}

func TestAnOrganizationThatGetsAProjectIsNotDeleted(t *testing.T) {
	t.Parallel()
	h := newTestServer(t, withStore(func(s store.Store) store.Store { return delayedStore{s} }))
	want[contract.Changed](h.call("POST", "/v1/organizations", contract.NewOrganization{Name: "acme"}), 201)
	want[contract.Changed](h.call("POST", "/v1/users", contract.NewUser{Name: "sam"}), 201)
	h.call("DELETE", "/v1/organizations/acme", nil).wantError(409, mariposa.Conflict, "project was just added")
	h.call("DELETE", "/v1/users/sam", nil).wantError(409, mariposa.Conflict, "project was just added")
	want[contract.Organization](h.call("GET", "/v1/organizations/acme", nil), 200)
	want[contract.User](h.call("GET", "/v1/users/sam", nil), 200)
}
