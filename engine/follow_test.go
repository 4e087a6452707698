package engine_test

import (
	"strings"
	"testing"
	"time"

	"mariposa"
)

// If a service follows another and does not start, its task reports that, and the
// instance it refers to is kept until the service has followed.
func TestAFollowThatFailsEndsFailed(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.replica("r1")
	r.node("n1", mariposa.Resources{})
	project, task := r.create("shop", `
services:
  db: {compute_type: dummy, update: {min_healthy: 0}}
  web: {compute_type: dummy, environment: {DB: "{{ .services.db.id }}"}, update: {min_healthy: 1}}
`)
	r.settle()
	r.wantTask(task, mariposa.TaskCompleted)
	old := map[string]bool{}
	for _, rec := range r.wantInstances(2) {
		old[rec.ID] = true
	}
	tick := func(d time.Duration) {
		until := r.clk.Now().Add(d)
		for do := r.clk.Next(until); do != nil; do = r.clk.Next(until) {
			do()
		}
	}
	r.pass(time.Second)
	r.ask(project, mariposa.TaskReprovision, mariposa.Patch{Reprovision: []string{"db"}}, "db")
	for range 200 {
		for _, x := range r.replicas {
			x.turn()
		}
		r.nodesAct()
		for _, rec := range r.instances() { // no new web stays up
			st, _ := rec.Status.(*mariposa.InstanceStatus)
			if rec.Spec.(*mariposa.InstanceSpec).ServiceName == "web" && !old[rec.ID] && st != nil && st.State == mariposa.StateRunning {
				tick(time.Millisecond)
				r.kill(rec.ID)
			}
		}
		tick(100 * time.Millisecond)
	}
	r.pass(time.Minute)
	failed := ""
	for _, rec := range r.own() {
		spec := rec.Spec.(*mariposa.TaskSpec)
		if st, _ := rec.Status.(*mariposa.TaskStatus); spec.Component == "follow" && st.State == mariposa.TaskFailed {
			failed = said(st.Reason)
		}
	}
	if !strings.Contains(failed, "stopped after 3 failures") {
		t.Errorf("the follow ended with %q", failed)
	}
	serving := 0
	for _, rec := range r.instances() {
		if spec := rec.Spec.(*mariposa.InstanceSpec); old[rec.ID] && spec.Goal == mariposa.GoalRunning {
			serving++
		}
	}
	if serving != 2 {
		t.Errorf("%d of the two that worked are left: the old web needs the old db", serving)
	}
	if ss := r.project(project).Services["db"]; !strings.Contains(said(ss.Reason), "is kept until web, which refers to it, switches to another instance: the rollout of version 1 stopped after 3 failures") {
		t.Errorf("db says %q", said(ss.Reason))
	}
}
