package api_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"mariposa"
	"mariposa/contract"
)

// undoOf returns the command that undoes a terminated task; empty if there is none.
func undoOf(ended contract.Terminated) string {
	if ended.UndoWith == nil {
		return ""
	}
	return *ended.UndoWith
}

// runs executes the commands in the response to a termination with the API, in order,
// and returns the last task.
func (h *testServer) runs(project, line string) (task string) {
	h.t.Helper()
	for _, command := range strings.Split(line, " && ") {
		words, ours := strings.CutPrefix(command, "mariposa -j "+project+" project ")
		if !ours {
			h.t.Fatalf("it is not a command about %s: %q", project, command)
		}
		action, wait := readCommand(h.t, strings.Fields(words))
		done := want[contract.Changed](h.putAction(project, "%s", action), 202)
		if done.Task == nil && strings.HasPrefix(words, "thaw") { // the freeze had not begun when the command before ended it
			continue
		}
		if done.Task == nil {
			h.t.Fatalf("no task was created for %s", action)
		}
		task = *done.Task
		if wait {
			h.awaitTask(task, mariposa.TaskCompleted)
		}
	}
	return task
}

// readCommand converts a command to the action that the CLI would send.
func readCommand(t testing.TB, words []string) (action string, wait bool) {
	t.Helper()
	ask := map[string]any{"action": words[0]}
	scales := map[string]any{}
	scale := func(word string) {
		name, n, _ := strings.Cut(word, "=")
		if scales[name] = json.Number(n); strings.HasPrefix(n, "+") {
			scales[name] = n
		}
		ask["scale"] = scales
	}
	for i := 1; i < len(words); i++ {
		switch word := words[i]; {
		case word == "--wait":
			wait = true
		case word == "--with-scale":
			ask["with_scale"] = true
		case word == "--service":
			i++
			names, _ := ask["services"].([]string)
			ask["services"] = append(names, words[i])
		case word == "--scale":
			i++
			scale(words[i])
		case word == "--canary" || word == "--count":
			i++
			ask["canary"] = json.Number(words[i])
		case words[0] == "scale":
			scale(word)
		case words[0] == "revert" && i == 1:
			ask["version"] = word
		default:
			t.Fatalf("unknown word %q in the command %v", word, words)
		}
	}
	text, err := json.Marshal(ask)
	if err != nil {
		t.Fatal(err)
	}
	return string(text), wait
}

// Terminating an active task freezes its scope, keeps its goal and leaves nothing
// half-done. A thaw continues it, and undo_with undoes it.
func TestATerminatedTaskCanBeContinuedOrUndone(t *testing.T) {
	t.Parallel()
	h := newTestServer(t, withPlanner)
	g := h.joinGated("n1")
	for _, c := range []struct {
		kind, ask string
		goal      int
		undo      string
		undone    int // how many run after the undoing
	}{
		{"scale", `{"action":"scale","scale":{"a":5}}`, 5, "scale a=2", 2},
		{"stop", `{"action":"stop","services":["a"]}`, 2, "start --service a", 2},
		{"start", `{"action":"start","services":["a"]}`, 2, "stop --service a", 0},
		{"reprovision", `{"action":"reprovision","services":["a"]}`, 2, "accept --service a && mariposa -j reprovision-undone project scale a=2", 2},
	} {
		for _, way := range []string{"continued", "undone"} {
			t.Run(c.kind+" "+way, func(t *testing.T) {
				t.Parallel()
				h, project := h.in(t), c.kind+"-"+way
				h.create(project, pair(1, 1))
				h.awaitRest(project)
				if c.kind == "start" {
					h.awaitTask(h.startTask(project, `{"action":"stop","services":["a"]}`), mariposa.TaskCompleted)
				}
				g.close(project)
				task := h.startTask(project, "%s", c.ask)
				h.awaitState(task, mariposa.TaskActive)
				h.until("a step to be under way", func() bool { s := h.of(project, "a"); return s.Starting+s.Stopping > 0 })
				ended := want[contract.Terminated](h.call("DELETE", "/v1/queue/"+task, nil), 202)
				if ended.Freeze == nil || ended.Goal["a"] != c.goal || len(ended.Goal) != 1 || len(ended.Actual) != 1 {
					t.Errorf("it answered %+v", ended)
				}
				if undo := undoOf(ended); undo != "mariposa -j "+project+" project "+strings.ReplaceAll(c.undo, "reprovision-undone", project) {
					t.Errorf("it is undone with %q", undo)
				}
				if got := h.task(task); got.State != mariposa.TaskTerminated || got.EndedBy != "admin" {
					t.Errorf("the task is %+v", got)
				}
				h.call("DELETE", "/v1/queue/"+task, nil).wantError(409, mariposa.Conflict, "already ended")
				h.awaitState(*ended.Freeze, mariposa.TaskActive)
				asked := len(h.task(task).Steps)
				g.open(project)
				h.until("the scope to settle", func() bool {
					s := h.of(project, "a")
					return s.Frozen && s.Starting+s.Stopping == 0 && !h.of(project, "b").Frozen && s.Goal == c.goal
				})
				h.until("nothing half-made to be left", func() bool {
					return !slices.ContainsFunc(slices.Collect(maps.Values(h.instances(project, "a"))), func(i contract.Instance) bool { return i.State != mariposa.StateRunning })
				})
				for _, step := range h.task(task).Steps[:len(h.task(task).Steps)-asked] {
					t.Errorf("a step of a task that has ended: %+v", step)
				}
				command, runs := ended.ContinueWith, map[string]int{"scale": 5, "stop": 0, "start": 2, "reprovision": 2}[c.kind]
				if way == "undone" {
					command, runs = undoOf(ended), c.undone
				}
				h.awaitTask(h.runs(project, command), mariposa.TaskCompleted)
				h.until("all to be as it should", func() bool {
					s := h.of(project, "a")
					return s.Running == runs && s.Starting+s.Stopping == 0 && !s.Frozen && len(h.openTasks(project)) == 0
				})
			})
		}
	}
}

