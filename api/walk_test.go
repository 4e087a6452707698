package api_test

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"mariposa"
	"mariposa/api"
	"mariposa/auth"
	"mariposa/contract"
	"mariposa/store"
)

// recordingStore is a store that rejects and counts changes, so that a test of all
// routes always finds the same state. It still accepts audit records and uses of
// tokens.
type recordingStore struct {
	store.Store
	now   atomic.Bool
	asked atomic.Int64
}

func (c *recordingStore) Commit(ctx context.Context, units ...store.Unit) []store.Result {
	if c.now.Load() && slices.ContainsFunc(units, changes) {
		c.asked.Add(1)
		return store.FailAll(units, store.ErrUnavailable)
	}
	return c.Store.Commit(ctx, units...)
}

func changes(u store.Unit) bool {
	return slices.ContainsFunc(u.Writes, func(w store.Write) bool {
		return (w.Kind != mariposa.KindToken || w.Spec != nil || w.Delete) && w.Kind != mariposa.KindNode
	})
}

// visitor is a kind of caller, and the roles they have.
type visitor struct {
	name, user, token string
	project           mariposa.Role
	organization      mariposa.OrgRole
	site              bool
	bounds            auth.Bounds
}

// role returns the visitor's role in the project shop, within the restrictions of the
// token.
func (v visitor) role(w *testTeams) mariposa.Role {
	role := v.project
	if v.user == "admin" {
		role = mariposa.RoleAdmin
	}
	b := v.bounds
	if (b.Organization != "" && b.Organization != w.acme) || (b.Project != "" && b.Project != w.shop.ID) {
		return mariposa.RoleNone
	}
	if b.Role != "" && b.Role.Rank() < role.Rank() {
		return b.Role
	}
	return role
}

// part returns the visitor's role in the organization acme. A token that is restricted
// to a project has none; one that is restricted to less than admin is never an owner.
func (v visitor) part(w *testTeams) mariposa.OrgRole {
	part := v.organization
	if v.user == "admin" {
		part = mariposa.OrgOwner
	}
	b := v.bounds
	if (b.Organization != "" && b.Organization != w.acme) || b.Project != "" {
		return ""
	}
	if part == mariposa.OrgOwner && b.Role != "" && b.Role != mariposa.RoleAdmin {
		return mariposa.OrgMember
	}
	return part
}

func (v visitor) runs() bool { return v.site && v.bounds.Unbounded() }

// verdict returns the decision on a permission according to the table.
func (v visitor) verdict(w *testTeams, p auth.Permission, on string) auth.Verdict {
	i := slices.IndexFunc(auth.Table, func(r auth.Row) bool { return r.Permission == p })
	if i < 0 {
		w.t.Fatalf("the table does not know %s", p)
	}
	row := auth.Table[i]
	role, part := v.role(w), v.part(w)
	of := func(seen, may bool) auth.Verdict {
		switch {
		case !seen:
			return auth.Hidden
		case !may:
			return auth.Denied
		}
		return auth.Allowed
	}
	switch {
	case row.Installation:
		return of(true, v.runs())
	case p == auth.CreateProject && v.bounds.Project != "": // in any organization: the error says so
		return auth.Denied
	case on == "organization":
		may := part != "" && (row.Organization != mariposa.OrgOwner || part == mariposa.OrgOwner)
		if p == auth.CreateProject && v.bounds.Role == mariposa.RoleViewer {
			may = false
		}
		return of(part != "", may)
	case on != "":
		return of(role.Rank() > 0, role.Rank() >= row.Project.Rank())
	}
	return auth.Allowed
}

// visitors returns all kinds of callers: every user with an unrestricted token, and the
// most privileged users with tokens of every restriction.
func (w *testTeams) visitors() []visitor {
	own := []visitor{
		{name: "a user without any part", user: "sam"},
		{name: "a viewer", user: "vera", project: mariposa.RoleViewer},
		{name: "a deployer", user: "dora", project: mariposa.RoleDeployer},
		{name: "an operator", user: "oleg", project: mariposa.RoleOperator},
		{name: "an admin of the project", user: "ada", project: mariposa.RoleAdmin},
		{name: "a member of the organization", user: "mia", project: mariposa.RoleViewer, organization: mariposa.OrgMember},
		{name: "an owner of the organization", user: "olga", project: mariposa.RoleAdmin, organization: mariposa.OrgOwner},
		{name: "who runs the installation", user: "admin", site: true},
		{name: "an owner of another organization", user: "ulla"},
	}
	for i := range own {
		own[i].token = w.keys[own[i].user]
	}
	bounds := map[string]auth.Bounds{
		"to another organization": {Organization: w.umbra},
		"to another project":      {Organization: w.umbra, Project: w.dark.ID},
		"to the organization":     {Organization: w.acme},
		"to the project":          {Organization: w.acme, Project: w.shop.ID},
		"to viewing the project":  {Organization: w.acme, Project: w.shop.ID, Role: mariposa.RoleViewer},
	}
	for _, role := range mariposa.Roles {
		bounds["to the role "+string(role)] = auth.Bounds{Role: role}
	}
	all := slices.Clone(own)
	for _, v := range own {
		if !slices.Contains([]string{"ada", "mia", "olga", "admin"}, v.user) {
			continue
		}
		for _, said := range slices.Sorted(maps.Keys(bounds)) {
			b := bounds[said]
			bound := v
			bound.name, bound.bounds = v.name+" by a token bound "+said, b
			bound.token = w.forge(mariposa.TokenSpec{User: w.users[v.user], Name: said, Organization: b.Organization, Project: b.Project, Role: b.Role})
			all = append(all, bound)
		}
	}
	return all
}

