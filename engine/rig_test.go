package engine_test

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"slices"
	"testing"
	"time"

	"mariposa"
	"mariposa/clock/clocktest"
	"mariposa/engine"
	"mariposa/leaktest"
	"mariposa/manifest"
	"mariposa/picture"
	"mariposa/queue"
	"mariposa/reason"
	"mariposa/seal"
	"mariposa/store"
	"mariposa/store/memory"
)

func TestMain(m *testing.M) {
	slog.SetDefault(slog.New(slog.NewTextHandler(io.Discard, nil))) // the tests cause many warnings
	leaktest.Main(m)
}

// said returns the sentence of a reason.
func said(r *mariposa.Reason) string { return reason.Sentence(r) }

// rig is a store with engines on it; the test acts as nodes and people.
type rig struct {
	t        testing.TB
	clk      *clocktest.Virtual
	store    *memory.Store
	replicas []*replica
	ids      int
	away     map[string]bool // nodes that do nothing
	lazy     bool            // no node does anything
	limit    int             // of the engines; their default if zero
	bulk     bool            // nodes do all their work at once
	fail     map[string]bool // services whose instances fail instead of running
	hang     map[string]bool // services whose instances never come up
}

// replica is one control plane's engine.
type replica struct {
	r     *rig
	name  string
	pic   *picture.Picture
	eng   *engine.Engine
	ready map[string]bool
	deaf  bool // its feed is blocked
	eager bool // it steps the moment it is woken
	dead  bool // it renews no lease
	steps int
}

// long marks a slow sequential test. It is skipped under the race detector, where it
// would take several times as long and find nothing.
func long(t *testing.T) {
	t.Helper()
	if testing.Short() {
		t.Skip("the run without the race detector has it")
	}
}

func newRig(t testing.TB) *rig {
	t.Helper()
	clk := clocktest.New()
	return &rig{t: t, clk: clk, store: memory.New(clk), away: map[string]bool{}, fail: map[string]bool{}, hang: map[string]bool{}}
}

func (r *rig) newID() string {
	r.ids++
	return fmt.Sprintf("00000000-0000-7000-8000-%012x", r.ids)
}

// replica starts an engine, which takes the shards that it can get.
func (r *rig) replica(name string) *replica { return r.replicaOn(name, r.store) }

func (r *rig) replicaOn(name string, st store.Store) *replica {
	r.t.Helper()
	p, err := picture.Open(r.t.Context(), st)
	if err != nil {
		r.t.Fatal(err)
	}
	x := &replica{r: r, name: name, pic: p, ready: map[string]bool{}}
	x.eng = engine.New(engine.Options{
		Store: st, Picture: p, Cache: picture.NewVersionCache(st, seal.NewVault(seal.NewRing(), st)), Clock: r.clk, NewID: r.newID, Wake: x.wake, Holder: name, Limit: r.limit,
	})
	r.replicas = append(r.replicas, x)
	x.renew()
	return x
}

func (x *replica) wake(project string) {
	if x.eager {
		x.steps++
		x.eng.Step(x.r.t.Context(), project)
		return
	}
	x.ready[project] = true
}

func (x *replica) renew() {
	x.r.t.Helper()
	if err := x.eng.Renew(x.r.t.Context()); err != nil {
		x.r.t.Fatal(err)
	}
}

// turn does one round of what a replica has to do.
func (x *replica) turn() bool {
	x.r.t.Helper()
	busy := false
	if !x.deaf {
		n, err := x.pic.Advance(x.r.t.Context())
		if err != nil {
			x.r.t.Fatal(err)
		}
		busy = n > 0
	}
	for _, project := range slices.Sorted(maps.Keys(x.ready)) {
		delete(x.ready, project)
		x.steps++
		x.eng.Step(x.r.t.Context(), project)
		busy = true
	}
	return busy
}

// settle runs all parts until nothing is left to do.
func (r *rig) settle() {
	r.t.Helper()
	r.runOut()
	if r.isProving() {
		r.pass(time.Second)
	}
}

// isProving reports whether a service is up and must stay up for a while before its start
// is complete.
func (r *rig) isProving() bool {
	for _, p := range r.list(mariposa.KindProject) {
		for name, ss := range r.project(p.ID).Services {
			if ss.Rollout != nil && ss.Rollout.First && ss.Rollout.FailureReason == nil && ss.Status == mariposa.StatusConverging && ss.Scale > 0 && r.up(p.ID, name) >= ss.Scale {
				return true
			}
		}
	}
	return false
}

