package api_test

import (
	"fmt"
	"maps"
	"testing"

	"mariposa"
	"mariposa/contract"
	"mariposa/manifest"
)

// A copy has the newest manifest and the requested values. Copying a secret requires
// permission to read it.
func TestACopyHasNoValuesButThoseThatAreNamed(t *testing.T) {
	t.Parallel()
	w := newTestTeams(t)
	const path = "/v1/projects/shop"
	olga, dora := w.asUser("olga"), w.asUser("dora")
	want[contract.Changed](olga.call("PUT", path+"/metadata?organization=acme", "# ours\nmode: wild\nkey: sesame\nmore: 1\n"), 200)
	want[contract.Changed](olga.call("PUT", path+"/manifest?organization=acme&force=true", teamsManifest+"# newest\n"), 200)
	want[contract.Changed](w.call("PUT", "/v1/organizations/acme/members/dora", contract.MemberChange{Role: "member"}), 200)
	copied := func(by *testServer, ask contract.Copy) contract.Metadata {
		t.Helper()
		c := want[contract.Changed](by.call("POST", path+"/copy?organization=acme", ask), 201)
		if got := by.call("GET", "/v1/projects/"+c.ID+"/manifest", nil); string(got.body) != teamsManifest+"# newest\n" {
			t.Errorf("the copy's manifest is %q", got.body)
		}
		if p := want[contract.Project](by.call("GET", "/v1/projects/"+c.ID, nil), 200); p.Number != 1 || p.OrganizationName != firstNonEmpty(ask.Organization, "acme") {
			t.Errorf("the copy is %+v", p)
		}
		return want[contract.Metadata](by.call("GET", "/v1/projects/"+c.ID+"/metadata", nil, "Accept", "application/json"), 200)
	}
	set := func(m contract.Metadata) string {
		values := map[string]string{}
		for _, k := range m.Keys {
			if k.Set {
				values[k.Key] = k.Value
			}
		}
		return fmt.Sprint(values)
	}
	if m := copied(dora, contract.Copy{Name: "bare"}); set(m) != "map[]" {
		t.Errorf("without a name: %s", set(m))
	}
	if m := copied(dora, contract.Copy{Name: "some", Metadata: []string{"mode"}}); set(m) != "map[mode:wild]" {
		t.Errorf("with one name: %s", set(m))
	}
	if m := copied(olga, contract.Copy{Name: "all", Metadata: []string{"key", "more"}, Organization: "olga"}); set(m) != "map[key:"+manifest.Mask+" more:1]" {
		t.Errorf("with a secret: %s", set(m))
	}
	if k := want[contract.MetadataKey](olga.call("GET", "/v1/projects/all/metadata/key?reveal=true", nil), 200); k.Value != "sesame" || !k.Secret {
		t.Errorf("the secret is %+v", k)
	}
	dora.call("POST", path+"/copy?organization=acme", contract.Copy{Name: "x", Metadata: []string{"mode", "key"}}).wantError(403, mariposa.Forbidden, "operator")
	olga.call("POST", path+"/copy?organization=acme", contract.Copy{Name: "x", Metadata: []string{"none"}}).wantError(400, mariposa.InvalidArgument, "none")
	olga.call("POST", path+"/copy?organization=acme", contract.Copy{Name: "shop"}).wantError(409, mariposa.Conflict, "shop")
	olga.call("POST", path+"/copy?organization=acme", contract.Copy{Name: "Bad Name"}).wantError(400, mariposa.InvalidArgument, "name")
	if users := want[contract.Members](dora.call("GET", "/v1/projects/bare/users?organization=acme", nil), 200).Members; fmt.Sprint(users) == "" || !contains(fmt.Sprint(users), "dora admin") || contains(fmt.Sprint(users), "vera") {
		t.Errorf("the copy's people are %+v", users)
	}
}

