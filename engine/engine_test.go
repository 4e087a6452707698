package engine_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"mariposa"
	"mariposa/engine"
	"mariposa/store"
)

func TestAStartIsPlannedAndCompleted(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	x := r.replica("r1")
	r.node("n1", mariposa.Resources{})
	p, task := r.create("shop", web(3))
	r.lazy = true
	r.settle()
	st := r.wantTask(task, mariposa.TaskActive)
	if st.Progress != (mariposa.Progress{Total: 3}) || st.Started != r.clk.Now() {
		t.Errorf("the task is %+v", st)
	}
	for _, rec := range r.wantInstances(3) {
		spec := rec.Spec.(*mariposa.InstanceSpec)
		if spec.Task != task || spec.Node != "n1" || spec.Goal != mariposa.GoalRunning || spec.Generation != 1 || !strings.HasPrefix(spec.Name, fmt.Sprintf("web.%d-", spec.Slot)) {
			t.Errorf("made %+v", spec)
		}
	}
	if got := r.project(p); got.Status != mariposa.StatusConverging || got.Number != 1 || got.Version != "v1" {
		t.Errorf("the project is %+v", got)
	}
	r.lazy = false
	r.settle()
	if st := r.wantTask(task, mariposa.TaskCompleted); st.Progress != (mariposa.Progress{Done: 3, Total: 3}) || st.Finished.IsZero() {
		t.Errorf("the task is %+v", st)
	}
	if got := r.project(p); got.Status != mariposa.StatusConverged {
		t.Errorf("the project is %+v", got)
	}
	ledger, err := r.store.Ledger(t.Context())
	if err != nil || ledger["n1"].Instances != 3 || x.eng.Used("n1").Instances != 3 {
		t.Errorf("claimed %+v and %+v, %v", ledger, x.eng.Used("n1"), err)
	}
	if shards, projects := x.eng.Held(); shards != engine.Shards || projects != 1 {
		t.Errorf("holds %d shards, %d projects", shards, projects)
	}
}

func TestAVersionThatIsFullyInForceIsCompleted(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.replica("r1")
	r.node("n1", mariposa.Resources{})
	p, _ := r.create("shop", web(2))
	r.settle()
	rec, err := r.store.Get(t.Context(), mariposa.KindVersion, mariposa.VersionID(p, 1))
	if err != nil {
		t.Fatal(err)
	}
	if st, _ := rec.Status.(*mariposa.VersionStatus); st == nil || st.Completed != r.clk.Now() || r.events("version.completed") != 1 {
		t.Errorf("the version is %+v", rec.Status)
	}
}

func TestAnActorWhoseLastWordWasOfAVersionGoesOn(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	x := r.replica("r1")
	r.node("n1", mariposa.Resources{})
	p, _ := r.create("shop", web(1))
	r.settle()
	// The same version again: the goal does not change, so the last write of the turn
	// that completes the task is the version's.
	r.ask(p, mariposa.TaskStart, mariposa.Patch{Number: 1, Goal: mariposa.GoalStarted})
	r.settle()
	cs, err := r.store.Changes(t.Context(), 0, 0)
	if err != nil || cs[len(cs)-1].Record.Kind != mariposa.KindVersion {
		t.Fatalf("the last change is of a %s, %v; the case is not what it was", cs[len(cs)-1].Record.Kind, err)
	}
	before := r.clk.Asked()
	x.eng.Step(t.Context(), p)
	if r.clk.Asked() == before {
		t.Error("it does not plan any more: who plans asks for the time")
	}
}

func TestProgressNeverRunsBackwards(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.replica("r1")
	r.node("n1", mariposa.Resources{})
	_, task := r.create("shop", web(6))
	last := mariposa.Progress{}
	for n := 0; r.task(task).State != mariposa.TaskCompleted; n++ {
		for _, x := range r.replicas {
			x.turn()
		}
		r.nodesAct()
		if n == 12 { // a running one fails meanwhile
			for _, rec := range r.instances() {
				if st, _ := rec.Status.(*mariposa.InstanceStatus); st != nil && st.State == mariposa.StateRunning {
					r.kill(rec.ID)
					break
				}
			}
		}
		if p := r.task(task).Progress; p.Done < last.Done || p.Total < last.Total || p.Done > p.Total || p.Done*last.Total < last.Done*p.Total {
			t.Fatalf("%+v follows %+v", p, last)
		}
		last = r.task(task).Progress
		if n%5 == 4 {
			r.pass(2 * time.Second)
		}
		if n > 200 {
			t.Fatalf("it never ends: %+v", r.task(task))
		}
	}
}

