package api_test

import (
	"context"
	"slices"
	"sync"
	"testing"

	"mariposa"
	"mariposa/contract"
	"mariposa/store"
)

const withVolume = "services:\n  db: {compute_type: dummy, scale: 2, volumes: [data:/d]}\nvolumes: {data: {size: 1g}}\n"

// keeps returns a server with a project whose service has two slots with a volume each.
func keeps(t *testing.T) (h *testServer, shop contract.Changed, volumes []string) {
	t.Helper()
	h = newTestServer(t)
	h.node("n1", mariposa.NodeSpec{Name: "host-n1"}, mariposa.NodeStatus{State: mariposa.NodeRunning})
	h.node("n2", mariposa.NodeSpec{Name: "host-n2"}, mariposa.NodeStatus{State: mariposa.NodeUnknown})
	shop = h.create("shop", withVolume)
	st := settled(shop)
	st.Services = map[string]*mariposa.ServiceStatus{"db": {ID: "s-db", Scale: 2, Number: 1}}
	h.plan(shop.ID, st)
	for slot, node := range []string{"n1", "n2"} {
		id := newID()
		volumes = append(volumes, id)
		h.volume(id, mariposa.VolumeSpec{Name: "data", Project: shop.ID, Service: "s-db", ServiceName: "db", Slot: slot + 1, Node: node, Size: 1 << 30})
	}
	return h, shop, volumes
}

// occupy puts an instance into a slot.
func (h *testServer) occupy(project string, slot int, node, volume string, change func(*mariposa.InstanceSpec)) string {
	id := newID()
	h.instance(id, project, "db", node, mariposa.StateRunning, func(s *mariposa.InstanceSpec) {
		s.Service, s.Slot, s.Name = "s-db", slot, "db."+id[len(id)-6:]
		s.Mounts = []mariposa.Mount{{Volume: volume, Name: "data", Path: "/d"}}
		if change != nil {
			change(s)
		}
	})
	return id
}

func TestVolumesAreShownWithNamesBesideIDs(t *testing.T) {
	t.Parallel()
	h, shop, ids := keeps(t)
	user := h.occupy(shop.ID, 1, "n1", ids[0], nil)
	all := want[contract.Volumes](h.call("GET", "/v1/volumes", nil), 200).Volumes
	if len(all) != 2 {
		t.Fatalf("%+v", all)
	}
	v := all[0]
	if v.ID != ids[0] || v.Name != "data" || v.Project != shop.ID || v.ProjectName != "shop" || v.ServiceName != "db" || v.Service != "s-db" || v.Slot != "db.1" ||
		v.Node != "n1" || v.NodeName != "host-n1" || v.Size != 1<<30 || v.State != "made" || v.Goal != mariposa.GoalKept || v.Path != "/d/"+ids[0] ||
		v.Instance != user || v.InstanceName == "" || v.OrganizationName != "admin" || v.Organization == "" {
		t.Errorf("%+v", v)
	}
	if v := all[1]; v.State != "unknown" || v.Instance != "" || v.Reason != "its node host-n2 cannot be reached" {
		t.Errorf("%+v", v)
	}
	if one := want[contract.Volume](h.call("GET", "/v1/volumes/"+ids[1], nil), 200); one != all[1] {
		t.Errorf("%+v", one)
	}
	i := want[contract.Instance](h.call("GET", "/v1/instances/"+user, nil), 200)
	if len(i.Volumes) != 1 || i.Volumes[0].Volume != ids[0] || i.Volumes[0].Path != "/d" {
		t.Errorf("its instance is %+v", i.Volumes)
	}
}

