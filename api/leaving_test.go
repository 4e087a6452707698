package api_test

import (
	"maps"
	"slices"
	"testing"

	"mariposa"
	"mariposa/contract"
	"mariposa/store"
)

// newMembers is an organization with an owner and a member, each with a token.
func newMembers(t *testing.T) (h, owner, member *testServer) {
	t.Helper()
	h = newTestServer(t)
	for _, name := range []string{"ann", "bob"} {
		want[contract.Changed](h.call("POST", "/v1/users", contract.NewUser{Name: name}), 201)
	}
	owner, member = h.as(h.mint(contract.NewToken{Name: "t", User: "ann"})), h.as(h.mint(contract.NewToken{Name: "t", User: "bob"}))
	for _, org := range []string{"acme", "other"} {
		want[contract.Changed](owner.call("POST", "/v1/organizations", contract.NewOrganization{Name: org}), 201)
	}
	want[contract.Changed](owner.call("PUT", "/v1/organizations/acme/members/bob", contract.MemberChange{Role: "member"}), 200)
	return h, owner, member
}

// bearing creates a token as the caller and returns a client that uses it.
func (h *testServer) bearing(ask contract.NewToken) *testServer {
	h.t.Helper()
	return h.as(want[contract.Token](h.call("POST", "/v1/tokens", ask), 201).Secret)
}

func TestWhoLeavesAnOrganizationKeepsNothingOfIt(t *testing.T) {
	t.Parallel()
	_, owner, member := newMembers(t)
	made := want[contract.Changed](member.call("POST", "/v1/projects?name=bobs&organization=acme", hello, "Content-Type", "application/yaml"), 201)
	want[contract.Project](member.call("GET", "/v1/projects/"+made.ID, nil), 200)
	want[contract.Changed](owner.call("DELETE", "/v1/organizations/acme/members/bob", nil), 200)
	member.call("GET", "/v1/projects/"+made.ID, nil).wantError(404, mariposa.ResourceNotFound)
	member.call("GET", "/v1/projects/"+made.ID+"/metadata?reveal=true", nil).wantError(404, mariposa.ResourceNotFound)
	want[contract.Project](owner.call("GET", "/v1/projects/"+made.ID, nil), 200)
}

func TestATokenEndsWithTheOneThatMadeIt(t *testing.T) {
	t.Parallel()
	_, owner, _ := newMembers(t)
	robot := owner.bearing(contract.NewToken{Name: "robot", Organization: "acme", Role: mariposa.RoleDeployer})
	child := robot.bearing(contract.NewToken{Name: "child", Organization: "acme", Role: mariposa.RoleViewer})
	grandchild := child.bearing(contract.NewToken{Name: "grandchild", Organization: "acme", Role: mariposa.RoleViewer})
	want[contract.Whoami](grandchild.call("GET", "/v1/user", nil), 200)
	owner.call("DELETE", "/v1/tokens/robot", nil).wantError(409, mariposa.Conflict, "child", "grandchild")
	want[contract.Whoami](grandchild.call("GET", "/v1/user", nil), 200)
	want[contract.Changed](owner.call("DELETE", "/v1/tokens/robot?cascade=true", nil), 200)
	for _, dead := range []*testServer{robot, child, grandchild} {
		dead.call("GET", "/v1/user", nil).wantError(401, mariposa.Unauthorized)
	}
	want[contract.Whoami](owner.call("GET", "/v1/user", nil), 200)
}

func TestATokenOfOneProjectFollowsItsMove(t *testing.T) {
	t.Parallel()
	_, owner, _ := newMembers(t)
	made := want[contract.Changed](owner.call("POST", "/v1/projects?name=shop&organization=acme", hello, "Content-Type", "application/yaml"), 201)
	robot := owner.bearing(contract.NewToken{Name: "robot", Project: made.ID, Role: mariposa.RoleDeployer})
	want[contract.Project](robot.call("GET", "/v1/projects/shop", nil), 200)
	want[contract.Changed](owner.call("POST", "/v1/projects/"+made.ID+"/move", contract.Move{Organization: "other"}), 200)
	want[contract.Project](robot.call("GET", "/v1/projects/shop", nil), 200)
}