func TestATaskThatStandsStillFailsAndSaysWhy(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.replica("r1")
	r.node("n1", mariposa.Resources{})
	r.lazy = true
	_, task := r.create("shop", web(1, "update: {deadline: 60}"))
	r.settle()
	r.pass(55 * time.Second)
	r.wantTask(task, mariposa.TaskActive)
	r.pass(10 * time.Second)
	if st := r.wantTask(task, mariposa.TaskFailed); said(st.Reason) != "web: did not start within 1m0s; Mariposa keeps trying" {
		t.Errorf("the task is %+v", st)
	}
	r.lazy = false
	r.settle()
	if rec := r.wantInstances(1)[0]; rec.Status.(*mariposa.InstanceStatus).State != mariposa.StateRunning {
		t.Error("the goal did not stay")
	}
}

func TestATaskThatFailsForWantOfANodeSaysSo(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.replica("r1")
	_, task := r.create("shop", web(1, "update: {deadline: 60}"))
	r.settle()
	r.pass(70 * time.Second)
	if st := r.wantTask(task, mariposa.TaskFailed); !strings.Contains(said(st.Reason), "no node has joined yet") {
		t.Errorf("the task is %+v", st)
	}
}

// The reason of a project names one service, and counts the others with the same status.
func TestAProjectNamesOneServiceAndCountsTheOthers(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.replica("r1")
	p, task := r.create("shop", "services:\n  b: {compute_type: dummy}\n  a: {compute_type: dummy}\n  c: {compute_type: dummy}\n  d: {compute_type: dummy, depends_on: [a]}\n")
	r.settle()
	why := r.project(p).Reason
	if !why.Is(mariposa.ReasonNoNodes) || why.Service != "a" || said(why) != "a: no node has joined yet (and 2 more services)" {
		t.Errorf("the project says %+v: %s", why, said(why))
	}
	if d := r.project(p).Services["d"]; d.Reason == nil || d.Reason.Service != "" {
		t.Errorf("d says %+v", d.Reason)
	}
	r.pass(11 * time.Minute)
	if st := r.wantTask(task, mariposa.TaskFailed); !st.Reason.Is(mariposa.ReasonStartDeadline) || !st.Reason.Cause.Is(mariposa.ReasonNoNodes) || st.Reason.Service != "a" {
		t.Errorf("the task says %+v: %s", st.Reason, said(st.Reason))
	}
}

func TestABlockedProjectSaysWhyAndGoesOnWhenItCan(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, body, says string
		node             *mariposa.Resources
	}{
		{"no node", web(1), "no node has joined yet", nil},
		{"no memory", web(1, "memory: 512m"), "less than 512 MiB of memory", &mariposa.Resources{Memory: 256 << 20}},
		{"no cpu", web(1, "cpu: 2"), "cpu free", &mariposa.Resources{MilliCPU: 1000}},
		{"no room", web(2), ": full", &mariposa.Resources{Instances: 1}},
		{"a port that is taken", web(2, `ports: ["80:8080"]`), "port 80 taken", &mariposa.Resources{}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			r.replica("r1")
			if c.node != nil {
				r.node("n1", *c.node)
			}
			p, task := r.create("shop", c.body)
			r.settle()
			st := r.project(p)
			if st.Status != mariposa.StatusBlocked || !strings.Contains(said(st.Reason), c.says) || st.Services["web"].Status != mariposa.StatusBlocked {
				t.Fatalf("the project is %s: %s", st.Status, said(st.Reason))
			}
			r.wantTask(task, mariposa.TaskActive)
			r.node("n2", mariposa.Resources{})
			r.settle() // no time passes
			r.wantTask(task, mariposa.TaskCompleted)
			if st := r.project(p); st.Status != mariposa.StatusConverged || said(st.Reason) != "" {
				t.Errorf("the project is %s: %s", st.Status, said(st.Reason))
			}
		})
	}
}

func TestARepairIsATaskOfMariposasOwn(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.replica("r1")
	r.node("n1", mariposa.Resources{})
	p, _ := r.create("shop", web(2))
	r.settle()
	r.pass(time.Minute)
	lost := r.wantInstances(2)[0].ID
	r.kill(lost)
	r.settle()
	own := r.own()
	if len(own) != 1 {
		t.Fatalf("%d tasks of its own", len(own))
	}
	spec, st := own[0].Spec.(*mariposa.TaskSpec), own[0].Status.(*mariposa.TaskStatus)
	if spec.Component != "repair" || len(spec.Services) != 1 || spec.Services[0] != "web" || said(spec.Reason) == "" || st.State != mariposa.TaskCompleted || !own[0].Archived {
		t.Errorf("the repair is %+v, %+v", spec, st)
	}
	for _, rec := range r.wantInstances(2) {
		if rec.ID == lost {
			t.Error("the lost one is still on the books")
		}
	}
	if got := r.project(p); got.Status != mariposa.StatusConverged {
		t.Errorf("the project is %+v", got)
	}
}