// request is one way to call a route.
type request struct {
	route      api.Route
	variant    string
	path, body string
	asks       []ask // in this order; the first that is not allowed decides
}

// ask is a permission that a request needs.
type ask struct {
	need  auth.Permission
	on    string
	thing string // by which reference; another takes its place to see what is said of what never was
	judge func(visitor) auth.Verdict
}

func (q request) String() string { return strings.TrimSpace(q.route.String() + " " + q.variant) }

// sample fills in the path of a route with existing objects.
func (w *testTeams) sample(rt api.Route) request {
	path := rt.Path
	user := cmp.Or(map[string]string{"remove-project-user": "vera", "remove-member": "max"}[rt.ID], "sam")
	for name, value := range map[string]string{
		"project": w.shop.ID, "task": *w.shop.Task, "instance": w.single, "organization": w.acme, "service": "web", "key": "mode", "version": "1",
		"tag": "latest", "node": "n1", "user": w.users[user], "token": w.token, "package": "small", "container": "db", "volume": w.volume, "network": w.network,
		"registry": "registry.example.com", "snapshot": "before",
	} {
		path = strings.ReplaceAll(path, "{"+name+"}", value)
	}
	if rt.ID == "diff-versions" {
		path += "?from=1&to=2"
	}
	return request{route: rt, path: path, body: w.bodies()[rt.ID]}
}

// bodies are the request bodies by route id; other routes have none.
func (w *testTeams) bodies() map[string]string {
	return map[string]string{
		"create-project":      `{"name":"third","organization":"` + w.acme + `","manifest":{"services":{"web":{"compute_type":"dummy"}}}}`,
		"update-project":      `{"metadata":{"mode":"wild"}}`,
		"put-manifest":        `{"services":{"web":{"compute_type":"dummy"}}}`,
		"put-metadata":        `{"mode":"wild"}`,
		"put-metadata-key":    `{"value":"wild"}`,
		"create-tag":          `{"tag":"good","version":"1"}`,
		"act-on-project":      `{"action":"stop"}`,
		"act-on-service":      `{"action":"scale","scale":7}`,
		"copy-project":        `{"name":"twin","organization":"` + w.acme + `"}`,
		"move-project":        `{"organization":"` + w.acme + `"}`,
		"put-project-user":    `{"role":"viewer"}`,
		"attach-volume":       `{"project":"` + w.shop.ID + `"}`,
		"adopt-container":     `{"project":"` + w.shop.ID + `"}`,
		"create-instance":     `{"project":"` + w.shop.ID + `","compute_type":"dummy"}`,
		"act-on-instance":     `{"action":"restart"}`,
		"act-on-node":         `{"action":"lose"}`,
		"create-user":         `{"name":"newcomer"}`,
		"update-user":         `{"disabled":true}`,
		"create-organization": `{"name":"third"}`,
		"update-organization": `{"base_role":"admin"}`,
		"put-member":          `{"role":"owner"}`,
		"put-quota":           `{"instances":1}`,
		"put-policy":          `{"host_ports":true}`,
		"put-registry":        `{"username":"builder","password":"let-me-in"}`,
		"create-snapshot":     `{"name":"before"}`,
		"put-settings":        `{"organizations_per_user":100}`,
		"create-token":        `{"name":"another"}`,
		"act-on-token":        `{"action":"adopt"}`,
		"put-password":        `{"password":"correct horse battery"}`,
		"put-package":         `{"name":"small","memory":1048576,"cpu":1}`,
	}
}

