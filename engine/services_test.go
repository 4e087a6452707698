package engine_test

import (
	"context"
	"encoding/json"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	"mariposa"
	"mariposa/store"
)

// many returns a manifest of n services on a root.
func many(n int, how string) string {
	var b strings.Builder
	b.WriteString("services:\n  root: {compute_type: dummy}\n")
	for i := range n {
		fmt.Fprintf(&b, "  s%03d: {compute_type: dummy, depends_on: [root]%s}\n", i, how)
	}
	return b.String()
}

// writesOf counts how often the statuses of objects of a kind were written, by id.
func (r *rig) writesOf(kind mariposa.Kind) map[string]int {
	r.t.Helper()
	cs, err := r.store.Changes(r.t.Context(), 0, 0)
	if err != nil {
		r.t.Fatal(err)
	}
	n := map[string]int{}
	for _, c := range cs {
		if c.Record.Kind == kind && c.Status {
			n[c.Record.ID]++
		}
	}
	return n
}

// services counts the services of a project by their status, as it is stored.
func (r *rig) services(project string) map[mariposa.Status]int {
	out := map[mariposa.Status]int{}
	for _, ss := range r.project(project).Services {
		out[ss.Status]++
	}
	return out
}

// TestEachServiceWritesItselfAlone starts two hundred services one by one. Each is
// written when it changes, and not when others do.
func TestEachServiceWritesItselfAlone(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.replica("a")
	r.node("n1", mariposa.Resources{})
	p, task := r.create("shop", many(200, ""))
	r.settle()
	r.wantTask(task, mariposa.TaskCompleted)
	services := r.writesOf(mariposa.KindService)
	if len(services) != 201 {
		t.Errorf("%d services have a record", len(services))
	}
	for id, n := range services {
		if n > 4 { // new, waiting, on its way, converged
			t.Errorf("%s was written %d times", id, n)
		}
	}
	if n := r.writesOf(mariposa.KindProject)[p]; n > 60 {
		t.Errorf("the project was written %d times", n)
	}
	if got := r.services(p); got[mariposa.StatusConverged] != 201 || r.project(p).Status != mariposa.StatusConverged {
		t.Errorf("in the end: %v, %s", got, r.project(p).Status)
	}
}

// TestServicesInsideAProjectBecomeRecords takes over a store in which the services were a
// part of the project's status.
func TestServicesInsideAProjectBecomeRecords(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	a := r.replica("a")
	r.node("n1", mariposa.Resources{})
	p, task := r.create("shop", many(3, ""))
	r.settle()
	r.wantTask(task, mariposa.TaskCompleted)
	before := r.project(p)
	writes := []store.Write{{Kind: mariposa.KindProject, ID: p, Project: p, Status: before}}
	for name := range before.Services {
		writes = append(writes, store.Write{Kind: mariposa.KindService, ID: mariposa.ServiceID(p, name), Delete: true})
	}
	a.dead, a.deaf = true, true
	r.replicas = nil
	r.pass(10 * time.Second)
	r.write(writes...)
	made := r.events("instance.provisioning")
	b := r.replica("b")
	if st, _ := b.pic.Get(mariposa.KindProject, p).Status.(*mariposa.ProjectStatus); len(st.Services) != 4 {
		t.Fatalf("of the old store %d services are read", len(st.Services))
	}
	r.settle()
	if after := r.project(p); !reflect.DeepEqual(before, after) {
		t.Errorf("the services were %+v and are %+v", before.Services, after.Services)
	}
	rec, err := r.store.Get(t.Context(), mariposa.KindProject, p)
	if err != nil || rec.Status.(*mariposa.ProjectStatus).Services != nil {
		t.Errorf("the project still has them: %+v, %v", rec.Status, err)
	}
	if n := r.events("instance.provisioning"); n != made {
		t.Errorf("%d instances were recreated", n-made)
	}
	r.wantInstances(4)
}

