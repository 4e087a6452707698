package engine_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"mariposa"
	"mariposa/store"
)

const volumesBelow = "volumes: {data: {size: 1g}, logs: }\n"

// db is a manifest with a service that has a volume in each slot.
func db(scale int, more ...string) string {
	return strings.Replace(web(scale, append([]string{"volumes: [data:/d]"}, more...)...), "web:", "db:", 1) + volumesBelow
}

// volumes returns those of the store, by slot and name, including those to be removed.
func (r *rig) volumes() map[string]store.Record {
	r.t.Helper()
	all := map[string]store.Record{}
	for _, rec := range r.list(mariposa.KindVolume) {
		spec := rec.Spec.(*mariposa.VolumeSpec)
		key := fmt.Sprintf("%s.%d %s", spec.ServiceName, spec.Slot, spec.Name)
		if spec.Goal == mariposa.GoalGone {
			key += " gone"
		}
		if _, twice := all[key]; twice {
			r.t.Fatalf("there are two of %s", key)
		}
		all[key] = rec
	}
	return all
}

// settled checks that every instance is where its volumes are, and uses them.
func (r *rig) wantAtTheirVolumes(n int) {
	r.t.Helper()
	volumes := r.volumes()
	for _, rec := range r.wantInstances(n) {
		spec := rec.Spec.(*mariposa.InstanceSpec)
		for _, m := range spec.Mounts {
			v, ok := volumes[fmt.Sprintf("%s.%d %s", spec.ServiceName, spec.Slot, m.Name)]
			if !ok || v.ID != m.Volume || v.Spec.(*mariposa.VolumeSpec).Node != spec.Node {
				r.t.Errorf("%s is on %s with %+v; its volume is %+v", spec.Name, spec.Node, m, v.Spec)
			}
		}
		if len(spec.Mounts) == 0 {
			r.t.Errorf("%s has no volume", spec.Name)
		}
	}
}

func (r *rig) threeNodes() {
	r.replica("r1")
	for _, id := range []string{"n1", "n2", "n3"} {
		r.node(id, mariposa.Resources{})
	}
}

func TestASlotGetsItsVolumesWithItsFirstInstanceInOneCommit(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.threeNodes()
	p, task := r.create("shop", strings.Replace(db(3), "data:/d", "data:/d, logs:/l, data:/again", 1))
	r.settle()
	r.wantTask(task, mariposa.TaskCompleted)
	r.wantAtTheirVolumes(3)
	if n := len(r.volumes()); n != 6 {
		t.Fatalf("there are %d volumes", n)
	}
	for key, rec := range r.volumes() {
		spec := rec.Spec.(*mariposa.VolumeSpec)
		i, err := r.store.Get(t.Context(), mariposa.KindInstance, spec.Instance)
		if err != nil || spec.Project != p || spec.Service != "service-db" || spec.Task != task || spec.Compute != mariposa.ComputeDummy {
			t.Errorf("%s: %+v, %v", key, spec, err)
		}
		if size := map[string]int64{"data": 1 << 30}[spec.Name]; spec.Size != size {
			t.Errorf("%s has %d bytes", key, spec.Size)
		}
		if is := i.Spec.(*mariposa.InstanceSpec); len(is.Mounts) != 3 || is.Mounts[0].Volume != is.Mounts[2].Volume {
			t.Errorf("%s: %+v", key, is.Mounts)
		}
	}
	if n := r.events("volume.created"); n != 6 {
		t.Errorf("%d events that a volume was created", n)
	}
}

func TestLaterInstancesOfASlotGoWhereItsVolumeIs(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.threeNodes()
	p, _ := r.create("shop", db(3))
	r.settle()
	before := r.volumes()
	r.node("n4", mariposa.Resources{}) // emptier than all others
	r.kill(r.of("db")[0].ID)
	r.settle()
	r.wantAtTheirVolumes(3)
	r.ask(p, mariposa.TaskReprovision, mariposa.Patch{Reprovision: []string{"db"}}, "db")
	r.settle()
	r.pass(time.Minute)
	r.wantAtTheirVolumes(3)
	for _, scale := range []int{0, 3} {
		r.ask(p, mariposa.TaskScale, mariposa.Patch{Scale: map[string]int{"db": scale}}, "db")
		r.settle()
	}
	r.wantAtTheirVolumes(3)
	for key, rec := range r.volumes() {
		if before[key].ID != rec.ID {
			t.Errorf("%s is another one", key)
		}
	}
	if made := r.events("volume.created"); made != 3 {
		t.Errorf("%d were made", made)
	}
}

