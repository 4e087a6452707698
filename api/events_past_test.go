package api_test

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"mariposa"
	"mariposa/contract"
	"mariposa/store"
)

// An event shows the state when it happened, whatever has changed since.
func TestAnEventSaysWhatWasSoThen(t *testing.T) {
	t.Parallel()
	h := newTestServer(t, withPlanner)
	g := h.joinGated("n1")
	h.create("shop", pair(1, 1))
	h.awaitRest("shop")
	first := want[contract.Version](h.call("GET", "/v1/projects/shop/versions/1", nil), 200).Version
	g.close("shop")
	rollout := h.putManifest("shop", pair(1, 2), "") // a is defined as before
	h.until("a successor of b", func() bool { return h.of("shop", "b").Starting > 0 })
	g.open("shop")
	h.awaitTask(rollout, mariposa.TaskCompleted)
	h.awaitRest("shop")
	want[contract.Changed](h.call("PUT", "/v1/nodes/n1", contract.NodeAction{Action: "lose"}), 200)
	h.until("the node to be lost", func() bool {
		return want[contract.Node](h.call("GET", "/v1/nodes/n1", nil), 200).Status == mariposa.NodeUnknown
	})
	instances, versions := 0, 0
	for _, e := range want[contract.Events](h.call("GET", "/v1/events?project=shop&limit=1000", nil), 200).Events {
		o, _ := e.Object.(map[string]any) // some have none
		switch {
		case e.Kind == "instance.running" && e.ServiceName == "a":
			instances++
			if o["version"] != first || o["state"] != "running" {
				t.Errorf("%s of a: version %v, state %v", e.Kind, o["version"], o["state"])
			}
		case e.Kind == "version.created":
			versions++
			if len(o["tags"].([]any)) > 0 {
				t.Errorf("version %v was made with the tags %v", o["number"], o["tags"])
			}
		case e.Task != "" && o["eta"] != nil && o["eta"].(string) < e.Time.Format("2006-01-02T15:04:05"):
			t.Errorf("%s: the task would end at %v", e.Time, o["eta"])
		}
	}
	if instances != 2 || versions != 2 {
		t.Errorf("%d events of instances, %d of versions", instances, versions)
	}
	for _, e := range want[contract.Events](h.call("GET", "/v1/events?limit=1000", nil), 200).Events {
		if o, _ := e.Object.(map[string]any); e.Kind == "node.running" && o["status"] != "running" || o != nil && e.Node != "" && e.Instance == "" && o["instances"] != nil {
			t.Errorf("%s: %v", e.Kind, o)
		}
	}
}

// An event never changes once it has happened, nor does a task that has ended: neither by
// later versions with the same manifest nor by other changes.
func TestEventsAndEndedTasksNeverChange(t *testing.T) {
	t.Parallel()
	h := newTestServer(t, withPlanner)
	h.joinGated("n1")
	h.create("shop", pair(1, 1))
	h.awaitRest("shop")
	end := func(task string) { t.Helper(); h.awaitTask(task, mariposa.TaskCompleted) }
	end(h.startTask("shop", `{"action":"scale","scale":{"a":3}}`))
	for id := range h.instances("shop", "b") {
		h.crash(id)
		break
	}
	h.until("b to be repaired", func() bool { return h.of("shop", "b").Running == 2 && len(h.openTasks("shop")) == 0 })
	freeze := h.startTask("shop", `{"action":"freeze"}`)
	h.until("the freeze", func() bool { return h.state("shop").Frozen })
	waits := h.putManifest("shop", pair(2, 1), "")
	end(h.startTask("shop", `{"action":"thaw"}`))
	end(freeze)
	end(waits)
	end(h.startTask("shop", `{"action":"scale","scale":{"b":3}}`))
	h.awaitRest("shop")
	until := h.revision()

	events := func() map[int64]json.RawMessage {
		t.Helper()
		all := map[int64]json.RawMessage{}
		for _, e := range want[struct{ Events []json.RawMessage }](h.call("GET", "/v1/events?project=shop&limit=1000", nil), 200).Events {
			var at struct{ Revision int64 }
			if err := json.Unmarshal(e, &at); err != nil {
				t.Fatal(err)
			}
			if at.Revision <= until {
				all[at.Revision] = e
			}
		}
		return all
	}
	tasks := func() map[string]string {
		t.Helper()
		all := map[string]string{}
		for _, task := range want[contract.Tasks](h.call("GET", "/v1/queue?project=shop&all=true&limit=1000", nil), 200).Tasks {
			all[task.ID] = string(h.call("GET", "/v1/queue/"+task.ID, nil).body)
		}
		return all
	}
	eventsBefore, tasksBefore := events(), tasks()

	end(h.startTask("shop", `{"action":"revert","version":"1"}`))
	end(h.startTask("shop", `{"action":"revert","version":"2"}`))
	want[contract.Changed](h.call("PUT", "/v1/projects/shop/metadata/mode", "loud", "Content-Type", "text/plain"), 200)
	h.startTask("shop", `{"action":"freeze"}`)
	h.until("the freeze", func() bool { return h.state("shop").Frozen })
	h.putManifest("shop", pair(5, 5), "") // waits for the thaw
	end(h.startTask("shop", `{"action":"scale","scale":{"a":1}}`))

	eventsAfter, tasksAfter := events(), tasks()
	if len(eventsBefore) < 30 || len(tasksBefore) < 6 {
		t.Errorf("%d events and %d tasks were compared", len(eventsBefore), len(tasksBefore))
	}
	for at, was := range eventsBefore {
		if is := eventsAfter[at]; string(is) != string(was) {
			t.Errorf("event %d was\n%s\nand is\n%s", at, was, is)
		}
	}
	for id, was := range tasksBefore {
		if is := tasksAfter[id]; is != was {
			t.Errorf("task %s was\n%s\nand is\n%s", id, was, is)
		}
		if strings.Contains(was, `"version":"`) && !strings.Contains(was, `"number":`) {
			t.Errorf("task %s has a version without its number:\n%s", id, was)
		}
	}
}

// The reason of an ended task is told as of its end, not as of now.
func TestTheReasonOfAnEndedTaskIsThatOfItsEnd(t *testing.T) {
	t.Parallel()
	h := newTestServer(t)
	c := h.create("shop", pair(1, 1))
	ended := time.Now().Add(-time.Hour)
	why := &mariposa.Reason{Code: mariposa.ReasonBackingOff, Count: 3, Until: ended.Add(time.Minute)}
	h.commit(store.Unit{Writes: []store.Write{{
		Kind: mariposa.KindTask, ID: *c.Task, Project: c.ID, Status: &mariposa.TaskStatus{State: mariposa.TaskFailed, Finished: ended, Reason: why},
		Event: mariposa.Event{Kind: "task.failed", Project: c.ID, Task: *c.Task},
	}}})
	if task := h.task(*c.Task); !strings.Contains(task.Reason, "next retry at") {
		t.Errorf("the reason is %q", task.Reason)
	}
}
