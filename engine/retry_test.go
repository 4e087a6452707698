package engine_test

import (
	"strings"
	"testing"
	"time"

	"mariposa"
	"mariposa/reason"
)

// xy is a service that others need, and one whose instances may fail.
func xy(y, x string) string {
	return "services:\n  x: {compute_type: dummy, scale: " + x + ", update: {min_healthy: 0}, environment: {V: " + x + "}}\n" +
		"  y: {compute_type: dummy, update: {min_healthy: 0}, environment: {V: " + y + "}}\n"
}

// broken returns a project whose version 2 failed because of x.
func broken(t *testing.T) (r *rig, project string) {
	t.Helper()
	r, project = settled(t, xy("1", "1"))
	r.fail["x"] = true
	task := r.add(project, r.next(project, 2, xy("1", "2"), "x"))
	r.settle()
	r.pass(time.Minute)
	if st := r.wantTask(task, mariposa.TaskFailed); !strings.Contains(reason.Sentence(st.Reason), "stopped after 3 failures") {
		t.Fatalf("the task is %+v", st)
	}
	r.wantService(project, "x", mariposa.StatusFailed, "")
	return r, project
}

// retry requests converge like the API.
func (r *rig) retry(project string, services ...string) string {
	r.t.Helper()
	w := r.newTask(project, r.newID(), mariposa.TaskScale, mariposa.Patch{Retry: true}, services...)
	w.Spec.(*mariposa.TaskSpec).Immediate = true
	return r.add(project, w)
}

// A version that repairs only y retries x, and completes once x is up.
func TestAVersionThatMendsTheCauseTriesAFailedRolloutAgain(t *testing.T) {
	t.Parallel()
	r, p := broken(t)
	r.fail["x"] = false
	task := r.add(p, r.next(p, 3, xy("3", "2"), "x", "y"))
	r.settle()
	r.wantTask(task, mariposa.TaskCompleted)
	r.wantService(p, "x", mariposa.StatusConverged, "")
	r.wantNumber(p, 3, 3)
}

// If it fails again, so does the task that retried it.
func TestWhatFailsAgainFailsTheTaskThatTriedIt(t *testing.T) {
	t.Parallel()
	r, p := broken(t)
	for name, again := range map[string]func() string{
		"converge":         func() string { return r.retry(p) },
		"converge of it":   func() string { return r.retry(p, "x") },
		"the same version": func() string { return r.ask(p, mariposa.TaskReprovision, mariposa.Patch{Number: 2}, "x") },
	} {
		made := r.events("instance.provisioning")
		task := again()
		r.settle()
		r.wantTask(task, mariposa.TaskActive)
		r.pass(time.Minute)
		if st := r.wantTask(task, mariposa.TaskFailed); !strings.Contains(reason.Sentence(st.Reason), "x: the rollout of version 2 stopped after 3 failures") {
			t.Errorf("%s: the task is %+v", name, st)
		}
		if n := r.events("instance.provisioning") - made; n < 3 {
			t.Errorf("%s made only %d instances", name, n)
		}
	}
}

// If it succeeds, the task completes.
func TestConvergeTriesAFailedRolloutAgain(t *testing.T) {
	t.Parallel()
	r, p := broken(t)
	r.fail["x"] = false
	task := r.retry(p)
	r.settle()
	r.wantTask(task, mariposa.TaskCompleted)
	r.wantService(p, "x", mariposa.StatusConverged, "")
	r.wantNumber(p, 2, 2)
}