func TestVolumesAreFoundByWhatTheyBelongTo(t *testing.T) {
	t.Parallel()
	h, shop, ids := keeps(t)
	other := h.create("other", withVolume)
	third, left := newID(), newID()
	h.volume(third, mariposa.VolumeSpec{Name: "data", Project: other.ID, ServiceName: "web", Slot: 1, Node: "n1"})
	h.volume(left, mariposa.VolumeSpec{Name: "data", ServiceName: "db", Slot: 1, Node: "n2", Organization: mariposa.FirstOrganization, ProjectName: "former"})
	for query, wanted := range map[string][]string{
		"":                               {ids[0], ids[1], third, left},
		"?organization=admin":            {ids[0], ids[1], third, left},
		"?project=shop":                  {ids[0], ids[1]},
		"?project=" + shop.ID:            {ids[0], ids[1]},
		"?project=shop&node=host-n1":     {ids[0]},
		"?node=n2":                       {ids[1], left},
		"?service=web":                   {third},
		"?service=s-db&project=other":    {},
		"?limit=3":                       {ids[0], ids[1], third},
		"?limit=3&marker=" + third:       {left},
		"?project=shop&marker=" + ids[0]: {ids[1]},
	} {
		page := want[contract.Volumes](h.call("GET", "/v1/volumes"+query, nil), 200)
		got := []string{}
		for _, v := range page.Volumes {
			got = append(got, v.ID)
		}
		if !slices.Equal(got, wanted) {
			t.Errorf("%s: %v, want %v", query, got, wanted)
		}
		if (page.Marker != "") != (query == "?limit=3") {
			t.Errorf("%s: there is more: %q", query, page.Marker)
		}
	}
	if v := want[contract.Volume](h.call("GET", "/v1/volumes/"+left, nil), 200); v.ProjectName != "former" || v.Project != "" || v.OrganizationName != "admin" {
		t.Errorf("%+v", v)
	}
	h.call("GET", "/v1/volumes?node=n9", nil).wantError(404, mariposa.ResourceNotFound, "n9")
	h.call("GET", "/v1/volumes?project=nothing", nil).wantError(404, mariposa.ResourceNotFound)
	h.call("GET", "/v1/volumes?colour=red", nil).wantError(400, mariposa.InvalidArgument)
	h.call("GET", "/v1/volumes?marker=x", nil).wantError(400, mariposa.InvalidArgument)
	h.call("GET", "/v1/volumes/"+newID(), nil).wantError(404, mariposa.ResourceNotFound)
}

func TestAVolumeInUseIsNotDeleted(t *testing.T) {
	t.Parallel()
	h, shop, ids := keeps(t)
	h.call("DELETE", "/v1/volumes/"+ids[0], nil).wantError(409, mariposa.Conflict, "will be used again", "db", "scale db down, stop it, or remove it from the manifest")
	user := h.occupy(shop.ID, 1, "n1", ids[0], nil)
	name := want[contract.Instance](h.call("GET", "/v1/instances/"+user, nil), 200).Name
	h.call("DELETE", "/v1/volumes/"+ids[0], nil).wantError(409, mariposa.Conflict, "volume data of db.1 is used by instance "+name)
	h.instance(user, shop.ID, "db", "n1", mariposa.StateRunning, func(s *mariposa.InstanceSpec) {
		s.Goal, s.Mounts, s.Orphaned, s.Name = mariposa.GoalGone, []mariposa.Mount{{Volume: ids[0]}}, true, "db.1-left"
	})
	h.call("DELETE", "/v1/volumes/"+ids[0], nil).wantError(409, mariposa.Conflict, "db.1-left", "after the instance is removed")
	h.instance(user, shop.ID, "db", "n1", mariposa.StateDestroyed, func(s *mariposa.InstanceSpec) {
		s.Goal, s.Mounts, s.Service = mariposa.GoalGone, []mariposa.Mount{{Volume: ids[0]}}, "s-db"
	})
	h.occupy(shop.ID, 5, "n1", newID(), nil)
	h.occupy(shop.ID, 6, "n1", newID(), nil) // all that is wanted is there, if in other slots
	want[contract.Changed](h.call("DELETE", "/v1/volumes/"+ids[0], nil), 202)
}

func TestWhatHasEndedAndIsKeptToLookAtUsesNoVolume(t *testing.T) {
	t.Parallel()
	h, shop, ids := keeps(t)
	h.plan(shop.ID, &mariposa.ProjectStatus{Goal: mariposa.GoalStopped, Number: 1})
	h.occupy(shop.ID, 1, "n1", ids[0], func(s *mariposa.InstanceSpec) { s.Goal, s.Kept = mariposa.GoalHalted, true })
	want[contract.Changed](h.call("DELETE", "/v1/volumes/"+ids[0], nil), 202)
}

