package picture_test

import (
	"fmt"
	"reflect"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"mariposa"
	"mariposa/clock"
	"mariposa/picture"
	"mariposa/store"
	"mariposa/store/memory"
)

// TestThePictureEqualsASnapshot applies random changes in random order, including changes
// that the feed leaves out, and checks that a reread picture equals a new one.
func TestThePictureEqualsASnapshot(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		st := &forgetful{Store: memory.New(clock.Real{}), hide: map[int64]bool{}}
		p, err := picture.Open(t.Context(), st)
		if err != nil {
			rt.Fatal(err)
		}
		lossy := rapid.Bool().Draw(rt, "lossy")
		names := names{}
		for range rapid.IntRange(1, 60).Draw(rt, "steps") {
			w, ok := anything(rt, names)
			if !ok {
				if _, err := p.Advance(t.Context()); err != nil {
					rt.Fatal(err)
				}
				continue
			}
			if rev := commit(rt, st, w); rev > 0 {
				st.hide[rev] = lossy && rapid.Bool().Draw(rt, "lost")
			}
		}
		n, err := p.Reread(t.Context())
		if err != nil || (!lossy && n != 0) {
			rt.Fatalf("mended %d, %v", n, err)
		}
		fresh, err := picture.Open(t.Context(), st)
		if err != nil {
			rt.Fatal(err)
		}
		equal(rt, p, fresh)
		if rt.Failed() {
			rt.FailNow()
		}
	})
}

// names ensures that a name has only one owner, like users of the store do. It maps each
// name to its owner and each owner to its name.
type names map[string]string

// take reports whether an owner can take a name in a namespace, and frees the owner's
// previous name.
func (n names) take(space, owner, name string) bool {
	if other := n[space+"="+name]; other != "" && other != owner {
		return false
	}
	n.free(space, owner)
	n[space+"="+name], n[space+"<"+owner] = owner, name
	return true
}

func (n names) free(space, owner string) {
	delete(n, space+"="+n[space+"<"+owner])
	delete(n, space+"<"+owner)
}

// anything draws a random write. False means that the picture should advance instead.
func anything(rt *rapid.T, names names) (store.Write, bool) {
	pick := func(kind string, n int) string { return fmt.Sprint(kind, rapid.IntRange(1, n).Draw(rt, kind)) }
	users := func() []string {
		return rapid.SliceOfDistinct(rapid.SampledFrom([]string{"u1", "u2", "u3"}), rapid.ID[string]).Draw(rt, "users")
	}
	taken := func(space, owner, name string, w store.Write) (store.Write, bool) {
		return w, names.take(space, owner, name)
	}
	gone := func(space string, kind mariposa.Kind, id string) (store.Write, bool) {
		names.free(space, id)
		return remove(kind, id), true
	}
	switch rapid.IntRange(0, 22).Draw(rt, "what") {
	case 0, 1:
		id, org, name := pick("p", 3), pick("o", 2), pick("name", 3)
		return taken("project", id, org+"/"+name, projectOf(id, org, name, users()...))
	case 2:
		id := pick("p", 3)
		return store.Write{Kind: mariposa.KindProject, ID: id, Status: &mariposa.ProjectStatus{Status: mariposa.StatusConverged}}, true
	case 3:
		return gone("project", mariposa.KindProject, pick("p", 3))
	case 4:
		i := rapid.IntRange(1, 5).Draw(rt, "i")
		return instance(fmt.Sprint("i", i), fmt.Sprint("p", i%2+1), fmt.Sprint("n", i%3)), true
	case 5:
		return runs(pick("i", 5)), true
	case 6:
		return remove(mariposa.KindInstance, pick("i", 5)), true
	case 7:
		return task(pick("t", 3), pick("p", 2)), true
	case 8:
		return store.Write{Kind: mariposa.KindTask, ID: pick("t", 3), Archive: true}, true
	case 9, 10:
		id, name := pick("o", 3), pick("name", 3)
		return taken("organization", id, name, organization(id, name, users()...))
	case 11:
		return gone("organization", mariposa.KindOrg, pick("o", 3))
	case 12:
		id, name := pick("u", 3), pick("name", 3)
		return taken("user", id, name, user(id, name))
	case 13:
		return gone("user", mariposa.KindUser, pick("u", 3))
	case 14:
		return token(pick("k", 3), pick("u", 3)), true
	case 15:
		return remove(mariposa.KindToken, pick("k", 3)), true
	case 16:
		return volume(pick("v", 3), mariposa.VolumeSpec{Project: pick("p", 3), Node: pick("n", 2)}), true
	case 17:
		return volume(pick("v", 3), mariposa.VolumeSpec{Organization: pick("o", 3), Node: pick("n", 2)}), true
	case 18:
		return remove(mariposa.KindVolume, pick("v", 3)), true
	case 19, 20:
		project, name := pick("p", 3), pick("s", 3)
		return service(project, name, rapid.IntRange(0, 3).Draw(rt, "scale")), true
	case 21:
		return remove(mariposa.KindService, mariposa.ServiceID(pick("p", 3), pick("s", 3))), true
	}
	return store.Write{}, false
}

func service(project, name string, scale int) store.Write {
	return store.Write{
		Kind: mariposa.KindService, ID: mariposa.ServiceID(project, name), Project: project,
		Spec: &mariposa.ServiceSpec{Project: project, Name: name}, Status: &mariposa.ServiceStatus{ID: name, Scale: scale},
	}
}

