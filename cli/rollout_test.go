package cli

import (
	"context"
	"net/http"
	"strings"
	"testing"
	"time"

	"mariposa"
	"mariposa/contract"
)

const freezeOne = "0198c000-0000-7000-8000-0000000000a7"

// roll adds what the fake server knows of rollouts.
func (f *fake) roll() {
	f.give("DELETE /v1/queue/"+taskOne, contract.Terminated{
		Task: taskOne, Freeze: ptr(freezeOne), Goal: map[string]int{"web": 6, "backend": 1}, Actual: map[string]int{"web": 4, "backend": 1},
		ContinueWith: "mariposa -j hello project thaw --service web", UndoWith: ptr("mariposa -j hello project scale web=2"),
	})
	f.give("POST /v1/projects/hello/plan", contract.Plan{
		Version: hashTwo,
		Resources: []contract.PlanResource{
			{Kind: "service", Name: "backend", Change: "unchanged", Before: 1, After: 1},
			{Kind: "service", Name: "cache", Change: "replace", Follows: "web", Before: 1, After: 1},
			{Kind: "service", Name: "db", Change: "create", After: 2},
			{Kind: "service", Name: "mail", Change: "replace", Retried: true, Before: 1, After: 1},
			{Kind: "service", Name: "old", Change: "delete", Before: 1},
			{Kind: "service", Name: "web", Change: "replace", Before: 2, After: 3, Fields: []contract.FieldDiff{
				{Field: "environment.GREETING", Before: "hello", After: "good\x1b[2J morning"}, {Field: "ports", After: "8080"}, {Field: "memory", Before: "1 GiB"}, {Field: "command"},
			}},
		},
		Steps: []contract.PlanStep{
			{Step: "create", Service: "db", Slot: "db.1", Version: hashTwo, Reason: "scale is 2"},
			{Step: "create", Service: "web", Slot: "web.1", Version: hashTwo, Reason: "version 2 replaces web.1-00ab12"},
			{Step: "remove", Service: "web", Slot: "web.1", Instance: webOne, InstanceName: "web.1-00ab12", Reason: "version 2 replaces it"},
			{Step: "collect", Service: "old", Slot: "old.1", Instance: "x", InstanceName: "old.1-000001", Reason: "it is gone"},
		},
		Waits: []string{"web: no node has room for web.3"}, Missing: []string{"db_password"},
	})
}

// frozen is a freeze as the server shows it.
func frozen(done, total int) contract.Task {
	t := task(mariposa.TaskActive, done, total)
	t.ID, t.Task, t.Component, t.Services, t.Reason = freezeOne, mariposa.TaskFreeze, "freeze", []string{}, "ann asked to freeze it"
	return t
}

// A freeze lasts until a thaw. Waiting for one ends when its scope has settled.
func TestWaitForAFreezeEndsWhenAllHasSettled(t *testing.T) {
	t.Parallel()
	for _, tty := range []bool{false, true} {
		f := world(t).give("PUT /v1/projects/hello/state", contract.Changed{Task: ptr(freezeOne)}).give("GET /v1/queue/"+freezeOne, frozen(0, 2)).
			stream(taskEvent(8, "active", frozen(0, 2)), taskEvent(9, "progress", frozen(1, 2)), taskEvent(10, "progress", frozen(2, 2)))
		r := (&run{f: f, tty: tty}).do(t, "project", "freeze", "hello", "--wait")
		r.golden(map[bool]string{false: "wait-freeze", true: "wait-freeze-terminal"}[tty]).expect(exitOK)
	}
}

// A task that has a freeze's kind but is none ends by itself.
func TestWaitForAThawEndsWithIt(t *testing.T) {
	t.Parallel()
	thaw := frozen(0, 0)
	thaw.Component = "thaw"
	ended := thaw
	ended.State = mariposa.TaskCompleted
	f := world(t).give("PUT /v1/projects/hello/state", contract.Changed{Task: ptr(freezeOne)}).give("GET /v1/queue/"+freezeOne, thaw).
		stream(taskEvent(8, "active", thaw), taskEvent(9, "completed", ended))
	r := (&run{f: f}).do(t, "project", "thaw", "hello", "--wait")
	r.expect(exitOK, strings.Contains(r.stderr, "thaw hello: completed"))
}