func TestADeletedVolumeHasATombstoneUntilItsNodeHasRemovedIt(t *testing.T) {
	t.Parallel()
	h, shop, ids := keeps(t)
	h.plan(shop.ID, &mariposa.ProjectStatus{Goal: mariposa.GoalStopped, Number: 1})
	here := want[contract.Changed](h.call("DELETE", "/v1/volumes/"+ids[0][:len(ids[0])-1], nil), 202)
	if here.ID != ids[0] || here.Reason != "node host-n1 deletes it" {
		t.Errorf("%+v", here)
	}
	away := want[contract.Changed](h.call("DELETE", "/v1/volumes/"+ids[1], nil), 202)
	if away.Reason != "node host-n2 deletes it when it is reachable again" {
		t.Errorf("%+v", away)
	}
	if v := want[contract.Volume](h.call("GET", "/v1/volumes/"+ids[0], nil), 200); v.State != "deleting" || v.Goal != mariposa.GoalGone || v.Reason != "admin deleted it" {
		t.Errorf("%+v", v)
	}
	if v := want[contract.Volume](h.call("GET", "/v1/volumes/"+ids[1], nil), 200); v.State != "unknown" || !contains(v.Reason, "will be deleted when the node returns") {
		t.Errorf("%+v", v)
	}
	want[contract.Changed](h.call("DELETE", "/v1/volumes/"+ids[0], nil), 202) // asked again
	h.volume(ids[0], mariposa.VolumeSpec{Name: "data", Project: shop.ID, ServiceName: "db", Slot: 1, Node: "n9"})
	if gone := want[contract.Changed](h.call("DELETE", "/v1/volumes/"+ids[0], nil), 202); !contains(gone.Reason, "its node was removed") {
		t.Errorf("%+v", gone)
	}
	h.call("GET", "/v1/volumes/"+ids[0], nil).wantError(404, mariposa.ResourceNotFound)
	events := want[contract.Events](h.call("GET", "/v1/events?project=shop&since=0&limit=1000", nil), 200).Events
	kinds := map[string]int{}
	for _, e := range events {
		kinds[e.Kind]++
		if e.Kind == "volume.deleting" && (e.ProjectName != "shop" || e.Object == nil || e.Actor != "admin") {
			t.Errorf("%+v", e)
		}
	}
	if kinds["volume.created"] != 3 || kinds["volume.deleting"] != 2 || kinds["volume.deleted"] != 1 {
		t.Errorf("the events are %v", kinds)
	}
}

// interferingStore is a store that runs a function just before each commit.
type interferingStore struct {
	store.Store
	mu     sync.Mutex
	before func(store.Unit)
}

// interfere sets the function, which runs for one commit at a time.
func (c *interferingStore) interfere(before func(store.Unit)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.before = before
}

func (c *interferingStore) Commit(ctx context.Context, units ...store.Unit) []store.Result {
	c.mu.Lock()
	if c.before != nil {
		for _, u := range units {
			c.before(u)
		}
	}
	c.mu.Unlock()
	return c.Store.Commit(ctx, units...)
}

// A volume that is assigned to an instance at the same time is not deleted: both write
// it, so one of the two is retried.
func TestADeletionThatCrossesANewInstanceLooksAgain(t *testing.T) {
	t.Parallel()
	once := false
	crossed := &interferingStore{}
	h := newTestServer(t, withStore(func(s store.Store) store.Store { crossed.Store = s; return crossed }))
	h.node("n1", mariposa.NodeSpec{Name: "host-n1"}, mariposa.NodeStatus{State: mariposa.NodeRunning})
	shop := h.create("shop", withVolume)
	h.plan(shop.ID, &mariposa.ProjectStatus{Goal: mariposa.GoalStopped, Number: 1})
	id := newID()
	spec := mariposa.VolumeSpec{Name: "data", Project: shop.ID, Service: "s-db", ServiceName: "db", Slot: 1, Node: "n1"}
	h.volume(id, spec)
	crossed.interfere(func(u store.Unit) {
		if len(u.Writes) > 0 && u.Writes[0].Kind == mariposa.KindVolume && !once {
			once = true
			next := spec
			next.Goal, next.Instance = mariposa.GoalKept, newID()
			crossed.Store.Commit(t.Context(), store.Unit{Writes: []store.Write{
				{Kind: mariposa.KindVolume, ID: id, Spec: &next},
				{Kind: mariposa.KindInstance, ID: next.Instance, Project: shop.ID, Spec: &mariposa.InstanceSpec{
					Name: "db.1-new", Project: shop.ID, ServiceName: "db", Slot: 1, Node: "n1", Goal: mariposa.GoalRunning, Managed: true, Mounts: []mariposa.Mount{{Volume: id}},
				}},
			}})
		}
	})
	h.call("DELETE", "/v1/volumes/"+id, nil).wantError(409, mariposa.Conflict, "used by instance db.1-new")
	if !once {
		t.Error("nothing crossed")
	}
}