func TestARepairIsTakenOverByAPersonsTask(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.replica("r1")
	r.node("n1", mariposa.Resources{})
	p, _ := r.create("shop", web(2))
	r.settle()
	r.pass(time.Minute)
	r.kill(r.wantInstances(2)[0].ID)
	r.lazy = true
	r.settle()
	if own := r.own(); len(own) != 1 || own[0].Status.(*mariposa.TaskStatus).State != mariposa.TaskActive {
		t.Fatalf("repairs: %+v", own)
	}
	task := r.ask(p, mariposa.TaskScale, mariposa.Patch{Scale: map[string]int{"web": 3}}, "web")
	r.settle()
	st := r.own()[0].Status.(*mariposa.TaskStatus)
	if st.State != mariposa.TaskCompleted || said(st.Reason) != "taken over by "+task || st.EndedBy != task {
		t.Errorf("the repair is %+v", st)
	}
	r.wantTask(task, mariposa.TaskActive)
	r.lazy = false
	r.settle()
	r.wantTask(task, mariposa.TaskCompleted)
	r.wantInstances(3)
}

func TestAScaleWaitsBehindAStart(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.replica("r1")
	r.node("n1", mariposa.Resources{})
	r.lazy = true
	p, start := r.create("shop", web(1))
	r.settle()
	scale := r.ask(p, mariposa.TaskScale, mariposa.Patch{Scale: map[string]int{"web": 4}}, "web")
	r.settle()
	r.wantTask(start, mariposa.TaskActive)
	r.wantTask(scale, mariposa.TaskQueued)
	r.wantInstances(1)
	r.lazy = false
	r.settle()
	r.wantTask(start, mariposa.TaskCompleted)
	r.wantTask(scale, mariposa.TaskCompleted)
	r.wantInstances(4)
}

func TestAQueuedTaskThatWasTerminatedChangesNothing(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.replica("r1")
	r.node("n1", mariposa.Resources{})
	r.lazy = true
	p, start := r.create("shop", web(1))
	r.settle()
	scale := r.ask(p, mariposa.TaskScale, mariposa.Patch{Scale: map[string]int{"web": 4}}, "web")
	r.settle()
	stop := r.ask(p, mariposa.TaskStop, mariposa.Patch{Goal: mariposa.GoalStopped})
	r.lazy = false
	r.settle()
	r.wantTask(start, mariposa.TaskTerminated)
	r.wantTask(scale, mariposa.TaskTerminated)
	r.wantTask(stop, mariposa.TaskCompleted)
	r.wantInstances(0)
	if st := r.project(p); st.Services["web"].Scale != 1 || st.Status != mariposa.StatusStopped {
		t.Errorf("the project is %+v with a scale of %d", st, st.Services["web"].Scale)
	}
}

// delete requests a project's deletion like the API.
func (r *rig) delete(project string) string {
	r.t.Helper()
	rec, err := r.store.Get(r.t.Context(), mariposa.KindProject, project)
	if err != nil {
		r.t.Fatal(err)
	}
	spec := *rec.Spec.(*mariposa.ProjectSpec)
	spec.Deleting = true
	r.write(store.Write{Kind: mariposa.KindProject, ID: project, Spec: &spec})
	return r.ask(project, mariposa.TaskStop, mariposa.Patch{Goal: mariposa.GoalDeleted})
}

func TestADeletedProjectLeavesNothingBehind(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	x := r.replica("r1")
	r.node("n1", mariposa.Resources{})
	p, _ := r.create("shop", web(3))
	r.settle()
	task := r.delete(p)
	r.settle()
	r.wantTask(task, mariposa.TaskCompleted)
	r.wantInstances(0)
	if n := len(r.list(mariposa.KindProject)) + len(r.list(mariposa.KindVersion)); n != 0 {
		t.Errorf("%d projects and versions are left", n)
	}
	ledger, err := r.store.Ledger(t.Context())
	if _, projects := x.eng.Held(); err != nil || len(ledger) != 0 || projects != 0 {
		t.Errorf("claimed %+v, %d actors, %v", ledger, projects, err)
	}
}

