package api_test

import (
	"maps"
	"slices"
	"testing"

	"mariposa"
)

// A manifest in which nothing differs but an edge makes a task, which touches no
// instance, and the edge holds from then on: what is depended on goes last. So it
// does for an edge that is added, one that is turned round, and one that is gone.
func TestAChangeOfAnEdgeAloneIsATaskAndTakesEffect(t *testing.T) {
	t.Parallel()
	const (
		none  = "services:\n  a: {compute_type: dummy}\n  b: {compute_type: dummy}\n"
		aOnB  = "services:\n  a: {compute_type: dummy, depends_on: [b]}\n  b: {compute_type: dummy}\n"
		bOnA  = "services:\n  a: {compute_type: dummy}\n  b: {compute_type: dummy, depends_on: [a]}\n"
		aside = "beside each other"
	)
	h := newHouse(t, withPlanner)
	gate := h.gated("n1")
	for _, c := range []struct{ name, before, after, first string }{
		{"added", none, aOnB, "a"}, {"turned-round", aOnB, bOnA, "b"}, {"taken-away", bOnA, none, aside},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			h := h.in(t)
			h.create(c.name, c.before)
			h.rests(c.name)
			ids := func() []string {
				return slices.Sorted(maps.Keys(h.instances(c.name, "")))
			}
			before := ids()
			task := h.ends(h.puts(c.name, c.after, ""), mariposa.TaskCompleted)
			if task.Task != mariposa.TaskReprovision || len(task.Services) == 0 || len(task.Steps) != 0 {
				t.Errorf("the task of the edge: %+v", task)
			}
			if after := ids(); len(before) != 2 || !slices.Equal(before, after) {
				t.Errorf("the instances were %v and are %v", before, after)
			}
			gate.close(c.name) // nothing goes for now, so whoever waits for another still waits
			h.begins(c.name, `{"action":"stop"}`)
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
				t.Errorf("told to go first: %s, want %s", first, c.first)
			}
			gate.open(c.name)
			h.until("all to be stopped", func() bool { return h.state(c.name).Status == mariposa.StatusStopped })
		})
	}
}