func volume(id string, spec mariposa.VolumeSpec) store.Write {
	return store.Write{Kind: mariposa.KindVolume, ID: id, Spec: &spec}
}

// equal checks that two pictures return the same for every query, and that every index
// contains what a full scan finds.
func equal(rt *rapid.T, p, fresh *picture.Picture) {
	equalTables(rt, "projects", &p.Projects, &fresh.Projects)
	equalTables(rt, "services", &p.Services, &fresh.Services)
	equalTables(rt, "instances", &p.Instances, &fresh.Instances)
	equalTables(rt, "tasks", &p.Tasks, &fresh.Tasks)
	equalTables(rt, "organizations", &p.Orgs, &fresh.Orgs)
	equalTables(rt, "users", &p.Users, &fresh.Users)
	equalTables(rt, "tokens", &p.Tokens, &fresh.Tokens)
	equalTables(rt, "volumes", &p.Volumes, &fresh.Volumes)
	for _, r := range p.Projects.All() {
		st := r.Status()
		if st == nil {
			continue
		}
		of := walk(&p.Services, func(s *mariposa.ServiceSpec) bool { return s.Project == r.ID })
		if len(of) != len(st.Services) {
			rt.Errorf("%s has the services %v, and its status says %v", r.ID, of, st.Services)
		}
		for name, ss := range st.Services {
			if own := p.Services.Get(mariposa.ServiceID(r.ID, name)); own.Status() != ss {
				rt.Errorf("the status of %s says %+v of %s, and its record is %+v", r.ID, ss, name, own)
			}
		}
	}
	open := ids(p.Tasks.All())
	slices.Reverse(open)
	want(rt, "open tasks", p.OpenTasks("", 100), open...)
	for i, id := range open {
		want(rt, "open tasks below "+id, p.OpenTasks(id, 2), open[i+1:min(i+3, len(open))]...)
	}
	for _, owner := range []string{"p1", "p2", "p3", "n0", "n1", "n2", "o1", "o2", "o3", "u1", "u2", "u3"} {
		want(rt, "of "+owner, p.InstancesOf(owner), walk(&p.Instances, func(s *mariposa.InstanceSpec) bool { return s.Project == owner })...)
		want(rt, "on "+owner, p.InstancesOn(owner), walk(&p.Instances, func(s *mariposa.InstanceSpec) bool { return s.Node == owner })...)
		want(rt, "tasks of "+owner, p.TasksOf(owner), walk(&p.Tasks, func(s *mariposa.TaskSpec) bool { return s.Project == owner })...)
		want(rt, "projects of "+owner, p.ProjectsOf(owner), walk(&p.Projects, func(s *mariposa.ProjectSpec) bool { return s.Organization == owner })...)
		want(rt, "projects with "+owner, p.ProjectsWith(owner), walk(&p.Projects, func(s *mariposa.ProjectSpec) bool { return s.Users[owner] != "" })...)
		want(rt, "organizations of "+owner, p.OrganizationsOf(owner), walk(&p.Orgs, func(s *mariposa.OrganizationSpec) bool { return s.Members[owner] != "" })...)
		want(rt, "volumes of "+owner, p.VolumesOf(owner), walk(&p.Volumes, func(s *mariposa.VolumeSpec) bool { return s.Project == owner })...)
		want(rt, "volumes on "+owner, p.VolumesOn(owner), walk(&p.Volumes, func(s *mariposa.VolumeSpec) bool { return s.Node == owner })...)
		want(rt, "volumes left to "+owner, p.RetainedVolumesOf(owner), walk(&p.Volumes, func(s *mariposa.VolumeSpec) bool { return s.Organization == owner && s.Project == "" })...)
		want(rt, "tokens of "+owner, p.TokensOf(owner), walk(&p.Tokens, func(s *mariposa.TokenSpec) bool { return s.User == owner })...)
	}
	for _, name := range []string{"name1", "name2", "name3"} {
		want(rt, "user "+name, one(p.UserNamed(name)), walk(&p.Users, func(s *mariposa.UserSpec) bool { return s.Name == name })...)
		want(rt, "organization "+name, one(p.OrgNamed(name)), walk(&p.Orgs, func(s *mariposa.OrganizationSpec) bool { return s.Name == name })...)
		for _, org := range []string{"o1", "o2"} {
			has := func(s *mariposa.ProjectSpec) bool { return s.Name == name && s.Organization == org }
			want(rt, "project "+org+"/"+name, one(p.ProjectNamed(org, name)), walk(&p.Projects, has)...)
		}
	}
}

func equalTables[S, T any](rt *rapid.T, what string, p, fresh *picture.Table[S, T]) {
	want(rt, what, p.All(), ids(fresh.All())...)
	for _, r := range fresh.All() {
		if got := p.Get(r.ID); got.Revision != r.Revision || got.Spec() != r.Spec() || !reflect.DeepEqual(got.Status(), r.Status()) {
			rt.Errorf("%s is %+v, want %+v", r.ID, got, r)
		}
	}
}

// walk finds the objects of an index by a full scan.
func walk[S, T any](table *picture.Table[S, T], has func(*S) bool) (found []string) {
	for _, r := range table.All() {
		if has(r.Spec()) {
			found = append(found, r.ID)
		}
	}
	return found
}

func one[S, T any](r *store.Of[S, T]) []*store.Of[S, T] {
	if r == nil {
		return nil
	}
	return []*store.Of[S, T]{r}
}
