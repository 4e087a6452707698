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

// fleet returns a manifest with one service: its scale, version and update settings.
func fleetOf(scale, version int, update string) string {
	return fmt.Sprintf("services:\n  web: {compute_type: dummy, scale: %d, environment: {V: %d}, update: {min_healthy: 0%s}}\n", scale, version, update)
}

// at counts the instances of web by the version they were created from.
func (h *testServer) at(project string) map[string]int {
	h.t.Helper()
	counts := map[string]int{}
	for _, i := range h.instances(project, "web") {
		counts[i.Version[:7]]++
	}
	return counts
}

// A canary holds, continues with a count, and completes or is rolled back.
func TestACanaryHoldsAndGoesOnOrBack(t *testing.T) {
	t.Parallel()
	h := newTestServer(t, withPlanner)
	h.joinGated("n1")
	for _, c := range []struct {
		name, canary string
		held         int
	}{{"a-number", "3", 3}, {"a-percentage", "25%25", 3}} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			h := h.in(t)
			first := h.create(c.name, fleetOf(12, 1, ""))
			h.awaitRest(c.name)
			h.awaitTask(h.putManifest(c.name, fleetOf(12, 2, ""), "&canary="+c.canary), mariposa.TaskCompleted)
			held := func(n int) {
				t.Helper()
				if s := h.of(c.name, "web"); s.Status != mariposa.StatusHeld || !contains(s.Reason, fmt.Sprintf("%d of 12 at version ", n)) || s.Outdated != 12-n || s.Running != 12 {
					t.Errorf("held: %+v", s)
				}
			}
			held(c.held)
			h.awaitTask(h.startTask(c.name, `{"action":"reprovision","services":["web"],"count":4}`), mariposa.TaskCompleted)
			held(c.held + 4)
			if c.name == "a-number" {
				h.awaitTask(h.startTask(c.name, `{"action":"reprovision"}`), mariposa.TaskCompleted)
				if s := h.of(c.name, "web"); s.Status != mariposa.StatusConverged || s.Outdated != 0 || h.at(c.name)[first.Version[:7]] != 0 {
					t.Errorf("in the end: %+v, %v", s, h.at(c.name))
				}
				return
			}
			old := h.instances(c.name, "web")
			maps.DeleteFunc(old, func(_ string, i contract.Instance) bool { return i.Version != first.Version })
			h.awaitTask(h.startTask(c.name, `{"action":"revert"}`), mariposa.TaskCompleted)
			now := h.instances(c.name, "web")
			for id := range old {
				if _, still := now[id]; !still {
					t.Errorf("the revert replaced %s, which had never been changed", old[id].Name)
				}
			}
			if s := h.of(c.name, "web"); s.Status != mariposa.StatusConverged || s.Running != 12 || s.Outdated != 0 {
				t.Errorf("taken back: %+v", s)
			}
		})
	}
}

