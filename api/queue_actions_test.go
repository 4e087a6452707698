package api_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"mariposa"
	"mariposa/contract"
	"mariposa/converge"
)

// Accept makes the actual state the goal: instances that are still starting are
// removed, and the task that wanted them ends.
func TestAcceptMakesTheGoalWhatRuns(t *testing.T) {
	t.Parallel()
	h := newTestServer(t, withPlanner)
	g := h.joinGated("n1")
	h.create("shop", pair(1, 1))
	h.awaitRest("shop")
	g.close("shop")
	scale := h.startTask("shop", `{"action":"scale","scale":{"a":5,"b":3}}`)
	h.until("some to be on their way", func() bool { return h.of("shop", "a").Starting == 3 && h.of("shop", "b").Starting == 1 })
	h.awaitTask(h.startTask("shop", `{"action":"accept","services":["a"]}`), mariposa.TaskCompleted)
	if a, b := h.of("shop", "a"), h.of("shop", "b"); a.Goal != 2 || b.Goal != 3 {
		t.Errorf("the goals are %d and %d", a.Goal, b.Goal)
	}
	g.open("shop")
	h.awaitTask(scale, mariposa.TaskCompleted)
	h.awaitRest("shop")
	if a, b := h.of("shop", "a"), h.of("shop", "b"); a.Running != 2 || b.Running != 3 || a.Status != mariposa.StatusConverged || b.Status != mariposa.StatusConverged {
		t.Errorf("after it: %+v, %+v", a, b)
	}
}

// After an accept during a rollout, the remaining old instances are shown as outdated
// by version, not by metadata.
func TestWhatIsAcceptedInMidRolloutSaysWhyItIsOutdated(t *testing.T) {
	t.Parallel()
	h := newTestServer(t, withPlanner)
	h.joinGated("n1")
	h.create("shop", fleetOf(3, 1, ""))
	h.awaitRest("shop")
	h.awaitTask(h.putManifest("shop", fleetOf(3, 2, ""), "&canary=1"), mariposa.TaskCompleted)
	h.awaitTask(h.startTask("shop", `{"action":"accept"}`), mariposa.TaskCompleted)
	web := h.of("shop", "web")
	if web.Outdated != 2 || web.Status != mariposa.StatusConverged || web.Reason != "2 instances outdated: created from version 1, while version 2 is in force; replace them with `mariposa project reprovision --service web`" {
		t.Errorf("accepted: %+v", web)
	}
}

// A back-off survives a restart of the planner, and a user's converge does not wait for
// its end.
func TestABackOffOutlivesARestartAndConvergeSkipsIt(t *testing.T) {
	t.Parallel()
	h := newTestServer(t)
	c := h.create("shop", fleetOf(2, 1, ""))
	until := time.Now().Add(time.Hour).UTC().Truncate(time.Second)
	st := converge.Apply(nil, mariposa.Patch{Number: 1}, converge.Change{
		Now: time.Now(), Version: c.Version, IDs: h.picture.Projects.Get(c.ID).Spec().Services,
		Versions: func(n int) converge.Definitions {
			return converge.Definitions{"web": {Name: "web", Scale: new(2), Digest: h.digest(c.ID, n, "web")}}
		},
	})
	st.Services["web"].Backoff = &mariposa.Backoff{Failures: 7, Until: until, First: time.Now(), Last: time.Now()}
	h.plan(c.ID, st)
	h.settings.planner = true
	after := h.restart()
	after.joinGated("n1")
	after.until("the back-off to be shown", func() bool { return after.of("shop", "web").Status == mariposa.StatusBackingOff })
	if b := after.of("shop", "web").Backoff; b == nil || b.Failures != 7 || !b.Until.Equal(until) || len(after.instances("shop", "")) > 0 {
		t.Fatalf("after the restart it backs off %+v, with %v", b, after.instances("shop", ""))
	}
	task := after.startTask("shop", `{"action":"converge"}`)
	after.awaitTask(task, mariposa.TaskCompleted)
	if s := after.of("shop", "web"); s.Running != 2 || !time.Now().Before(until) {
		t.Errorf("after converge: %+v", s)
	}
}

