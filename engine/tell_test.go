package engine_test

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"mariposa"
	"mariposa/store"
)

// many is a manifest of n services on a root.
func many(n int, how string) string {
	var b strings.Builder
	b.WriteString("services:\n  root: {compute_type: dummy}\n")
	for i := range n {
		fmt.Fprintf(&b, "  s%03d: {compute_type: dummy, depends_on: [root]%s}\n", i, how)
	}
	return b.String()
}

// tellings counts how often a project's status was written.
func (r *rig) tellings() int {
	r.t.Helper()
	cs, err := r.store.Changes(r.t.Context(), 0, 0)
	if err != nil {
		r.t.Fatal(err)
	}
	n := 0
	for _, c := range cs {
		if c.Record.Kind == mariposa.KindProject && c.Status {
			n++
		}
	}
	return n
}

// fares counts the services of a project by how they fare, as it is stored.
func (r *rig) fares(project string) map[mariposa.Status]int {
	out := map[mariposa.Status]int{}
	for _, ss := range r.project(project).Services {
		out[ss.Status]++
	}
	return out
}

// TestManyServicesAreToldOfAtTheirPace has two hundred services come up one by one.
// The status, which speaks of all of them, is written a few times and not each
// time, and says in the end how all of them fare.
func TestManyServicesAreToldOfAtTheirPace(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.replica("a")
	r.node("n1", mariposa.Resources{})
	p, task := r.create("shop", many(200, ""))
	r.settle()
	r.wantTask(task, mariposa.TaskCompleted)
	if n := r.tellings(); n > 8 {
		t.Errorf("the status was written %d times", n)
	}
	if got := r.fares(p); got[mariposa.StatusConverged] != 201 || r.project(p).Status != mariposa.StatusConverged {
		t.Errorf("in the end: %v, %s", got, r.project(p).Status)
	}
}

// TestWhatIsPutOffIsToldInTime stops the nodes in the middle: what is known by then
// is written though nothing more happens.
func TestWhatIsPutOffIsToldInTime(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	a := r.replica("a")
	r.node("n1", mariposa.Resources{})
	p, _ := r.create("shop", many(200, ""))
	for range 60 {
		a.turn()
		r.nodesAct()
	}
	r.lazy = true
	r.settle()
	up := 0
	for _, rec := range r.instances() {
		if st, _ := rec.Status.(*mariposa.InstanceStatus); st != nil && st.State == mariposa.StateRunning {
			up++
		}
	}
	if told := r.fares(p)[mariposa.StatusConverged]; up < 20 || told >= up {
		t.Fatalf("%d are up and %d are told of: nothing was put off", up, told)
	}
	r.pass(150 * time.Millisecond)
	if told := r.fares(p)[mariposa.StatusConverged]; told != up {
		t.Errorf("%d are up and %d are told of", up, told)
	}
}

// TestTroubleIsToldAtOnce has one of many services fail while the others come up.
func TestTroubleIsToldAtOnce(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	a := r.replica("a")
	r.node("n1", mariposa.Resources{})
	p, _ := r.create("shop", many(200, ""))
	r.fail["s003"] = true
	failed := func() bool {
		for _, rec := range r.of("s003") {
			st, _ := rec.Status.(*mariposa.InstanceStatus)
			return st != nil && st.State == mariposa.StateFailed
		}
		return false
	}
	for range 2000 {
		a.turn()
		r.nodesAct()
		if failed() {
			break
		}
	}
	r.lazy = true
	before := r.tellings()
	r.settle()
	if ss := r.project(p).Services["s003"]; !failed() || ss.Backoff == nil || r.tellings() == before {
		t.Errorf("s003 has failed, and its status is %+v", ss)
	}
}

// TestWhatWasPutOffIsFoundOutAgain ends a planner before it has told what it knew. The
// next one finds out from what runs, and makes nothing twice.
func TestWhatWasPutOffIsFoundOutAgain(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	a := r.replica("a")
	r.node("n1", mariposa.Resources{})
	p, task := r.create("shop", many(200, ", dummy: {name_len: 8}, update: {min_healthy: 0}"))
	r.settle()
	r.wantTask(task, mariposa.TaskCompleted)
	second := r.submit(p, 2, many(200, ", dummy: {name_len: 9}, update: {min_healthy: 0}"))
	for range 150 {
		a.turn()
		r.nodesAct()
	}
	through, told := 0, 0
	for _, rec := range r.instances() {
		st, _ := rec.Status.(*mariposa.InstanceStatus)
		if rec.Spec.(*mariposa.InstanceSpec).Number == 2 && st != nil && st.State == mariposa.StateRunning {
			through++
		}
	}
	for _, ss := range r.project(p).Services {
		if ss.Rollout != nil && ss.Rollout.Fresh > 0 {
			told++
		}
	}
	if through < 20 || told >= through {
		t.Fatalf("%d are through and %d are told of: nothing was put off", through, told)
	}
	a.dead, a.deaf = true, true
	r.replicas = nil
	r.pass(10 * time.Second)
	r.replica("b")
	r.settle()
	r.pass(time.Minute)
	r.wantTask(second, mariposa.TaskCompleted)
	r.wantInstances(201)
	if got := r.fares(p); got[mariposa.StatusConverged] != 201 {
		t.Errorf("in the end: %v", got)
	}
	if made := r.events("instance.provisioning"); made != 401 {
		t.Errorf("%d instances were made, want 401", made)
	}
}