// Filters select which instances are replaced.
func TestAReprovisionTouchesWhatMatchesOnly(t *testing.T) {
	t.Parallel()
	h := newTestServer(t, withPlanner)
	h.joinGated("n1")
	h.joinGated("n2")
	text := "services:\n  a: {compute_type: dummy, scale: 4, image: %s, update: {min_healthy: 0}}\n  b: {compute_type: dummy, scale: 2, image: two, update: {min_healthy: 0}}\n"
	h.create("shop", fmt.Sprintf(text, "one"))
	h.awaitRest("shop")
	h.awaitTask(h.putManifest("shop", fmt.Sprintf(text, "uno"), "&canary=1"), mariposa.TaskCompleted)
	pick := func(is func(contract.Instance) bool) []string {
		var ids []string
		for id, i := range h.instances("shop", "") {
			if is(i) {
				ids = append(ids, id)
			}
		}
		return ids
	}
	one := pick(func(i contract.Instance) bool { return i.ServiceName == "b" })[0]
	for _, c := range []struct {
		filters, words string
		is             func(contract.Instance) bool
	}{
		{`{"version":"1","service":"b"}`, ": only instances created from version 1", func(i contract.Instance) bool { return i.ServiceName == "b" }},
		{`{"service":"b"}`, "reprovision b", func(i contract.Instance) bool { return i.ServiceName == "b" }},
		{`{"node":"host-n1"}`, "reprovision a, b: only on host-n1", func(i contract.Instance) bool { return i.Node == "n1" }},
		{`{"service":"a","node":["n2"]}`, "reprovision a: only on host-n2", func(i contract.Instance) bool { return i.ServiceName == "a" && i.Node == "n2" }},
		{`{"image":"two"}`, ": only with image two", func(i contract.Instance) bool { return i.ServiceName == "b" }},
		{`{"instance":"ONE"}`, "", func(i contract.Instance) bool { return i.ServiceName == "b" && i.ID == one }},
	} {
		if strings.Contains(c.filters, "ONE") {
			one = pick(func(i contract.Instance) bool { return i.ServiceName == "b" })[0]
			c.filters = strings.Replace(c.filters, "ONE", one, 1)
		}
		before, meant := h.instances("shop", ""), pick(c.is)
		task := h.awaitTask(h.startTask("shop", `{"action":"reprovision","filters":%s}`, c.filters), mariposa.TaskCompleted)
		if !strings.HasSuffix(task.Reason, c.words) {
			t.Errorf("with %s the reason of the task is %q", c.filters, task.Reason)
		}
		after := h.instances("shop", "")
		for id, i := range before {
			if _, still := after[id]; still == slices.Contains(meant, id) {
				t.Errorf("with %s, %s on %s (meant: %v) is there still: %v", c.filters, i.Name, i.Node, !still, still)
			}
		}
		if len(after) != 6 {
			t.Errorf("with %s there are %d", c.filters, len(after))
		}
	}
	for _, filters := range []string{`{"image":"three"}`, `{"image":"two","service":"a"}`, `{"version":"1","service":"b"}`} {
		c := want[contract.Changed](h.putAction("shop", `{"action":"reprovision","filters":%s}`, filters), 202)
		if c.Task != nil || !strings.HasPrefix(c.Reason, "no instance matches the filter") || strings.Contains(c.Reason, "created from the older") != strings.Contains(filters, "version") {
			t.Errorf("with %s, which nothing matches: %+v", filters, c)
		}
	}
}

// A scale-down during a rollout keeps the new instances; only the remaining steps are done.
func TestScalingInMidRolloutTouchesNothingFresh(t *testing.T) {
	t.Parallel()
	h := newTestServer(t, withPlanner)
	g := h.joinGated("n1")
	h.create("shop", fleetOf(35, 1, ""))
	h.awaitRest("shop")
	old := h.instances("shop", "web")
	roll := h.startTask("shop", `{"action":"reprovision","rolling":5}`)
	h.until("some to be fresh", func() bool {
		fresh := 0
		for id, i := range h.instances("shop", "web") {
			if _, is := old[id]; !is && i.State == mariposa.StateRunning {
				fresh++
			}
		}
		if fresh > 0 {
			g.close("shop")
		}
		return fresh > 0
	})
	fresh := h.instances("shop", "web")
	maps.DeleteFunc(fresh, func(id string, i contract.Instance) bool {
		_, is := old[id]
		return is || i.State != mariposa.StateRunning
	})
	scale := h.startTask("shop", `{"action":"scale","scale":{"web":20}}`)
	h.awaitState(scale, mariposa.TaskActive)
	begun := 0 // of the new ones, those on their way too
	for id := range h.instances("shop", "web") {
		if _, is := old[id]; !is {
			begun++
		}
	}
	g.open("shop")
	h.awaitTask(roll, mariposa.TaskCompleted)
	h.awaitTask(scale, mariposa.TaskCompleted)
	now := h.instances("shop", "web")
	if s := h.of("shop", "web"); len(now) != 20 || s.Running != 20 || s.Status != mariposa.StatusConverged {
		t.Errorf("in the end: %+v", s)
	}
	for id, i := range fresh {
		if _, still := now[id]; !still && begun <= 20 {
			t.Errorf("%s was fresh and is gone", i.Name)
		}
	}
	for id := range now {
		if _, is := old[id]; is {
			t.Errorf("%s was never replaced", now[id].Name)
		}
	}
	if begun > 20 {
		return // the rollout was as good as over
	}
	made := map[string]bool{}
	for _, id := range []string{roll, scale} {
		for _, step := range h.task(id).Steps {
			if step.Step == "create" {
				made[step.Instance] = true
			}
		}
	}
	if len(made) > 25 { // those for 20, and at most one batch that was under way
		t.Errorf("%d were made for 20", len(made))
	}
}