func TestASlotWhoseNodeIsAwayIsBlockedAloneAndGoesOnWhenItReturns(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.threeNodes()
	p, _ := r.create("shop", db(3, "reschedule: {after: 30}"))
	r.settle()
	lost := r.volumes()["db.2 data"].Spec.(*mariposa.VolumeSpec).Node
	r.leave(lost)
	since := r.clk.Now().UTC().Format("15:04:05 UTC")
	r.pass(time.Minute)
	ss := r.project(p).Services["db"]
	want := "db.2 has its volume data on node " + lost + ", which has been unknown since " + since + "; it starts when the node returns"
	if ss.Status != mariposa.StatusBlocked || said(ss.Reason) != want {
		t.Errorf("%s: %s, want %s", ss.Status, said(ss.Reason), want)
	}
	r.ask(p, mariposa.TaskScale, mariposa.Patch{Scale: map[string]int{"db": 5}}, "db") // others go on
	r.settle()
	if n := r.up(p, "db"); n != 5 { // one of them is the lost one
		t.Errorf("%d run", n)
	}
	r.wantAtTheirVolumes(5)
	r.comeBack(lost)
	r.settle()
	if ss := r.project(p).Services["db"]; ss.Status != mariposa.StatusConverged {
		t.Errorf("%s: %s", ss.Status, said(ss.Reason))
	}
	r.wantAtTheirVolumes(5)
}

func TestASlotWhoseInstanceIsGoneWaitsForItsNode(t *testing.T) {
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
			func(r *rig, node string) { r.capacity(node, 1); r.occupy(node) }, func(r *rig, node string) { r.capacity(node, 0) },
			"is full; it starts when there is room",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			r.threeNodes()
			p, _ := r.create("shop", db(3))
			r.settle()
			node := r.volumes()["db.1 data"].Spec.(*mariposa.VolumeSpec).Node
			r.ask(p, mariposa.TaskScale, mariposa.Patch{Scale: map[string]int{"db": 0}}, "db")
			r.settle()
			c.away(r, node)
			r.settle()
			r.ask(p, mariposa.TaskScale, mariposa.Patch{Scale: map[string]int{"db": 3}}, "db")
			r.settle()
			ss := r.project(p).Services["db"]
			if n := r.up(p, "db"); n != 2 || ss.Status != mariposa.StatusBlocked || !strings.Contains(said(ss.Reason), "db.1 has its volume data on node "+node+", which "+c.says) {
				t.Errorf("%d run, %s: %s", n, ss.Status, said(ss.Reason))
			}
			c.back(r, node)
			r.settle()
			r.pass(20 * time.Second)
			if n := r.up(p, "db"); n != 3 {
				t.Errorf("%d run: %s", n, said(r.project(p).Services["db"].Reason))
			}
			for _, rec := range r.of("db") {
				if spec := rec.Spec.(*mariposa.InstanceSpec); spec.Slot == 1 && spec.Node != node {
					t.Errorf("db.1 moved to %s", spec.Node)
				}
			}
		})
	}
}

func (r *rig) drain(node string, drained bool) {
	r.t.Helper()
	r.write(store.Write{Kind: mariposa.KindNode, ID: node, Spec: &mariposa.NodeSpec{Name: node, Drained: drained}})
}

func (r *rig) capacity(node string, instances int) {
	r.t.Helper()
	rec, err := r.store.Get(r.t.Context(), mariposa.KindNode, node)
	if err != nil {
		r.t.Fatal(err)
	}
	st := *rec.Status.(*mariposa.NodeStatus)
	st.Capacity.Instances = instances
	r.write(store.Write{Kind: mariposa.KindNode, ID: node, Status: &st})
}