func TestWhatANodeThatIsAwayStillHasBecomesItsDebt(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.replica("r1")
	r.node("n1", mariposa.Resources{})
	r.node("n2", mariposa.Resources{})
	p, _ := r.create("shop", web(4))
	r.settle()
	r.leave("n2")
	r.settle()
	r.delete(p)
	r.settle()
	if n := len(r.list(mariposa.KindProject)); n != 0 {
		t.Fatalf("%d projects are left", n)
	}
	for _, rec := range r.wantInstances(2) {
		spec := rec.Spec.(*mariposa.InstanceSpec)
		if !spec.Orphaned || spec.Goal != mariposa.GoalGone || spec.Node != "n2" {
			t.Errorf("left behind: %+v", spec)
		}
	}
	ledger, err := r.store.Ledger(t.Context())
	if err != nil || ledger["n1"].Instances != 0 || ledger["n2"].Instances != 2 {
		t.Errorf("claimed %+v, %v", ledger, err)
	}
}

func TestALostNodeIsRiddenOutThenItsInstancesAreMadeElsewhere(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.replica("r1")
	r.node("n1", mariposa.Resources{})
	r.node("n2", mariposa.Resources{})
	p, _ := r.create("shop", web(2))
	r.settle()
	r.leave("n2")
	r.settle()
	r.wantInstances(2)
	r.pass(10 * time.Minute)
	on := map[string]int{}
	for _, rec := range r.instances() {
		if st, _ := rec.Status.(*mariposa.InstanceStatus); st != nil && st.State == mariposa.StateRunning {
			on[rec.Spec.(*mariposa.InstanceSpec).Node]++
		}
	}
	if on["n1"] != 2 {
		t.Errorf("running on %v", on)
	}
	r.comeBack("n2")
	r.settle()
	r.pass(time.Minute)
	r.wantInstances(2)
	if st := r.project(p); st.Status != mariposa.StatusConverged {
		t.Errorf("the project is %+v", st)
	}
}

func TestOneHolderPlansAShardAndTheOtherWaits(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	a, b := r.replica("r1"), r.replica("r2")
	r.node("n1", mariposa.Resources{})
	r.create("shop", web(3))
	r.runOut()
	r.wantInstances(3)
	if n, _ := a.eng.Held(); n != engine.Shards {
		t.Errorf("the first holds %d", n)
	}
	if n, projects := b.eng.Held(); n != 0 || projects != 0 || b.steps != 0 {
		t.Errorf("the second holds %d, %d projects, %d steps", n, projects, b.steps)
	}
}

func TestReleaseHandsOverAtOnce(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	a, b := r.replica("r1"), r.replica("r2")
	r.node("n1", mariposa.Resources{})
	p, _ := r.create("shop", web(2))
	r.settle()
	if err := a.eng.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
	a.dead = true
	b.renew()
	r.ask(p, mariposa.TaskScale, mariposa.Patch{Scale: map[string]int{"web": 5}}, "web")
	before := a.steps
	r.settle()
	r.wantInstances(5)
	if n, projects := b.eng.Held(); n != engine.Shards || projects != 1 {
		t.Errorf("the second holds %d, %d projects", n, projects)
	}
	if n, projects := a.eng.Held(); n != 0 || projects != 0 || a.steps != before {
		t.Errorf("the first holds %d, %d projects, took %d steps", n, projects, a.steps-before)
	}
}

func TestALapsedLeaseIsTakenOverAndTheFormerHolderStops(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	a, b := r.replica("r1"), r.replica("r2")
	r.node("n1", mariposa.Resources{})
	p, _ := r.create("shop", web(2))
	r.settle()
	a.dead = true
	r.pass(20 * time.Second)
	if n, _ := b.eng.Held(); n != engine.Shards {
		t.Fatalf("the second holds %d", n)
	}
	// The former holder does not know yet, and sees the change first.
	r.ask(p, mariposa.TaskScale, mariposa.Patch{Scale: map[string]int{"web": 4}}, "web")
	at := r.events("instance.provisioning")
	a.turn()
	a.turn()
	if r.events("instance.provisioning") != at {
		t.Error("it still writes")
	}
	if _, projects := a.eng.Held(); projects != 0 {
		t.Errorf("it still has %d projects", projects)
	}
	steps := a.steps
	r.settle()
	r.wantInstances(4)
	if a.steps != steps {
		t.Errorf("it was woken %d times more for what is not its own", a.steps-steps)
	}
	if got := a.eng.Used("n1").Instances; got != 4 {
		t.Errorf("its placer counts %d", got)
	}
	a.dead = false
	r.pass(5 * time.Second)
	if n, _ := a.eng.Held(); n != 0 {
		t.Errorf("it took %d back", n)
	}
}

