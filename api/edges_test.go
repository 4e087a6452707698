package api_test

import (
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"mariposa"
	"mariposa/contract"
	"mariposa/converge"
)

// A manifest that only adds, reverses or removes a dependency creates a task that
// touches no instance. The new order applies afterwards: dependencies are removed last.
func TestAChangeOfAnEdgeAloneIsATaskAndTakesEffect(t *testing.T) {
	t.Parallel()
	const (
		none  = "services:\n  a: {compute_type: dummy}\n  b: {compute_type: dummy}\n"
		aOnB  = "services:\n  a: {compute_type: dummy, depends_on: [b]}\n  b: {compute_type: dummy}\n"
		bOnA  = "services:\n  a: {compute_type: dummy}\n  b: {compute_type: dummy, depends_on: [a]}\n"
		aside = "beside each other"
	)
	h := newTestServer(t, withPlanner)
	gate := h.joinGated("n1")
	for _, c := range []struct{ name, before, after, first string }{
		{"added", none, aOnB, "a"}, {"turned-round", aOnB, bOnA, "b"}, {"taken-away", bOnA, none, aside},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			h := h.in(t)
			h.create(c.name, c.before)
			h.awaitRest(c.name)
			ids := func() []string {
				return slices.Sorted(maps.Keys(h.instances(c.name, "")))
			}
			before := ids()
			task := h.awaitTask(h.putManifest(c.name, c.after, ""), mariposa.TaskCompleted)
			if task.Task != mariposa.TaskReprovision || len(task.Services) == 0 || len(task.Steps) != 0 {
				t.Errorf("the task of the edge: %+v", task)
			}
			if after := ids(); len(before) != 2 || !slices.Equal(before, after) {
				t.Errorf("the instances were %v and are %v", before, after)
			}
			gate.close(c.name) // nothing goes for now, so whoever waits for another still waits
			h.startTask(c.name, `{"action":"stop"}`)
			goals := map[string]mariposa.Goal{}
			h.until("something to be told to go", func() bool {
				for _, i := range h.instances(c.name, "") {
					goals[i.ServiceName] = i.Goal
				}
				return goals["a"] != mariposa.GoalRunning || goals["b"] != mariposa.GoalRunning
			})
			first := aside
			switch {
			case goals["a"] == mariposa.GoalRunning:
				first = "b"
			case goals["b"] == mariposa.GoalRunning:
				first = "a"
			}
			if first != c.first {
				t.Errorf("removed first: %s, want %s", first, c.first)
			}
			gate.open(c.name)
			h.until("all to be stopped", func() bool { return h.state(c.name).Status == mariposa.StatusStopped })
		})
	}
}

// A stop before the first task begins drops that task and its version. A later start
// still rolls the version out.
func TestAStartBringsTheVersionThatNeverCameIntoForce(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ name, body, running string }{
		{"the whole", `{"action":"start"}`, "db web"}, {"one service", `{"action":"start","services":["db"]}`, "db"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			h := newTestServer(t)
			first := h.create("shop", "services:\n  db: {compute_type: dummy}\n  web: {compute_type: dummy}\n")
			want[contract.Changed](h.act(`{"action":"stop"}`), 202)
			if task := h.task(*first.Task); task.State != mariposa.TaskTerminated {
				t.Fatalf("the first task is %s", task.State)
			}
			h.plan(first.ID, converge.Apply(nil, mariposa.Patch{Goal: mariposa.GoalStopped}, converge.Change{Now: time.Now()}))
			spec := h.taskSpec(want[contract.Changed](h.act(c.body), 202))
			goal := converge.Apply(nil, spec.Patch, converge.Change{
				Now: time.Now(), Scope: spec.Services,
				Versions: func(n int) converge.Definitions {
					return converge.Definitions{"db": {Name: "db", Digest: h.digest(first.ID, n, "db")}, "web": {Name: "web", Digest: h.digest(first.ID, n, "web")}}
				},
			})
			var running []string
			for name, ss := range goal.Services {
				if !ss.Stopped && ss.Scale > 0 {
					running = append(running, name)
				}
			}
			slices.Sort(running)
			if got := strings.Join(running, " "); spec.Patch.Number != 1 || got != c.running {
				t.Errorf("the start %+v runs %q, want %q", spec.Patch, got, c.running)
			}
		})
	}
}
