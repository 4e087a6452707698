package api_test

import (
	"bufio"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"mariposa"
	"mariposa/contract"
)

// End to end: a project is submitted, an agent runs it, an instance crashes and is
// replaced, the log is followed, and the project is deleted.
func TestAProjectFromItsManifestToItsEnd(t *testing.T) {
	t.Parallel()
	h := newTestServer(t, withPlanner)
	h.join("n1")
	c := h.create("shop", "services:\n  web: {compute_type: dummy, scale: 2, update: {min_healthy: 0}}\n")
	service := func() contract.ServiceState {
		return want[contract.State](h.call("GET", "/v1/projects/shop/state", nil), 200).Projects[0].Services[0]
	}
	converged := func() bool {
		s := service()
		return s.Status == mariposa.StatusConverged && s.Running == 2 && s.Healthy == 2
	}
	h.until("the project to converge", converged)
	task := want[contract.Task](h.call("GET", "/v1/queue/"+*c.Task, nil), 200)
	if task.State != mariposa.TaskCompleted || task.Progress.Done != task.Progress.Total || len(task.Steps) < 4 {
		t.Errorf("task %+v", task)
	}
	if v := want[contract.Version](h.call("GET", "/v1/projects/shop/versions/1", nil), 200); !v.Completed {
		t.Errorf("version %+v", v)
	}
	nodes := want[contract.Nodes](h.call("GET", "/v1/nodes", nil), 200)
	if n := nodes.Nodes[0]; n.Name != "host-n1" || n.Instances != 2 || time.Since(*n.LastHeartbeat) > time.Minute || n.Drivers[0] != mariposa.ComputeDummy {
		t.Errorf("node %+v", n)
	}

	first := want[contract.Instances](h.call("GET", "/v1/instances?project=shop", nil), 200).Instances[0]
	want[contract.Changed](h.call("PUT", "/v1/instances/"+first.ID, contract.InstanceAction{Action: "crash"}), 202)
	h.until("the crashed instance to be replaced", func() bool {
		corpse := want[contract.Instance](h.call("GET", "/v1/instances/"+first.ID, nil), 200) // kept for people to look at
		return corpse.State != mariposa.StateRunning && converged()
	})
	want[contract.Changed](h.call("DELETE", "/v1/projects/shop?force=true", nil), 202)
	h.until("the project to go", func() bool { return h.call("GET", "/v1/projects/"+c.ID, nil).status == 404 })
	kinds := map[string]bool{}
	for _, e := range want[contract.Events](h.call("GET", "/v1/events?since=0&limit=1000&project="+c.ID, nil), 200).Events {
		kinds[e.Kind] = true
		if e.ProjectName != "shop" {
			t.Errorf("the project of %s at %d is called %q", e.Kind, e.Revision, e.ProjectName)
		}
		if e.Kind == "instance.running" && e.Reason == "" {
			t.Errorf("there is no reason for %s", e.InstanceName)
		}
	}
	tasks := want[contract.Tasks](h.call("GET", "/v1/queue?all=true", nil), 200).Tasks
	repairs := 0
	for _, task := range tasks {
		if task.ProjectName != "shop" {
			t.Errorf("the project name is missing in %+v", task)
		}
		if task.Origin == mariposa.OriginMariposa {
			repairs++
		}
	}
	if len(tasks) < 3 || repairs == 0 {
		t.Errorf("tasks %+v", tasks)
	}
	for _, kind := range []string{"project.created", "instance.running", "instance.failed", "task.completed", "version.completed", "project.deleting", "project.deleted"} {
		if !kinds[kind] {
			t.Errorf("no %s among the events", kind)
		}
	}
}

