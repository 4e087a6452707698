package api_test

import (
	"testing"

	"mariposa"
	"mariposa/contract"
)

// leaves returns a server with a volume that a deleted project has left, and a project whose service
// is scaled to 0.
func leaves(t *testing.T) (h *testServer, shop contract.Changed, left string) {
	t.Helper()
	h = newTestServer(t)
	h.node("n1", mariposa.NodeSpec{Name: "host-n1"}, mariposa.NodeStatus{State: mariposa.NodeRunning})
	h.node("n2", mariposa.NodeSpec{Name: "host-n2"}, mariposa.NodeStatus{State: mariposa.NodeUnknown})
	shop = h.create("shop", "services:\n  db: {compute_type: dummy, scale: 0, volumes: [data:/d, logs:/l]}\n  web: {compute_type: dummy}\n  job: {compute_type: process, command: [x], volumes: [data:/d]}\nvolumes: {data: , logs: }\n")
	st := settled(shop)
	st.Services = map[string]*mariposa.ServiceStatus{"db": {ID: "s-db", Number: 1}, "web": {ID: "s-web", Scale: 1, Number: 1}, "job": {ID: "s-job", Number: 1}}
	h.plan(shop.ID, st)
	left = newID()
	h.volume(left, mariposa.VolumeSpec{
		Name: "data", ServiceName: "db", Service: "s-old", Slot: 2, Node: "n2", Organization: mariposa.FirstOrganization, ProjectName: "former",
	})
	return h, shop, left
}

func attachTo(project string) map[string]any { return map[string]any{"project": project} }

func TestALeftVolumeIsAttachedToItsFormerSlot(t *testing.T) {
	t.Parallel()
	h, shop, left := leaves(t)
	done := want[contract.Changed](h.call("POST", "/v1/volumes/"+left+"/attach", attachTo("shop")), 200)
	if done.ID != left || done.Name != "data" || done.Reason != "db.2 of project shop uses it from its next start on node host-n2" {
		t.Errorf("%+v", done)
	}
	v := want[contract.Volume](h.call("GET", "/v1/volumes/"+left, nil), 200)
	if v.Project != shop.ID || v.ProjectName != "shop" || v.Slot != "db.2" || v.Service == "s-old" || v.Node != "n2" {
		t.Errorf("%+v", v)
	}
	again := want[contract.Changed](h.call("POST", "/v1/volumes/"+left+"/attach", attachTo(shop.ID)), 200)
	if again.Reason != done.Reason {
		t.Errorf("once more: %+v", again)
	}
	h.call("POST", "/v1/volumes/"+left+"/attach", map[string]any{"project": "shop", "slot": 3}).
		wantError(409, mariposa.Conflict, "volume data of db.2 belongs to project shop")
}

func TestALeftVolumeIsNotAttachedWhereItDoesNotBelong(t *testing.T) {
	t.Parallel()
	h, shop, left := leaves(t)
	third := newID()
	h.volume(third, mariposa.VolumeSpec{Name: "data", ServiceName: "db", Slot: 3, Node: "n1", Organization: mariposa.FirstOrganization})
	want[contract.Changed](h.call("POST", "/v1/volumes/"+third+"/attach", attachTo("shop")), 200)
	attach := func(body map[string]any) reply { return h.call("POST", "/v1/volumes/"+left+"/attach", body) }
	body := func(more ...any) map[string]any {
		all := attachTo("shop")
		for i := 0; i < len(more); i += 2 {
			all[more[i].(string)] = more[i+1]
		}
		return all
	}
	attach(attachTo("nothing")).wantError(404, mariposa.ResourceNotFound, "nothing")
	attach(map[string]any{}).wantError(400, mariposa.InvalidArgument)
	attach(body("name", "cache")).wantError(409, mariposa.Conflict, "has no volume cache in its manifest")
	attach(body("service", "cache")).wantError(409, mariposa.Conflict, "has no service cache in its manifest")
	attach(body("service", "web")).wantError(409, mariposa.Conflict, "service web of project shop does not use a volume data")
	attach(body("service", "job")).wantError(409, mariposa.Conflict, "created for compute type dummy, and service job has compute type process")
	attach(body("slot", 3)).wantError(409, mariposa.Conflict, "db.3 of project shop already has a volume data")
	attach(body("slot", 3, "name", "logs")).wantError(409, mariposa.Conflict, "volume data of db.3 of project shop is on node host-n1, and this volume is on node host-n2")
	attach(body("slot", 0)).wantError(400, mariposa.InvalidArgument)

	gone := newID()
	h.volume(gone, mariposa.VolumeSpec{Name: "data", ServiceName: "db", Slot: 1, Node: "n9", Organization: mariposa.FirstOrganization})
	h.call("POST", "/v1/volumes/"+gone+"/attach", attachTo("shop")).wantError(409, mariposa.Conflict, "was removed, and its data with it")
	h.call("POST", "/v1/volumes/"+newID()+"/attach", attachTo("shop")).wantError(404, mariposa.ResourceNotFound)

	st := settled(shop)
	st.Services = map[string]*mariposa.ServiceStatus{"db": {ID: "s-db", Scale: 2, Number: 1}}
	h.plan(shop.ID, st)
	attach(body()).wantError(409, mariposa.Conflict, "service db of project shop is about to start with an empty volume: stop it or scale it down")
}

