package engine_test

import (
	"strings"
	"testing"
	"time"

	"mariposa"
	"mariposa/store"
)

// version submits a version of a project without a task, like a change of metadata.
func (r *rig) version(project string, number int, cause mariposa.Cause, body string) {
	r.t.Helper()
	rec, err := r.store.Get(r.t.Context(), mariposa.KindProject, project)
	if err != nil {
		r.t.Fatal(err)
	}
	spec := *rec.Spec.(*mariposa.ProjectSpec)
	spec.Number, spec.Version = number, "v"+strings.Repeat("'", number)
	r.write(
		store.Write{Kind: mariposa.KindProject, ID: project, Project: project, Spec: &spec},
		store.Write{Kind: mariposa.KindVersion, ID: mariposa.VersionID(project, number), Project: project, Spec: &mariposa.VersionSpec{
			Project: project, Version: spec.Version, Number: number, Manifest: []byte(body), Cause: cause,
		}})
}

func (r *rig) wantNumber(project string, number, completed int) {
	r.t.Helper()
	if st := r.project(project); st.Number != number || st.Completed != completed {
		r.t.Fatalf("version %d is in force and %d was fully so, want %d and %d", st.Number, st.Completed, number, completed)
	}
}

func TestAVersionOfOtherValuesComesIntoForceWithoutATask(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.replica("r1")
	r.node("n1", mariposa.Resources{})
	p, _ := r.create("shop", web(2))
	r.settle()
	r.wantNumber(p, 1, 1)
	made := r.events("instance.provisioning")
	r.version(p, 2, mariposa.CauseMetadata, web(2))
	r.version(p, 3, mariposa.CauseMetadata, web(2))
	r.settle()
	r.wantNumber(p, 3, 3)
	if st := r.project(p); st.Services["web"].Number != 3 || st.Version != "v'''" || st.Status != mariposa.StatusConverged {
		t.Errorf("the project is %+v", st)
	}
	if n := r.events("instance.provisioning"); n != made || len(r.own()) != 0 {
		t.Errorf("%d were made for it, and %d tasks", n-made, len(r.own()))
	}
	rec, err := r.store.Get(t.Context(), mariposa.KindVersion, mariposa.VersionID(p, 3))
	if err != nil {
		t.Fatal(err)
	}
	if st, _ := rec.Status.(*mariposa.VersionStatus); st == nil || st.Completed.IsZero() {
		t.Errorf("the version is %+v", rec.Status)
	}
}

func TestAVersionThatNeedsATaskIsNotAdopted(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name     string
		versions func(r *rig, p string)
	}{
		{"another manifest", func(r *rig, p string) { r.version(p, 2, mariposa.CauseManifest, web(2)) }},
		{"other values on top of another manifest", func(r *rig, p string) {
			r.version(p, 2, mariposa.CauseManifest, web(3))
			r.version(p, 3, mariposa.CauseMetadata, web(3))
		}},
		{"a revert", func(r *rig, p string) { r.version(p, 2, mariposa.CauseRevert, web(2)) }},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			r.replica("r1")
			r.node("n1", mariposa.Resources{})
			p, _ := r.create("shop", web(2))
			r.settle()
			c.versions(r, p)
			r.settle()
			r.wantNumber(p, 1, 1)
		})
	}
}

func TestOtherValuesWaitForTheTaskThatBringsTheirManifest(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.replica("r1")
	r.node("n1", mariposa.Resources{})
	r.lazy = true
	p, start := r.create("shop", web(1))
	r.settle()
	r.version(p, 2, mariposa.CauseManifest, web(2))
	task := r.ask(p, mariposa.TaskReprovision, mariposa.Patch{Number: 2}, "web") // behind the start
	r.version(p, 3, mariposa.CauseMetadata, web(2))
	r.settle()
	r.wantTask(start, mariposa.TaskActive)
	r.wantNumber(p, 1, 0)
	r.lazy = false
	r.settle()
	r.wantTask(task, mariposa.TaskCompleted)
	r.wantNumber(p, 3, 3)
}