// A failed version is rolled back once, with its scales. After a failed first version
// nothing is left.
func TestAFailedVersionIsRolledBack(t *testing.T) {
	t.Parallel()
	h := newTestServer(t, withPlanner)
	h.joinGated("n1")
	bad := strings.Replace(fleetOf(4, 2, ", on_failure: rollback"), "environment", `dummy: {fail_prop: "yes"}, environment`, 1)
	t.Run("to the version before", func(t *testing.T) {
		t.Parallel()
		h := h.in(t)
		first := h.create("shop", fleetOf(2, 1, ", on_failure: rollback"))
		h.awaitRest("shop")
		h.awaitTask(h.startTask("shop", `{"action":"scale","scale":{"web":3}}`), mariposa.TaskCompleted)
		task := h.awaitTask(h.putManifest("shop", bad, ""), mariposa.TaskFailed)
		if !contains(task.Reason, "rolled back to version 1") {
			t.Errorf("the reason of the task is %q", task.Reason)
		}
		if p := task.Progress; p.Done > 0 || p.Total == 0 { // no instance of the version ever ran
			t.Errorf("all of it was undone, and it says %+v", p)
		}
		h.awaitRest("shop")
		if st, s := h.state("shop"), h.of("shop", "web"); st.Version != first.Version || s.Goal != 3 || s.Running != 3 || s.Status != mariposa.StatusConverged || s.Outdated != 0 {
			t.Errorf("after it: %+v", st)
		}
	})
	t.Run("to nothing", func(t *testing.T) {
		t.Parallel()
		h := h.in(t)
		c := h.create("new", bad)
		if task := h.awaitTask(*c.Task, mariposa.TaskFailed); !contains(task.Reason, "no earlier version was ever completed") {
			t.Errorf("the reason of the task is %q", task.Reason)
		}
		h.until("nothing to be left", func() bool { return len(h.instances("new", "")) == 0 && len(h.openTasks("new")) == 0 })
		if st := h.state("new"); st.Goal != mariposa.GoalStopped || st.Services[0].Running != 0 {
			t.Errorf("after it: %+v", st)
		}
	})
}

// The steps of a plan are the steps that are then executed.
func TestAPlanComesTrue(t *testing.T) {
	t.Parallel()
	h := newTestServer(t, withPlanner)
	h.joinGated("n1")
	const before = "services:\n  a: {compute_type: dummy, scale: 3, update: {min_healthy: 0}}\n  b: {compute_type: dummy, scale: 2, depends_on: [a], update: {min_healthy: 0}}\n"
	for name, after := range map[string]string{
		"scales":      strings.NewReplacer("scale: 3", "scale: 1", "scale: 2", "scale: 4").Replace(before),
		"new-form":    strings.ReplaceAll(before, "dummy,", "dummy, environment: {A: b},"),
		"stop-first":  strings.ReplaceAll(before, "dummy, scale: 3, update: {", "dummy, scale: 3, environment: {A: b}, update: {order: stop-first, "),
		"in-place":    strings.Replace(before, "dummy,", "dummy, dummy: {update_in_place_prop: x},", 1),
		"come-and-go": "services:\n  a: {compute_type: dummy, scale: 3, update: {min_healthy: 0}}\n  c: {compute_type: dummy, scale: 2, depends_on: [a]}\n",
		"all-at-once": "services:\n  a: {compute_type: dummy, scale: 5, environment: {A: b}, update: {min_healthy: 0, rolling: 2}}\n  c: {compute_type: dummy}\n",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := h.in(t)
			c := h.create(name, before)
			h.awaitRest(name)
			newest := want[contract.Project](h.call("GET", "/v1/projects/"+name, nil), 200).Version
			plan := want[contract.Plan](h.call("POST", "/v1/projects/"+name+"/plan", after), 200)
			if now := want[contract.Project](h.call("GET", "/v1/projects/"+name, nil), 200).Version; now != newest || len(h.openTasks(name)) > 0 || !plan.Complete {
				t.Errorf("planning changed %s to %s, or the plan is cut: %+v", newest, now, plan)
			}
			foreseen := map[string]int{}
			for _, s := range plan.Steps {
				foreseen[s.Step+" "+s.Slot]++
			}
			task := h.awaitTask(h.putManifest(name, after, ""), mariposa.TaskCompleted)
			taken, seen := map[string]int{}, map[string]bool{}
			for _, s := range task.Steps {
				if what := s.Step + " " + s.Instance; !seen[what] { // a request and its results are one step
					slot, _, _ := strings.Cut(s.InstanceName, "-")
					taken[s.Step+" "+slot]++
					seen[what] = true
				}
			}
			if !maps.Equal(foreseen, taken) {
				t.Errorf("of %s foreseen:\n%s\ntaken:\n%s", c.ID, must(json.Marshal(foreseen))(t), must(json.Marshal(taken))(t))
			}
		})
	}
}