// A project can be started at any of its versions.
func TestAProjectIsStartedAtAVersion(t *testing.T) {
	t.Parallel()
	h := newTestServer(t, withPlanner)
	h.joinGated("n1")
	h.create("shop", fleetOf(2, 1, ""))
	h.awaitRest("shop")
	h.awaitTask(h.putManifest("shop", fleetOf(2, 2, ""), ""), mariposa.TaskCompleted)
	h.awaitTask(h.startTask("shop", `{"action":"scale","scale":{"web":3}}`), mariposa.TaskCompleted)
	for _, c := range []struct {
		version, runs string
		number        int
	}{{"2", "V=2", 2}, {"1", "V=1", 3}} { // the older becomes the newest again, under a number of its own
		h.awaitTask(h.startTask("shop", `{"action":"stop"}`), mariposa.TaskCompleted)
		h.awaitTask(h.startTask("shop", `{"action":"start","version":"%s"}`, c.version), mariposa.TaskCompleted)
		h.awaitRest("shop")
		newest := want[contract.Project](h.call("GET", "/v1/projects/shop", nil), 200)
		s := h.of("shop", "web")
		if newest.Number != c.number || s.Running != 3 || s.Goal != 3 || s.Outdated != 0 || newest.Version != h.state("shop").Version {
			t.Errorf("started at %s: version %d, %+v", c.version, newest.Number, s)
		}
		for _, env := range h.running("web") {
			if !contains(env, c.runs) {
				t.Errorf("started at %s, it runs with %s", c.version, env)
			}
		}
	}
	h.putAction("shop", `{"action":"start","version":"9"}`).wantError(404, mariposa.ResourceNotFound, "9")
	h.putAction("shop", `{"action":"start","version":"1","services":["web"]}`).wantError(400, mariposa.InvalidArgument, "starts as a whole")
}

// A stop of one version does not stop others.
func TestAStopThatNamesAVersionStopsNoOther(t *testing.T) {
	t.Parallel()
	h := newTestServer(t, withPlanner)
	h.joinGated("n1")
	first := h.create("shop", fleetOf(1, 1, ""))
	h.putAction("shop", `{"action":"stop","version":"7"}`).wantError(404, mariposa.ResourceNotFound, "7")
	h.awaitRest("shop")
	h.awaitTask(h.putManifest("shop", fleetOf(1, 2, ""), ""), mariposa.TaskCompleted)
	for _, ref := range []string{"7", "nobody"} {
		h.putAction("shop", `{"action":"stop","version":%q}`, ref).wantError(404, mariposa.ResourceNotFound, ref)
	}
	for _, ref := range []string{"1", first.Version} {
		done := want[contract.Changed](h.putAction("shop", `{"action":"stop","version":%q}`, ref), 202)
		if done.Task != nil || done.Reason != "no instance runs version 1" {
			t.Errorf("a stop of a version that nothing is at: %+v", done)
		}
	}
	if s := h.of("shop", "web"); s.Running != 1 || len(h.openTasks("shop")) > 0 {
		t.Errorf("before it: %+v", s)
	}
	h.awaitTask(h.startTask("shop", `{"action":"stop","version":"2"}`), mariposa.TaskCompleted)
	if st := h.state("shop"); st.Goal != mariposa.GoalStopped || st.Services[0].Running != 0 {
		t.Errorf("after it: %+v", st)
	}
}

// If a rollback fails too, the task fails with both reasons, and there is no second
// rollback. After the cause is fixed, a start brings the service up.
func TestARollbackThatFailsIsNotRolledBack(t *testing.T) {
	t.Parallel()
	h := newTestServer(t, withPlanner)
	g := h.joinGated("n1")
	const how = ", order: stop-first, on_failure: rollback"
	first := h.create("shop", fleetOf(2, 1, how))
	h.awaitRest("shop")
	g.spoil("shop", true)
	task := h.awaitTask(h.putManifest("shop", fleetOf(2, 2, how), ""), mariposa.TaskFailed)
	if task.ReasonCode != mariposa.ReasonRollbackFailed || !strings.HasPrefix(task.Reason, "version 2 failed and was rolled back to version 1, which failed too: web: ") {
		t.Errorf("the reason of the task is %q", task.Reason)
	}
	h.until("the failure to be shown", func() bool { return h.of("shop", "web").Status == mariposa.StatusFailed })
	if st := h.state("shop"); st.Version != first.Version || st.Goal != mariposa.GoalStarted {
		t.Errorf("after it: %+v", st)
	}
	all := want[contract.Tasks](h.call("GET", "/v1/queue?all=true&project=shop", nil), 200).Tasks
	if n := slices.IndexFunc(all, func(t contract.Task) bool { return t.Origin == mariposa.OriginUser }); n < 0 || all[n].ID != task.ID {
		t.Errorf("there is a task of a person after it: %+v", all)
	}
	g.spoil("shop", false)
	h.awaitTask(h.startTask("shop", `{"action":"start"}`), mariposa.TaskCompleted)
	h.awaitRest("shop")
	if s := h.of("shop", "web"); s.Running != 2 || s.Status != mariposa.StatusConverged || !strings.Contains(fmt.Sprint(h.running("web")), "V=1") {
		t.Errorf("after the start: %+v", s)
	}
}