func TestWaitSaysHowToGoOnFromACanary(t *testing.T) {
	t.Parallel()
	held := helloState()
	held.Projects[0].Services[1] = contract.ServiceState{Name: "web", Goal: 12, Running: 12, Status: mariposa.StatusHeld, Reason: "3 of 12 at version 2; continue with mariposa project reprovision, or undo with mariposa project revert"}
	other := held.Projects[0].Services[1]
	other.Name = "other" // held as well, but not by this task
	held.Projects[0].Services = append(held.Projects[0].Services, other)
	rolled := func(state mariposa.TaskState) contract.Task {
		one := task(state, 3, 3)
		one.Task = mariposa.TaskReprovision
		return one
	}
	f := world(t).give("GET /v1/state", held).give("PUT /v1/projects/hello/manifest", contract.Changed{Version: hashTwo, Number: 3, Task: ptr(taskOne)}).
		stream(taskEvent(8, "active", rolled(mariposa.TaskActive)), taskEvent(9, "completed", rolled(mariposa.TaskCompleted)))
	r := (&run{f: f, stdin: changedManifest}).do(t, "-o", "acme", "project", "update", "hello", "-m", "-", "--force", "--canary", "3", "--wait")
	r.golden("wait-held").expect(exitOK, strings.Contains(f.requests(), "canary=3"))
}

// Only a thaw ends the wait for one, so the user is notified.
func TestWaitOnAFrozenScopeSaysHowToThaw(t *testing.T) {
	t.Parallel()
	queued := task(mariposa.TaskQueued, 0, 0)
	queued.WaitsFor, queued.Reason = []string{freezeOne}, "version 3 was submitted; waits for task "+freezeOne+" (freeze, active)"
	freeze := frozen(0, 0)
	freeze.Services = []string{"web"}
	f := world(t).give("PUT /v1/projects/hello/state", contract.Changed{Task: ptr(taskOne)}).give("GET /v1/queue/"+freezeOne, freeze).
		stream(taskEvent(8, "queued", queued), taskEvent(9, "completed", task(mariposa.TaskCompleted, 1, 1)))
	r := (&run{f: f}).do(t, "project", "scale", "hello", "web=2", "--wait")
	if want := "(freeze, active); end the freeze with `mariposa -j hello project thaw --service web`)"; r.code != exitOK || !strings.Contains(r.stderr, want) {
		t.Errorf("exit %d: %s", r.code, r.stderr)
	}
}

func TestTerminatingAsksAPerson(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, answer string
		args         []string
		queued, ends bool
		code         int
	}{
		{name: "yes", answer: "y\n", ends: true},
		{name: "no", answer: "\n", code: exitError},
		{name: "not-asked", args: []string{"--yes"}, ends: true},
		{name: "queued", answer: "y\n", queued: true, ends: true},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			f := world(t)
			if c.queued {
				f.give("GET /v1/queue/"+taskOne, task(mariposa.TaskQueued, 0, 0)).give("DELETE /v1/queue/"+taskOne, contract.Terminated{Task: taskOne, ContinueWith: "mariposa -j hello project scale web=2"})
			}
			r := (&run{f: f, tty: true, stdin: c.answer}).do(t, append([]string{"queue", "terminate", taskOne}, c.args...)...)
			r.golden("terminate-"+c.name).expect(c.code, strings.Contains(f.requests(), "DELETE ") == c.ends)
		})
	}
}

func TestATerminatedTaskCanBeWaitedFor(t *testing.T) {
	t.Parallel()
	f := world(t).give("GET /v1/queue/"+freezeOne, frozen(0, 1)).stream(taskEvent(8, "active", frozen(0, 1)), taskEvent(9, "progress", frozen(1, 1)))
	r := (&run{f: f}).do(t, "queue", "terminate", taskOne, "--wait")
	r.expect(exitOK, strings.Contains(r.stderr, "freeze hello: "+frozenPhrase))
	ended := world(t).on("DELETE /v1/queue/"+taskOne, refuse(mariposa.Conflict, "task a1 has ended already")).stream()
	r = (&run{f: ended}).do(t, "queue", "terminate", taskOne, "--wait")
	r.expect(exitError, r.stdout == "", strings.Contains(r.stderr, "has ended already"))
}

// A revert that changes nothing says so, and one that creates no version says what
// it does instead.
func TestARevertThatMakesNoVersionSaysWhatItDoes(t *testing.T) {
	t.Parallel()
	const why = "no version of hello was ever fully in force: it is stopped, and fully removed"
	for says, done := range map[string]contract.Changed{
		"hello: nothing to do, version 2 (2222222) already has that content\n": {Version: hashTwo, Number: 2},
		"hello: nothing to do, " + why + "\n":                                  {Version: hashTwo, Number: 2, Reason: why},
		"hello: " + why + "\ntask " + taskOne + "\n":                           {Version: hashTwo, Number: 2, Reason: why, Task: ptr(taskOne)},
	} {
		r := (&run{f: world(t).give("PUT /v1/projects/hello/state", done)}).do(t, "-j", "hello", "project", "revert", "2")
		r.expect(exitOK, r.stdout == says)
	}
}