func TestCurlsOwnTypeNeverStoresASecretInClear(t *testing.T) {
	t.Parallel()
	h := newTestServer(t)
	h.create("shop", hello)
	const form = "application/x-www-form-urlencoded"
	want[contract.Changed](h.call("PUT", "/v1/projects/shop/metadata/a", []byte(`{"value":"s3cret-word","secret":true}`), "Content-Type", form), 200)
	if k := h.key("a"); !k.Secret || k.Value != "••••" {
		t.Errorf("a document: %+v", k)
	}
	want[contract.Changed](h.call("PUT", "/v1/projects/shop/metadata/b", []byte("blue"), "Content-Type", form), 200)
	if k := h.key("b"); k.Secret || k.Value != "blue" {
		t.Errorf("a text: %+v", k)
	}
	h.call("PUT", "/v1/projects/shop/metadata/b?cas=x", []byte("red"), "Content-Type", form).wantError(400, mariposa.InvalidArgument, "cas")
}

func TestDeniedReadsDoNotHideADeniedChange(t *testing.T) {
	t.Parallel()
	h, owner, member := newMembers(t)
	made := want[contract.Changed](owner.call("POST", "/v1/projects?name=shop&organization=acme", hello, "Content-Type", "application/yaml"), 201)
	for range 250 {
		member.call("GET", "/v1/projects/"+made.ID+"/metadata?reveal=true", nil).wantError(403, mariposa.Forbidden)
	}
	member.call("DELETE", "/v1/projects/"+made.ID, nil).wantError(403, mariposa.Forbidden, "requires the admin role")
	denied := want[contract.Audit](h.call("GET", "/v1/audit?actor=bob&outcome=denied&action=project.delete", nil), 200)
	if len(denied.Records) != 1 {
		t.Errorf("%d records of the denied deletion", len(denied.Records))
	}
}

// A role that is lost during a change no longer applies to the change: every attempt
// checks it again.
func TestARoleLostBetweenTwoAttemptsIsLost(t *testing.T) {
	t.Parallel()
	crossed := &interferingStore{}
	w := newTestTeams(t, withStore(func(s store.Store) store.Store { crossed.Store = s; return crossed }))
	want[contract.Changed](w.asUser("olga").call("PUT", "/v1/organizations/acme/members/mia", contract.MemberChange{Role: "owner"}), 200)
	want[contract.Changed](w.asUser("ulla").call("PUT", "/v1/organizations/umbra/members/olga", contract.MemberChange{Role: "owner"}), 200)

	// demote changes the role of a user just before the next commit that writes the given
	// object, and changes that object too, so that the commit is retried.
	demote := func(kind mariposa.Kind, id, org, user string, to mariposa.OrgRole) (crossing *bool) {
		once := new(bool)
		crossed.interfere(func(u store.Unit) {
			if *once || !slices.ContainsFunc(u.Writes, func(x store.Write) bool { return x.Kind == kind && x.ID == id }) {
				return
			}
			*once = true
			r := w.picture.Orgs.Get(org)
			spec := *r.Spec()
			spec.Members = maps.Clone(spec.Members)
			if spec.Members[user] = to; to == "" {
				delete(spec.Members, user)
			}
			touched := w.picture.Get(kind, id)
			crossed.Store.Commit(t.Context(), store.Unit{Writes: []store.Write{
				{Kind: kind, ID: id, Spec: touched.Spec}, {Kind: mariposa.KindOrg, ID: org, Spec: &spec},
			}})
		})
		return once
	}

	once := demote(mariposa.KindOrg, w.acme, w.acme, w.users["mia"], mariposa.OrgMember)
	w.asUser("mia").call("DELETE", "/v1/organizations/acme/members/max", nil).wantError(403, mariposa.Forbidden)
	if !*once || w.picture.Orgs.Get(w.acme).Spec().Members[w.users["max"]] == "" {
		t.Errorf("crossed: %t; max is %q", *once, w.picture.Orgs.Get(w.acme).Spec().Members[w.users["max"]])
	}

	once = demote(mariposa.KindProject, w.shop.ID, w.umbra, w.users["olga"], "")
	w.asUser("olga").call("POST", "/v1/projects/"+w.shop.ID+"/move", contract.Move{Organization: "umbra"}).wantError(404, mariposa.ResourceNotFound)
	if !*once || w.picture.Projects.Get(w.shop.ID).Spec().Organization != w.acme {
		t.Errorf("crossed: %t; shop is in %s", *once, w.picture.Projects.Get(w.shop.ID).Spec().Organization)
	}
}