// occupy puts an instance without a manager on a node.
func (r *rig) occupy(node string) {
	r.t.Helper()
	spec := &mariposa.InstanceSpec{Name: "other", Node: node, Compute: mariposa.ComputeDummy, Goal: mariposa.GoalRunning, Generation: 1}
	r.commit(store.Unit{
		Writes: []store.Write{{Kind: mariposa.KindInstance, ID: r.newID(), Spec: spec, Status: &mariposa.InstanceStatus{State: mariposa.StateRunning, Generation: 1}}},
		Claims: []store.Claim{{Node: node, Take: spec.Resources()}},
	})
}

func TestManyBlockedSlotsDoNotKeepOthersWaiting(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.bulk = true
	r.replica("r1")
	r.node("n1", mariposa.Resources{})
	p, _ := r.create("shop", db(700)+"")
	r.settle()
	r.node("n2", mariposa.Resources{})
	r.leave("n1")
	r.pass(3 * time.Minute)
	ss := r.project(p).Services["db"]
	if ss.Status != mariposa.StatusBlocked || !strings.Contains(said(ss.Reason), "(and 699 more instances)") {
		t.Fatalf("%s: %s", ss.Status, said(ss.Reason))
	}
	r.ask(p, mariposa.TaskScale, mariposa.Patch{Scale: map[string]int{"db": 705}}, "db")
	r.settle()
	if n := len(r.volumes()); n != 705 {
		t.Errorf("there are %d volumes", n)
	}
}

func TestAVolumeWithATombstoneIsNoSlotsAnyMore(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.threeNodes()
	p, _ := r.create("shop", db(1))
	r.settle()
	r.ask(p, mariposa.TaskStop, mariposa.Patch{Goal: mariposa.GoalStopped})
	r.settle()
	old := r.volumes()["db.1 data"]
	spec := *old.Spec.(*mariposa.VolumeSpec)
	spec.Goal = mariposa.GoalGone
	r.write(store.Write{Kind: mariposa.KindVolume, ID: old.ID, Spec: &spec})
	r.leave(spec.Node)
	r.settle()
	r.ask(p, mariposa.TaskStart, mariposa.Patch{Goal: mariposa.GoalStarted})
	r.settle()
	r.wantAtTheirVolumes(1)
	fresh := r.volumes()["db.1 data"]
	if fresh.ID == old.ID || fresh.Spec.(*mariposa.VolumeSpec).Node == spec.Node || len(r.volumes()) != 2 {
		t.Errorf("it has %+v", fresh.Spec)
	}
}

func TestANewVolumeOfASlotGoesWhereItsOthersAreIfItCan(t *testing.T) {
	t.Parallel()
	for away, together := range map[bool]bool{false: true, true: false} {
		r := newRig(t)
		r.threeNodes()
		p, _ := r.create("shop", db(1))
		r.settle()
		at := r.volumes()["db.1 data"].Spec.(*mariposa.VolumeSpec).Node
		r.ask(p, mariposa.TaskScale, mariposa.Patch{Scale: map[string]int{"db": 0}}, "db")
		r.settle()
		r.occupy(at) // others are emptier
		if away {
			r.leave(at)
		}
		r.write(store.Write{Kind: mariposa.KindVersion, ID: mariposa.VersionID(p, 2), Project: p, Spec: &mariposa.VersionSpec{
			Project: p, Version: "v2", Number: 2, Manifest: []byte(strings.Replace(db(1), "data:/d", "logs:/l", 1)),
		}})
		r.ask(p, mariposa.TaskReprovision, mariposa.Patch{Number: 2, Scale: map[string]int{"db": 1}}, "db")
		r.settle()
		if logs := r.volumes()["db.1 logs"].Spec.(*mariposa.VolumeSpec); (logs.Node == at) != together {
			t.Errorf("data is on %s, logs are on %s", at, logs.Node)
		}
	}
}