// requests returns every route in every variant, with the permissions that each needs.
func (w *testTeams) requests() []request {
	things := map[string]string{"project": w.shop.ID, "task": *w.shop.Task, "instance": w.single, "organization": w.acme, "volume": w.volume, "network": w.network}
	var all []request
	for _, rt := range api.UserRoutes() {
		if rt.Permission == "" {
			w.t.Errorf("%s has no permission: set it in routes.go", rt)
			continue
		}
		plain := w.sample(rt)
		plain.asks = []ask{{need: rt.Permission, on: rt.On, thing: things[rt.On]}}
		plain.asks = append(plain.asks, w.inside(rt.ID)...)
		all = append(all, plain)
		for _, variant := range variants(rt) {
			q := w.sample(rt)
			q.variant = variant
			q.asks = slices.Clone(plain.asks)
			if need, other := rt.Variants[w.vary(&q)]; other {
				q.asks[0].need = need
			}
			all = append(all, q)
		}
		for said := range rt.Variants {
			if !slices.ContainsFunc(variants(rt), func(v string) bool { return strings.HasSuffix(v, said) }) {
				w.t.Errorf("variant %s of %s is not tested", said, rt)
			}
		}
	}
	return all
}

// variants returns the other ways to call a route.
func variants(rt api.Route) []string {
	switch rt.ID {
	case "update-project":
		return []string{"rename"}
	case "plan-project":
		return []string{"with manifest"}
	case "list-audit":
		return []string{"project", "organization"}
	case "act-on-project", "act-on-service":
		var all []string
		for _, action := range []string{"start", "stop", "freeze", "thaw", "reprovision", "revert", "pause", "resume", "converge", "accept", "scale"} {
			all = append(all, "action "+action)
		}
		return all
	case "get-metadata", "get-metadata-key", "get-logs":
		return []string{"reveal 1", "reveal t", "reveal True", "reveal true", "reveal false"}
	case "remove-member":
		return []string{"leave"}
	}
	return nil
}

// vary changes a request into a variant, and returns the word of its permission rule.
func (w *testTeams) vary(q *request) string {
	what, word, _ := strings.Cut(q.variant, " ")
	switch what {
	case "rename":
		q.body = `{"name":"renamed"}`
		return "rename"
	case "with":
		q.body = w.bodies()["put-manifest"]
		return word
	case "action":
		q.body = `{"action":"` + word + `"}`
		return word
	case "reveal":
		q.path += "?reveal=" + word
		if word != "false" {
			return "true"
		}
	case "project":
		q.path += "?project=" + w.shop.ID
		q.asks = append(q.asks[:1], ask{need: auth.AuditProject, on: "project", thing: w.shop.ID})
	case "organization":
		q.path += "?organization=" + w.acme
		q.asks = append(q.asks[:1], ask{need: auth.AuditOrganization, on: "organization", thing: w.acme})
	case "leave": // one may, unless the token is bound to less
		q.path = "/v1/organizations/" + w.acme + "/members/SELF"
		q.asks[1] = ask{judge: func(v visitor) auth.Verdict {
			switch {
			case v.part(w) == "", v.user == "admin": // who is no member
				return auth.Hidden
			case v.bounds.Role != "" && v.bounds.Role != mariposa.RoleAdmin:
				return auth.Denied
			}
			return auth.Allowed
		}}
	}
	return ""
}

// inside returns the permissions that a route checks after it has read the body.
func (w *testTeams) inside(id string) []ask {
	mine := func(allowed func(visitor) bool, otherwise auth.Verdict) func(visitor) auth.Verdict {
		return func(v visitor) auth.Verdict {
			if allowed(v) {
				return auth.Allowed
			}
			return otherwise
		}
	}
	switch id {
	case "create-project", "copy-project", "move-project":
		return []ask{{need: auth.CreateProject, on: "organization", thing: w.acme}}
	case "create-instance":
		return []ask{{need: auth.ManageInstances, on: "project", thing: w.shop.ID}}
	case "create-organization", "create-token": // the token would have no bounds
		return []ask{{judge: mine(func(v visitor) bool { return v.bounds.Unbounded() }, auth.Denied)}}
	case "remove-member":
		return []ask{{need: auth.AdministerOrganization, on: "organization", thing: w.acme}}
	case "get-user": // nobody knows sam
		return []ask{{thing: w.users["sam"], judge: mine(func(v visitor) bool { return v.runs() || v.user == "sam" }, auth.Hidden)}}
	case "revoke-token", "get-token": // it is ada's, and without bounds
		return []ask{{thing: w.token, judge: mine(func(v visitor) bool { return v.runs() || (v.user == "ada" && v.bounds.Unbounded()) }, auth.Hidden)}}
	case "list-audit":
		return []ask{{judge: mine(func(v visitor) bool {
			return v.runs() || v.owns(w) // of their personal organization at least
		}, auth.Denied)}}
	}
	return nil
}