// Progress never decreases, and the pages of steps have no gaps or duplicates.
func TestProgressAndHistoryGoOneWay(t *testing.T) {
	t.Parallel()
	h := newTestServer(t, withPlanner)
	h.joinGated("n1")
	h.create("shop", fleetOf(12, 1, ""))
	h.awaitRest("shop")
	roll := h.startTask("shop", `{"action":"reprovision","rolling":2}`)
	var last mariposa.Progress
	h.until("the rollout to end", func() bool {
		task := h.task(roll)
		p := task.Progress
		if p.Done < last.Done || p.Total < last.Total || p.Done > p.Total {
			t.Errorf("progress went from %+v to %+v", last, p)
		}
		last = p
		return task.State.Ended()
	})
	if last.Done != last.Total || last.Total < 12 {
		t.Errorf("in the end %+v\n%s", last, h.events("shop"))
	}
	ids := map[string]bool{}
	for i := range 20 {
		h.awaitTask(h.startTask("shop", `{"action":"scale","scale":{"web":%d}}`, 1+i%2), mariposa.TaskCompleted)
	}
	for query := "?all=true&project=shop&limit=7"; query != ""; {
		page := want[contract.Tasks](h.call("GET", "/v1/queue"+query, nil), 200)
		for _, task := range page.Tasks {
			if ids[task.ID] {
				t.Errorf("%s comes twice", task.ID)
			}
			ids[task.ID] = true
		}
		query = ""
		if page.Marker != "" {
			query = "?all=true&project=shop&limit=7&marker=" + page.Marker
		}
	}
	if len(ids) != 22 {
		t.Errorf("%d tasks in the history, not 22", len(ids))
	}
}

// A revert with scales to the version that is in force sets its scales.
func TestARevertToTheVersionInForceSetsItsScales(t *testing.T) {
	t.Parallel()
	h := newTestServer(t, withPlanner)
	h.joinGated("n1")
	h.create("shop", fleetOf(2, 1, ""))
	h.awaitRest("shop")
	h.awaitTask(h.startTask("shop", `{"action":"scale","scale":{"web":3}}`), mariposa.TaskCompleted)
	h.awaitRest("shop")
	h.awaitTask(h.startTask("shop", `{"action":"revert","version":"1","with_scale":true}`), mariposa.TaskCompleted)
	if s := h.of("shop", "web"); s.Goal != 2 || s.Running != 2 {
		t.Errorf("web is %+v", s)
	}
	h.awaitRest("shop")
	if c := want[contract.Changed](h.putAction("shop", `{"action":"revert","version":"1","with_scale":true}`), 202); c.Task != nil {
		t.Errorf("there is nothing left to do, and it is task %s", *c.Task)
	}
	if p := want[contract.Project](h.call("GET", "/v1/projects/shop", nil), 200); p.Number != 1 {
		t.Errorf("version %d is the newest", p.Number)
	}
}