func TestOtherValuesStartNoProjectThatHasNotBegun(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.replica("r1")
	r.node("n1", mariposa.Resources{})
	p := r.newID()
	r.write(
		store.Write{Kind: mariposa.KindProject, ID: p, Project: p, Spec: &mariposa.ProjectSpec{Name: "shop", Number: 1, Version: "v1", Services: map[string]string{"web": "service-web"}}},
		store.Write{Kind: mariposa.KindVersion, ID: mariposa.VersionID(p, 1), Project: p, Spec: &mariposa.VersionSpec{Project: p, Version: "v1", Number: 1, Manifest: []byte(web(1))}})
	r.version(p, 2, mariposa.CauseMetadata, web(1))
	r.settle()
	r.wantInstances(0)
}

func TestADeletedProjectGivesBackItsSecretsAndItsShareOfTheQuota(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.replica("r1")
	r.node("n1", mariposa.Resources{})
	p, _ := r.create("shop", web(1))
	rec, err := r.store.Get(t.Context(), mariposa.KindProject, p)
	if err != nil {
		t.Fatal(err)
	}
	spec := *rec.Spec.(*mariposa.ProjectSpec)
	spec.Demand = mariposa.Resources{Instances: 3, Memory: 100}
	resources, projects := mariposa.LedgerOf("default")
	r.commit(store.Unit{
		Writes: []store.Write{
			{Kind: mariposa.KindProject, ID: p, Project: p, Spec: &spec},
			{Kind: mariposa.KindMetadata, ID: mariposa.MetadataID(p, 1), Project: p, Spec: &mariposa.MetadataSpec{Project: p, Number: 1}},
			{Kind: mariposa.KindKey, ID: p, Spec: &mariposa.KeySpec{Owner: p}},
			{Kind: mariposa.KindKey, ID: mariposa.StoreKey, Spec: &mariposa.KeySpec{Owner: mariposa.StoreKey}},
		},
		Claims: []store.Claim{
			{Node: resources, Take: mariposa.Resources{Instances: 4, Memory: 150}},
			{Node: projects, Take: mariposa.Resources{Instances: 2}},
		},
	})
	r.settle()
	r.delete(p)
	r.settle()
	if n := len(r.list(mariposa.KindMetadata)); n != 0 {
		t.Errorf("%d generations of metadata are left", n)
	}
	if keys := r.list(mariposa.KindKey); len(keys) != 1 || keys[0].ID != mariposa.StoreKey {
		t.Errorf("the keys left are %+v", keys)
	}
	ledger, err := r.store.Ledger(t.Context())
	if err != nil || ledger[resources] != (mariposa.Resources{Instances: 1, Memory: 50}) || ledger[projects].Instances != 1 {
		t.Errorf("reserved are %+v, %v", ledger, err)
	}
}

func TestARepairIsAudited(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.replica("r1")
	r.node("n1", mariposa.Resources{})
	p, _ := r.create("shop", web(2))
	r.settle()
	r.pass(time.Minute)
	r.kill(r.wantInstances(2)[0].ID)
	r.settle()
	log, err := r.store.Audit(t.Context(), store.AuditQuery{Action: "instance.repair"})
	if err != nil || len(log) != 1 {
		t.Fatalf("the audit log says %+v, %v", log, err)
	}
	if a := log[0]; a.Actor != "mariposa" || a.Project != p || a.ProjectName != "shop" || a.Task != r.own()[0].ID || !strings.Contains(a.Reason, "killed by signal 9") {
		t.Errorf("the audit log says %+v", a)
	}
}

func TestAnInstanceOfNoServiceIsPlacedWhereThereIsRoom(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	x := r.replica("r1")
	r.node("n1", mariposa.Resources{Instances: 1})
	r.settle()
	spec := &mariposa.InstanceSpec{Compute: mariposa.ComputeDummy}
	claim, release, err := x.eng.Place("i1", spec)
	if err != nil || spec.Node != "n1" || claim.Node != "n1" || claim.Take.Instances != 1 || claim.Limit.Instances != 1 {
		t.Fatalf("placed on %q with %+v, %v", spec.Node, claim, err)
	}
	if _, _, err := x.eng.Place("i2", &mariposa.InstanceSpec{Compute: mariposa.ComputeDummy}); mariposa.CodeOf(err) != mariposa.Conflict {
		t.Errorf("where there is no room: %v", err)
	}
	release()
	if _, _, err := x.eng.Place("i2", &mariposa.InstanceSpec{Compute: mariposa.ComputeDummy}); err != nil {
		t.Errorf("what was given back is not free: %v", err)
	}
}