// runOut runs all parts until none has anything left to do now.
func (r *rig) runOut() {
	r.t.Helper()
	for n := 0; ; n++ {
		busy := false
		for _, x := range r.replicas {
			busy = x.turn() || busy
		}
		busy = r.nodesAct() || busy
		if !busy {
			return
		}
		if n > 10_000 {
			r.t.Fatal("it never comes to rest")
		}
	}
}

// pass lets time go by; living replicas renew their leases.
func (r *rig) pass(d time.Duration) {
	r.t.Helper()
	for end := r.clk.Now().Add(d); r.clk.Now().Before(end); {
		until := r.clk.Now().Add(min(5*time.Second, end.Sub(r.clk.Now())))
		for do := r.clk.Next(until); do != nil; do = r.clk.Next(until) {
			do()
			r.runOut()
		}
		for _, x := range r.replicas {
			if !x.dead {
				x.renew()
			}
		}
		r.runOut()
	}
}

func (r *rig) commit(u store.Unit) {
	r.t.Helper()
	if res := r.store.Commit(r.t.Context(), u)[0]; res.Err != nil {
		r.t.Fatal(res.Err)
	}
}

func (r *rig) write(ws ...store.Write) {
	r.t.Helper()
	r.commit(store.Unit{Writes: ws})
}

func (r *rig) node(id string, capacity mariposa.Resources) {
	r.t.Helper()
	r.write(store.Write{
		Kind: mariposa.KindNode, ID: id, Spec: &mariposa.NodeSpec{Name: id},
		Status: &mariposa.NodeStatus{State: mariposa.NodeRunning, Since: r.clk.Now(), Capacity: capacity, Drivers: []mariposa.ComputeType{mariposa.ComputeDummy}},
	})
}

// leave makes a node unknown; comeBack undoes it.
func (r *rig) leave(id string) { r.setNode(id, mariposa.NodeUnknown); r.away[id] = true }

func (r *rig) comeBack(id string) { r.setNode(id, mariposa.NodeRunning); delete(r.away, id) }

func (r *rig) setNode(id string, state mariposa.NodeState) {
	r.t.Helper()
	rec, err := r.store.Get(r.t.Context(), mariposa.KindNode, id)
	if err != nil {
		r.t.Fatal(err)
	}
	st := *rec.Status.(*mariposa.NodeStatus)
	st.State, st.Since = state, r.clk.Now()
	r.write(store.Write{Kind: mariposa.KindNode, ID: id, Status: &st})
}

// nodesAct makes the nodes do their work, one instance at a time.
func (r *rig) nodesAct() bool {
	r.t.Helper()
	if r.lazy {
		return false
	}
	var news []store.Write
	for _, rec := range r.list(mariposa.KindInstance) {
		spec := rec.Spec.(*mariposa.InstanceSpec)
		st, _ := rec.Status.(*mariposa.InstanceStatus)
		state := mariposa.StateOf(spec, st)
		next := mariposa.InstanceStatus{Since: r.clk.Now(), Generation: spec.Generation}
		switch {
		case r.away[spec.Node], spec.Goal == mariposa.GoalRunning && r.hang[spec.ServiceName]:
			continue
		case spec.Goal == mariposa.GoalGone && state != mariposa.StateDestroyed:
			next.State = mariposa.StateDestroyed
		case spec.Goal == mariposa.GoalHalted && state != mariposa.StateStopped:
			next.State, next.Reason = mariposa.StateStopped, "stopped"
		case spec.Goal == mariposa.GoalRunning && state == mariposa.StateProvisioning && r.fail[spec.ServiceName]:
			next.State, next.Reason = mariposa.StateFailed, "configured to fail"
		case spec.Goal == mariposa.GoalRunning && (state == mariposa.StateProvisioning || state == mariposa.StateRunning && st.Generation < spec.Generation):
			next.State = mariposa.StateRunning
		default:
			continue
		}
		if news = append(news, store.Write{Kind: mariposa.KindInstance, ID: rec.ID, Status: &next}); !r.bulk {
			break
		}
	}
	if len(news) == 0 {
		return false
	}
	r.write(news...)
	return true
}