// A pause of the whole project is shown as such, and applies to new services.
func TestAPauseOfTheWholeHoldsForServicesThatAppear(t *testing.T) {
	t.Parallel()
	h := newTestServer(t, withPlanner)
	h.joinGated("n1")
	h.create("shop", pair(1, 1))
	h.awaitRest("shop")
	h.awaitTask(h.startTask("shop", `{"action":"pause"}`), mariposa.TaskCompleted)
	if st := h.state("shop"); !st.Paused || !st.Services[0].Paused || !st.Services[1].Paused {
		t.Errorf("paused: %+v", st)
	}
	roll := h.putManifest("shop", strings.Replace(pair(2, 1), "\nmetadata:", "\n  c: {compute_type: dummy, update: {min_healthy: 0}}\nmetadata:", 1), "")
	h.awaitState(roll, mariposa.TaskActive)
	h.until("what is new to come up, and nothing else", func() bool {
		a, c := h.of("shop", "a"), h.of("shop", "c")
		return c.Running == 1 && c.Paused && a.Outdated == 2 && a.Status == mariposa.StatusPaused
	})
	if st := h.state("shop"); !st.Paused || st.Status != mariposa.StatusPaused || h.task(roll).State != mariposa.TaskActive {
		t.Errorf("paused: %+v", st)
	}
	h.awaitTask(h.startTask("shop", `{"action":"resume"}`), mariposa.TaskCompleted)
	h.awaitTask(roll, mariposa.TaskCompleted)
	st := h.state("shop")
	if st.Paused || slices.ContainsFunc(st.Services, func(s contract.ServiceState) bool { return s.Paused || s.Outdated > 0 }) {
		t.Errorf("resumed: %+v", st)
	}
}

// Frozen or stopped services are not retried, and no task waits for them.
func TestConvergeLeavesOutWhatIsFrozen(t *testing.T) {
	t.Parallel()
	h := newTestServer(t, withPlanner)
	h.joinGated("n1")
	h.create("shop", pair(1, 1))
	h.awaitRest("shop")
	h.awaitState(h.startTask("shop", `{"action":"freeze","services":["a"]}`), mariposa.TaskActive)
	h.until("the freeze", func() bool { return h.of("shop", "a").Frozen })
	for id := range h.instances("shop", "a") {
		h.crash(id)
	}
	h.until("a to be gone", func() bool { return h.of("shop", "a").Running == 0 })
	h.putAction("shop", `{"action":"converge","services":["a"]}`).wantError(409, mariposa.Conflict, "a is frozen: nothing is retried until it is thawed")
	if task := h.awaitTask(h.startTask("shop", `{"action":"converge"}`), mariposa.TaskCompleted); !slices.Equal(task.Services, []string{"b"}) {
		t.Errorf("it is about %q", task.Services)
	}
	h.awaitTask(h.startTask("shop", `{"action":"stop"}`), mariposa.TaskCompleted)
	if c := want[contract.Changed](h.putAction("shop", `{"action":"converge"}`), 202); c.Task != nil {
		t.Errorf("for a stopped service, task %s was created", *c.Task)
	}
}