func TestAVersionThatIsCountedOnKeepsItsNumber(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.replica("r1")
	r.node("n1", mariposa.Resources{})
	p, _ := r.create("shop", web(2))
	r.settle()
	r.version(p, 2, mariposa.CauseMetadata, web(2))
	r.settle()
	made := r.events("instance.provisioning")
	rec, err := r.store.Get(t.Context(), mariposa.KindProject, p)
	if err != nil {
		t.Fatal(err)
	}
	spec := *rec.Spec.(*mariposa.ProjectSpec)
	spec.Version = "counted"
	r.write(
		store.Write{Kind: mariposa.KindProject, ID: p, Project: p, Spec: &spec},
		store.Write{Kind: mariposa.KindVersion, ID: mariposa.VersionID(p, 2), Project: p, Spec: &mariposa.VersionSpec{
			Project: p, Version: "counted", Number: 2, Manifest: []byte(web(2)), Cause: mariposa.CauseMetadata, Counter: "hits",
		}})
	r.settle()
	r.wantNumber(p, 2, 2)
	if st := r.project(p); st.Version != "counted" || st.Status != mariposa.StatusConverged {
		t.Errorf("the project is %+v", st)
	}
	if n := r.events("instance.provisioning"); n != made {
		t.Errorf("%d were made for it", n-made)
	}
}

func TestADeletedProjectWaitsForItsUnmanagedInstances(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.replica("r1")
	r.node("n1", mariposa.Resources{})
	r.node("n2", mariposa.Resources{})
	p, _ := r.create("shop", web(1))
	r.settle()
	for id, node := range map[string]string{"here": "n1", "away": "n2"} { // as the deletion leaves them
		spec := &mariposa.InstanceSpec{Name: id, Project: p, Node: node, Compute: mariposa.ComputeDummy, Orphaned: true, Goal: mariposa.GoalGone, Generation: 2}
		r.write(store.Write{Kind: mariposa.KindInstance, ID: id, Project: p, Spec: spec})
	}
	r.leave("n2")
	r.settle()
	task := r.delete(p)
	r.settle()
	r.wantInstances(2)
	if n := len(r.list(mariposa.KindProject)); n != 1 {
		t.Errorf("%d projects are left while a reachable node has an instance", n)
	}
	r.wantTask(task, mariposa.TaskActive)
	r.write(store.Write{Kind: mariposa.KindInstance, ID: "here", Delete: true})
	r.settle()
	r.wantTask(task, mariposa.TaskCompleted)
	if left, n := r.wantInstances(1), len(r.list(mariposa.KindProject)); left[0].ID != "away" || n != 0 {
		t.Errorf("%s and %d projects are left", left[0].ID, n)
	}
}

func TestADeletedProjectDoesNotWaitForANodeThatIsLostMeanwhile(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.replica("r1")
	r.node("n1", mariposa.Resources{})
	p, _ := r.create("shop", web(0))
	r.settle()
	spec := &mariposa.InstanceSpec{Name: "here", Project: p, Node: "n1", Compute: mariposa.ComputeDummy, Orphaned: true, Goal: mariposa.GoalGone, Generation: 2}
	r.write(store.Write{Kind: mariposa.KindInstance, ID: "here", Project: p, Spec: spec})
	r.lazy = true
	task := r.delete(p)
	r.settle()
	r.wantTask(task, mariposa.TaskActive)
	r.leave("n1")
	r.settle()
	r.wantTask(task, mariposa.TaskCompleted)
	if n := len(r.list(mariposa.KindProject)); n != 0 {
		t.Errorf("%d projects are left", n)
	}
}