// kill makes a running instance fail.
func (r *rig) kill(id string) {
	r.t.Helper()
	r.write(store.Write{Kind: mariposa.KindInstance, ID: id, Status: &mariposa.InstanceStatus{State: mariposa.StateFailed, Since: r.clk.Now(), Generation: 1, Reason: "killed by signal 9"}})
}

func (r *rig) list(kind mariposa.Kind) []store.Record {
	r.t.Helper()
	all, err := r.store.List(r.t.Context(), store.Query{Kind: kind})
	if err != nil {
		r.t.Fatal(err)
	}
	slices.Reverse(all)
	return all
}

// instances lists all instances except ended ones that are kept.
func (r *rig) instances() []store.Record {
	return slices.DeleteFunc(r.list(mariposa.KindInstance), func(rec store.Record) bool { return rec.Spec.(*mariposa.InstanceSpec).Kept })
}

// kept lists ended instances that are kept.
func (r *rig) kept() []store.Record {
	return slices.DeleteFunc(r.list(mariposa.KindInstance), func(rec store.Record) bool { return !rec.Spec.(*mariposa.InstanceSpec).Kept })
}

func (r *rig) wantInstances(n int) []store.Record {
	r.t.Helper()
	all := r.instances()
	if len(all) != n {
		r.t.Fatalf("there are %d instances, want %d", len(all), n)
	}
	return all
}

// create creates a project with its first task.
func (r *rig) create(name, body string) (project, task string) {
	r.t.Helper()
	project, task = r.newID(), r.newID()
	m, err := manifest.Parse([]byte(body))
	if err != nil {
		r.t.Fatal(err)
	}
	services := map[string]string{}
	for _, s := range m.Services {
		services[s.Name] = "service-" + s.Name
	}
	r.write(
		store.Write{Kind: mariposa.KindProject, ID: project, Project: project, Spec: &mariposa.ProjectSpec{Name: name, Organization: "default", Number: 1, Version: "v1", Services: services}},
		store.Write{Kind: mariposa.KindVersion, ID: mariposa.VersionID(project, 1), Project: project, Spec: &mariposa.VersionSpec{Project: project, Version: "v1", Number: 1, Manifest: []byte(body)}},
		r.newTask(project, task, mariposa.TaskStart, mariposa.Patch{Number: 1, Goal: mariposa.GoalStarted}))
	return project, task
}

func (r *rig) newTask(project, id string, kind mariposa.TaskKind, patch mariposa.Patch, services ...string) store.Write {
	return store.Write{Kind: mariposa.KindTask, ID: id, Project: project, Spec: &mariposa.TaskSpec{
		Project: project, Services: services, Task: kind, Origin: mariposa.OriginUser, Author: "ann", Created: r.clk.Now(), Patch: patch,
	}}
}

// ask adds a task to the open ones as the API would.
func (r *rig) ask(project string, kind mariposa.TaskKind, patch mariposa.Patch, services ...string) string {
	r.t.Helper()
	return r.add(project, r.newTask(project, r.newID(), kind, patch, services...))
}

// add adds a task to the open ones as the API would.
func (r *rig) add(project string, add store.Write) string {
	r.t.Helper()
	a, err := queue.Admit(r.open(project), add.Spec.(*mariposa.TaskSpec))
	if err != nil {
		r.t.Fatal(err)
	}
	r.write(append(r.end(a.Terminate, add.ID), add)...)
	return add.ID
}

// act adds an immediate task, which begins at once whatever else is open.
func (r *rig) act(project string, patch mariposa.Patch, services ...string) string {
	r.t.Helper()
	w := r.newTask(project, r.newID(), mariposa.TaskStart, patch, services...)
	w.Spec.(*mariposa.TaskSpec).Immediate = true
	return r.add(project, w)
}

// lift requests a task that ends the freeze of its scope.
func (r *rig) lift(project string, kind mariposa.TaskKind, patch mariposa.Patch, services ...string) string {
	r.t.Helper()
	w := r.newTask(project, r.newID(), kind, patch, services...)
	w.Spec.(*mariposa.TaskSpec).LiftsFreeze = true
	return r.add(project, w)
}

