package api_test

import (
	"fmt"
	"strings"
	"testing"

	"mariposa"
	"mariposa/contract"
)

// The steps of a task end with it, however it ends.
func TestTheStepsOfAnEndedTaskHaveEnded(t *testing.T) {
	t.Parallel()
	h := newTestServer(t, withPlanner)
	g := h.joinGated("n1")
	h.create("shop", pair(1, 1))
	h.awaitRest("shop")
	results := func(task string) map[string]int {
		t.Helper()
		all := map[string]int{}
		for _, step := range h.task(task).Steps {
			all[step.Step+" "+step.Result]++
		}
		return all
	}
	terminate := func(task string) {
		t.Helper()
		want[contract.Terminated](h.call("DELETE", "/v1/queue/"+task, nil), 202)
		h.awaitTask(task, mariposa.TaskTerminated)
	}
	settle := func() {
		t.Helper()
		g.open("shop")
		h.awaitTask(h.startTask("shop", `{"action":"thaw"}`), mariposa.TaskCompleted)
		h.awaitRest("shop")
	}

	g.close("shop")
	scale := h.startTask("shop", `{"action":"scale","scale":{"a":4}}`)
	h.until("two to be asked for", func() bool { return results(scale)["create asked"] == 2 })
	terminate(scale)
	if got := results(scale); got["create not done"] < 2 {
		t.Errorf("steps of the terminated scale: %v", got)
	}
	settle()

	g.close("shop")
	roll := h.startTask("shop", `{"action":"reprovision","services":["a"]}`)
	h.until("a successor to be asked for", func() bool { return results(roll)["create asked"] > 0 })
	terminate(roll)
	settle()

	g.close("shop")
	stop := h.startTask("shop", `{"action":"stop"}`)
	h.until("the removals to be asked for", func() bool { return results(stop)["remove asked"] > 0 })
	terminate(stop)
	if got := results(stop); got["remove not done"] == 0 {
		t.Errorf("steps of the terminated stop: %v", got)
	}
	g.open("shop")
	h.awaitTask(h.startTask("shop", `{"action":"thaw"}`), mariposa.TaskCompleted)
	h.awaitTask(h.startTask("shop", `{"action":"start"}`), mariposa.TaskCompleted)
	h.awaitRest("shop")

	for id := range h.instances("shop", "b") {
		h.crash(id)
	}
	h.until("b to be repaired", func() bool { return h.of("shop", "b").Running == 2 && len(h.openTasks("shop")) == 0 })
	done := h.putManifest("shop", pair(2, 2), "")
	h.awaitTask(done, mariposa.TaskCompleted)
	if got := results(done); got["create done"] < 4 || got["create running"] != 6 || got["create not done"] > 0 {
		t.Errorf("steps of the completed rollout: %v", got)
	}

	for _, task := range want[contract.Tasks](h.call("GET", "/v1/queue?project=shop&all=true&limit=1000", nil), 200).Tasks {
		whole := h.task(task.ID)
		h.wantEndedSteps(whole)
		var paged []contract.TaskStep
		for marker := ""; ; { // a page shows the same results as the whole
			page := want[contract.Task](h.call("GET", "/v1/queue/"+task.ID+"?limit=2"+marker, nil), 200)
			if paged = append(paged, page.Steps...); page.Marker == "" {
				break
			}
			marker = "&marker=" + page.Marker
		}
		if is, was := fmt.Sprint(paged), fmt.Sprint(whole.Steps); is != was {
			t.Errorf("the steps of %s are\n%s\nand by pages\n%s", task.ID, was, is)
		}
	}
}

// A task without steps has an empty list of them. In lists, tasks have none at all.
func TestATaskWithoutStepsHasAnEmptyList(t *testing.T) {
	t.Parallel()
	h := newTestServer(t)
	task := *h.create("shop", hello).Task
	for path, says := range map[string]bool{"/v1/queue/" + task: true, "/v1/queue": false} {
		if got := h.call("GET", path, nil); got.status != 200 || strings.Contains(string(got.body), `"steps":[]`) != says {
			t.Errorf("%s answered %d: %s", path, got.status, got.body)
		}
	}
}