// A plan without steps is not always good news.
func TestAPlanThatDoesNothingSaysWhatIsHeldBack(t *testing.T) {
	t.Parallel()
	s := helloState()
	s.Projects[0].Services[1].Status, s.Projects[0].Services[1].Reason = mariposa.StatusFrozen, "2 instances are gone and would be replaced after thaw"
	f := world(t).give("POST /v1/projects/hello/plan", contract.Plan{Version: hashTwo, Complete: true}).give("GET /v1/state", s)
	want := "hello: nothing to do\nhello/web is frozen: 2 instances are gone and would be replaced after thaw\n"
	r := (&run{f: f}).do(t, "project", "plan", "hello")
	r.expect(exitOK, r.stdout == "", r.stderr == want)
}

// The hint for what was not found names the command that would list it.
func TestWhatAnOrderDoesNotFindIsLookedForInTheRightPlace(t *testing.T) {
	t.Parallel()
	for args, see := range map[string]string{
		"":               "mariposa project list",
		"--service nope": "mariposa -j hello state",
		"--node nope":    "mariposa -j hello instance list",
		"--version 99":   "mariposa -j hello project versions",
	} {
		f := world(t).on("PUT /v1/projects/hello/state", refuse(mariposa.ResourceNotFound, "there is no such thing"))
		r := (&run{f: f}).do(t, append([]string{"project", "reprovision", "hello"}, strings.Fields(args)...)...)
		r.expect(exitError, strings.Contains(r.stderr, "see `"+see+"`"))
	}
	f := world(t).give("PUT /v1/projects/hello/state", contract.Changed{Reason: "no instance matches the filter"})
	r := (&run{f: f}).do(t, "project", "reprovision", "hello", "--image", "x")
	r.expect(exitOK, r.stdout == "hello: nothing to do, no instance matches the filter\n")
}

func TestNothingToDoSaysWhy(t *testing.T) {
	t.Parallel()
	for action, why := range map[string]string{"start": "it is already started", "thaw": "nothing is frozen", "resume": "nothing is paused", "converge": "it is already converged"} {
		f := world(t).on("PUT /v1/projects/hello/state", func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte(`{"task":null}`)) }).stream()
		r := (&run{f: f}).do(t, "project", action, "hello", "--wait")
		r.expect(exitOK, r.stdout == "hello: nothing to do, "+why+"\n")
	}
}

// Ended instances are kept for inspection and do not clutter the list of running
// ones.
func TestWhatHasEndedIsListedOnRequest(t *testing.T) {
	t.Parallel()
	all := helloInstances()
	ended := all[1]
	ended.ID, ended.Name, ended.Goal, ended.State, ended.ExitCode = "0198c000-0000-7000-8000-00000000dead", "web.2-00dead", mariposa.GoalHalted, mariposa.StateStopped, ptr(3)
	lone := ended
	lone.ID, lone.Name, lone.Managed = "0198c000-0000-7000-8000-00000000beef", "shell", false // stopped by its owner: not kept
	f := world(t).give("GET /v1/instances", contract.Instances{Instances: append(all, ended, lone)})
	var stories strings.Builder
	for _, line := range []string{"instance list", "instance list --all", "instance list --state stopped", "instance list --json"} {
		stories.WriteString((&run{f: f}).do(t, strings.Fields(line)...).story() + "\n")
	}
	golden(t, "instance-list-ended", stories.String())
	f.give("GET /v1/instances", contract.Instances{Instances: []contract.Instance{ended}})
	if r := (&run{f: f}).do(t, "instance", "list"); r.stdout != "" || r.stderr != "no instances\n1 ended instance is kept for inspection: use --all to show it\n" {
		t.Errorf("got %q, %q", r.stdout, r.stderr)
	}
}

