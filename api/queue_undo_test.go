package api_test

import (
	"fmt"
	"strings"
	"testing"

	"mariposa"
	"mariposa/contract"
)

// threeOf returns a manifest with three services at given scales and versions.
func threeOf(scaleA, scaleB, a, b int, update string) string {
	return fmt.Sprintf("services:\n  a: {compute_type: dummy, scale: %d, environment: {V: %d}, update: {min_healthy: 0%s}}\n"+
		"  b: {compute_type: dummy, scale: %d, environment: {V: %d}, update: {min_healthy: 0}}\n"+
		"  c: {compute_type: dummy, environment: {V: 1}, update: {min_healthy: 0}}\n", scaleA, a, update, scaleB, b)
}

// describes summarizes the running instances and the status of services.
func (h *testServer) describes(project string) string {
	h.t.Helper()
	var words []string
	for _, s := range h.state(project).Services {
		words = append(words, fmt.Sprintf("%s %s %d: %s", s.Name, s.Status, s.Goal, h.values(project, s.Name)))
	}
	return strings.Join(words, "; ")
}

// For every kind of task, the commands in undo_with restore the previous state:
// versions, scales, stopped services and held canaries.
func TestAnUndoBringsBackWhatWasThereBefore(t *testing.T) {
	t.Parallel()
	h := newTestServer(t, withPlanner)
	g := h.joinGated("n1")
	for name, c := range map[string]struct {
		before func(h *testServer, p string) // beyond the first version
		ask    func(h *testServer, p string) string
		undo   string // without the words before "project"
	}{
		"a manifest that scales": {
			nil, func(h *testServer, p string) string { return h.putManifest(p, threeOf(8, 2, 1, 1, ""), "") },
			"revert 1 --scale a=4 && thaw --service a",
		},
		"a manifest that scales two, after scales by hand": {
			func(h *testServer, p string) {
				h.awaitTask(h.startTask(p, `{"action":"scale","scale":{"a":5,"b":3}}`), mariposa.TaskCompleted)
			},
			func(h *testServer, p string) string { return h.putManifest(p, threeOf(8, 6, 1, 2, ""), "") },
			"revert 1 --scale a=5 --scale b=3 && thaw --service a --service b",
		},
		"scales of two services": {
			nil, func(h *testServer, p string) string {
				return h.startTask(p, `{"action":"scale","scale":{"a":"+3","b":7}}`)
			}, "scale a=4 b=2",
		},
		"scales of which one stays": {
			nil, func(h *testServer, p string) string {
				return h.startTask(p, `{"action":"scale","scale":{"a":4,"b":7}}`)
			}, "scale b=2 && thaw --service a --service b",
		},
		"a manifest without a service": {
			func(h *testServer, p string) {
				h.awaitTask(h.startTask(p, `{"action":"scale","scale":{"c":3}}`), mariposa.TaskCompleted)
			},
			func(h *testServer, p string) string {
				text := threeOf(4, 2, 2, 1, "")
				return h.putManifest(p, text[:strings.Index(text, "  c:")], "")
			}, "revert 1 --scale c=3 && thaw --service a --service c",
		},
		"a revert": {
			func(h *testServer, p string) {
				h.awaitTask(h.putManifest(p, threeOf(4, 2, 2, 1, ""), ""), mariposa.TaskCompleted)
			},
			func(h *testServer, p string) string { return h.startTask(p, `{"action":"revert"}`) }, "revert 2 && thaw --service a",
		},
		"a revert of a revert": {
			func(h *testServer, p string) {
				h.awaitTask(h.putManifest(p, threeOf(4, 2, 2, 1, ""), ""), mariposa.TaskCompleted)
				h.awaitTask(h.startTask(p, `{"action":"revert"}`), mariposa.TaskCompleted)
			},
			func(h *testServer, p string) string { return h.startTask(p, `{"action":"revert"}`) }, "revert 3 && thaw --service a",
		},
		"a plain reprovision": {
			nil, func(h *testServer, p string) string { return h.startTask(p, `{"action":"reprovision"}`) },
			"accept --service a --service b --service c && scale a=4 b=2 c=1 && thaw",
		},
		"a canary that goes on": {
			func(h *testServer, p string) {
				h.awaitTask(h.putManifest(p, threeOf(4, 2, 2, 2, ", canary: 1"), ""), mariposa.TaskCompleted)
			},
			func(h *testServer, p string) string { return h.startTask(p, `{"action":"reprovision"}`) },
			"revert 1 && thaw --service a --wait && revert 2 --canary 1 --wait && reprovision --service b",
		},
		"one of two canaries that goes on": {
			func(h *testServer, p string) {
				h.awaitTask(h.putManifest(p, threeOf(4, 3, 2, 2, ""), "&canary=1"), mariposa.TaskCompleted)
			},
			func(h *testServer, p string) string {
				return h.startTask(p, `{"action":"reprovision","services":["b"]}`)
			},
			"revert 1 && thaw --service b --wait && revert 2 --canary 1 --wait",
		},
		"the larger one of two canaries that goes on": {
			func(h *testServer, p string) {
				h.awaitTask(h.putManifest(p, threeOf(4, 3, 2, 2, ""), "&canary=1"), mariposa.TaskCompleted)
				h.awaitTask(h.startTask(p, `{"action":"reprovision","services":["a"],"canary":2}`), mariposa.TaskCompleted)
			},
			func(h *testServer, p string) string {
				return h.startTask(p, `{"action":"reprovision","services":["a"]}`)
			},
			"revert 1 && thaw --service a --wait && revert 2 --canary 1 --wait && reprovision --service a --count 2 --wait",
		},
		"a manifest after one of two canaries": {
			func(h *testServer, p string) {
				h.awaitTask(h.putManifest(p, threeOf(4, 3, 2, 2, ""), "&canary=1"), mariposa.TaskCompleted)
			},
			func(h *testServer, p string) string { return h.putManifest(p, threeOf(4, 3, 3, 2, ""), "") },
			"revert 1 && thaw --service a --wait && revert 2 --canary 1 --wait",
		},
		"a manifest after a canary": {
			func(h *testServer, p string) {
				h.awaitTask(h.putManifest(p, threeOf(4, 2, 2, 1, ", canary: 2"), ""), mariposa.TaskCompleted)
			},
			func(h *testServer, p string) string { return h.putManifest(p, threeOf(4, 2, 3, 1, ""), "") },
			"revert 1 && thaw --service a --wait && revert 2 --canary 2 --wait",
		},
		"a stop of what runs": {
			func(h *testServer, p string) {
				h.awaitTask(h.startTask(p, `{"action":"stop","services":["b"]}`), mariposa.TaskCompleted)
			},
			func(h *testServer, p string) string { return h.startTask(p, `{"action":"stop"}`) }, "start --service a --service c && thaw",
		},
		"a start of what is stopped": {
			func(h *testServer, p string) {
				h.awaitTask(h.startTask(p, `{"action":"stop","services":["b"]}`), mariposa.TaskCompleted)
			},
			func(h *testServer, p string) string { return h.startTask(p, `{"action":"start"}`) }, "stop --service b && thaw",
		},
		"a start at another version": {
			func(h *testServer, p string) {
				h.awaitTask(h.putManifest(p, threeOf(4, 2, 2, 1, ""), ""), mariposa.TaskCompleted)
				h.awaitTask(h.startTask(p, `{"action":"stop"}`), mariposa.TaskCompleted)
			},
			func(h *testServer, p string) string { return h.startTask(p, `{"action":"start","version":"1"}`) }, "stop --wait && revert 2",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h, project := h.in(t), "p"+newID()[28:]
			h.create(project, threeOf(4, 2, 1, 1, ""))
			h.awaitRest(project)
			if c.before != nil {
				c.before(h, project)
			}
			h.awaitRest(project)
			before := h.describes(project)
			g.close(project)
			task := c.ask(h, project)
			h.until("a step to be under way", func() bool {
				return len(h.task(task).Steps) > 0
			})
			ended := want[contract.Terminated](h.call("DELETE", "/v1/queue/"+task, nil), 202)
			if got := strings.ReplaceAll(undoOf(ended), "mariposa -j "+project+" project ", ""); got != c.undo {
				t.Errorf("it is undone with %q", got)
			}
			g.open(project)
			h.runs(project, undoOf(ended))
			after := ""
			defer func() {
				if after != before {
					t.Errorf("before it was\n%s\nand after the undo\n%s", before, after)
				}
			}()
			h.until("everything to be as before", func() bool {
				after = h.describes(project)
				return after == before && len(h.openTasks(project)) == 0
			})
		})
	}
}