// TestARemovedServiceLeavesNoRecord removes a service, and then the project.
func TestARemovedServiceLeavesNoRecord(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.replica("a")
	r.node("n1", mariposa.Resources{})
	p, _ := r.create("shop", many(3, ""))
	r.settle()
	r.submit(p, 2, many(2, ""))
	r.settle()
	if n := len(r.list(mariposa.KindService)); n != 3 {
		t.Errorf("%d services have a record, want 3", n)
	}
	if n := r.events("service.removed"); n != 1 {
		t.Errorf("%d services are said to be removed", n)
	}
}

// TestTroubleIsReportedAtOnce makes one of many services fail while the others start.
func TestTroubleIsReportedAtOnce(t *testing.T) {
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
	r.runOut()
	if ss := r.project(p).Services["s003"]; !failed() || ss.Backoff == nil {
		t.Errorf("s003 has failed, and its status is %+v", ss)
	}
}

// TestTheNextPlannerGoesOnWithManyServices ends a planner in the middle of a rollout. The
// next one continues from the stored state, and creates nothing twice.
func TestTheNextPlannerGoesOnWithManyServices(t *testing.T) {
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
	a.dead, a.deaf = true, true
	r.replicas = nil
	r.pass(10 * time.Second)
	r.replica("b")
	r.settle()
	r.pass(time.Minute)
	r.wantTask(second, mariposa.TaskCompleted)
	r.wantInstances(201)
	if got := r.services(p); got[mariposa.StatusConverged] != 201 {
		t.Errorf("in the end: %v", got)
	}
	if made := r.events("instance.provisioning"); made != 401 {
		t.Errorf("%d instances were made, want 401", made)
	}
}

// TestAChainRollsWithoutTimePassing rolls out a chain of services: each continues when
// its dependency is done.
func TestAChainRollsWithoutTimePassing(t *testing.T) {
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
	for id, n := range r.writesOf(mariposa.KindService) {
		if n > 16 {
			t.Errorf("%s was written %d times", id, n)
		}
	}
}

// submit adds a new version with the task that rolls it out.
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

// BenchmarkManyServices starts services on a root, as many as a group commit reports at a
// time, every 10 ms. It reports how many bytes of project and service status are written.
func BenchmarkManyServices(b *testing.B) {
	for _, n := range []int{1000, 10_000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			for b.Loop() {
				r := newRig(b)
				w := &countingStore{Store: r.store}
				a := r.replicaOn("a", w)
				r.node("n1", mariposa.Resources{})
				p, _ := r.create("shop", many(n, ""))
				r.comeUp(a, 20)
				if got := r.services(p)[mariposa.StatusConverged]; got != n+1 {
					b.Fatalf("%d are converged", got)
				}
				b.ReportMetric(float64(w.bytes)/1e6, "MB/op")
				b.ReportMetric(float64(w.times), "writes/op")
			}
		})
	}
}

// comeUp lets nodes start a number of instances at a time, every 10 ms, until all are up.
func (r *rig) comeUp(a *replica, batch int) {
	r.t.Helper()
	var seen int64
	waiting := []string{}
	for range 100_000 {
		for a.turn() {
		}
		cs, err := r.store.Changes(r.t.Context(), seen, 0)
		if err != nil {
			r.t.Fatal(err)
		}
		for _, c := range cs {
			if seen = c.Revision; c.Record.Kind == mariposa.KindInstance && c.Record.Status == nil {
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

// countingStore is a store that encodes the writes of projects and services, like one on
// a disk, and counts the bytes.
type countingStore struct {
	store.Store
	bytes, times int
}

func (w *countingStore) Commit(ctx context.Context, units ...store.Unit) []store.Result {
	for _, u := range units {
		for _, x := range u.Writes {
			if x.Kind != mariposa.KindProject && x.Kind != mariposa.KindService || x.Status == nil {
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
