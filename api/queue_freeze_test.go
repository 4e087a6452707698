package api_test

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"mariposa"
	"mariposa/contract"
)

// pair returns a manifest with two services at given versions.
func pair(a, b int) string {
	return fmt.Sprintf("services:\n  a: {compute_type: dummy, scale: 2, environment: {V: %d}, update: {min_healthy: 0}}\n"+
		"  b: {compute_type: dummy, scale: 2, environment: {V: %d, MODE: \"{{ .meta.mode }}\"}, update: {min_healthy: 0, on_metadata: reprovision}}\n"+
		"metadata: {mode: {default: calm}}\n", a, b)
}

// newMembers creates a deployer and an operator of a project.
func (h *testServer) newMembers(project string) (deployer, operator *testServer) {
	h.t.Helper()
	as := func(role mariposa.Role) *testServer {
		name := string(role) + "-of-" + project
		want[contract.Changed](h.call("POST", "/v1/users", contract.NewUser{Name: name}), 201)
		want[contract.Changed](h.call("PUT", "/v1/projects/"+project+"/users/"+name, contract.MemberChange{Role: string(role)}), 200)
		return h.as(h.mint(contract.NewToken{Name: "first", User: name}))
	}
	return as(mariposa.RoleDeployer), as(mariposa.RoleOperator)
}

// An explicit action of an operator lifts the freeze of the named services only.
func TestAnOperatorLiftsAFreezeOfWhatTheyName(t *testing.T) {
	t.Parallel()
	h := newTestServer(t, withPlanner)
	h.joinGated("n1")
	for _, kind := range []string{"start", "stop", "scale", "reprovision"} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			h, project := h.in(t), "by-"+kind
			c := h.create(project, pair(1, 1))
			h.awaitRest(project)
			_, operator := h.newMembers(project)
			freeze := h.startTask(project, `{"action":"freeze"}`)
			h.until("the freeze", func() bool { return h.of(project, "a").Frozen && h.of(project, "b").Frozen })
			if st := h.state(project); !st.Frozen || st.Status != mariposa.StatusFrozen {
				t.Errorf("frozen: %+v", st)
			}
			before := h.instances(project, "b")
			done := want[contract.Changed](operator.call("PUT", "/v1/projects/"+c.ID+"/state", []byte(action(kind, []string{"a"}))), 202)
			if !slices.Equal(done.Thawed, []string{"a"}) {
				t.Errorf("it says that it ends the freeze of %v", done.Thawed)
			}
			h.awaitTask(*done.Task, mariposa.TaskCompleted)
			if kept := h.task(freeze); kept.State != mariposa.TaskActive || kept.Reason != "still frozen: b" {
				t.Errorf("the freeze is %+v", kept)
			}
			if h.of(project, "a").Frozen || !h.of(project, "b").Frozen {
				t.Errorf("frozen now: %+v", h.state(project))
			}
			h.putAction(project, `{"action":"freeze","services":["b"]}`).wantError(409, mariposa.Conflict, freeze, "already frozen")
			for id := range before {
				h.crash(id)
			}
			h.until("b to say what is gone", func() bool {
				return contains(h.of(project, "b").Reason, "2 instances are gone and would be replaced after thaw")
			})
			lifts := h.startTask(project, `{"action":"thaw"}`)
			h.awaitTask(lifts, mariposa.TaskCompleted)
			if ended := h.awaitTask(freeze, mariposa.TaskCompleted); ended.EndedBy != lifts {
				t.Errorf("the freeze is %+v", ended)
			}
			h.until("b to come back", func() bool {
				s := h.of(project, "b")
				return s.Running == 2 && !s.Frozen && s.Status == mariposa.StatusConverged
			})
		})
	}
}