// Only owners of the organization decide what happens to the data that a project has left.
func TestOnlyOwnersAttachVolumes(t *testing.T) {
	t.Parallel()
	w := newTestTeams(t)
	left, elsewhere := newID(), newID()
	for id, org := range map[string]string{left: w.acme, elsewhere: w.umbra} {
		w.testServer.volume(id, mariposa.VolumeSpec{Name: "data", ServiceName: "db", Slot: 1, Node: "n1", Organization: org})
	}
	body := attachTo(w.shop.ID)
	w.asUser("sam").call("POST", "/v1/volumes/"+left+"/attach", body).wantError(404, mariposa.ResourceNotFound)
	w.asUser("mia").call("POST", "/v1/volumes/"+left+"/attach", body).wantError(403, mariposa.Forbidden, "attaching volumes of acme requires being an owner of the organization")
	w.asUser("ulla").call("POST", "/v1/volumes/"+left+"/attach", body).wantError(404, mariposa.ResourceNotFound)
	w.asUser("olga").call("POST", "/v1/volumes/"+elsewhere+"/attach", body).wantError(404, mariposa.ResourceNotFound)
	w.asUser("ulla").call("POST", "/v1/volumes/"+elsewhere+"/attach", body).wantError(404, mariposa.ResourceNotFound)
	w.asUser("admin").call("POST", "/v1/volumes/"+elsewhere+"/attach", body).wantError(404, mariposa.ResourceNotFound, "is not in organization")
	w.asUser("olga").call("POST", "/v1/volumes/"+left+"/attach", body).wantError(409, mariposa.Conflict, "has no volume data in its manifest")
}

// A volume is attached only where instances can start with it: with the size in the manifest, and on
// the node of the other volumes that they use.
func TestALeftVolumeMustFitItsNewPlace(t *testing.T) {
	t.Parallel()
	h := newTestServer(t)
	for _, n := range []string{"n1", "n2"} {
		h.node(n, mariposa.NodeSpec{Name: "host-" + n}, mariposa.NodeStatus{State: mariposa.NodeRunning})
	}
	shop := h.create("shop", `services:
  db: {compute_type: dummy, scale: 0, volumes: [data:/d, files:/f, small:/s]}
  web: {compute_type: dummy, scale: 0, volumes: [files:/f, pages:/p]}
volumes: {data: , small: {size: 1m}, files: {shared: true}, pages: {shared: true}}
`)
	st := settled(shop)
	st.Services = map[string]*mariposa.ServiceStatus{"db": {ID: "s-db", Number: 1}, "web": {ID: "s-web", Number: 1}}
	h.plan(shop.ID, st)
	left := func(name, node string, size int64, shared bool) string {
		id, spec := newID(), mariposa.VolumeSpec{Name: name, Node: node, Size: size, Shared: shared, Organization: mariposa.FirstOrganization, ProjectName: "former"}
		if !shared {
			spec.ServiceName, spec.Slot = "db", 1
		}
		h.volume(id, spec)
		return id
	}
	attach := func(id string, more ...string) reply {
		body := attachTo("shop")
		for i := 0; i < len(more); i += 2 {
			body[more[i]] = more[i+1]
		}
		return h.call("POST", "/v1/volumes/"+id+"/attach", body)
	}
	attach(left("small", "n1", 0, false)).wantError(409, mariposa.Conflict, "volume small of db.1 was created without a size and cannot get one")
	attach(left("small", "n1", 2<<20, false)).wantError(409, mariposa.Conflict, "has 2 MiB and cannot become smaller, but the manifest of project shop sets 1 MiB for volume small")
	attach(left("files", "n1", 0, true), "name", "data").wantError(409, mariposa.Conflict, "shared volume files belonged to no slot, and project shop does not share a volume data: choose a slot (--as SERVICE.1:data)")

	want[contract.Changed](attach(left("files", "n1", 0, true)), 200)
	attach(left("data", "n2", 0, false)).wantError(409, mariposa.Conflict, "shared volume files of project shop is on node host-n1, and this volume is on node host-n2")
	attach(left("pages", "n2", 0, true)).wantError(409, mariposa.Conflict, "shared volume files of project shop is on node host-n1")
	want[contract.Changed](attach(left("data", "n1", 0, false)), 200)
	want[contract.Changed](attach(left("pages", "n1", 0, true)), 200)
}

// Of several volumes that are attached to one slot at the same time, the slot gets one.
func TestOneOfManyVolumesIsAttachedToASlot(t *testing.T) {
	t.Parallel()
	h, shop, _ := leaves(t)
	const n = 8
	replies := make(chan reply, n)
	for range n {
		id := newID()
		h.volume(id, mariposa.VolumeSpec{Name: "data", ServiceName: "db", Slot: 5, Node: "n1", Organization: mariposa.FirstOrganization})
		go func() { replies <- h.call("POST", "/v1/volumes/"+id+"/attach", attachTo(shop.ID)) }()
	}
	done := 0
	for range n {
		if r := <-replies; r.status == 200 {
			done++
		} else {
			r.wantError(409, mariposa.Conflict, "db.5 of project shop already has a volume data")
		}
	}
	if done != 1 {
		t.Errorf("%d were attached", done)
	}
}