// owns reports whether a visitor owns any organization: acme, or with an unrestricted
// token their personal one.
func (v visitor) owns(w *testTeams) bool {
	b := v.bounds
	home := b.Organization == "" && b.Project == "" && (b.Role == "" || b.Role == mariposa.RoleAdmin)
	return home || v.organization != "" && v.part(w) == mariposa.OrgOwner
}

// expect returns the expected result of a request, and the reference that must stay hidden.
func (w *testTeams) expect(v visitor, q request) (auth.Verdict, string) {
	for _, a := range q.asks {
		judge := a.judge
		if judge == nil {
			judge = func(v visitor) auth.Verdict { return v.verdict(w, a.need, a.on) }
		}
		verdict := judge(v)
		if verdict != auth.Allowed {
			return verdict, a.thing
		}
	}
	return auth.Allowed, ""
}

// logIn sets the login to the registry of the samples.
func (w *testTeams) logIn() {
	w.t.Helper()
	want[contract.Registry](w.call("PUT", "/v1/organizations/"+w.acme+"/registries/registry.example.com", contract.RegistryLogin{Username: "builder", Password: "let-me-in"}), 200)
}

func (w *testTeams) send(v visitor, q request) reply {
	path := strings.ReplaceAll(q.path, "SELF", w.users[v.user])
	var body any
	if q.body != "" {
		body = []byte(q.body)
	}
	return w.as(v.token).call(q.route.Method, path, body)
}

// Every route in every variant treats every kind of caller according to the table.
// Hidden objects look exactly like objects that never existed, and a rejected request
// changes nothing.
func TestEveryRouteAnswersEverybodyAsTheTableSays(t *testing.T) {
	long(t)
	t.Parallel()
	c := &recordingStore{}
	w := newTestTeams(t, withStore(func(s store.Store) store.Store { c.Store = s; return c }))
	w.logIn()
	visitors, requests := w.visitors(), w.requests()
	c.now.Store(true)
	for _, q := range requests {
		if r := w.as("").call(q.route.Method, q.path, nil, "Authorization", ""); r.status != http.StatusUnauthorized {
			t.Errorf("%s without a token answered %d %s", q, r.status, r.body)
		}
	}
	walked := map[auth.Verdict]int{}
	for _, v := range visitors {
		for _, q := range requests {
			verdict, thing := w.expect(v, q)
			walked[verdict]++
			before := c.asked.Load()
			r := w.send(v, q)
			if why := w.differs(v, q, r, verdict, thing); why != "" {
				t.Errorf("%s by %s should be %s, but %s", q, v.name, verdict, why)
			}
			if verdict != auth.Allowed && c.asked.Load() != before {
				t.Errorf("%s by %s was %s, and still tried to change something", q, v.name, verdict)
			}
		}
	}
	for _, verdict := range []auth.Verdict{auth.Hidden, auth.Denied, auth.Allowed} {
		if walked[verdict] < 300 {
			t.Errorf("only %d requests were %s", walked[verdict], verdict)
		}
	}
}

// differs returns how a response differs from the expected one.
func (w *testTeams) differs(v visitor, q request, r reply, verdict auth.Verdict, thing string) string {
	said := fmt.Sprintf("answered %d %s", r.status, r.body)
	switch verdict {
	case auth.Allowed:
		if r.status == 401 || r.status == 403 || r.status == 404 {
			return said
		}
	case auth.Denied:
		if r.status != http.StatusForbidden {
			return said
		}
	case auth.Hidden:
		if r.status != http.StatusNotFound {
			return said
		}
		if thing == "" {
			return ""
		}
		ghost := newID()
		other := q
		other.path, other.body = strings.ReplaceAll(q.path, thing, ghost), strings.ReplaceAll(q.body, thing, ghost)
		never := w.send(v, other)
		if never.status != r.status || !bytes.Equal(bytes.ReplaceAll(never.body, []byte(ghost), []byte(thing)), r.body) || !sameHeaders(never.header, r.header) {
			return fmt.Sprintf("%s, and of what never was %d %s", said, never.status, never.body)
		}
	}
	return ""
}

// sameHeaders compares the headers of two responses, except those that always differ.
func sameHeaders(a, b http.Header) bool {
	a, b = a.Clone(), b.Clone()
	for _, h := range []http.Header{a, b} {
		h.Del("X-Request-Id")
		h.Del("Date")
		h.Del(contract.TimeHeader)
		h.Del(contract.RevisionHeader) // something else may have changed meanwhile
	}
	return maps.EqualFunc(a, b, slices.Equal[[]string])
}