// On a frozen scope, new manifests, new values and all changes of a deployer are stored
// and wait for the thaw.
func TestOtherChangesWaitForTheThaw(t *testing.T) {
	t.Parallel()
	h := newTestServer(t, withPlanner)
	h.joinGated("n1")
	for name, change := range map[string]func(h, deployer, operator *testServer, path string) contract.Changed{
		"a deployer's reprovision": func(_, d, _ *testServer, path string) contract.Changed {
			return want[contract.Changed](d.call("PUT", path+"/state", []byte(`{"action":"reprovision"}`)), 202)
		},
		"a deployer's manifest": func(_, d, _ *testServer, path string) contract.Changed {
			return want[contract.Changed](d.call("PUT", path+"/manifest?force=true", pair(2, 2)), 200)
		},
		"an operator's manifest": func(_, _, o *testServer, path string) contract.Changed {
			return want[contract.Changed](o.call("PUT", path+"/manifest?force=true", pair(2, 2)), 200)
		},
		"other values": func(_, _, o *testServer, path string) contract.Changed {
			return want[contract.Changed](o.call("PUT", path+"/metadata/mode", contract.MetadataValue{Value: []byte(`"wild"`)}), 200)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h, project := h.in(t), "p"+newID()[28:]
			c := h.create(project, pair(1, 1))
			h.awaitRest(project)
			deployer, operator := h.newMembers(project)
			freeze := h.startTask(project, `{"action":"freeze"}`)
			h.until("the freeze", func() bool { return h.of(project, "b").Frozen })
			before, version := h.instances(project, ""), h.state(project).Version
			made := change(h, deployer, operator, "/v1/projects/"+c.ID)
			if made.Task == nil {
				t.Fatalf("no task: %+v", made)
			}
			if newest := want[contract.Project](h.call("GET", "/v1/projects/"+c.ID, nil), 200); !contains(name, "reprovision") && (made.Number != 2 || newest.Version == "") {
				t.Errorf("stored: %+v", made)
			}
			for id := range before { // a reason to plan again and again
				h.crash(id)
			}
			h.until("all to be gone", func() bool { return h.of(project, "a").Running+h.of(project, "b").Running == 0 })
			if task := h.task(*made.Task); task.State != mariposa.TaskQueued || !slices.Contains(task.WaitsFor, freeze) {
				t.Errorf("it is %+v", task)
			}
			if st := h.state(project); st.Version != version || !st.Services[0].Frozen || h.task(freeze).State != mariposa.TaskActive {
				t.Errorf("frozen: %+v", st)
			}
			h.awaitTask(h.startTask(project, `{"action":"thaw"}`), mariposa.TaskCompleted)
			h.awaitTask(*made.Task, mariposa.TaskCompleted)
			h.until("all to be as asked for", func() bool {
				st := h.state(project)
				return st.Status == mariposa.StatusConverged && st.Version == made.Version && st.Services[0].Running+st.Services[1].Running == 4 && !st.Frozen
			})
			h.awaitTask(freeze, mariposa.TaskCompleted)
		})
	}
}

// An older version may wait longer than a newer one. It must not undo the newer one later.
func TestAnOlderVersionNeverReplacesANewerOne(t *testing.T) {
	t.Parallel()
	h := newTestServer(t, withPlanner)
	h.joinGated("n1")
	h.create("shop", pair(1, 1))
	h.awaitRest("shop")
	h.startTask("shop", `{"action":"freeze","services":["a"]}`)
	h.until("the freeze", func() bool { return h.of("shop", "a").Frozen })
	frozen := h.instances("shop", "a")
	older := h.putManifest("shop", pair(2, 1), "")
	newer := h.putManifest("shop", pair(2, 2), "")
	h.until("b to be rolled", func() bool { return h.task(newer).State.Ended() || h.of("shop", "b").Outdated == 0 })
	if now := h.instances("shop", "a"); !slices.Equal(slices.Sorted(maps.Keys(now)), slices.Sorted(maps.Keys(frozen))) {
		t.Errorf("what is frozen was changed: %+v", now)
	}
	h.awaitTask(h.startTask("shop", `{"action":"thaw"}`), mariposa.TaskCompleted)
	h.awaitTask(older, mariposa.TaskCompleted)
	h.awaitTask(newer, mariposa.TaskCompleted)
	h.awaitRest("shop")
	newest := want[contract.Project](h.call("GET", "/v1/projects/shop", nil), 200)
	if st := h.state("shop"); st.Version != h.task(newer).Version || newest.Version != st.Version {
		t.Errorf("in force is %s, not %s", st.Version, h.task(newer).Version)
	}
	for _, service := range []string{"a", "b"} {
		for _, env := range h.running(service) {
			if !contains(env, "V=2") {
				t.Errorf("%s runs with %s", service, env)
			}
		}
	}
}

// Preserved instances are listed and can be inspected, do not count, are limited in
// number, and are deleted with their project.
func TestCorpsesAreShownAndBounded(t *testing.T) {
	t.Parallel()
	h := newTestServer(t, withPlanner)
	h.joinGated("n1")
	c := h.create("shop", "services:\n  web: {compute_type: dummy, scale: 5, update: {min_healthy: 0}}\n")
	h.awaitRest("shop")
	old := h.instances("shop", "web")
	for id := range old {
		h.crash(id)
	}
	corpses := func() []contract.Instance {
		all := want[contract.Instances](h.call("GET", "/v1/instances?project=shop", nil), 200).Instances
		return slices.DeleteFunc(all, func(i contract.Instance) bool { return i.State == mariposa.StateRunning })
	}
	isGone := func() bool { // otherwise one of the five is old, and its corpse replaces one of the three
		for id := range h.instances("shop", "web") {
			if _, is := old[id]; is {
				return false
			}
		}
		return true
	}
	h.until("five anew beside three corpses", func() bool {
		s := h.of("shop", "web")
		return s.Running == 5 && s.Failed == 0 && len(corpses()) == 3 && isGone() && s.Status == mariposa.StatusConverged && len(h.openTasks("shop")) == 0
	})
	slots := map[string]bool{}
	for _, one := range corpses() {
		slots[one.Slot] = true
		i := want[contract.Instance](h.call("GET", "/v1/instances/"+one.ID, nil), 200)
		if i.State != mariposa.StateStopped || i.ExitCode == nil || *i.ExitCode != 137 || !contains(i.Reason, "killed") || i.Finished == nil {
			t.Errorf("the corpse is %+v", i)
		}
		if r := h.call("GET", "/v1/instances/"+one.ID+"/logs", nil); r.status != 409 || !contains(string(r.body), "has compute type dummy, which does not support logs") {
			t.Errorf("its logs answered %d %s", r.status, r.body)
		}
	}
	if len(slots) != 3 {
		t.Errorf("slots %v", slots)
	}
	if n := want[contract.Nodes](h.call("GET", "/v1/nodes", nil), 200).Nodes[0].Instances; n != 5 && n != 8 {
		t.Errorf("the node has %d", n)
	}
	want[contract.Changed](h.call("DELETE", "/v1/projects/shop?force=true", nil), 202)
	h.until("the project to go", func() bool { return h.call("GET", "/v1/projects/"+c.ID, nil).status == 404 })
	if left := h.picture.Instances.All(); len(left) != 0 {
		t.Errorf("%d instances are left", len(left))
	}
}