// A moved project keeps everything: versions, values, secrets, tags and its users. No
// instance is touched.
func TestAMoveKeepsEverythingAndRestartsNothing(t *testing.T) {
	t.Parallel()
	h := newTestServer(t, withPlanner)
	h.join("n1")
	for _, name := range []string{"olga", "mia", "vera"} {
		want[contract.Changed](h.call("POST", "/v1/users", contract.NewUser{Name: name}), 201)
	}
	olga, mia, vera := h.as(h.mint(contract.NewToken{Name: "t", User: "olga"})), h.as(h.mint(contract.NewToken{Name: "t", User: "mia"})), h.as(h.mint(contract.NewToken{Name: "t", User: "vera"}))
	want[contract.Changed](olga.call("POST", "/v1/organizations", contract.NewOrganization{Name: "acme"}), 201)
	want[contract.Changed](olga.call("PUT", "/v1/organizations/acme/members/mia", contract.MemberChange{Role: "member"}), 200)
	want[contract.Changed](olga.call("POST", "/v1/organizations", contract.NewOrganization{Name: "bolt"}), 201)
	c := want[contract.Changed](olga.call("POST", "/v1/projects", map[string]any{
		"name": "shop", "organization": "acme", "metadata": map[string]string{"key": "sesame"},
		"manifest": `services: {web: {compute_type: dummy, scale: 3, environment: {KEY: "{{ .meta.key }}", P: "{{ .project.name }}"}, update: {min_healthy: 0}}}` + "\nmetadata: {key: {secret: true}}\n",
	}), 201)
	path := "/v1/projects/" + c.ID
	want[contract.Changed](olga.call("PUT", path+"/users/vera", contract.MemberChange{Role: "operator"}), 200)
	want[contract.Changed](olga.call("POST", path+"/tags", contract.NewTag{Tag: "good", Version: "1"}), 201)
	settled := func() bool {
		p := want[contract.State](olga.call("GET", path+"/state", nil), 200).Projects[0]
		return p.Status == mariposa.StatusConverged && p.Services[0].Running == 3
	}
	h.until("it to run", settled)
	want[contract.Changed](olga.call("POST", "/v1/instances", []byte(`{"project":"`+c.ID+`","name":"probe","compute_type":"dummy"}`)), 201)
	h.until("all of it", func() bool {
		return len(want[contract.Instances](olga.call("GET", "/v1/instances?state=running", nil), 200).Instances) == 4
	})
	specs := func() map[string]string {
		all := map[string]string{}
		for _, r := range h.picture.InstancesOf(c.ID) {
			all[r.ID] = fmt.Sprintf("%d %+v", r.SpecRevision, r.Spec())
		}
		return all
	}
	before, shown := specs(), want[contract.Instances](olga.call("GET", "/v1/instances", nil), 200)
	revision := func() int64 { return h.picture.Projects.Get(c.ID).SpecRevision }
	unmoved := revision()
	want[contract.Project](mia.call("GET", path, nil), 200)
	olga.call("POST", path+"/move", contract.Move{}).wantError(400, mariposa.InvalidArgument, "organization")
	vera.call("POST", path+"/move", contract.Move{Organization: "vera"}).wantError(403, mariposa.Forbidden)
	if same := want[contract.Changed](olga.call("POST", path+"/move", contract.Move{Organization: "acme"}), 200); revision() != unmoved {
		t.Errorf("a move to where it is: %+v", same)
	}
	moved := want[contract.Changed](olga.call("POST", path+"/move", contract.Move{Organization: "bolt"}), 200)
	if moved.ID != c.ID || moved.Version != c.Version || moved.Task != nil {
		t.Errorf("moved: %+v", moved)
	}
	// The planner has seen the project again after it has processed another change.
	want[contract.Changed](olga.call("PUT", path+"/metadata/other", "x", plainText...), 200)
	h.until("the planner", func() bool {
		st := h.picture.Projects.Get(c.ID).Status()
		return st.Number == 2
	})
	if !maps.Equal(specs(), before) {
		t.Errorf("instances were touched: %v, and then %v", before, specs())
	}
	after := want[contract.Instances](olga.call("GET", "/v1/instances", nil), 200)
	for i, one := range after.Instances {
		if was := shown.Instances[i]; one.ID != was.ID || one.State != was.State || !one.Started.Equal(*was.Started) || one.Restarts != was.Restarts {
			t.Errorf("%+v became %+v", was, one)
		}
	}
	if k := want[contract.MetadataKey](vera.call("GET", path+"/metadata/key?reveal=true", nil), 200); k.Value != "sesame" {
		t.Errorf("the secret became %+v", k)
	}
	want[contract.Tag](vera.call("GET", path+"/tags/good", nil), 200)
	want[contract.Version](vera.call("GET", path+"/versions/1", nil), 200)
	mia.call("GET", path, nil).wantError(404, mariposa.ResourceNotFound)
	mia.call("GET", "/v1/projects/shop?organization=acme", nil).wantError(404, mariposa.ResourceNotFound)
	if p := want[contract.Project](olga.call("GET", "/v1/projects/shop?organization=bolt", nil), 200); p.ID != c.ID || p.OrganizationName != "bolt" {
		t.Errorf("by its name: %+v", p)
	}
	want[contract.Changed](olga.call("POST", "/v1/projects?name=shop&organization=acme", hello), 201) // the name is free there
	for _, org := range []string{"acme", "bolt"} {
		if a := olga.audit("?action=project.move&outcome=done&organization=" + org); len(a) != 1 || a[0].Reason != "moved to organization bolt" || a[0].Project != c.ID {
			t.Errorf("%s reads of %+v", org, a)
		}
	}
}