// If nothing can be undone, undo_with is null. A repair is undone by an accept.
func TestWhatCannotBeUndoneSaysSo(t *testing.T) {
	t.Parallel()
	h := newTestServer(t, withPlanner)
	g := h.joinGated("n1")
	t.Run("a retry", func(t *testing.T) {
		t.Parallel()
		h := h.in(t)
		h.fails(g, "retry")
		g.spoil("retry", false)
		g.close("retry")
		task := h.startTask("retry", `{"action":"converge"}`)
		h.awaitState(task, mariposa.TaskActive)
		answer := h.call("DELETE", "/v1/queue/"+task, nil)
		if ended := want[contract.Terminated](answer, 202); ended.UndoWith != nil || !contains(string(answer.body), `"undo_with":null`) {
			t.Errorf("it answered %s", answer.body)
		}
	})
	t.Run("a repair", func(t *testing.T) {
		t.Parallel()
		h := h.in(t)
		h.create("repair", threeOf(4, 2, 1, 1, ""))
		h.awaitRest("repair")
		g.close("repair")
		for id := range h.instances("repair", "a") {
			h.crash(id)
			break
		}
		var task string
		h.until("a repair", func() bool {
			for _, t := range h.openTasks("repair") {
				task = t.ID
			}
			return task != "" && h.of("repair", "a").Starting == 1
		})
		ended := want[contract.Terminated](h.call("DELETE", "/v1/queue/"+task, nil), 202)
		if got := strings.ReplaceAll(undoOf(ended), "mariposa -j repair project ", ""); got != "accept --service a && thaw --service a" {
			t.Errorf("it is undone with %q", got)
		}
		h.until("the freeze", func() bool { return h.of("repair", "a").Frozen })
		g.open("repair")
		h.runs("repair", undoOf(ended))
		h.until("nothing to be left to do", func() bool { return len(h.openTasks("repair")) == 0 })
		if s := h.of("repair", "a"); s.Goal != 3 || s.Running != 3 || s.Status != mariposa.StatusConverged {
			t.Errorf("it is %+v", s)
		}
	})
}