// TestNobodyWaitsForWhatIsPutOff rolls out a chain of services while no time passes:
// each goes on when what it depends on is through, told or not.
func TestNobodyWaitsForWhatIsPutOff(t *testing.T) {
	t.Parallel()
	chain := func(length int) string {
		var b strings.Builder
		b.WriteString("services:\n  root: {compute_type: dummy}\n")
		for i, on := 0, "root"; i < 60; i++ {
			name := fmt.Sprintf("s%03d", i)
			fmt.Fprintf(&b, "  %s: {compute_type: dummy, depends_on: [%s], dummy: {name_len: %d}, update: {min_healthy: 0}}\n", name, on, length)
			on = name
		}
		return b.String()
	}
	r := newRig(t)
	r.replica("a")
	r.node("n1", mariposa.Resources{})
	p, first := r.create("shop", chain(8))
	r.settle()
	r.wantTask(first, mariposa.TaskCompleted)
	second := r.submit(p, 2, chain(9))
	r.settle()
	r.wantTask(second, mariposa.TaskCompleted)
	if n := r.tellings(); n > 10 {
		t.Errorf("the status was written %d times", n)
	}
}

// submit brings a further version with the task that rolls it out.
func (r *rig) submit(project string, number int, body string) string {
	r.t.Helper()
	rec, err := r.store.Get(r.t.Context(), mariposa.KindProject, project)
	if err != nil {
		r.t.Fatal(err)
	}
	spec := *rec.Spec.(*mariposa.ProjectSpec)
	spec.Number, spec.Version = number, fmt.Sprintf("v%d", number)
	var names []string
	for name := range spec.Services {
		if name != "root" {
			names = append(names, name)
		}
	}
	task := r.newID()
	r.write(
		store.Write{Kind: mariposa.KindProject, ID: project, Project: project, Spec: &spec},
		store.Write{Kind: mariposa.KindVersion, ID: mariposa.VersionID(project, number), Project: project, Spec: &mariposa.VersionSpec{Project: project, Version: spec.Version, Number: number, Manifest: []byte(body)}},
		r.newTask(project, task, mariposa.TaskReprovision, mariposa.Patch{Number: number}, names...))
	return task
}

// BenchmarkManyServices brings services up on a root, as many as a group commit
// reports at a time, every 10 ms. It tells how many bytes are written of the
// status of the project; told-each-time is without anything put off.
func BenchmarkManyServices(b *testing.B) {
	for _, n := range []int{1000, 10_000} {
		for name, telling := range map[string]time.Duration{"put-off": 0, "told-each-time": 1} {
			b.Run(fmt.Sprintf("%d/%s", n, name), func(b *testing.B) {
				for b.Loop() {
					r := newRig(b)
					w := &weighed{Store: r.store}
					r.telling = telling
					a := r.replicaOn("a", w)
					r.node("n1", mariposa.Resources{})
					p, _ := r.create("shop", many(n, ""))
					r.comeUp(a, 20)
					if got := r.fares(p)[mariposa.StatusConverged]; got != n+1 {
						b.Fatalf("%d are converged", got)
					}
					b.ReportMetric(float64(w.bytes)/1e6, "MB/op")
					b.ReportMetric(float64(w.times), "writes/op")
				}
			})
		}
	}
}

// comeUp lets nodes bring up so many at a time, every 10 ms, until all are.
func (r *rig) comeUp(a *replica, batch int) {
	r.t.Helper()
	var told int64
	waiting := []string{}
	for range 100_000 {
		for a.turn() {
		}
		cs, err := r.store.Changes(r.t.Context(), told, 0)
		if err != nil {
			r.t.Fatal(err)
		}
		for _, c := range cs {
			if told = c.Revision; c.Record.Kind == mariposa.KindInstance && c.Record.Status == nil {
				waiting = append(waiting, c.Record.ID)
			}
		}
		if len(waiting) == 0 {
			r.pass(2 * time.Second)
			return
		}
		var news []store.Write
		for _, id := range waiting[:min(batch, len(waiting))] {
			news = append(news, store.Write{Kind: mariposa.KindInstance, ID: id, Status: &mariposa.InstanceStatus{State: mariposa.StateRunning, Since: r.clk.Now(), Generation: 1}})
		}
		waiting = waiting[len(news):]
		r.write(news...)
		for do, until := r.clk.Next(r.clk.Now().Add(10*time.Millisecond)), r.clk.Now().Add(10*time.Millisecond); do != nil; do = r.clk.Next(until) {
			do()
		}
	}
	r.t.Fatal("it never comes up")
}

// weighed is a store that encodes what is written of projects, as one on a disk
// does, and weighs it.
type weighed struct {
	store.Store
	bytes, times int
}

func (w *weighed) Commit(ctx context.Context, units ...store.Unit) []store.Result {
	for _, u := range units {
		for _, x := range u.Writes {
			if x.Kind != mariposa.KindProject || x.Status == nil {
				continue
			}
			b, err := json.Marshal(x.Status)
			if err != nil {
				panic(err)
			}
			w.bytes += len(b)
			w.times++
		}
	}
	return w.Store.Commit(ctx, units...)
}