// terminate ends a task as the API would. It returns the freeze that this adds.
func (r *rig) terminate(project, id string) string {
	r.t.Helper()
	a, freeze, err := queue.Terminate(r.open(project), id)
	if err != nil {
		r.t.Fatal(err)
	}
	if freeze == nil {
		r.write(r.end(a.Terminate, "")...)
		return ""
	}
	add := store.Write{Kind: mariposa.KindTask, ID: r.newID(), Project: project, Spec: freeze}
	freeze.Created = r.clk.Now()
	r.write(append(r.end(a.Terminate, add.ID), add)...)
	return add.ID
}

func (r *rig) open(project string) []queue.Task {
	var open []queue.Task
	for _, rec := range r.list(mariposa.KindTask) {
		if rec.Project == project && !rec.Archived {
			st, _ := rec.Status.(*mariposa.TaskStatus)
			open = append(open, queue.Task{ID: rec.ID, Spec: rec.Spec.(*mariposa.TaskSpec), Status: st})
		}
	}
	return open
}

func (r *rig) end(tasks []queue.Task, by string) (ws []store.Write) {
	for _, old := range tasks {
		st := mariposa.TaskStatus{}
		if old.Status != nil {
			st = *old.Status
		}
		st.State, st.Finished, st.EndedBy = mariposa.TaskTerminated, r.clk.Now(), by
		ws = append(ws, store.Write{Kind: mariposa.KindTask, ID: old.ID, Status: &st, Archive: true})
	}
	return ws
}

func (r *rig) task(id string) *mariposa.TaskStatus {
	r.t.Helper()
	rec, err := r.store.Get(r.t.Context(), mariposa.KindTask, id)
	if err != nil {
		r.t.Fatal(err)
	}
	st, _ := rec.Status.(*mariposa.TaskStatus)
	if st == nil {
		return &mariposa.TaskStatus{State: mariposa.TaskQueued}
	}
	return st
}

func (r *rig) wantTask(id string, state mariposa.TaskState) *mariposa.TaskStatus {
	r.t.Helper()
	st := r.task(id)
	if st.State != state {
		r.t.Fatalf("the task is %+v, want %s", st, state)
	}
	return st
}

func (r *rig) project(id string) *mariposa.ProjectStatus {
	r.t.Helper()
	rec, err := r.store.Get(r.t.Context(), mariposa.KindProject, id)
	if err != nil {
		r.t.Fatal(err)
	}
	st, _ := rec.Status.(*mariposa.ProjectStatus)
	if st == nil {
		return &mariposa.ProjectStatus{}
	}
	whole := *st
	whole.Services = map[string]*mariposa.ServiceStatus{}
	for _, s := range r.list(mariposa.KindService) {
		if spec := s.Spec.(*mariposa.ServiceSpec); spec.Project == id {
			whole.Services[spec.Name] = s.Status.(*mariposa.ServiceStatus)
		}
	}
	return &whole
}

// own lists the tasks that Mariposa opened by itself.
func (r *rig) own() (out []store.Record) {
	for _, rec := range r.list(mariposa.KindTask) {
		if rec.Spec.(*mariposa.TaskSpec).Origin == mariposa.OriginMariposa {
			out = append(out, rec)
		}
	}
	return out
}

// events counts the changes of a kind.
func (r *rig) events(kind string) int {
	r.t.Helper()
	cs, err := r.store.Changes(context.Background(), 0, 0)
	if err != nil {
		r.t.Fatal(err)
	}
	n := 0
	for _, c := range cs {
		if c.Event.Kind == kind {
			n++
		}
	}
	return n
}

func web(scale int, more ...string) string {
	b := fmt.Sprintf("services:\n  web:\n    compute_type: dummy\n    scale: %d\n", scale)
	for _, line := range more {
		b += "    " + line + "\n"
	}
	return b
}

// lossy is a store whose feed drops changes.
type lossy struct {
	store.Store
	hide map[int64]bool
}

func (l *lossy) Changes(ctx context.Context, after int64, limit int) ([]store.Change, error) {
	cs, err := l.Store.Changes(ctx, after, 0)
	cs = slices.DeleteFunc(cs, func(c store.Change) bool { return l.hide[c.Revision] })
	if limit > 0 && len(cs) > limit {
		cs = cs[:limit]
	}
	return cs, err
}

// newest is the newest revision of the store.
func (r *rig) newest() int64 {
	r.t.Helper()
	cs, err := r.store.History(r.t.Context(), store.HistoryQuery{Limit: 1})
	if err != nil || len(cs) == 0 {
		r.t.Fatal(cs, err)
	}
	return cs[0].Revision
}