func TestWhoTakesOverDoesNotDoTheWorkAgain(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	a, b := r.replica("r1"), r.replica("r2")
	r.node("n1", mariposa.Resources{})
	r.create("shop", web(3))
	r.settle()
	r.pass(time.Minute)
	made := r.events("instance.provisioning")
	r.kill(r.instances()[0].ID)
	r.lazy = true
	b.turn()      // it has seen the failure
	b.deaf = true // and then its feed lags behind the repair
	for range 3 {
		a.turn()
	}
	if n := r.events("instance.provisioning"); n != made+1 {
		t.Fatalf("%d were made in all, %d before", n, made)
	}
	if err := a.eng.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
	a.dead = true
	b.renew()
	for range 3 {
		b.turn()
	}
	b.deaf = false
	r.lazy = false
	r.settle()
	r.wantInstances(3)
	if n := r.events("instance.provisioning"); n != made+1 {
		t.Errorf("%d were made in all, %d before: one would have done", n, made)
	}
	if n, _ := b.eng.Held(); n != engine.Shards {
		t.Errorf("the second holds %d", n)
	}
}

func TestAnEngineWhoseOwnLeaseLapsedTakesItUpAgain(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	a := r.replica("r1")
	r.node("n1", mariposa.Resources{})
	p, _ := r.create("shop", web(1))
	r.settle()
	a.dead = true
	r.pass(time.Minute)
	r.ask(p, mariposa.TaskScale, mariposa.Patch{Scale: map[string]int{"web": 3}}, "web")
	r.settle()
	r.wantInstances(1) // fenced
	a.dead = false
	r.pass(5 * time.Second)
	r.wantInstances(3)
}

func TestAMendedChangeReachesAnActorThatWasLoadedAfterIt(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	st := &lossy{Store: r.store, hide: map[int64]bool{}}
	x := r.replicaOn("r1", st)
	r.node("n1", mariposa.Resources{})
	p, _ := r.create("shop", web(1))
	r.settle()
	rev := r.newest()
	r.kill(r.instances()[0].ID)
	st.hide[rev+1] = true
	r.node("n9", mariposa.Resources{}) // the feed continues after the lost change
	r.settle()
	if len(r.own()) != 0 {
		t.Fatal("the change was not lost")
	}
	// A new lease means a new actor, loaded from a picture that lacks the change.
	x.dead = true
	r.pass(time.Minute)
	x.dead = false
	r.pass(5 * time.Second)
	if n, err := x.pic.Reread(t.Context()); err != nil || n != 1 {
		t.Fatalf("mended %d, %v", n, err)
	}
	r.settle()
	if len(r.own()) != 1 || r.project(p).Status != mariposa.StatusConverged {
		t.Errorf("%d repairs, the project is %+v", len(r.own()), r.project(p))
	}
}

func TestNewsOfANodeDoesNotOvertakeAnActorsOwnCommit(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	x := r.replica("r1")
	r.node("n1", mariposa.Resources{})
	r.create("shop", web(3))
	r.settle()
	r.pass(time.Minute)
	made := r.events("instance.provisioning")
	x.eager = true // as a worker that runs concurrently with the feed may be
	r.lazy = true
	r.kill(r.instances()[0].ID)
	x.turn()                              // it sees the failure and repairs it
	r.setNode("n1", mariposa.NodeRunning) // the next batch contains its own commit, then this
	x.turn()
	x.turn()
	if n := r.events("instance.provisioning"); n != made+1 {
		t.Errorf("%d were made in all, %d before: one would have done", n, made)
	}
}

// A task that only removes ended instances is not a repair.
func TestATaskThatOnlyClearsAwayWhatEndedIsACleanup(t *testing.T) {
	long(t)
	t.Parallel()
	r := newRig(t)
	r.replica("r1")
	r.node("n1", mariposa.Resources{})
	r.create("shop", web(2))
	r.settle()
	r.pass(time.Minute)
	r.kill(r.wantInstances(2)[0].ID)
	r.settle()
	if n := len(r.kept()); n != 1 {
		t.Fatalf("%d are kept", n)
	}
	r.pass(25 * time.Hour)
	var components []string
	for _, own := range r.own() {
		components = append(components, own.Spec.(*mariposa.TaskSpec).Component)
	}
	slices.Sort(components)
	if n := len(r.kept()); n != 0 || !slices.Equal(components, []string{"cleanup", "repair"}) {
		t.Errorf("%d are kept after a day; Mariposa did %q", n, components)
	}
}