func TestVolumesThatContradictEachOtherBlockTheirSlotWithTheWayOut(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.threeNodes()
	p, _ := r.create("shop", strings.Replace(db(2), "data:/d", "data:/d, logs:/l", 1))
	r.settle()
	r.ask(p, mariposa.TaskStop, mariposa.Patch{Goal: mariposa.GoalStopped})
	r.settle()
	was := r.volumes()
	apart, other := *was["db.1 logs"].Spec.(*mariposa.VolumeSpec), *was["db.2 data"].Spec.(*mariposa.VolumeSpec)
	apart.Node = "n9"
	other.Compute = mariposa.ComputeProcess
	r.write(store.Write{Kind: mariposa.KindVolume, ID: was["db.1 logs"].ID, Spec: &apart}, store.Write{Kind: mariposa.KindVolume, ID: was["db.2 data"].ID, Spec: &other})
	r.ask(p, mariposa.TaskStart, mariposa.Patch{Goal: mariposa.GoalStarted})
	r.settle()
	ss := r.project(p).Services["db"]
	for _, part := range []string{"db.1 has its volume data on node", "and its volume logs on node n9", "mariposa volume rm " + was["db.1 data"].ID, "(and 1 more instance)"} {
		if !strings.Contains(said(ss.Reason), part) {
			t.Errorf("%s: %s, want …%s…", ss.Status, said(ss.Reason), part)
		}
	}
	r.write(store.Write{Kind: mariposa.KindVolume, ID: was["db.1 logs"].ID, Delete: true})
	r.settle()
	if ss := r.project(p).Services["db"]; !strings.Contains(said(ss.Reason), "db.2: its volume data belongs to compute type process") {
		t.Errorf("%s: %s", ss.Status, said(ss.Reason))
	}
	if n := r.up(p, "db"); n != 1 {
		t.Errorf("%d run", n)
	}
}

func TestADeletedProjectLeavesItsVolumesToItsOrganizationUnlessTheyGoToo(t *testing.T) {
	t.Parallel()
	for drop, want := range map[bool]mariposa.Goal{false: mariposa.GoalKept, true: mariposa.GoalGone} {
		r := newRig(t)
		r.threeNodes()
		p, _ := r.create("shop", db(2))
		r.settle()
		rec, err := r.store.Get(t.Context(), mariposa.KindProject, p)
		if err != nil {
			t.Fatal(err)
		}
		spec := *rec.Spec.(*mariposa.ProjectSpec)
		spec.Deleting, spec.DropVolumes = true, drop
		r.leave(r.of("db")[0].Spec.(*mariposa.InstanceSpec).Node) // its instance becomes an orphan
		r.write(store.Write{Kind: mariposa.KindProject, ID: p, Spec: &spec})
		r.ask(p, mariposa.TaskStop, mariposa.Patch{Goal: mariposa.GoalDeleted})
		for _, v := range r.volumes() {
			if v.Spec.(*mariposa.VolumeSpec).Project != p {
				t.Error("its volumes leave before its instances are gone")
			}
		}
		r.settle()
		if got := len(r.list(mariposa.KindProject)); got != 0 {
			t.Fatalf("there are %d projects", got)
		}
		all := r.list(mariposa.KindVolume)
		if len(all) != 2 {
			t.Fatalf("%d are left", len(all))
		}
		for _, v := range all {
			if spec := v.Spec.(*mariposa.VolumeSpec); spec.Goal != want || spec.Project != "" || spec.ProjectName != "shop" || spec.Organization != "default" {
				t.Errorf("%+v", spec)
			}
		}
	}
}

// A service for which no node can run one more instance is not tried again for every
// slot; but slots whose volume is on a node are.
func TestNoNodeForNewSlotsIsNoReasonForThoseWithAVolume(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.replica("r1")
	r.node("n1", mariposa.Resources{Instances: 2})
	p, _ := r.create("shop", db(2))
	r.settle()
	r.ask(p, mariposa.TaskScale, mariposa.Patch{Scale: map[string]int{"db": 5}}, "db")
	r.settle()
	ss := r.project(p).Services["db"]
	if ss.Status != mariposa.StatusBlocked || !strings.HasPrefix(said(ss.Reason), "no node fits this dummy instance: full (1 of 1)") || strings.Contains(said(ss.Reason), "more") {
		t.Errorf("%s: %s", ss.Status, said(ss.Reason))
	}
	victim := slices.MaxFunc(r.of("db"), func(a, b store.Record) int { return strings.Compare(a.ID, b.ID) })
	r.kill(victim.ID)
	r.settle()
	r.pass(20 * time.Second)
	if n := r.up(p, "db"); n != 2 {
		t.Errorf("%d run: %s", n, said(r.project(p).Services["db"].Reason))
	}
}