// A scale completes while a rollout is paused, and does not affect the rollout.
func TestAScaleEndsWhileARolloutIsPaused(t *testing.T) {
	t.Parallel()
	h := newTestServer(t, withPlanner)
	h.joinGated("n1")
	h.create("shop", pair(1, 1))
	h.awaitRest("shop")
	h.awaitTask(h.startTask("shop", `{"action":"pause","services":["a"]}`), mariposa.TaskCompleted)
	roll := h.putManifest("shop", pair(2, 1), "")
	h.until("the pause to be shown", func() bool { return h.of("shop", "a").Status == mariposa.StatusPaused })
	for _, n := range []int{4, 1} {
		task := h.awaitTask(h.startTask("shop", `{"action":"scale","scale":{"a":%d}}`, n), mariposa.TaskCompleted)
		if s := h.of("shop", "a"); s.Running != n || task.Progress.Done != task.Progress.Total || task.Progress.Total > 3 {
			t.Errorf("scaled to %d: %+v, %+v", n, s, task.Progress)
		}
	}
	if task, s := h.task(roll), h.of("shop", "a"); task.State != mariposa.TaskActive || s.Status != mariposa.StatusPaused || s.Outdated != 1 {
		t.Errorf("the rollout is %+v, %+v", task, s)
	}
	h.awaitTask(h.startTask("shop", `{"action":"resume"}`), mariposa.TaskCompleted)
	h.awaitTask(roll, mariposa.TaskCompleted)
}

// A rollback because no node has room gives that reason.
func TestARollbackSaysWhatTheVersionWasBlockedBy(t *testing.T) {
	t.Parallel()
	h := newTestServer(t, withPlanner)
	h.joinGated("n1")
	const how = ", on_failure: rollback, deadline: 1"
	h.create("shop", fleetOf(1, 1, ""))
	h.awaitRest("shop")
	task := h.awaitTask(h.putManifest("shop", strings.Replace(fleetOf(1, 2, how), "compute_type: dummy", "compute_type: process, command: [sleep, \"9\"]", 1), ""), mariposa.TaskFailed)
	if !contains(task.Reason, "no progress for 1s") || !contains(task.Reason, "no node") || !contains(task.Reason, "rolled back to version 1") {
		t.Errorf("the reason of the task is %q", task.Reason)
	}
}

// A resume right after a pause found nothing to do, because the pause had not begun yet;
// then the pause began. The same holds for a pause right after a resume.
func TestAResumeFollowsAPauseThatWaits(t *testing.T) {
	t.Parallel()
	h := newTestServer(t)
	c := h.create("shop", fleetOf(2, 1, ""))
	h.plan(c.ID, &mariposa.ProjectStatus{
		Goal: mariposa.GoalStarted, Version: c.Version, Number: 1, Status: mariposa.StatusConverged,
		Services: map[string]*mariposa.ServiceStatus{"web": {ID: "id-web", Scale: 2, Number: 1, Status: mariposa.StatusConverged}},
	})
	if c := want[contract.Changed](h.putAction("shop", `{"action":"resume"}`), 202); c.Task != nil {
		t.Errorf("nothing is paused, and the resume is task %s", *c.Task)
	}
	h.startTask("shop", `{"action":"pause","services":["web"]}`)
	h.startTask("shop", `{"action":"resume"}`)
	h.startTask("shop", `{"action":"pause"}`)
}

// The start of a project was terminated before it began. Whatever was asked of it, the
// answer was to try again shortly, for ever.
func TestAProjectThatWasNeverStartedSaysSo(t *testing.T) {
	t.Parallel()
	h := newTestServer(t)
	start := *h.create("shop", fleetOf(2, 1, "")).Task
	h.putAction("shop", `{"action":"thaw"}`).wantError(409, mariposa.Conflict, "try again shortly")
	want[contract.Terminated](h.call("DELETE", "/v1/queue/"+start, nil), 202)
	for _, action := range []string{"thaw", "resume"} {
		if c := want[contract.Changed](h.putAction("shop", `{"action":%q}`, action), 202); c.Task != nil {
			t.Errorf("there is nothing to %s, and it is task %s", action, *c.Task)
		}
	}
	for _, action := range []string{"pause", "converge", "accept"} {
		h.putAction("shop", `{"action":%q}`, action).wantError(409, mariposa.Conflict, "was never started", "project start")
	}
	h.startTask("shop", `{"action":"start"}`)
}
