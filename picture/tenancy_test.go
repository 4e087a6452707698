package picture_test

import (
	"fmt"
	"slices"
	"testing"

	"mariposa"
	"mariposa/store"
)

func organization(id, name string, members ...string) store.Write {
	spec := &mariposa.OrganizationSpec{Name: name, Members: map[string]mariposa.OrgRole{}}
	for _, m := range members {
		spec.Members[m] = mariposa.OrgMember
	}
	return store.Write{Kind: mariposa.KindOrg, ID: id, Spec: spec}
}

func projectOf(id, organization, name string, users ...string) store.Write {
	spec := &mariposa.ProjectSpec{Name: name, Organization: organization, Users: map[string]mariposa.Role{}}
	for _, u := range users {
		spec.Users[u] = mariposa.RoleViewer
	}
	return store.Write{Kind: mariposa.KindProject, ID: id, Project: id, Spec: spec}
}

func user(id, name string) store.Write {
	return store.Write{Kind: mariposa.KindUser, ID: id, Spec: &mariposa.UserSpec{Name: name}}
}

func token(id, user string) store.Write {
	return store.Write{Kind: mariposa.KindToken, ID: id, Spec: &mariposa.TokenSpec{User: user}}
}

func TestWhatBelongsToWhomFollowsTheSpecs(t *testing.T) {
	t.Parallel()
	st := newStore(t)
	p := open(t, st)
	commit(t, st, organization("o1", "acme", "u1", "u2"), organization("o2", "other", "u2"),
		projectOf("p1", "o1", "shop", "u3"), projectOf("p2", "o1", "blog"), projectOf("p3", "o2", "shop", "u3", "u1"),
		token("t1", "u1"), token("t2", "u1"), token("t3", ""))
	advance(t, p)
	want(t, "projects of o1", p.ProjectsOf("o1"), "p1", "p2")
	want(t, "organizations of u1", p.OrganizationsOf("u1"), "o1")
	want(t, "organizations of u2", p.OrganizationsOf("u2"), "o1", "o2")
	want(t, "projects with u3", p.ProjectsWith("u3"), "p1", "p3")
	want(t, "tokens of u1", p.TokensOf("u1"), "t1", "t2")

	commit(t, st, projectOf("p1", "o2", "shop2", "u1"), organization("o1", "acme", "u2"), remove(mariposa.KindToken, "t1"))
	advance(t, p)
	want(t, "projects of o1 after one moved", p.ProjectsOf("o1"), "p2")
	want(t, "projects of o2 after one moved", p.ProjectsOf("o2"), "p1", "p3")
	want(t, "organizations of u1 after leaving", p.OrganizationsOf("u1"))
	want(t, "projects with u3 after it was left out", p.ProjectsWith("u3"), "p3")
	want(t, "projects with u1", p.ProjectsWith("u1"), "p1", "p3")
	want(t, "tokens of u1 after one was revoked", p.TokensOf("u1"), "t2")

	commit(t, st, store.Write{Kind: mariposa.KindProject, ID: "p1", Status: &mariposa.ProjectStatus{Status: mariposa.StatusConverging}},
		remove(mariposa.KindProject, "p3"), remove(mariposa.KindOrg, "o1"))
	advance(t, p)
	want(t, "projects of o2 at the end", p.ProjectsOf("o2"), "p1")
	want(t, "projects with u1 at the end", p.ProjectsWith("u1"), "p1")
	want(t, "organizations of u2 at the end", p.OrganizationsOf("u2"), "o2")
	if r := p.ProjectsOf("o2")[0]; r.Status() == nil || r.Spec().Name != "shop2" {
		t.Errorf("a new status leaves %+v", r)
	}
}

func TestAProjectThatIsBeingDeletedStillBelongsToItsOrganization(t *testing.T) {
	t.Parallel()
	st := newStore(t)
	w := projectOf("p1", "o1", "shop")
	w.Spec.(*mariposa.ProjectSpec).Deleting = true
	commit(t, st, w)
	p := open(t, st)
	want(t, "projects", p.ProjectsOf("o1"), "p1")
	if p.ProjectNamed("o1", "shop") != nil {
		t.Error("its name is not free")
	}
}

func isEmpty(s string) bool { return s == "" }

func TestUsersAndOrganizationsAreFoundByName(t *testing.T) {
	t.Parallel()
	st := newStore(t)
	p := open(t, st)
	named := func(name, user, org string) {
		t.Helper()
		advance(t, p)
		want(t, "users "+name, one(p.UserNamed(name)), slices.DeleteFunc([]string{user}, isEmpty)...)
		want(t, "organizations "+name, one(p.OrgNamed(name)), slices.DeleteFunc([]string{org}, isEmpty)...)
	}
	commit(t, st, user("u1", "alice"), organization("o1", "alice"), organization("o2", "acme"))
	named("alice", "u1", "o1")
	named("acme", "", "o2")
	named("", "", "")
	commit(t, st, user("u1", "alicia"), organization("o1", "alicia"))
	named("alice", "", "")
	named("alicia", "u1", "o1")
	// Within one commit, a name can be taken before its previous owner releases it.
	commit(t, st, organization("o3", "acme"), organization("o2", "emca"))
	named("acme", "", "o3")
	named("emca", "", "o2")
	commit(t, st, remove(mariposa.KindUser, "u1"), remove(mariposa.KindOrg, "o3"))
	named("alicia", "", "o1")
	named("acme", "", "")
}

func TestEachVisitsEveryOneUntilToldToStop(t *testing.T) {
	t.Parallel()
	st := newStore(t)
	commit(t, st, instance("i1", "p", "n1"), instance("i2", "p", "n1"), instance("i3", "q", "n1"))
	p := open(t, st)
	var seen []string
	all := func(r *store.Instance) bool {
		seen = append(seen, r.ID)
		return true
	}
	for _, c := range []struct {
		each func(func(*store.Instance) bool)
		want []string
	}{
		{func(v func(*store.Instance) bool) { p.Instances.Each(v) }, []string{"i1", "i2", "i3"}},
		{func(func(*store.Instance) bool) { p.Nodes.Each(func(*store.Node) bool { panic("there is none") }) }, nil},
		{func(v func(*store.Instance) bool) { p.EachInstanceOf("p", v) }, []string{"i1", "i2"}},
		{func(v func(*store.Instance) bool) { p.EachInstanceOf("none", v) }, nil},
	} {
		seen = nil
		c.each(all)
		if slices.Sort(seen); !slices.Equal(seen, c.want) {
			t.Errorf("visited %v, want %v", seen, c.want)
		}
		n := 0
		c.each(func(*store.Instance) bool {
			n++
			return false
		})
		if n != min(1, len(c.want)) {
			t.Errorf("went on for %d after being told to stop", n)
		}
	}
}

// Not parallel: allocations of other tests would be counted.
func TestEachAllocatesNothing(t *testing.T) {
	st := newStore(t)
	for i := range 100 {
		commit(t, st, instance(fmt.Sprint("i", i), "p", "n1"))
	}
	p := open(t, st)
	visits := 0
	visit := func(*store.Instance) bool {
		visits++
		return true
	}
	n := testing.AllocsPerRun(10, func() {
		p.Instances.Each(visit)
		p.EachInstanceOf("p", visit)
	})
	if n > 0 || visits != 11*200 {
		t.Errorf("%v allocations, %d visits", n, visits)
	}
}