func TestWhatPeopleHoldBackIsShownWhateverTheStatus(t *testing.T) {
	t.Parallel()
	s := contract.State{Projects: []contract.ProjectState{{
		Name: "hello", Goal: mariposa.GoalStarted, Status: mariposa.StatusFrozen, Frozen: true, Paused: true,
		Services: []contract.ServiceState{
			{Name: "db", Goal: 1, Running: 1, Status: mariposa.StatusFrozen, Frozen: true},
			{Name: "web", Goal: 3, Running: 1, Status: mariposa.StatusFrozen, Frozen: true, Reason: "2 instances are gone and would be replaced after thaw"},
			{Name: "api", Goal: 3, Running: 2, Starting: 1, Status: mariposa.StatusConverging, Paused: true, Reason: "2 of 3 running"},
			{Name: "job", Goal: 3, Running: 3, Outdated: 1, Status: mariposa.StatusPaused, Paused: true, Reason: "the rollout of version 4 is paused: 2 of 3 are up to date"},
			{Name: "new", Goal: 12, Running: 12, Outdated: 9, Status: mariposa.StatusHeld, Reason: "3 of 12 at version 4; continue with mariposa project reprovision, or undo with mariposa project revert"},
			{Name: "bad", Goal: 2, Status: mariposa.StatusBackingOff, Backoff: &contract.Backoff{Failures: 3, Until: noon}, Reason: "failed 3 times in a row; next retry at 12:11:00: exited with code 1"},
		},
	}}}
	(&run{f: world(t).give("GET /v1/state", s)}).do(t, "state").golden("state-held")
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	out := &until{text: "hello is converged", done: cancel}
	f := world(t).give("GET /v1/state", s).stream(projectEvent(15, "converged", ""))
	(&run{f: f, ctx: ctx, out: out}).do(t, "state", "-w").expect(exitOK)
	golden(t, "watch-held", out.String())
}

// Tasks are described in the words people used to request them.
func TestTasksHaveTheWordsThatPeopleUse(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		kind            mariposa.TaskKind
		component, want string
	}{
		{mariposa.TaskScale, "project", "scale"},
		{mariposa.TaskScale, "repair", "repair"},
		{mariposa.TaskScale, "cleanup", "cleanup"},
		{mariposa.TaskReprovision, "rollback", "rollback"},
		{mariposa.TaskScale, "converge", "converge"},
		{mariposa.TaskScale, "accept", "accept"},
		{mariposa.TaskFreeze, "freeze", "freeze"},
		{mariposa.TaskFreeze, "terminate", "freeze"},
		{mariposa.TaskFreeze, "thaw", "thaw"},
		{mariposa.TaskFreeze, "pause", "pause"},
		{mariposa.TaskFreeze, "resume", "resume"},
		{mariposa.TaskStop, "delete", "delete"},
		{mariposa.TaskStop, "project", "stop"},
		{mariposa.TaskReprovision, "instance", "replace"},
		{mariposa.TaskReprovision, "project", "reprovision"},
		{mariposa.TaskStart, "", "start"},
	} {
		if got := describeTask(&contract.Task{Task: c.kind, Component: c.component, ProjectName: "hello"}); got != c.want+" hello" {
			t.Errorf("a %s of %q is called %q", c.kind, c.component, got)
		}
	}
}

func TestAQueueIsShownWithWhatIsLeft(t *testing.T) {
	t.Parallel()
	soon := task(mariposa.TaskActive, 3, 12)
	soon.ETA = after(10*time.Minute + 90*time.Second)
	late := task(mariposa.TaskActive, 11, 12)
	late.ETA = after(9 * time.Minute) // it should have ended, so the time left is unknown
	f := world(t).give("GET /v1/queue", contract.Tasks{Tasks: []contract.Task{soon, late, frozen(0, 0), task(mariposa.TaskTerminated, 1, 2)}, Marker: taskOne}).give("GET /v1/queue/"+taskOne, soon)
	var stories strings.Builder
	for _, line := range []string{"queue list --all --limit 4", "queue show " + taskOne} {
		stories.WriteString((&run{f: f}).do(t, strings.Fields(line)...).story() + "\n")
	}
	golden(t, "queue-left", stories.String())
}

func TestAChangeSaysWhichTasksItEnds(t *testing.T) {
	t.Parallel()
	ended := []contract.EndedTask{
		{ID: freezeOne, Task: mariposa.TaskFreeze, State: mariposa.TaskActive, Reason: "ann asked to freeze it"},
		{ID: "t-9", Task: mariposa.TaskReprovision, Services: []string{"a", "b"}, State: mariposa.TaskQueued, Reason: "version 2", ContinueWith: "mariposa -j hello project revert 2"},
	}
	f := world(t).give("PUT /v1/projects/hello/state", contract.Changed{Task: ptr(taskOne), Ended: ended})
	r := (&run{f: f}).do(t, "project", "stop", "hello")
	want := "this terminates the freeze, task " + freezeOne + ": ann asked to freeze it\n" +
		"this cancels the queued reprovision of a, b, task t-9: version 2; to run it again: mariposa -j hello project revert 2\n"
	if r.code != 0 || r.stderr != want || r.stdout != "task "+taskOne+"\n" {
		t.Errorf("exit %d, printed %q and %q", r.code, r.stdout, r.stderr)
	}
}
