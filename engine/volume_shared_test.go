package engine_test

import (
	"strings"
	"testing"
	"time"

	"mariposa"
	"mariposa/store"
)

// sharing is a manifest with two services that share a volume.
const sharing = `services:
  one: {compute_type: dummy, scale: 2, volumes: [files:/f]}
  two: {compute_type: dummy, volumes: [files:/srv]}
volumes: {files: {shared: true}}
`

// wantTogether checks that all instances use the one shared volume, on its node, and returns it.
func (r *rig) wantTogether(instances int) (node string) {
	r.t.Helper()
	all := r.list(mariposa.KindVolume)
	if len(all) != 1 {
		r.t.Fatalf("there are %d volumes", len(all))
	}
	v := all[0].Spec.(*mariposa.VolumeSpec)
	for _, rec := range r.wantInstances(instances) {
		if i := rec.Spec.(*mariposa.InstanceSpec); !v.Shared || len(i.Mounts) != 1 || i.Mounts[0].Volume != all[0].ID || i.Node != v.Node {
			r.t.Errorf("%s is on %s with %+v; the volume is %+v", i.Name, i.Node, i.Mounts, v)
		}
	}
	return v.Node
}

// Instances that share a volume never run elsewhere than on its node: more of them, and those that
// are replaced, wait until it can run them.
func TestInstancesThatShareAVolumeWaitForItsNode(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		away, back func(r *rig, node string)
		says       string
	}{
		"that cannot be reached": {(*rig).leave, (*rig).comeBack, "has been unknown since"},
		"that is drained": {
			func(r *rig, node string) { r.drain(node, true) }, func(r *rig, node string) { r.drain(node, false) },
			"is drained; it starts when the drain ends",
		},
		"that is full": {
			func(r *rig, node string) { r.capacity(node, 3) }, func(r *rig, node string) { r.capacity(node, 0) },
			"is full; it starts when there is room",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			r.threeNodes()
			p, _ := r.create("shop", sharing)
			r.settle()
			node := r.wantTogether(3)
			c.away(r, node)
			r.settle()
			r.ask(p, mariposa.TaskScale, mariposa.Patch{Scale: map[string]int{"one": 4}}, "one")
			r.settle()
			ss := r.project(p).Services["one"]
			if ss.Status != mariposa.StatusBlocked || !strings.Contains(said(ss.Reason), "has its volume files on node "+node+", which "+c.says) {
				t.Errorf("%s: %s", ss.Status, said(ss.Reason))
			}
			r.wantTogether(3) // those that run are not moved
			c.back(r, node)
			r.settle()
			r.pass(20 * time.Second)
			if r.wantTogether(5) != node {
				t.Error("the volume has moved")
			}
		})
	}
}

// attached writes a volume that somebody has attached to slot db.1 of a project.
func (r *rig) attached(project, node string) (id string) {
	r.t.Helper()
	id = r.newID()
	r.write(store.Write{Kind: mariposa.KindVolume, ID: id, Project: project, Spec: &mariposa.VolumeSpec{
		Name: "data", Project: project, Service: "service-db", ServiceName: "db", Slot: 1, Compute: mariposa.ComputeDummy, Node: node, Goal: mariposa.GoalKept, Attaching: true, Size: 1 << 30,
	}})
	return id
}

func (r *rig) volumeOf(id string) *mariposa.VolumeSpec {
	r.t.Helper()
	rec, err := r.store.Get(r.t.Context(), mariposa.KindVolume, id)
	if err != nil {
		r.t.Fatal(err)
	}
	return rec.Spec.(*mariposa.VolumeSpec)
}

// Two servers may attach two volumes to one slot at the same time. The planner takes one, and gives
// the other one back.
func TestOneOfTwoVolumesThatAreAttachedAtOnceIsGivenBack(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.threeNodes()
	p, _ := r.create("shop", db(0))
	r.settle()
	first, second := r.attached(p, "n2"), r.attached(p, "n3")
	r.settle()
	if v := r.volumeOf(first); v.Project != p || v.Attaching {
		t.Errorf("the first one is %+v", v)
	}
	if v := r.volumeOf(second); v.Project != "" || v.Attaching || v.Organization != "default" || v.ProjectName != "shop" || !strings.Contains(said(v.Reason), "data") {
		t.Errorf("the second one is %+v: %s", v, said(v.Reason))
	}
	r.ask(p, mariposa.TaskScale, mariposa.Patch{Scale: map[string]int{"db": 1}}, "db")
	r.settle()
	if i := r.wantInstances(1)[0].Spec.(*mariposa.InstanceSpec); i.Node != "n2" || i.Mounts[0].Volume != first {
		t.Errorf("it runs on %s with %+v", i.Node, i.Mounts)
	}
}

// A project is deleted before its planner has seen a volume that was attached to it: the
// organization has it again.
func TestAVolumeThatIsAttachedToADyingProjectIsLeftAgain(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.threeNodes()
	p, _ := r.create("shop", db(0))
	r.settle()
	id := r.attached(p, "n2")
	r.deletes(p)
	r.settle()
	if n := len(r.list(mariposa.KindProject)); n != 0 {
		t.Fatalf("there are %d projects", n)
	}
	if v := r.volumeOf(id); v.Project != "" || v.Attaching || v.Organization != "default" || v.Goal != mariposa.GoalKept {
		t.Errorf("it is %+v", v)
	}
}

// A volume is deleted before the planner has seen that it was attached: no instance gets it.
func TestAVolumeThatIsDeletedWhileItIsAttachedIsNotUsed(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.threeNodes()
	p, _ := r.create("shop", db(0))
	r.settle()
	id := r.attached(p, "n2")
	spec := *r.volumeOf(id)
	spec.Goal = mariposa.GoalGone
	r.write(store.Write{Kind: mariposa.KindVolume, ID: id, Project: p, Spec: &spec})
	r.ask(p, mariposa.TaskScale, mariposa.Patch{Scale: map[string]int{"db": 1}}, "db")
	r.settle()
	if i := r.wantInstances(1)[0].Spec.(*mariposa.InstanceSpec); i.Mounts[0].Volume == id {
		t.Error("it uses the deleted volume")
	}
}