func TestVolumesOfADeletedProjectAreItsOrganizationsAffair(t *testing.T) {
	t.Parallel()
	w := newTestTeams(t)
	left := newID()
	w.testServer.volume(left, mariposa.VolumeSpec{Name: "data", ServiceName: "web", Slot: 1, Node: "n1", Organization: w.acme, ProjectName: "former"})
	for _, user := range []string{"sam", "vera", "ada", "ulla"} { // a role in one of its projects is no part in the organization
		w.asUser(user).call("GET", "/v1/volumes/"+left, nil).wantError(404, mariposa.ResourceNotFound)
		w.asUser(user).call("DELETE", "/v1/volumes/"+left, nil).wantError(404, mariposa.ResourceNotFound)
		for _, v := range want[contract.Volumes](w.asUser(user).call("GET", "/v1/volumes", nil), 200).Volumes {
			if v.ID == left {
				t.Errorf("%s is shown it", user)
			}
		}
		for _, e := range want[contract.Events](w.asUser(user).call("GET", "/v1/events?since=0&limit=1000", nil), 200).Events {
			if doc, ok := e.Object.(map[string]any); ok && doc["id"] == left {
				t.Errorf("%s hears of it", user)
			}
		}
	}
	if v := want[contract.Volume](w.asUser("mia").call("GET", "/v1/volumes/"+left, nil), 200); v.OrganizationName != "acme" {
		t.Errorf("%+v", v)
	}
	w.asUser("mia").call("DELETE", "/v1/volumes/"+left, nil).wantError(403, mariposa.Forbidden, "being an owner of the organization", "you are a member")
	w.asUser("oleg").call("DELETE", "/v1/volumes/"+w.volume, nil).wantError(403, mariposa.Forbidden, "requires the admin role", "you are an operator")
	want[contract.Volumes](w.asUser("vera").call("GET", "/v1/volumes?node=n1", nil), 200)
	w.asUser("sam").call("GET", "/v1/volumes?node=n1", nil).wantError(404, mariposa.ResourceNotFound)
	w.commit(store.Unit{Writes: []store.Write{{Kind: mariposa.KindProject, ID: w.shop.ID, Delete: true}}})
	w.asUser("olga").call("DELETE", "/v1/organizations/acme", nil).wantError(409, mariposa.Conflict, "still has 1 volume")
	want[contract.Changed](w.asUser("olga").call("DELETE", "/v1/volumes/"+left, nil), 202)
}

func TestAProjectSaysWhatBecomesOfItsVolumes(t *testing.T) {
	t.Parallel()
	for query, says := range map[string]string{"": "2 volumes will move to organization admin", "?volumes=true": "2 volumes will be deleted with it"} {
		h, shop, _ := keeps(t)
		if c := want[contract.Changed](h.call("DELETE", "/v1/projects/shop"+query, nil), 202); c.Reason != says {
			t.Errorf("says %q", c.Reason)
		}
		r := must(h.store.Get(h.ctx, mariposa.KindProject, shop.ID))(t)
		if spec := r.Spec.(*mariposa.ProjectSpec); !spec.Deleting || spec.DropVolumes != (query != "") {
			t.Errorf("%+v", spec)
		}
	}
}

func TestANodeWithVolumesIsGivenUpByForceAlone(t *testing.T) {
	t.Parallel()
	h, _, ids := keeps(t)
	h.call("DELETE", "/v1/nodes/n2", nil).wantError(409, mariposa.Conflict, "still has 1 volume with the only copy of its data", "--force")
	gone := want[contract.Changed](h.call("DELETE", "/v1/nodes/n2?force=true", nil), 200)
	if gone.Reason != "1 volume on it lost: data of db.2" {
		t.Errorf("says %q", gone.Reason)
	}
	h.call("GET", "/v1/volumes/"+ids[1], nil).wantError(404, mariposa.ResourceNotFound)
	want[contract.Volume](h.call("GET", "/v1/volumes/"+ids[0], nil), 200)
}

func TestAMovedProjectTakesItsVolumesAlong(t *testing.T) {
	t.Parallel()
	w := newTestTeams(t)
	want[contract.Changed](w.asUser("ulla").call("PUT", "/v1/organizations/umbra/members/olga", contract.MemberChange{Role: "member"}), 200)
	want[contract.Changed](w.asUser("olga").call("POST", "/v1/projects/"+w.shop.ID+"/move", contract.Move{Organization: w.umbra}), 200)
	if v := want[contract.Volume](w.asUser("ulla").call("GET", "/v1/volumes/"+w.volume, nil), 200); v.OrganizationName != "umbra" || v.Organization != w.umbra {
		t.Errorf("%+v", v)
	}
	w.asUser("mia").call("GET", "/v1/volumes/"+w.volume, nil).wantError(404, mariposa.ResourceNotFound)
}