// A lost node is removed with its instances, which are recreated on other nodes at
// once, although their services would have waited.
func TestANodeIsForgottenWithItsInstances(t *testing.T) {
	t.Parallel()
	h := newTestServer(t, withPlanner)
	n1 := h.join("n1")
	h.join("n2")
	h.until("both nodes", func() bool {
		all := h.picture.Nodes.All()
		return len(all) == 2 && all[0].Status() != nil && all[1].Status() != nil
	})
	h.create("shop", "services:\n  web: {compute_type: dummy, scale: 6, memory: 1m, update: {min_healthy: 0}, reschedule: {after: 3600}}\n")
	converged := func() bool {
		p := want[contract.State](h.call("GET", "/v1/projects/shop/state", nil), 200).Projects[0]
		return p.Status == mariposa.StatusConverged && p.Services[0].Running == 6
	}
	h.until("the project to converge", converged)
	lost := h.picture.CountOn("n1")
	if lost == 0 || lost == 6 {
		t.Fatalf("%d instances are on n1", lost)
	}
	h.call("DELETE", "/v1/nodes/host-n1", nil).wantError(409, mariposa.Conflict, "mariposa node drain host-n1", "node rm host-n1 --force")
	want[contract.Changed](h.call("PUT", "/v1/nodes/host-n1", contract.NodeAction{Action: "lose"}), 200)
	h.until("the node to be unknown", func() bool {
		return want[contract.Node](h.call("GET", "/v1/nodes/host-n1", nil), 200).Status == mariposa.NodeUnknown
	})
	n1.leave() // else it would come back as a new node
	h.call("DELETE", "/v1/nodes/host-n1", nil).wantError(409, mariposa.Conflict, fmt.Sprintf("%d instance", lost), "node rm host-n1 --force")
	if c := want[contract.Changed](h.call("DELETE", "/v1/nodes/host-n1?force=true", nil), 200); !contains(c.Reason, "removed too") {
		t.Errorf("forgotten: %+v", c)
	}
	h.until("the rest to take over", func() bool { return h.picture.CountOn("n2") == 6 && converged() })
	ledger := must(h.store.Ledger(h.ctx))(t)
	if ledger["n1"] != (mariposa.Resources{}) || ledger["n2"] != (mariposa.Resources{Instances: 6, Memory: 6 << 20}) {
		t.Errorf("ledger %+v", ledger)
	}
	kinds := map[string]int{}
	for _, e := range want[contract.Events](h.call("GET", "/v1/events?since=0&limit=1000", nil), 200).Events {
		kinds[e.Kind]++
		if e.Kind == "instance.forgotten" && (!contains(e.Reason, "host-n1") || e.Actor != "admin" || e.ServiceName != "web" || e.InstanceName == "") {
			t.Errorf("event %+v", e)
		}
	}
	if kinds["instance.forgotten"] != lost || kinds["node.deleted"] != 1 {
		t.Errorf("events %v", kinds)
	}
}

func TestLogsAreStreamedAsTheyCome(t *testing.T) {
	t.Parallel()
	h := newTestServer(t, withPlanner)
	node := h.join("n1")
	h.create("shop", "services:\n  web: {compute_type: process, command: [talk]}\n")
	var id string
	h.until("the instance to run", func() bool {
		all := want[contract.Instances](h.call("GET", "/v1/instances?state=running", nil), 200)
		for _, i := range all.Instances {
			id = i.ID
		}
		return id != ""
	})
	logs := "/v1/instances/" + id + "/logs"
	r := h.call("GET", logs+"?tail=3", nil)
	if r.status != 200 || !strings.HasPrefix(r.header.Get("Content-Type"), "text/plain") || strings.Count(string(r.body), id) != 3 {
		t.Errorf("three lines: %d %q", r.status, r.body)
	}
	h.call("GET", logs+"?tail=14", nil).wantError(503, mariposa.Unavailable, "the disk is gone")
	if r := h.begin(logs + "?tail=13"); r != nil {
		if _, err := io.ReadAll(r.Body); err == nil {
			t.Error("a log that broke off looks whole")
		}
		r.Body.Close()
	}
	for _, query := range []string{"?follow=true&tail=2", "?follow=true&tail=15"} { // talking, and silent
		r := h.begin(logs + query)
		if query == "?follow=true&tail=2" {
			if line, err := bufio.NewReader(r.Body).ReadString('\n'); err != nil || !strings.HasPrefix(line, id) {
				t.Errorf("the first line is %q, %v", line, err)
			}
		}
		r.Body.Close()
	}
	for range 5 { // who stops reading ends the stream at the node too
		<-node.ended
	}
}

// begin sends a request whose response is a stream.
func (h *testServer) begin(path string) *http.Response {
	h.t.Helper()
	req := must(http.NewRequestWithContext(h.ctx, http.MethodGet, h.url+path, nil))(h.t)
	req.Header.Set("Authorization", "Bearer "+h.token)
	res := must(h.http.Do(req))(h.t)
	if res.StatusCode != 200 {
		h.t.Fatalf("%s answered %d", path, res.StatusCode)
	}
	return res
}