// A rollout that was terminated halfway can be continued with a thaw or undone.
func TestATerminatedRolloutGoesOnOrBack(t *testing.T) {
	t.Parallel()
	h := newTestServer(t, withPlanner)
	g := h.joinGated("n1")
	for _, way := range []string{"on", "back"} {
		t.Run(way, func(t *testing.T) {
			t.Parallel()
			h := h.in(t)
			h.create(way, pair(1, 1))
			h.awaitRest(way)
			before := slices.Sorted(maps.Keys(h.instances(way, "a")))
			g.close(way)
			task := h.putManifest(way, pair(2, 1), "")
			h.until("a step to be under way", func() bool { return h.of(way, "a").Starting > 0 })
			ended := want[contract.Terminated](h.call("DELETE", "/v1/queue/"+task, nil), 202)
			thaw, revert := "mariposa -j "+way+" project thaw --service a", "mariposa -j "+way+" project revert 1"
			if ended.ContinueWith != thaw || undoOf(ended) != revert+" && "+thaw {
				t.Fatalf("it answered %+v", ended)
			}
			h.until("the scope to be frozen", func() bool { return h.of(way, "a").Frozen }) // what serves by then stays
			g.open(way)
			h.until("the scope to have what it had before", func() bool {
				s := h.of(way, "a")
				return s.Starting+s.Stopping == 0 && slices.Equal(slices.Sorted(maps.Keys(h.instances(way, "a"))), before)
			})
			version := "V=2"
			if way == "back" {
				version = "V=1"
				back := h.runs(way, revert)
				defer func() { h.awaitTask(back, mariposa.TaskCompleted) }()
			}
			h.awaitTask(h.runs(way, thaw), mariposa.TaskCompleted)
			h.awaitRest(way)
			all := h.instances(way, "a")
			for id := range all {
				if env := fmt.Sprint(want[contract.Instance](h.call("GET", "/v1/instances/"+id, nil), 200).Environment); !contains(env, version) {
					t.Errorf("it runs with %s", env)
				}
			}
			if way == "back" && !slices.Equal(slices.Sorted(maps.Keys(all)), before) {
				t.Errorf("an unchanged instance was replaced")
			}
		})
	}
}

// Terminating a queued task drops it: nothing is frozen or changed, and the response
// says how to repeat it. (A manifest does not wait for a start. For one that waits for
// a thaw, see queue_resubmit_test.go.)
func TestAQueuedTaskIsDropped(t *testing.T) {
	t.Parallel()
	h := newTestServer(t, withPlanner)
	g := h.joinGated("n1")
	for name, ask := range map[string]func(h *testServer, project string) string{
		"a scale": func(h *testServer, p string) string { return h.startTask(p, `{"action":"scale","scale":{"a":"+3"}}`) },
		"a reprovision": func(h *testServer, p string) string {
			return h.startTask(p, `{"action":"reprovision","services":["a"]}`)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h, project := h.in(t), "p"+newID()[28:]
			h.create(project, pair(1, 1))
			h.awaitRest(project)
			h.awaitTask(h.startTask(project, `{"action":"stop","services":["a"]}`), mariposa.TaskCompleted)
			g.close(project)
			start := h.startTask(project, `{"action":"start","services":["a"]}`)
			h.awaitState(start, mariposa.TaskActive)
			task := ask(h, project)
			ended := want[contract.Terminated](h.call("DELETE", "/v1/queue/"+task, nil), 202)
			if ended.Freeze != nil || ended.UndoWith != nil || h.task(task).State != mariposa.TaskTerminated {
				t.Errorf("it answered %+v", ended)
			}
			g.open(project)
			h.awaitTask(start, mariposa.TaskCompleted)
			h.awaitRest(project)
			if s := h.of(project, "a"); s.Frozen || s.Running != 2 || s.Goal != 2 || contains(fmt.Sprint(h.instances(project, "a")), "V=2") {
				t.Errorf("it is %+v", s)
			}
			before := h.instances(project, "a")
			h.awaitTask(h.runs(project, ended.ContinueWith), mariposa.TaskCompleted)
			if maps.EqualFunc(before, h.instances(project, "a"), func(a, b contract.Instance) bool { return a.ID == b.ID }) {
				t.Error("asked for again, it changed nothing")
			}
		})
	}
}