// A pause holds rollouts. Repairs continue at the version of each slot.
func TestAPauseHoldsRolloutsAndNotRepairs(t *testing.T) {
	t.Parallel()
	h := newTestServer(t, withPlanner)
	h.joinGated("n1")
	h.create("shop", pair(1, 1))
	h.awaitRest("shop")
	h.awaitTask(h.startTask("shop", `{"action":"pause","services":["a"]}`), mariposa.TaskCompleted)
	roll := h.putManifest("shop", pair(2, 1), "")
	h.until("the pause to be shown", func() bool {
		s := h.of("shop", "a")
		return s.Paused && s.Status == mariposa.StatusPaused && s.Outdated == 2
	})
	if h.state("shop").Paused || h.of("shop", "b").Paused {
		t.Error("more is paused than was named")
	}
	for id := range h.instances("shop", "a") {
		h.crash(id)
		break
	}
	h.until("the repair", func() bool {
		all := h.running("a")
		return len(all) == 2 && !strings.Contains(fmt.Sprint(all), "V=2") && h.of("shop", "a").Status == mariposa.StatusPaused
	})
	if task := h.task(roll); task.State != mariposa.TaskActive {
		t.Errorf("the rollout is %+v", task)
	}
	h.awaitTask(h.startTask("shop", `{"action":"resume"}`), mariposa.TaskCompleted)
	h.awaitTask(roll, mariposa.TaskCompleted)
	if all := fmt.Sprint(h.running("a")); strings.Contains(all, "V=1") || h.of("shop", "a").Paused {
		t.Errorf("after it: %s", all)
	}
}

// The response lists the tasks that the request terminates. Queued tasks are dropped,
// and the response says how to repeat them, unless a newer version replaces them.
func TestAnAnswerNamesTheTasksThatItEnds(t *testing.T) {
	t.Parallel()
	h := newTestServer(t, withPlanner)
	h.joinGated("n1")
	h.create("shop", pair(1, 1))
	h.awaitRest("shop")
	freeze := h.startTask("shop", `{"action":"freeze"}`)
	h.awaitState(freeze, mariposa.TaskActive)
	first := want[contract.Changed](h.call("PUT", "/v1/projects/shop/manifest?force=true", pair(2, 2)), 200)
	second := want[contract.Changed](h.call("PUT", "/v1/projects/shop/manifest?force=true", pair(3, 3)), 200)
	if e := second.Ended; len(first.Ended) != 0 || len(e) != 1 || e[0].ID != *first.Task || e[0].State != mariposa.TaskQueued || e[0].ContinueWith != "" {
		t.Errorf("a manifest that replaces another lists as ended %+v", e)
	}
	for id := range h.instances("shop", "b") {
		c := want[contract.Changed](h.call("PUT", "/v1/instances/"+id, contract.InstanceAction{Action: "replace"}), 202)
		ended := map[string]contract.EndedTask{}
		for _, e := range c.Ended {
			ended[e.ID] = e
		}
		dropped := ended[*second.Task]
		if dropped.Task != mariposa.TaskReprovision || dropped.State != mariposa.TaskQueued || dropped.ContinueWith != "mariposa -j shop project revert 3 --with-scale" || dropped.Reason == "" {
			t.Errorf("the dropped tasks are %+v", dropped)
		}
		if len(ended) != 1 { // the freeze still keeps a
			t.Errorf("it ends %+v", ended)
		}
		break
	}
	h.until("b to be thawed", func() bool { return !h.of("shop", "b").Frozen })
	last := want[contract.Changed](h.putAction("shop", `{"action":"scale","scale":{"a":3}}`), 202).Ended
	if len(last) != 1 || last[0].ID != freeze || last[0].Task != mariposa.TaskFreeze || last[0].State != mariposa.TaskActive || last[0].ContinueWith != "" {
		t.Errorf("the last service of the freeze ends %+v", last)
	}
}
